"""Dropout of rows of values by the mask of `mask.py`, which the backward pass draws again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch, on_one_device
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import Multilinear
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._dropout import mask

_MOST_COLUMNS = 1 << 34
"""Blocks of four columns have 32-bit numbers."""


def dropout(x: Float[Array, "*rows width"], rate: float, rng: Any) -> Float[Array, "*rows width"]:
    r"""$m x$, with $m$ 0 where a value is dropped and $1 / (1 - p)$ elsewhere.

    What is kept depends on the key, on the value's row among all rows and on its column. It is
    what `maxk` keeps of the same rows by the same key. In computations that XLA partitions over
    several devices JAX's generator draws, by the same key, as XLA does not partition a kernel.

    Linear in `x`: the gradient is the same map of the cotangent, which draws the mask again. XLA
    makes one of the two draws that a training step has.

    Args:
        x: rows, along any number of axes.
        rate: $p$, at least 0 and below 1, in steps of $2^{-32}$.
        rng: a JAX key, for a rate above 0.

    Raises:
        TypeError: `x` is not floating, the rate is no number, or the key is none.
        ValueError: the rate is out of range, there is one and no key, or rows are longer than
            $2^{34}$.
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x: expected a floating dtype, got {x.dtype}")
    drop_below, philox_key = dropout_mask.arguments(rate, rng)
    if philox_key is None or x.size == 0:
        return x
    if x.ndim and x.shape[-1] > _MOST_COLUMNS:
        raise ValueError(f"x: expected rows of at most 2^34 values, got the shape {x.shape}")
    x, philox_key = ffi.unify_varying(x, philox_key)
    with jax.named_scope("jaxgnn.dropout"):
        return _dropout(drop_below, philox_key, x)


def _function(drop_below: int, philox_key: UInt32[Array, " 2"], x: Array) -> Array:
    def drop(kept: Callable[..., Bool[Array, "rows width"]], x: Array, philox_key: Array) -> Array:
        width = x.shape[-1] if x.ndim else 1
        rows = math.prod(x.shape[:-1])
        is_kept = kept(drop_below, rows, width, philox_key).reshape(x.shape)
        scale = jnp.asarray(dropout_mask.keep_scale(drop_below), accumulation_dtype(x.dtype))
        scaled = (x.astype(scale.dtype) * scale).astype(x.dtype)
        return jnp.where(is_kept, scaled, jnp.zeros((), x.dtype))

    by_kernel, by_jax, by_threefry = (
        functools.partial(drop, kept) for kept in (_by_kernel, mask.kept_by_jax, _by_threefry)
    )
    serve = functools.partial(dispatch, (mask.TARGET,), by_kernel, by_jax)
    return on_one_device(serve, by_threefry, x, philox_key)


def _by_kernel(
    drop_below: int, rows: int, width: int, philox_key: UInt32[Array, " 2"]
) -> Bool[Array, "rows width"]:
    return mask.unpacked(mask.packed_by_kernel(drop_below, rows, width, philox_key), width)


def _by_threefry(
    drop_below: int, rows: int, width: int, philox_key: UInt32[Array, " 2"]
) -> Bool[Array, "rows width"]:
    """Drawn by JAX, which keeps no words: XLA partitions it, and fuses it into what it is for."""
    key = jax.random.wrap_key_data(philox_key, impl="threefry2x32")
    return jax.random.bits(key, (rows, width), jnp.uint32) >= jnp.uint32(drop_below)


# Linear in x, and its own transpose.
_dropout = Multilinear(_function, [lambda *arguments: _dropout(*arguments)])
