"""Batch normalization that ignores padding."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn._core import checks
from jaxgnn._core.dispatch import on_one_device
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.nn._linear import check_dtypes, width

_SAMPLED_ROWS = 64


class BatchNorm(nnx.BatchNorm):
    r"""Normalizes each feature over the rows that count; Flax's with a mask of the rows.

    $$y_i = \gamma \, \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta, \qquad
      \mu = \underset{i \in m}{\mathrm{mean}} \, x_i, \qquad
      \sigma^2 = \underset{i \in m}{\mathrm{mean}} \, (x_i - \mu)^2$$

    In training $\mu$ and $\sigma^2$ are those of the rows $m$, all without a mask, and enter the
    running ones with a share of 1 - `momentum`; after `eval()` they are the running ones. Where no
    row counts these do not change. The running variance is that of the equation, where PyTorch's
    divides by one row less.

    Args:
        features: width of $x$.
        epsilon: $\epsilon$.
        momentum: the share of the running statistics that a call keeps (PyTorch's is 1 minus it).
        dtype: of the result; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters `scale` and `bias`, $\gamma$ and $\beta$.
        rngs: as for every module; nothing is drawn.

    Raises:
        TypeError, ValueError: an option out of range.

    Source: Ioffe and Szegedy, "Batch normalization" (ICML 2015).
    """

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        check_dtypes(dtype, param_dtype)
        super().__init__(
            width(features, "features"),
            epsilon=checks.number(epsilon, "epsilon", 0, float("inf")),
            momentum=checks.number(momentum, "momentum", 0, 1),
            # E[x^2] - E[x]^2 cancels where a feature's mean is large beside its deviation.
            use_fast_variance=False,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=nnx.Rngs(0) if rngs is None else rngs,
        )
        # Flax has float32: after eval() a model of float64 would compute with rounded statistics.
        wide = accumulation_dtype(param_dtype)
        self.mean = nnx.BatchStat(self.mean[...].astype(wide))
        self.var = nnx.BatchStat(self.var[...].astype(wide))

    def __call__(
        self,
        x: Float[Array, "rows *batch features"],
        use_running_average: bool | None = None,
        *,
        mask: Bool[Array, " rows"] | None = None,
    ) -> Float[Array, "rows *batch features"]:
        """The normalized rows, those that do not count by the same statistics.

        Args:
            x: the rows.
            use_running_average: in place of what `train()` and `eval()` set.
            mask: the rows that count, such as `GraphBatch.node_mask`.

        Raises:
            TypeError: a mask that is not of booleans.
            ValueError: rows of another width, or a mask of another shape.
        """
        if jnp.shape(x)[-1:] != (self.num_features,):
            got = jnp.shape(x)
            raise ValueError(f"x: expected the shape (..., {self.num_features}), got {got}")
        if mask is None:
            # No rows have no mean, which would enter the running one as NaN.
            return super().__call__(x, use_running_average if jnp.size(x) else True)
        mask = jnp.asarray(mask)
        if mask.dtype != jnp.bool_:
            raise TypeError(f"mask: expected booleans, got {mask.dtype}")
        if mask.shape != x.shape[:1]:
            raise ValueError(f"mask: expected the shape {x.shape[:1]}, got {mask.shape}")
        averaged = self.use_running_average if use_running_average is None else use_running_average
        if averaged:
            return super().__call__(x, True)
        wide = x.astype(accumulation_dtype(x.dtype))
        mean, variance, rows, found = _statistics(wide, mask, self.axis_name)
        momentum = self.momentum
        for running, value in ((self.mean, mean), (self.var, variance)):
            value = momentum * running[...] + (1 - momentum) * value
            running[...] = jnp.where(found, value, running[...]).astype(running[...].dtype)
        out = self._scaled(*rows, variance)
        if self.dtype is not None:
            return out.astype(self.dtype)
        return out.astype(jnp.result_type(x.dtype, self.param_dtype))

    def _scaled(self, rows: Array, offset: Array, variance: Array) -> Array:
        """The normalized rows; without their offset first, which is subtracted with the bias."""
        assert self.scale is not None and self.bias is not None
        scale = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        return rows * _row(scale, rows) + _row(self.bias[...] - offset * scale, rows)


def _statistics(
    x: Float[Array, "rows *batch features"], mask: Bool[Array, " rows"], axis_name: str | None
) -> tuple[Array, Array, tuple[Array, Array], Array]:
    """Mean and variance of the rows of a mask, all where it has none; the rows without a constant
    near the mean, with the mean of that; and whether the mask has rows.

    Within `shard_map` those of all devices along `axis_name`.

    A constant shift changes neither the variance nor its derivatives. That by the mean of a few
    rows leaves an offset of the order of the deviation, or less: the squares do not cancel, and no
    pass over all rows has to find the mean first. So either pass has two sums over the rows: XLA
    makes them a product of a vector and a matrix, and a reduction that computes the squares itself.
    """

    def of_all(value: Array) -> Array:
        return value if axis_name is None else jax.lax.psum(value, axis_name)

    found = of_all(mask.sum()) > 0
    mask = jnp.asarray(mask) | ~found
    per_row = math.prod(x.shape[1:-1])
    weights = mask.astype(x.dtype) / (of_all(mask.sum()) * per_row).astype(x.dtype)

    # Rows over several devices are all counted: a few of them would have to be gathered.
    sums, count = on_one_device(_few_rows, _all_rows, jax.lax.stop_gradient(x), mask)
    shift = of_all(sums) / jnp.maximum(of_all(count), 1)
    rows = x - _row(shift, x)
    counted = _counted(mask, rows)
    offset = of_all(_weighted_sum(weights, counted))
    each = jax.lax.broadcast_in_dim(weights, rows.shape, (0,))
    squares = (each * counted * counted).sum(axis=range(rows.ndim - 1))
    variance = jnp.maximum(of_all(squares) - offset * offset, 0)
    return shift + offset, variance, (rows, offset), found


def _row(values: Float[Array, " features"], like: Array) -> Array:
    """The values along the last axis of an array, with as many axes."""
    return values.reshape((1,) * (like.ndim - 1) + values.shape)


def _counted(
    mask: Bool[Array, " rows"], rows: Float[Array, "rows *batch features"]
) -> Float[Array, "rows *batch features"]:
    """The rows of a mask, zeros elsewhere: a factor of 0 would let what is not finite through."""
    return jnp.where(jax.lax.broadcast_in_dim(mask, rows.shape, (0,)), rows, 0)


def _weighted_sum(
    weights: Float[Array, " rows"], rows: Float[Array, "rows *batch features"]
) -> Float[Array, " features"]:
    sums = jnp.tensordot(weights, rows, 1, precision=jax.lax.Precision.HIGHEST)
    return sums.reshape(-1, rows.shape[-1]).sum(axis=0)


def _all_rows(
    x: Float[Array, "rows *batch features"], mask: Bool[Array, " rows"]
) -> tuple[Float[Array, " features"], Float[Array, ""]]:
    """The sum of the rows of a mask, and how many they are."""
    weights = mask.astype(x.dtype)
    return _weighted_sum(weights, _counted(mask, x)), weights.sum() * math.prod(x.shape[1:-1])


def _few_rows(
    x: Float[Array, "rows *batch features"], mask: Bool[Array, " rows"]
) -> tuple[Float[Array, " features"], Float[Array, ""]]:
    """The same of some rows, evenly apart, and the first one of the mask."""
    if x.shape[0] <= _SAMPLED_ROWS:
        return _all_rows(x, mask)
    step = -(-x.shape[0] // _SAMPLED_ROWS)
    first = jnp.argmax(mask)[None]
    return _all_rows(
        jnp.concatenate([x[::step], x[first]]), jnp.concatenate([mask[::step], mask[first]])
    )
