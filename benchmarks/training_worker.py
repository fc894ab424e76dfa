"""The worker of the suite `training`: `python -m benchmarks.training_worker TASK.json IMPL`."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import graphs, plan, process, timing, training


@dataclasses.dataclass
class Job:
    """A training step to time.

    Attributes:
        seconds: runs so many steps and says how long they took.
        peak_bytes: peak memory so far.
        check: loss, and gradients by parameter name, at the initial parameters.
    """

    seconds: Callable[[int], float]
    peak_bytes: Callable[[], int | None]
    check: Callable[[], tuple[float, dict[str, np.ndarray]]]


def main(task_file: str, impl: str) -> int:
    task = json.loads(Path(task_file).read_text())
    threads = process.limit_threads(task["device"], task["threads"])
    graph = graphs.load(Path(task["graph"]))
    with np.load(task["inputs"]) as archive:
        inputs = {name: archive[name] for name in archive.files}
    layers = len(task["widths"]) - 1
    if impl == training.ORACLE:
        from benchmarks import training_jax

        loss, gradients = training_jax.float64_gradients(graph, inputs, layers)
        arrays: dict[str, Any] = {"loss": loss, **gradients}
        np.savez(task["oracle"], **arrays)
        return 0
    try:
        job = _job(impl, graph, inputs, layers, task["device"], threads)
    except ImportError as error:
        process.send({"skipped": str(error)})
        return 0
    began = time.perf_counter()
    timed = timing.measure(job.seconds, **task["timing"])
    peak = job.peak_bytes()
    loss, gradients = job.check()
    error = _error(loss, gradients, task["oracle"])
    row = {
        "suite": "training",
        "case": graph.name,
        "impl": impl,
        "dtype": "float32",
        "shape": {
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "widths": task["widths"],
        },
        "pass": "step",
        **timed._asdict(),
        "baseline": None,
        "ratio": None,
        "peak_bytes": peak,
        "error": error if np.isfinite(error) else "not finite",
        "loss": loss,
        "accurate": bool(error <= task["tolerance"]),
        "seconds_in_all": round(time.perf_counter() - began, 2),
    }
    process.send({"row": row})
    return 0


def _job(
    impl: str,
    graph: graphs.StoredGraph,
    inputs: dict[str, np.ndarray],
    layers: int,
    device: str,
    threads: int,
) -> Job:
    if impl == plan.PYG_ADJ:
        from benchmarks import training_pyg

        return training_pyg.job(graph, inputs, layers, device, threads)
    from benchmarks import training_jax

    return training_jax.job(impl, graph, inputs, layers, device)


def _error(loss: float, gradients: dict[str, np.ndarray], oracle: str) -> float:
    """Largest relative error: of the loss, and of each parameter's gradient in norm."""
    with np.load(oracle) as archive:
        expected: dict[str, Any] = {name: archive[name] for name in archive.files}
    errors = [abs(loss - float(expected["loss"])) / abs(float(expected["loss"]))]
    if gradients.keys() != expected.keys() - {"loss"}:
        raise ValueError(f"gradients of {sorted(gradients)}, expected {sorted(expected)}")
    for name, gradient in gradients.items():
        difference = np.linalg.norm(gradient.astype(np.float64) - expected[name])
        errors.append(float(difference / np.linalg.norm(expected[name])))
    return max(errors) if np.isfinite(errors).all() else float("inf")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
