"""`NodeDataset`: the one shape that every reader and generator of node data returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxgnn._core.arguments import as_integer
from jaxgnn.data.files.checks import check_rows, row_blocks
from jaxgnn.data.files.limits import DataError, quote
from jaxgnn.graph import Graph

Metric = Literal["accuracy", "roc_auc", "micro_f1", "average_precision", "rmse", "mae"]


@dataclasses.dataclass(frozen=True)
class Metadata:
    """Where a dataset is from and how it is scored.

    Attributes:
        source: the file or the generator.
        citation: the publication to cite.
        license: of the data, as far as their source states one.
        notes: what the reader changed or chose.
        metric: the score that the set's publication reports.
        positions: whether the features are points' positions, and edges join near ones.
        unlabelled: whether nodes that are in no mask have no label but the class 0.
    """

    source: str = ""
    citation: str = ""
    license: str = ""
    notes: str = ""
    metric: Metric = "accuracy"
    positions: bool = False
    unlabelled: bool = False


NO_METADATA = Metadata()


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Masks of the nodes that a model learns from, is selected on, and is tested on.

    The three are disjoint and need not cover the graph. `val` may be empty, and `train` where data
    are only scored.

    Raises:
        DataError: something else than boolean masks of one length, or masks that overlap.
    """

    train: Bool[np.ndarray, " num_nodes"]
    val: Bool[np.ndarray, " num_nodes"]
    test: Bool[np.ndarray, " num_nodes"]

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            mask = getattr(self, name)
            if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.ndim != 1:
                raise DataError(f"{name}: expected a mask bool[num_nodes], got {_describe(mask)}")
        if not self.train.shape == self.val.shape == self.test.shape:
            raise DataError(
                "train, val, test: expected masks of one length, got "
                f"{self.train.size}, {self.val.size}, {self.test.size}"
            )
        shared = (self.train & self.val) | (self.train & self.test) | (self.val & self.test)
        if shared.any():
            raise DataError(
                "train, val, test: expected disjoint masks, got "
                f"{int(shared.sum())} nodes in more than one (the first: {int(shared.argmax())})"
            )

    def check_trains(self) -> Split:
        """Returns the split.

        Raises:
            DataError: it has no training node.
        """
        if not self.train.any():
            raise DataError("train: expected at least one training node, got none")
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of training, validation and test nodes."""
        return int(self.train.sum()), int(self.val.sum()), int(self.test.sum())


@dataclasses.dataclass(frozen=True, eq=False)
class NodeDataset:
    """A graph whose nodes carry features and labels.

    Attributes:
        name: short name.
        graph: the graph, with as many senders as receivers.
        features: float32, on the host: 4 * num_nodes * num_features bytes (Cora 16 MB, DBLP
            116 MB), whatever the sparsity of the source; finite.
        labels: one class a node, int32, or float32 zeros and ones `[num_nodes, num_classes]`
            where a node may have several.
        num_classes: number of classes.
        splits: masks by name, at least one.
        metadata: source, citation, license, notes, metric.
        node_names: the ids that the source gives its nodes, where they are not 0 to n - 1.
        class_names: the names that the source gives its classes, where they are not numbers
            from 0.
        weights: of the edges, float32, in the graph's edge order, where the source has them.
            `jaxgnn train --edge-weights` uses them.
        edge_features: likewise; `jaxgnn train` does not use them.
        feature_names: the names that the source gives its features.

    Raises:
        DataError: arrays that do not fit together.
    """

    name: str
    graph: Graph
    features: Float[np.ndarray, "num_nodes num_features"]
    labels: Int[np.ndarray, " num_nodes"] | Float[np.ndarray, "num_nodes num_classes"]
    num_classes: int
    splits: Mapping[str, Split]
    metadata: Metadata = NO_METADATA
    node_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    weights: Float[np.ndarray, " num_edges"] | None = None
    edge_features: Float[np.ndarray, "num_edges num_edge_features"] | None = None
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_graph(self.name, self.graph)
        n = self.graph.num_receivers
        x = self.features
        if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 2 or len(x) != n:
            raise DataError(f"features: expected float32[{n}, num_features], got {_describe(x)}")
        if x.shape[1] == 0:
            raise DataError("features: expected at least one a node, got none")
        for begin, end in row_blocks(x):
            finite = np.isfinite(x[begin:end])
            if not finite.all():
                row, column = np.unravel_index(int(finite.argmin()), finite.shape)
                raise DataError(
                    f"features: expected finite values, got {x[begin + row, column]} "
                    f"at node {begin + row}"
                )
        _check_labels(self.labels, n, self.num_classes)
        check_names(self.node_names, n, "node_names")
        check_names(self.class_names, self.num_classes, "class_names")
        check_names(self.feature_names, x.shape[1], "feature_names")
        check_rows(self.weights, self.graph.num_edges, 1, "weights")
        check_rows(self.edge_features, self.graph.num_edges, 2, "edge_features")
        if not isinstance(self.splits, Mapping):
            got = type(self.splits).__name__
            raise DataError(f"splits: expected a dict of names and jaxgnn.data.Split, got {got}")
        if not self.splits:
            raise DataError("splits: expected at least one split, got none")
        for name, split in self.splits.items():
            if not isinstance(split, Split):
                got = type(split).__name__
                raise DataError(f"splits[{name!r}]: expected a jaxgnn.data.Split, got {got}")
            if split.train.size != n:
                raise DataError(
                    f"splits[{name!r}]: expected masks of {n} nodes, got {split.train.size}"
                )

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.graph.num_receivers

    @property
    def num_features(self) -> int:
        """Number of features a node."""
        return self.features.shape[1]

    @property
    def is_multilabel(self) -> bool:
        """Whether a node may have several labels."""
        return self.labels.ndim == 2

    @property
    def metric(self) -> Metric:
        """The score to report, such as `"accuracy"`, `"roc_auc"` or `"micro_f1"`."""
        return self.metadata.metric

    def split(self, key: int | str = 0) -> Split:
        """The split of that name, or the `key`-th.

        Raises:
            TypeError: neither a name nor an integer.
            KeyError: no such name.
            IndexError: fewer splits than that.
        """
        names = list(self.splits)
        if isinstance(key, str):
            if key not in self.splits:
                raise KeyError(f"split {key!r}: {self.name} has {', '.join(names)}")
            return self.splits[key]
        if as_integer(key) is None:
            raise TypeError(f"split: expected a name or an integer, got {key!r}")
        if not 0 <= key < len(names):
            raise IndexError(f"split {key}: {self.name} has {len(names)}, from 0")
        return self.splits[names[key]]

    def statistics(self) -> dict[str, int | float | bool | None]:
        """Counts, degrees and homophily, for `jaxgnn info`; see `graph_statistics`, `homophily`."""
        statistics = graph_statistics(self.graph)
        statistics["features"] = self.num_features
        statistics["classes"] = self.num_classes
        statistics["homophily"] = None
        if not self.is_multilabel:
            labels = np.where(self._labelled(), self.labels, -1)
            statistics["homophily"] = homophily(self.graph, labels)
        statistics["splits"] = len(self.splits)
        return statistics

    def _labelled(self) -> Bool[np.ndarray, " num_nodes"]:
        if not self.metadata.unlabelled:
            return np.ones(self.num_nodes, bool)
        masks = [mask for s in self.splits.values() for mask in (s.train, s.val, s.test)]
        return np.logical_or.reduce(masks)

    def __repr__(self) -> str:
        return (
            f"NodeDataset({self.name!r}, num_nodes={self.num_nodes}, "
            f"num_edges={self.graph.num_edges}, num_features={self.num_features}, "
            f"num_classes={self.num_classes}, splits={len(self.splits)})"
        )


def graph_statistics(graph: Graph) -> dict[str, int | float | bool | None]:
    """Statistics of a square graph, computed on the host.

    Degrees count the edges that end at a node, self-loops included. A node is isolated if no
    edge but a self-loop touches it. A graph is symmetric if its edges, with their multiplicity,
    equal their reverse.
    """
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    reverse_offsets = np.asarray(graph.transpose_row_offsets)
    loops = np.asarray(graph.self_loops)
    degrees = np.diff(offsets)
    isolated = (degrees == loops) & (np.diff(reverse_offsets) == loops)
    symmetric = np.array_equal(offsets, reverse_offsets) and np.array_equal(
        senders, np.asarray(graph.transpose_receivers)
    )
    n = graph.num_receivers
    return {
        "nodes": n,
        "edges": graph.num_edges,
        "mean degree": float(degrees.mean()) if n else 0.0,
        "median degree": float(np.median(degrees)) if n else 0.0,
        "maximum degree": int(degrees.max(initial=0)),
        "self-loops": int(loops.sum()),
        "isolated nodes": int(isolated.sum()),
        "symmetric": bool(symmetric),
    }


def homophily(graph: Graph, labels: Int[np.ndarray, " num_nodes"]) -> float | None:
    """Share of the edges, self-loops apart, whose two ends have one label; None without edges.

    Edges with an end whose label is negative, of none, do not count.
    """
    senders = np.asarray(graph.senders)
    receivers = np.repeat(
        np.arange(graph.num_receivers, dtype=np.int32), np.diff(np.asarray(graph.row_offsets))
    )
    known = labels >= 0
    proper = (senders != receivers) & known[senders] & known[receivers]
    if not proper.any():
        return None
    return float((labels[senders[proper]] == labels[receivers[proper]]).mean())


def normalize_features(
    features: Float[np.ndarray, "num_nodes num_features"],
) -> Float[np.ndarray, "num_nodes num_features"]:
    """Rows scaled to sum 1, as PyG's `NormalizeFeatures`.

    $x' = x - min(x)$ over the whole matrix, then $x'_i / max(1, sum_k x'_{ik})$.

    Raises:
        DataError: a row's sum is beyond float32, or not finite.
    """
    normalized = np.array(features)
    if normalized.dtype.kind in "biu":
        normalized = normalized.astype(np.float32)
    normalize_in_place(normalized)
    return normalized


def normalize_in_place(features: Float[np.ndarray, "num_nodes num_features"]) -> None:
    """`normalize_features`, with temporaries of some rows."""
    if not features.size:
        return
    least = features.min()
    for begin, end in row_blocks(features):
        rows = features[begin:end]
        with np.errstate(over="ignore"):
            rows -= least
            sums = rows.sum(axis=1, keepdims=True)
        if not np.isfinite(sums).all():
            raise DataError("normalize_features: expected rows whose sum float32 can hold")
        rows /= np.maximum(sums, 1, dtype=np.float32)


def check_names(names: tuple[str, ...] | None, count: int, what: str) -> None:
    """Refuses names that are not `count` different strings."""
    if names is None:
        return
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{what}: expected a tuple of strings or None, got {quote(names)}")
    if len(names) != count or len(set(names)) != count:
        raise DataError(
            f"{what}: expected {count} different names, got {len(names)}, {len(set(names))} of "
            "them different"
        )


def check_graph(name: str, graph: Graph) -> None:
    """Refuses what is no name, and what is no graph of one set of nodes."""
    if not isinstance(name, str):
        got = type(name).__name__
        raise DataError(f"name: expected a string, then the graph, got {got}")
    if not isinstance(graph, Graph):
        raise DataError(f"graph: expected a jaxgnn.Graph, got {type(graph).__name__}")
    if not graph.is_square:
        raise DataError(f"graph: expected one set of nodes, got {graph}")


def _check_labels(labels: np.ndarray, num_nodes: int, num_classes: int) -> None:
    expected = f"int[{num_nodes}] or float32[{num_nodes}, {num_classes}]"
    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        if labels.dtype != np.float32 or labels.shape != (num_nodes, num_classes):
            raise DataError(f"labels: expected {expected}, got {_describe(labels)}")
        blocks = row_blocks(labels)
        if not all(np.isin(labels[begin:end], (0, 1)).all() for begin, end in blocks):
            raise DataError("labels: expected zeros and ones where nodes have several labels")
        return
    if (
        not isinstance(labels, np.ndarray)
        or not np.issubdtype(labels.dtype, np.integer)
        or labels.shape != (num_nodes,)
    ):
        raise DataError(f"labels: expected {expected}, got {_describe(labels)}")
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(
            f"labels: expected classes from 0 to {num_classes - 1}, "
            f"got {labels.min()} to {labels.max()}"
        )


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
