"""Whether a graph's arrays are those of a graph, on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jax.core import Tracer

from jaxgnn._core import device
from jaxgnn.graph._build.row_chunks import RowChunks, chunk_rows
from jaxgnn.graph._layouts.device_windows import rows_fit
from jaxgnn.graph._layouts.tile_sizes import ROWS, STAGE_BATCHES
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.graph._layouts.windows import RECEIVERS, Windows, masks_within, slots_within

if TYPE_CHECKING:
    from jaxgnn.graph._graph import Graph


def problem(graph: Graph, *, bounds_only: bool = False) -> str | None:
    """What a kernel would read out of bounds or leave out, in one line; `None` if nothing.

    `bounds_only` leaves out that the transpose has each edge once, which takes a sort of them.
    """
    edges, receivers, senders = graph.num_edges, graph.num_receivers, graph.num_senders
    checks = (
        _rows(graph),
        _rows(graph, transpose=True),
        (_indices if bounds_only else _permutation)(
            graph.transpose_permutation, "transpose_permutation", edges, edges
        ),
        _permutation(graph.row_schedule, "row_schedule", receivers, receivers),
        _permutation(graph.transpose_row_schedule, "transpose_row_schedule", senders, senders),
        _indices(graph.self_loops, "self_loops", receivers, edges + 1),
    )
    found = next(filter(None, checks), None)
    if found is not None:
        return found
    return (
        _chunks(graph.row_chunks, "row_chunks", graph.row_offsets)
        or _chunks(graph.transpose_row_chunks, "transpose_row_chunks", graph.transpose_row_offsets)
        or (None if graph.windows is None else _windows(graph.windows, receivers, senders, edges))
        or _tiles(graph.tiles, "tiles", receivers, senders)
        or _tiles(graph.transpose_tiles, "transpose_tiles", senders, receivers)
    )


def check_not_traced(graph: Graph, function: str) -> None:
    """Raises a `TypeError` if the graph is being traced, which the function is not for."""
    if isinstance(graph.senders, Tracer):
        raise TypeError(f"{function}: call it outside jax.jit, on the graph itself")


def check_rows(graph: Graph, *, transpose: bool = False, on_device: bool = False) -> None:
    """Raises a `ValueError` unless loops over the rows of a direction stay within their arrays: for
    preprocessing, as `dataclasses.replace` makes any graph.

    `on_device`: a graph on a GPU is read there, as its arrays are not needed on the host.
    """
    offsets, columns, rows, bound = _direction(graph, transpose)
    offsets, columns = getattr(graph, offsets), getattr(graph, columns)
    shapes = offsets.shape == (rows + 1,) and columns.shape == (graph.num_edges,)
    on_device = on_device and shapes and device.on_gpu(columns)
    if on_device and rows_fit(offsets, columns, bound):
        return
    found = _rows(graph, transpose=transpose)
    if found is not None:
        raise ValueError(f"graph: {found}")


def _rows(graph: Graph, *, transpose: bool = False) -> str | None:
    """The offsets and columns of a direction."""
    offsets, columns, rows, bound = _direction(graph, transpose)
    edges = graph.num_edges
    return _offsets(getattr(graph, offsets), offsets, rows, edges) or _indices(
        getattr(graph, columns), columns, edges, bound
    )


def _direction(graph: Graph, transpose: bool) -> tuple[str, str, int, int]:
    """The names of a direction's offsets and columns, its rows, and what the columns are below."""
    if transpose:
        names = ("transpose_row_offsets", "transpose_receivers")
        return *names, graph.num_senders, graph.num_receivers
    return "row_offsets", "senders", graph.num_receivers, graph.num_senders


def _offsets(offsets: Any, name: str, rows: int, edges: int) -> str | None:
    offsets = np.asarray(offsets)
    if offsets.shape != (rows + 1,):
        return f"{name}: expected the shape ({rows + 1},), got {offsets.shape}"
    if offsets[0] != 0 or offsets[-1] != edges or (offsets[1:] < offsets[:-1]).any():
        return f"{name}: expected numbers that rise from 0 to the number of edges, {edges}"
    return None


def _indices(values: Any, name: str, size: int, bound: int, least: int = 0) -> str | None:
    if values is None:
        return None
    values = np.asarray(values)
    if values.shape != (size,):
        return f"{name}: expected the shape ({size},), got {values.shape}"
    if not size or least <= int(values.min()) <= int(values.max()) < bound:
        return None
    place = int(((values < least) | (values >= bound)).argmax())
    return f"{name}: expected {least} to {bound - 1}, got {name}[{place}] = {values[place]}"


def _permutation(values: Any, name: str, size: int, bound: int) -> str | None:
    found = _indices(values, name, size, bound)
    if found is None and values is not None and np.unique(np.asarray(values)).size != size:
        return f"{name}: expected each of 0 to {size - 1} once"
    return found


def _chunks(chunks: RowChunks, name: str, offsets: Any) -> str | None:
    table, offsets = np.asarray(chunks.table), np.asarray(offsets)
    expected = chunk_rows(offsets, chunks.length).table
    if not np.array_equal(table[table[:, 0] >= 0], expected[expected[:, 0] >= 0]):
        return f"{name}: expected the chunks of the rows longer than {chunks.length} edges"
    longest = int(np.diff(offsets).max(initial=0))
    if chunks.longest is not None and chunks.longest < longest:
        return f"{name}.longest: expected {longest}, the longest row, or more, got {chunks.longest}"
    return None


def _windows(windows: Windows, receivers: int, senders: int, edges: int) -> str | None:
    entries = np.asarray(windows.senders)
    rows, parts = np.asarray(windows.rows), np.asarray(windows.parts)
    window, first, end, partial = parts.T
    inside = (window < len(rows)) & (partial < windows.num_partials)
    inside &= (first >= 0) & (first <= end) & (end <= len(entries))
    if not inside[window >= 0].all() or np.asarray(windows.masks).shape != (len(entries), 2):
        return "windows: expected parts within the entries"
    if not 1 <= windows.receivers <= RECEIVERS or not masks_within(windows):
        return (
            f"windows.masks: expected bits of a window's receivers, which are {RECEIVERS} at most"
        )
    if not slots_within(windows, edges):
        return "windows.slots: expected slots within the edges"
    return (
        _indices(rows.ravel(), "windows.rows", rows.size, receivers, -1)
        or _indices(entries, "windows.senders", len(entries), senders)
        or _permutation(windows.edges, "windows.edges", edges, edges)
    )


def _tiles(tiles: Tiles | None, name: str, rows: int, columns: int) -> str | None:
    if tiles is None:
        return None
    batches, rest = tiles.num_batches, tiles.rest_columns.shape[0]
    first, end, slot, window = np.asarray(tiles.parts).T
    windows, parts = -(-rows // ROWS), slot.size
    inside = (first >= 0) & (first <= end) & (end <= batches) & (window < windows)
    offsets, slots = np.asarray(tiles.rest_offsets), np.asarray(tiles.slot_offsets)
    if not inside.all() or tiles.masks.shape != (batches, 32):
        return f"{name}.parts: expected parts within the batches"
    return (
        _permutation(tiles.rows, f"{name}.rows", rows, rows)
        or _permutation(slot, f"{name}.parts' slots", parts, parts)
        or _indices(tiles.columns, f"{name}.columns", 16 * batches, columns)
        or _indices(tiles.rest_columns, f"{name}.rest_columns", rest, columns)
        or _offsets(slots, f"{name}.slot_offsets", windows, parts)
        or _offsets(offsets, f"{name}.rest_offsets", rows, rest)
        or _chunks(tiles.rest_chunks, f"{name}.rest_chunks", offsets)
        or _tile_edges(tiles, name, rest)
    )


def _tile_edges(tiles: Tiles, name: str, rest: int) -> str | None:
    """Each edge is in a tile or in the rest, once; stages are those of the parts' batches."""
    edges, parts = tiles.num_edges, tiles.parts.shape[0]
    first, end, slot, _ = np.asarray(tiles.parts).T
    stages = np.zeros(parts, np.int64)
    stages[slot] = -(-(end - first) // STAGE_BATCHES)
    offsets, counts = np.asarray(tiles.stage_offsets), np.asarray(tiles.edge_counts)
    both = np.concatenate([tiles.edges, tiles.rest_edges])
    if not np.array_equal(offsets, np.concatenate([[0], np.cumsum(stages)])):
        return f"{name}.stage_offsets: expected the stages of each slot's batches"
    if counts.shape != (stages.sum(), ROWS) or counts.sum(dtype=np.int64) != edges - rest:
        return f"{name}.edge_counts: expected the numbers of {edges - rest} edges in tiles"
    groups = counts.reshape(-1, 8, ROWS // 8).sum(axis=2, dtype=np.int64)
    by_slot = np.zeros((parts, 8), np.int64)
    np.add.at(by_slot, np.repeat(np.arange(parts), stages), groups)
    if not np.array_equal(tiles.edge_offsets, np.concatenate([[0], np.cumsum(by_slot)])):
        return f"{name}.edge_offsets: expected the sums of the edge counts"
    return (
        _indices(tiles.edges, f"{name}.edges", edges - rest, edges)
        or _indices(tiles.rest_edges, f"{name}.rest_edges", rest, edges)
        or _permutation(both, f"{name}.edges and rest_edges", edges, edges)
        or _indices(tiles.edge_entries, f"{name}.edge_entries", edges - rest, 16 * STAGE_BATCHES)
    )
