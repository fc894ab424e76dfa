"""Nodes to classify."""

from __future__ import annotations

import copy as copy_module
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from jaxgnn._core import ffi
from jaxgnn._core.checksum import checksum
from jaxgnn.data import DataError, NodeDataset, Split, load_nodes, normalize_features
from jaxgnn.data.loading.directions import load_undirected
from jaxgnn.data.loading.registry import of_nodes
from jaxgnn.distributed import Partition, ShardedGraph
from jaxgnn.graph import Graph
from jaxgnn.graph._layouts.windows import MAX_WIDTH
from jaxgnn.graph.transform import remove_self_loops
from jaxgnn.train.loop.epochs import Compiled
from jaxgnn.train.loop.stages import compile_program
from jaxgnn.train.reports.description import DatasetDescription, normalizes_features
from jaxgnn.train.reports.records import fingerprint
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.build_program import build
from jaxgnn.train.steps.edge_weights import edge_weights_of
from jaxgnn.train.steps.model import LOOP_MODELS, WEIGHTED_MODELS
from jaxgnn.train.steps.own_parts import OwnParts, check_parts
from jaxgnn.train.steps.step import Program, TrainState
from jaxgnn.train.steps.task import Task, score
from jaxgnn.train.steps.tiling import tiled


class NodeProblem:
    """Nodes to classify: what a run trains on and is scored by.

    Attributes:
        name: of the data.
        task: what training sees.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: NodeDataset,
        *,
        normalized: bool = False,
        partition: Partition | None = None,
        own: OwnParts | None = None,
    ):
        self._config, self._dataset, self.name = config, dataset, dataset.name
        self._normalized, self._own, self._partition = normalized, own, partition
        self._refusal = ""  # of a layout that was predicted to be faster
        self._split = choose_split(dataset, config.split)
        self.task = make_task(config, dataset, self._split, partition, own, training=True)

    def with_config(self, config: TrainConfig) -> NodeProblem:
        """The same data and graph for another model or number of epochs."""
        other = copy_module.copy(self)
        other._config = config
        return other

    def fingerprint(self) -> str:
        """Of all that a run reads."""
        if self._own is None:
            weights = self._config.edge_weights
            return fingerprint(self._dataset, self._split, weights=weights)
        masks = self._split.train, self._split.val, self._split.test
        return checksum(*masks, after=self._own.checksum)

    @property
    def _num_edges(self) -> int:
        own = self._own
        return self._dataset.graph.num_edges if own is None else own.graph.num_graph_edges

    def record(self) -> dict[str, Any]:
        """What `config.json` says of the data, for a model without them."""
        description = DatasetDescription.of(self._dataset, normalized=self._normalized)
        description = dataclasses.replace(
            description, num_edges=self._num_edges, num_features=self.task.features.shape[1]
        )
        return {"dataset": description.to_json()}

    def describe(self) -> str:
        """What is trained on, in a line."""
        dataset = self._dataset
        train_nodes, val_nodes, test_nodes = self._split.sizes
        why = f" (by features: {self._refusal})" if self._refusal else ""
        why += self._of_edges()
        return (
            f"{dataset.name}: {dataset.num_nodes:,} nodes, {self._num_edges:,} edges, "
            f"{self.task.features.shape[1]:,} features, {dataset.num_classes} classes; "
            f"{train_nodes:,} training, {val_nodes:,} validation, {test_nodes:,} test nodes"
            f"{sharded.describe(self.task.graph)}{why}"
        )

    def _of_edges(self) -> str:
        """Which values of the edges are used."""
        own, dataset = self._own, self._dataset
        there = dataset.weights is not None if own is None else own.has_weights
        used = self.task.weights is not None
        beside = {"weights": there and not used, "features": dataset.edge_features is not None}
        unused = " and ".join(name for name, is_unused in beside.items() if is_unused)
        text = "; weights of the edges are used" if used else ""
        text += f"; {unused} of the edges are not used" if unused else ""
        if beside["weights"] and self._config.model in WEIGHTED_MODELS:
            text += " (weights: --edge-weights)"
        return text

    def build(self) -> tuple[Program, TrainState]:
        """The program, and the state it starts from.

        Where the layout was left to the estimate and the model does not work in it, the task's
        graph is by rows from now on.

        Raises:
            ConfigError: an option that the model does not have, or a graph over devices that the
                model does not work on.
        """
        try:
            return self._build()
        except ConfigError as error:
            layout = getattr(self.task.graph, "layout", None)
            if layout != "features" or self._config.shard != "auto":
                raise
            reason = str(error).removeprefix("--devices: ").removeprefix("graph: ")
            self._refusal = reason.partition(": use shard(")[0]
        del self.task  # makes room
        by_rows = dataclasses.replace(self._config, shard="rows")
        self.task = make_task(by_rows, self._dataset, self._split, self._partition, self._own)
        return self._build()

    def _build(self) -> tuple[Program, TrainState]:
        program, state = build(self._config, self.task)
        state = sharded.replicate(state, self.task.graph)
        if isinstance(self.task.graph, ShardedGraph):
            # A model that is refused leaves no run directory.
            with sharded.tracing(self.task.graph):
                jax.eval_shape(program.step, state, self.task)
                jax.eval_shape(program.logits, state.params, state.rest, self.task)
        return program, state

    def compile(self, program: Program, state: TrainState) -> Compiled:
        """The step and the evaluation."""
        return compile_program(self._config, program, state, self.task)

    def results(
        self, program: Program, evaluate: Callable[..., Any], params: Any, rest: Any
    ) -> dict[str, Any]:
        """The scores of validation and test, and the confusion of the test nodes."""
        dataset, split = self._dataset, self._split
        logits = sharded.in_node_order(evaluate(params, rest, self.task)[0], self.task.graph)
        test = score_or_none(dataset, logits, split.test)
        scores = {} if test is None else {dataset.metric: test}
        if scores and dataset.metric == "micro_f1":
            scores["macro_f1"] = score("macro_f1", dataset.labels, logits, split.test)
        return {
            "test_score": test,
            "val_score": score_or_none(dataset, logits, split.val),
            "test_scores": scores,
            "confusion": confusion(dataset, logits, split),
        }


def load_dataset(config: TrainConfig) -> NodeDataset:
    """The dataset of `config.dataset` as `run` trains on it: edges both ways if asked for, features
    normalized if asked for, or by custom (Planetoid).

    Raises:
        TypeError: `config` is no `TrainConfig`.
        ConfigError: edges are to join both ways, and the data are a folder of parts.
        DataError: they cannot be read, or edges are to have weights, and the data are a folder of
            parts without.
    """
    check_config(config)
    check_parts(config)
    if not config.undirected:
        return _with_features(config, load_nodes(config.dataset))
    return _with_features(config, of_nodes(config.dataset, load_undirected(config.dataset)))


def check_dataset(dataset: Any) -> None:
    """Refuses an argument that is no data set of nodes.

    Raises:
        TypeError: naming what it is.
    """
    if not isinstance(dataset, NodeDataset):
        raise TypeError(f"dataset: expected a NodeDataset, got {type(dataset).__name__}")


def _with_features(config: TrainConfig, dataset: NodeDataset) -> NodeDataset:
    if normalizes_features(config, dataset):
        dataset = dataclasses.replace(dataset, features=normalize_features(dataset.features))
    return dataset


def choose_split(dataset: NodeDataset, index: int, *, training: bool = True) -> Split:
    """The split of that number.

    Raises:
        ConfigError: there are fewer.
        DataError: it is for `training`, and has no nodes to train on.
    """
    try:
        split = dataset.split(index)
        return split.check_trains() if training else split
    except DataError as error:
        raise DataError(f"{dataset.name}: {error}") from None
    except IndexError:
        count = len(dataset.splits)
        raise ConfigError(
            f"--split: {dataset.name} has {count} split{'s' * (count > 1)}, numbered from 0, "
            f"got {index}"
        ) from None


def make_task(
    config: TrainConfig,
    dataset: NodeDataset,
    split: Split,
    partition: Partition | None = None,
    own: OwnParts | None = None,
    *,
    training: bool = False,
) -> Task:
    """What the configured model is trained on, over the configured devices.

    With `training` the graph gets what only the many steps of a run repay.

    Raises:
        ConfigError: a number of devices that cannot be.
        DataError: `--edge-weights`, and no weights that the model can take.
    """
    if own is not None:
        task = Task.from_dataset(dataset, split, config.dtype, graph=own.graph)
        return dataclasses.replace(task, features=own.features, weights=own.weights)
    weights = edge_weights_of(config, dataset, training=True)
    graph = prepared(_without_own_loops(dataset.graph, config), config)
    if training:
        graph = tiled(graph, config)
    graph = sharded.shard_graph(graph, config, partition)
    return Task.from_dataset(
        dataset,
        split,
        config.dtype,
        graph=graph,
        features_on=config.features_on,
        weights=weights,
    )


def _without_own_loops(graph: Graph, config: TrainConfig) -> Graph:
    """The graph without self-loops where layers put one at each node in their place, which they
    cannot in a tree of samples: there each edge comes from a place of its own."""
    in_trees = config.num_neighbors and not config.deduplicate
    if not (in_trees and config.model in LOOP_MODELS) or graph.self_loops is None:
        return graph
    if not np.asarray(graph.self_loops).any():
        return graph
    return remove_self_loops(graph)[0]


def prepared(graph: Graph, config: TrainConfig) -> Graph:
    """The graph with what makes a GPU's aggregations fastest: an order of the rows, and windows for
    MaxK's, of rows as wide as a hidden layer. Neither moves a node or an edge."""
    if jax.default_backend() != "gpu" or ffi.cpu_module is None:
        return graph
    graph = graph.with_row_schedule()  # for dense rows
    if config.activation == "maxk" and config.hidden <= MAX_WIDTH:
        weighted = config.edge_weights and graph.num_edges < 1 << 31  # beyond: by rows
        return graph.with_windows(width=config.hidden, weighted=weighted)
    return graph


def confusion(dataset: NodeDataset, logits: np.ndarray, split: Split) -> np.ndarray | None:
    """Counts of the test nodes by true and predicted class, where a node has one class."""
    mask = split.test
    if dataset.is_multilabel or not mask.any():
        return None
    found = logits[mask].argmax(axis=-1)
    return confusion_counts(dataset.labels[mask], found, dataset.num_classes)


def confusion_counts(
    labels: Int[np.ndarray, " rows"], found: Int[np.ndarray, " rows"], classes: int
) -> Int[np.ndarray, "classes classes"]:
    """How many rows of each class (row) were given each class (column)."""
    counts = np.bincount(labels * classes + found, minlength=classes**2)
    return counts.reshape(classes, classes)


def score_or_none(dataset: NodeDataset, logits: np.ndarray, mask: np.ndarray) -> float | None:
    """The dataset's score over a mask; `None` where there is none."""
    if not mask.any():
        return None
    value = score(dataset.metric, dataset.labels, logits, mask)
    return value if np.isfinite(value) else None
