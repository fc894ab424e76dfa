"""Arrays of random numbers."""

import jax
import numpy as np

from tests.support.oracle import draw_array


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> jax.Array:
    """Standard normal values from a seed."""
    return draw_array(np.random.default_rng(seed), shape, dtype)
