"""What MaxK's kernels compute, in JAX: on platforms without them, and as their reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt, UInt32

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.ops._aggregation import kernels as aggregation
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._core.normalize import normalize
from jaxgnn.ops._core.rows import Rows
from jaxgnn.ops._core.sparse_rows import gather, index_dtype, scatter


def select(
    k: int, x: Float[Array, "rows width"]
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """The positions by their keys, the values gathered and so differentiated."""
    # top_k puts the lower index first among equal keys.
    _, kept = jax.lax.top_k(sort_keys(x), k)
    kept = jnp.sort(kept, axis=-1)
    return jnp.take_along_axis(x, kept, axis=-1), kept.astype(index_dtype(x.shape[-1]))


def transform(
    drop_below: int,
    x: Float[Array, "rows width"],
    bias: Float[Array, " width"] | None,
    philox_key: UInt32[Array, " 2"] | None,
    normalization: tuple[float, Float[Array, " width"]] | None = None,
) -> Float[Array, "rows width"]:
    """What `maxk` selects from: normalized by an epsilon and a scale, `bias` added and entries
    dropped by the key of `philox_key`."""
    accumulator = accumulation_dtype(x.dtype)
    z = x.astype(accumulator)
    if normalization is not None:
        epsilon, scale = normalization
        z = normalize(epsilon, z, scale)
    if bias is not None:
        z = z + bias.astype(accumulator)[None, :]
    if philox_key is not None:
        rows, width = x.shape
        factors = dropout_mask.keep_factors(philox_key, 0, rows, width, drop_below, accumulator)
        # Not a product with 0, which leaves NaN and -0.
        zero = jnp.zeros((), accumulator)
        z = jnp.where(factors > zero, z * factors, zero)
    return z.astype(x.dtype)


def spgemm(
    rows: Rows,
    width: int,
    values: Float[Array, "columns k"],
    indices: UInt[Array, "columns k"],
    weights: Float[Array, " edges"] | None,
    reduce: str,
) -> Float[Array, "rows width"]:
    """The aggregation of the dense rows."""
    dense = scatter(width, values, indices)[:, None, :]
    return aggregation.reduce_rows(rows, dense, _column(weights), reduce)[:, 0, :]


def sspmm(
    rows: Rows,
    y: Float[Array, "columns width"],
    indices: UInt[Array, "rows k"],
    weights: Float[Array, " edges"] | None,
) -> Float[Array, "rows k"]:
    """The aggregation of dense rows, at the positions."""
    dense = aggregation.reduce_rows(rows, y[:, None, :], _column(weights), "sum")
    return gather(dense[:, 0, :], indices)


def cbsr_dot(
    rows: Rows,
    values: Float[Array, "columns k"],
    indices: UInt[Array, "columns k"],
    y: Float[Array, "rows width"],
) -> Float[Array, " edges"]:
    """The dot products with the dense rows."""
    dense = scatter(y.shape[1], values, indices)
    return aggregation.dot_rows(rows, y[:, None, :], dense[:, None, :])[:, 0]


def sort_keys(x: Float[Array, "*rows width"]) -> Int[Array, "*rows width"]:
    """Integers in the order of the entries: -0 as +0, and every NaN as the largest.

    Made of the bits, so that no treatment of subnormals can change the order.
    """
    integer = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x), integer)
    largest = np.array(np.iinfo(integer).max, integer)
    infinity = np.array(jnp.inf, x.dtype).view(integer)
    magnitude = bits & largest
    # Negative numbers: the larger the magnitude, the smaller the key; -0 and +0 are both 0.
    keys = jnp.where(bits < 0, -magnitude, bits)
    keys = jnp.where(magnitude > infinity, largest, keys)
    return keys.astype(jnp.int32) if integer.itemsize < 4 else keys


def _column(weights: Float[Array, " edges"] | None) -> Float[Array, "edges 1"] | None:
    return None if weights is None else weights[:, None]
