"""Weights of edges by which important neighbors are drawn more often."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._core import checks
from jaxgnn.ops._sampling.sample import ALL
from jaxgnn.ops._sampling.walks import MOST_STEPS, visit_shares

Importance = Literal["degree", "fastgcn", "walks"]
IMPORTANCES = ("degree", "fastgcn", "walks")


@jax.named_scope("jaxgnn.importance_weights")
def importance_weights(
    graph: Graph,
    kind: Importance,
    *,
    key: Array | None = None,
    num_walks: int | None = None,
    walk_length: int | None = None,
    restart: float | None = None,
    impl: Impl = None,
) -> Float[Array, " num_edges"]:
    r"""A weight for each edge, for the `weights` of `sample_neighbors` and `NeighborLoader`.

    By two kinds all edges of a sender $j$ have the same weight:

    - `"degree"`: the in-degree of $j$. A sender without neighbors has the weight 0 and is never
      drawn.
    - `"fastgcn"`: $q(j) = \lVert \hat A_{:j} \rVert^2 / \sum_{j'} \lVert \hat A_{:j'} \rVert^2$,
      where $\hat A = \tilde D^{-1/2} \tilde A \tilde D^{-1/2}$ is GCN's: $\tilde A$ has a self-loop
      at each node, $\tilde D$ its in-degrees. FastGCN draws a layer's nodes by $q$, here each node
      draws its own neighbors. Each of several edges between two nodes counts as an entry.

    The third is PinSAGE's importance, by random walks:

    - `"walks"`: of the visits of walks from the receiver $i$ to its own senders, the share of $j$,
      so that the weights of a row with a visit sum to 1. A walk goes against the edges, from a
      receiver to the sender of one of its edges, all alike. It begins at $i$ and ends after
      `walk_length` steps, before any step but the first with the probability `restart`, and at a
      node without neighbors; the next begins at $i$ again. Nodes that are no neighbors of $i$ count
      for nothing, as they have no edge to it. Repeated edges have equal parts of their sender's
      share. A sender that no walk visits has the weight 0 and is never drawn.

    Args:
        graph: a square graph.
        kind: `"degree"`, `"fastgcn"` or `"walks"`.
        key: a JAX key; of `"walks"` alone, as all that follow are.
        num_walks: walks from each node, 100 by default. More of them reach more neighbors, and
            the weights vary less from key to key.
        walk_length: the most steps of a walk, 3 by default; `num_walks * walk_length` is at most
            $2^{24}$.
        restart: a probability below 1, 0.5 by default. After one step (`walk_length=1`, or
            `restart` near 1) all edges of a node are alike; longer walks prefer neighbors that
            many short paths lead to.
        impl: as for `sampled_spmm`.

    Returns:
        float32 `[num_edges]`, in the graph's edge order; of `"walks"` in steps of $2^{-24}$,
        rounded down, the same bits on all platforms. They depend on the graph and the key alone:
        compute them once. The walks take O(nodes · walks · steps) draws, each with a binary search
        in a row, and a number for each edge.

    Raises:
        TypeError: `graph` is no `Graph`, or an argument has a wrong type.
        ValueError: a rectangular graph, another `kind`, a number out of range, `"walks"` without a
            key, or a key or a number with another kind.

    Source: Chen et al., "FastGCN" (ICLR 2018), algorithm 2; Ying et al., "Graph convolutional
    neural networks for web-scale recommender systems" (PinSAGE, KDD 2018), section 3.1. DGL's
    `PinSAGESampler` has the same walks, and takes the most visited nodes, neighbors or not.
    """
    checks.graph_argument(graph)
    checks.choice(kind, "kind", IMPORTANCES)
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    options = {"num_walks": num_walks, "walk_length": walk_length, "restart": restart}
    with config.use(impl=chosen(impl)):
        if kind == "walks":
            return _by_walks(graph, key, **options)
        for name, value in options.items():
            if value is not None:
                raise ValueError(f"{name}: expected None with kind={kind!r}, got {value!r}")
        if key is not None:
            raise ValueError(f"key: expected None with kind={kind!r}, which draws nothing")
        if graph.num_edges == 0:
            return jnp.zeros(0, jnp.float32)
        importance = graph.in_degrees.astype(jnp.float32)
        if kind == "fastgcn":
            importance = _column_norms(graph)
            importance = importance / jnp.sum(importance)
        return importance[graph.senders]


def _by_walks(
    graph: Graph, key: Any, num_walks: Any, walk_length: Any, restart: Any
) -> Float[Array, " num_edges"]:
    if key is None:
        raise ValueError("key: expected a JAX key with kind='walks', got None")
    key = checks.key(key, "key")
    walks = _number(num_walks, "num_walks", 100)
    length = _number(walk_length, "walk_length", 3)
    if walks * length > MOST_STEPS:
        raise ValueError(
            f"num_walks: expected at most 2^24 steps in all, got {walks} walks of {length}"
        )
    ends = checks.number(0.5 if restart is None else restart, "restart", 0, 1)
    if graph.num_edges == 0:
        return jnp.zeros(0, jnp.float32)
    graph, key = ffi.unify_varying(graph, key)
    return visit_shares(graph, key, walks, length, int(ends * ALL))


def _number(value: Any, name: str, default: int) -> int:
    return default if value is None else checks.integer(value, name, 1, MOST_STEPS)


def _column_norms(graph: Graph) -> Float[Array, " num_nodes"]:
    """The squared norm of each column of the normalized adjacency."""
    assert graph.self_loops is not None
    added = (graph.self_loops == 0).astype(jnp.float32)
    inverse = 1 / (graph.in_degrees.astype(jnp.float32) + added)
    over_receivers = spmm(graph.transpose(), inverse[:, None])[:, 0]
    return inverse * (over_receivers + added * inverse)
