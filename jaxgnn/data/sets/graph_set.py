"""`GraphSet`: many graphs, each with a label."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float, Int

from jaxgnn._core.arguments import as_integer
from jaxgnn.data.files.checks import check_offsets, check_rows
from jaxgnn.data.files.limits import DataError, quote
from jaxgnn.data.sets.categories import check_categories
from jaxgnn.data.sets.dataset import NO_METADATA, Metadata, Split, check_names
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph


@dataclasses.dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs that lie one after the other in few arrays; `graphs[i]` is the i-th `PlainGraph`.

    The arrays are NumPy's, on the host; each graph is built when it is asked for.

    Attributes:
        name: short name.
        node_offsets: int64; the nodes of graph i are the rows `node_offsets[i]` to
            `node_offsets[i + 1]` of `features` and `positions`.
        edge_offsets: int64; the same of the edges.
        senders, receivers: int32, the ends of each edge, counted from 0 in its graph.
        features, positions: float32, of the nodes.
        edge_features: float32, in the order of `senders`.
        node_categories, edge_categories: where the columns of `features` or of `edge_features` are
            categories, such as the kind of an atom, the number of those of each column: 0, 1, ...;
            None: they are numbers.
        labels: a class a graph, int32; or float32 `[num_graphs, targets]` for regression and
            several tasks, NaN where a label is missing.
        num_classes: number of classes; None of targets that are numbers.
        splits: masks of the graphs by name; there may be none.
        metadata: source, citation, license, notes, metric.
        graph_names, class_names: as the source names them.

    Raises:
        DataError: arrays that do not fit together.
    """

    name: str
    node_offsets: Int[np.ndarray, " num_graphs+1"]
    edge_offsets: Int[np.ndarray, " num_graphs+1"]
    senders: Int[np.ndarray, " edges"]
    receivers: Int[np.ndarray, " edges"]
    features: Float[np.ndarray, "nodes num_features"] | None = None
    positions: Float[np.ndarray, "nodes dimensions"] | None = None
    edge_features: Float[np.ndarray, "edges num_edge_features"] | None = None
    labels: Int[np.ndarray, " num_graphs"] | Float[np.ndarray, "num_graphs targets"] | None = None
    num_classes: int | None = None
    splits: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    metadata: Metadata = NO_METADATA
    graph_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    node_categories: Int[np.ndarray, " num_features"] | None = None
    edge_categories: Int[np.ndarray, " num_edge_features"] | None = None

    def __post_init__(self) -> None:
        edges = self.senders.size
        for name in ("senders", "receivers"):
            ends = getattr(self, name)
            if ends.dtype != np.int32 or ends.shape != (edges,):
                raise DataError(f"{name}: expected int32[{edges}], got {ends.dtype}")
        check_offsets(self.edge_offsets, edges, "edge_offsets")
        check_offsets(self.node_offsets, self.num_nodes, "node_offsets")
        if self.node_offsets.size != self.edge_offsets.size:
            raise DataError(
                "node_offsets, edge_offsets: expected one size, got "
                f"{self.node_offsets.size} and {self.edge_offsets.size}"
            )
        sizes = np.repeat(np.diff(self.node_offsets), np.diff(self.edge_offsets))
        for name in ("senders", "receivers"):
            ends = getattr(self, name)
            if edges and (ends.min() < 0 or (ends >= sizes).any()):
                raise DataError(f"{name}: expected ids from 0 below the size of their graph")
        check_rows(self.features, self.num_nodes, 2, "features")
        check_rows(self.positions, self.num_nodes, 2, "positions")
        check_rows(self.edge_features, edges, 2, "edge_features")
        check_categories(self.features, self.node_categories, "features")
        check_categories(self.edge_features, self.edge_categories, "edge_features")
        self._check_labels()
        check_names(self.graph_names, len(self), "graph_names")
        check_names(self.class_names, self.num_classes or 0, "class_names")
        for name, split in self.splits.items():
            if split.train.size != len(self):
                raise DataError(
                    f"splits[{name!r}]: expected masks of {len(self)} graphs, "
                    f"got {split.train.size}"
                )

    def _check_labels(self) -> None:
        labels, count = self.labels, len(self)
        if labels is None:
            return
        if labels.ndim == 2 and labels.dtype == np.float32 and len(labels) == count:
            return
        if labels.shape != (count,) or labels.dtype != np.int32:
            raise DataError(
                f"labels: expected int32[{count}] or float32[{count}, targets], "
                f"got {labels.dtype}{quote(labels.shape)}"
            )
        classes = self.num_classes or 0
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise DataError(
                f"labels: expected classes from 0 to {classes - 1}, "
                f"got {labels.min()} to {labels.max()}"
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return int(self.node_offsets[-1]) if self.node_offsets.size else 0

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs."""
        return self.senders.size

    @property
    def num_features(self) -> int:
        """Number of features a node; 0 if there are none."""
        return 0 if self.features is None else self.features.shape[1]

    def __len__(self) -> int:
        return self.node_offsets.size - 1

    def __getitem__(self, index: int) -> PlainGraph:
        """The graph of that number, with its features in the graph's edge order.

        Raises:
            TypeError: the number is no integer.
            IndexError: there are fewer.
        """
        if as_integer(index) is None:
            raise TypeError(f"graph: expected an integer, got {index!r}")
        if not -len(self) <= index < len(self):
            raise IndexError(f"graph {index}: {self.name} has {len(self)}, from 0")
        index %= len(self)
        nodes = slice(int(self.node_offsets[index]), int(self.node_offsets[index + 1]))
        edges = slice(int(self.edge_offsets[index]), int(self.edge_offsets[index + 1]))
        graph = Graph.from_edges(
            self.senders[edges], self.receivers[edges], num_nodes=nodes.stop - nodes.start
        )
        edge_features = None
        if self.edge_features is not None:
            edge_features = self.edge_features[edges][np.asarray(graph.edge_permutation)]
        label = None if self.labels is None else self.labels[index]
        return PlainGraph(
            name=self.graph_names[index] if self.graph_names else f"{self.name}[{index}]",
            graph=graph,
            features=None if self.features is None else self.features[nodes],
            positions=None if self.positions is None else self.positions[nodes],
            edge_features=edge_features,
            label=int(label) if isinstance(label, np.integer) else label,
            metadata=self.metadata,
        )

    def __iter__(self) -> Iterator[PlainGraph]:
        return (self[index] for index in range(len(self)))

    def statistics(self) -> dict[str, int | float | bool | None]:
        """Counts, for `jaxgnn info`."""
        sizes = np.diff(self.node_offsets)
        statistics: dict[str, int | float | bool | None] = {
            "graphs": len(self),
            "nodes": self.num_nodes,
            "edges": self.num_edges,
            "mean nodes a graph": float(sizes.mean()) if sizes.size else 0.0,
            "fewest nodes": int(sizes.min()) if sizes.size else 0,
            "most nodes": int(sizes.max(initial=0)),
        }
        for name in ("features", "positions", "edge_features"):
            values = getattr(self, name)
            if values is not None:
                statistics[name.replace("_", " ")] = values.shape[1]
        statistics["classes"] = self.num_classes
        statistics["splits"] = len(self.splits)
        return statistics

    def __repr__(self) -> str:
        return (
            f"GraphSet({self.name!r}, graphs={len(self)}, nodes={self.num_nodes}, "
            f"edges={self.num_edges}, num_classes={self.num_classes}, splits={len(self.splits)})"
        )
