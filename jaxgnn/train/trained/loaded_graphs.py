"""`LoadedGraphRun`: the model that a run of `--task graph` trained."""

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
from jaxtyping import Array, Float

from jaxgnn._core.checksum import checksum
from jaxgnn.data import DataError, GraphSet, PlainGraph, load
from jaxgnn.graph import Graph
from jaxgnn.train.loaders.graph_loader import GraphLoader, GraphMinibatch
from jaxgnn.train.loop.epochs import Best, Progress
from jaxgnn.train.problems.graph_data import GraphSetDescription, graph_split
from jaxgnn.train.problems.graph_model import GraphModel, OfDegrees, build_graphs, known_targets
from jaxgnn.train.problems.graph_problem import graph_arrays, scores_of
from jaxgnn.train.reports.description import check_class_names, check_finite
from jaxgnn.train.reports.records import check_data, read_config
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.trained.restored import newest_checkpoint

_PARTS = {"train": "training", "val": "validation", "test": "test"}


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedGraphRun:
    """A trained model of graphs, without the data that it was trained on.

    Attributes:
        directory: the run directory.
        config: the run's settings.
        dataset: what its data were.
        model: with the parameters that the run selected, in inference mode; called as
            `model(batch, features, edge_features)`.
        progress: the epochs done, and the selected one.
    """

    directory: Path
    config: TrainConfig
    dataset: GraphSetDescription
    model: GraphModel
    progress: Progress

    @functools.cached_property
    def _forward(self) -> Callable[..., Any]:
        definition, state = nnx.split(self.model)

        def outputs(state: Any, minibatch: GraphMinibatch) -> Array:
            model = nnx.merge(definition, state)
            assert minibatch.features is not None
            return model(minibatch.batch, minibatch.features, minibatch.edge_features)

        return functools.partial(jax.jit(outputs), state)

    def _loader(self, graphs: Any, batch_size: int | None = None) -> GraphLoader:
        store: Any = self.dataset.store(graphs)
        return GraphLoader(store, batch_size or self.config.batch_size, shuffle=False)

    def union_size(self, graphs: Any, batch_size: int | None = None) -> tuple[int, int]:
        """Nodes, with one of padding, and edges that nearly all batches of some graphs stay below,
        and each graph alone.

        Args:
            graphs: as of `logits`.
            batch_size: graphs of a batch; by default the run's.

        Raises:
            DataError, TypeError, ValueError: as `logits`, or no graphs.
        """
        return self._loader(graphs, batch_size).union_size()

    def logits(self, graphs: Any) -> Float[np.ndarray, "graphs outputs"]:
        """The model's outputs for each graph, on the host: logits, or numbers in the units of the
        targets. Batches are those of `GraphLoader`.

        Args:
            graphs: a `GraphSet`, or a sequence of `PlainGraph`s, with the features that the run's
                data have.

        Raises:
            DataError: other features.
            TypeError, ValueError: no graphs.
        """
        if isinstance(graphs, PlainGraph | Graph):
            kind = type(graphs).__name__
            raise TypeError(f"graphs: expected a GraphSet or a sequence of graphs, got one {kind}")
        if not len(graphs):
            return np.zeros((0, self.dataset.num_outputs), np.float32)
        found = [(self._forward(batch), batch.batch.graph_mask) for batch in self._loader(graphs)]
        return np.concatenate([np.asarray(rows)[np.asarray(mask)] for rows, mask in found])

    def predict(self, graphs: Any) -> Float[np.ndarray, "graphs outputs"]:
        """The probability of each class, or of each label, of each graph; targets that are numbers
        as they are.

        Args:
            graphs: as of `logits`.

        Raises:
            DataError, TypeError, ValueError: as `logits`.
        """
        outputs = self.logits(graphs)
        if self.dataset.targets == "class":
            return np.asarray(jax.nn.softmax(outputs))
        return np.asarray(jax.nn.sigmoid(outputs)) if self.dataset.targets == "labels" else outputs

    def exportable(self) -> nnx.Module:
        """The model as `jaxgnn.export.save` takes it: called as `model(batch, features)`, or with
        the edges' features; where the run's data had no features, these have no columns."""
        if self.dataset.inputs == "degrees":
            return OfDegrees(self.model, self.dataset.num_features)
        return self.model

    def load_data(self, path: str | os.PathLike[str]) -> GraphSet:
        """The set of graphs at a path or of a name.

        Raises:
            DataError: no such data, one graph, or other features.
        """
        data = load(path)
        if not isinstance(data, GraphSet):
            raise DataError(f"{os.fspath(path)}: expected a set of graphs, got one graph")
        return data

    def _fingerprint(self, graphs: GraphSet) -> str:
        return checksum(*graph_arrays(graphs, graph_split(graphs, self.config.split)))

    def own_data(self, name: str = "run") -> GraphSet:
        """The data of the run's settings, which must be those that it was trained on; `name` is
        the argument that gave the directory.

        Raises:
            DataError, ConfigError: they are not there, or others.
        """
        data = self.load_data(self.config.dataset)
        found = {"name": data.name, "fingerprint": self._fingerprint(data)}
        check_data(self.directory, read_config(self.directory, name).get("data"), found, name)
        return data

    def is_own(self, graphs: GraphSet) -> bool:
        """Whether the run was trained on these graphs: by their checksum, or by the name where the
        run recorded none."""
        if len(graphs) != self.dataset.num_graphs:
            return False
        saved = read_config(self.directory, "run").get("data")
        if not isinstance(saved, dict) or "fingerprint" not in saved:
            return graphs.name == self.dataset.name
        try:
            return self._fingerprint(graphs) == saved["fingerprint"]
        except ConfigError:  # too few graphs for the run's split
            return False


def load_graph_run(
    directory: Path, name: str, config: TrainConfig, warn: Callable[[str], None]
) -> LoadedGraphRun:
    """The model of a run of `--task graph`, with the parameters that it selected."""
    description = GraphSetDescription.from_json(read_config(directory, name).get("dataset"))
    program, state = build_graphs(config, description, steps=1)
    start = (state, Best(state.params, state.rest))
    (_, best), progress = newest_checkpoint(directory, name, start, warn)
    model = nnx.merge(program.inference, best.params, best.rest)
    return LoadedGraphRun(directory, config, description, model, progress)


def evaluate_graph_scores(run: LoadedGraphRun, graphs: GraphSet, split: int | None) -> Any:
    """`evaluate_scores` of graphs; of a set without splits that is not the run's, of all graphs.

    Raises:
        ConfigError: no such split.
        DataError: other targets than the model has outputs, or other features.
    """
    data = run.dataset
    labels = graphs.labels
    if labels is None:
        raise DataError(f"{graphs.name}: expected labels to score, got none")
    outputs = int(graphs.num_classes or 0) if labels.ndim == 1 else labels.shape[1]
    if (outputs, labels.ndim == 1) != (data.num_outputs, data.targets == "class"):
        kinds = {"class": "classes", "labels": "labels a graph", "values": "targets a graph"}
        got = "classes" if labels.ndim == 1 else "targets a graph"
        raise DataError(
            f"{graphs.name}: expected {data.num_outputs} {kinds[data.targets]}, as the model has, "
            f"got {outputs} {got}"
        )
    check_class_names(graphs, data)
    index, parts = None, {"all": np.ones(len(graphs), bool)}
    if graphs.splits or split is not None or run.is_own(graphs):
        index = run.config.split if split is None else split
        masks = graph_split(graphs, index)
        parts = {text: getattr(masks, part) for part, text in _PARTS.items()}
    logits = run.logits(graphs)
    check_finite(logits, graphs.name)
    rows = []
    for part, mask in parts.items():
        scores = scores_of(data, labels[mask], logits[mask])
        rows.append(
            {
                "graphs_of": part,
                "graphs": int(mask.sum()),
                "score": scores.get(data.metric),
                "loss": _loss(run.model, labels[mask], logits[mask]),
            }
        )
    return {
        "run": str(run.directory.absolute()),
        "dataset": graphs.name,
        "model": run.config.model,
        "metric": data.metric,
        "split": index,
        "best_epoch": run.progress.best_epoch,
        "rows": rows,
    }


def _loss(model: GraphModel, labels: np.ndarray, logits: np.ndarray) -> float | None:
    """The mean loss of some graphs, where a target is known."""
    known = known_targets(jnp.asarray(labels), jnp.ones(len(labels), bool))
    value = float(model.loss(jnp.asarray(logits), jnp.asarray(labels), known))
    return value if known.any() and np.isfinite(value) else None
