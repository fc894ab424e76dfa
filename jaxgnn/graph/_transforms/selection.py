"""Nodes in another order, and graphs of some of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import ArrayLike, Bool, Int, Shaped

from jaxgnn._core.checks import choice, host_array
from jaxgnn.graph._build import edge_list
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._transforms.host_edges import Weighted, edge_numbers, host_edges, rebuild


def reorder(
    graph: Graph, method: Literal["rcm", "degree"] = "rcm"
) -> tuple[Graph, Int[np.ndarray, " num_nodes"]]:
    """Reorders the nodes so that nodes that are read together are close in memory.

    `"rcm"` is the reverse Cuthill–McKee order (of the graph made undirected): neighbors get
    near numbers. `"degree"` puts the nodes that most edges end at first.

    Returns:
        The graph, and the old number of each new node. What belongs to nodes follows as
        `features[permutation]`, `labels[permutation]`; weights, if there are any yet, by
        `permute_nodes(graph, permutation, weights)`.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular, or an unknown method.

    Source: Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM 1969.
    """
    choice(method, "method", ("rcm", "degree"))
    senders, _, _ = host_edges(graph, None, square=True)
    if method == "degree":
        degrees = np.diff(np.asarray(graph.row_offsets))
        permutation = np.argsort(-degrees, kind="stable")
    elif not senders.size:
        permutation = np.arange(graph.num_receivers)
    else:
        import scipy.sparse
        import scipy.sparse.csgraph

        size = (graph.num_receivers, graph.num_receivers)
        ones = np.ones(senders.size, bool)
        adjacency = scipy.sparse.csr_array(
            (ones, np.array(graph.senders), np.array(graph.row_offsets)), shape=size
        )
        reverse = scipy.sparse.csr_array(
            (ones, np.array(graph.transpose_receivers), np.array(graph.transpose_row_offsets)),
            shape=size,
        )
        permutation = scipy.sparse.csgraph.reverse_cuthill_mckee(
            scipy.sparse.csr_array(adjacency + reverse), symmetric_mode=True
        )
    permutation = permutation.astype(np.int32)
    return permute_nodes(graph, permutation)[0], permutation


def permute_nodes(
    graph: Graph,
    permutation: Int[ArrayLike, " num_nodes"],
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
) -> Weighted:
    """Renumbers the nodes: the new node $i$ is the old node `permutation[i]`.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular, `permutation` is none of its nodes, or the weights
            are not of its edges.
    """
    senders, receivers, values = host_edges(graph, weights, square=True)
    permutation = edge_list.as_indices(permutation, "permutation")
    nodes = np.arange(graph.num_receivers, dtype=np.int32)
    if not np.array_equal(np.sort(permutation), nodes):
        raise ValueError(
            f"permutation: expected each of 0 to {graph.num_receivers - 1} once, got others "
            f"(shape {permutation.shape})"
        )
    new = np.empty_like(nodes)
    new[permutation] = nodes
    return rebuild(graph, new[senders], new[receivers], values, edge_numbers(senders.size))


def subgraph(
    graph: Graph,
    nodes: Int[ArrayLike, " kept"] | Bool[ArrayLike, " num_nodes"],
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
) -> Weighted:
    """The edges among some nodes: the new node $i$ is the old node `nodes[i]`.

    PyG's `torch_geometric.utils.subgraph` with `relabel_nodes=True`. What belongs to nodes follows
    as `features[nodes]`. `weights` are in the graph's edge order, not the user's
    (`Graph.sort_edge_data`).

    Args:
        graph: a square graph.
        nodes: different numbers of nodes, or a mask of them.
        weights: of the edges.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular, `nodes` are none of it, or the weights are not of its
            edges.
    """
    senders, receivers, values = host_edges(graph, weights, square=True)
    edge_list.check_concrete(nodes, "nodes")
    chosen = host_array(nodes, "nodes")
    if chosen.dtype == np.bool_ and chosen.shape == (graph.num_receivers,):
        chosen = np.flatnonzero(chosen)
    chosen = edge_list.as_indices(chosen, "nodes")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < graph.num_receivers:
        raise ValueError(
            f"nodes: expected numbers from 0 to {graph.num_receivers - 1}, got {chosen.min()} to "
            f"{chosen.max()}"
        )
    new = np.full(graph.num_receivers, -1, np.int32)
    new[chosen] = np.arange(chosen.size, dtype=np.int32)
    if np.count_nonzero(new >= 0) != chosen.size:
        raise ValueError("nodes: expected different numbers, got one of them twice")
    keep = np.flatnonzero((new[senders] >= 0) & (new[receivers] >= 0))
    ends = new[senders[keep]], new[receivers[keep]]
    return rebuild(graph, *ends, values, keep, counts={"num_nodes": chosen.size})


def largest_component(graph: Graph) -> tuple[Graph, Int[np.ndarray, " kept"]]:
    """The weakly connected component with the most nodes; of several, that of the lowest node.

    PyG's `LargestConnectedComponents`.

    Returns:
        The graph, and the old number of each of its nodes, ascending. What belongs to nodes
        follows as `features[nodes]`; weights by `subgraph(graph, nodes, weights)`.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular.
    """
    import scipy.sparse.csgraph

    host_edges(graph, None, square=True)
    _, component = scipy.sparse.csgraph.connected_components(graph.to_scipy(), connection="weak")
    nodes = np.flatnonzero(component == np.bincount(component).argmax()) if component.size else []
    nodes = np.asarray(nodes, np.int32)
    return subgraph(graph, nodes)[0], nodes
