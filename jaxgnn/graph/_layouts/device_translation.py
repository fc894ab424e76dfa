"""Sparse graph translation by JAX's operations, where the graph is: for graphs on a GPU.

The counterpart of `cpu/tiles/translate.cc`, with equal results. A sort brings the edges of a window
and column together; the number of columns, which one program counts, is a shape of the next.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph._layouts.device_windows import (
    compact,
    counts_before,
    differs,
    sort_windows,
    window_bounds,
)


def translate(
    row_offsets: Int[Array, " num_rows+1"],
    edge_columns: Int[Array, " num_edges"],
    rows: int,
    columns: int,
    num_columns: int,
) -> tuple[dict[str, Array], int]:
    """The arrays of `Translation` by name, and the distinct pairs of row and column.

    Offsets are int32, columns below `num_columns`. See `tiles.translate`.
    """
    with jax.ensure_compile_time_eval():  # also where a function that is being traced asks for it
        edges = _sort(row_offsets, edge_columns, rows, num_columns)
        num_distinct, num_entries = (int(count) for count in jax.device_get(edges.counts))
        window_columns, histogram = _condense(edges, rows, num_distinct)
        offsets = edges.column_offsets
        arrays = {
            "window_blocks": -(-jnp.diff(offsets) // columns),
            "window_blocks_before": _blocks_in_place(window_columns, offsets, columns),
            "edge_columns": edges.ranks,
            "edge_offsets": edges.edge_offsets,
            "column_offsets": offsets,
            "columns": window_columns,
            "edge_histogram": histogram,
        }
    return arrays, num_entries


class _SortedEdges(NamedTuple):
    """The edges by window, then by column.

    Attributes:
        column: of each edge, in this order.
        first: whether an edge is the first of its window's column.
        before: how many first ones are before each edge, and in all.
        ranks: of each edge, in the graph's order.
        edge_offsets, column_offsets: where the edges, and the columns, of each window begin.
        counts: the windows' columns, and the distinct pairs of row and column.
    """

    column: Int[Array, " num_edges"]
    first: Bool[Array, " num_edges"]
    before: Int[Array, " num_edges+1"]
    ranks: Int[Array, " num_edges"]
    edge_offsets: Int[Array, " num_windows+1"]
    column_offsets: Int[Array, " num_windows+1"]
    counts: Int[Array, "2"]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _sort(row_offsets: Array, columns: Array, rows: int, num_columns: int) -> _SortedEdges:
    edge_offsets = window_bounds(row_offsets, rows)
    row = csr_row_ids(row_offsets, columns.shape[0])
    window = row // rows
    edge, column = sort_windows(window, columns, edge_offsets.shape[0] - 1, num_columns)
    # Edges of a window and column are in the graph's order, so those of a row lie side by side.
    first = differs(window) | differs(column)
    first_of_row = first | differs(row[edge])
    before = counts_before(first)
    column_offsets = before[edge_offsets]
    rank = before[1:] - 1 - column_offsets[window]
    return _SortedEdges(
        column=column,
        first=first,
        before=before,
        ranks=jnp.zeros_like(rank).at[edge].set(rank, unique_indices=True),
        edge_offsets=edge_offsets,
        column_offsets=column_offsets,
        counts=jnp.stack([before[-1], first_of_row.sum(dtype=jnp.int32)]),
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _condense(edges: _SortedEdges, rows: int, num_columns: int) -> tuple[Array, Array]:
    """The columns of each window, and how many have each number of edges."""
    num_edges = edges.column.shape[0]
    places = jnp.arange(num_edges, dtype=jnp.int32)
    begin = compact(edges.first, edges.before[:-1], places, num_columns + 1, fill=num_edges)
    # Sorted rather than counted one by one: nearly all columns have one of a few numbers of edges.
    multiplicity = jnp.sort(jnp.minimum(jnp.diff(begin), rows).astype(jnp.uint16))
    bounds = jnp.searchsorted(multiplicity, jnp.arange(rows + 2, dtype=jnp.uint16))
    return edges.column[begin[:-1]], jnp.diff(bounds).astype(jnp.int32)


@functools.partial(jax.jit, static_argnums=2)
def _blocks_in_place(columns: Array, offsets: Array, width: int) -> Array:
    """The blocks of each window before its columns are condensed.

    The block that begins at a column leads to the next block's column. Paths are followed for all
    columns at once, each round twice as far: the number of rounds is the logarithm of the blocks.
    """
    count = columns.shape[0]
    place = jnp.arange(count, dtype=jnp.int32)
    end = offsets[1:][csr_row_ids(offsets, count)]
    # The next block begins at the first column beyond this one. Columns are distinct, so that it
    # is at most `width` places away.
    low, high = place + 1, jnp.minimum(end, place + width)
    for _ in range(width.bit_length()):
        middle = (low + high) // 2
        within = (low < high) & (columns[jnp.minimum(middle, count - 1)] - columns < width)
        low, high = jnp.where(within, middle + 1, low), jnp.where(within, high, middle)
    # Behind the last column, a place from which no path goes on.
    start = jnp.append(jnp.where(low < end, low, count), count)
    blocks = jnp.append(jnp.ones(count, jnp.int32), 0)

    def follow(state: tuple[Array, Array]) -> tuple[Array, Array]:
        to, length = state
        return to[to], length + length[to]

    _, blocks = jax.lax.while_loop(lambda state: (state[0] < count).any(), follow, (start, blocks))
    return jnp.where(offsets[1:] > offsets[:-1], blocks[offsets[:-1]], 0)
