"""Builds a graph out of sorted edges with JAX's operations: under `jit`, on the device.

The counterpart of `_csr`, which sorts any edge list on the host. All shapes depend on the counts
alone, so the split tables have their largest size (`_csr.split_capacity`).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxgnn import _csr
from jaxgnn.graph import Graph


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
    # Stable: each sender's edges stay in the order of their receivers.
    permutation = jnp.argsort(senders, stable=True).astype(jnp.int32)
    first = jnp.arange(nodes + 1, dtype=jnp.int32)
    transpose_row_offsets = jnp.searchsorted(senders[permutation], first).astype(jnp.int32)
    loops = jnp.cumsum(senders == receivers, dtype=jnp.int32)
    loops = jnp.concatenate([jnp.zeros(1, jnp.int32), loops])
    return Graph(
        row_offsets=row_offsets,
        senders=senders,
        splits=split_table(row_offsets, edges),
        transpose_row_offsets=transpose_row_offsets,
        transpose_receivers=receivers[permutation],
        transpose_permutation=permutation,
        transpose_splits=split_table(transpose_row_offsets, edges),
        edge_permutation=edge_permutation,
        self_loops=loops[row_offsets[1:]] - loops[row_offsets[:-1]],
        num_senders=nodes,
        num_receivers=nodes,
        num_edges=edges,
    )


def split_table(row_offsets: Int[Array, " rows+1"], num_edges: int) -> Int[Array, "parts 2"]:
    """`_csr.split_table` of the usual length, padded as `_csr.pad_splits` does."""
    rows = row_offsets.shape[0] - 1
    length = _csr.split_length(num_edges, rows)
    places = jnp.arange(_csr.split_capacity(num_edges, rows), dtype=jnp.int32)
    if rows == 0:
        return jnp.array([[-1, 0]], jnp.int32)
    lengths = jnp.diff(row_offsets)
    parts = jnp.where(lengths > length, -(-lengths // length), 0)
    end = jnp.cumsum(parts, dtype=jnp.int32)
    # The row of a place is the first whose parts end beyond it; rows without parts are passed.
    row = jnp.searchsorted(end, places, side="right").astype(jnp.int32)
    known = jnp.minimum(row, rows - 1)
    part = places - (end[known] - parts[known])
    used = places < end[-1]
    return jnp.stack([jnp.where(used, row, -1), jnp.where(used, part, 0)], axis=1)
