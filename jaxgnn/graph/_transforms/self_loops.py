"""Self-loops, added and removed."""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Shaped

from jaxgnn.graph._build import csr
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._transforms.host_edges import Values, Weighted, edge_numbers, host_edges, rebuild


def add_self_loops(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    fill_value: float | None = None,
) -> Weighted:
    """Adds a self-loop to every node, also to one that has a loop already.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`); those of the
    new loops are `fill_value`, 1 if not given.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular, the weights are not of its edges, or there is a
            `fill_value` without weights.
    """
    _, _, values = host_edges(graph, weights, square=True)
    every = np.ones(graph.num_edges, bool), np.ones(graph.num_receivers, bool)
    return _append_loops(graph, values, *every, fill_value)


def add_remaining_self_loops(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    fill_value: float | None = None,
) -> Weighted:
    """Gives every node exactly one self-loop: its own last one, or a new one.

    Of several self-loops at a node the last one's weight stays: PyG's rule, of
    `torch_geometric.utils.add_remaining_self_loops`.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`); those of the
    new loops are `fill_value`, 1 if not given.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular, the weights are not of its edges, or there is a
            `fill_value` without weights.
    """
    senders, receivers, values = host_edges(graph, weights, square=True)
    keep = senders != receivers
    loops = np.flatnonzero(~keep)
    at = receivers[loops]
    # The last loop of each node: edges are sorted, so a node's loops are adjacent.
    keep[loops[np.append(at[1:] != at[:-1], True)[: loops.size]]] = True
    missing = np.ones(graph.num_receivers, bool)
    missing[at] = False
    del senders, receivers, loops, at
    return _append_loops(graph, values, keep, missing, fill_value)


def remove_self_loops(
    graph: Graph, weights: Shaped[ArrayLike, "num_edges ..."] | None = None
) -> Weighted:
    """Removes every self-loop.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
        ValueError: the graph is rectangular, or the weights are not of its edges.
    """
    senders, receivers, values = host_edges(graph, weights, square=True)
    keep = np.flatnonzero(senders != receivers)
    return rebuild(graph, senders[keep], receivers[keep], values, keep)


def _append_loops(
    graph: Graph,
    values: Values | None,
    keep: np.ndarray,
    missing: np.ndarray,
    fill_value: float | None,
) -> Weighted:
    """The edges of the mask `keep`, then a loop at each node of the mask `missing`."""
    if values is None and fill_value is not None:
        raise ValueError(f"fill_value: expected weights with it, got {fill_value}")
    nodes = np.flatnonzero(missing).astype(np.int32)
    return rebuild(
        graph,
        np.concatenate([np.asarray(graph.senders)[keep], nodes]),
        np.concatenate([csr.row_ids(np.asarray(graph.row_offsets))[keep], nodes]),
        values,
        np.concatenate([edge_numbers(graph.num_edges)[keep], np.full(nodes.size, -1, np.int32)]),
        1.0 if fill_value is None else fill_value,
    )
