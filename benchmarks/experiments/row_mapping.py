"""Long rows in chunks beside rows in one piece, for each operation that walks rows.

    python -m benchmarks.experiments.row_mapping [--shapes reddit arxiv] [--lengths 1024] [--json F]

`Graph.row_chunks` cuts rows longer than a limit (`jaxgnn/graph/_build/row_chunks.py`), so that a
worker has a chunk: balanced by edges. Without the table a worker has a row: balanced by receivers.
Each operation and its gradient is timed in turns on the same graph with the limit of the library,
with other limits, and without any. The last column is the median of the rounds' ratios. With
`--clock processor` it is the time of all threads, on a CPU that others use too: what chunks cost,
not what they balance.

A count goes with each graph: the rows of partial sums that chunks write and read, by the rows that
edges gather.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxgnn
from benchmarks.harness import graphs
from benchmarks.harness.record import write_records
from jaxgnn.graph._build import row_chunks

_WIDTH, _HEADS, _KEPT = 256, 4, 32
_KERNELS, _DIMS = 3, 2  # Gaussians
SHAPES = ("reddit", "proteins", "products", "arxiv", "amazon0601", "artist", "dd")


@dataclasses.dataclass(frozen=True)
class Options:
    """Times rows in chunks and rows in one piece."""

    shapes: tuple[str, ...] = SHAPES
    """Of `benchmark_graph`."""
    scale: float = 1.0
    """Of their nodes and edges."""
    operations: tuple[str, ...] = ()
    """Which; none: all."""
    lengths: tuple[int, ...] = ()
    """Further limits."""
    dtype: str = "float32"
    """Of the features."""
    rounds: int = 10
    """Timed rounds, after two of warm-up."""
    clock: Literal["wall", "processor"] = "wall"
    """What is timed."""
    schedule: bool = True
    """With a row schedule, which a GPU's kernels follow."""
    cache: Path | None = None
    """Keep the generated graphs in this folder."""
    json: Path | None = None
    """A file for the results."""


def operations(graph: Any, dtype: str) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions of a graph and of what they are differentiated by."""
    keys = iter(jax.random.split(jax.random.key(0), 8))
    nodes = graph.num_senders

    def rows(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), (nodes, *shape), jnp.float32).astype(dtype)

    head = _WIDTH // _HEADS
    x, heads, queries = rows(_WIDTH), rows(_HEADS, head), rows(_HEADS, head)
    scores = rows(_HEADS)
    cbsr = jax.jit(lambda x: jaxgnn.maxk(x, _KEPT))(x)
    places, narrow = rows(_DIMS), rows(_WIDTH // 2)
    mu = jnp.ones((_KERNELS, _DIMS), jnp.float32)

    def over_kept(graph: Any, values: jax.Array) -> jax.Array:
        return jaxgnn.maxk_spmm(graph, dataclasses.replace(cbsr, values=values))

    def gaussian(graph: Any, x: jax.Array, places: jax.Array) -> jax.Array:
        ends: Any = (places, places)
        return jaxgnn.gaussian_spmm(graph, x, mu, mu, ends, activation="tanh")

    return {
        "spmm": (jaxgnn.spmm, (x,)),
        "spmm, max": (functools.partial(jaxgnn.spmm, reduce="max"), (x,)),
        "sddmm": (jaxgnn.sddmm, (x, x + 1)),
        "maxk_spmm": (over_kept, (cbsr.values,)),
        "gat_attention": (jaxgnn.gat_attention, (heads, scores, scores)),
        "dot_attention": (jaxgnn.dot_attention, (queries, heads, heads + 1)),
        "cosine_attention": (jaxgnn.cosine_attention, (narrow[:, None],)),
        "gaussian_spmm": (gaussian, (narrow, places)),
    }


def with_length(graph: Any, length: int | None) -> Any:
    """The graph with chunks of another length; `None`: rows in one piece."""
    chunks = []
    for offsets in (graph.row_offsets, graph.transpose_row_offsets):
        found = row_chunks.no_chunks()
        if length is not None:
            on_host = row_chunks.chunk_rows(np.asarray(offsets), length)
            found = dataclasses.replace(on_host, table=jnp.asarray(on_host.table))
        chunks.append(found)
    return dataclasses.replace(graph, row_chunks=chunks[0], transpose_row_chunks=chunks[1])


def programs(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Forward, and the gradient given forward's results."""

    def forward(graph: Any, operands: Any) -> Any:
        return jax.vjp(lambda *operands: function(graph, *operands), *operands)

    return jax.jit(forward), jax.jit(lambda pull, cotangent: pull(cotangent))


def calls_of(
    function: Callable[..., Any], operands: Any, mappings: dict[str, Any]
) -> dict[tuple[str, str], Callable[[], Any]]:
    """What is timed, by direction and mapping."""
    forward, backward = programs(function)
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, graph in mappings.items():
        out, pull = forward(graph, operands)
        cotangent = jnp.ones(out.shape, out.dtype)
        calls["forward", name] = lambda graph=graph: forward(graph, operands)[0]
        calls["backward", name] = lambda pull=pull, ct=cotangent: backward(pull, ct)
    return calls


def in_turns(
    calls: dict[tuple[str, str], Callable[[], Any]], options: Options
) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of each call in each round, every other one in the opposite order."""
    clock = time.process_time if options.clock == "processor" else time.perf_counter
    times: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for step in range(options.rounds + 2):
        for name in sorted(calls, reverse=step % 2 == 1):
            start = clock()
            jax.block_until_ready(calls[name]())
            if step >= 2:
                times[name].append(1e3 * (clock() - start))
    return times


def measured(graph: Any, facts: dict[str, Any], options: Options) -> list[dict[str, Any]]:
    """The records of one graph."""
    own, table = graph.row_chunks.length, np.asarray(graph.row_chunks.table)
    chunks = int((table[:, 0] >= 0).sum())
    mappings = {"chunks": graph, "rows": with_length(graph, None)}
    mappings |= {f"{n}": with_length(graph, n) for n in options.lengths if n != own}
    records = []
    for name, (function, operands) in operations(graph, options.dtype).items():
        if options.operations and name not in options.operations:
            continue
        times = in_turns(calls_of(function, operands, mappings), options)
        for way in ("forward", "backward"):
            found = {name: round(statistics.median(times[way, name]), 4) for name in mappings}
            pairs = zip(times[way, "rows"], times[way, "chunks"], strict=True)
            ratio = statistics.median(rows / chunks for rows, chunks in pairs)
            records.append(
                {
                    "shape": facts["name"],
                    "operation": name,
                    "pass": way,
                    "length": own,
                    "chunks": chunks,
                    "partial_rows": round(2 * chunks / facts["edges"], 6),
                    "ms": found,
                    "rows_by_chunks": round(ratio, 3),
                }
            )
    return records


def main(options: Options) -> None:
    """Measures, prints, and with `--json` writes a file."""
    records, facts = [], []
    for shape in options.shapes:
        with graphs.stored(shape, options.scale, options.cache) as stored:
            graph = stored.to_graph()
            if options.schedule and jax.default_backend() == "gpu":
                graph = graph.with_row_schedule()
            facts.append(stored.facts)
            records += measured(graph, stored.facts, options)
            show(records, options)
            if options.json is not None:
                write_records(options.json, records, graphs=facts, options=_told(options))


def show(records: list[dict[str, Any]], options: Options) -> None:
    """The table of the last graph."""
    shape = records[-1]["shape"]
    of_shape = [record for record in records if record["shape"] == shape]
    first = of_shape[0]
    title = (
        f"{shape}: {first['chunks']:,} chunks of {first['length']:,}, partial sums "
        f"{first['partial_rows']:.2%} of the gathered rows; ms ({options.clock})"
    )
    table = Table(*("operation", *first["ms"], "rows by chunks"), title=title, title_justify="left")
    for record in of_shape:
        numbers = (f"{ms:.3f}" for ms in record["ms"].values())
        name = f"{record['operation']}, {record['pass']}"
        table.add_row(name, *numbers, f"{record['rows_by_chunks']:.2f}")
    Console(width=120).print(table)


def _told(options: Options) -> dict[str, Any]:
    return {"scale": options.scale, "dtype": options.dtype, "clock": options.clock}


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.row_mapping"))
