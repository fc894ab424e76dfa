"""Batch normalization that ignores padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn._core import checks
from jaxgnn.nn._linear import width


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
            ValueError: a mask of another shape.
        """
        if mask is None:
            return super().__call__(x, use_running_average)
        if mask.shape != x.shape[:1]:
            raise ValueError(f"mask: expected the shape {x.shape[:1]}, got {mask.shape}")
        averaged = self.use_running_average if use_running_average is None else use_running_average
        if averaged:
            return super().__call__(x, True)
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
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
        return rows * scale + (self.bias[...] - offset * scale)


def _statistics(
    x: Float[Array, "rows *batch features"], mask: Bool[Array, " rows"], axis_name: str | None
) -> tuple[Array, Array, tuple[Array, Array], Array]:
    """Mean and variance of the rows of a mask, all where it has none; the rows without a constant
    near the mean, with the mean of that; and whether the mask has rows.

    Within `shard_map` those of all devices along `axis_name`.

    A constant shift changes neither the variance nor its derivatives, and what is left of the mean
    is rounding: the squares do not cancel. So the backward pass has two sums over the rows, and
    the weighted ones are products of a vector and a matrix, which read the rows once.
    """

    def of_all(value: Array) -> Array:
        return value if axis_name is None else jax.lax.psum(value, axis_name)

    found = of_all(mask.sum()) > 0
    mask = mask | ~found
    weights = mask.astype(x.dtype) / of_all(mask.sum()).astype(x.dtype)

    def mean(rows: Array) -> Array:
        rows = jnp.tensordot(weights, rows, 1, precision=jax.lax.Precision.HIGHEST)
        return of_all(rows.reshape(-1, rows.shape[-1]).mean(axis=0))

    shift = jax.lax.stop_gradient(mean(x))
    rows = x - shift
    offset = mean(rows)
    variance = jnp.maximum(mean(rows * rows) - offset * offset, 0)
    return shift + offset, variance, (rows, offset), found
