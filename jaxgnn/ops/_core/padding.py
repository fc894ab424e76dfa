"""Rows as long as kernels like them.

A GPU's load features 16 bytes at a time, or one by one where not every row begins at a multiple of
that. A CPU's attentions and Gaussians take the end of a row by ever shorter vectors. Operations
lengthen the rows before their derivative rules and cut the results, forward and backward at once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_PACK = 16  # bytes
_LANES = 16


def lengthened(
    x: Float[Array, "*rows width"], *, ends: bool = False
) -> Float[Array, "*rows longer"]:
    """`x` with zeros behind each row where that is faster.

    On a GPU rows become whole packs; on a CPU, if `ends`, what is left of a row behind the last
    whole vector becomes one shorter vector.
    """
    return with_zeros(x, missing(x, ends))


def missing(x: Array, ends: bool) -> int:
    """By how many zeros."""
    width = x.shape[-1]
    if jax.default_backend() != "cpu":
        return -width % (_PACK // x.dtype.itemsize)
    end = width % _LANES
    return (1 << (end - 1).bit_length()) - end if ends and end else 0


def with_zeros(x: Array, more: int) -> Array:
    """`x` with as many zeros behind each row."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more else x
