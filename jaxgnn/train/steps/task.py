"""`Task`: node classification on one split of a dataset, on the device, and how it is scored."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxgnn import metrics
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.data import Metric, NodeDataset, Split
from jaxgnn.distributed import ShardedGraph
from jaxgnn.distributed._placement import place
from jaxgnn.graph import Graph
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.settings.options import FeaturesOn


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "features", "labels", "train", "val", "weights"],
    meta_fields=["num_classes", "metric"],
)
@dataclasses.dataclass(frozen=True)
class Task:
    """What a training step sees: never the test mask.

    Attributes:
        graph, features, labels: the dataset's, on the device; features may be in host memory. Of
            a sharded graph nodes' data is as `ShardedGraph.scatter` returns it, and edges' as
            `scatter_edges`.
        train, val: masks of the nodes to learn from and to select on, false for padding; `val` may
            be empty.
        num_classes: number of outputs.
        metric: the score to select by, such as `"accuracy"`.
        weights: of the edges, in the graph's edge order, where the model takes them.
    """

    graph: Graph | ShardedGraph
    features: Float[Array, "nodes features"] | HostFeatures
    labels: Int[Array, " nodes"] | Float[Array, "nodes classes"]
    train: Bool[Array, " nodes"]
    val: Bool[Array, " nodes"]
    num_classes: int
    metric: Metric
    weights: Float[Array, " num_edges"] | None = None

    @property
    def whole_graph(self) -> Graph:
        """The graph of a task on one device."""
        assert isinstance(self.graph, Graph)
        return self.graph

    @classmethod
    def from_dataset(
        cls,
        dataset: NodeDataset,
        split: Split,
        dtype: DTypeLike = jnp.float32,
        *,
        graph: Graph | ShardedGraph | None = None,
        features_on: FeaturesOn = "device",
        weights: Float[np.ndarray, " num_edges"] | None = None,
    ) -> Task:
        """Moves a dataset to the default device, its features in `dtype`; or all but these.

        `graph` takes the place of the dataset's: the same with windows or an order of its rows, or
        over several devices. `weights` are those of its edges, in its edge order, and are kept in
        the type of the sums.
        """
        put = _placement(graph)
        rows = np.asarray(dataset.features).astype(jnp.dtype(dtype), copy=False)
        features: Array | HostFeatures
        if features_on == "host":
            features = HostFeatures(np.ascontiguousarray(rows)).placed(put)
        else:
            features = put(rows)
        if weights is not None:
            weights = np.asarray(weights).astype(accumulation_dtype(dtype), copy=False)
        return cls(
            graph=dataset.graph if graph is None else graph,
            features=features,
            labels=put(dataset.labels),
            train=put(split.train),
            val=put(split.val),
            num_classes=dataset.num_classes,
            metric=dataset.metric,
            weights=None if weights is None else _edge_placement(graph)(weights),
        )


def _placement(graph: Any) -> Callable[[Any], Array]:
    """Nodes' data from the host to where the graph is; no device need hold a sharded graph's."""
    if isinstance(graph, ShardedGraph):
        return graph.scatter
    sharding = getattr(getattr(graph, "row_offsets", None), "sharding", None)
    if sharding is None or sharding.num_devices == 1:
        return jnp.asarray
    return functools.partial(place, sharding=sharding)


def _edge_placement(graph: Any) -> Callable[[Any], Array]:
    """The same of edges' data, in the graph's edge order."""
    if isinstance(graph, ShardedGraph):
        return functools.partial(graph.scatter_edges, in_graph_order=True)
    return _placement(graph)


class Labelled(Protocol):
    """A task whose logits are scored row by row against its labels."""

    @property
    def labels(self) -> Array: ...


def masked_loss(
    task: Labelled, logits: Float[Array, "nodes classes"], mask: Bool[Array, " nodes"]
) -> Float[Array, ""]:
    """Mean cross entropy over a mask, in float32 or float64: softmax, or sigmoid if several
    labels a node are possible; 0 for an empty mask."""
    return mean_loss(task.labels, logits, mask)


def mean_loss(
    labels: Int[Array, " nodes"] | Float[Array, "nodes classes"],
    logits: Float[Array, "nodes classes"],
    mask: Bool[Array, " nodes"],
) -> Float[Array, ""]:
    """`masked_loss` with the labels of any nodes, such as a batch's seeds."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if labels.ndim == 2:
        labels = labels.astype(logits.dtype)
        losses = optax.sigmoid_binary_cross_entropy(logits, labels).mean(axis=-1)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return _masked_mean(losses, mask)


def masked_accuracy(
    task: Labelled, logits: Float[Array, "nodes classes"], mask: Bool[Array, " nodes"]
) -> Float[Array, ""]:
    """Share of the mask's nodes (of their labels, if several) that are right."""
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    if task.labels.ndim == 2:
        right = ((logits > 0) == (task.labels > 0)).astype(dtype).mean(axis=-1)
    else:
        right = (logits.argmax(axis=-1) == task.labels).astype(dtype)
    return _masked_mean(right, mask)


def _masked_mean(values: Float[Array, " nodes"], mask: Bool[Array, " nodes"]) -> Float[Array, ""]:
    count = jnp.maximum(jnp.sum(mask), 1).astype(values.dtype)
    return jnp.sum(jnp.where(mask, values, jnp.zeros_like(values))) / count


def score(
    metric: Metric | Literal["macro_f1"],
    labels: np.ndarray,
    logits: Float[np.ndarray, "nodes classes"],
    mask: Bool[np.ndarray, " nodes"],
) -> float:
    """The dataset's metric over a mask, on the host.

    Labels that are NaN are not known: they do not count.

    ROC AUC and average precision (`jaxgnn.metrics`): of the second class if there are two, else the
    mean over the classes, each against the rest. NaN where it is undefined (a class that the mask
    lacks). RMSE and MAE are errors, of which a lower one is better (`ERRORS`).
    The micro-averaged F1 counts the labels of all nodes together; with one label a node it is
    the accuracy.
    """
    labels, logits = labels[mask], np.asarray(logits, np.float64)[mask]
    if metric in _OF_RANKS:
        return float(_of_ranks(_OF_RANKS[metric], labels, logits))
    if metric in ERRORS:
        return float((metrics.rmse if metric == "rmse" else metrics.mae)(labels, logits))
    predictions = logits > 0 if labels.ndim == 2 else logits.argmax(axis=-1)
    true = np.where(np.isnan(labels), np.nan, labels > 0) if labels.ndim == 2 else labels
    functions = {"micro_f1": metrics.micro_f1, "macro_f1": metrics.macro_f1}
    return float(functions.get(metric, metrics.accuracy)(true, predictions))


def _of_ranks(function: Any, labels: np.ndarray, logits: np.ndarray) -> metrics.Score:
    if labels.ndim == 2:
        return function(labels, logits)
    if logits.shape[1] == 2:
        return function(labels, logits[:, 1] - logits[:, 0])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return function(labels[:, None] == np.arange(logits.shape[1]), shares)


_OF_RANKS = {"roc_auc": metrics.roc_auc, "average_precision": metrics.average_precision}

ERRORS = ("rmse", "mae")
"""The metrics of which a lower one is better; all others are shares."""


def score_text(metric: str, value: float | None) -> str:
    """A score for people: a share as a percentage, an error as it is."""
    if value is None:
        return "-"
    return f"{value:.4f}" if metric in ERRORS else f"{100 * value:.2f} %"


METRIC_NAMES: Mapping[str, str] = {
    "accuracy": "accuracy",
    "roc_auc": "ROC AUC",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "average_precision": "average precision",
    "rmse": "RMSE",
    "mae": "MAE",
    "hits_at_20": "hits@20",
    "hits_at_100": "hits@100",
}
