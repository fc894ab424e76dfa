r"""Transforms of a graph and its edge weights, and features of nodes and edges from the graph.

They run on the host, once, outside `jax.jit`. Each takes `(graph, weights)` with the weights in
the graph's edge order, not the user's (`Graph.sort_edge_data`), `[E]` or `[E, ...]`, and returns
`(graph, weights)`; no weights stay none. `edge_permutation` of the result still names the user's
edges: -1 for an edge that a transform added, the first of them for one that it merged. Weights may
be traced, and are differentiable; the graph may not be traced. Features (`degree_features`,
`laplacian_pe`, `random_walk_pe`, `cartesian`, `distance`) are NumPy arrays.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from jaxgnn._core.arguments import check_fill_value
from jaxgnn._core.checks import choice
from jaxgnn._core.device import device_array
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import _csr, _edge_data, _edge_list, _ordered_sum
from jaxgnn.graph._argument import graph_argument
from jaxgnn.graph._edge_data import Reduce
from jaxgnn.graph._encodings import degree_features, laplacian_pe, random_walk_pe
from jaxgnn.graph._geometry import cartesian, distance, radius_graph
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._links import LinkPart, LinkSplit, link_split

__all__ = [
    "LinkPart",
    "LinkSplit",
    "add_remaining_self_loops",
    "add_self_loops",
    "cartesian",
    "coalesce",
    "degree_features",
    "distance",
    "gcn_norm",
    "laplacian_pe",
    "largest_component",
    "link_split",
    "mean_weights",
    "permute_nodes",
    "radius_graph",
    "random_walk_pe",
    "remove_self_loops",
    "reorder",
    "subgraph",
    "to_undirected",
]

Values = Any  # a NumPy array on the host, or a traced one of JAX
Weighted = tuple[Graph, Shaped[Array, "num_edges ..."] | None]


# Self-loops.


def add_self_loops(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    fill_value: float = 1.0,
) -> Weighted:
    """Adds a self-loop of weight `fill_value` to every node, also to one that has a loop already.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        ValueError: the graph is rectangular, or the weights are not of its edges.
    """
    _, _, values = _host(graph, weights, square=True)
    every = np.ones(graph.num_edges, bool), np.ones(graph.num_receivers, bool)
    return _append_loops(graph, values, *every, fill_value)


def add_remaining_self_loops(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    fill_value: float = 1.0,
) -> Weighted:
    """Gives every node exactly one self-loop: its own last one, or a new one of `fill_value`.

    Of several self-loops at a node the last one's weight stays: PyG's rule, of
    `torch_geometric.utils.add_remaining_self_loops`.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        ValueError: the graph is rectangular, or the weights are not of its edges.
    """
    senders, receivers, values = _host(graph, weights, square=True)
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
        ValueError: the graph is rectangular, or the weights are not of its edges.
    """
    senders, receivers, values = _host(graph, weights, square=True)
    keep = np.flatnonzero(senders != receivers)
    return _rebuild(graph, senders[keep], receivers[keep], values, keep)


def _append_loops(
    graph: Graph,
    values: Values | None,
    keep: np.ndarray,
    missing: np.ndarray,
    fill_value: float,
) -> Weighted:
    """The edges of the mask `keep`, then a loop at each node of the mask `missing`."""
    nodes = np.flatnonzero(missing).astype(np.int32)
    return _rebuild(
        graph,
        np.concatenate([np.asarray(graph.senders)[keep], nodes]),
        np.concatenate([_csr.row_ids(np.asarray(graph.row_offsets))[keep], nodes]),
        values,
        np.concatenate([_edge_numbers(graph.num_edges)[keep], np.full(nodes.size, -1, np.int32)]),
        fill_value,
    )


# Merging and symmetry.


def coalesce(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    reduce: Reduce = "sum",
) -> Weighted:
    """Merges repeated edges into one, of the sum (mean, largest, smallest) of their weights.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        ValueError: unknown `reduce`, or the weights are not of the graph's edges.
    """
    senders, receivers, values = _host(graph, weights)
    return _coalesce(graph, senders, receivers, values, _edge_numbers(senders.size), reduce)


def to_undirected(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    reduce: Reduce = "sum",
) -> Weighted:
    """Adds the reverse of every edge, then merges repeated edges.

    PyG's rule, of `torch_geometric.utils.to_undirected`: with `reduce="sum"`, two edges that
    are each other's reverse both get the sum of their weights, and a self-loop twice its own.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        ValueError: unknown `reduce`, the graph is rectangular, or the weights are not of its
            edges.
    """
    senders, receivers, values = _host(graph, weights, square=True)
    edges = _edge_numbers(senders.size)
    return _coalesce(
        graph,
        np.concatenate([senders, receivers]),
        np.concatenate([receivers, senders]),
        values,
        np.concatenate([edges, edges]),
        reduce,
    )


def _coalesce(
    graph: Graph,
    senders: np.ndarray,
    receivers: np.ndarray,
    values: Values | None,
    sources: np.ndarray,
    reduce: Reduce,
) -> Weighted:
    """Merges equal edges; edge number e carries the weight `values[sources[e]]`."""
    choice(reduce, "reduce", _edge_data.REDUCTIONS)
    csr = _csr.build(senders, receivers, **_counts(graph))
    order = csr.edge_permutation
    assert order is not None
    rows = _csr.row_ids(csr.row_offsets)
    first = _csr.first_of_equal(csr.senders, rows)
    starts = np.flatnonzero(first)
    bare = dataclasses.replace(graph, edge_positions=None, merges_edges=True)
    result, _ = _rebuild(bare, csr.senders[starts], rows[starts], None, sources[order[starts]])
    if values is None:
        return result, None
    if isinstance(values, Tracer):
        groups = np.cumsum(first) - 1
        return result, _edge_data.merge_rows(values[sources[order]], groups, starts.size, reduce)[0]
    merge = _merged if jnp.issubdtype(values.dtype, jnp.floating) else _merged_integers
    return result, device_array(merge(values[sources[order]], starts, reduce))


def _merged(values: np.ndarray, starts: np.ndarray, reduce: Reduce) -> np.ndarray:
    """The reduction of each group, of which `starts` has the first place."""
    if starts.size == values.shape[0]:
        return values
    # bfloat16 and float16 are summed in float32.
    narrow = jnp.issubdtype(values.dtype, jnp.floating) and values.dtype.itemsize < 4
    wide = values.astype(np.float32) if narrow else values
    counts = np.diff(np.append(starts, values.shape[0]))
    if reduce in ("max", "min"):
        merged = (np.maximum if reduce == "max" else np.minimum).reduceat(wide, starts, axis=0)
    else:
        merged = _sum_in_order(wide, starts, counts)
    if reduce == "mean":
        merged = merged / counts.reshape(-1, *[1] * (values.ndim - 1)).astype(merged.dtype)
    return merged.astype(values.dtype)


def _sum_in_order(values: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum of each group from its first row on; `np.add.reduceat` adds in pairs."""
    sums = values[starts]
    groups, place = np.arange(starts.size), 1
    while (groups := groups[counts[groups] > place]).size:
        sums[groups] += values[starts[groups] + place]
        place += 1
    return sums


def _merged_integers(values: np.ndarray, starts: np.ndarray, reduce: Reduce) -> np.ndarray:
    """The same of integers and booleans: means in float32, else integers of at least 32 bits."""
    # No mean of integers is an integer, and NumPy's sum of booleans is "or".
    if reduce == "mean":
        return _merged(values.astype(np.float32), starts, reduce)
    wide = values.dtype.itemsize == 8
    dtype = jax.dtypes.canonicalize_dtype(np.int64) if wide else np.dtype(np.int32)
    limits, sums = np.iinfo(dtype), np.iinfo(np.int64)
    merged = _merged(values.astype(np.int64), starts, reduce)
    outside = values[values > sums.max]
    if not outside.size:
        outside = merged[(merged < limits.min) | (merged > limits.max)]
    if outside.size:
        raise ValueError(f"weights: expected results that {dtype} holds, got {outside[0]}")
    return merged.astype(dtype)


# Normalization.


def gcn_norm(
    graph: Graph,
    weights: Float[ArrayLike, "num_edges ..."] | None = None,
    *,
    improved: bool = False,
    add_self_loops: bool = True,
    fill_value: float | None = None,
) -> tuple[Graph, Float[Array, "num_edges ..."]]:
    r"""The GCN's symmetric normalization, after adding the remaining self-loops.

    $$ w'_{ij} = d_j^{-1/2} \, w_{ij} \, d_i^{-1/2}, \qquad d_i = \sum_j w_{ij} $$

    over the edges from $j$ to $i$: in a directed graph too, both ends are normalized by their
    weighted *in*-degree, and a degree of 0 gives 0. PyG 2.8's rule, of
    `torch_geometric.nn.conv.gcn_conv.gcn_norm`.

    Args:
        graph: a square graph.
        weights: of the edges, in the graph's edge order, not the user's (`Graph.sort_edge_data`);
            ones if not given. Integers become float32.
        improved: the added loops weigh 2, not 1 ($\hat A = A + 2 I$). Only if `weights` are
            given: without, PyG makes the loops of weight 1 too, and so does this.
        add_self_loops: `add_remaining_self_loops` first.
        fill_value: weight of the added loops, in any case.

    Raises:
        ValueError: the graph is rectangular, or the weights are not of its edges.

    Source: Kipf and Welling, "Semi-supervised classification with graph convolutional
    networks", ICLR 2017.
    """
    values = _host(graph, weights, square=True)[2]
    if fill_value is None:
        fill_value = 2.0 if improved and values is not None else 1.0
    if values is None:
        values = np.ones(graph.num_edges, np.float32)
    elif not jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(np.float32)
    if add_self_loops:
        graph, looped = add_remaining_self_loops(graph, values, fill_value=fill_value)
        assert looped is not None
        values = looped if isinstance(looped, Tracer) else np.asarray(looped)
    if isinstance(values, Tracer):
        return graph, _gcn_normalized(graph, values)
    normalized = _csr.gcn_normalize(
        np.asarray(graph.row_offsets), np.asarray(graph.senders), values
    )
    return graph, device_array(normalized)


def _gcn_normalized(graph: Graph, weights: Array) -> Array:
    """`_csr.gcn_normalize` of traced weights, summed in the accumulation dtype."""
    senders, receivers, _ = _host(graph, None)
    wide = weights.astype(accumulation_dtype(weights.dtype))
    degrees = _ordered_sum.sum_rows(wide, receivers, graph.num_receivers)
    # The inner `where` keeps the derivative at degree 0 finite.
    isolated = degrees == 0
    scale = jax.lax.rsqrt(jnp.where(isolated, jnp.ones_like(degrees), degrees))
    scale = jnp.where(isolated, jnp.zeros_like(scale), scale)
    terms = _ordered_sum.take_rows(scale, senders) * wide * _ordered_sum.take_rows(scale, receivers)
    return terms.astype(weights.dtype)


def mean_weights(graph: Graph) -> Float[Array, " num_edges"]:
    """The weight 1 / in-degree of its receiver for each edge, float32.

    `spmm(graph, x, mean_weights(graph))` is the mean over the neighbors.
    """
    _, receivers, _ = _host(graph, None)
    degrees = np.diff(np.asarray(graph.row_offsets))
    inverse = np.float32(1) / np.maximum(degrees, 1).astype(np.float32)
    return device_array(inverse[receivers])


# Node order.


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
        ValueError: the graph is rectangular, or an unknown method.

    Source: Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM 1969.
    """
    senders, _, _ = _host(graph, None, square=True)
    if method == "degree":
        degrees = np.diff(np.asarray(graph.row_offsets))
        permutation = np.argsort(-degrees, kind="stable")
    elif method == "rcm" and not senders.size:
        permutation = np.arange(graph.num_receivers)
    elif method == "rcm":
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
    else:
        raise ValueError(f"method: expected 'rcm' or 'degree', got {method!r}")
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
        ValueError: the graph is rectangular, `permutation` is none of its nodes, or the weights
            are not of its edges.
    """
    senders, receivers, values = _host(graph, weights, square=True)
    permutation = _edge_list.as_indices(permutation, "permutation")
    nodes = np.arange(graph.num_receivers, dtype=np.int32)
    if not np.array_equal(np.sort(permutation), nodes):
        raise ValueError(
            f"permutation: expected each of 0 to {graph.num_receivers - 1} once, got others "
            f"(shape {permutation.shape})"
        )
    new = np.empty_like(nodes)
    new[permutation] = nodes
    return _rebuild(graph, new[senders], new[receivers], values, _edge_numbers(senders.size))


# Parts of a graph.


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
        ValueError: the graph is rectangular, `nodes` are none of it, or the weights are not of its
            edges.
    """
    senders, receivers, values = _host(graph, weights, square=True)
    chosen = np.asarray(nodes)
    if chosen.dtype == np.bool_ and chosen.shape == (graph.num_receivers,):
        chosen = np.flatnonzero(chosen)
    chosen = _edge_list.as_indices(chosen, "nodes")
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
    return _rebuild(graph, *ends, values, keep, counts={"num_nodes": chosen.size})


def largest_component(graph: Graph) -> tuple[Graph, Int[np.ndarray, " kept"]]:
    """The weakly connected component with the most nodes; of several, that of the lowest node.

    PyG's `LargestConnectedComponents`.

    Returns:
        The graph, and the old number of each of its nodes, ascending. What belongs to nodes
        follows as `features[nodes]`; weights by `subgraph(graph, nodes, weights)`.

    Raises:
        ValueError: the graph is rectangular.
    """
    import scipy.sparse.csgraph

    _host(graph, None, square=True)
    _, component = scipy.sparse.csgraph.connected_components(graph.to_scipy(), connection="weak")
    nodes = np.flatnonzero(component == np.bincount(component).argmax()) if component.size else []
    nodes = np.asarray(nodes, np.int32)
    return subgraph(graph, nodes)[0], nodes


# Between the device and the host.


def _host(
    graph: Graph, weights: Any, *, square: bool = False
) -> tuple[np.ndarray, np.ndarray, Values | None]:
    """Senders, receivers and weights in NumPy, checked; weights that are traced stay so."""
    graph = graph_argument(graph)
    if square and not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got the rectangular {graph}")
    if isinstance(graph.senders, Tracer):
        raise TypeError(
            "graph: transforms run outside jax.jit, on the graph itself; give its result to the "
            "jitted function"
        )
    receivers = _csr.row_ids(np.asarray(graph.row_offsets))
    senders = np.asarray(graph.senders)
    if weights is None:
        return senders, receivers, None
    if hasattr(weights, "__jax_array__"):
        weights = jnp.asarray(weights)
    values = weights if isinstance(weights, Tracer) else np.asarray(weights)
    if values.ndim == 0 or values.shape[0] != graph.num_edges:
        raise ValueError(
            f"weights: expected one for each of the {graph.num_edges} edges, "
            f"got the shape {values.shape}"
        )
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        values = values.astype(jax.dtypes.canonicalize_dtype(np.float64), copy=False)
    return senders, receivers, values


def _edge_numbers(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32 if size < 2**31 else np.int64)


def _counts(graph: Graph) -> dict[str, Any]:
    if graph.is_square:
        return {"num_nodes": graph.num_receivers}
    return {"num_senders": graph.num_senders, "num_receivers": graph.num_receivers}


def _rebuild(
    graph: Graph,
    senders: np.ndarray,
    receivers: np.ndarray,
    values: Values | None,
    sources: np.ndarray,
    fill_value: float = 1.0,
    *,
    counts: dict[str, Any] | None = None,
) -> Weighted:
    """Graph of new edges between the same nodes, or between as many as `counts` says.

    `sources[e]` is the old edge that the new edge e comes from, or -1; weights and the user's
    edge numbers are taken from there.
    """
    csr = _csr.build(senders, receivers, **(counts or _counts(graph)))
    order = csr.edge_permutation
    assert order is not None
    sources = sources[order]
    added = sources < 0
    users = positions = None
    if graph.edge_permutation is not None:
        users = _take(np.asarray(graph.edge_permutation), sources, added, -1)
    if graph.edge_positions is not None:
        new = np.full(graph.num_edges + 1, -1, order.dtype)  # the last place is that of none
        new[sources[~added]] = np.flatnonzero(~added)
        positions = new[np.asarray(graph.edge_positions)]
    result = Graph._from_host(
        csr._replace(
            edge_permutation=users,
            edge_positions=positions,
            num_input_edges=graph.num_input_edges,
            merges_edges=graph.merges_edges,
        )
    )
    if values is None:
        return result, None
    taken = _take(values, sources, added, fill_value)
    return result, device_array(taken) if isinstance(taken, np.ndarray) else taken


def _take(values: Any, sources: np.ndarray, added: np.ndarray, fill_value: float) -> Any:
    """`values[sources]`, and `fill_value` where `added`."""
    if not added.any():
        return values[sources]
    check_fill_value(fill_value, values.dtype)
    if isinstance(values, Tracer):
        result = jnp.full((sources.size, *values.shape[1:]), fill_value, values.dtype)
        return result.at[np.flatnonzero(~added)].set(values[sources[~added]], unique_indices=True)
    result = np.full((sources.size, *values.shape[1:]), fill_value, values.dtype)
    result[~added] = values[sources[~added]]
    return result
