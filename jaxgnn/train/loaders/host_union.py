"""A mini-batch of stored graphs, made on the host: sorted pieces are copied, nothing is sorted."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core.device import device_array
from jaxgnn.graph._batches.graph_batch import batch_of_csr
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._build.row_chunks import chunk_rows
from jaxgnn.train.loaders.graph_minibatch import GraphMinibatch
from jaxgnn.train.loaders.graph_store import GraphStore, places


def host_union(
    store: GraphStore,
    chosen: Int[np.ndarray, " graphs"],
    graphs: int,
    num_nodes: int,
    num_edges: int,
) -> GraphMinibatch:
    """The disjoint union of these graphs, padded to so many graphs, nodes and edges."""
    node_counts, edge_counts = store.num_nodes[chosen], store.num_edges[chosen]
    nodes, edges = int(node_counts.sum()), int(edge_counts.sum())
    node_places = places(store.node_offsets[chosen], node_counts)
    edge_places = places(store.edge_offsets[chosen], edge_counts)
    csr = _union(store, node_counts, edge_counts, node_places, edge_places, num_nodes, num_edges)
    graph_sizes = np.zeros(graphs, np.int64)
    graph_sizes[: chosen.size] = node_counts
    graph_sizes[chosen.size] = num_nodes - nodes
    batch = batch_of_csr(
        csr,
        graph_sizes=graph_sizes,
        sender_sizes=None,
        real=(nodes, nodes, edges, chosen.size),
    )
    labels = store.labels
    missing = 0 if labels is None or labels.dtype == np.int32 else np.nan
    return GraphMinibatch(
        batch=batch,
        features=_rows(store.features, node_places, num_nodes),
        edge_features=_rows(store.edge_features, edge_places, num_edges),
        labels=_rows(labels, chosen, graphs, missing),
        indices=device_array(_padded(chosen.astype(np.int32), graphs, -1)),
    )


def _padded(rows: np.ndarray, size: int, value: float) -> np.ndarray:
    padded = np.full((size, *rows.shape[1:]), value, rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _rows(
    data: np.ndarray | None, chosen: np.ndarray, size: int, value: float = 0.0
) -> Array | None:
    return None if data is None else device_array(_padded(data[chosen], size, value))


def _union(
    store: GraphStore,
    node_counts: np.ndarray,
    edge_counts: np.ndarray,
    node_places: np.ndarray,
    edge_places: np.ndarray,
    num_nodes: int,
    num_edges: int,
) -> _csr.HostCSR:
    """The arrays that sorting the padded union would give: `pad(disjoint_union(graphs), ...)`."""
    nodes, edges = node_places.size, edge_places.size
    first_node = np.repeat(np.cumsum(node_counts) - node_counts, edge_counts)
    first_edge = np.repeat(np.cumsum(edge_counts) - edge_counts, edge_counts)
    # Self-loops of the padding nodes, spread evenly, as `pad` does.
    loops = nodes + np.arange(num_edges - edges) * (num_nodes - nodes) // max(num_edges - edges, 1)
    loop_counts = np.bincount(loops - nodes, minlength=num_nodes - nodes)

    def offsets(degrees: np.ndarray) -> np.ndarray:
        ends = np.cumsum(np.concatenate([degrees[node_places], loop_counts]))
        return np.concatenate([[0], ends]).astype(np.int32)

    def ends(columns: np.ndarray) -> np.ndarray:
        return np.concatenate([columns[edge_places] + first_node, loops]).astype(np.int32)

    row_offsets, senders = offsets(store.in_degrees), ends(store.senders)
    chunks = chunk_rows(row_offsets)
    transpose = row_offsets, senders, chunks
    if not store.symmetric:
        t_offsets = offsets(store.out_degrees)
        transpose = t_offsets, ends(store.transpose_receivers), chunk_rows(t_offsets)
    permutation = np.concatenate(
        [store.transpose_permutation[edge_places] + first_edge, np.arange(edges, num_edges)]
    )
    return _csr.HostCSR(
        row_offsets=row_offsets,
        senders=senders,
        row_chunks=chunks,
        transpose_row_offsets=transpose[0],
        transpose_receivers=transpose[1],
        transpose_permutation=permutation.astype(np.int32),
        transpose_row_chunks=transpose[2],
        edge_permutation=_padded(np.arange(edges, dtype=np.int32), num_edges, -1),
        self_loops=np.concatenate([store.self_loops[node_places], loop_counts]).astype(np.int32),
        num_senders=num_nodes,
        num_receivers=num_nodes,
        num_edges=num_edges,
        symmetric=store.symmetric,
    )
