"""What travels between devices, inside `shard_map`: rows of other parts, and rows for columns."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import linear_call
from jaxgnn.graph import Graph
from jaxgnn.ops import spmm


def receive_halo(
    arrays: list[Shaped[Array, "owned *rest"]],
    sends: Graph | None,
    axis: str,
    parts: int,
    pair_rows: int,
    dtype: str | None,
) -> list[Shaped[Array, "halo *rest"]]:
    """The foreign rows that a part's edges start from; where parts send all rows, behind its own.

    The arrays of one dtype travel together. Each of floating dtype is differentiable: its gradient
    travels back and is added in a fixed order.

    Args:
        arrays: of the part's owned rows.
        sends: from those to the rows that the part sends. `None` where it sends all of them
            (`Halo`).
        axis: of the mesh, with a device for each part.
        parts: their number.
        pair_rows: that a part sends to each other one.
        dtype: in which floating rows travel; `None` for their own.
    """
    rows = parts * pair_rows  # by number, as there may be no columns
    sent = [_on_the_wire(array, dtype) for array in arrays]
    if sends is not None:
        to_itself = jax.lax.axis_index(axis) * pair_rows
        sent = [_packed(sends, array, to_itself) for array in sent]
    halos: dict[int, Array] = {}
    for kind in dict.fromkeys(array.dtype for array in sent):  # in one order on all devices
        alike = [i for i, array in enumerate(sent) if array.dtype == kind]
        joined = jnp.concatenate([sent[i] for i in alike], axis=1)
        if sends is None:
            joined = _repeated(joined, rows // joined.shape[0])
        received = jax.lax.all_to_all(joined, axis, 0, 0, tiled=True)
        first = 0
        for i in alike:
            halos[i] = received[:, first : first + sent[i].shape[1]]
            first += sent[i].shape[1]
    found = [
        halos[i].reshape(rows, *own.shape[1:]).astype(own.dtype) for i, own in enumerate(arrays)
    ]
    if sends is not None:
        return found
    part = jax.lax.axis_index(axis)
    return [_own_first(*pair, part) for pair in zip(found, arrays, strict=True)]


def _on_the_wire(
    array: Shaped[Array, "owned *rest"], dtype: str | None
) -> Shaped[Array, "owned width"]:
    array = array.reshape(array.shape[0], math.prod(array.shape[1:]))
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(dtype) if floating and dtype is not None else array


def _packed(
    sends: Graph, array: Shaped[Array, "owned width"], to_itself: Int[Array, ""]
) -> Shaped[Array, "sent width"]:
    """The rows that are sent, in their order. Padding ends at the first one of a part to itself,
    whose sum, which may be infinite, becomes 0."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        # A product, so that its gradient is one, too: added in a fixed order.
        return zero_row(spmm(sends, array), to_itself)
    # Where no row is asked for, any: sparse rows stay valid.
    first = jnp.minimum(sends.row_offsets[:-1], sends.num_edges - 1)
    return array[sends.senders[first]]


def zero_row(x: Shaped[Array, "rows *rest"], row: Any) -> Shaped[Array, "rows *rest"]:
    """The array with 0 in a row. XLA changes it where it lies."""
    return jax.lax.dynamic_update_slice_in_dim(x, jnp.zeros_like(x[:1]), row, 0)


def _repeated(array: Shaped[Array, "owned width"], times: int) -> Shaped[Array, "sent width"]:
    """All rows for each part. The gradient adds up what comes back, 16 bits in float32."""
    wide = array
    if jnp.issubdtype(array.dtype, jnp.floating):
        wide = array.astype(accumulation_dtype(array.dtype))
    copies = jnp.broadcast_to(wide, (times, *wide.shape)).astype(array.dtype)
    return copies.reshape(times * array.shape[0], array.shape[1])


def _own_first(
    received: Shaped[Array, "halo *rest"],
    own: Shaped[Array, "owned *rest"],
    part: Int[Array, ""],
) -> Shaped[Array, "halo *rest"]:
    """The blocks of rows of all parts as `Halo` has them: the own one, as it is, in place of the
    first, which takes the place of the one that the part sent to itself."""
    if not jnp.issubdtype(own.dtype, jnp.floating):
        return _placed(part, (received, own))
    transpose = functools.partial(_placed_transpose, own.shape[0])
    return linear_call(_placed, transpose, part, (received, own), received)


def _placed(part: Int[Array, ""], operands: tuple[Array, Array]) -> Array:
    received, own = operands
    # Read before it is overwritten: XLA then changes the received rows where they lie.
    first = jax.lax.optimization_barrier(received[: own.shape[0]])
    moved = jax.lax.dynamic_update_slice_in_dim(received, first, part * own.shape[0], 0)
    return jax.lax.dynamic_update_slice_in_dim(moved, own, 0, 0)


def _placed_transpose(rows: int, part: Int[Array, ""], cotangent: Array) -> tuple[Array, Array]:
    """The gradients of what was received, 0 of what a part sent to itself, and of the own rows."""
    first = part * rows
    blocks = cotangent[:rows], jax.lax.dynamic_slice_in_dim(cotangent, first, rows)
    own, moved = jax.lax.optimization_barrier(blocks)
    received = jax.lax.dynamic_update_slice_in_dim(cotangent, moved, 0, 0)
    zeros = ffi.zeros_like(own)
    return jax.lax.dynamic_update_slice_in_dim(received, zeros, first, 0), own


def exchange(
    x: Float[Array, "*shape"], axis: str, split: int, join: int, dtype: str | None
) -> Float[Array, "*shape"]:
    """Splits an axis of the array over the devices and joins another one."""
    sent = x if dtype is None else x.astype(dtype)
    return jax.lax.all_to_all(sent, axis, split, join, tiled=True).astype(x.dtype)
