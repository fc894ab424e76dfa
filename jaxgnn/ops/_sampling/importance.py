"""Weights of edges by which important neighbors are drawn more often."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._core import checks

Importance = Literal["degree", "fastgcn"]
IMPORTANCES = ("degree", "fastgcn")


@jax.named_scope("jaxgnn.importance_weights")
def importance_weights(graph: Graph, kind: Importance) -> Float[Array, " num_edges"]:
    r"""A weight for each edge, for the `weights` of `sample_neighbors` and `NeighborLoader`.

    All edges of a sender $j$ have the same weight:

    - `"degree"`: the in-degree of $j$. A sender without neighbors has the weight 0 and is never
      drawn.
    - `"fastgcn"`: $q(j) = \lVert \hat A_{:j} \rVert^2 / \sum_{j'} \lVert \hat A_{:j'} \rVert^2$,
      where $\hat A = \tilde D^{-1/2} \tilde A \tilde D^{-1/2}$ is GCN's: $\tilde A$ has a self-loop
      at each node, $\tilde D$ its in-degrees. FastGCN draws a layer's nodes by $q$, here each node
      draws its own neighbors. Each of several edges between two nodes counts as an entry.

    Args:
        graph: a square graph.
        kind: `"degree"` or `"fastgcn"`.

    Returns:
        float32 `[num_edges]`, in the graph's edge order. They depend on the graph alone: compute
        them once.

    Raises:
        TypeError: `graph` is no `Graph`.
        ValueError: a rectangular graph, or another `kind`.

    Source: Chen et al., "FastGCN" (ICLR 2018), algorithm 2.
    """
    checks.graph_argument(graph)
    checks.choice(kind, "kind", IMPORTANCES)
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    if graph.num_edges == 0:
        return jnp.zeros(0, jnp.float32)
    importance = graph.in_degrees.astype(jnp.float32)
    if kind == "fastgcn":
        importance = _column_norms(graph)
        importance = importance / jnp.sum(importance)
    return importance[graph.senders]


def _column_norms(graph: Graph) -> Float[Array, " num_nodes"]:
    """The squared norm of each column of the normalized adjacency."""
    assert graph.self_loops is not None
    added = (graph.self_loops == 0).astype(jnp.float32)
    inverse = 1 / (graph.in_degrees.astype(jnp.float32) + added)
    over_receivers = spmm(graph.transpose(), inverse[:, None])[:, 0]
    return inverse * (over_receivers + added * inverse)
