"""The layout of tiles by JAX's operations, where the graph is: for graphs on a GPU.

The counterpart of `cpu/tiles/layout.cc`, with equal results. One program sorts the edges and
chooses the entries. Their number in each window comes to the host, 4 bytes for 64 rows, which cuts
the windows into parts. These sizes are the shapes of the second program, which writes the layout.

Here edges are numbered by the place of their row, so that a window's are consecutive. A *group* is
the edges of a window and column.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core.device import device_array
from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph._build.row_chunks import RowChunks, chunk_rows_on_device
from jaxgnn.graph._layouts.device_windows import (
    compact,
    counts_before,
    differs,
    sort_windows,
    window_bounds,
)
from jaxgnn.graph._layouts.tile_sizes import (
    BATCH_ENTRIES,
    BATCH_WORDS,
    PART_BATCHES,
    ROW_GROUPS,
    ROWS,
    STAGE_BATCHES,
)


def lay_out(
    row_offsets: Int[Array | np.ndarray, " num_rows+1"],
    columns: Int[Array | np.ndarray, " num_edges"],
    num_columns: int,
    rows: Int[np.ndarray, " num_rows"] | None,
    min_edges: int,
) -> tuple[dict[str, Array], RowChunks, int, int]:
    """The arrays of `Tiles` by name, the rest's chunks, the entries, and the windows' columns.

    The sizes pass `numbers_fit`. `rows` are in order; `None` as numbered.
    """
    with jax.ensure_compile_time_eval():  # also where a function that is being traced builds it
        offsets, columns = jnp.asarray(row_offsets, jnp.int32), jnp.asarray(columns)
        given = None if rows is None else device_array(rows)
        chosen = _choose(_in_order(offsets, columns, given), min_edges, num_columns)
        counts = (chosen.entry_offsets, chosen.rest_offsets[-1], chosen.num_columns)
        entry_offsets, *counts = jax.device_get(counts)
        num_rest, num_distinct = (int(count) for count in counts)
        cut, batches, stages = _cut(np.diff(entry_offsets))
        sizes = _Sizes(columns.shape[0] - num_rest, batches, stages)
        arrays = _write(chosen, cut, sizes)
        if given is None:
            given = jnp.arange(offsets.shape[0] - 1, dtype=jnp.int32)
        chunks = chunk_rows_on_device(chosen.rest_offsets, num_rest)
        used = max(int((chunks.table[:, 0] >= 0).sum()), 1)
        chunks = RowChunks(chunks.table[:used], chunks.length)
    arrays |= {
        "rows": given,
        "parts": cut.parts,
        "slot_offsets": cut.slot_offsets,
        "rest_offsets": chosen.rest_offsets,
        "stage_offsets": cut.stage_offsets,
    }
    return arrays, chunks, int(entry_offsets[-1]), num_distinct


class _Edges(NamedTuple):
    """The rows' edges by place.

    Attributes:
        place_offsets: where the edges of each place begin.
        place, column: of each edge.
        edge: the graph's number of each; `None` if it is the same.
    """

    place_offsets: Int[Array, " num_rows+1"]
    place: Int[Array, " num_edges"]
    column: Int[Array, " num_edges"]
    edge: Int[Array, " num_edges"] | None


@jax.jit
def _in_order(row_offsets: Array, columns: Array, rows: Array | None) -> _Edges:
    num_edges = columns.shape[0]
    if rows is None:
        return _Edges(row_offsets, csr_row_ids(row_offsets, num_edges), columns, None)
    lengths = jnp.diff(row_offsets)[rows]
    offsets = jnp.append(jnp.zeros(1, jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32))
    place = csr_row_ids(offsets, num_edges)
    moved = row_offsets[rows] - offsets[:-1]
    edge = jnp.arange(num_edges, dtype=jnp.int32) + moved[place]
    return _Edges(offsets, place, columns[edge], edge)


class _Chosen(NamedTuple):
    """The edges and what is chosen of them.

    Attributes:
        edges: all edges.
        entry: the entry of each edge, -1 if it is in the rest.
        entry_offsets: where the entries of each window begin.
        entry_columns: the column of each entry, padded to the number of edges.
        rest_before: how many edges of the rest are before each edge, and in all.
        rest_offsets: the same for each place.
        num_columns: distinct columns of the windows, summed.
    """

    edges: _Edges
    entry: Int[Array, " num_edges"]
    entry_offsets: Int[Array, " num_windows+1"]
    entry_columns: Int[Array, " num_edges"]
    rest_before: Int[Array, " num_edges+1"]
    rest_offsets: Int[Array, " num_rows+1"]
    num_columns: Int[Array, ""]


@functools.partial(jax.jit, static_argnums=2)
def _choose(edges: _Edges, min_edges: int, num_columns: int) -> _Chosen:
    num_edges = edges.column.shape[0]
    bounds = window_bounds(edges.place_offsets, ROWS)
    window = edges.place // ROWS
    edge, column = sort_windows(window, edges.column, bounds.shape[0] - 1, num_columns)
    # A row's edges of one column lie side by side, in order: the first one is in the tile.
    first = differs(window) | differs(column)
    first_of_row = first | differs(edges.place[edge])
    groups_before, rows_before = counts_before(first), counts_before(first_of_row)
    # Of each group, padded to the number of edges; the degree of padding is 0.
    places = jnp.arange(num_edges, dtype=jnp.int32)
    begin = compact(first, groups_before[:-1], places, num_edges + 1, fill=num_edges)
    degree = jnp.diff(rows_before[begin])
    begin = jnp.minimum(begin[:-1], num_edges - 1)
    kept = _keep(degree, window[begin], groups_before[bounds], min_edges)
    entries_before = counts_before(kept)
    group_entry = jnp.where(kept, entries_before[:-1], -1)[groups_before[1:] - 1]
    entry = jnp.where(first_of_row, group_entry, -1)
    entry = jnp.zeros_like(entry).at[edge].set(entry, unique_indices=True)
    rest_before = counts_before(entry < 0)
    return _Chosen(
        edges=edges,
        entry=entry,
        entry_offsets=entries_before[groups_before[bounds]],
        entry_columns=compact(kept, entries_before[:-1], column[begin], num_edges),
        rest_before=rest_before,
        rest_offsets=rest_before[edges.place_offsets],
        num_columns=groups_before[-1],
    )


def _keep(degree: Array, window: Array, group_offsets: Array, min_edges: int) -> Array:
    """Which groups, by window and column, are entries: those that enough rows read.

    A window's last batch has the entries of the lowest degrees, of equal ones those of the last
    columns. It is left out if it is not full and has too few edges.
    """
    candidate = degree >= min_edges
    num_windows = group_offsets.shape[0] - 1
    bins = num_windows * ROWS
    counts = jnp.zeros(bins, jnp.int32)
    counts = counts.at[jnp.where(candidate, window * ROWS + degree - 1, bins)].add(1, mode="drop")
    counts = counts.reshape(num_windows, ROWS)
    # The last batch has all groups of a degree below `most`, and `some` of that degree.
    up_to = jnp.cumsum(counts, axis=1, dtype=jnp.int32)
    size = up_to[:, -1] % BATCH_ENTRIES
    below = up_to < size[:, None]
    all_of = jnp.where(below, counts, 0)
    most = below.sum(axis=1, dtype=jnp.int32) + 1
    some = size - all_of.sum(axis=1, dtype=jnp.int32)
    degrees = jnp.arange(1, ROWS + 1, dtype=jnp.int32)[None]
    num_edges = (all_of * degrees).sum(axis=1, dtype=jnp.int32) + some * most
    most = jnp.where(num_edges < BATCH_ENTRIES * min_edges, most, 0)
    at_most = candidate & (degree == most[window])
    before = counts_before(at_most)
    behind = before[group_offsets[1:]][window] - before[1:]
    last = (degree < most[window]) | (at_most & (behind < some[window]))
    return candidate & ~last


class _Cut(NamedTuple):
    """The windows' entries in batches, and these in parts; see `Tiles`.

    Attributes:
        batch_offsets: where the batches of each window begin.
        part_offsets: where those of each slot begin.
    """

    batch_offsets: Int[Array, " num_windows+1"]
    part_offsets: Int[Array, " num_parts+1"]
    slot_offsets: Int[Array, " num_windows+1"]
    stage_offsets: Int[Array, " num_parts+1"]
    parts: Int[Array, "num_parts 4"]


def _cut(entries: Int[np.ndarray, " num_windows"]) -> tuple[_Cut, int, int]:
    """Cuts the batches of each window into parts of about the same size, on the host.

    Returns the number of batches and of stages, too.
    """
    sizes = -(-entries.astype(np.int64) // BATCH_ENTRIES)
    pieces = -(-sizes // PART_BATCHES)
    batch_offsets, slot_offsets = _offsets(sizes), _offsets(pieces)
    window = np.repeat(np.arange(sizes.size), pieces)
    slot = np.arange(window.size)
    piece, pieces, size = slot - slot_offsets[window], pieces[window], sizes[window]
    first = batch_offsets[window] + size * piece // pieces
    end = batch_offsets[window] + size * (piece + 1) // pieces
    stage_offsets = _offsets(-(-(end - first) // STAGE_BATCHES))
    longest_first = np.argsort(first - end, kind="stable")
    tables = (
        batch_offsets,
        np.append(first, batch_offsets[-1]),
        slot_offsets,
        stage_offsets,
        np.stack([first, end, slot, window], axis=1)[longest_first],
    )
    cut = _Cut(*(device_array(table.astype(np.int32)) for table in tables))
    return cut, int(batch_offsets[-1]), int(stage_offsets[-1])


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])


class _Sizes(NamedTuple):
    """Of what `_write` makes; static."""

    tile_edges: int
    batches: int
    stages: int


@functools.partial(jax.jit, static_argnums=2)
def _write(chosen: _Chosen, cut: _Cut, sizes: _Sizes) -> dict[str, Array]:
    """The arrays that have a number for each entry, batch, stage or edge."""
    edges, num_edges = chosen.edges, chosen.entry.shape[0]
    places, rest_before = jnp.arange(num_edges, dtype=jnp.int32), chosen.rest_before[:-1]
    in_rest = chosen.entry < 0
    rest = compact(in_rest, rest_before, places, num_edges - sizes.tile_edges)
    tile = compact(~in_rest, places - rest_before, places, sizes.tile_edges)
    # An entry's position is its number with the padding of the windows before it.
    padding = BATCH_ENTRIES * cut.batch_offsets - chosen.entry_offsets
    place = edges.place[tile]
    position = chosen.entry[tile] + padding[place // ROWS]
    batch = position // BATCH_ENTRIES
    row, group, in_group = place % ROWS, place % ROW_GROUPS, place % ROWS // ROW_GROUPS

    slot = csr_row_ids(cut.part_offsets, sizes.batches)  # of each batch
    in_part = jnp.arange(sizes.batches, dtype=jnp.int32) - cut.part_offsets[slot]
    stage, first_stage = in_part // STAGE_BATCHES, cut.stage_offsets[slot]
    num_stages = jnp.diff(cut.stage_offsets)  # of each slot
    group_rows = ROWS // ROW_GROUPS
    counts_at = (ROWS * (first_stage + stage))[batch] + group * group_rows + in_group
    counts = jnp.zeros(ROWS * sizes.stages, jnp.int32).at[counts_at].add(1)
    # Edges are listed by slot, row group, stage and row: the key counts such cells.
    key = (ROWS * first_stage + group_rows * stage)[batch] + in_group
    key += group_rows * group * num_stages[slot][batch]
    order = jnp.arange(sizes.tile_edges, dtype=jnp.int32)
    key, order = jax.lax.sort((key.astype(jnp.uint32), order), num_keys=1)
    groups = jnp.arange(ROW_GROUPS, dtype=jnp.int32)[None]
    group_keys = ROWS * cut.stage_offsets[:-1, None] + group_rows * groups * num_stages[:, None]
    group_keys = jnp.append(group_keys.ravel(), ROWS * sizes.stages).astype(jnp.uint32)
    entry = in_part[batch] % STAGE_BATCHES * BATCH_ENTRIES + position % BATCH_ENTRIES

    lane, bit = _mask_bit(row, position % BATCH_ENTRIES)
    masks = jnp.zeros((sizes.batches, BATCH_WORDS), jnp.uint32).at[batch, lane].add(bit)
    listed = tile[order]
    return {
        "columns": _pad_columns(chosen, cut, padding, sizes.batches),
        "masks": masks,
        "rest_columns": edges.column[rest],
        "rest_edges": rest if edges.edge is None else edges.edge[rest],
        "edge_counts": counts.astype(jnp.uint8).reshape(sizes.stages, ROWS),
        "edge_offsets": jnp.searchsorted(key, group_keys).astype(jnp.int32),
        "edge_entries": entry.astype(jnp.uint8)[order],
        "edges": listed if edges.edge is None else edges.edge[listed],
    }


def _mask_bit(row: Array, entry: Array) -> tuple[Array, Array]:
    """The word and bit of a batch's mask that have a row and entry: `mask_bit` of `layout.h`."""
    register = 4 * (row // 16) + row % 16 // 8 + 2 * (entry // 8)
    shift = jnp.where(entry % 2 != 0, 31, 15) - register
    return row % 8 * 4 + entry % 8 // 2, jnp.uint32(1) << shift.astype(jnp.uint32)


def _pad_columns(chosen: _Chosen, cut: _Cut, padding: Array, num_batches: int) -> Array:
    """The entries' columns; a window's last batch repeats its last one."""
    window = jnp.repeat(csr_row_ids(cut.batch_offsets, num_batches), BATCH_ENTRIES)
    position = jnp.arange(BATCH_ENTRIES * num_batches, dtype=jnp.int32)
    last = chosen.entry_offsets[1:][window] - 1
    return chosen.entry_columns[jnp.minimum(position - padding[window], last)]
