"""Dropout by a counter-based generator: what is kept is computed from a key and never stored.

`common/philox.h` computes the same words, so that kernels and this agree bit by bit.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt, UInt32

from jaxgnn.ops._core import checks
from jaxgnn.ops._core.philox import key_words, philox4x32


def arguments(rate: Any, dropout_rng: Any) -> tuple[int, UInt32[Array, " 2"] | None]:
    """The `threshold` of an operation's `dropout_rate`, and the words of its `dropout_rng` (`None`
    without dropout).

    Raises:
        TypeError: the rate is no number, or the key is none.
        ValueError: the rate is out of range, or there is one and no key.
    """
    rate = checks.number(rate, "dropout_rate", 0, 1)
    if rate == 0:
        return 0, None
    if dropout_rng is None:
        raise ValueError(f"dropout_rng: expected a JAX key with dropout_rate={rate}, got None")
    return threshold(rate), key_words(checks.key(dropout_rng, "dropout_rng"))


def threshold(rate: float) -> int:
    """Words below this are dropped: the rate in steps of $2^{-32}$."""
    return min(round(rate * 2**32), 2**32 - 1)


def keep_factors(
    philox_key: UInt32[Array, " 2"],
    first: int,
    edges: int,
    heads: int,
    drop_below: int,
    dtype: DTypeLike,
) -> Float[Array, "edges heads"]:
    r"""0 where an edge's weight is dropped, else $1 / (1 - p)$ with $p$ = `drop_below` $/ 2^{32}$.

    Args:
        philox_key: the key.
        first: index of the first edge.
        edges, heads: their counts.
        drop_below: as `threshold` gives it.
        dtype: of the result.
    """
    dtype = jnp.dtype(dtype)
    scale = jnp.asarray(keep_scale(drop_below), dtype)
    kept = dropout_words(philox_key, first, edges, heads) >= jnp.uint32(drop_below)
    return jnp.where(kept, scale, jnp.zeros((), dtype))


def keep_scale(drop_below: int) -> float:
    """What the kept are multiplied by, so that the mean stays."""
    return 2**32 / (2**32 - drop_below)


def keep_factors_at(
    philox_key: UInt32[Array, " 2"],
    columns: UInt[Array, "rows k"],
    drop_below: int,
    dtype: DTypeLike,
) -> Float[Array, "rows k"]:
    """`keep_factors` of a matrix with rows for edges and columns for heads, at some columns of each
    row alone."""
    shape, dtype = columns.shape, jnp.dtype(dtype)
    columns = columns.astype(jnp.uint32)
    low, high = _halves(0, shape[0])
    block = columns // jnp.uint32(4)
    counter = [jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape), block]
    drawn = philox4x32([*counter, jnp.zeros_like(block)], philox_key)
    lane = columns % jnp.uint32(4)
    word = drawn[3]
    for i in range(3):
        word = jnp.where(lane == jnp.uint32(i), drawn[i], word)
    scale = jnp.asarray(keep_scale(drop_below), dtype)
    return jnp.where(word >= jnp.uint32(drop_below), scale, jnp.zeros((), dtype))


# One program outside `jax.jit` too, which would compile each of some sixty operations by itself.
@functools.partial(jax.jit, static_argnames=("first", "edges", "heads"))
def dropout_words(
    philox_key: UInt32[Array, " 2"], first: int, edges: int, heads: int
) -> UInt32[Array, "edges heads"]:
    """The random word of each edge and head: word `head % 4` of the block of four that Philox
    makes of the counter (edge's low half, edge's high half, `head // 4`, 0)."""
    blocks = -(-heads // 4)
    low, high = _halves(first, edges)
    block = jnp.arange(blocks, dtype=jnp.uint32)[None, :]
    shape = (edges, blocks)
    counter = [jnp.broadcast_to(c, shape) for c in (low, high, block, jnp.zeros_like(block))]
    # Fused into what follows, all rounds would be compiled and run again for each use of a word.
    drawn = jax.lax.optimization_barrier(philox4x32(counter, philox_key))
    return jnp.stack(drawn, axis=-1).reshape(edges, 4 * blocks)[:, :heads]


def _halves(first: int, count: int) -> tuple[UInt32[Array, "count 1"], UInt32[Array, "count 1"]]:
    """The low and the high words of consecutive numbers."""
    wide = first + count > 2**32  # so many need 64-bit types anyway
    number = jnp.arange(count, dtype=jnp.uint64 if wide else jnp.uint32) + jnp.asarray(
        first, jnp.uint64 if wide else jnp.uint32
    )
    low = number.astype(jnp.uint32)[:, None]
    return low, (number >> 32).astype(jnp.uint32)[:, None] if wide else jnp.zeros_like(low)
