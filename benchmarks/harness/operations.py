"""The jobs of single operations: the suites `spmm` and `maxk`, attention's kernels.

A framework holds one graph and one dense matrix at a time and makes of a `Measurement` a
`Candidate`: a call without arguments that enqueues one operation.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import graphs, plan, timing
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.job import Job, checked
from benchmarks.harness.plan import Measurement
from tests.support import oracle_rows as oracle

_SEED = 20
_FRAMEWORKS = {"jax": "JaxFramework", "torch": "TorchFramework", "scipy": "ScipyFramework"}


@dataclasses.dataclass
class Inputs:
    """What an operation reads."""

    dense: np.ndarray  # the features, or the cotangent of a backward pass, in the dtype
    weights: np.ndarray | None  # float32 values of that dtype, in the edges' order
    kept: np.ndarray | None  # the columns of the k entries kept, ascending in each row


@dataclasses.dataclass
class Candidate:
    """An operation ready to be timed: `call` enqueues it, `repeated` makes a call of many on the
    device. `rows`, `error` and `selected_from` (what a selection selects from, given rows and their
    numbers) replace the framework's check of a matrix."""

    call: Callable[[], Any]
    input_bytes: int = 0
    peak_bytes: int | None = None
    repeated: Callable[[int], Callable[[], Any]] | None = None
    close: Callable[[], None] = lambda: None
    rows: Callable[[Any, np.ndarray], np.ndarray] | None = None
    error: Callable[[Any], float] | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    selected_from: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


def score_error(graph: StoredGraph, x: np.ndarray, scores: np.ndarray) -> float:
    """The error of the edges' dot products of their ends' rows of `x`, over sampled receivers."""
    offsets, columns = graph.rows()
    rows = oracle.sample_rows(offsets, seed=_SEED)
    error = 0.0
    for row in rows:
        edges = slice(int(offsets[row]), int(offsets[row + 1]))
        expected = x[columns[edges]].astype(np.float64) @ x[row].astype(np.float64)
        error = max(error, oracle.row_error(scores[None, edges], expected[None]))
    return error


class Framework(abc.ABC):
    """Where a framework's arrays live and how its work is waited for."""

    def __init__(self, device: str, threads: int) -> None:
        self.device = device

    @abc.abstractmethod
    def load(self, graph: StoredGraph) -> None:
        """Puts a graph on the device, in place of the one before."""

    @abc.abstractmethod
    def candidate(self, m: Measurement, inputs: Inputs) -> Candidate:
        """Prepares the product of the graph (or its transpose) with the dense input."""

    @abc.abstractmethod
    def poison(self, shape: tuple[int, int], dtype: str) -> None:
        """Fills memory like the result's with NaN, so that an unwritten element shows."""

    def wait(self, result: Any) -> None:  # noqa: B027
        """Returns once the result is there."""

    @abc.abstractmethod
    def rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        """These rows of a result, as float32."""

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        """Time of `count` calls on the host's clock, each waited for."""
        start = time.perf_counter()
        for _ in range(count):
            self.wait(call())
        return time.perf_counter() - start

    def peak_bytes(self, candidate: Candidate) -> int | None:
        """Peak memory of one call, with what it reads."""
        if candidate.peak_bytes is not None:
            return candidate.peak_bytes

        def call() -> Any:
            result = candidate.call()
            self.wait(result)
            return result

        peak = timing.peak_resident_bytes(call)
        return None if peak is None else peak + candidate.input_bytes


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of a measurement; imports the task's framework."""
    name = Measurement(**task["entries"][0]).framework.split()[0]
    module = importlib.import_module(f"benchmarks.baselines.{name}_operations")
    framework = getattr(module, _FRAMEWORKS[name])(task["device"], threads)
    return Operations(framework, {name: Path(path) for name, path in task["graphs"].items()}).job


class Operations:
    """Makes jobs; holds the graph, dense matrices and the oracle's products while they serve."""

    def __init__(self, framework: Framework, folders: dict[str, Path]) -> None:
        self._framework = framework
        self._folders = folders
        self._case: str | None = None
        self._key: tuple | None = None
        self._made: dict[Any, np.ndarray] = {}

    def job(self, entry: dict[str, Any]) -> Job:
        """The job of a measurement."""
        m, framework = Measurement(**entry), self._framework
        if m.case != self._case:
            self._graph = graphs.load(self._folders[m.case])
            framework.load(self._graph)
            self._case = m.case
        graph = self._graph
        inputs = Inputs(self._dense(m, m.direction == "backward"), self._weights(m), self._kept(m))
        candidate = framework.candidate(m, inputs)

        def loop(steps: int) -> Callable[[int], float]:
            assert candidate.repeated is not None
            call = candidate.repeated(steps)
            return lambda count: framework.seconds(call, count)

        def check() -> dict[str, Any]:
            narrow = m.k is not None and m.direction != "forward"
            framework.poison((graph.num_nodes, m.k if narrow and m.k else m.width), m.dtype)
            result = candidate.call()
            framework.wait(result)
            if candidate.error is not None:
                error = candidate.error(result)
            else:
                rows, expected = self._expected(m, inputs, candidate)
                error = oracle.row_error((candidate.rows or framework.rows)(result, rows), expected)
            # Packed rows wider than 256 keep 13 bits of mantissa instead of 15.
            short = m.impl == plan.MAXK_PACKED and m.width > plan.MAXK_WIDTH
            return checked(error, (4 if short else 1) * oracle.TOLERANCE[m.dtype])

        shape = {"nodes": graph.num_nodes, "edges": graph.num_edges, "width": m.width}
        shape |= {name: n for name, n in (("k", m.k), ("S", m.sample)) if n is not None}
        identity = {
            "case": m.case + (" weighted" if m.weighted else ""),
            "impl": m.impl,
            "dtype": m.dtype,
            "shape": shape,
            "pass": m.direction,
        }
        return Job(
            lambda count: framework.seconds(candidate.call, count),
            lambda: framework.peak_bytes(candidate),
            identity,
            check,
            loop=None if candidate.repeated is None else loop,
            facts=candidate.facts,
            close=candidate.close,
        )

    def _once(self, m: Measurement, name: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What is made once for all measurements of a graph, width and dtype."""
        if (m.case, m.width, m.dtype) != self._key:
            self._made, self._key = {}, (m.case, m.width, m.dtype)
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _dense(self, m: Measurement, backward: bool) -> np.ndarray:
        """The features, or the cotangent of a backward pass."""

        def draw() -> np.ndarray:
            rng = np.random.default_rng([_SEED, backward])
            values = rng.random((self._graph.num_nodes, m.width), np.float32)
            return oracle.round_to(values - np.float32(0.5), m.dtype)

        return self._once(m, ("dense", backward), draw)

    def _kept(self, m: Measurement) -> np.ndarray | None:
        """The columns of each row's `k` largest features, ascending; attention, whose heads have
        `k` each, finds its own."""
        k = m.k
        if k is None or m.impl == plan.GAT:
            return None
        order = self._once(m, "order", lambda: oracle.descending(self._dense(m, False)))
        return self._once(m, ("kept", k), lambda: oracle.largest(order, k))

    def _weights(self, m: Measurement) -> np.ndarray | None:
        if not m.weighted:
            return None
        # Rounded to the dtype for all: cuSPARSE takes values in the dtype of the features.
        values = np.random.default_rng(_SEED).random(self._graph.num_edges, np.float32)
        return oracle.round_to(values, m.dtype).astype(np.float32)

    def _expected(
        self, m: Measurement, inputs: Inputs, candidate: Candidate
    ) -> tuple[np.ndarray, np.ndarray]:
        """The sampled rows, and what they should be."""
        backward, dense, kept = m.direction == "backward", inputs.dense, inputs.kept
        offsets, columns = self._graph.rows(backward=backward)
        rows = oracle.sample_rows(offsets, seed=_SEED)
        if m.direction == "select":
            x = dense[rows]
            own = None if kept is None else kept[rows]
            if candidate.selected_from is not None and m.k is not None:
                x = candidate.selected_from(x, rows)
                own = oracle.largest(oracle.descending(x), m.k)
            return rows, (x if own is None else oracle.keep(x, own)).astype(np.float64)
        if kept is not None and not backward:
            weights = inputs.weights
            return rows, oracle.kept_product_rows(offsets, columns, dense, kept, weights, rows)
        product = self._once(
            m,
            ("product", backward, m.weighted),
            lambda: oracle.product_rows(offsets, columns, dense, inputs.weights, rows),
        )
        if kept is not None:
            product = np.take_along_axis(product, kept[rows].astype(np.int64), axis=1)
        return rows, product
