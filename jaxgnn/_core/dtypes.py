"""In which precision sums run."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def accumulation_dtype(dtype: DTypeLike) -> np.dtype:
    """float64 for float64, else float32."""
    return np.dtype(np.float64 if jnp.dtype(dtype) == jnp.float64 else np.float32)
