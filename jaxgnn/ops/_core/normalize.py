"""Layer normalization in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype


def normalize(
    epsilon: float, x: Float[Array, "*rows width"], scale: Float[Array, " width"]
) -> Float[Array, "*rows width"]:
    """Rows of mean 0 and variance 1, times `scale`, in the accumulation dtype."""
    x = x.astype(accumulation_dtype(x.dtype))
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centered).mean(axis=-1, keepdims=True)
    of_features = (1,) * (x.ndim - 1) + scale.shape
    return centered * jax.lax.rsqrt(variance + epsilon) * scale.astype(x.dtype).reshape(of_features)
