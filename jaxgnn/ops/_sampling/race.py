"""The random times of an exponential race in integer arithmetic: what `common/race.h` computes.

Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (IPL 97, 2006).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from jaxgnn.ops._core.philox import multiply_words
from jaxgnn.ops._sampling.draws import Words

ZERO_WEIGHT = -(2**31)
"""In place of the logarithm of a weight."""
NEVER = 2**32 - 1
"""The time of an edge that is not to be drawn."""
_COEFFICIENTS = (
    2622565,
    -7439714,
    11859376,
    -7141373,
    8247566,
    8492879,
    24393858,
    64529947,
    193635715,
    774541000,
)
_ONE = 1 << 23

Logs = Int32[Array, "*shape"]


def fixed_log2(x: Words) -> Logs:
    r"""$\log_2 x$ in steps of $2^{-23}$, of $x \ne 0$."""
    zeros = jax.lax.clz(x)
    value = -(x << zeros)
    below = multiply_words(value, _log_ratio(value))[0] >> 6
    return (32 - zeros.astype(jnp.int32)) * _ONE - below.astype(jnp.int32)


def race_times(words: Words, log_weights: Logs) -> Words:
    """When edges of these logarithms of weights arrive, as numbers in the order of the times."""
    u = ~words | jnp.uint32(1)
    zeros = jax.lax.clz(u)
    value = -(u << zeros)
    ratio = _log_ratio(value)
    late = (zeros << 26) + (multiply_words(value, ratio)[0] >> 3)
    # Close to u = 1 the time is small: it is scaled, not to lose its digits.
    scale = jax.lax.clz(value)
    early = multiply_words(value << scale, ratio)[0]
    is_early = zeros == 0
    steps = jnp.where(is_early, 29 + scale.astype(jnp.int32), 26) * _ONE
    times = fixed_log2(jnp.where(is_early, early, late)) - steps - log_weights
    ordered = jax.lax.bitcast_convert_type(times, jnp.uint32) ^ jnp.uint32(1 << 31)
    return jnp.where(log_weights == ZERO_WEIGHT, jnp.uint32(NEVER), ordered)


def _log_ratio(value: Words) -> Words:
    r"""$-\log_2(1 - v) / v$ in steps of $2^{-29}$ for $v$ = `value` / $2^{32} \le 1/2$."""
    x = jnp.where(value < jnp.uint32(1 << 31), value << 1, jnp.uint32(2**32 - 1))
    total = jnp.zeros_like(x)
    for coefficient in _COEFFICIENTS:
        high = multiply_words(total, x)[0] - jnp.where(total >> 31 == 1, x, jnp.uint32(0))
        total = high + jnp.uint32(coefficient % 2**32)
    return total
