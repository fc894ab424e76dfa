"""The transpose of a graph."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxgnn.graph._arrays import GraphArrays


def reversed_fields(graph: GraphArrays) -> dict[str, Any]:
    """The fields of the graph with every edge reversed."""
    inverse = jnp.zeros_like(graph.transpose_permutation)
    inverse = inverse.at[graph.transpose_permutation].set(
        jnp.arange(graph.num_edges, dtype=inverse.dtype), unique_indices=True
    )
    edges, positions = graph.edge_permutation, graph.edge_positions
    if positions is not None and graph.num_edges:
        positions = jnp.where(positions < 0, positions, inverse[positions])
    return dict(
        row_offsets=graph.transpose_row_offsets,
        senders=graph.transpose_receivers,
        row_chunks=graph.transpose_row_chunks,
        transpose_row_offsets=graph.row_offsets,
        transpose_receivers=graph.senders,
        transpose_permutation=inverse,
        transpose_row_chunks=graph.row_chunks,
        edge_permutation=None if edges is None else edges[graph.transpose_permutation],
        self_loops=graph.self_loops,
        num_senders=graph.num_receivers,
        num_receivers=graph.num_senders,
        num_edges=graph.num_edges,
        symmetric=graph.symmetric,
        row_schedule=graph.transpose_row_schedule,
        transpose_row_schedule=graph.row_schedule,
        edge_positions=positions,
        num_input_edges=graph.num_input_edges,
        merges_edges=graph.merges_edges,
        windows=None,
        tiles=graph.transpose_tiles,
        transpose_tiles=graph.tiles,
    )
