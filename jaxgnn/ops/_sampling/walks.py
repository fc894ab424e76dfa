"""How often random walks from each node visit the neighbors that it has."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from jaxgnn._core import ffi
from jaxgnn.graph import Graph
from jaxgnn.ops._core.philox import key_words
from jaxgnn.ops._sampling.draws import draw_words
from jaxgnn.ops._sampling.sample import ALL, Places, Sample
from jaxgnn.ops._sampling.sampled_edges import list_edges

MOST_STEPS = 1 << 24
"""The most steps of a node's walks, so that shares of them are divided in words of 32 bits."""

_ONE_EDGE = Sample("random", 1, ALL, replace=True)


def visit_shares(
    graph: Graph, key: Array, num_walks: int, walk_length: int, ends_below: int
) -> Float[Array, " num_edges"]:
    r"""The share of each edge's sender among the visits of its receiver to its own senders.

    All nodes take a step at once, one walk after the other: memory is that of the nodes and of a
    number for each edge. Counts and shares are integers, so that all platforms have the same bits.

    Args:
        graph: a square graph with edges, whose rows are sorted by sender.
        key: a JAX key.
        num_walks: of each node.
        walk_length: the most steps of a walk.
        ends_below: a walk ends before a step if its word, of 32 bits, is below this.

    Returns:
        float32, multiples of $2^{-24}$. Repeated edges have equal parts of their sender's share.
    """
    counts, totals = _count_visits(graph, key, num_walks, walk_length, ends_below)
    receivers = graph.receivers
    first = _first_edge(graph, receivers, graph.senders)
    repeats = (_first_edge(graph, receivers, graph.senders + 1) - first).astype(jnp.uint32)
    visits = counts[first]
    shares = _quotients(visits, jnp.maximum(totals, 1)[receivers]) // repeats
    # Rounded down, but never to 0 where there was a visit: 0 is never drawn.
    shares = jnp.where(visits > 0, jnp.maximum(shares, 1), 0)
    return shares.astype(jnp.float32) * jnp.float32(2**-24)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _count_visits(
    graph: Graph, key: Array, num_walks: int, walk_length: int, ends_below: int
) -> tuple[UInt32[Array, " num_edges"], UInt32[Array, " num_nodes"]]:
    """Visits to each neighbor, at the first of its edges, and to all neighbors of a node."""
    nodes = jnp.arange(graph.num_nodes, dtype=jnp.int32)
    second = jnp.ones(graph.num_nodes, jnp.uint32)

    def step(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        counts, totals, at = state
        words = key_words(jax.random.fold_in(key, k))
        # Beside the edge's, the first of the same block.
        goes_on = draw_words(nodes.astype(jnp.uint32), second, words) >= jnp.uint32(ends_below)
        at = jnp.where(k % walk_length == 0, nodes, jnp.where(goes_on, at, -1))
        edges, _ = list_edges(_ONE_EDGE, Places(graph, at, words))
        edge = edges[:, 0]
        at = jnp.where(edge >= 0, graph.senders[jnp.maximum(edge, 0)], -1)
        found = _first_edge(graph, nodes, at)
        inside = (at >= 0) & (found < graph.row_offsets[1:])
        visited = inside & (graph.senders.at[found].get(mode="clip") == at)
        counts = counts.at[jnp.where(visited, found, graph.num_edges)].add(1, mode="drop")
        return counts, totals + visited.astype(jnp.uint32), at

    counts = ffi.zeros((graph.num_edges,), jnp.uint32, graph, key)
    totals = ffi.zeros((graph.num_nodes,), jnp.uint32, graph, key)
    at = ffi.zeros((graph.num_nodes,), jnp.int32, graph, key)
    state = jax.lax.fori_loop(0, num_walks * walk_length, step, (counts, totals, at))
    return state[0], state[1]


def _first_edge(
    graph: Graph, receivers: Int[Array, "*shape"], senders: Int[Array, "*shape"]
) -> Int[Array, "*shape"]:
    """The first edge of each receiver whose sender is not below this one, else the row's end."""
    bounds = graph.row_offsets[receivers], graph.row_offsets[receivers + 1]

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        first, end = bounds
        half = first + (end - first) // 2
        below = graph.senders.at[half].get(mode="clip") < senders
        searching = first < end
        return (
            jnp.where(searching & below, half + 1, first),
            jnp.where(searching & ~below, half, end),
        )

    return jax.lax.while_loop(lambda bounds: jnp.any(bounds[0] < bounds[1]), halve, bounds)[0]


def _quotients(
    numerators: UInt32[Array, " edges"], denominators: UInt32[Array, " edges"]
) -> UInt32[Array, " edges"]:
    """The quotients of numbers up to 2^24, none above 1, in steps of 2^-24: eight bits a time."""
    quotients, rest = numerators // denominators, numerators % denominators
    for _ in range(3):
        rest = rest << 8
        quotients = (quotients << 8) | rest // denominators
        rest = rest % denominators
    return quotients
