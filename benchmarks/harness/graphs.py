"""The benchmarks' graphs: generated and built once, handed to the workers through files."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# R-MAT by name: levels, and edges for each node.
RMAT = {"rmat": (18, 18), "rmat-dense": (16, 48)}
_INDEX = "graph.json"


# What the baselines read, and what of it a symmetric graph shares with its transpose.
_ARRAYS = ("row_offsets", "senders", "transpose_row_offsets", "transpose_receivers")
_SHARED = {"transpose_row_offsets": "row_offsets", "transpose_receivers": "senders"}


@dataclasses.dataclass(frozen=True)
class StoredGraph:
    """A built graph on disk: `jaxgnn.Graph` in one file, the rows of both directions in others.

    Attributes:
        folder: where it is.
        facts: name, sizes and degrees.
        arrays: rows by receiver and by sender, memory-mapped.
    """

    folder: Path
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def num_nodes(self) -> int:
        return self.facts["nodes"]

    @property
    def num_edges(self) -> int:
        return self.facts["edges"]

    @property
    def row_offsets(self) -> np.ndarray:
        return self.arrays["row_offsets"]

    @property
    def senders(self) -> np.ndarray:
        return self.arrays["senders"]

    @functools.cached_property
    def receivers(self) -> np.ndarray:
        """The receiver of each edge."""
        nodes = np.arange(self.num_nodes, dtype=np.int32)
        return np.repeat(nodes, np.diff(self.row_offsets))

    def rows(self, *, backward: bool) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and columns of the product in this direction."""
        if backward:
            return self.arrays["transpose_row_offsets"], self.arrays["transpose_receivers"]
        return self.row_offsets, self.senders

    def all_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Offsets and columns of both directions."""
        return *self.rows(backward=False), *self.rows(backward=True)

    def with_self_loops(self, *, backward: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The same with a self-loop at the end of each row. The graphs have none of their own."""
        offsets, columns = self.rows(backward=backward)
        nodes = np.arange(self.num_nodes, dtype=columns.dtype)
        looped = offsets + np.arange(offsets.size, dtype=offsets.dtype)
        return looped, np.insert(np.asarray(columns), offsets[1:], nodes)

    def to_graph(self) -> Any:
        """The `jaxgnn.Graph` on the default device, without the user's edge order."""
        import jax

        with (self.folder / "graph.pickle").open("rb") as file:
            return _each_once(jax.device_put, pickle.load(file))


def _each_once(convert: Callable[[Any], Any], graph: Any) -> Any:
    """A graph with each of its arrays converted; one that stands twice stays one array."""
    import jax

    unique = {id(leaf): leaf for leaf in jax.tree.leaves(graph)}
    converted = {key: convert(leaf) for key, leaf in unique.items()}
    return jax.tree.map(lambda leaf: converted[id(leaf)], graph)


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
    folder = directory / f"{name}-{scale:g}-{seed}"
    if (folder / _INDEX).exists():
        return folder
    from jaxgnn import Graph

    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    row_offsets, senders = generate(name, scale, seed)
    generated = time.perf_counter()
    graph = Graph.from_csr(row_offsets, senders)
    changes: dict[str, Any] = {"edge_permutation": None}  # the order is the generator's
    arrays = {field: np.asarray(getattr(graph, field)) for field in _ARRAYS}
    symmetric = all(np.array_equal(arrays[ours], arrays[same]) for ours, same in _SHARED.items())
    if symmetric:
        fields = {field.name for field in dataclasses.fields(graph)}
        for field in fields:
            same = _SHARED.get(field, field.removeprefix("transpose_"))
            if field.startswith("transpose_") and same in fields:
                changes[field] = getattr(graph, same)
        if "symmetric" in fields:
            changes["symmetric"] = True
    graph = _each_once(np.asarray, dataclasses.replace(graph, **changes))
    with (folder / "graph.pickle").open("wb") as file:
        pickle.dump(graph, file, protocol=5)
    for field, array in arrays.items():
        if not (symmetric and field in _SHARED):
            np.save(folder / f"{field}.npy", array)
    degrees = np.diff(arrays["row_offsets"])
    facts = {
        "name": name,
        "scale": scale,
        "nodes": degrees.size,
        "edges": int(senders.size),
        "symmetric": symmetric,
        "mean_degree": round(float(degrees.mean()), 2),
        "max_degree": int(degrees.max(initial=0)),
        "isolated": int((degrees == 0).sum()),
        "generate_seconds": round(generated - start, 2),
        "build_seconds": round(time.perf_counter() - generated, 2),
    }
    (folder / _INDEX).write_text(json.dumps(facts))  # last: its presence says that all is there
    return folder


def store_all(names: list[str], directory: Path, scale: float, seed: int = 1) -> dict[str, Path]:
    """`store` for several graphs, in processes of their own, for JAX on the CPU is enough there."""
    workers = max(1, min(len(names), (os.cpu_count() or 1) // 4))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, _on_cpu) as pool:
        futures = {name: pool.submit(store, name, directory, scale, seed) for name in names}
        return {name: future.result() for name, future in futures.items()}


def _on_cpu() -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"


def read_facts(folder: Path) -> dict[str, Any]:
    """Name, sizes and degrees of the graph saved by `store`."""
    return json.loads((folder / _INDEX).read_text())


def load(folder: Path) -> StoredGraph:
    """The graph saved by `store`."""
    facts = read_facts(folder)
    shared = _SHARED if facts["symmetric"] else {}
    files = {shared.get(name, name) for name in _ARRAYS}
    mapped = {file: np.load(folder / f"{file}.npy", mmap_mode="r") for file in files}
    arrays = {name: mapped[shared.get(name, name)] for name in _ARRAYS}
    return StoredGraph(folder, facts, arrays)
