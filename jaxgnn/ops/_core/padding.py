"""Padding of the feature axis to the vector width of the kernels.

A GPU loads aligned vectors of 16 bytes, or scalars where the rows are misaligned. A CPU kernel
handles the tail of a row by ever shorter vectors. Operations pad their features before the
derivative rules and slice the results, so that the forward and the backward pass both gain.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_VECTOR_BYTES = 16
_LANES = 16


def pad_features(
    x: Float[Array, "*rows width"], *, ends: bool = False
) -> Float[Array, "*rows padded"]:
    """`x` with zeros appended to each row where that is faster.

    On a GPU the feature axis becomes a multiple of the vector width. On a CPU, if `ends`, the tail
    after the last full vector becomes one shorter vector.
    """
    return pad_by(x, pad_width(x, ends))


def pad_width(x: Array, ends: bool) -> int:
    """The number of zeros that `pad_features` appends to each row."""
    width = x.shape[-1]
    if jax.default_backend() != "cpu":
        return -width % (_VECTOR_BYTES // x.dtype.itemsize)
    end = width % _LANES
    return (1 << (end - 1).bit_length()) - end if ends and end else 0


def pad_by(x: Array, width: int) -> Array:
    """`x` with `width` zeros appended to each row."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width)]) if width else x
