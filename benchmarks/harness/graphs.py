"""The benchmarks' graphs: generated and built once, handed to the workers through files."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import points

# R-MAT by name: levels, and edges for each node.
RMAT = {"rmat": (18, 18), "rmat-dense": (16, 48)}
_INDEX = "graph.json"
# What the baselines read; a symmetric graph's transpose is itself.
_ROWS = ("row_offsets", "senders")
_TRANSPOSE = ("transpose_row_offsets", "transpose_receivers")


@dataclasses.dataclass(frozen=True)
class StoredGraph:
    """A built graph on disk: `jaxgnn.Graph` in one file, the rows of both directions in others."""

    folder: Path
    facts: dict[str, Any]  # name, sizes and degrees
    num_nodes: int
    num_edges: int
    row_offsets: np.ndarray  # the rows by receiver, memory-mapped
    senders: np.ndarray
    transpose: tuple[np.ndarray, np.ndarray]  # the rows by sender

    @functools.cached_property
    def receivers(self) -> np.ndarray:
        """The receiver of each edge."""
        return row_ids(self.row_offsets)

    def rows(self, *, backward: bool = False, loops: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and columns of the product in this direction.

        With `loops` each row has a self-loop at its end. The graphs have none of their own.
        """
        offsets, columns = self.transpose if backward else (self.row_offsets, self.senders)
        if not loops:
            return offsets, columns
        nodes = np.arange(self.num_nodes, dtype=columns.dtype)
        looped = offsets + np.arange(offsets.size, dtype=offsets.dtype)
        return looped, np.insert(np.asarray(columns), offsets[1:], nodes)

    def on_host(self) -> Any:
        """The `jaxgnn.Graph` of NumPy arrays, without the user's edge order."""
        with (self.folder / "graph.pickle").open("rb") as file:
            return pickle.load(file)

    def to_graph(self) -> Any:
        """The same on the default device."""
        import jax

        graph = self.on_host()
        # An array that stands twice stays one.
        unique = {id(leaf): leaf for leaf in jax.tree.leaves(graph)}
        there = {key: jax.device_put(leaf) for key, leaf in unique.items()}
        return jax.tree.map(lambda leaf: there[id(leaf)], graph)


def row_ids(offsets: np.ndarray) -> np.ndarray:
    """The row of each entry."""
    return np.repeat(np.arange(offsets.size - 1, dtype=np.int32), np.diff(offsets))


def store(name: str, directory: Path, scale: float = 1.0, seed: int = 1) -> Path:
    """Generates, builds and saves a graph by name unless it is there; returns its folder."""
    folder = directory / f"{name}-{scale:g}-{seed}"
    if (folder / _INDEX).exists():
        return folder
    from jaxgnn import Graph, data

    start = time.perf_counter()
    if name in points.CLOUDS:
        csr = points.nearest(name, scale, seed)
    elif name in RMAT:
        levels, edges_per_node = RMAT[name]
        csr = data.rmat(max(6, levels + round(np.log2(scale))), edges_per_node, seed=seed)
    else:
        csr = data.benchmark_graph(name, scale=scale, seed=seed)
    generated = time.perf_counter()
    graph = Graph.from_csr(csr.row_offsets, csr.senders)
    seconds = {
        "generate_seconds": round(generated - start, 2),
        "build_seconds": round(time.perf_counter() - generated, 2),
    }
    save(graph, folder, {"name": name, "scale": scale}, seconds)
    return folder


def save(graph: Any, folder: Path, named: dict[str, Any], more: dict[str, Any]) -> None:
    """Saves a `jaxgnn.Graph`, and facts before and after those of its sizes and degrees."""
    import jax

    folder.mkdir(parents=True, exist_ok=True)
    graph = dataclasses.replace(graph, edge_permutation=None)  # the order is the generator's
    # The arrays of a symmetric graph are shared; pickle keeps that.
    host = {id(leaf): np.asarray(leaf) for leaf in jax.tree.leaves(graph)}
    graph = jax.tree.map(lambda leaf: host[id(leaf)], graph)
    with (folder / "graph.pickle").open("wb") as file:
        pickle.dump(graph, file, protocol=5)
    for field in _ROWS if graph.symmetric else (*_ROWS, *_TRANSPOSE):
        np.save(folder / f"{field}.npy", getattr(graph, field))
    degrees = np.diff(graph.row_offsets)
    facts = {
        **named,
        "nodes": degrees.size,
        "edges": graph.num_edges,
        "symmetric": graph.symmetric,
        "mean_degree": round(float(degrees.mean()), 2),
        "max_degree": int(degrees.max(initial=0)),
        "isolated": int((degrees == 0).sum()),
        **more,
    }
    (folder / _INDEX).write_text(json.dumps(facts))  # last: its presence says that all is there


def store_all(names: list[str], directory: Path, scale: float, seed: int = 1) -> dict[str, Path]:
    """`store` for several graphs, in processes of their own, for JAX on the CPU is enough there."""
    workers = max(1, min(len(names), (os.cpu_count() or 1) // 4))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, on_cpu) as pool:
        futures = {name: pool.submit(store, name, directory, scale, seed) for name in names}
        return {name: future.result() for name, future in futures.items()}


def on_cpu() -> None:
    """The initializer of a process whose JAX is to leave a GPU alone."""
    import jax

    # The variable alone would come too late: a suite imports JAX before this.
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")


@contextlib.contextmanager
def stored(name: str, scale: float = 1.0, folder: Path | None = None) -> Iterator[StoredGraph]:
    """A graph by name, kept in the folder; without one its files last as long as the context."""
    with contextlib.ExitStack() as stack:
        directory = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield load(store(name, directory, scale))


def read_facts(folder: Path) -> dict[str, Any]:
    """Name, sizes and degrees of the graph saved by `store`."""
    return json.loads((folder / _INDEX).read_text())


def load(folder: Path) -> StoredGraph:
    """The graph saved by `store`."""
    facts = read_facts(folder)
    names = (*_ROWS, *(_ROWS if facts["symmetric"] else _TRANSPOSE))
    mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in set(names)}
    rows, transpose = ((mapped[a], mapped[b]) for a, b in (names[:2], names[2:]))
    return StoredGraph(folder, facts, facts["nodes"], facts["edges"], *rows, transpose)
