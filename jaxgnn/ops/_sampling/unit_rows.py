"""Rows divided by their lengths, whatever their scale, in one pass over them for the lengths."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.custom_jvp import custom_jvp

Rows = Float[Array, "*rows width"]


@custom_jvp
def unit_rows(h: Rows) -> Rows:
    r"""$h / |h|$; a row of zeros stays."""
    scale, length = _scaled_length(h)
    return (h * scale) / length


@unit_rows.defjvp
def _unit_rows_jvp(primals: tuple[Rows], tangents: tuple[Rows]) -> tuple[Rows, Rows]:
    (h,), (dh,) = primals, tangents
    out = unit_rows(h)
    along = jnp.sum(out * dh, axis=-1, keepdims=True)
    return out, (dh - out * along) / _length(h)


@custom_jvp
def _length(h: Rows) -> Float[Array, "*rows 1"]:
    """The length, 1 of a row of zeros."""
    scale, length = _scaled_length(h)
    return length / scale


@_length.defjvp
def _length_jvp(primals: tuple[Rows], tangents: tuple[Rows]) -> tuple[Array, Array]:
    (h,), (dh,) = primals, tangents
    return _length(h), jnp.sum(unit_rows(h) * dh, axis=-1, keepdims=True)


def _scaled_length(h: Rows) -> tuple[Float[Array, "*rows 1"], Float[Array, "*rows 1"]]:
    """A power of 2 for each row and the length of the row times it, whose square is in range.

    Sums of squares at three scales, which XLA computes side by side: dividing by the largest entry
    first would read the rows once more.
    """
    exponent = jnp.finfo(h.dtype).maxexp
    power = jnp.asarray(2.0 ** (exponent // 2 + 6), h.dtype)
    limit = jnp.asarray(2.0 ** (exponent * 3 // 4), h.dtype)

    def squares(rows: Rows) -> Float[Array, "*rows 1"]:
        return jnp.sum(rows * rows, axis=-1, keepdims=True)

    small, plain, large = squares(h * power), squares(h), squares(h / power)
    tiny, huge = plain < 1 / limit, plain > limit
    scale = jnp.where(tiny, power, jnp.where(huge, 1 / power, jnp.ones_like(plain)))
    length = jnp.sqrt(jnp.where(tiny, small, jnp.where(huge, large, plain)))
    zero = length == 0
    return jnp.where(zero, jnp.ones_like(scale), scale), jnp.where(zero, 1, length)
