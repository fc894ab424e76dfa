"""From the host to the device, and where an array is."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array


def device_array(values: np.ndarray) -> Array:
    """A host array of ours, which nobody writes to any more, on the device.

    `jnp.asarray` would compile a copy for each new shape. Types narrow as they do there.
    """
    with jax.ensure_compile_time_eval():  # also where a function that is being traced builds it
        return jax.device_put(values)


Made = TypeVar("Made")


def place_like(made: Made, array: Any) -> Made:
    """Arrays that `device_array` made of a graph, a pytree of them, where one of the graph's is.

    An array that nobody placed is on the default device, where they are already.
    """
    if isinstance(array, jax.Array) and array.committed and array.sharding.is_fully_replicated:
        return jax.device_put(made, array.sharding)
    return made


# Architectures that give a block 99 KB of shared memory; others have 163 or 227.
_SMALL_BLOCKS = ("8.6", "8.9", "12.0", "12.1")


def has_small_blocks() -> bool:
    """Whether a GPU of this process has so little shared memory a block."""
    return any(getattr(d, "compute_capability", "") in _SMALL_BLOCKS for d in jax.local_devices())


def on_gpu(array: Any) -> bool:
    """Whether the whole array is on a GPU, or on each of several."""
    return (
        isinstance(array, jax.Array)
        and all(device.platform == "gpu" for device in array.devices())
        and array.sharding.is_fully_replicated
    )
