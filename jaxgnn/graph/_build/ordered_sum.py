"""Sums of the rows that have the same index, and their transpose, a gather: in a fixed order.

XLA's scatter adds in the rows' order on a CPU, and on a GPU in any order, so that three or more
terms give other bits in every run. There the rows are sorted by their index, and the kernel of
`spmm` adds them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import foldable
from jaxgnn._core.linear_call import Multilinear
from jaxgnn.graph._build.row_chunks import chunk_rows_on_device


@functools.partial(jax.jit, static_argnames="size")
def sum_in_order(
    rows: Float[Array, "rows *features"], index: Int[Array | np.ndarray, " rows"], size: int
) -> Float[Array, "size *features"]:
    """For each index below `size` the sum of its rows, in their order; others are left out."""
    if rows.size == 0 or size == 0:
        return jnp.zeros((size, *rows.shape[1:]), rows.dtype)
    rows, index = ffi.unify_varying(rows, jnp.asarray(index))
    flat = rows.reshape(rows.shape[0], 1, -1)
    return _sum((size, rows.shape[0]), index, flat).reshape(size, *rows.shape[1:])


@jax.jit
def take_in_order(
    values: Float[Array, "size *features"], index: Int[Array | np.ndarray, " rows"]
) -> Float[Array, "rows *features"]:
    """`values[index]`, 0 for what is beyond them, with sums in a fixed order as its derivative."""
    if values.size == 0 or index.size == 0:
        return jnp.zeros((index.size, *values.shape[1:]), values.dtype)
    values, index = ffi.unify_varying(values, jnp.asarray(index))
    flat = values.reshape(values.shape[0], 1, -1)
    return _take((values.shape[0], index.size), index, flat).reshape(index.size, *values.shape[1:])


def _sum_rows(sizes: tuple[int, int], index: Array, rows: Array) -> Array:
    size, dtype = sizes[0], rows.dtype
    wide = rows.astype(accumulation_dtype(dtype))

    def choose(index: Array, features: list[Array], _: list[Array]) -> Array:
        return dispatch(
            ("jaxgnn_spmm",),
            lambda index, rows: sum_sorted_rows(index, rows, size),
            lambda index, rows: _scatter(index, rows, size),
            index,
            features[0],
            platforms=("cuda",),
        )

    out: Array = foldable(choose)(index, [wide], [])
    return out.astype(dtype)


def _scatter(index: Array, rows: Array, size: int) -> Array:
    return jnp.zeros((size, *rows.shape[1:]), rows.dtype).at[index].add(rows, mode="drop")


def sum_sorted_rows(
    index: Int[Array, " rows"], rows: Float[Array, "rows one width"], size: int
) -> Float[Array, "size one width"]:
    """The sums by the kernel: a row of it for each index, and the rows are what is gathered."""
    order = jnp.argsort(index, stable=True).astype(index.dtype)
    offsets = jnp.searchsorted(index[order], jnp.arange(size + 1, dtype=index.dtype))
    offsets = offsets.astype(index.dtype)
    chunks = chunk_rows_on_device(offsets, index.size)
    width = rows.shape[1] * rows.shape[2]
    out, _ = ffi.call(
        "jaxgnn_spmm",
        [
            offsets,
            order,
            chunks.table,
            jnp.zeros(0, jnp.int32),
            rows.reshape(-1, width),
            jnp.zeros((0, 0), rows.dtype),
        ],
        [((size, width), rows.dtype), ((chunks.table.shape[0], width), rows.dtype)],
        chunk_length=chunks.length,
        narrow_slices=0,
        row_limit=0,
        longest_row=0,
        reduce=0,
    )
    return out.reshape(size, *rows.shape[1:])


def _take_rows(sizes: tuple[int, int], index: Array, values: Array) -> Array:
    del sizes
    return values.at[index].get(mode="fill", fill_value=0)


def _transpose_of_sum(sizes: tuple[int, int], index: Array, cotangent: Array) -> Array:
    return _take(sizes, index, cotangent)


def _transpose_of_take(sizes: tuple[int, int], index: Array, cotangent: Array) -> Array:
    return _sum(sizes, index, cotangent)


# Of (size, number of rows), the index, and the array.
_sum = Multilinear(_sum_rows, [_transpose_of_sum])
_take = Multilinear(_take_rows, [_transpose_of_take])
