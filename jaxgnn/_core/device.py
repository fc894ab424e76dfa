"""From the host to the device."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array


def device_array(values: np.ndarray) -> Array:
    """A host array of ours, which nobody writes to any more, on the device.

    `jnp.asarray` would compile a copy for each new shape. Types narrow as they do there.
    """
    with jax.ensure_compile_time_eval():  # also where a function that is being traced builds it
        return jax.device_put(values)
