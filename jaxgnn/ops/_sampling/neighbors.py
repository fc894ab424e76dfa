"""Sampled neighbors of nodes that draw themselves where they have none."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.ops._sampling.drawn_rows import (
    drawn_neighbors,
    drawn_rows,
    is_drawn,
    sums_rows,
)
from jaxgnn.ops._sampling.gather import gather_nodes
from jaxgnn.ops._sampling.rows import taken_counts
from jaxgnn.ops._sampling.sample import Places, Sample, arguments
from jaxgnn.ops._sampling.sampled_edges import list_edges
from jaxgnn.ops._sampling.sampled_spmm import aggregate_places

Aggregation = Literal["mean", "sum", "max"]

_GATHERED_NUMBERS = 1 << 24
"""The most numbers that a reduction over listed neighbors gathers at once."""


class Draw(NamedTuple):
    """How neighbors are drawn and reduced; static."""

    aggr: Aggregation
    replace: bool


class Operands(NamedTuple):
    """The graph, its weights, and which nodes have no neighbors."""

    graph: Graph
    weights: Float[Array, " num_edges"] | None
    isolated: Bool[Array, " num_nodes"]


def operands(graph: Graph, weights: Float[Array, " num_edges"] | None) -> Operands:
    return Operands(graph, weights, graph.in_degrees == 0)


def isolated_rows(given: Operands, nodes: Int[Array, " places"]) -> Int[Array, " places"]:
    """The nodes without neighbors, -1 for the others."""
    alone = given.isolated.at[jnp.maximum(nodes, 0)].get(mode="clip")
    return jnp.where(alone & (nodes >= 0), nodes, -1)


class Nodes(NamedTuple):
    """Nodes that draw `size` neighbors each, by a key and their places among others.

    Attributes:
        nodes: int32, out of range for none.
        first: the place of the first of them; places count modulo $2^{32}$.
    """

    nodes: Int[Array, " places"]
    first: UInt32[Array, ""]
    key: Array
    size: int


def _sample(draw: Draw, graph: Graph, at: Nodes) -> tuple[Sample, Places]:
    sample, places = arguments(graph, at.size, None, "random", at.key, draw.replace, at.nodes)
    return sample, places._replace(ids=at.first + jnp.arange(places.count, dtype=jnp.uint32))


def draw_neighbors(
    draw: Draw, given: Operands, at: Nodes
) -> tuple[Int[Array, "places size"], Float[Array, "places size"] | None]:
    """The neighbors, -1 where a node has fewer, and the weights of their edges."""
    graph = given.graph
    sample, places = _sample(draw, graph, at)

    def by_edges(places: Places, given: Operands, nodes: Array) -> tuple[Array, Array | None]:
        number = jnp.arange(at.size, dtype=jnp.int32)[None]
        alone = isolated_rows(given, nodes)[:, None]
        itself = alone if draw.replace else jnp.where(number == 0, alone, -1)
        if graph.num_edges == 0:
            return jnp.broadcast_to(itself, (nodes.shape[0], at.size)), None
        edges, _ = list_edges(sample, places)
        drawn = jnp.where(edges >= 0, places.graph.senders[jnp.maximum(edges, 0)], itself)
        if given.weights is None:
            return drawn, None
        weights = gather_nodes(edges, given.weights[:, None])[..., 0]
        return drawn, jnp.where(edges >= 0, weights, jnp.ones((), weights.dtype))

    if given.weights is not None or not is_drawn(sample):
        return by_edges(places, given, at.nodes)

    def otherwise(places: Places, nodes: Array, given: Operands) -> Array:
        return by_edges(places, given, nodes)[0]

    return drawn_neighbors(sample, places, at.nodes, at.first, otherwise, given), None


def aggregate_drawn(
    draw: Draw,
    drawn: Int[Array, "places size"],
    weights: Float[Array, "places size"] | None,
    values: Float[Array, "places size width"],
) -> Float[Array, "places width"]:
    """The reduction of a value for each neighbor drawn, in the accumulation dtype."""
    values = values.astype(accumulation_dtype(values.dtype))
    there = (drawn >= 0)[..., None]
    if weights is not None:
        values = values * weights[..., None].astype(values.dtype)
    if draw.aggr == "max":
        largest = jnp.max(jnp.where(there, values, -jnp.inf), axis=1)
        return jnp.where(jnp.any(there, axis=1), largest, 0)
    total = jnp.sum(jnp.where(there, values, 0), axis=1)
    if draw.aggr == "sum":
        return total
    return total / jnp.maximum(jnp.sum(there, axis=1), 1).astype(values.dtype)


def reduced_dtype(draw: Draw, weighted: bool, dtype: DTypeLike) -> DTypeLike:
    """Of reduced rows: `dtype`, but float16 has no room for sums and products with weights."""
    leaves_range = dtype == jnp.float16 and (weighted or draw.aggr == "sum")
    return accumulation_dtype(dtype) if leaves_range else dtype


def aggregate_sampled(
    draw: Draw,
    given: Operands,
    x: Float[Array, "num_nodes width"],
    at: Nodes,
) -> Float[Array, "places width"]:
    """`aggregate_drawn` of the rows of `x`, in `reduced_dtype`. Sums and means never list the
    neighbors' rows, but with weights in float16."""
    dtype = reduced_dtype(draw, given.weights is not None, x.dtype)
    if draw.aggr == "max" or (dtype != x.dtype and given.weights is not None):
        drawn, weights = draw_neighbors(draw, given, at)
        return _by_blocks(draw, drawn, weights, x, dtype)
    sample, places = _sample(draw, given.graph, at)
    if dtype != x.dtype:
        # The sum is in range only after the conversion.
        mean = aggregate_sampled(draw._replace(aggr="mean"), given, x, at).astype(dtype)
        if draw.replace:
            return mean * at.size
        return mean * jnp.maximum(taken_counts(sample, places), 1).astype(dtype)[:, None]
    normalize = "mean" if draw.aggr == "mean" else None
    times = at.size if draw.replace and draw.aggr == "sum" else 1

    def by_list(places: Places, nodes: Array, x: Array, given: Operands) -> Array:
        out = aggregate_places(sample, places, x, given.weights, normalize)
        # Out of range for all others, whose rows the gather does not read.
        itself = gather_nodes(isolated_rows(given, nodes), x)
        return out + itself * jnp.asarray(times, x.dtype)

    if given.weights is not None or not sums_rows(sample, x):
        return by_list(places, at.nodes, x, given)
    return drawn_rows(sample, places, at.nodes, at.first, x, draw.aggr, by_list, given)


def _by_blocks(
    draw: Draw,
    drawn: Int[Array, "places size"],
    weights: Float[Array, "places size"] | None,
    x: Float[Array, "num_nodes width"],
    dtype: DTypeLike,
) -> Float[Array, "places width"]:
    """`aggregate_drawn`, block by block of places, so that the gathered rows stay few."""
    places, size = drawn.shape
    block = max(1, _GATHERED_NUMBERS // max(1, size * x.shape[1]))

    @jax.checkpoint
    def one(block: tuple[Array, Array | None]) -> Array:
        nodes, factors = block
        return aggregate_drawn(draw, nodes, factors, gather_nodes(nodes, x)).astype(dtype)

    if places <= block:
        return one((drawn, weights))
    extra = -places % block
    drawn = jnp.pad(drawn, ((0, extra), (0, 0)), constant_values=-1).reshape(-1, block, size)
    if weights is not None:
        weights = jnp.pad(weights, ((0, extra), (0, 0))).reshape(-1, block, size)
    out = jax.lax.map(one, (drawn, weights))
    return out.reshape(-1, x.shape[1])[:places]
