"""`PlainGraph`: a graph with whatever its file says of nodes and edges, and no task."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from jaxgnn.data.files.checks import check_rows
from jaxgnn.data.sets.dataset import (
    NO_METADATA,
    Metadata,
    check_graph,
    check_names,
    graph_statistics,
)
from jaxgnn.graph import Graph


@dataclasses.dataclass(frozen=True, eq=False)
class PlainGraph:
    """A graph, and what its file holds beside the edges. All arrays are NumPy's, float32, finite.

    Attributes:
        name: short name.
        graph: the graph, with as many senders as receivers.
        weights: one an edge, in the graph's edge order.
        features: of the nodes.
        positions: of the nodes, points in space.
        edge_features: in the graph's edge order.
        label: of the whole graph, if it is one of a `GraphSet`: a class, or its targets.
        node_names: the ids that the file gives the nodes, where they are not 0 to n - 1.
        feature_names: the names that the file gives the features.
        metadata: source, citation, license, notes.

    Raises:
        DataError: no name, no graph, or arrays that do not fit together.
    """

    name: str
    graph: Graph
    weights: Float[np.ndarray, " num_edges"] | None = None
    features: Float[np.ndarray, "num_nodes num_features"] | None = None
    positions: Float[np.ndarray, "num_nodes dimensions"] | None = None
    edge_features: Float[np.ndarray, "num_edges num_edge_features"] | None = None
    label: int | Float[np.ndarray, " targets"] | None = None
    node_names: tuple[str, ...] | None = None
    metadata: Metadata = NO_METADATA
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_graph(self.name, self.graph)
        nodes, edges = self.num_nodes, self.num_edges
        check_rows(self.weights, edges, 1, "weights")
        check_rows(self.features, nodes, 2, "features")
        check_rows(self.positions, nodes, 2, "positions")
        check_rows(self.edge_features, edges, 2, "edge_features")
        check_names(self.node_names, nodes, "node_names")
        width = 0 if self.features is None else self.features.shape[1]
        check_names(self.feature_names, width, "feature_names")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.graph.num_receivers

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.graph.num_edges

    def statistics(self) -> dict[str, int | float | bool | None]:
        """Counts and degrees, for `jaxgnn info`; see `graph_statistics`."""
        statistics = graph_statistics(self.graph)
        for name in ("features", "positions", "edge_features"):
            values = getattr(self, name)
            if values is not None:
                statistics[name.replace("_", " ")] = values.shape[1]
        return statistics

    def __repr__(self) -> str:
        names = ("weights", "features", "positions", "edge_features", "node_names")
        present = [name for name in names if getattr(self, name) is not None]
        beside = f", with {', '.join(present)}" if present else ""
        return (
            f"PlainGraph({self.name!r}, num_nodes={self.num_nodes}, num_edges={self.num_edges}"
            f"{beside})"
        )
