"""From nodes to edges and back: the incidence map and its transpose, closed under derivatives."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.kernels import reduce_rows
from jaxgnn.ops._core.degree import divide_by_degree
from jaxgnn.ops._core.rows import edges_of


class EdgeEnd(NamedTuple):
    """Which end of the edges, and whether to divide by the number of edges there."""

    sender: bool
    mean: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def broadcast_to_edges(
    end: EdgeEnd, graph: Graph, x: Float[Array, "nodes width"]
) -> Float[Array, "num_edges width"]:
    """Copies each node's row to its edges, divided by their number if `end.mean`."""
    if end.mean:
        x = divide_by_degree(graph, "senders" if end.sender else "receivers", x)
    return x[graph.senders if end.sender else graph.receivers]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def reduce_to_nodes(
    end: EdgeEnd, graph: Graph, data: Float[Array, "num_edges width"]
) -> Float[Array, "nodes width"]:
    """Sums the rows of each node's edges, or takes their mean if `end.mean`."""
    rows = edges_of(graph, by_sender=end.sender)
    return reduce_rows(rows, data[:, None, :], None, "mean" if end.mean else "sum")[:, 0, :]


def _broadcast_fwd(end, graph, x):
    return broadcast_to_edges(end, graph, x), graph


def _broadcast_bwd(end, graph, cotangent):
    return None, reduce_to_nodes(end, graph, cotangent)


def _reduce_fwd(end, graph, data):
    return reduce_to_nodes(end, graph, data), graph


def _reduce_bwd(end, graph, cotangent):
    return None, broadcast_to_edges(end, graph, cotangent)


broadcast_to_edges.defvjp(_broadcast_fwd, _broadcast_bwd)
reduce_to_nodes.defvjp(_reduce_fwd, _reduce_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def reduce_extremum_to_nodes(
    how: tuple[EdgeEnd, str], graph: Graph, data: Float[Array, "num_edges width"]
) -> Float[Array, "nodes width"]:
    """Elementwise `"max"` or `"min"` of the rows of each node's edges; 0 where there are none."""
    end, reduce = how
    rows = edges_of(graph, by_sender=end.sender)
    return reduce_rows(rows, data[:, None, :], None, reduce)[:, 0, :]


def _reduce_extremum_fwd(how, graph, data):
    out = reduce_extremum_to_nodes(how, graph, data)
    return out, (graph, data, out)


def _reduce_extremum_bwd(how, residuals, cotangent):
    graph, data, out = residuals
    end = EdgeEnd(how[0].sender)
    dtype = accumulation_dtype(data.dtype)
    attained = data == jax.lax.stop_gradient(broadcast_to_edges(end, graph, out))
    ties = jnp.maximum(reduce_to_nodes(end, graph, attained.astype(dtype)), jnp.ones((), dtype))
    shares = (cotangent.astype(dtype) / ties).astype(cotangent.dtype)
    return None, jnp.where(
        attained, broadcast_to_edges(end, graph, shares), jnp.zeros((), data.dtype)
    )


reduce_extremum_to_nodes.defvjp(_reduce_extremum_fwd, _reduce_extremum_bwd)
