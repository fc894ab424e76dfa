"""Rows divided by their lengths, whatever their scale, in one pass over them for the lengths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Rows = Float[Array, "*rows width"]


@jax.custom_jvp
def unit_rows(h: Rows) -> Rows:
    r"""$h / |h|$; a row of zeros stays."""
    return h / _divisor(h)


@unit_rows.defjvp
def _unit_rows_jvp(primals: tuple[Rows], tangents: tuple[Rows]) -> tuple[Rows, Rows]:
    (h,), (dh,) = primals, tangents
    out = unit_rows(h)
    along = jnp.sum(out * dh, axis=-1, keepdims=True)
    return out, (dh - out * along) / _divisor(h)


def _divisor(h: Rows) -> Float[Array, "*rows 1"]:
    length = _length(h)
    return jnp.where(length > 0, length, jnp.ones_like(length))


@jax.custom_jvp
def _length(h: Rows) -> Float[Array, "*rows 1"]:
    """The length, of rows whose squares are out of range, too.

    Sums of squares at three scales, which XLA computes side by side: dividing by the largest entry
    first would read the rows once more.
    """
    exponent = jnp.finfo(h.dtype).maxexp
    power = exponent // 2 + 6
    scale = jnp.asarray(2.0**power, h.dtype)

    def squares(rows: Rows) -> Float[Array, "*rows 1"]:
        return jnp.sum(rows * rows, axis=-1, keepdims=True)

    small, plain, large = squares(h * scale), squares(h), squares(h / scale)
    limit = jnp.asarray(2.0 ** (exponent * 3 // 4), h.dtype)
    length = jnp.where(plain < 1 / limit, jnp.sqrt(small) / scale, jnp.sqrt(plain))
    return jnp.where(plain > limit, jnp.sqrt(large) * scale, length)


@_length.defjvp
def _length_jvp(primals: tuple[Rows], tangents: tuple[Rows]) -> tuple[Array, Array]:
    (h,), (dh,) = primals, tangents
    return _length(h), jnp.sum(unit_rows(h) * dh, axis=-1, keepdims=True)
