r"""The pair of maps that aggregation is made of, and that differentiate into each other.

$(x, w) \mapsto A_w x$ is linear in the features and in the weights. Its derivative for $x$ is the
transpose $A_w^T$, and for $w$ the dot product of both ends' features at each edge, whose own
derivatives are $A$ and $A^T$ again. Derivatives of every order therefore run on two kernels.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.kernels import dot_rows, reduce_rows
from jaxgnn.ops._core.degree import End, divide_by_degree
from jaxgnn.ops._core.rows import in_row_order, neighbours


class LinearMap(NamedTuple):
    """Which linear map: $A$ or its transpose, divided by the degrees of one end for a mean.

    Attributes:
        transpose: sums over the receivers of each sender.
        divide: the end by whose number of edges to divide. If the sums run at that end they
            become means; if not, the operand is divided first (the adjoint of a mean).
    """

    transpose: bool
    divide: End | None = None

    def adjoint(self) -> LinearMap:
        return LinearMap(not self.transpose, self.divide)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def aggregate(
    linear_map: LinearMap,
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    """The weighted sum or mean over neighbours; linear in `x` and in `weights`."""
    rows = neighbours(graph, transpose=linear_map.transpose)
    at_rows = "senders" if linear_map.transpose else "receivers"
    if linear_map.divide != at_rows:
        x = divide_by_degree(graph, linear_map.divide, x)
    reduce = "mean" if linear_map.divide == at_rows else "sum"
    return reduce_rows(rows, x, in_row_order(rows, weights), reduce)


def _aggregate_fwd(linear_map, graph, x, weights):
    # x is needed for the weights' gradient alone.
    residuals = (graph, None if weights is None else x, weights)
    return aggregate(linear_map, graph, x, weights), residuals


def _aggregate_bwd(linear_map, residuals, cotangent):
    graph, x, weights = residuals
    dx = aggregate(linear_map.adjoint(), graph, cotangent, weights)
    if weights is None:
        return None, dx, None
    # The end that the degrees belong to is the same for the map and its adjoint.
    at_receivers, at_senders = (x, cotangent) if linear_map.transpose else (cotangent, x)
    if linear_map.divide == "receivers":
        at_receivers = divide_by_degree(graph, linear_map.divide, at_receivers)
    elif linear_map.divide == "senders":
        at_senders = divide_by_degree(graph, linear_map.divide, at_senders)
    return None, dx, edge_dot(graph, at_receivers, at_senders)


aggregate.defvjp(_aggregate_fwd, _aggregate_bwd)


@jax.custom_vjp
def edge_dot(
    graph: Graph,
    at_receivers: Float[Array, "num_receivers heads width"],
    at_senders: Float[Array, "num_senders heads width"],
) -> Float[Array, "num_edges heads"]:
    """`sddmm` in the accumulation dtype; bilinear."""
    return dot_rows(neighbours(graph, transpose=False), at_receivers, at_senders)


def _edge_dot_fwd(graph, at_receivers, at_senders):
    return edge_dot(graph, at_receivers, at_senders), (graph, at_receivers, at_senders)


def _edge_dot_bwd(residuals, cotangent):
    graph, at_receivers, at_senders = residuals
    to_receivers = aggregate(LinearMap(transpose=False), graph, at_senders, cotangent)
    to_senders = aggregate(LinearMap(transpose=True), graph, at_receivers, cotangent)
    return None, to_receivers, to_senders


edge_dot.defvjp(_edge_dot_fwd, _edge_dot_bwd)
