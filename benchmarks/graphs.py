"""The benchmarks' graphs: generated once, handed to the workers through files."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
from jaxtyping import Int

# R-MAT by name: levels, and edges for each node.
RMAT = {"rmat": (18, 18), "rmat-dense": (16, 48)}

_ARRAYS = (
    "row_offsets",
    "senders",
    "splits",
    "transpose_row_offsets",
    "transpose_receivers",
    "transpose_permutation",
    "transpose_splits",
)

# What a symmetric structure has in common with its transpose.
_SHARED = {
    "transpose_row_offsets": "row_offsets",
    "transpose_receivers": "senders",
    "transpose_splits": "splits",
}


@dataclasses.dataclass(frozen=True)
class StoredGraph:
    """A built graph on disk: rows by receiver, their transpose, both memory-mapped."""

    name: str
    row_offsets: Int[np.ndarray, " nodes+1"]
    senders: Int[np.ndarray, " edges"]
    splits: Int[np.ndarray, "parts 2"]
    transpose_row_offsets: Int[np.ndarray, " nodes+1"]
    transpose_receivers: Int[np.ndarray, " edges"]
    transpose_permutation: Int[np.ndarray, " edges"]
    transpose_splits: Int[np.ndarray, "parts 2"]
    symmetric: bool

    @property
    def num_nodes(self) -> int:
        return self.row_offsets.size - 1

    @property
    def num_edges(self) -> int:
        return self.senders.size

    def rows(self, *, backward: bool) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and columns of the product in this direction."""
        if backward:
            return self.transpose_row_offsets, self.transpose_receivers
        return self.row_offsets, self.senders

    def to_graph(self):
        """The `jaxgnn.Graph` on the default device, without the user's edge order."""
        from jaxgnn import Graph
        from jaxgnn.graph import _csr

        arrays = {name: np.asarray(getattr(self, name)) for name in _ARRAYS}
        if self.symmetric:  # told by the same objects, whose buffers the device then shares
            arrays |= {name: arrays[same] for name, same in _SHARED.items()}
        return Graph._from_host(
            _csr.HostCSR(
                **arrays,
                edge_permutation=None,
                self_loops=np.zeros(self.num_nodes, np.int32),
                num_senders=self.num_nodes,
                num_receivers=self.num_nodes,
                num_edges=self.num_edges,
            )
        )


def generate(name: str, scale: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row offsets and senders of a graph by name: one of `RMAT`, or a `benchmark_graph`'s."""
    from jaxgnn import data

    if name in RMAT:
        levels, edges_per_node = RMAT[name]
        csr = data.rmat(max(6, levels + round(np.log2(scale))), edges_per_node, seed=seed)
    else:
        csr = data.benchmark_graph(name, scale=scale, seed=seed)
    return csr.row_offsets, csr.senders


def store(name: str, directory: Path, scale: float = 1.0, seed: int = 1) -> Path:
    """Generates, builds and saves a graph unless it is there; returns its folder."""
    from jaxgnn.graph import _csr

    folder = directory / f"{name}-{scale:g}-{seed}"
    done = folder / "graph.json"
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    row_offsets, senders = generate(name, scale, seed)
    generated = time.perf_counter()
    nodes = row_offsets.size - 1
    receivers = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(row_offsets))
    built = _csr.build(senders, receivers, num_nodes=nodes)
    symmetric = built.transpose_receivers is built.senders or (
        np.array_equal(built.transpose_row_offsets, built.row_offsets)
        and np.array_equal(built.transpose_receivers, built.senders)
    )
    for array in _ARRAYS:
        if not (symmetric and array in _SHARED):
            np.save(folder / f"{array}.npy", getattr(built, array))
    degrees = np.diff(built.row_offsets)
    facts = {
        "name": name,
        "scale": scale,
        "nodes": nodes,
        "edges": int(senders.size),
        "symmetric": bool(symmetric),
        "mean_degree": round(float(degrees.mean()), 2),
        "max_degree": int(degrees.max(initial=0)),
        "isolated": int((degrees == 0).sum()),
        "generate_seconds": round(generated - start, 2),
        "build_seconds": round(time.perf_counter() - generated, 2),
    }
    done.write_text(json.dumps(facts))  # last: its presence says that the rest is whole
    return folder


def store_all(names: list[str], directory: Path, scale: float, seed: int = 1) -> dict[str, Path]:
    """`store` for several graphs, side by side where there are the cores for it."""
    workers = max(1, min(len(names), (os.cpu_count() or 1) // 4))
    if workers == 1:
        return {name: store(name, directory, scale, seed) for name in names}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {name: pool.submit(store, name, directory, scale, seed) for name in names}
        return {name: future.result() for name, future in futures.items()}


def load(folder: Path) -> StoredGraph:
    """The graph saved by `store`."""
    facts = json.loads((folder / "graph.json").read_text())
    shared = _SHARED if facts["symmetric"] else {}
    arrays = {
        name: np.load(folder / f"{shared.get(name, name)}.npy", mmap_mode="r") for name in _ARRAYS
    }
    return StoredGraph(name=facts["name"], symmetric=facts["symmetric"], **arrays)
