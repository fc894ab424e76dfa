"""Sparse graph translation by JAX's operations, where the graph is: for graphs on a GPU.

The counterpart of `cpu/tiles/translate.cc`, with equal results. Two sorts bring the edges of a
window and column together; the number of columns, which one program counts, is a shape of the next.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn._core.row_ids import csr_row_ids


def translate(
    row_offsets: Int[Array, " num_rows+1"],
    edge_columns: Int[Array, " num_edges"],
    rows: int,
    columns: int,
) -> tuple[dict[str, Array], int]:
    """The arrays of `Translation` by name, and the distinct pairs of row and column.

    Offsets are int32. See `tiles.translate`.
    """
    sorted_edges = _sort(row_offsets, edge_columns, rows)
    num_columns, num_entries = (int(count) for count in jax.device_get(sorted_edges.counts))
    window_columns, histogram = _condense(sorted_edges, rows, num_columns)
    offsets = sorted_edges.column_offsets
    arrays = {
        "window_blocks": -(-jnp.diff(offsets) // columns),
        "window_blocks_before": _blocks_in_place(window_columns, offsets, columns),
        "edge_columns": sorted_edges.ranks,
        "edge_offsets": sorted_edges.edge_offsets,
        "column_offsets": offsets,
        "columns": window_columns,
        "edge_histogram": histogram,
    }
    return arrays, num_entries


@jax.jit
def rows_fit(
    row_offsets: Int[Array, " num_rows+1"], edge_columns: Int[Array, " num_edges"], num_columns: int
) -> Bool[Array, ""]:
    """Whether the offsets rise from 0 to the number of edges, and the columns are in range."""
    within = jnp.all((edge_columns >= 0) & (edge_columns < num_columns))
    rise = jnp.all(row_offsets[1:] >= row_offsets[:-1])
    return within & rise & (row_offsets[0] == 0) & (row_offsets[-1] == edge_columns.shape[0])


class _SortedEdges(NamedTuple):
    """The edges by window, then by column.

    Attributes:
        column: of each edge, in this order.
        first: whether an edge is the first of its window's column.
        ranks: of each edge, in the graph's order.
        edge_offsets, column_offsets: where the edges, and the columns, of each window begin.
        counts: the windows' columns, and the distinct pairs of row and column.
    """

    column: Int[Array, " num_edges"]
    first: Bool[Array, " num_edges"]
    ranks: Int[Array, " num_edges"]
    edge_offsets: Int[Array, " num_windows+1"]
    column_offsets: Int[Array, " num_windows+1"]
    counts: Int[Array, "2"]


@functools.partial(jax.jit, static_argnums=2)
def _sort(row_offsets: Array, columns: Array, rows: int) -> _SortedEdges:
    num_rows, num_edges = row_offsets.shape[0] - 1, columns.shape[0]
    bounds = jnp.minimum(jnp.arange(-(-num_rows // rows) + 1) * rows, num_rows)
    edge_offsets = row_offsets[bounds]
    row = csr_row_ids(row_offsets, num_edges)
    # Two sorts by one key each, both stable: a GPU has a radix sort for these alone.
    edges = jnp.arange(num_edges, dtype=jnp.int32)
    _, by_column = jax.lax.sort((columns, edges), num_keys=1)
    window, edge = jax.lax.sort((row[by_column] // rows, by_column), num_keys=1)
    column, row = columns[edge], row[edge]
    # Edges of a window and column are in the graph's order, so those of a row lie side by side.
    first = _differs(window) | _differs(column)
    first_of_row = first | _differs(row)
    before = _before(first)
    column_offsets = before[edge_offsets]
    rank = before[1:] - 1 - column_offsets[window]
    return _SortedEdges(
        column=column,
        first=first,
        ranks=jnp.zeros_like(rank).at[edge].set(rank, unique_indices=True),
        edge_offsets=edge_offsets,
        column_offsets=column_offsets,
        counts=jnp.stack([before[-1], first_of_row.sum(dtype=jnp.int32)]),
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _condense(edges: _SortedEdges, rows: int, num_columns: int) -> tuple[Array, Array]:
    """The columns of each window, and how many have each number of edges."""
    (begin,) = jnp.nonzero(edges.first, size=num_columns)
    end = jnp.append(begin[1:], edges.column.shape[0])
    multiplicity = jnp.minimum(end - begin, rows)
    return edges.column[begin], jnp.bincount(multiplicity, length=rows + 1)


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


def _differs(values: Array) -> Bool[Array, " _"]:
    """Whether a value is another than the one before; of the first, yes."""
    return jnp.append(jnp.ones(1, bool)[: values.shape[0]], values[1:] != values[:-1])


def _before(flags: Bool[Array, " _"]) -> Int[Array, " _+1"]:
    """How many are set before each place, and in all."""
    return jnp.append(jnp.zeros(1, jnp.int32), jnp.cumsum(flags, dtype=jnp.int32))
