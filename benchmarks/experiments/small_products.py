"""Small and narrow products on a GPU: a chain of means over neighbors, by `spmm` and by cuSPARSE.

    python -m benchmarks.experiments.small_products [--shapes cora ppi] [--widths 16] [--json FILE]

Each product takes the one before, `y <- D^-1 A y`, so that neither side drops or merges any. Ours
are one compiled program, on the graph as numbered and with a row schedule; cuSPARSE's (the fastest
of its algorithms, D^-1 in the matrix) a CUDA graph: the launches of both are prepared, and no call
waits for the host. The suites time a product in a loop of XLA, whose counter takes about as long as
the smallest of these.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import graphs, plan, timing
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.record import write_records
from jaxgnn import spmm
from jaxgnn.graph._build.row_chunks import chunk_rows

_STEPS, _TURNS, _REPEATS = 16, 8, 9


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    shapes: tuple[str, ...] = (*plan.TCGNN_SHAPES, "artist", "arxiv")
    """Of `benchmark_graph`."""
    widths: tuple[int, ...] = (16, 32, 64)
    """Features of a row."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Of the features."""
    scale: float = 1.0
    """Of the graphs' nodes and edges."""
    chunk_length: int | None = None
    """Edges of a chunk of a long row; by default what the library takes."""
    json: Path | None = None
    """A file for the results."""


def microseconds(chain: Callable[[], Any], products: int) -> float:
    """Of one product: the median of several chains, each of which waits for its end."""
    seconds = functools.partial(call_seconds, chain, device="gpu")
    return round(1e3 * timing.measure(seconds, _REPEATS).ms / products, 2)


def ours(graph: Any, x: jax.Array) -> Callable[[], Any]:
    """The chain in one program."""

    def turn(_: Any, y: jax.Array, graph: Any) -> jax.Array:
        for _ in range(_STEPS):
            y = spmm(graph, y, reduce="mean")
        return y

    @jax.jit
    def run(graph: Any, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, _TURNS, lambda i, y: turn(i, y, graph), x)

    return lambda: jax.block_until_ready(run(graph, x))


class CuSparseChain:
    """The chain as a CUDA graph of one algorithm's calls, between two arrays."""

    def __init__(self, graph: Any, x: np.ndarray, dtype: str, algorithm: str) -> None:
        import torch

        from benchmarks.baselines.cusparse import CuSparse, Product

        self._torch, self._stream = torch, torch.cuda.Stream()
        offsets = np.asarray(graph.row_offsets).astype(np.int32)
        degrees = np.diff(offsets)
        weights = np.repeat(1 / np.maximum(degrees, 1), degrees).astype(np.float32)

        def put(array: np.ndarray) -> Any:
            return torch.tensor(array, device="cuda")

        kind = getattr(torch, dtype)
        with torch.cuda.stream(self._stream):
            csr = put(offsets), put(np.asarray(graph.senders)), put(weights).to(kind)
            a, b = put(x).to(kind), put(x).to(kind)
            handle = CuSparse()
            products = [Product(handle, *csr, *pair, algorithm) for pair in ((a, b), (b, a))]
            for product in products:
                product()
            self._stream.synchronize()
            self._graph, self._keep = torch.cuda.CUDAGraph(), (handle, products, csr, a, b)
            with torch.cuda.graph(self._graph, stream=self._stream):
                for step in range(_STEPS):
                    products[step % 2]()

    def __call__(self) -> None:
        with self._torch.cuda.stream(self._stream):
            for _ in range(_TURNS):
                self._graph.replay()
        self._stream.synchronize()


def cusparse(graph: Any, x: np.ndarray, dtype: str) -> float | None:
    """The fastest algorithm's microseconds; `None` without PyTorch on a GPU."""
    try:
        import torch

        from benchmarks.baselines.cusparse import ALGORITHMS
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    found = []
    for algorithm in ALGORITHMS:
        try:
            chain = CuSparseChain(graph, x, dtype, algorithm)
            found.append(microseconds(chain, _STEPS * _TURNS))
        except RuntimeError as error:  # not every algorithm has every dtype
            Console().print(f"cuSPARSE {algorithm}, {dtype}: {error}")
    return min(found, default=None)


def with_chunks(graph: Any, length: int | None) -> Any:
    """The graph with its long rows cut into chunks of this length."""
    if length is None:
        return graph
    chunks = chunk_rows(np.asarray(graph.row_offsets), length)
    return dataclasses.replace(graph, row_chunks=jax.tree.map(jax.numpy.asarray, chunks))


def measured(graph: Any, scheduled: Any, width: int, dtype: str) -> dict[str, Any]:
    """One row: the chains. `scheduled` is the graph with a row schedule."""
    x = np.random.default_rng(0).standard_normal((graph.num_senders, width), np.float32)
    numbered, ordered = (
        microseconds(ours(g, jax.numpy.asarray(x, dtype)), _STEPS * _TURNS)
        for g in (graph, scheduled)
    )
    theirs = cusparse(graph, x, dtype)
    return {
        "width": width,
        "dtype": dtype,
        "us": numbered,
        "scheduled_us": ordered,
        "cusparse_us": theirs,
        "ratio": None if theirs is None else round(theirs / numbered, 3),
        "scheduled_ratio": None if theirs is None else round(theirs / ordered, 3),
    }


def main(options: Options) -> None:
    """Measures, prints a table, and with `--json` writes a file."""
    table = Table(
        "graph", "nodes", "edges", "F", "dtype", "us", "with a row schedule, us",
        "cuSPARSE's best, us", "x cuSPARSE", "x, with a row schedule",
    )  # fmt: skip
    records = []
    for shape in options.shapes:
        with graphs.stored(shape, options.scale) as stored:
            numbered = with_chunks(stored.to_graph(), options.chunk_length)
            graph, scheduled = jax.device_put((numbered, numbered.with_row_schedule()))
            for dtype in options.dtypes:
                for width in options.widths:
                    row = measured(graph, scheduled, width, dtype)
                    sizes = graph.num_senders, graph.num_edges
                    table.add_row(shape, *map(str, (*sizes, *row.values())))
                    records.append({"case": shape, "nodes": sizes[0], "edges": sizes[1], **row})
                    if options.json is not None:  # a run that is cut off keeps what it has
                        write_records(options.json, records)
    Console(width=120).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.small_products"))
