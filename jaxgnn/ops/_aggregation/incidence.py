"""From nodes to edges and back: the incidence map and its transpose, and extrema of edges."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import Multilinear, is_zero, linear_call
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.kernels import reduce_rows
from jaxgnn.ops._core.degree import divide_by_degree
from jaxgnn.ops._core.rows import edges_of, ends_of


class EdgeEnd(NamedTuple):
    """Which end of the edges, and whether to divide by the number of edges there."""

    sender: bool
    mean: bool = False


def _broadcast(
    end: EdgeEnd, graph: Graph, x: Float[Array, "nodes width"]
) -> Float[Array, "num_edges width"]:
    if end.mean:
        x = divide_by_degree(graph, "senders" if end.sender else "receivers", x)
    return x[ends_of(graph, senders=end.sender)]


def _reduce(
    end: EdgeEnd, graph: Graph, data: Float[Array, "num_edges width"]
) -> Float[Array, "nodes width"]:
    rows = edges_of(graph, by_sender=end.sender)
    return reduce_rows(rows, data[:, None, :], None, "mean" if end.mean else "sum")[:, 0, :]


broadcast_to_edges = Multilinear(_broadcast, (lambda *arguments: reduce_to_nodes(*arguments),))
"""`broadcast_to_edges(end, graph, x)`: each node's row to its edges, divided for a mean."""

reduce_to_nodes = Multilinear(_reduce, (broadcast_to_edges,))
"""`reduce_to_nodes(end, graph, data)`: the sum of the rows of each node's edges, or their mean."""


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def reduce_extremum_to_nodes(
    static: tuple[EdgeEnd, str], graph: Graph, data: Float[Array, "num_edges width"]
) -> Float[Array, "nodes width"]:
    """Elementwise `"max"` or `"min"` of the rows of each node's edges; 0 where there are none."""
    end, reduce = static
    rows = edges_of(graph, by_sender=end.sender)
    return reduce_rows(rows, data[:, None, :], None, reduce)[:, 0, :]


@functools.partial(reduce_extremum_to_nodes.defjvp, symbolic_zeros=True)
def _reduce_extremum_jvp(static, primals, tangents):
    graph, data = primals
    out = reduce_extremum_to_nodes(static, *primals)
    if is_zero(tangents[1]):
        return out, jnp.zeros_like(out)
    end = EdgeEnd(static[0].sender)
    residuals = jax.lax.stop_gradient((graph, data, out))
    function, transpose = functools.partial(_mean_of_ties, end), functools.partial(_share, end)
    return out, linear_call(function, transpose, residuals, tangents[1], out)


def _mean_of_ties(end: EdgeEnd, residuals: tuple[Graph, Array, Array], tangent: Array) -> Array:
    """The mean of the tangents of the edges that attained the extremum."""
    graph, data, _ = residuals
    attained, ties = _attained(end, *residuals)
    total = reduce_to_nodes(end, graph, jnp.where(attained, tangent, jnp.zeros((), data.dtype)))
    return (total.astype(ties.dtype) / ties).astype(data.dtype)


def _share(end: EdgeEnd, residuals: tuple[Graph, Array, Array], cotangent: Array) -> Array:
    """Equal shares of a node's cotangent for the edges that attained the extremum."""
    graph, data, _ = residuals
    attained, ties = _attained(end, *residuals)
    shares = (cotangent.astype(ties.dtype) / ties).astype(cotangent.dtype)
    return jnp.where(attained, broadcast_to_edges(end, graph, shares), jnp.zeros((), data.dtype))


def _attained(end: EdgeEnd, graph: Graph, data: Array, out: Array) -> tuple[Array, Array]:
    """Which edges attained the extremum, and how many at each node, at least 1."""
    attained = data == broadcast_to_edges(end, graph, out)
    counts = reduce_to_nodes(end, graph, attained.astype(accumulation_dtype(data.dtype)))
    return attained, jnp.maximum(counts, jnp.ones((), counts.dtype))
