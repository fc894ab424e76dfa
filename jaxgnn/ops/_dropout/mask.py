"""Which values of a matrix dropout keeps: what `maxk` keeps for the same key.

The kernel writes a bit a value. XLA fuses the expansion of the bits into what reads the mask.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.folding import with_vmap_rule
from jaxgnn.ops._core.dropout_mask import dropout_words

TARGET = "jaxgnn_dropout_mask"
_BITS = 32


def packed_by_kernel(
    drop_below: int, rows: int, width: int, philox_key: UInt32[Array, " 2"]
) -> UInt32[Array, "rows words"]:
    """Bit `c % 32` of word `c // 32` of a row is set where the value in column `c` is kept.

    Args:
        drop_below: random words below this are dropped, as `dropout_mask.threshold` gives it.
        rows, width: of the values.
        philox_key: the key.
    """
    words = -(-width // _BITS)

    def kernel(keys: Array) -> Array:
        shape = (keys.shape[0], rows, words)
        attributes = {"drop_below": drop_below, "width": width}
        return ffi.call(TARGET, [keys], [(shape, jnp.uint32)], **attributes)[0]

    def rule(call, axis_size, batched, keys):
        """More keys."""
        del batched
        return call(keys.reshape(-1, 2)).reshape(axis_size, -1, rows, words)

    return with_vmap_rule(kernel, rule)(philox_key[None])[0]


@functools.partial(jax.jit, static_argnames=("drop_below", "rows", "width"))
def packed_by_jax(
    drop_below: int, rows: int, width: int, philox_key: UInt32[Array, " 2"]
) -> UInt32[Array, "rows words"]:
    """The same in JAX."""
    kept = kept_by_jax(drop_below, rows, width, philox_key)
    kept = jnp.pad(kept, ((0, 0), (0, -width % _BITS))).reshape(rows, -(-width // _BITS), _BITS)
    bits = kept.astype(jnp.uint32) << np.arange(_BITS, dtype=np.uint32)[None, None]
    return jnp.sum(bits, axis=-1, dtype=jnp.uint32)


def kept_by_jax(
    drop_below: int, rows: int, width: int, philox_key: UInt32[Array, " 2"]
) -> Bool[Array, "rows width"]:
    """Whether each value is kept, in JAX."""
    return dropout_words(philox_key, 0, rows, width) >= jnp.uint32(drop_below)


@functools.partial(jax.jit, static_argnames="width")
def unpacked(packed: UInt32[Array, "rows words"], width: int) -> Bool[Array, "rows width"]:
    """Whether each value is kept."""
    rows, words = packed.shape
    column = jax.lax.broadcasted_iota(jnp.uint32, (rows, words, _BITS), 2)
    bits = (packed[:, :, None] >> column) & jnp.uint32(1)
    return (bits != 0).reshape(rows, words * _BITS)[:, :width]
