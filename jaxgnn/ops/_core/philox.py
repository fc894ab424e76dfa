"""Philox4x32-10, a counter-based generator: what `common/philox.h` draws, in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def key_words(key: Any) -> UInt32[Array, " 2"]:
    """A JAX key, new-style or raw, as two words; longer ones are hashed by JAX's own generator."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    philox_key = jax.random.key_data(key) if typed else key
    return philox_key if philox_key.shape == (2,) else jax.random.bits(key, (2,), jnp.uint32)


@jax.jit  # one program outside it too: of the rounds' operations each would be compiled by itself
def philox4x32(
    counter: list[UInt32[Array, "*shape"]], key: UInt32[Array, " 2"]
) -> list[UInt32[Array, "*shape"]]:
    """Philox4x32-10: four words for a counter of four and a key of two.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key[0], key[1]
    for _ in range(_ROUNDS):
        high0, low0 = multiply_words(c0, _MULTIPLIERS[0])
        high1, low1 = multiply_words(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + jnp.uint32(_WEYL[0]), k1 + jnp.uint32(_WEYL[1])
    return [c0, c1, c2, c3]


def multiply_words(
    a: UInt32[Array, "*shape"], b: UInt32[Array, "*shape"] | int
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """High and low word of the product, by halves: there may be no 64-bit integers."""
    low_half, shift = np.uint32(0xFFFF), np.uint32(16)
    other = np.uint32(b) if isinstance(b, int) else b
    b_high, b_low = other >> shift, other & low_half
    a_high, a_low = a >> shift, a & low_half
    lowest = a_low * b_low
    middle = a_high * b_low + (lowest >> shift)
    carry = a_low * b_high + (middle & low_half)
    high = a_high * b_high + (middle >> shift) + (carry >> shift)
    return high, a * other
