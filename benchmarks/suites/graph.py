"""The suite `graph`: building a graph of 20 million edges, its time and its peak memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import plan, process, timing
from benchmarks.harness.job import Job, checked
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record, Row, compare

_LEVELS = 20
_EDGES_PER_NODE = 20_000_000 / 2**_LEVELS
SCIPY_ROUTE = "SciPy tocsr + tocsc"


def run(options: Options, record: Record, workspace: Path) -> None:
    """Times `Graph.from_edges` and SciPy's conversions, a process for each."""
    from jaxgnn import data

    record.compare = set_baselines
    levels = max(6, _LEVELS + round(np.log2(options.scale)))
    csr = data.rmat(levels, _EDGES_PER_NODE, seed=1)
    order = np.random.default_rng(0).permutation(csr.num_edges)
    np.save(workspace / "senders.npy", csr.senders[order])
    np.save(workspace / "receivers.npy", csr.receivers[order])
    task = {
        "kind": "graph",
        "suite": options.suite,
        "device": "cpu",
        "folder": str(workspace),
        "nodes": csr.num_nodes,
        "threads": options.threads,
        "timing": options.timing(),
    }
    del csr, order
    env = process.environment("cpu", options.threads)
    for impl in (plan.OURS, SCIPY_ROUTE):
        if plan.wanted(impl, options.only):
            own = task | {"entries": [{"impl": impl}]}
            process.run_each(own, [impl], env, record, workspace)


def set_baselines(rows: list[Row]) -> None:
    """The baseline is SciPy."""
    for row in rows:
        compare(row, rows, lambda other: other["impl"] == SCIPY_ROUTE, ())


def make(task: dict[str, Any], threads: int) -> Builds:
    """The jobs of a task."""
    return Builds(task)


class Builds:
    """Makes the builds of one list of shuffled edges."""

    def __init__(self, task: dict[str, Any]) -> None:
        folder = Path(task["folder"])
        self._nodes = task["nodes"]
        self._edges = (np.load(folder / "senders.npy"), np.load(folder / "receivers.npy"))

    def prepare(self, entry: dict[str, Any]) -> Job:
        build, other = (make(*self._edges, self._nodes) for make in (_ours, _scipy))
        if entry["impl"] != plan.OURS:
            build, other = other, build
        result, expected = build(), other()
        wrong = sum(not np.array_equal(a, b) for a, b in zip(result, expected, strict=True))
        size = sum(array.nbytes for array in result)
        del result, expected
        peak = timing.peak_resident_bytes(build)

        def seconds(count: int) -> float:
            start = time.perf_counter()
            for _ in range(count):
                build()
            return time.perf_counter() - start

        return Job(
            {
                "case": "rmat20m",
                "impl": entry["impl"],
                "dtype": "int32",
                "shape": {"nodes": self._nodes, "edges": int(self._edges[0].size)},
                "pass": "build",
            },
            seconds,
            check=lambda: checked(float(wrong), 0.0),
            peak_bytes=lambda: peak,
            facts={
                "result_bytes": size,
                "memory_ratio": None if peak is None else round(peak / size, 3),
            },
        )

    def clear(self) -> None:
        pass


def _ours(senders: np.ndarray, receivers: np.ndarray, nodes: int) -> Callable[[], list]:
    import jax

    from jaxgnn import Graph

    Graph.from_edges(senders[:1], receivers[:1])  # starts JAX

    def build() -> list:
        graph = Graph.from_edges(senders, receivers, num_nodes=nodes)
        jax.block_until_ready(graph)
        return [
            graph.row_offsets,
            graph.senders,
            graph.edge_permutation,
            graph.transpose_row_offsets,
            graph.transpose_receivers,
            graph.transpose_permutation,
        ]

    return build


def _scipy(senders: np.ndarray, receivers: np.ndarray, nodes: int) -> Callable[[], list]:
    """The same six arrays: the values carry each edge's place."""
    import scipy.sparse

    def build() -> list:
        places = np.arange(senders.size, dtype=np.int32)
        rows = scipy.sparse.coo_array((places, (receivers, senders)), shape=(nodes, nodes)).tocsr()
        rows.sort_indices()
        permutation = rows.data
        ordered = (np.arange(senders.size, dtype=np.int32), rows.indices, rows.indptr)
        columns = scipy.sparse.csr_array(ordered, shape=rows.shape).tocsc()
        return [
            rows.indptr,
            rows.indices,
            permutation,
            columns.indptr,
            columns.indices,
            columns.data,
        ]

    return build
