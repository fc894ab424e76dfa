"""From the nodes of a batch of graphs to one row a graph."""

from __future__ import annotations

from typing import Literal

import jax
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._core import checks


@jax.named_scope("jaxgnn.readout")
def readout(
    membership: Graph,
    x: Float[Array, "num_nodes *features"],
    reduce: Literal["sum", "mean", "max", "min"] = "sum",
    *,
    impl: Impl = None,
) -> Float[Array, "num_graphs *features"]:
    r"""Reduces the features of each graph's nodes (global pooling).

    $$y_g = \mathrm{reduce}_{v \in g} \; x_v$$

    Args:
        membership: the rectangular graph with an edge from each node to its graph, as
            `GraphBatch.membership` has it. Of a vector with the graph of each node it is
            `Graph.from_edges(numpy.arange(num_nodes), vector, num_senders=num_nodes,
            num_receivers=num_graphs)`.
        x: node features.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`; a graph without nodes gets 0.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Raises:
        TypeError: `membership` is no `Graph`, or `x` is not floating.
        ValueError: a shape does not fit, or `reduce` or `impl` is unknown.
    """
    checks.graph_argument(membership, "membership")
    checks.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    return spmm(membership, x, reduce=reduce, impl=impl)
