"""`cosine_attention` of 16-bit rows: its forward kernels, over tiles and by rows.

    python -m benchmarks.experiments.tiles.cosine [--shape reddit] [--gradients] [--graphs FOLDER]

"Walk" is the kernel of all dtypes and widths. Columns that at least T rows of a window read are
tiles: scores, exponentials and sums from one read of a sender, on tensor cores. The other edges run
by rows, with their dot products on tensor cores, too: "rows" are all edges in that way, in the
order of the graph or its row schedule, "no tiles" the same in the order of the tiles. "Rest alone"
leaves the tiles out, so that the difference is what they take. All calls include the norms. With
`--gradients` also the two kernels of the backward pass, which runs by rows.
Estimates are those that the operation chooses by. Without a GPU it prints these and the edges in
tiles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks.harness import graphs, timing
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.record import write_records
from jaxgnn import cosine_attention
from jaxgnn.graph import Graph
from jaxgnn.graph._layouts import tile_order
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.ops._attention import cosine_gradients, cosine_rule, cosine_tiles
from jaxgnn.ops._core.rows import neighbors

_REPEATS = 9
_NO_TILES = _tiles.ROWS + 1  # rows that a column cannot have


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    shape: str = "reddit"
    """Of `benchmark_graph`."""
    scale: float = 1.0
    """Of its nodes and edges."""
    heads: int = 1
    """Their number."""
    width: int = 64
    """Features of a head: a multiple of 8, at most 64."""
    beta: float = 1.0
    """Of all heads."""
    min_edges: tuple[int, ...] = (3, 4, 5, 6)
    """T: rows of a window that must read a column."""
    order: _tiles.Order = "groups"
    """Of the rows, in windows of 64."""
    dtype: str = "bfloat16"
    """Of the features: bfloat16 or float16."""
    self_loops: bool = False
    """One for each node."""
    gradients: bool = False
    """Also the operation with its gradients by x and beta, by rows and over tiles, and the backward
    pass alone by each of its kernels."""
    graphs: Path | None = None
    """A folder in which graphs are kept."""
    json: Path | None = None
    """A file for the results."""


def without_tiles(tiles: Tiles) -> Tiles:
    """The rest alone: no part, so that no slot is made or read."""
    return dataclasses.replace(
        tiles, parts=jnp.zeros((0, 4), jnp.int32), slot_offsets=jnp.zeros_like(tiles.slot_offsets)
    )


def milliseconds(call: Callable[[], Any]) -> float:
    """The median of several batches of calls."""
    return timing.measure(functools.partial(call_seconds, call, device="gpu"), _REPEATS).ms


def with_gradients(
    graph: Graph, x: jax.Array, beta: jax.Array, options: Options
) -> dict[str, Callable[[], Any]]:
    """Calls of the operation with its gradients, by `impl`."""

    def call(impl: Any) -> Callable[[], Any]:
        def loss(x: jax.Array, beta: jax.Array, graph: Graph) -> jax.Array:
            out = cosine_attention(graph, x, beta, self_loops=options.self_loops, impl=impl)
            return jnp.sum(out.astype(jnp.float32) ** 2)

        run = jax.jit(jax.value_and_grad(loss, (0, 1)))
        return lambda: run(x, beta, graph)

    return {f"{impl}, with gradients": call(impl) for impl in ("rows", "tiles")}


def backward(
    graph: Graph, x: jax.Array, beta: jax.Array, options: Options
) -> dict[tuple[str, cosine_gradients.Kernel], Callable[[], Any]]:
    """Calls of the backward pass alone, with the norms, by its kernels: of the graph as it is, and
    as if its edges did not go both ways."""
    static = cosine_rule.Cosine(options.self_loops, "rows")

    @jax.jit
    def residuals(graph: Graph, x: jax.Array) -> Any:
        return cosine_rule.forward(static, cosine_rule.CosineOperands(graph, x, beta[None]))

    @functools.partial(jax.jit, static_argnames="kernel")
    def run(graph: Graph, x: jax.Array, saved: Any, cotangent: jax.Array, kernel: Any) -> Any:
        operands = cosine_rule.CosineOperands(graph, x, beta[None])
        out, log_sum = saved
        found = cosine_rule.gradients(static, operands, out, log_sum, cotangent, kernel=kernel)
        return found.x, found.beta

    saved = residuals(graph, x)
    cotangent = jax.random.normal(jax.random.key(1), x.shape, jnp.float32).astype(x.dtype)
    given = {"symmetric": graph} if graph.symmetric else {}
    given["directed"] = dataclasses.replace(graph, symmetric=False)
    kernels: tuple[cosine_gradients.Kernel, ...] = "walk", "tensor_cores"
    return {
        (kind, kernel): functools.partial(run, of, x, saved, cotangent, kernel)
        for kind, of in given.items()
        for kernel in kernels
    }


def difference(one: jax.Array, other: jax.Array) -> float:
    """The largest, relative to the largest value of the first."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    return float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(one)))


def measured_backward(
    graph: Graph, x: jax.Array, beta: jax.Array, options: Options
) -> list[dict[str, Any]]:
    """Each kernel of the backward pass, its estimate, and how far the gradient of x is from that
    of the first."""
    records: list[dict[str, Any]] = []
    calls = backward(graph, x, beta, options)
    expected = next(iter(calls.values()))()[0]
    for (kind, kernel), call in calls.items():
        name = f"backward, {kind}, {kernel}"
        estimates = cosine_gradients.picoseconds(
            graph.num_receivers,
            graph.num_edges,
            options.heads,
            options.width,
            symmetric=kind == "symmetric",
        )
        found = call()[0]
        record = {
            "what": name,
            "ms": milliseconds(call),
            "estimate_ms": round(estimates[kernel] * 1e-9, 4),
            "difference": difference(expected, found),
        }
        print(
            f"{name}: {record['ms']:.3f} ms, estimate {record['estimate_ms']:.3f}, "
            f"largest difference {record['difference']:.1e}",
            flush=True,
        )
        records.append(record)
    return records


def measured(graph: Graph, options: Options) -> list[dict[str, Any]]:
    """The kernels without tiles, then those over tiles by T."""
    module = _tiles.host_module("with_tiles")
    offsets, columns = (np.asarray(a) for a in (graph.row_offsets, graph.senders))
    offsets = offsets.astype(np.int32)
    square = {"square": True, "symmetric": graph.symmetric}
    order, places = tile_order.choose(
        module, options.order, offsets, columns, graph.num_senders, **square
    )
    lay_out = functools.partial(_tiles.lay_out, offsets, columns, graph.num_senders, order, places)
    shape = graph.num_senders, options.heads, options.width
    x = jax.random.normal(jax.random.key(0), shape, jnp.float32).astype(options.dtype)
    beta = jnp.full(options.heads, options.beta, jnp.float32)
    on_gpu = jax.default_backend() == "gpu"
    loops = options.self_loops

    @jax.jit
    def by_walk(graph: Graph, x: jax.Array) -> jax.Array:
        rows, reciprocals = neighbors(graph, transpose=False), cosine_rule.reciprocal_norms(x)[0]
        scales = beta * reciprocals, reciprocals
        return cosine_rule.walk(rows, x, *scales, self_loops=loops)[0]

    @jax.jit
    def by_rows(graph: Graph, x: jax.Array, tiles: Tiles | None = None) -> jax.Array:
        rows, reciprocals = neighbors(graph, transpose=False), cosine_rule.reciprocal_norms(x)[0]
        return cosine_tiles.forward(rows, tiles, x, beta, reciprocals, self_loops=loops)[0]

    records: list[dict[str, Any]] = []
    today, expected = float("nan"), jnp.zeros(())
    if on_gpu:
        scheduled = graph.with_row_schedule()
        times = {
            name + order: milliseconds(lambda call=call, graph=graph: call(graph, x))
            for order, graph in (("", graph), (", row schedule", scheduled))
            for name, call in (("walk", by_walk), ("rows", by_rows))
        }
        today = min(ms for name, ms in times.items() if name.startswith("walk"))
        expected = by_walk(graph, x).astype(jnp.float32)
        for name, ms in times.items():
            print(f"{name}: {ms:.3f} ms", flush=True)
            records.append({"what": name, "ms": ms})
        if options.gradients:
            tiled = graph.with_row_schedule().with_tiles(order=options.order)
            for name, call in with_gradients(tiled, x, beta, options).items():
                records.append({"what": name, "ms": milliseconds(call)})
                print(f"{name}: {records[-1]['ms']:.3f} ms", flush=True)
            records += measured_backward(scheduled, x, beta, options)
    for least in (_NO_TILES, *options.min_edges):
        tiles = lay_out(least)
        what = "no tiles" if least == _NO_TILES else f"T = {least}"
        in_tiles = tiles.num_edges - tiles.rest_columns.shape[0]
        record = {
            "what": what,
            "share": round(tiles.tile_share, 4),
            "entries": tiles.num_entries,
            "edges_an_entry": round(in_tiles / max(tiles.num_entries, 1), 2),
            "parts": tiles.parts.shape[0],
        }
        estimates = cosine_tiles.picoseconds(
            graph.num_receivers, graph.num_edges, options.heads, options.width, tiles
        )
        record["estimates_ms"] = {name: round(ps * 1e-9, 4) for name, ps in estimates.items()}
        text = ", ".join(f"{key} {value}" for key, value in record.items() if key != "what")
        if on_gpu:
            ms = milliseconds(lambda tiles=tiles: by_rows(graph, x, tiles))
            rest = without_tiles(tiles)
            rest_ms = milliseconds(lambda tiles=rest: by_rows(graph, x, tiles))
            out = by_rows(graph, x, tiles).astype(jnp.float32)
            error = float(jnp.max(jnp.abs(out - expected)) / jnp.max(jnp.abs(expected)))
            record |= {"ms": ms, "rest_alone_ms": rest_ms, "difference": error}
            text = (
                f"{ms:.3f} ms, {today / ms:.2f} times as fast as the walk; "
                f"rest alone {rest_ms:.3f}; largest difference {error:.1e}; {text}"
            )
        print(f"{what}: {text}", flush=True)
        records.append(record)
    return records


def main(options: Options) -> None:
    """Measures, prints, and with `--json` writes a file."""
    with graphs.stored(options.shape, options.scale, options.graphs) as stored:
        print(stored.facts, jax.devices()[0].device_kind, flush=True)
        records = measured(stored.to_graph(), options)
    if options.json is not None:
        write_records(options.json, records, graph=stored.facts)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.tiles.cosine"))
