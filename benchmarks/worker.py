"""The worker of the suites `spmm` and `maxk`: `python -m benchmarks.worker TASK.json FIRST`.

Runs the task's measurements from number FIRST on and sends a message before and after each, so
that a parent can go on behind one that takes the process down.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import families, graphs, oracle, process, timing
from benchmarks.plan import Measurement

_SEED = 20


def main(task_file: str, first: str) -> int:
    task = json.loads(Path(task_file).read_text())
    device = task["device"]
    threads = process.limit_threads(device, task["threads"])
    try:
        family = families.make(task["family"], device)
    except ImportError as error:
        process.send({"missing": str(error)})
        return 0
    if task["family"] == "torch":
        import torch

        torch.set_num_threads(threads)
    inputs = Inputs(family, {name: Path(path) for name, path in task["graphs"].items()})
    for number, fields in enumerate(task["measurements"]):
        if number < int(first):
            continue
        process.send({"start": number})
        measurement = Measurement(**fields)
        try:
            row = _run(family, inputs, measurement, task["timing"])
            process.send({"done": number, "row": {"suite": task["suite"], **row}})
        except (families.Unsupported, ImportError) as error:
            process.send({"done": number, "skipped": str(error)})
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            process.send({"done": number, "failed": reason})
            if family.device_lost(error):
                return 3  # the parent starts a new process
        gc.collect()
        family.clear()
    return 0


class Inputs:
    """The current graph, dense matrices and edge values, made anew only where they change."""

    def __init__(self, family: families.Family, folders: dict[str, Path]) -> None:
        self._family = family
        self._folders = folders
        self._graph_key: str | None = None
        self._dense_key: tuple | None = None

    def graph(self, case: str) -> graphs.StoredGraph:
        if case != self._graph_key:
            self._dense_key = None
            self._graph = graphs.load(self._folders[case])
            self._family.load(self._graph)
            self._graph_key = case
        return self._graph

    def dense(self, measurement: Measurement) -> np.ndarray:
        """The features, or the cotangent of a backward pass."""
        key = (measurement.case, measurement.width, measurement.dtype)
        if key != self._dense_key:
            self._dense: dict[bool, np.ndarray] = {}
            self._products: dict[tuple, np.ndarray] = {}
            self._order: np.ndarray | None = None
            self._kept: tuple[int, np.ndarray] | None = None
            self._dense_key = key
        backward = measurement.direction == "backward"
        if backward not in self._dense:
            rng = np.random.default_rng([_SEED, backward])
            values = rng.random((self._graph.num_nodes, measurement.width), np.float32)
            values -= 0.5
            self._dense[backward] = oracle.round_to(values, measurement.dtype)
        return self._dense[backward]

    def kept(self, measurement: Measurement) -> np.ndarray | None:
        """The columns of each row's `k` largest features, ascending."""
        k = measurement.k
        if k is None:
            return None
        features = self.dense(dataclasses.replace(measurement, direction="forward"))
        if self._order is None:
            self._order = oracle.descending(features)
        if self._kept is None or self._kept[0] != k:
            self._kept = k, oracle.largest(self._order, k)
        return self._kept[1]

    def expected(
        self,
        measurement: Measurement,
        dense: np.ndarray,
        weights: np.ndarray | None,
        kept: np.ndarray | None,
        candidate: families.Candidate,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The sampled rows, and what they should be."""
        backward = measurement.direction == "backward"
        offsets, columns = self._graph.rows(backward=backward)
        rows = oracle.sample_rows(offsets, seed=_SEED)
        if measurement.direction == "select":
            x = dense[rows]
            own = None if kept is None else kept[rows]
            if candidate.selected_from is not None and measurement.k is not None:
                x = candidate.selected_from(x, rows)
                own = oracle.largest(oracle.descending(x), measurement.k)
            return rows, (x if own is None else oracle.keep(x, own)).astype(np.float64)
        if kept is not None and not backward:
            return rows, oracle.kept_product_rows(offsets, columns, dense, kept, rows)
        key = (backward, measurement.weighted)
        if key not in self._products:
            self._products[key] = oracle.product_rows(offsets, columns, dense, weights, rows)
        product = self._products[key]
        if kept is not None:
            product = np.take_along_axis(product, kept[rows].astype(np.int64), axis=1)
        return rows, product

    def weights(self, measurement: Measurement) -> np.ndarray | None:
        if not measurement.weighted:
            return None
        # Rounded to the dtype for all: cuSPARSE takes values in the dtype of the features.
        values = np.random.default_rng(_SEED).random(self._graph.num_edges, np.float32)
        return oracle.round_to(values, measurement.dtype).astype(np.float32)


def prepare(
    family: families.Family, inputs: Inputs, measurement: Measurement
) -> tuple[families.Candidate, float]:
    """The candidate, called once, and the largest relative error of a row of its result."""
    graph = inputs.graph(measurement.case)
    dense = inputs.dense(measurement)
    weights = inputs.weights(measurement)
    kept = inputs.kept(measurement)
    candidate = family.candidate(measurement, dense, weights, kept)
    width = measurement.width
    if measurement.k is not None and measurement.direction != "forward":
        width = measurement.k
    family.poison((graph.num_nodes, width), measurement.dtype)
    result = candidate.call()
    family.wait(result)
    if candidate.error is not None:
        return candidate, candidate.error(result)
    rows, expected = inputs.expected(measurement, dense, weights, kept, candidate)
    return candidate, oracle.row_error((candidate.rows or family.rows)(result, rows), expected)


def _run(
    family: families.Family,
    inputs: Inputs,
    measurement: Measurement,
    how: dict[str, Any],
) -> dict[str, Any]:
    began = time.perf_counter()
    graph = inputs.graph(measurement.case)
    candidate, error = prepare(family, inputs, measurement)
    peak = family.peak_bytes(candidate)
    timed, call_ms = _timed(family, candidate, how)
    candidate.close()
    return {
        "case": measurement.case + (" weighted" if measurement.weighted else ""),
        "impl": measurement.impl,
        "dtype": measurement.dtype,
        "shape": shape(graph, measurement),
        "pass": measurement.direction,
        **timed._asdict(),
        "call_ms": call_ms,
        "baseline": None,
        "ratio": None,
        "peak_bytes": peak,
        "error": error if np.isfinite(error) else "not finite",
        "accurate": bool(error <= oracle.TOLERANCE[measurement.dtype]),
        **candidate.facts,
        "seconds_in_all": round(time.perf_counter() - began, 2),
    }


def shape(graph: graphs.StoredGraph, measurement: Measurement) -> dict[str, int]:
    """The sizes of a measurement, as its row has them."""
    sizes = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "width": measurement.width,
    }
    return sizes if measurement.k is None else {**sizes, "k": measurement.k}


def _timed(
    family: families.Family, candidate: families.Candidate, how: dict[str, Any]
) -> tuple[timing.Timing, float | None]:
    """The time of a product, and what its call from Python takes where that was not it."""
    call = timing.measure(lambda count: family.seconds(candidate.call, count), **how)
    if candidate.repeated is None or call.ms >= timing.SHORT_CALL:
        return call, None
    steps = timing.steps_in(call, how["batch_seconds"])
    loop = candidate.repeated(steps)
    timed = timing.measure(lambda count: family.seconds(loop, count), **how)
    return timed.divided(steps), call.ms


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
