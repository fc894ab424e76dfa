"""What makes windows of rows out of a graph where it is, by JAX's operations: for graphs on a GPU.

Sorts, counts and scatters of distinct places, or sums of integers: the same bits in every run.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int


def numbers_fit(num_rows: int, num_edges: int) -> bool:
    """Whether the graph is small enough: places beyond its edges' have numbers, too (`compact`)."""
    return num_rows + num_edges < 1 << 30


def rows_fit(
    row_offsets: Int[Array, " num_rows+1"], edge_columns: Int[Array, " num_edges"], num_columns: int
) -> bool:
    """Whether the offsets rise from 0 to the number of edges, and the columns are in range."""
    with jax.ensure_compile_time_eval():  # also where a function that is being traced asks
        return bool(_rows_fit(row_offsets, edge_columns, num_columns))


@jax.jit
def _rows_fit(row_offsets: Array, edge_columns: Array, num_columns: int) -> Array:
    within = jnp.all((edge_columns >= 0) & (edge_columns < num_columns))
    rise = jnp.all(row_offsets[1:] >= row_offsets[:-1])
    return within & rise & (row_offsets[0] == 0) & (row_offsets[-1] == edge_columns.shape[0])


def window_bounds(
    row_offsets: Int[Array, " num_rows+1"], rows: int
) -> Int[Array, " num_windows+1"]:
    """Where the edges of each window of `rows` rows begin."""
    num_rows = row_offsets.shape[0] - 1
    return row_offsets[jnp.minimum(jnp.arange(-(-num_rows // rows) + 1) * rows, num_rows)]


def sort_windows(
    window: Int[Array, " num_edges"],
    columns: Int[Array, " num_edges"],
    num_windows: int,
    num_columns: int,
) -> tuple[Int[Array, " num_edges"], Int[Array, " num_edges"]]:
    """The edges by window, then by column, then in the order given; and the column of each.

    Windows ascend before and after, so that `window` has the window of each place of the result.

    A GPU has a radix sort for one unsigned key and one value alone. It takes a pass for each byte
    of the key: window and column are one key where 32 bits hold both.
    """
    edges = jnp.arange(columns.shape[0], dtype=jnp.int32)
    if num_windows * num_columns <= 1 << 32:
        first_key = window.astype(jnp.uint32) * np.uint32(num_columns)
        key, edge = jax.lax.sort((first_key + columns.astype(jnp.uint32), edges), num_keys=1)
        return edge, (key - first_key).astype(jnp.int32)
    _, by_column = jax.lax.sort((columns.astype(_key_type(num_columns)), edges), num_keys=1)
    by_window = window[by_column].astype(_key_type(num_windows))
    _, edge = jax.lax.sort((by_window, by_column), num_keys=1)
    return edge, columns[edge]


def _key_type(num_keys: int) -> DTypeLike:
    return jnp.uint16 if num_keys <= 1 << 16 else jnp.uint32


def differs(values: Array) -> Bool[Array, " _"]:
    """Whether a value is another than the one before; of the first, yes."""
    return jnp.append(jnp.ones(1, bool)[: values.shape[0]], values[1:] != values[:-1])


def counts_before(flags: Bool[Array, " _"]) -> Int[Array, " _+1"]:
    """How many are set before each place, and in all."""
    return jnp.append(jnp.zeros(1, jnp.int32), jnp.cumsum(flags, dtype=jnp.int32))


def compact(
    flags: Bool[Array, " _"], before: Int[Array, " _"], values: Array, size: int, fill: int = 0
) -> Array:
    """The values whose flag is set, one after the other, then `fill` up to `size`.

    `before` is how many flags are set before each place.
    """
    # What is not set goes to places beyond the end, each to one of its own: places are distinct.
    beyond = size + jnp.arange(flags.shape[0], dtype=jnp.int32)
    place = jnp.where(flags, before, beyond)
    filled = jnp.full(size, fill, values.dtype)
    return filled.at[place].set(values, mode="drop", unique_indices=True)
