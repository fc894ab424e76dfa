"""The suite `graph`: building a graph of 20 million edges, its time and its peak memory."""

from __future__ import annotations

import dataclasses
import functools
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import plan, process, timing
from benchmarks.harness.job import Job, checked
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare

_LEVELS = 20
_EDGES_PER_NODE = 20_000_000 / 2**_LEVELS
_FIELDS = (
    *("row_offsets", "senders", "edge_permutation"),
    *("transpose_row_offsets", "transpose_receivers", "transpose_permutation"),
)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Times `Graph.from_edges` and SciPy's conversions on the CPU, a process for each."""
    from jaxgnn import data

    record.compare = set_baselines
    levels = max(6, _LEVELS + round(np.log2(options.scale)))
    csr = data.rmat(levels, _EDGES_PER_NODE, seed=1)
    order = np.random.default_rng(0).permutation(csr.num_edges)
    np.save(workspace / "senders.npy", csr.senders[order])
    np.save(workspace / "receivers.npy", csr.receivers[order])
    task = {"module": __name__, "folder": str(workspace), "nodes": csr.num_nodes}
    del csr, order
    on_cpu = dataclasses.replace(options, device="cpu")
    for impl in (plan.OURS, plan.SCIPY_BUILD):
        if plan.wanted(impl, options.only):
            entry = Measurement("rmat20m", impl, 0, "int32", "build")
            process.run_each(task, [entry], on_cpu, record, workspace)


def set_baselines(rows: list[Row]) -> None:
    """The baseline is SciPy."""
    for row in rows:
        compare(row, rows, {"impl": plan.SCIPY_BUILD}, ("dtype", "pass"))


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of a build."""
    return functools.partial(_prepare, task)


def _prepare(task: dict[str, Any], entry: dict[str, Any]) -> Job:
    m, folder = Measurement(**entry), Path(task["folder"])
    edges = (np.load(folder / "senders.npy"), np.load(folder / "receivers.npy"))
    build, other = (make(*edges, task["nodes"]) for make in (_ours, _scipy))
    if m.impl != plan.OURS:
        build, other = other, build
    result, expected = build(), other()
    wrong = sum(not np.array_equal(a, b) for a, b in zip(result, expected, strict=True))
    size = sum(array.nbytes for array in result)
    del result, expected
    peak = timing.peak_resident_bytes(build)

    shape = {"nodes": task["nodes"], "edges": int(edges[0].size)}
    identity = {"case": m.case, "impl": m.impl, "dtype": m.dtype, "pass": m.direction}
    return Job(
        lambda count: timeit.timeit(build, number=count),
        peak_bytes=lambda: peak,
        identity=identity | {"shape": shape},
        check=lambda: checked(float(wrong), 0.0),
        facts={"result_bytes": size, "memory_ratio": peak and round(peak / size, 3)},
    )


def _ours(senders: np.ndarray, receivers: np.ndarray, nodes: int) -> Callable[[], list]:
    import jax

    from jaxgnn import Graph

    Graph.from_edges(senders[:1], receivers[:1])  # starts JAX

    def build() -> list:
        graph = Graph.from_edges(senders, receivers, num_nodes=nodes)
        jax.block_until_ready(graph)
        return [getattr(graph, field) for field in _FIELDS]

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
        by_sender = [columns.indptr, columns.indices, columns.data]
        return [rows.indptr, rows.indices, permutation, *by_sender]

    return build
