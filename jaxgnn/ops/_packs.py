"""Rows of whole packs: a GPU's kernels load features 16 bytes at a time, or one by one where not
every row begins at a multiple of that.

Operations lengthen the rows before their derivative rules and cut the results, so that forward and
backward load packs both.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_PACK = 16  # bytes


def lengthened(x: Float[Array, "*rows width"]) -> Float[Array, "*rows more"]:
    """`x` with zeros behind each row, up to whole packs, on a GPU; else `x` itself."""
    return with_zeros(x, missing(x))


def missing(x: Array) -> int:
    """How many entries rows are short of whole packs, for a GPU's kernels."""
    if jax.default_backend() == "cpu":
        return 0
    return -x.shape[-1] % (_PACK // x.dtype.itemsize)


def with_zeros(x: Array, more: int) -> Array:
    """`x` with as many zeros behind each row."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more else x
