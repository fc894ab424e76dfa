"""Layer normalization as a module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn.ops._normalization.layer_norm import layer_norm

OVER_FEATURES = {"reduction_axes": -1, "feature_axes": -1, "axis_name": None}
"""The options of an `nnx.LayerNorm` of each row over its features, which kernels serve."""


class LayerNorm(nnx.LayerNorm):
    r"""`nnx.LayerNorm` whose rows a kernel normalizes on a CPU, forward and backward.

    $$y_i = s \, \frac{x_i - \mathrm{mean}(x_i)}{\sqrt{\mathrm{var}(x_i) + \varepsilon}} + b$$

    over the features of each row. Parameters, options and results are those of `nnx.LayerNorm`. The
    kernel's variance is that of the differences from the mean, whatever `use_fast_variance` is.
    On a GPU, and of other axes than the last, it is `nnx.LayerNorm`.

    Raises:
        TypeError, ValueError: as `nnx.LayerNorm` does.

    Source: Ba et al., "Layer normalization" (2016); PyTorch's `LayerNorm`.
    """

    def __call__(
        self, x: Float[Array, "*rows features"], *, mask: Array | None = None
    ) -> Float[Array, "*rows features"]:
        """The normalized rows; of a `mask` as `nnx.LayerNorm`.

        Raises:
            ValueError: rows of another width.
        """
        rows = all(getattr(self, name) == value for name, value in OVER_FEATURES.items())
        fits = jnp.shape(x)[-1:] == (self.num_features,)
        if rows and not fits and (self.scale is not None or self.bias is not None):
            got = jnp.shape(x)
            raise ValueError(f"x: expected the shape (..., {self.num_features}), got {got}")
        served = rows and fits and mask is None and jax.default_backend() == "cpu"
        if not served:
            return super().__call__(x, mask=mask)
        scale, bias = (None if p is None else p[...] for p in (self.scale, self.bias))
        x, scale, bias = self.promote_dtype((x, scale, bias), dtype=self.dtype)
        scale = jnp.ones(self.num_features, x.dtype) if scale is None else scale
        bias = jnp.zeros(self.num_features, x.dtype) if bias is None else bias
        return layer_norm(self.epsilon, x, scale, bias)
