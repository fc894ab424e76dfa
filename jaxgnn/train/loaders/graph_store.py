"""Many graphs in the host's memory, one after the other, each sorted and transposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxgnn._core import checks
from jaxgnn._core.arguments import check_fits, check_floats_fit
from jaxgnn.data import GraphSet
from jaxgnn.graph import Graph
from jaxgnn.graph._build import csr


@dataclasses.dataclass(frozen=True, eq=False)
class GraphStore:
    """The arrays of `Graph` of all graphs, and their data.

    Ids of nodes and edges count from 0 in each graph.

    Attributes:
        num_nodes, num_edges: of each graph.
        node_offsets, edge_offsets: where each graph begins.
        in_degrees, out_degrees, self_loops: of each node.
        senders, transpose_receivers, transpose_permutation: of each edge.
        symmetric: whether all graphs are.
        features, edge_features, labels: `None` where the graphs have none.
    """

    num_nodes: Int[np.ndarray, " graphs"]
    num_edges: Int[np.ndarray, " graphs"]
    node_offsets: Int[np.ndarray, " graphs"]
    edge_offsets: Int[np.ndarray, " graphs"]
    in_degrees: Int[np.ndarray, " nodes"]
    out_degrees: Int[np.ndarray, " nodes"]
    self_loops: Int[np.ndarray, " nodes"]
    senders: Int[np.ndarray, " edges"]
    transpose_receivers: Int[np.ndarray, " edges"]
    transpose_permutation: Int[np.ndarray, " edges"]
    symmetric: bool
    features: Float[np.ndarray, "nodes num_features"] | None
    edge_features: Float[np.ndarray, "edges num_edge_features"] | None
    labels: np.ndarray | None

    def __len__(self) -> int:
        return self.num_nodes.size

    @classmethod
    def of(cls, source: Any) -> GraphStore:
        """Reads all graphs of a source.

        Raises:
            TypeError: no source, or what it yields are no graphs.
            ValueError: no graphs, or graphs that do not fit together.
        """
        if isinstance(source, GraphSet) and 0 < source.num_nodes < 2**31 - 1:
            return cls._of_set(source)
        indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        if not indexed or isinstance(source, Mapping):
            raise TypeError(f"graphs: expected a sequence of graphs, got {type(source).__name__}")
        items = [source[i] for i in range(len(source))]
        if not items:
            raise ValueError("graphs: expected at least 1, got 0")
        graphs = [_graph(item, i) for i, item in enumerate(items)]
        num_nodes = np.array([graph.num_receivers for graph in graphs], np.int64)
        num_edges = np.array([graph.num_edges for graph in graphs], np.int64)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([np.asarray(getattr(graph, name)) for graph in graphs])

        def degrees(name: str) -> np.ndarray:
            return np.concatenate([np.diff(np.asarray(getattr(graph, name))) for graph in graphs])

        return cls(
            num_nodes=num_nodes,
            num_edges=num_edges,
            node_offsets=np.cumsum(num_nodes) - num_nodes,
            edge_offsets=np.cumsum(num_edges) - num_edges,
            in_degrees=degrees("row_offsets"),
            out_degrees=degrees("transpose_row_offsets"),
            self_loops=np.concatenate([_self_loops(graph) for graph in graphs]),
            senders=joined("senders"),
            transpose_receivers=joined("transpose_receivers"),
            transpose_permutation=joined("transpose_permutation"),
            symmetric=all(graph.symmetric for graph in graphs),
            features=_data(items, "features", num_nodes, "nodes"),
            edge_features=_data(items, "edge_features", num_edges, "edges"),
            labels=_labels(items),
        )

    @classmethod
    def _of_set(cls, graphs: GraphSet) -> GraphStore:
        """What `of` makes of a set's graphs one by one: their union is sorted and transposed, and
        lies in the order of the graphs."""
        num_nodes, num_edges = np.diff(graphs.node_offsets), np.diff(graphs.edge_offsets)
        first_node = np.repeat(graphs.node_offsets[:-1], num_edges)
        first_edge = np.repeat(graphs.edge_offsets[:-1], num_edges)
        union = csr.build(
            graphs.senders + first_node, graphs.receivers + first_node, num_nodes=graphs.num_nodes
        )
        edge_features = graphs.edge_features
        if edge_features is not None:
            edge_features = edge_features[union.edge_permutation]
        senders = (union.senders - first_node).astype(np.int32)
        transpose = senders
        if not union.symmetric:
            transpose = (union.transpose_receivers - first_node).astype(np.int32)
        assert union.self_loops is not None
        return cls(
            num_nodes=num_nodes,
            num_edges=num_edges,
            node_offsets=graphs.node_offsets[:-1],
            edge_offsets=graphs.edge_offsets[:-1],
            in_degrees=np.diff(union.row_offsets),
            out_degrees=np.diff(union.transpose_row_offsets),
            self_loops=union.self_loops,
            senders=senders,
            transpose_receivers=transpose,
            transpose_permutation=(union.transpose_permutation - first_edge).astype(np.int32),
            symmetric=union.symmetric,
            features=graphs.features,
            edge_features=edge_features,
            labels=graphs.labels,
        )


def places(starts: np.ndarray, counts: np.ndarray) -> Int[np.ndarray, " total"]:
    """The numbers `starts[i]` to `starts[i] + counts[i]`, range after range."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def _graph(item: Any, i: int) -> Graph:
    graph = item if isinstance(item, Graph) else getattr(item, "graph", None)
    if not isinstance(graph, Graph):
        raise TypeError(f"graphs[{i}]: expected a graph, got {type(item).__name__}")
    if not graph.is_square:
        raise ValueError(f"graphs[{i}]: expected a square graph, got {graph}")
    return graph


def _self_loops(graph: Graph) -> np.ndarray:
    if graph.self_loops is not None:
        return np.asarray(graph.self_loops)
    senders, rows = np.asarray(graph.senders), csr.row_ids(np.asarray(graph.row_offsets))
    return np.bincount(rows[senders == rows], minlength=graph.num_receivers)


def _data(items: Sequence[Any], name: str, counts: np.ndarray, of: str) -> np.ndarray | None:
    """An array over the nodes or edges of all graphs."""
    parts = _parts(items, name)
    if parts is None:
        return None
    for i, part in enumerate(parts):
        checks.real(part, f"graphs[{i}]: {name}")
        if part.ndim != 2 or len(part) != counts[i] or part.shape[1] != parts[0].shape[1]:
            expected = (int(counts[i]), parts[0].shape[1] if parts[0].ndim == 2 else name)
            raise ValueError(
                f"graphs[{i}]: {name}: expected the shape {expected}, a row for each of the "
                f"{of}, got {part.shape}"
            )
    try:
        joined = np.concatenate(parts)
    except TypeError as error:  # of float16 and bfloat16
        kinds = ", ".join(sorted({str(part.dtype) for part in parts}))
        raise TypeError(f"graphs: {name}: expected one dtype, got {kinds}") from error
    check_fits(joined, f"graphs: {name}")
    return joined


def _labels(items: Sequence[Any]) -> np.ndarray | None:
    """A class a graph, int32, or rows of float32 targets."""
    parts = _parts(items, "label")
    if parts is None:
        return None
    for i, part in enumerate(parts):
        checks.real(part, f"graphs[{i}]: label")
        if part.ndim > 1:
            raise ValueError(
                f"graphs[{i}]: label: expected a number or a vector of targets, got the shape "
                f"{part.shape}"
            )
        if part.shape != parts[0].shape:
            raise ValueError(
                f"graphs[{i}]: label: expected a number, or as many targets as the first graph "
                f"has, got the shape {part.shape} after {parts[0].shape}"
            )
    labels = np.stack(parts)
    if labels.ndim > 1 and labels.dtype.kind in "biu":
        for i in np.flatnonzero((labels.astype(np.float32) != labels).any(axis=1))[:1]:
            raise ValueError(
                f"graphs[{i}]: label: expected targets that float32 holds, got {parts[i]}; "
                "a class is a number"
            )
    if labels.ndim > 1 or labels.dtype.kind not in "biu":
        check_floats_fit(labels, "graphs: label")
        return labels.astype(np.float32)
    for i in np.flatnonzero((labels < 0) | (labels > np.iinfo(np.int32).max))[:1]:
        raise ValueError(
            f"graphs[{i}]: label: expected a class from 0 to {np.iinfo(np.int32).max}, "
            f"got {labels[i]}"
        )
    return labels.astype(np.int32)


def _parts(items: Sequence[Any], name: str) -> list[np.ndarray] | None:
    """The data that all graphs have, or none of them."""
    found = [getattr(item, name, None) for item in items]
    lacking = [i for i, part in enumerate(found) if part is None]
    if len(lacking) == len(found):
        return None
    if lacking:
        raise ValueError(f"graphs[{lacking[0]}]: expected {name}, as other graphs have, got none")
    return [checks.host_array(part, f"graphs[{i}]: {name}") for i, part in enumerate(found)]
