"""`negative_edges`: pairs of nodes that no edge joins, drawn under `jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from jaxgnn._core import checks
from jaxgnn.graph import Graph, graph_argument

NegativeMethod = Literal["uniform", "structured", "degree"]

_METHODS = ("uniform", "structured", "degree")
_ROUNDS = 32
"""The draws of a place: of a graph with a tenth of all edges, all fail with probability 1e-32."""

_Ends = tuple[Int[Array, " num"], Int[Array, " num"]]


class NegativeEdges(NamedTuple):
    """Pairs of nodes.

    Attributes:
        senders, receivers: int32.
        mask: whether no edge joins them; false where each of 32 draws was an edge.
    """

    senders: Int[Array, " num"]
    receivers: Int[Array, " num"]
    mask: Bool[Array, " num"]


def negative_edges(
    graph: Graph, num: int, key: Shaped[Array, "*key"], method: NegativeMethod = "uniform"
) -> NegativeEdges:
    r"""Draws pairs $(j, i)$ without an edge from $j$ to $i$, and $j \ne i$ on square graphs.

    It runs under `jax.jit`, with another `key` in each step of training. Pairs are drawn, looked up
    by binary search in the receiver's sorted row of senders, and drawn again where they are edges:
    $O(\log E)$ a draw, and no O(E) intermediates. A pair may come twice.

    - `"uniform"`: both ends are drawn uniformly.
    - `"structured"`: the sender is that of an edge, the receiver is drawn uniformly. Where `num` is
      the number of edges, the pair at place `e` has the sender of edge `e`; else edges are drawn.
    - `"degree"`: the ends are those of two edges that are drawn: a sender by its out-degree, a
      receiver by its in-degree. Degrees alone then tell little of what is an edge.

    Args:
        graph: the edges that are known: those of training alone (`transform.link_split`).
        num: number of pairs, from 0.
        key: JAX's random key.
        method: how pairs are drawn.

    Raises:
        TypeError: no `Graph`, number or key.
        ValueError: an unknown method, `num` out of range, nodes that form no pair, or a graph
            without edges where their ends are drawn.

    Source: PyG's `negative_sampling` and `structured_negative_sampling`; by degree: Aiyappa et al.,
    "Implicit degree bias in the link prediction task" (2024).
    """
    graph = graph_argument(graph)
    checks.choice(method, "method", _METHODS)
    num = checks.integer(num, "num", 0, 2**31 - 1)
    key = checks.key(key, "key")
    if num and graph.num_senders * graph.num_receivers <= (1 if graph.is_square else 0):
        raise ValueError(f"graph: expected nodes that form a pair, got {graph}")
    if num and method != "uniform" and graph.num_edges == 0:
        raise ValueError(f"graph: expected edges with method={method!r}, got none")
    if num == 0:
        none = jnp.zeros(0, jnp.int32)
        return NegativeEdges(none, none, jnp.zeros(0, bool))
    with jax.named_scope("jaxgnn.negative_edges"):
        return _drawn(graph, num, _pairs(graph, num, key, method))


def _pairs(
    graph: Graph, num: int, key: Array, method: NegativeMethod
) -> Callable[[Int[Array, ""]], _Ends]:
    """Draws `num` pairs, by the number of the round."""
    first = None
    if method == "structured":
        first = graph.senders
        if num != graph.num_edges:
            first = _ends_of_edges(graph, graph.senders, num, jax.random.fold_in(key, _ROUNDS))

    def draw(number: Int[Array, ""]) -> _Ends:
        one, other = jax.random.split(jax.random.fold_in(key, number))
        if method == "degree":
            senders = _ends_of_edges(graph, graph.senders, num, one)
            return senders, _ends_of_edges(graph, graph.transpose_receivers, num, other)
        senders = first
        if senders is None:
            senders = jax.random.randint(one, (num,), 0, graph.num_senders, jnp.int32)
        # Of the other nodes: those from the sender on move up by one.
        count = graph.num_receivers - graph.is_square
        receivers = jax.random.randint(other, (num,), 0, count, jnp.int32)
        if graph.is_square:
            receivers = receivers + (receivers >= senders).astype(jnp.int32)
        return senders, receivers

    return draw


def _ends_of_edges(
    graph: Graph, ends: Int[Array, " num_edges"], num: int, key: Array
) -> Int[Array, " num"]:
    edges = jax.random.randint(key, (num,), 0, graph.num_edges, graph.row_offsets.dtype)
    return ends[edges]


def _drawn(graph: Graph, num: int, draw: Callable[[Int[Array, ""]], _Ends]) -> NegativeEdges:
    def is_free(senders: Array, receivers: Array) -> Bool[Array, " num"]:
        free = ~_has_edge(graph, senders, receivers)
        return free & (senders != receivers) if graph.is_square else free

    def again(carry: tuple[Array, NegativeEdges]) -> Array:
        number, pairs = carry
        return (number < _ROUNDS) & ~pairs.mask.all()

    def step(carry: tuple[Array, NegativeEdges]) -> tuple[Array, NegativeEdges]:
        number, pairs = carry
        senders, receivers = draw(number)
        senders = jnp.where(pairs.mask, pairs.senders, senders)
        receivers = jnp.where(pairs.mask, pairs.receivers, receivers)
        return number + 1, NegativeEdges(senders, receivers, is_free(senders, receivers))

    none = jnp.zeros(num, jnp.int32)
    start = jnp.int32(0), NegativeEdges(none, none, jnp.zeros(num, bool))
    return jax.lax.while_loop(again, step, start)[1]


def _has_edge(
    graph: Graph, senders: Int[Array, " num"], receivers: Int[Array, " num"]
) -> Bool[Array, " num"]:
    """Whether the graph has an edge from a sender to a receiver: by binary search in its row."""
    if graph.num_edges == 0:
        return jnp.zeros(senders.shape, bool)
    begin, end = graph.row_offsets[receivers], graph.row_offsets[receivers + 1]

    def halve(_: int, limits: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = limits
        middle = low + (high - low) // 2
        # An empty range may end at the last edge: the place is clipped, and nothing moves.
        below = (graph.senders.at[middle].get(mode="clip") < senders) & (low < high)
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    low, _ = jax.lax.fori_loop(0, graph.num_edges.bit_length(), halve, (begin, end))
    return (low < end) & (graph.senders.at[low].get(mode="clip") == senders)
