"""`GraphBatch`: many graphs as one, and the disjoint unions that it is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from jaxgnn._core.device import device_array
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._graph import Graph

_ARRAYS = (
    "graph",
    "membership",
    "sender_membership",
    "node_mask",
    "sender_mask",
    "edge_mask",
    "graph_mask",
)
_COUNTS = ("num_graphs",)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=list(_ARRAYS), meta_fields=list(_COUNTS)
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GraphBatch:
    """Disjoint graphs as one graph, with the masks of what is not padding.

    Attributes:
        graph: all nodes and edges, those of the first graph first. Its `edge_permutation` counts
            the graphs' edges one after the other, each in its graph's edge order; -1: padding.
        membership: rectangular graph with an edge from each node (receiver, of rectangular graphs)
            to its graph.
        sender_membership: the same of the senders; for square graphs, `membership`. Padding senders
            have no graph where none was added.
        node_mask: the nodes (receivers, of rectangular graphs) that are not padding.
        sender_mask: the same of the senders; for square graphs, `node_mask`.
        edge_mask: the edges that are not padding.
        graph_mask: the graphs that are not padding.
        num_graphs: static count, padding included.
    """

    graph: Graph
    membership: Graph
    sender_membership: Graph
    node_mask: Bool[Array, " num_receivers"]
    sender_mask: Bool[Array, " num_senders"]
    edge_mask: Bool[Array, " num_edges"]
    graph_mask: Bool[Array, " num_graphs"]
    num_graphs: int

    def __repr__(self) -> str:
        return f"GraphBatch(num_graphs={self.num_graphs}, graph={self.graph})"


def disjoint_union(graphs: Sequence[Graph]) -> GraphBatch:
    """Batch of graphs, all square or all rectangular, without padding.

    The user's edges of its graph (`Graph.sort_edge_data`) are those of all graphs, in their order.

    Raises:
        TypeError: something else than graphs.
        ValueError: square graphs mixed with rectangular ones.
    """
    if isinstance(graphs, Graph):
        raise TypeError("graphs: expected a sequence of graphs, got one Graph")
    if not isinstance(graphs, Iterable):
        raise TypeError(f"graphs: expected a sequence of graphs, got {type(graphs).__name__}")
    graphs = list(graphs)
    for i, graph in enumerate(graphs):
        if not isinstance(graph, Graph):
            raise TypeError(f"graphs[{i}]: expected a jaxgnn.Graph, got {type(graph).__name__}")
        if graph.is_square != graphs[0].is_square:
            raise ValueError(
                "graphs: expected all square or all rectangular, got "
                f"graphs[0] = {graphs[0]} and graphs[{i}] = {graph}"
            )
        if isinstance(graph.senders, Tracer):
            raise TypeError(
                f"graphs[{i}]: batches are made outside jax.jit, and are arguments of the jitted "
                f"function; got a {graph} that is being traced"
            )
    first_sender = _starts([graph.num_senders for graph in graphs])
    first_receiver = _starts([graph.num_receivers for graph in graphs])
    senders = _concatenate(
        [np.asarray(graph.senders) + first_sender[i] for i, graph in enumerate(graphs)]
    )
    receivers = _concatenate(
        [
            _csr.row_ids(np.asarray(graph.row_offsets)) + first_receiver[i]
            for i, graph in enumerate(graphs)
        ]
    )
    union = assemble(
        senders,
        receivers,
        graph_sizes=np.array([graph.num_receivers for graph in graphs], np.int64),
        sender_sizes=np.array([graph.num_senders for graph in graphs], np.int64),
        num_senders=int(first_sender[-1]),
        square=all(graph.is_square for graph in graphs),
        real=(int(first_sender[-1]), int(first_receiver[-1]), senders.size, len(graphs)),
    )
    graph = dataclasses.replace(union.graph, num_input_edges=senders.size)
    return dataclasses.replace(union, graph=graph)


def assemble(
    senders: np.ndarray,
    receivers: np.ndarray,
    *,
    graph_sizes: np.ndarray,
    sender_sizes: np.ndarray,
    num_senders: int,
    square: bool,
    real: tuple[int, ...],
) -> GraphBatch:
    """Batch of sorted edges; `real` counts the senders, receivers, edges, graphs before padding."""
    num_receivers = int(graph_sizes.sum())
    counts: dict[str, Any] = (
        {"num_nodes": num_receivers}
        if square
        else {"num_senders": num_senders, "num_receivers": num_receivers}
    )
    csr = _csr.build(senders, receivers, **counts)
    permutation = csr.edge_permutation
    assert permutation is not None
    permutation = np.where(permutation < real[2], permutation, -1).astype(permutation.dtype)
    # How many edges are real is no static count: batches of one shape share a program.
    csr = csr._replace(edge_permutation=permutation, num_input_edges=None)
    return batch_of_csr(
        csr, graph_sizes=graph_sizes, sender_sizes=None if square else sender_sizes, real=real
    )


def batch_of_csr(
    csr: _csr.HostCSR,
    *,
    graph_sizes: np.ndarray,
    sender_sizes: np.ndarray | None,
    real: tuple[int, ...],
) -> GraphBatch:
    """Batch of host arrays, on the device; without `sender_sizes` the graphs are square."""
    real_senders, real_receivers, real_edges, real_graphs = real
    membership = _membership(graph_sizes, csr.num_receivers)

    def mask(count: int, size: int) -> Bool[Array, " size"]:
        return device_array(np.arange(size) < count)

    node_mask = mask(real_receivers, csr.num_receivers)
    square = sender_sizes is None
    return GraphBatch(
        graph=Graph._from_host(csr.pad_chunks()),
        membership=membership,
        sender_membership=membership if square else _membership(sender_sizes, csr.num_senders),
        node_mask=node_mask,
        sender_mask=node_mask if square else mask(real_senders, csr.num_senders),
        edge_mask=mask(real_edges, csr.num_edges),
        graph_mask=mask(real_graphs, len(graph_sizes)),
        num_graphs=len(graph_sizes),
    )


def _membership(sizes: Int[np.ndarray, " graphs"], nodes: int) -> Graph:
    """An edge from each node to its graph; the graphs' nodes are consecutive."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = np.arange(offsets[-1], dtype=np.int32)
    csr = _csr.build_from_csr(offsets, columns, num_senders=nodes)
    # Graphs of one node each would make it symmetric, and their batch another program.
    return dataclasses.replace(Graph._from_host(csr.pad_chunks()), symmetric=False)


def graph_sizes_of(membership: Graph) -> Int[np.ndarray, " graphs"]:
    """How many nodes each graph has."""
    return np.diff(np.asarray(membership.row_offsets))


def _starts(counts: list[int]) -> np.ndarray:
    """Where each begins, and the total."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if starts[-1] > 2**31 - 1:
        raise ValueError(f"graphs: expected fewer than 2**31 nodes in all, got {starts[-1]}")
    return starts.astype(np.int32)


def _concatenate(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def batch_argument(batch: Any) -> GraphBatch:
    """A batch as it is, or a graph as a batch of one."""
    if isinstance(batch, Graph):
        batch = disjoint_union([batch])
    if not isinstance(batch, GraphBatch):
        raise TypeError(f"batch: expected a GraphBatch or a Graph, got {type(batch).__name__}")
    if isinstance(batch.graph.senders, Tracer):
        raise TypeError(
            "batch: batches are padded outside jax.jit, and are arguments of the jitted function"
        )
    return batch
