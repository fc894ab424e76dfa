"""From rows' lengths to their offsets."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import sequential

_TARGET = "jaxgnn_row_offsets"
_ROWS_PER_TOTAL = 2048  # cuda/sampling/sampling.h


def offsets_of(counts: Int[Array, " rows"]) -> Int[Array, " rows+1"]:
    """Where rows of these lengths begin, one after the other."""

    def kernel(counts: Array) -> Array:
        rows = counts.shape[0]
        totals = max(1, -(-rows // _ROWS_PER_TOTAL))
        results = [((rows + 1,), np.int32), ((totals,), np.int32)]
        return ffi.call(_TARGET, [counts], results)[0]

    def otherwise(counts: Array) -> Array:
        return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])

    def choose(counts: Array) -> Array:
        return dispatch((_TARGET,), kernel, otherwise, counts, platforms=("cuda",))

    return sequential(choose)(counts.astype(jnp.int32))
