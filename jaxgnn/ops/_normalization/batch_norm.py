r"""Batch normalization with one pass over the rows for the statistics, and one for their gradients.

$y_i = s \, n_i + b$ with $n_i = (x_i - \mu) / \sqrt{\sigma^2 + \varepsilon}$, where $\mu$ and
$\sigma^2$ are of the rows $m$. With the gradient $g$ of $y$ its transpose is

$$\bar b = \sum_i g_i, \qquad \bar s = \sum_i g_i \, n_i, \qquad
  \bar x_i = \frac{s}{\sqrt{\sigma^2 + \varepsilon}} \,
  \Bigl(g_i - \frac{[i \in m]}{|m|} \, (\bar b + n_i \, \bar s)\Bigr)$$

Either pass has two sums over the rows, on a CPU by a kernel. Derivatives of any other kind are
those of `by_jax`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import on_one_device
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.known_gradients import KnownGradients
from jaxgnn.ops._normalization.on_cpu import on_cpu, two_sums

_SAMPLED_ROWS = 64


class Options(NamedTuple):
    """What is known before the arrays."""

    epsilon: float
    axis_name: str | None
    """That of devices within `shard_map`, or of examples of `vmap`, whose rows count together."""
    dtype: np.dtype
    """Of the result."""


class Statistics(NamedTuple):
    """Of the rows that count."""

    mean: Float[Array, " features"]
    variance: Float[Array, " features"]


def batch_norm(
    options: Options,
    x: Float[Array, "rows *batch features"],
    scale: Float[Array, " features"],
    bias: Float[Array, " features"],
    mask: Bool[Array, " rows"] | None,
) -> tuple[Float[Array, "rows *batch features"], Statistics, Bool[Array, ""] | bool]:
    """The normalized rows, what they are normalized by, and whether any row counts.

    If none does, the statistics are those of all. They have no derivative.

    Args:
        options: see there.
        x: at least one row, of at least one feature.
        scale, bias: of the features, in any floating dtype.
        mask: the rows that count; all without one.
    """
    accumulator = np.promote_types(*(accumulation_dtype(a.dtype) for a in (x, scale)))
    rows, scale, bias = ffi.unify_varying(x, scale.astype(accumulator), bias.astype(accumulator))
    if accumulation_dtype(x.dtype) != accumulator:
        rows = rows.astype(accumulator)
    rows = rows.reshape(-1, x.shape[-1])
    any_row = True
    if mask is not None:
        mask = jnp.repeat(mask, rows.shape[0] // x.shape[0])
        any_row = _of_all(options, mask.sum()) > 0
        mask = mask | ~any_row
    found = _statistics(options, jax.lax.stop_gradient(rows), mask, _centered_sums)
    fixed = mask, found.mean, jax.lax.rsqrt(found.variance + options.epsilon)
    if options.axis_name in (None, *jax.sharding.get_abstract_mesh().manual_axes):
        out = _batch_norm(options, None, fixed, rows, scale, bias)
    else:  # of examples of `vmap`: a linear map's transpose runs where their axis has no name
        out = by_jax(options, fixed, rows, scale, bias)
    return out.reshape(x.shape), found, any_row


def by_jax(options, fixed, x, scale, bias):
    """The same rows, with the derivatives of their statistics."""
    found = _statistics(options, x, fixed[0], _sums_by_jax)
    inverse = jax.lax.rsqrt(found.variance + options.epsilon)
    return _value(options, None, (None, found.mean, inverse), x, scale, bias)


def _value(options, known, fixed, x, scale, bias):
    del known
    _, mean, inverse = fixed
    return (_centered(x, mean) * _row(scale * inverse) + _row(bias)).astype(options.dtype)


def _gradients(options, fixed, gradient, x, scale, bias):
    mask, mean, inverse = fixed
    del bias
    dtype = x.dtype
    if gradient.dtype != x.dtype:
        gradient, x = gradient.astype(scale.dtype), x.astype(scale.dtype)
    of_bias, products = _centered_sums(gradient, x, mean, None)
    sums = of_bias, products * inverse
    of_mean, of_deviation = (_of_all(options, s) / _count(options, x, mask) for s in sums)
    through = _row(of_mean) + _centered(x, mean) * _row(of_deviation * inverse)
    if mask is not None:
        through = _counted(mask, through)
    dx = (gradient.astype(scale.dtype) - through) * _row(scale * inverse)
    return dx.astype(dtype), sums[1], sums[0]


_batch_norm = KnownGradients(by_jax, _value, _gradients)


def _statistics(
    options: Options,
    x: Float[Array, "rows features"],
    mask: Bool[Array, " rows"] | None,
    centered_sums: Any,
) -> Statistics:
    """Mean and variance of the rows of a mask that has some, in the accumulation dtype.

    A constant shift changes neither the variance nor its derivatives. That by the mean of a few
    rows leaves an offset of the order of the deviation, or less: the squares do not cancel, and no
    pass over all rows has to find the mean first.
    """
    # Rows over several devices are all counted: a few of them would have to be gathered.
    few = on_one_device(_few_rows, _all_rows, jax.lax.stop_gradient(x), mask)
    sums, rows = (_of_all(options, a) for a in few)
    shift = sums / jnp.maximum(rows, 1)
    sums, squares = (_of_all(options, s) for s in centered_sums(None, x, shift, mask))
    count = _count(options, x, mask)
    offset = sums / count
    variance = jnp.maximum(squares / count - jnp.square(offset), 0)
    return Statistics(shift + offset, variance)


def _centered_sums(
    gradient: Float[Array, "rows features"] | None,
    x: Float[Array, "rows features"],
    shift: Float[Array, " features"],
    mask: Bool[Array, " rows"] | None,
) -> tuple[Float[Array, " features"], Float[Array, " features"]]:
    """The sums of the gradient and of its products with the centered rows; without one, of the
    centered rows of a mask and of their squares. Has no derivative."""
    absent = jnp.zeros((0, 0), x.dtype), jnp.zeros(0, bool)
    given = (other if a is None else a for a, other in zip((gradient, mask), absent, strict=True))

    def kernel(x: Array, shift: Array, *others: Array) -> tuple[Array, Array]:
        rows, width = x.shape
        results = two_sums(rows, width, shift.dtype)
        sums, _ = ffi.call("jaxgnn_centered_sums", [x, shift, *others], results)
        return sums[0], sums[1]

    def otherwise(x: Array, shift: Array, *others: Array) -> tuple[Array, Array]:
        gradient, mask = (a if a.size else None for a in others)
        return _sums_by_jax(gradient, x, shift, mask)

    operands = ffi.unify_varying(x, shift, *given)
    return on_cpu("jaxgnn_centered_sums", kernel, otherwise, *operands)


def _sums_by_jax(
    gradient: Array | None, x: Array, shift: Array, mask: Array | None
) -> tuple[Array, Array]:
    """The same in JAX."""
    centered = _centered(x, shift)
    if gradient is None:
        own = centered if mask is None else _counted(mask, centered)
        return own.sum(axis=0), jnp.square(own).sum(axis=0)
    own = gradient.astype(shift.dtype)
    # A gradient of 0 adds nothing, whatever is in padding.
    return own.sum(axis=0), jnp.where(own == 0, 0, own * centered).sum(axis=0)


def _of_all(options: Options, value: Array) -> Array:
    """The sum over the devices, or examples, that count together."""
    return value if options.axis_name is None else jax.lax.psum(value, options.axis_name)


def _count(options: Options, x: Array, mask: Array | None) -> Array:
    """How many rows the statistics are of."""
    rows = jnp.full((), x.shape[0], int) if mask is None else mask.sum()
    return _of_all(options, rows).astype(accumulation_dtype(x.dtype))


def _row(values: Float[Array, " features"]) -> Float[Array, "1 features"]:
    return values[None, :]


def _centered(
    x: Float[Array, "rows features"], mean: Float[Array, " features"]
) -> Float[Array, "rows features"]:
    return x.astype(mean.dtype) - _row(mean)


def _counted(
    mask: Bool[Array, " rows"], rows: Float[Array, "rows features"]
) -> Float[Array, "rows features"]:
    """The rows of a mask, zeros elsewhere: a factor of 0 would let what is not finite through."""
    return jnp.where(mask[:, None], rows, 0)


def _all_rows(
    x: Float[Array, "rows features"], mask: Bool[Array, " rows"] | None
) -> tuple[Float[Array, " features"], Float[Array, ""]]:
    """The sum of the rows of a mask, and how many they are."""
    wide = x.astype(accumulation_dtype(x.dtype))
    rows = x.shape[0] if mask is None else mask.sum()
    wide = wide if mask is None else _counted(mask, wide)
    return wide.sum(axis=0), jnp.asarray(rows, wide.dtype)


def _few_rows(
    x: Float[Array, "rows features"], mask: Bool[Array, " rows"] | None
) -> tuple[Float[Array, " features"], Float[Array, ""]]:
    """The same of some rows, evenly apart, and the first one of the mask."""
    if x.shape[0] <= _SAMPLED_ROWS:
        return _all_rows(x, mask)
    step = -(-x.shape[0] // _SAMPLED_ROWS)
    if mask is None:
        return _all_rows(x[::step], None)
    first = jnp.argmax(mask)[None]
    return _all_rows(
        jnp.concatenate([x[::step], x[first]]), jnp.concatenate([mask[::step], mask[first]])
    )
