"""A stable sort by small integers: the entries of each value, one value after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch

_TARGET = "jaxgnn_counting_sort"


def counting_sort(
    keys: Int[Array, " entries"], num_values: int
) -> tuple[Int[Array, " num_values+1"], Int[Array, " entries"]]:
    """Where the entries of each value begin, and which entry is at each place; int32.

    Entries of equal keys keep their order. XLA sorts, a CPU counts: its sort takes thirty times as
    long. A GPU's is fast.

    Args:
        keys: from 0 to `num_values`, where `num_values` stands for none: these come last.
        num_values: how many values there are; static.
    """
    if keys.dtype != jnp.int32:
        return _by_sort(keys, num_values)

    @jax.custom_batching.sequential_vmap
    def by_counts(keys: Array) -> tuple[Array, Array]:
        results = [((num_values + 1,), np.int32), (keys.shape, np.int32)]
        offsets, order = ffi.call(_TARGET, [keys], results)
        return offsets, order

    def by_sort(keys: Array) -> tuple[Array, Array]:
        return _by_sort(keys, num_values)

    return dispatch((_TARGET,), by_counts, by_sort, keys, platforms=("cpu",))


def _by_sort(keys: Array, num_values: int) -> tuple[Array, Array]:
    entries = jnp.arange(keys.shape[0], dtype=jnp.int32)
    in_order, order = jax.lax.sort((keys, entries), num_keys=1)
    values = jnp.arange(num_values + 1, dtype=keys.dtype)
    return jnp.searchsorted(in_order, values).astype(jnp.int32), order
