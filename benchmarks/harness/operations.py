"""The jobs of single operations: the suites `spmm`, `maxk` and `traffic`, attention's kernels.

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

from benchmarks.harness import graphs, timing
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.job import Job, checked
from benchmarks.harness.plan import Measurement
from tests.support import oracle_rows as oracle

_SEED = 20
_FRAMEWORKS = {
    "jax": ("benchmarks.baselines.jax_operations", "JaxFramework"),
    "torch": ("benchmarks.baselines.torch_operations", "TorchFramework"),
    "scipy": ("benchmarks.baselines.scipy_operations", "ScipyFramework"),
}


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


class Framework(abc.ABC):
    """Where a framework's arrays live and how its work is waited for."""

    def __init__(self, device: str, threads: int) -> None:
        self.device = device
        self.threads = threads

    @abc.abstractmethod
    def load(self, graph: StoredGraph) -> None:
        """Puts a graph on the device, in place of the one before."""

    @abc.abstractmethod
    def candidate(
        self,
        measurement: Measurement,
        dense: np.ndarray,
        weights: np.ndarray | None,
        kept: np.ndarray | None,
    ) -> Candidate:
        """Prepares the product of the graph (or its transpose) with `dense`.

        `dense` is in the measurement's dtype; `weights` are float32 values of that dtype, in the
        order of the edges of `StoredGraph.rows`; `kept` are the columns of the entries that a
        measurement with `k` keeps, ascending in each row.
        """

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

    def clear(self) -> None:  # noqa: B027
        """Gives memory back to the system between candidates."""


def make(task: dict[str, Any], threads: int) -> Operations:
    """The jobs of a task; imports its framework."""
    module, name = _FRAMEWORKS[task["framework"].split()[0]]
    framework = getattr(importlib.import_module(module), name)(task["device"], threads)
    return Operations(framework, {name: Path(path) for name, path in task["graphs"].items()})


class Operations:
    """Makes jobs; holds the graph, dense matrices and the oracle's products while they serve."""

    def __init__(self, framework: Framework, folders: dict[str, Path]) -> None:
        self._framework = framework
        self._folders = folders
        self._graph_key: str | None = None
        self._dense_key: tuple | None = None

    def prepare(self, entry: dict[str, Any]) -> Job:
        """The job of a measurement."""
        m, framework = Measurement(**entry), self._framework
        graph = self._load(m.case)
        dense, weights, kept = self._inputs(m), self._weights(m), self._kept(m)
        candidate = framework.candidate(m, dense, weights, kept)

        def loop(steps: int) -> Callable[[int], float]:
            assert candidate.repeated is not None
            call = candidate.repeated(steps)
            return lambda count: framework.seconds(call, count)

        def check() -> dict[str, Any]:
            short = m.k is not None and m.direction != "forward"
            framework.poison((graph.num_nodes, m.k if short and m.k else m.width), m.dtype)
            result = candidate.call()
            framework.wait(result)
            if candidate.error is not None:
                error = candidate.error(result)
            else:
                rows, expected = self._expected(m, dense, weights, kept, candidate)
                got = (candidate.rows or framework.rows)(result, rows)
                error = oracle.row_error(got, expected)
            return checked(error, oracle.TOLERANCE[m.dtype])

        shape = {"nodes": graph.num_nodes, "edges": graph.num_edges, "width": m.width}
        return Job(
            {
                "case": m.case + (" weighted" if m.weighted else ""),
                "impl": m.impl,
                "dtype": m.dtype,
                "shape": shape if m.k is None else {**shape, "k": m.k},
                "pass": m.direction,
            },
            seconds=lambda count: framework.seconds(candidate.call, count),
            check=check,
            peak_bytes=lambda: framework.peak_bytes(candidate),
            loop=None if candidate.repeated is None else loop,
            facts=candidate.facts,
            close=candidate.close,
        )

    def clear(self) -> None:
        self._framework.clear()

    def _load(self, case: str) -> StoredGraph:
        if case != self._graph_key:
            self._dense_key = None
            self._graph = graphs.load(self._folders[case])
            self._framework.load(self._graph)
            self._graph_key = case
        return self._graph

    def _inputs(self, m: Measurement) -> np.ndarray:
        """The features, or the cotangent of a backward pass."""
        key = (m.case, m.width, m.dtype)
        if key != self._dense_key:
            self._dense: dict[bool, np.ndarray] = {}
            self._products: dict[tuple, np.ndarray] = {}
            self._order: np.ndarray | None = None
            self._last_kept: tuple[int, np.ndarray] | None = None
            self._dense_key = key
        backward = m.direction == "backward"
        if backward not in self._dense:
            rng = np.random.default_rng([_SEED, backward])
            values = rng.random((self._graph.num_nodes, m.width), np.float32)
            self._dense[backward] = oracle.round_to(values - np.float32(0.5), m.dtype)
        return self._dense[backward]

    def _kept(self, m: Measurement) -> np.ndarray | None:
        """The columns of each row's `k` largest features, ascending."""
        if m.k is None:
            return None
        if self._order is None:
            self._order = oracle.descending(
                self._inputs(dataclasses.replace(m, direction="forward"))
            )
        if self._last_kept is None or self._last_kept[0] != m.k:
            self._last_kept = m.k, oracle.largest(self._order, m.k)
        return self._last_kept[1]

    def _weights(self, m: Measurement) -> np.ndarray | None:
        if not m.weighted:
            return None
        # Rounded to the dtype for all: cuSPARSE takes values in the dtype of the features.
        values = np.random.default_rng(_SEED).random(self._graph.num_edges, np.float32)
        return oracle.round_to(values, m.dtype).astype(np.float32)

    def _expected(
        self,
        m: Measurement,
        dense: np.ndarray,
        weights: np.ndarray | None,
        kept: np.ndarray | None,
        candidate: Candidate,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The sampled rows, and what they should be."""
        backward = m.direction == "backward"
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
            return rows, oracle.kept_product_rows(offsets, columns, dense, kept, rows)
        key = (backward, m.weighted)
        if key not in self._products:
            self._products[key] = oracle.product_rows(offsets, columns, dense, weights, rows)
        product = self._products[key]
        if kept is not None:
            product = np.take_along_axis(product, kept[rows].astype(np.int64), axis=1)
        return rows, product
