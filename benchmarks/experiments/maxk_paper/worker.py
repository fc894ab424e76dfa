"""Jobs of the paper's measurements, started only while time is left."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.experiments.maxk_paper.store import BUDGET_SPENT
from benchmarks.harness import graphs
from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.setting import Setting
from benchmarks.harness.steps import load_arrays


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of an operation, or of a training step where `task` has `inputs`."""
    if "inputs" in task:
        inner = functools.partial(_step, task, threads)
    else:
        operations = importlib.import_module("benchmarks.harness.operations")
        inner = operations.make(task, threads)

    def prepare(entry: dict[str, Any]) -> Job:
        if time.time() >= task["deadline"]:
            raise Unsupported(BUDGET_SPENT)
        return inner(entry)

    return prepare


def _step(task: dict[str, Any], threads: int, entry: dict[str, Any]) -> Job:
    """The training step of a setting, from the parameters that all implementations begin with.

    Its gradients are not checked here: the suite `training` does so for the same models.
    """
    setting, inputs, device = Setting(**entry), Path(task["inputs"]), task["device"]
    graph, widths = graphs.load(Path(task["graph"])), list(task["widths"])
    arrays = (
        load_arrays(inputs / "features.npz"),
        load_arrays(inputs / f"parameters-{setting.model}.npz"),
    )
    if setting.impl.startswith(("PyG", "cuSPARSE")):
        from benchmarks.baselines import torch_models

        job = torch_models.step(setting, graph, *arrays, device, threads)
    else:
        from benchmarks.harness import jax_step

        job = jax_step.step(
            setting, graph, *arrays, widths, device, alone=len(task["entries"]) == 1
        )
    job.identity = {
        "case": setting.case(graph.facts["name"]),
        "impl": setting.impl,
        "model": setting.model,
        "k": setting.k,
        "dtype": setting.dtype,
        "shape": {"nodes": graph.num_nodes, "edges": graph.num_edges, "widths": widths},
        "pass": "step",
    }
    return job
