"""What `--task graph` makes of a set of graphs: features of the nodes, targets, a score, splits."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from jaxgnn.data import DataError, GraphSet, Metric, Split
from jaxgnn.data.sets.categories import MOST_CATEGORIES, check_categories, count_categories
from jaxgnn.data.sets.dataset import normalize_in_place
from jaxgnn.data.sets.splits import fold_splits
from jaxgnn.train.loaders.graph_store import GraphStore
from jaxgnn.train.reports.description import LARGEST_WIDTH, check_fields, names_of, unexpected
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps.model import EDGE_FEATURE_MODELS
from jaxgnn.train.steps.task import ERRORS

Targets = Literal["class", "labels", "values"]
"""A class a graph; several labels, each 0 or 1; or numbers."""

NodeInputs = Literal["features", "positions", "degrees"]

FOLDS = 10
_DEGREES = 64  # columns: 0 to 62, and more


@dataclasses.dataclass(frozen=True)
class GraphSetDescription:
    """The set of graphs that a run was trained on: what its model takes and gives.

    Attributes:
        name: the set's.
        num_graphs: their number.
        inputs: what the model reads at a node: the `"features"`, where there are none the
            `"positions"`, and without those the `"degrees"`: the edges that end at the node,
            one-hot in 64 columns, the last of which is 63 and more.
        num_features: the width of that.
        num_edge_features: width of the edges' features that the model reads; 0: it reads none.
        targets: `"class"`: one of several classes a graph; `"labels"`: several labels, each of
            which is 0 or 1; `"values"`: numbers.
        num_outputs: of the classes, labels or numbers.
        metric: the score.
        normalized: whether the run scaled the rows of the features to sum 1, of each graph by
            itself.
        class_names: the user's name of each class; `None`: numbers from 0.
        degree_histogram: how many nodes of the training graphs have 0, 1, 2, ... edges, for the
            scalers of `--model pna`; `None` of other models.
        node_categories, edge_categories: how many categories each column of the features has, where
            the model embeds them; `None` where it reads numbers.
    """

    name: str
    num_graphs: int
    inputs: NodeInputs
    num_features: int
    num_edge_features: int
    targets: Targets
    num_outputs: int
    metric: Metric
    normalized: bool
    class_names: tuple[str, ...] | None = None
    degree_histogram: tuple[int, ...] | None = None
    node_categories: tuple[int, ...] | None = None
    edge_categories: tuple[int, ...] | None = None

    @classmethod
    def of(cls, config: TrainConfig, graphs: GraphSet) -> GraphSetDescription:
        """That of a set, as the options take it.

        Raises:
            ConfigError: a metric that its targets do not have.
            DataError: a set without graphs or without targets, or without the categories asked for.
        """
        labels = graphs.labels
        if labels is None or not len(graphs):
            what = "graphs, got none" if not len(graphs) else "a label for each graph, got none"
            raise DataError(f"{graphs.name}: expected {what}")
        targets, metric = _targets(config, graphs)
        inputs, width = _inputs(graphs)
        edge_width = 0 if graphs.edge_features is None else graphs.edge_features.shape[1]
        used = _uses_edge_features(config, edge_width)
        of_nodes, of_edges = config.features, config.edge_features
        edge_categories = _categories(graphs, "edge_features", of_edges) if used else None
        names = graphs.class_names
        return cls(
            name=graphs.name,
            num_graphs=len(graphs),
            inputs=inputs,
            num_features=width,
            num_edge_features=edge_width if used else 0,
            targets=targets,
            num_outputs=labels.shape[1] if labels.ndim == 2 else int(graphs.num_classes or 0),
            metric=metric,
            normalized=config.features == "normalized" and inputs == "features",
            class_names=None if names is None else tuple(map(str, names)),
            degree_histogram=_degree_histogram(config, graphs) if config.model == "pna" else None,
            node_categories=_categories(graphs, "features", of_nodes),
            edge_categories=edge_categories,
        )

    def to_json(self) -> dict[str, Any]:
        """For `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> GraphSetDescription:
        """The inverse.

        Raises:
            ConfigError: `value` is something else.
        """
        check_fields(cls, value)
        for name in ("num_graphs", "num_features", "num_edge_features", "num_outputs"):
            least = int(name not in ("num_graphs", "num_edge_features"))
            if not least <= value[name] < LARGEST_WIDTH:
                raise unexpected(name, "a count", value[name])
        choices = {"inputs": NodeInputs, "targets": Targets, "metric": Metric}
        for name, kind in choices.items():
            if value[name] not in get_args(kind):
                raise unexpected(name, f"one of {', '.join(get_args(kind))}", value[name])
        names = names_of(value, "class_names", value["num_outputs"])
        counts = value.get("degree_histogram")
        if counts is not None and not (
            isinstance(counts, list)
            and all(type(count) is int and 0 <= count < LARGEST_WIDTH for count in counts)
            and any(counts[1:])
        ):
            raise unexpected("degree_histogram", "counts of nodes or null", counts)
        lists: dict[str, Any] = {"class_names": names, "degree_histogram": counts}
        for name, columns in (
            ("node_categories", "num_features"),
            ("edge_categories", "num_edge_features"),
        ):
            sizes = lists[name] = value.get(name)
            if sizes is not None and not (
                isinstance(sizes, list)
                and len(sizes) == value[columns] > 0
                and all(type(size) is int and 0 < size <= MOST_CATEGORIES for size in sizes)
            ):
                raise unexpected(name, f"{value[columns]} numbers of categories or null", sizes)
        known = {name: None if values is None else tuple(values) for name, values in lists.items()}
        return cls(**{**value, **known})

    def output_names(self) -> list[str]:
        """The name of each class; its number where it has none, and of labels and numbers."""
        return list(self.class_names or map(str, range(self.num_outputs)))

    def store(self, graphs: Any) -> GraphStore:
        """The graphs, with the nodes' and the edges' rows that the model reads.

        Args:
            graphs: a `GraphSet`, or a sequence of `PlainGraph`s.

        Raises:
            DataError: they lack these, or have others.
        """
        name = getattr(graphs, "name", "graphs")
        store = GraphStore.of(graphs)
        rows = store.features
        if self.inputs == "degrees":
            rows = _one_hot_degrees(store)
        elif self.inputs == "positions":
            rows = _positions(graphs)
        if rows is None:
            raise DataError(f"{name}: expected {self.inputs} of the nodes, got none")
        if rows.shape[1] != self.num_features:
            raise DataError(
                f"{name}: expected {self.num_features} {self.inputs} a node, as {self.name} has, "
                f"got {rows.shape[1]}"
            )
        if self.normalized:
            rows = _normalized(rows, store)
        check_categories(rows, _array(self.node_categories), f"{name}: features")
        edges = store.edge_features if self.num_edge_features else None
        found = 0 if edges is None else edges.shape[1]
        if found != self.num_edge_features:
            raise DataError(
                f"{name}: expected {self.num_edge_features} features an edge, as {self.name} has, "
                f"got {found}"
            )
        check_categories(edges, _array(self.edge_categories), f"{name}: edge_features")
        return dataclasses.replace(store, features=rows, edge_features=edges)


def _array(sizes: tuple[int, ...] | None) -> np.ndarray | None:
    return None if sizes is None else np.asarray(sizes, np.int64)


def _uses_edge_features(config: TrainConfig, width: int) -> bool:
    """Whether the model reads features of the edges."""
    if config.edge_features in ("raw", "categories"):
        if config.model not in EDGE_FEATURE_MODELS:
            raise ConfigError(
                f"--edge-features: expected a model that takes them, one of "
                f"{', '.join(EDGE_FEATURE_MODELS)}, got {config.model}"
            )
        if not width:
            raise ConfigError(
                f"--edge-features: expected features of the edges with {config.edge_features}, "
                "got none"
            )
    return config.edge_features != "none" and config.model in EDGE_FEATURE_MODELS


def _categories(
    graphs: GraphSet, name: Literal["features", "edge_features"], asked: str
) -> tuple[int, ...] | None:
    """The number of categories of each column: as the data say, or counted if asked for."""
    of_data = graphs.node_categories if name == "features" else graphs.edge_categories
    found = of_data if asked in ("auto", "categories") else None
    if found is None and asked == "categories":
        found = count_categories(getattr(graphs, name))
        if found is None:
            raise DataError(
                f"{graphs.name}: {name}: expected columns of categories, whole numbers from 0 "
                f"below {MOST_CATEGORIES:,}, got others"
            )
    return None if found is None else tuple(found.tolist())


def _targets(config: TrainConfig, graphs: GraphSet) -> tuple[Targets, Metric]:
    """What the labels are, and the score: that asked for, else that of the data."""
    labels, asked = graphs.labels, config.metric
    assert labels is not None
    own = graphs.metadata.metric if asked == "auto" else asked
    if labels.ndim == 1:
        if asked in ERRORS:
            raise ConfigError(
                f"--metric: expected a score of classes, as {graphs.name} has, got {asked}"
            )
        return "class", "accuracy" if own in ERRORS else own
    known = labels[~np.isnan(labels)]
    binary = bool(((known == 0) | (known == 1)).all())
    if own in ERRORS or (asked == "auto" and not binary):
        return "values", own if own in ERRORS else "rmse"
    if not binary:
        raise ConfigError(
            f"--metric: expected rmse or mae, {graphs.name} has numbers as targets, got {asked}"
        )
    # Accuracy is what data without a word of it have.
    return "labels", "roc_auc" if asked == "auto" and own == "accuracy" else own


def _inputs(graphs: GraphSet) -> tuple[NodeInputs, int]:
    for name in ("features", "positions"):
        rows = getattr(graphs, name)
        if rows is not None and rows.shape[1]:
            return name, rows.shape[1]
    return "degrees", _DEGREES


def _degree_histogram(config: TrainConfig, graphs: GraphSet) -> tuple[int, ...]:
    """Of the nodes of the graphs that the run trains on."""
    first_node = np.repeat(graphs.node_offsets[:-1], np.diff(graphs.edge_offsets))
    degrees = np.bincount(graphs.receivers + first_node, minlength=graphs.num_nodes)
    training = np.repeat(graph_split(graphs, config.split).train, np.diff(graphs.node_offsets))
    counts = np.bincount(degrees[training])
    if not counts[1:].any():
        raise ConfigError(f"--model: {graphs.name} has no edges to train on, which pna needs")
    return tuple(counts.tolist())


def _positions(graphs: Any) -> Float[np.ndarray, "nodes dimensions"] | None:
    if isinstance(graphs, GraphSet):
        return graphs.positions
    parts = [getattr(graphs[i], "positions", None) for i in range(len(graphs))]
    if any(part is None for part in parts):
        return None
    return np.concatenate([np.asarray(part) for part in parts])


def _normalized(
    rows: Float[np.ndarray, "nodes features"], store: GraphStore
) -> Float[np.ndarray, "nodes features"]:
    """`normalize_features` of each graph by itself: what a graph gives does not depend on which
    others are there."""
    if not rows.size:
        return rows
    filled = store.num_nodes > 0
    least = np.minimum.reduceat(rows.min(axis=1), store.node_offsets[filled])
    with np.errstate(over="ignore"):
        rows = rows - np.repeat(least, store.num_nodes[filled])[:, None]
    normalize_in_place(rows)  # the least of all is 0 now
    return rows


def _one_hot_degrees(store: GraphStore) -> Float[np.ndarray, "nodes degrees"]:
    rows = np.zeros((store.in_degrees.size, _DEGREES), np.float32)
    rows[np.arange(len(rows)), np.minimum(store.in_degrees, _DEGREES - 1)] = 1
    return rows


def graph_split(graphs: GraphSet, index: int) -> Split:
    """The split of that number; of a set without splits one of ten folds, stratified by class.

    Raises:
        ConfigError: there are fewer, or too few graphs.
    """
    splits = list(graphs.splits.values())
    if not splits:
        labels = graphs.labels
        classes = labels if labels is not None and labels.ndim == 1 else np.zeros(len(graphs), int)
        try:
            splits = list(fold_splits(classes, FOLDS, seed=0).values())
        except DataError as error:
            raise ConfigError(
                f"--split: {graphs.name}: expected splits, or graphs for folds ({error})"
            ) from error
    if index >= len(splits):
        count = len(splits)
        raise ConfigError(
            f"--split: {graphs.name} has {count} split{'s' * (count > 1)}, numbered from 0, got "
            f"{index}"
        )
    return splits[index].check_trains()
