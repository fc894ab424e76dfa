"""`load_run`: the model that a run trained, for graphs that it may never have seen."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from jaxgnn._core import checks
from jaxgnn._core.arguments import as_integer
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.data import DataError, GraphSet, NodeDataset, PlainGraph, load
from jaxgnn.data.loading.directions import load_undirected
from jaxgnn.data.sets.dataset import normalize_in_place
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.nn import GNN
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.loop.epochs import Best, Progress
from jaxgnn.train.problems.node_problem import choose_split, load_dataset, prepared, score_or_none
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.description import (
    DatasetDescription,
    by_name,
    check_class_names,
    check_finite,
    normalizes_features,
    with_degrees,
)
from jaxgnn.train.reports.records import check_data, fingerprint, read_config
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps.build_program import build, host_batch_size
from jaxgnn.train.steps.edge_weights import edge_weights_of
from jaxgnn.train.steps.embedded_model import padding_embedding
from jaxgnn.train.steps.layerwise import layerwise_inference
from jaxgnn.train.steps.task import Task, mean_loss
from jaxgnn.train.trained.loaded_graphs import LoadedGraphRun, evaluate_graph_scores, load_graph_run
from jaxgnn.train.trained.restored import newest_checkpoint, run_config


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedRun:
    """A trained model, without the data that it was trained on.

    Attributes:
        directory: the run directory.
        config: the run's settings.
        dataset: what its data were.
        model: with the parameters that the run selected, in inference mode; call it as
            `model(graph, features)`, of a run with `--edge-weights` as
            `model(graph, features, weights)`.
        progress: the epochs done, and the selected one.
    """

    directory: Path
    config: TrainConfig
    dataset: DatasetDescription
    model: GNN
    progress: Progress

    @functools.cached_property
    def _forward(self) -> Callable[..., Array]:
        definition, state = nnx.split(self.model)

        @jax.jit
        def forward(state: Any, graph: Graph, x: Array, weights: Array | None) -> Array:
            return nnx.merge(definition, state)(graph, x, weights)

        return functools.partial(forward, state)

    def logits(
        self,
        graph: Graph,
        features: Float[ArrayLike, "nodes features"],
        weights: Float[ArrayLike, " num_edges"] | None = None,
    ) -> Float[Array, "nodes classes"]:
        """The model's outputs, compiled once for each shape; of a run with features on the host by
        `layerwise_inference`, so that the device never holds the features of all nodes.

        Args:
            graph: any square graph.
            features: those of its nodes, as many as the run's data had, and prepared as those were
                (`dataset.normalized`).
            weights: of the edges, in the graph's edge order, of a run with `--edge-weights`, such
                as `edge_weights(data)` has them.

        Raises:
            DataError: a rectangular graph, features or weights of another shape, or weights where
                the run had none.
        """
        graph_argument(graph)
        if not graph.is_square:
            raise DataError(f"graph: expected one set of nodes, got {graph}")
        if self.has_embedding and graph.num_nodes != self.dataset.num_nodes:
            raise DataError(
                f"graph: expected the {self.dataset.num_nodes} nodes of {self.dataset.name}, whose "
                f"embedding was learned, got {graph.num_nodes}"
            )
        shape, expected = np.shape(features), (graph.num_nodes, self.dataset.num_features)
        if len(shape) != 2 or shape[0] != expected[0]:
            raise DataError(f"features: expected the shape {list(expected)}, got {list(shape)}")
        if shape[1] != expected[1]:
            raise DataError(
                f"features: expected {expected[1]} a node, as the run's data have, got {shape[1]}"
            )
        if weights is not None or self.config.edge_weights:
            weights = self._weights_argument(graph, weights)
        if self.config.features_on == "host" and not self.has_embedding:
            rows = np.asarray(features).astype(jnp.dtype(self.config.dtype), copy=False)
            host = HostFeatures(np.ascontiguousarray(rows))
            size = host_batch_size(self.config, graph.num_nodes)
            return layerwise_inference(self.model, graph, host, weights, batch_size=size)
        x = jnp.asarray(features, self.config.dtype)
        return self._forward(prepared(graph, self.config), x, weights)

    def _weights_argument(self, graph: Graph, weights: Any) -> Array:
        if weights is None:
            raise DataError("weights: expected some of a run with --edge-weights, got none")
        if not self.config.edge_weights:
            raise DataError("weights: expected none of a run without --edge-weights, got some")
        shape = np.shape(weights)
        if shape != (graph.num_edges,):
            raise DataError(f"weights: expected the shape [{graph.num_edges}], got {list(shape)}")
        return jnp.asarray(weights, accumulation_dtype(self.config.dtype))

    def edge_weights(
        self, data: NodeDataset | PlainGraph
    ) -> Float[np.ndarray, " num_edges"] | None:
        """The weights that `logits` and `predict` take for these data; `None` of a run without
        `--edge-weights`.

        Raises:
            DataError: the data have none, or some whose degrees a GCN cannot divide by.
        """
        return edge_weights_of(self.config, data)

    def predict(
        self,
        graph: Graph,
        features: Float[ArrayLike, "nodes features"],
        weights: Float[ArrayLike, " num_edges"] | None = None,
    ) -> Float[np.ndarray, "nodes classes"]:
        r"""The probability of each class at each node, on the host.

        $p_{ik} = e^{z_{ik}} / \sum_l e^{z_{il}}$ of the logits $z$; where a node may have several
        labels, $p_{ik} = 1 / (1 + e^{-z_{ik}})$. float32, of float64 models float64.

        Raises:
            DataError: as `logits`.
        """
        logits = self.logits(graph, features, weights)
        return np.asarray(jax.device_get(_probabilities(self, logits)))

    @property
    def has_embedding(self) -> bool:
        """Whether the model has a learned embedding for each node, and does not read features."""
        return self.config.features == "embedding"

    def exportable(self) -> nnx.Module:
        """The model as `jaxgnn.export.save` takes it, of a run with `--edge-weights` with
        `edge_weights=True`.

        One over an embedding takes there a graph with further nodes, as padding, whose rows are 0.
        """
        return padding_embedding(self.model)

    def load_data(self, path: str | os.PathLike[str]) -> NodeDataset | PlainGraph:
        """The data at a path or of a name, edges and features prepared as the run's were.

        Returns what `jaxgnn.data.load` does.

        Raises:
            DataError: no such data, a graph without features, or other features than the run's, by
                number or by name; other nodes by name, where the model has a learned embedding for
                each; of a run with `--edge-weights` as `edge_weights`.
        """
        data = load_undirected(path) if self.config.undirected else load(path)
        if not isinstance(data, NodeDataset | PlainGraph):
            raise DataError(f"{os.fspath(path)}: expected one graph, got a set of graphs")
        data = with_degrees(self.dataset, data)
        features = data.features
        if features is None or features.ndim != 2:
            raise DataError(f"{os.fspath(path)}: expected node features, got a graph without")
        if features.shape[1] != self.dataset.num_features:
            raise DataError(
                f"{os.fspath(path)}: expected {self.dataset.num_features} features a node, as "
                f"{self.dataset.name} has, got {features.shape[1]}"
            )
        data = by_name(self.dataset, data, os.fspath(path), learned=self.has_embedding)
        edge_weights_of(self.config, data, os.fspath(path))
        if self.dataset.normalized and data.features is not None:
            normalize_in_place(data.features)
        return data

    def own_data(self, name: str = "run") -> NodeDataset:
        """The data of the run's settings, which must be those that it was trained on; `name` is
        the argument that gave the directory.

        Raises:
            ConfigError, DataError: they are not there, or others.
        """
        data = load_dataset(self.config)
        found = {"name": data.name, "fingerprint": self._fingerprint(data)}
        check_data(self.directory, read_config(self.directory, name).get("data"), found, name)
        return data

    def is_own(self, data: NodeDataset) -> bool:
        """Whether the run was trained on these data, by their checksum."""
        saved = read_config(self.directory, "run").get("data")
        try:
            return isinstance(saved, dict) and saved.get("fingerprint") == self._fingerprint(data)
        except (ConfigError, DataError):  # without the run's split
            return False

    def _fingerprint(self, data: NodeDataset) -> str:
        split = choose_split(data, self.config.split)
        return fingerprint(data, split, weights=self.config.edge_weights)


def _probabilities(run: LoadedRun, logits: Array) -> Array:
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return jax.nn.sigmoid(logits) if run.dataset.multilabel else jax.nn.softmax(logits)


def load_run(
    directory: str | os.PathLike[str],
    name: str = "run",
    *,
    warn: Callable[[str], None] | None = None,
) -> LoadedRun | LoadedGraphRun:
    """The model of a run, with the parameters that it selected; the data are not read.

    Returns a `LoadedRun`; of a run of `--task graph` a `LoadedGraphRun`. Runs of versions that
    recorded no description of their data read these.

    Args:
        directory: the run directory; nothing is written to it.
        name: the argument that gave it, for messages.
        warn: called with one line for each checkpoint that is damaged; by default a `RunWarning`.

    Raises:
        ConfigError: no run directory, no checkpoint yet, a run of `--task link`, or a float64 run
            without `jax_enable_x64`.
        CheckpointError: no checkpoint that can be restored.
    """
    directory = checks.path(directory, name)
    config = run_config(directory, name, "node", "graph")
    if config.task == "graph":
        return load_graph_run(directory, name, config, warn or Recovery().warn)
    record = read_config(directory, name)
    if "dataset" in record:
        description = DatasetDescription.from_json(record["dataset"])
    else:
        data = load_dataset(config)
        normalized = normalizes_features(config, data)
        description = DatasetDescription.of(data, normalized=normalized)
    program, state = build(config, _smallest_task(description, config))
    start = (state, Best(state.params, state.rest))
    (_, best), progress = newest_checkpoint(directory, name, start, warn or Recovery().warn)
    model = nnx.merge(program.inference, best.params, best.rest)
    return LoadedRun(directory, config, description, model, progress)


def _smallest_task(description: DatasetDescription, config: TrainConfig) -> Task:
    """A graph of one node, or of those that have an embedding: parameters have the shapes that this
    and the widths decide."""
    nodes = description.num_nodes if config.features == "embedding" else 1
    classes = description.num_classes
    labels = jnp.zeros((nodes, classes)) if description.multilabel else jnp.zeros(nodes, jnp.int32)
    return Task(
        graph=Graph.from_edges(np.zeros(1, int), np.zeros(1, int), num_nodes=nodes),
        features=jnp.zeros((1, description.num_features), config.dtype),
        labels=labels,
        train=jnp.ones(nodes, bool),
        val=jnp.zeros(nodes, bool),
        num_classes=classes,
        metric=description.metric,
        weights=jnp.ones(1) if config.edge_weights else None,
    )


def check_loaded(run: Any) -> None:
    """Refuses an argument that is no run of `load_run`.

    Raises:
        TypeError: naming what it is.
    """
    if not isinstance(run, LoadedRun | LoadedGraphRun):
        raise TypeError(f"run: expected one of load_run, got {type(run).__name__}")


def evaluate_scores(
    run: LoadedRun | LoadedGraphRun,
    dataset: NodeDataset | PlainGraph | GraphSet,
    split: int | None = None,
) -> dict[str, Any]:
    """Score and loss of a trained model on the nodes of a split, with all edges, or on the graphs.

    Args:
        run: the model.
        dataset: the data, such as `run.own_data()` or `run.load_data(path)`.
        split: which of its splits; by default the run's.

    Returns:
        `run`, `dataset`, `model`, `metric`, `split`, and `rows`: for the training, validation and
        test nodes `nodes`, `score` and `loss`, the last two `None` where they are undefined. Of
        graphs `graphs` in place of `nodes`; other sets than the run's that have no splits are one
        row, and `split` is `None`.

    Raises:
        TypeError: `run` is none of `load_run`, or `dataset` no data.
        ConfigError: no such split.
        DataError: data with other labels than the model has outputs, or other features.
    """
    check_loaded(run)
    if not isinstance(dataset, NodeDataset | PlainGraph | GraphSet):
        got = type(dataset).__name__
        raise TypeError(f"dataset: expected a NodeDataset, PlainGraph or GraphSet, got {got}")
    if split is not None and ((number := as_integer(split)) is None or number < 0):
        raise ConfigError(f"--split: expected an integer from 0, got {split!r}")
    if isinstance(run, LoadedGraphRun):
        if not isinstance(dataset, GraphSet):
            raise DataError(f"{dataset.name}: expected a set of graphs, got one graph")
        return evaluate_graph_scores(run, dataset, split)
    if not isinstance(dataset, NodeDataset):
        raise DataError(f"{dataset.name}: expected labels to score, got a graph without")
    found = (dataset.num_classes, dataset.is_multilabel)
    if found != (run.dataset.num_classes, run.dataset.multilabel):
        kinds = ["one label a node", "several labels a node"]
        raise DataError(
            f"{dataset.name}: expected {run.dataset.num_classes} classes and "
            f"{kinds[run.dataset.multilabel]}, as the model has, got {found[0]} and "
            f"{kinds[found[1]]}"
        )
    check_class_names(dataset, run.dataset)
    index = run.config.split if split is None else split
    masks = choose_split(dataset, index, training=False)
    weights = run.edge_weights(dataset)
    logits = np.asarray(jax.device_get(run.logits(dataset.graph, dataset.features, weights)))
    scored = masks.train | masks.val | masks.test
    check_finite(np.where(scored[:, None], logits, 0), dataset.name)
    loss = jax.jit(mean_loss)
    rows = []
    for name in ("train", "val", "test"):
        mask = getattr(masks, name)
        value = float(loss(dataset.labels, logits, mask)) if mask.any() else None
        rows.append(
            {
                "nodes_of": {"train": "training", "val": "validation", "test": "test"}[name],
                "nodes": int(mask.sum()),
                "score": score_or_none(dataset, logits, mask),
                "loss": value if value is not None and np.isfinite(value) else None,
            }
        )
    return {
        "run": str(run.directory.absolute()),
        "dataset": dataset.name,
        "model": run.config.model,
        "metric": dataset.metric,
        "split": index,
        "best_epoch": run.progress.best_epoch,
        "rows": rows,
    }
