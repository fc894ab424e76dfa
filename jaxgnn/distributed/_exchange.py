"""What travels between devices, inside `shard_map`: rows of other parts, and rows for columns."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from jaxgnn.graph import Graph
from jaxgnn.ops import spmm


def receive_halo(
    arrays: list[Shaped[Array, "owned *rest"]],
    sends: Graph,
    axis: str,
    parts: int,
    pair_rows: int,
    dtype: str | None,
) -> list[Shaped[Array, "halo *rest"]]:
    """The foreign rows that a part's edges start from.

    The arrays of one dtype travel together. Each of floating dtype is differentiable: its gradient
    travels back and is added in a fixed order.

    Args:
        arrays: of the part's owned rows.
        sends: from those to the rows that the part sends; the last one is padding.
        axis: of the mesh, with a device for each part.
        parts: their number.
        pair_rows: that a part sends to each other one.
        dtype: in which floating rows travel; `None` for their own.
    """
    packed = [_packed(sends, array, dtype)[: parts * pair_rows] for array in arrays]
    halos: dict[int, Array] = {}
    for kind in dict.fromkeys(rows.dtype for rows in packed):  # in one order on all devices
        alike = [i for i, rows in enumerate(packed) if rows.dtype == kind]
        joined = jnp.concatenate([packed[i] for i in alike], axis=1)
        received = jax.lax.all_to_all(joined, axis, 0, 0, tiled=True)
        first = 0
        for i in alike:
            halos[i] = received[:, first : first + packed[i].shape[1]]
            first += packed[i].shape[1]
    rows = parts * pair_rows  # by number, as there may be no columns
    return [
        halos[i].reshape(rows, *own.shape[1:]).astype(own.dtype) for i, own in enumerate(arrays)
    ]


def _packed(
    sends: Graph, array: Shaped[Array, "owned *rest"], dtype: str | None
) -> Shaped[Array, "sent width"]:
    """The rows that are sent, in their order."""
    array = array.reshape(array.shape[0], math.prod(array.shape[1:]))
    if jnp.issubdtype(array.dtype, jnp.floating):
        # A product, so that its gradient is one, too: added in a fixed order.
        return spmm(sends, array if dtype is None else array.astype(dtype))
    # Where no row is asked for, any: sparse rows stay valid.
    first = jnp.minimum(sends.row_offsets[:-1], sends.num_edges - 1)
    return array[sends.senders[first]]


def exchange(
    x: Float[Array, "*shape"], axis: str, split: int, join: int, dtype: str | None
) -> Float[Array, "*shape"]:
    """Splits an axis of the array over the devices and joins another one."""
    sent = x if dtype is None else x.astype(dtype)
    return jax.lax.all_to_all(sent, axis, split, join, tiled=True).astype(x.dtype)
