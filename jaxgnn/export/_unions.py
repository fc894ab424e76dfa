"""A union of graphs as the flat arrays that an exported program takes, always of the same shapes.

The program's unions have one graph more than those that it serves: the last one, of padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.data.files.limits import DataError
from jaxgnn.graph import Graph, batch
from jaxgnn.graph._build.device_csr import membership_graph, square_graph
from jaxgnn.graph.batch import GraphBatch

ARRAYS = ("senders", "receivers", "graph_ids")
"""The arrays of a portable program; the padding nodes' graph is the last."""

_PARTS = ("graph", "membership", "node_mask", "edge_mask", "graph_mask")


def padded_union(union: GraphBatch, num_nodes: int, num_edges: int, num_graphs: int) -> GraphBatch:
    """The union with these counts and a padding graph, whose arrays have shapes and static fields
    that they alone decide.

    Raises:
        DataError: it is rectangular, or too large.
    """
    graph = union.graph
    if not graph.is_square:
        raise DataError(f"graphs: expected one set of nodes each, got {graph}")
    if not fits(graph.num_receivers, graph.num_edges, num_nodes, num_edges):
        raise DataError(
            f"graphs: expected at most {num_nodes - 1:,} nodes and {num_edges:,} edges, got "
            f"{graph.num_receivers:,} and {graph.num_edges:,}"
        )
    if union.num_graphs > num_graphs:
        raise DataError(f"graphs: expected at most {num_graphs:,}, got {union.num_graphs:,}")
    # Nodes are added to the first graph that is: it shall be the last one of all.
    whole = batch.pad(union, num_graphs=num_graphs)
    whole = batch.pad(whole, num_nodes=num_nodes, num_edges=num_edges, num_graphs=num_graphs + 1)
    # What depends on the graphs' values would make a program of its own.
    graph = dataclasses.replace(whole.graph.drop_edge_permutation(), symmetric=False)
    membership = whole.membership.drop_edge_permutation()
    return dataclasses.replace(
        whole, graph=graph, membership=membership, sender_membership=membership
    )


def fits(nodes: int, edges: int, num_nodes: int, num_edges: int) -> bool:
    """Whether a union goes into a program's: padding edges run between padding nodes."""
    return edges <= num_edges and (nodes < num_nodes or (nodes, edges) == (num_nodes, num_edges))


def packed(
    graphs: Sequence[Graph], num_nodes: int, num_edges: int, num_graphs: int
) -> Iterator[Sequence[Graph]]:
    """The graphs in order, as many at a time as a program takes; one that it does not, alone."""
    first = nodes = edges = 0
    for i, graph in enumerate(graphs):
        more = nodes + graph.num_receivers, edges + graph.num_edges
        if i > first and (i - first == num_graphs or not fits(*more, num_nodes, num_edges)):
            yield graphs[first:i]
            first, more = i, (graph.num_receivers, graph.num_edges)
        nodes, edges = more
    if len(graphs) > first:
        yield graphs[first:]


def names_and_arrays(union: GraphBatch, portable: bool) -> tuple[tuple[str, ...], list[Array]]:
    """The arrays of a padded union, by name."""
    if portable:
        sizes = np.diff(np.asarray(union.membership.row_offsets))
        ids = np.repeat(np.arange(union.num_graphs, dtype=np.int32), sizes)
        return ARRAYS, [union.graph.senders, union.graph.receivers, jnp.asarray(ids)]
    parts = {name: getattr(union, name) for name in _PARTS}
    found = jax.tree_util.tree_leaves_with_path(parts)
    names = tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found)
    return names, [leaf for _, leaf in found]


def structure_of(union: GraphBatch) -> Any:
    """What `union_of_arrays` needs beside the arrays of `names_and_arrays`."""
    return jax.tree.structure({name: getattr(union, name) for name in _PARTS})


def union_of_arrays(structure: Any, arrays: Sequence[Any], num_graphs: int) -> GraphBatch:
    """The union of a program's arrays, under `jit`; `num_graphs` without the padding graph."""
    parts = structure.unflatten(arrays)
    return _union(parts, num_graphs)


def union_of_edges(arrays: Sequence[Any], num_graphs: int) -> GraphBatch:
    """The union of sorted senders and receivers and the graph of each node, under `jit`."""
    senders, receivers, graph_ids = arrays
    nodes = graph_ids.shape[0]

    def offsets(ids: Any, count: int) -> Any:
        bounds = np.arange(count + 1, dtype=np.int32)
        return jnp.searchsorted(ids, bounds).astype(np.int32)

    membership = membership_graph(offsets(graph_ids, num_graphs + 1), graph_ids, None)
    node_mask = graph_ids < num_graphs
    parts = {
        "graph": square_graph(offsets(receivers, nodes), senders, receivers, None),
        "membership": membership,
        "node_mask": node_mask,
        "edge_mask": node_mask[receivers],
        "graph_mask": jnp.arange(num_graphs + 1) < num_graphs,
    }
    return _union(parts, num_graphs)


def _union(parts: dict[str, Any], num_graphs: int) -> GraphBatch:
    return GraphBatch(
        **parts,
        sender_membership=parts["membership"],
        sender_mask=parts["node_mask"],
        num_graphs=num_graphs + 1,
    )
