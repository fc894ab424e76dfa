"""The suite `graph`: building a graph of 20 million edges, its time and its peak memory.

As a worker, `python -m benchmarks.building TASK.json IMPL`, it builds once a repeat from the same
shuffled edge list and reports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plan, process, timing
from benchmarks.options import Options
from benchmarks.record import Record, Row

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
    nodes = csr.num_nodes
    del csr, order
    task = workspace / "building.json"
    task.write_text(
        json.dumps(
            {
                "folder": str(workspace),
                "nodes": nodes,
                "threads": options.threads,
                "timing": options.timing(),
            }
        )
    )
    for impl in (plan.OURS, SCIPY_ROUTE):
        if options.only and not any(part.lower() in impl.lower() for part in options.only):
            continue

        def receive(message: dict[str, Any]) -> None:
            record.add(message["row"])

        env = process.environment("building", "cpu", options.threads)
        status = process.run("benchmarks.building", [str(task), impl], env, receive)
        if status != 0:
            record.leave_out(impl, f"the process ended with status {status}", failed=True)


def set_baselines(rows: list[Row]) -> None:
    """The baseline is SciPy."""
    reference = next((row for row in rows if row["impl"] == SCIPY_ROUTE), None)
    if reference is None:
        return
    for row in rows:
        row["baseline"], row["ratio"] = SCIPY_ROUTE, round(reference["ms"] / row["ms"], 3)


def main(task_file: str, impl: str) -> int:
    """The worker: one row of `impl`."""
    task = json.loads(Path(task_file).read_text())
    process.limit_threads("cpu", task["threads"])
    folder, nodes = Path(task["folder"]), task["nodes"]
    senders = np.load(folder / "senders.npy")
    receivers = np.load(folder / "receivers.npy")
    build = (_ours if impl == plan.OURS else _scipy)(senders, receivers, nodes)
    result = build()
    wrong = _wrong(result, senders, receivers, nodes)
    size = sum(array.nbytes for array in result)
    del result
    peak = timing.peak_resident_bytes(build)

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            build()
        return time.perf_counter() - start

    timed = timing.measure(seconds, warmup=1, **task["timing"])
    process.send(
        {
            "row": {
                "suite": "graph",
                "case": "rmat20m",
                "impl": impl,
                "dtype": "int32",
                "shape": {"nodes": nodes, "edges": int(senders.size)},
                "pass": "build",
                **timed._asdict(),
                "baseline": None,
                "ratio": None,
                "peak_bytes": peak,
                "result_bytes": size,
                "memory_ratio": None if peak is None else round(peak / size, 3),
                "error": float(wrong),
                "accurate": wrong == 0,
            }
        }
    )
    return 0


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


def _wrong(result: list, senders: np.ndarray, receivers: np.ndarray, nodes: int) -> int:
    """Number of edges of the result that are not the user's, or not in their place."""
    offsets, columns, permutation, t_offsets, t_columns, t_permutation = map(np.asarray, result)
    rows = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(offsets))
    t_rows = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(t_offsets))
    if rows.size != senders.size or t_rows.size != senders.size:
        return senders.size
    order = rows.astype(np.int64) * nodes + columns
    wrong = (rows != receivers[permutation]) | (columns != senders[permutation])
    wrong |= (t_rows != columns[t_permutation]) | (t_columns != rows[t_permutation])
    return int(wrong.sum() + (np.diff(order) < 0).sum())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
