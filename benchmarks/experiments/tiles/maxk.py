"""MaxK with the shared columns on tensor cores: what it could gain at most over its windows.

    python -m benchmarks.experiments.tiles.maxk [--shape reddit] [--scale 1] [--graphs FOLDER]

The windows' entries of at least T edges are tiles: masks by dense rows on tensor cores. The kernel
over windows takes the other entries, in the same windows. The two are existing kernels, one after
the other, and add up to the product, which is checked. A kernel of its own would have to spread the
kept entries out in shared memory and to add the two sums. Here the dense rows are there beforehand,
and nothing adds: if both together are no faster than the windows alone, no such kernel is. "Dense
rows" is what making them takes. Without a GPU it prints how the edges are divided.
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
from jaxgnn import CBSR, config, maxk, maxk_spmm
from jaxgnn.graph._build.row_chunks import RowChunks
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts.tiles import ROWS, Tiles
from jaxgnn.graph._layouts.windows import Windows
from jaxgnn.ops._aggregation import tiles as tiles_ops
from jaxgnn.ops._core.rows import neighbors

_REPEATS = 9


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    shape: str = "reddit"
    """Of `benchmark_graph`."""
    scale: float = 1.0
    """Of its nodes and edges."""
    width: int = 256
    """Columns of a row, up to 256."""
    k: tuple[int, ...] = (32, 16, 8)
    """Kept entries of a row."""
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    """Of the values."""
    min_edges: tuple[int, ...] = (8, 16)
    """T: edges of an entry that is a tile's."""
    graphs: Path | None = None
    """A folder in which graphs are kept."""
    json: Path | None = None
    """A file for the results."""


def row_order(windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """The receivers window by window, and each window's place: one that is not full is the last."""
    rows = np.asarray(windows.rows)
    full = (rows >= 0).all(axis=1)
    order = np.argsort(~full, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return rows[order].reshape(-1)[: (rows >= 0).sum()], place


def tiles_alone(tiles: Tiles) -> Tiles:
    """Without the other edges."""
    return dataclasses.replace(
        tiles,
        rest_offsets=jnp.zeros_like(tiles.rest_offsets),
        rest_columns=jnp.zeros(0, jnp.int32),
        rest_chunks=RowChunks(jnp.full((1, 2), -1, jnp.int32), tiles.rest_chunks.length),
    )


def window_keys(tiles: Tiles, num_columns: int) -> np.ndarray:
    """The entries in tiles as sorted numbers: window times `num_columns`, and column."""
    batches = np.zeros(tiles.num_batches, np.int64)
    for first, end, _, window in np.asarray(tiles.parts):
        batches[first:end] = window
    columns = np.asarray(tiles.columns).reshape(-1, 16)
    return np.unique(batches[:, None] * num_columns + columns)


def other_entries(windows: Windows, tiles: Tiles, place: np.ndarray, num_columns: int) -> Windows:
    """The windows without the entries that are in tiles, in parts as long as before."""
    parts, senders = np.asarray(windows.parts), np.asarray(windows.senders)
    window_of = np.repeat(parts[:, 0], parts[:, 2] - parts[:, 1])
    keys = place[window_of].astype(np.int64) * num_columns + senders
    taken = window_keys(tiles, num_columns)
    keep = taken[np.minimum(np.searchsorted(taken, keys), taken.size - 1)] != keys
    left = np.bincount(window_of[keep], minlength=windows.rows.shape[0])
    before = np.bincount(window_of, minlength=windows.rows.shape[0])
    pieces = np.bincount(parts[:, 0], minlength=windows.rows.shape[0])
    pieces = np.maximum(-(-left * pieces // np.maximum(before, 1)), 1)
    firsts = np.concatenate([[0], np.cumsum(left)])
    found, partials = [], 0
    for window, count in enumerate(pieces):
        for i in range(count):
            begin, end = (firsts[window] + left[window] * j // count for j in (i, i + 1))
            found.append((window, begin, end, -1 if count == 1 else partials + i))
        partials += 0 if count == 1 else int(count)
    return dataclasses.replace(
        windows,
        parts=jnp.asarray(np.array(found, np.int32)),
        senders=jnp.asarray(senders[keep]),
        masks=jnp.asarray(np.asarray(windows.masks)[keep]),
        num_partials=partials,
    )


def over_windows(graph: Any, cbsr: CBSR) -> jax.Array:
    """By the kernel over the graph's windows, whatever the estimate says."""
    with config.use(maxk_engine="windows"):
        return maxk_spmm(graph, cbsr)


def over_tiles(graph: Any, tiles: Tiles, x: jax.Array) -> jax.Array:
    """The tiles' sums, and their rows from the slots."""
    rows = neighbors(graph, transpose=False)
    out = tiles_ops.reduce_rows(rows, tiles, x[:, None], None, "sum", precision=None, always=True)
    return out[:, 0]


def milliseconds(call: Callable[[], Any]) -> float:
    """The median of several batches of calls."""
    return timing.measure(functools.partial(call_seconds, call, device="gpu"), _REPEATS).ms


def measured(
    graph: Any, divided: dict[int, tuple[Tiles, Windows]], k: int, dtype: str, width: int
) -> dict[str, Any]:
    """The times of one number of kept entries, by T."""
    x = jax.random.normal(jax.random.key(0), (graph.num_senders, width), jnp.float32)
    cbsr = jax.jit(lambda x: maxk(x, k))(x.astype(dtype))
    to_dense, windows, tiles = jax.jit(CBSR.to_dense), jax.jit(over_windows), jax.jit(over_tiles)
    dense = to_dense(cbsr)
    today = milliseconds(lambda: windows(graph, cbsr))
    expected = windows(graph, cbsr).astype(jnp.float32)
    record: dict[str, Any] = {"dtype": dtype, "k": k, "windows_ms": today}
    record["dense_rows_ms"] = milliseconds(lambda: to_dense(cbsr))
    print(f"{dtype}, k = {k}: windows {today:.3f} ms, dense rows {record['dense_rows_ms']:.3f}")
    for least, (own, others) in divided.items():
        rest = dataclasses.replace(graph, windows=others)
        rest_ms = milliseconds(lambda rest=rest: windows(rest, cbsr))
        tiles_ms = milliseconds(lambda own=own: tiles(graph, own, dense))
        parts = windows(rest, cbsr), tiles(graph, own, dense)
        total = sum(part.astype(jnp.float32) for part in parts)
        error = float(jnp.max(jnp.abs(total - expected)) / jnp.max(jnp.abs(expected)))
        both = rest_ms + tiles_ms
        record[f"T = {least}"] = {"rest_ms": rest_ms, "tiles_ms": tiles_ms, "difference": error}
        print(
            f"  T = {least}: rest {rest_ms:.3f}, tiles {tiles_ms:.3f}, both {both:.3f} ms: "
            f"{today / both:.2f} times as fast; largest difference {error:.1e}",
            flush=True,
        )
    return record


def main(options: Options) -> None:
    """Measures, prints, and with `--json` writes a file."""
    with graphs.stored(options.shape, options.scale, options.graphs) as stored:
        print(stored.facts, jax.devices()[0].device_kind, flush=True)
        graph = stored.to_graph().with_windows(width=options.width)
    windows = graph.windows
    assert windows is not None and windows.receivers == ROWS
    rows, place = row_order(windows)
    offsets, columns = np.asarray(graph.row_offsets).astype(np.int32), np.asarray(graph.senders)
    divided = {}
    for least in options.min_edges:
        tiles = _tiles.lay_out(offsets, columns, graph.num_senders, "labels", rows, least)
        if tiles.num_batches == 0:
            print(f"T = {least}: no tiles")
            continue
        others = other_entries(windows, tiles, place, graph.num_senders)
        entries = windows.senders.shape[0]
        assert entries == tiles.num_entries + others.senders.shape[0]
        print(
            f"T = {least}: {tiles.tile_share:.1%} of the edges in {tiles.num_entries} of {entries} "
            f"entries and {tiles.parts.shape[0]} parts",
            flush=True,
        )
        divided[least] = tiles_alone(tiles), others
    if jax.default_backend() != "gpu":
        return
    records = [
        measured(graph, divided, k, dtype, options.width)
        for dtype in options.dtypes
        for k in options.k
    ]
    if options.json is not None:
        write_records(options.json, records, graph=stored.facts)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.tiles.maxk"))
