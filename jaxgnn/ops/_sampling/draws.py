"""The random words that sampling draws: those of `common/sampling.h`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from jaxgnn.ops._core.philox import multiply_words, philox4x32

Words = UInt32[Array, "*shape"]


def draw_words(ids: Words, draws: Words, key: UInt32[Array, " 2"]) -> Words:
    """The word of each number of a draw: word `draw % 4` of the block of four that Philox makes of
    the counter (id, `draw // 4`, 0, 1); dropout's counters end in 0."""
    zero = jnp.zeros_like(ids)
    block = [ids, draws // jnp.uint32(4), zero, zero + jnp.uint32(1)]
    # Fused into what follows, all rounds would be compiled and run again for each use of a word.
    words = jax.lax.optimization_barrier(philox4x32(block, key))
    lane = draws % jnp.uint32(4)
    return jnp.select([lane == jnp.uint32(i) for i in range(4)], words)


def draw_pairs(ids: Words, draws: Words, key: UInt32[Array, " 2"]) -> tuple[Words, Words]:
    """Of each number of a draw the words `2 * draw` and `2 * draw + 1`, which one block has."""
    zero = jnp.zeros_like(ids)
    block = [ids, draws // jnp.uint32(2), zero, zero + jnp.uint32(1)]
    words = jax.lax.optimization_barrier(philox4x32(block, key))
    odd = draws % jnp.uint32(2) == 1
    return jnp.where(odd, words[2], words[0]), jnp.where(odd, words[3], words[1])


def below(words: Words, bounds: Words) -> Words:
    """Words as integers below their bounds: the high word of the product."""
    return multiply_words(words, bounds)[0]
