"""The worker of the suite `training`: `python -m benchmarks.training_worker TASK.json FIRST`.

Runs the task's settings from number FIRST on, with a message before and after each.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import families, graphs, plan, process, timing, training
from benchmarks.training import Setting

# What only attention's scores depend on: GAT's vectors, GATv2's vector and its receivers' products.
_CANCELLING, _SHARE = ("source", "target", "vector", "right", "right_shift"), 0.05


@dataclasses.dataclass
class Job:
    """A training step to time.

    Attributes:
        seconds: runs so many steps and says how long they took.
        peak_bytes: peak memory so far.
        check: loss, and gradients by parameter name, at the initial parameters.
        more: further fields of the row, given the step's milliseconds.
        loss: of the first step, where one was run.
    """

    seconds: Callable[[int], float]
    peak_bytes: Callable[[], int | None]
    check: Callable[[], tuple[float, dict[str, np.ndarray]]]
    more: Callable[[float], dict[str, Any]] = lambda ms: {}
    loss: float | None = None


def main(task_file: str, first: str) -> int:
    task = json.loads(Path(task_file).read_text())
    threads = process.limit_threads(task["device"], task["threads"])
    graph = graphs.load(Path(task["graph"]))
    features = load_arrays(Path(task["workspace"]) / "features.npz")
    for number, fields in enumerate(task["settings"]):
        if number < int(first):
            continue
        process.send({"start": number})
        setting = Setting(**fields)
        try:
            row = _run(setting, graph, features, task, threads)
            process.send({"done": number, **row})
        except ImportError as error:
            process.send({"done": number, "skipped": str(error)})
        except Exception as error:
            if setting.impl != plan.OURS and families.out_of_memory(error):
                process.send({"done": number, "skipped": f"out of memory: {str(error)[:200]}"})
                continue
            traceback.print_exc()
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            process.send({"done": number, "failed": reason})
        gc.collect()
    return 0


def _run(
    setting: Setting,
    graph: graphs.StoredGraph,
    features: dict[str, np.ndarray],
    task: dict[str, Any],
    threads: int,
) -> dict[str, Any]:
    """The `row` of a setting; an oracle writes a file instead."""
    began = time.perf_counter()
    workspace, widths = Path(task["workspace"]), list(setting.sizes(task["widths"]))
    parameters = load_arrays(training.parameters_file(workspace, setting))
    if setting.impl == training.ORACLE:
        from benchmarks import training_plain

        loss, gradients = training_plain.float64_gradients(setting, graph, features, parameters)
        arrays: dict[str, Any] = {"loss": loss, **gradients}
        np.savez(training.oracle_file(workspace, setting), **arrays)
        return {}
    if setting.impl in (plan.PYG_ADJ, plan.PYG_EDGES):
        from benchmarks import training_pyg

        job = training_pyg.job(setting, graph, features, parameters, task["device"], threads)
    else:
        from benchmarks import training_jax

        alone = len(task["settings"]) == 1
        job = training_jax.job(setting, graph, features, parameters, widths, task["device"], alone)
    timed = timing.measure(job.seconds, **task["timing"])
    peak = job.peak_bytes()
    loss, gradients = job.check()
    error = _error(loss, gradients, load_arrays(training.oracle_file(workspace, setting)))
    row = {
        "suite": task["suite"],
        "case": setting.case(graph.name),
        "impl": setting.impl,
        "dtype": setting.dtype,
        "shape": shape(setting, graph, widths),
        "pass": "step",
        **timed._asdict(),
        "baseline": None,
        "ratio": None,
        "peak_bytes": peak,
        "error": error if np.isfinite(error) else "not finite",
        "loss": loss,
        "accurate": bool(error <= setting.tolerance(task["device"])),
        **job.more(timed.ms),
        "seconds_in_all": round(time.perf_counter() - began, 2),
    }
    return {"row": row}


def shape(setting: Setting, graph: graphs.StoredGraph, widths: list[int]) -> dict[str, Any]:
    """The sizes of a step, as its row has them."""
    sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges, "widths": widths}
    own = {"k": setting.k, "heads": setting.heads}
    return sizes | {name: value for name, value in own.items() if value is not None}


def load_arrays(path: Path) -> dict[str, Any]:
    """What `numpy.savez` wrote, loaded."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def _error(loss: float, gradients: dict[str, np.ndarray], expected: dict[str, Any]) -> float:
    """Largest relative error: of the loss, and of each parameter's gradient in norm.

    The gradients of what only attention's scores depend on are what is left of terms that cancel,
    at times a thousandth of others: a share of their layer's largest gradient counts as their norm.
    """
    errors = [abs(loss - float(expected["loss"])) / abs(float(expected["loss"]))]
    if gradients.keys() != expected.keys() - {"loss"}:
        raise ValueError(f"gradients of {sorted(gradients)}, expected {sorted(expected)}")
    for name, gradient in gradients.items():
        difference = np.linalg.norm(gradient.astype(np.float64) - expected[name])
        size = np.linalg.norm(expected[name])
        kind, _, layer = name.rpartition("_")
        if kind in _CANCELLING:
            of_layer = [value for other, value in expected.items() if other.endswith(f"_{layer}")]
            size = max(size, _SHARE * max(map(np.linalg.norm, of_layer)))
        errors.append(float(difference / size))
    return max(errors) if np.isfinite(errors).all() else float("inf")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
