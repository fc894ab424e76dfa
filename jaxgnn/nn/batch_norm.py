"""Batch normalization that ignores padding."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.nn._linear import check_dtypes, width
from jaxgnn.ops._normalization.batch_norm import Options, batch_norm


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
        averaged = self.use_running_average if use_running_average is None else use_running_average
        if mask is not None:
            mask = jnp.asarray(mask)
            if mask.dtype != jnp.bool_:
                raise TypeError(f"mask: expected booleans, got {mask.dtype}")
            if mask.shape != x.shape[:1]:
                raise ValueError(f"mask: expected the shape {x.shape[:1]}, got {mask.shape}")
        # No rows have no mean, which would enter the running one as NaN.
        if averaged or jnp.size(x) == 0:
            return super().__call__(x, True)
        assert self.scale is not None and self.bias is not None
        x, scale, bias = jnp.asarray(x), self.scale[...], self.bias[...]
        running_dtype = self.mean[...].dtype
        if not jnp.issubdtype(x.dtype, jnp.inexact):  # the statistics are of floating rows
            x = x.astype(running_dtype)
        dtype = self.dtype
        if dtype is None:  # as in evaluation, where Flax promotes by the running statistics, too
            dtype = jnp.result_type(x.dtype, self.param_dtype, running_dtype)
        options = Options(self.epsilon, self.axis_name, jnp.dtype(dtype))
        out, found, any_row = batch_norm(options, x, scale, bias, mask)
        for running, value in ((self.mean, found.mean), (self.var, found.variance)):
            kept = self.momentum * running[...] + (1 - self.momentum) * value
            running[...] = jnp.where(any_row, kept, running[...]).astype(running[...].dtype)
        return out
