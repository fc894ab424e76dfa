"""Which edges a sample takes, in JAX: on platforms without kernels, and as their reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.ops._core.philox import multiply_words
from jaxgnn.ops._sampling.alias import edges_by_alias
from jaxgnn.ops._sampling.draws import Words, below, draw_pairs, draw_words
from jaxgnn.ops._sampling.sample import ALL, Places, Sample
from jaxgnn.ops._sampling.smallest import smallest_edges
from jaxgnn.ops._sampling.weighted import edges_by_sums


def edges_taken(sample: Sample, degrees: Int[Array, " places"]) -> Int[Array, " places"]:
    r"""How many edges a row of $d$ takes: $\min(S, \lceil r d \rceil)$, $S$ with replacement."""
    if sample.replace:
        return jnp.where(degrees > 0, sample.size, 0).astype(jnp.int32)
    share = degrees
    if sample.rate < ALL:
        high, low = multiply_words(degrees.astype(jnp.uint32), sample.rate)
        share = (high + (low > 0).astype(jnp.uint32)).astype(jnp.int32)
    return jnp.minimum(share, jnp.int32(sample.size))


def sample_edges(
    sample: Sample,
    places: Places,
    begins: Int[Array, " places"],
    degrees: Int[Array, " places"],
    senders: Int[Array, " num_edges"],
    offsets: Int[Array, " places+1"],
    num_edges: int,
    capacity: int,
) -> Int[Array, " capacity"]:
    """The edges of each place, from its offset on; what they leave free holds `num_edges`."""
    key, ids = places.key, places.ids
    if ids is None:
        ids = jnp.arange(degrees.shape[0], dtype=jnp.uint32)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    place = csr_row_ids(offsets, capacity, impl="jax")
    # Edges of weight 0 have no room.
    rows_taken = jnp.minimum(edges_taken(sample, degrees), jnp.diff(offsets))
    taken, d = rows_taken[place], degrees[place].astype(jnp.uint32)
    number = slots - offsets[place]
    valid = (number < taken) & (slots < offsets[-1])
    j = jnp.where(valid, number, 0).astype(jnp.uint32)
    d = jnp.maximum(d, jnp.uint32(1))
    if sample.replace:
        assert key is not None
        if places.weights is None:
            edge = below(draw_words(ids[place], j, key), d)
        elif sample.strategy == "alias":
            pairs = draw_pairs(ids[place], j, key)
            edge = edges_by_alias(places.weights, begins[place], d, pairs)
        else:
            words = draw_words(ids[place], j, key)
            edge = edges_by_sums(places.weights, begins[place], d, words)
    else:
        if sample.strategy in ("labor", "weighted"):
            smallest = smallest_edges(sample, places, begins, degrees, senders, ids)
            edge = smallest[place, jnp.minimum(j, jnp.uint32(sample.size - 1))]
        elif sample.strategy == "random":
            assert key is not None
            taken_edges = _floyd(sample, degrees, key, ids)
            edge = taken_edges[place, jnp.minimum(j, jnp.uint32(sample.size - 1))]
        else:
            first, step = _steps(sample, degrees, key, ids)
            edge = _step_to(first[place], step[place], j, d)
        edge = jnp.where(taken.astype(jnp.uint32) == d, j, edge)
    edges = begins[place] + edge.astype(begins.dtype)
    return jnp.where(valid, edges, jnp.asarray(num_edges, begins.dtype))


def kept_edges(
    sample: Sample, row_offsets: Int[Array, " rows+1"], key: UInt32[Array, " 2"], num_edges: int
) -> Bool[Array, " edges"]:
    """Which edges `"dropedge"` keeps."""
    if sample.rate == ALL:
        return jnp.ones(num_edges, bool)
    row = csr_row_ids(row_offsets, num_edges, impl="jax")
    number = jnp.arange(num_edges, dtype=row_offsets.dtype) - row_offsets[row]
    words = draw_words(row.astype(jnp.uint32), number.astype(jnp.uint32), key)
    return words < jnp.uint32(sample.rate)


def _steps(
    sample: Sample, degrees: Int[Array, " places"], key: Array | None, ids: Words
) -> tuple[Words, Words]:
    """Edge j of a row is (first + step j) mod d."""
    d = jnp.maximum(degrees, 1).astype(jnp.uint32)
    zero = jnp.zeros_like(d)
    if sample.strategy == "bucket":
        return zero, zero + jnp.uint32(1)
    if sample.strategy == "fastrand":
        return zero, jnp.uint32(577) % d
    if key is None:
        golden, _ = multiply_words(d, 40503 << 16)
        return zero, _coprime_from(golden + jnp.uint32(1), d) % d
    first = below(draw_words(ids, zero, key), d)
    start = below(draw_words(ids, zero + jnp.uint32(1), key), d - jnp.uint32(1))
    return first, _coprime_from(start + jnp.uint32(1), d) % d


def _coprime_from(start: Words, d: Words) -> Words:
    """The first number from `start` on that has no common divisor with d."""

    def divides(a: Words) -> Bool[Array, "*shape"]:
        return jnp.gcd(a.astype(jnp.int32), d.astype(jnp.int32)) != 1

    return jax.lax.while_loop(
        lambda a: jnp.any(divides(a)), lambda a: a + divides(a).astype(jnp.uint32), start
    )


def _step_to(first: Words, step: Words, j: Words, d: Words) -> Words:
    """(first + step j) mod d without a 64-bit product: one bit of j after the other."""

    def double(i: Int[Array, ""], product: Words) -> Words:
        product = (product + product) % d
        bit = (j >> (30 - i).astype(jnp.uint32)) & jnp.uint32(1)
        return jnp.where(bit == 1, (product + step) % d, product)

    product = jax.lax.fori_loop(0, 31, double, jnp.zeros_like(j))
    return (product + first) % d


def _floyd(
    sample: Sample, degrees: Int[Array, " places"], key: UInt32[Array, " 2"], ids: Words
) -> UInt32[Array, "places size"]:
    """Floyd's algorithm: for j = d - k ... d - 1 a number below j + 1, or j if that is taken.

    Source: Bentley and Floyd, "A sample of brilliance" (Communications of the ACM 30, 1987).
    """
    taken = edges_taken(sample, degrees)
    number = jnp.arange(sample.size, dtype=jnp.uint32)[None]
    last = (degrees - taken).astype(jnp.uint32)[:, None] + number
    shape = last.shape
    draws = jnp.broadcast_to(ids[:, None], shape), jnp.broadcast_to(number, shape)
    drawn = below(draw_words(*draws, key), last + jnp.uint32(1))

    def take(i: Int[Array, ""], edges: Words) -> Words:
        seen = jnp.any((edges == drawn[:, i][:, None]) & (number < i.astype(jnp.uint32)), axis=1)
        return edges.at[:, i].set(jnp.where(seen, last[:, i], drawn[:, i]))

    return jax.lax.fori_loop(0, sample.size, take, jnp.zeros_like(drawn))
