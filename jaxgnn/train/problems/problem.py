"""What a run trains on, by its task."""

from __future__ import annotations

from typing import Any

from jaxgnn._core.text import printable
from jaxgnn.data import GraphSet, NodeDataset, PlainGraph, load, normalize_features
from jaxgnn.data.loading.directions import with_reverse_edges
from jaxgnn.graph import transform
from jaxgnn.train.problems.graph_problem import GraphProblem
from jaxgnn.train.problems.links import LinkData, LinkProblem
from jaxgnn.train.problems.node_problem import NodeProblem, check_dataset, load_dataset, prepared
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.description import normalizes_features
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.own_parts import load_own_parts


def make_problem(
    config: TrainConfig, dataset: NodeDataset | LinkData | GraphSet | None, recovery: Recovery
) -> NodeProblem | LinkProblem | GraphProblem:
    """What `--task` asks for, of the data given or of those of `config.dataset`.

    Raises:
        TypeError: `dataset` is none.
        ConfigError, DataError: options or data that cannot be.
    """
    if config.task == "graph":
        return GraphProblem(config, load_graphs(config) if dataset is None else _as_graphs(dataset))
    if isinstance(dataset, GraphSet):
        raise ConfigError(f"--task: expected graph with a set of graphs, got {config.task}")
    if config.task == "link":
        data = load_link_data(config) if dataset is None else _as_link_data(config, dataset)
        return LinkProblem(config, data, prepared)
    normalized, partition = False, None  # features that the caller gives are taken as they are
    of_folder = load_own_parts(config) if dataset is None else None
    own = None
    if of_folder is not None:
        dataset, own = of_folder
    elif dataset is None:
        dataset, partition = load_dataset(config), sharded.partition_of(config)
        normalized = normalizes_features(config, dataset)
    elif config.undirected and isinstance(dataset, NodeDataset):
        dataset = with_reverse_edges(dataset)
    if isinstance(dataset, LinkData):
        raise ConfigError("--task: expected link with a graph without labels, got node")
    check_dataset(dataset)
    _warn_without_positions(config, dataset, recovery)
    return NodeProblem(config, dataset, normalized=normalized, partition=partition, own=own)


def _warn_without_positions(config: TrainConfig, dataset: NodeDataset, recovery: Recovery) -> None:
    if config.model == "edgeconv" and not dataset.metadata.positions:
        recovery.warn(
            f"edgeconv is made for points, whose features are positions: {dataset.name} has none, "
            "expect a low score"
        )


def load_graphs(config: TrainConfig) -> GraphSet:
    """The configured set of graphs.

    Raises:
        ConfigError: the data are one graph.
        DataError: they cannot be read.
    """
    return _as_graphs(load(config.dataset))


def _as_graphs(data: Any) -> GraphSet:
    if not isinstance(data, GraphSet):
        raise ConfigError(f"--task: graph expected a set of graphs, got {printable(data)}")
    return data


def load_link_data(config: TrainConfig) -> LinkData:
    """The configured graph, with the features that its data have.

    Raises:
        ConfigError: the data are many graphs.
        DataError: they cannot be read.
    """
    loaded = load(config.dataset)
    if isinstance(loaded, GraphSet):
        raise ConfigError(f"--task: link expected one graph, got {printable(loaded)}")
    nodes = isinstance(loaded, NodeDataset)
    by_custom = normalizes_features(config, loaded) if nodes else config.features == "normalized"
    return link_data_of(config, loaded, normalized=by_custom and loaded.features is not None)


def link_data_of(
    config: TrainConfig, loaded: NodeDataset | PlainGraph, *, normalized: bool
) -> LinkData:
    """What was loaded as a run's settings have it: both directions, features scaled or not."""
    features = loaded.features
    if normalized and features is not None:
        features = normalize_features(features)
    names = loaded.node_names, loaded.feature_names
    data = LinkData(loaded.name, loaded.graph, features, names[0], normalized, names[1])
    return _as_link_data(config, data)


def _as_link_data(config: TrainConfig, data: NodeDataset | LinkData) -> LinkData:
    if isinstance(data, NodeDataset):
        names = data.node_names, data.feature_names
        data = LinkData(data.name, data.graph, data.features, names[0], feature_names=names[1])
    if not isinstance(data, LinkData):
        raise TypeError(f"dataset: expected a LinkData or NodeDataset, got {type(data).__name__}")
    if not config.directed and not data.graph.symmetric:
        data = data._replace(graph=transform.to_undirected(data.graph)[0])
    return data
