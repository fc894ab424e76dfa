"""The edges of each row whose words are the smallest, in JAX: LABOR's, or those that win a race."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from jaxgnn.ops._sampling.draws import draw_words
from jaxgnn.ops._sampling.race import NEVER, race_times
from jaxgnn.ops._sampling.sample import Places, Sample

_CHUNK = 64


def smallest_edges(
    sample: Sample,
    places: Places,
    begins: Int[Array, " places"],
    degrees: Int[Array, " places"],
    senders: Int[Array, " num_edges"],
    ids: UInt32[Array, " places"],
) -> UInt32[Array, "places size"]:
    """The numbers in the row, ascending, of the `size` edges with the smallest words.

    Of equal words the first are taken; where a row has too few, `NEVER` follows. Rows are read in
    chunks, all at once: the time is that of the longest.
    """
    key = places.key
    assert key is not None
    of_chunk = jnp.arange(max(_CHUNK, sample.size), dtype=jnp.int32)
    longest = jnp.max(degrees, initial=0)

    def words_of(numbers: Int[Array, "places chunk"]) -> UInt32[Array, "places chunk"]:
        edges = jnp.minimum(begins[:, None] + numbers.astype(begins.dtype), senders.shape[0] - 1)
        if sample.strategy == "labor":
            nodes = senders[edges].astype(jnp.uint32)
            return draw_words(nodes, jnp.zeros_like(nodes), key)
        assert places.weights is not None
        of_row = jnp.broadcast_to(ids[:, None], numbers.shape)
        words = draw_words(of_row, numbers.astype(jnp.uint32), key)
        return race_times(words, places.weights[edges])

    def read(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, words, taken = state
        numbers = jnp.broadcast_to(first + of_chunk, (degrees.shape[0], of_chunk.shape[0]))
        inside = numbers < degrees[:, None]
        found = jnp.where(inside, words_of(numbers), jnp.uint32(NEVER))
        if sample.strategy != "labor":
            inside = inside & (found != jnp.uint32(NEVER))
        numbers = jnp.where(inside, numbers.astype(jnp.uint32), jnp.uint32(NEVER))
        both = jnp.concatenate([words, found], 1), jnp.concatenate([taken, numbers], 1)
        words, taken = jax.lax.sort(both, dimension=1, num_keys=2)
        return first + of_chunk.shape[0], words[:, : sample.size], taken[:, : sample.size]

    # Varying as the operands are, so that the loop's types agree.
    none = jnp.full((degrees.shape[0], sample.size), NEVER, jnp.uint32)
    none = none | (degrees * 0).astype(jnp.uint32)[:, None]
    first = (longest * 0).astype(jnp.int32)
    _, _, taken = jax.lax.while_loop(lambda state: state[0] < longest, read, (first, none, none))
    return jnp.sort(taken, axis=1)
