"""Builds a graph out of sorted edges with JAX's operations: under `jit`, on the device.

The counterpart of `_csr`, which sorts any edge list on the host. All shapes depend on the counts
alone, so the chunks' tables have their largest size (`chunk_capacity`).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxgnn._core.counting_sort import counting_sort
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._build.row_chunks import chunk_rows_on_device


def square_graph(
    row_offsets: Int[Array, " num_nodes+1"],
    senders: Int[Array, " num_edges"],
    receivers: Int[Array, " num_edges"],
    edge_permutation: Int[Array, " num_edges"] | None,
) -> Graph:
    """The square graph of int32 edges that are sorted by receiver, then by sender.

    Nothing is checked: the kernels trust indices, so the caller answers for them.
    """
    nodes, edges = row_offsets.shape[0] - 1, senders.shape[0]
    transpose_row_offsets, permutation = transpose_order(senders, nodes)
    loops = jnp.cumsum(senders == receivers, dtype=jnp.int32)
    loops = jnp.concatenate([jnp.zeros(1, jnp.int32), loops])
    return Graph(
        row_offsets=row_offsets,
        senders=senders,
        row_chunks=chunk_rows_on_device(row_offsets, edges),
        transpose_row_offsets=transpose_row_offsets,
        transpose_receivers=receivers[permutation],
        transpose_permutation=permutation,
        transpose_row_chunks=chunk_rows_on_device(transpose_row_offsets, edges),
        edge_permutation=edge_permutation,
        self_loops=loops[row_offsets[1:]] - loops[row_offsets[:-1]],
        num_senders=nodes,
        num_receivers=nodes,
        num_edges=edges,
        symmetric=False,
        num_input_edges=None if edge_permutation is None else edges,
    )


def membership_graph(
    row_offsets: Int[Array, " num_graphs+1"],
    graph_of_node: Int[Array, " num_nodes"],
    edge_permutation: Int[Array, " num_nodes"] | None,
) -> Graph:
    """An edge from each node to its graph, as a batch has it; the graphs' nodes are consecutive."""
    nodes, graphs = graph_of_node.shape[0], row_offsets.shape[0] - 1
    every, offsets = (jnp.arange(count, dtype=jnp.int32) for count in (nodes, nodes + 1))
    return Graph(
        row_offsets=row_offsets,
        senders=every,
        row_chunks=chunk_rows_on_device(row_offsets, nodes),
        transpose_row_offsets=offsets,
        transpose_receivers=graph_of_node,
        transpose_permutation=every,
        transpose_row_chunks=chunk_rows_on_device(offsets, nodes),
        edge_permutation=edge_permutation,
        self_loops=None,
        num_senders=nodes,
        num_receivers=graphs,
        num_edges=nodes,
        symmetric=False,
        num_input_edges=None if edge_permutation is None else nodes,
    )


def transpose_order(
    senders: Int[Array, " num_edges"], num_senders: int
) -> tuple[Int[Array, " num_senders+1"], Int[Array, " num_edges"]]:
    """The transpose's row offsets, and the edge at each of its places."""
    # Stable: each sender's edges stay in the order of their receivers.
    return counting_sort(senders, num_senders)
