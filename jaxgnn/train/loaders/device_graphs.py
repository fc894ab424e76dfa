"""Many graphs in the device's memory, whose padded unions are gathered there."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxgnn._core.device import device_array
from jaxgnn.graph import Graph
from jaxgnn.graph._build.device_csr import membership_graph
from jaxgnn.graph._build.row_chunks import chunk_rows_on_device
from jaxgnn.graph.batch import GraphBatch
from jaxgnn.train.loaders.graph_minibatch import GraphMinibatch
from jaxgnn.train.loaders.graph_store import GraphStore

_DATA = (
    *("num_nodes", "num_edges", "node_offsets", "edge_offsets"),
    *("row_starts", "self_loops", "senders"),
    *("transpose_row_starts", "transpose_receivers", "transpose_permutation"),
    *("features", "edge_features", "labels"),
)

LARGEST_COUNT = 2**26
"""Nodes and edges of a batch, with padding, that `union` can count."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=_DATA, meta_fields=["symmetric"])
@dataclasses.dataclass(frozen=True, eq=False)
class DeviceGraphs:
    """A `GraphStore` on the device: an argument of the programs that make batches of it.

    Ids of nodes and edges count from 0 in each graph. Arrays have an entry at least.

    Attributes:
        row_starts, transpose_row_starts: of each node its first edge, in the graph and in its
            transpose; the transpose's are `None` where all graphs are symmetric.
    """

    num_nodes: Int[Array, " graphs"]
    num_edges: Int[Array, " graphs"]
    node_offsets: Int[Array, " graphs"]
    edge_offsets: Int[Array, " graphs"]
    row_starts: Int[Array, " nodes"]
    self_loops: Int[Array, " nodes"]
    senders: Int[Array, " edges"]
    transpose_row_starts: Int[Array, " nodes"] | None
    transpose_receivers: Int[Array, " edges"] | None
    transpose_permutation: Int[Array, " edges"]
    features: Float[Array, "nodes num_features"] | None
    edge_features: Float[Array, "edges num_edge_features"] | None
    labels: Shaped[Array, "graphs *targets"] | None
    symmetric: bool

    @classmethod
    def of(cls, store: GraphStore) -> DeviceGraphs:
        """Moves the arrays of a store to the default device."""
        first_edge = np.repeat(store.edge_offsets, store.num_nodes)

        def placed(values: np.ndarray) -> Array:
            if values.shape[0] == 0:  # its rows are read, for padding
                values = np.zeros((1, *values.shape[1:]), values.dtype)
            return device_array(values)

        def moved(values: np.ndarray) -> Array:
            return placed(values.astype(np.int32))

        def starts(degrees: np.ndarray) -> Array:
            return moved(np.cumsum(degrees, dtype=np.int64) - degrees - first_edge)

        directed = not store.symmetric
        data = store.features, store.edge_features, store.labels
        features, edge_features, labels = (None if x is None else placed(x) for x in data)
        return cls(
            num_nodes=moved(store.num_nodes),
            num_edges=moved(store.num_edges),
            node_offsets=moved(store.node_offsets),
            edge_offsets=moved(store.edge_offsets),
            row_starts=starts(store.in_degrees),
            self_loops=moved(store.self_loops),
            senders=moved(store.senders),
            transpose_row_starts=starts(store.out_degrees) if directed else None,
            transpose_receivers=moved(store.transpose_receivers) if directed else None,
            transpose_permutation=moved(store.transpose_permutation),
            features=features,
            edge_features=edge_features,
            labels=labels,
            symmetric=store.symmetric,
        )


def device_bytes(store: GraphStore) -> int:
    """The memory of a store's `DeviceGraphs`."""
    nodes, edges = store.self_loops.size, store.senders.size
    directions = 1 if store.symmetric else 2
    indices = 4 * len(store) + (1 + directions) * (nodes + edges)
    data = (store.features, store.edge_features, store.labels)
    return 4 * indices + sum(array.nbytes for array in data if array is not None)


def union(
    graphs: DeviceGraphs, chosen: Int[Array, " slots"], num_nodes: int, num_edges: int
) -> GraphMinibatch:
    """The padded union of some graphs, as `GraphLoader` makes it on the host, bit for bit.

    Args:
        graphs: the whole set.
        chosen: the graphs, then -1 for each place of padding, of which there is one at least.
        num_nodes, num_edges: static counts of the batch: more nodes than the graphs have, and as
            many edges at least.
    """
    slots = chosen.shape[0]
    is_graph, graph = chosen >= 0, jnp.maximum(chosen, 0)
    node_counts = jnp.where(is_graph, _take(graphs.num_nodes, graph), 0)
    edge_counts = jnp.where(is_graph, _take(graphs.num_edges, graph), 0)
    node_ends = jnp.cumsum(node_counts, dtype=jnp.int32)
    edge_ends = jnp.cumsum(edge_counts, dtype=jnp.int32)
    nodes, edges = node_ends[-1], edge_ends[-1]
    added_nodes, added_edges = num_nodes - nodes, num_edges - edges
    # The first place without a graph has the padding nodes.
    graph_ends = jnp.where(is_graph, node_ends, num_nodes)
    first_node, first_edge = node_ends - node_counts, edge_ends - edge_counts

    node, edge = (jnp.arange(n, dtype=jnp.int32) for n in (num_nodes, num_edges))
    of_node = _which(graph_ends, node)
    of_edge = jnp.minimum(_which(edge_ends, edge), slots - 1)
    node_mask, edge_mask = node < nodes, edge < edges
    in_set = _take(graphs.node_offsets, graph) - first_node
    node_places = jnp.where(node_mask, node + _take(in_set, of_node), 0)
    in_set = _take(graphs.edge_offsets, graph) - first_edge
    edge_places = jnp.where(edge_mask, edge + _take(in_set, of_edge), 0)
    edge_base, node_base = _take(first_edge, of_node), _take(first_node, of_edge)

    # The self-loops of the padding nodes, spread evenly, as `pad` does: loop i is at node
    # i P // Q, so that ceil(j Q / P) loops are before node j.
    loops_before = -_scaled(nodes - jnp.arange(num_nodes + 1), added_edges, added_nodes)
    loop_nodes = nodes + _scaled(edge - edges, added_nodes, jnp.maximum(added_edges, 1))

    def offsets(starts: Array) -> Array:
        of_graphs = jnp.where(node_mask, _take(starts, node_places) + edge_base, 0)
        of_graphs = jnp.append(of_graphs, 0)
        whole = jnp.arange(num_nodes + 1) < nodes
        return jnp.where(whole, of_graphs, edges + loops_before).astype(jnp.int32)

    def ends(columns: Array) -> Array:
        return jnp.where(edge_mask, _take(columns, edge_places) + node_base, loop_nodes)

    row_offsets, senders = offsets(graphs.row_starts), ends(graphs.senders)
    chunks = chunk_rows_on_device(row_offsets, num_edges)
    transpose = row_offsets, senders, chunks
    if graphs.transpose_row_starts is not None and graphs.transpose_receivers is not None:
        t_offsets = offsets(graphs.transpose_row_starts)
        t_chunks = chunk_rows_on_device(t_offsets, num_edges)
        transpose = t_offsets, ends(graphs.transpose_receivers), t_chunks
    permutation = _take(graphs.transpose_permutation, edge_places) + _take(first_edge, of_edge)
    self_loops = jnp.where(node_mask, _take(graphs.self_loops, node_places), jnp.diff(loops_before))
    structure = Graph(
        row_offsets=row_offsets,
        senders=senders,
        row_chunks=chunks,
        transpose_row_offsets=transpose[0],
        transpose_receivers=transpose[1],
        transpose_permutation=jnp.where(edge_mask, permutation, edge),
        transpose_row_chunks=transpose[2],
        edge_permutation=jnp.where(edge_mask, edge, -1),
        self_loops=self_loops.astype(jnp.int32),
        num_senders=num_nodes,
        num_receivers=num_nodes,
        num_edges=num_edges,
        symmetric=graphs.symmetric,
    )
    graph_offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), graph_ends])
    membership = membership_graph(graph_offsets, of_node, node)
    batch = GraphBatch(
        graph=structure,
        membership=membership,
        sender_membership=membership,
        node_mask=node_mask,
        sender_mask=node_mask,
        edge_mask=edge_mask,
        graph_mask=is_graph,
        num_graphs=slots,
    )
    labels = graphs.labels
    missing = 0 if labels is None or labels.dtype == jnp.int32 else jnp.nan
    return GraphMinibatch(
        batch=batch,
        features=_rows(graphs.features, node_places, node_mask),
        edge_features=_rows(graphs.edge_features, edge_places, edge_mask),
        labels=_rows(labels, graph, is_graph, missing),
        indices=chosen,
    )


def _take(values: Array, places: Int[Array, " places"]) -> Array:
    return values.at[places].get(mode="promise_in_bounds")


def _rows(
    values: Array | None, places: Array, mask: Bool[Array, " places"], fill_value: float = 0.0
) -> Array | None:
    if values is None:
        return None
    rows = _take(values, places)
    mask = mask.reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.where(mask, rows, jnp.asarray(fill_value, rows.dtype))


def _which(ends: Int[Array, " ranges"], places: Int[Array, " places"]) -> Int[Array, " places"]:
    """The range that each place is in."""
    found = jnp.searchsorted(ends, places, side="right", method="scan_unrolled")
    return found.astype(jnp.int32)


def _scaled(numbers: Int[Array, " numbers"], factor: Array, divisor: Array) -> Array:
    r"""$\lfloor i f / d \rfloor$ of int32, where the product may have more bits.

    A quotient in float32 is off by less than 31 where no number is above `LARGEST_COUNT`. The
    remainder that it leaves has then 32 bits, and is exact though the products wrap.
    """
    numbers = numbers.astype(jnp.int32)
    quotient = numbers.astype(jnp.float32) * factor.astype(jnp.float32)
    found = jnp.floor(quotient / divisor.astype(jnp.float32)).astype(jnp.int32)
    return found + (numbers * factor - found * divisor) // divisor
