"""The model of `--task graph`, its loss and its program."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Shaped

from jaxgnn.graph.batch import GraphBatch
from jaxgnn.nn import AttentionReadout, CategoryEmbedding
from jaxgnn.nn._dropout import dropout_module
from jaxgnn.nn._linear import linear
from jaxgnn.ops import readout
from jaxgnn.train.loaders.graph_loader import GraphMinibatch
from jaxgnn.train.problems.graph_data import GraphSetDescription
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.build_program import program_of
from jaxgnn.train.steps.embedded_model import WithEncoder
from jaxgnn.train.steps.model import build_model, param_dtype
from jaxgnn.train.steps.step import LossSums, Program, TrainState


class TargetStatistic(nnx.Variable):
    """Mean or deviation of the training targets that are numbers."""


class GraphModel(WithEncoder):
    r"""A model of the nodes, a readout, and a linear layer: a row of outputs for each graph.

    Columns of categories are embedded first (`CategoryEmbedding`), of the nodes and of the edges.

    $$y_g = m + s \odot (W \, \mathrm{dropout}(\mathrm{readout}_{v \in g} \, \sigma(z_v)) + b)$$

    with $z$ the outputs of the nodes and $\sigma$ the nonlinearity. $m$ and $s$ are the mean and
    the standard deviation of the training targets where these are numbers, else 0 and 1. A graph
    without nodes gets $m + s \odot b$.
    """

    def __init__(self, config: TrainConfig, data: GraphSetDescription, rngs: nnx.Rngs):
        types: dict[str, Any] = {
            "dtype": jnp.dtype(config.dtype),
            "param_dtype": param_dtype(config),
            "rngs": rngs,
        }
        width = config.hidden
        self.embed_nodes = self.embed_edges = None
        num_features, edge_dim = data.num_features, data.num_edge_features or None
        if data.node_categories is not None:
            num_features = width
            self.embed_nodes = nnx.data(CategoryEmbedding(data.node_categories, width, **types))
        if data.edge_categories is not None:
            edge_dim = width
            self.embed_edges = nnx.data(CategoryEmbedding(data.edge_categories, width, **types))
        self.encoder = build_model(
            *(config, num_features, width, rngs),
            edge_dim=edge_dim,
            degree_histogram=data.degree_histogram,
        )
        self.pool = None
        if config.readout == "attention":
            self.pool = nnx.data(AttentionReadout(linear(width, 1, **types)))
        self.dropout = dropout_module(config.dropout, "dropout", rngs)
        self.linear = linear(width, data.num_outputs, **types)
        self.readout: Any = config.readout
        self.targets, self.metric = data.targets, data.metric
        self.dtype = types["dtype"]
        statistics = jnp.zeros(data.num_outputs, types["param_dtype"])
        self.target_mean = TargetStatistic(statistics)
        self.target_scale = TargetStatistic(statistics + 1)

    def __call__(
        self,
        batch: GraphBatch,
        x: Float[Array, "num_nodes num_features"],
        edge_features: Float[Array, "num_edges num_edge_features"] | None = None,
    ) -> Float[Array, "num_graphs outputs"]:
        """Logits, or numbers in the units of the targets; at least float32."""
        if edge_features is not None:
            edge_features = _embedded(self.embed_edges, edge_features).astype(self.dtype)
        x = _embedded(self.embed_nodes, x).astype(self.dtype)
        nodes = self.encoder(batch, x, edge_features)
        nodes = self.encoder.activation(nodes)
        if self.pool is not None:
            rows = self.pool(batch.membership, nodes)
        else:
            rows = readout(batch.membership, nodes, self.readout)
        outputs = self.linear(self.dropout(rows))
        outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
        if self.targets != "values":
            return outputs
        return self.target_mean[...] + self.target_scale[...] * outputs

    def loss(
        self,
        outputs: Float[Array, "num_graphs outputs"],
        labels: Shaped[Array, "num_graphs *targets"],
        known: Bool[Array, "num_graphs *targets"],
    ) -> Float[Array, ""]:
        """The mean over the targets that are known.

        Cross entropy, softmax of classes and sigmoid of labels; of numbers the squared error, or
        with the metric MAE the absolute one, each in units of its deviation.
        """
        if self.targets == "class":
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
        else:
            labels = jnp.where(known, labels, 0).astype(outputs.dtype)
            if self.targets == "labels":
                losses = optax.sigmoid_binary_cross_entropy(outputs, labels)
            else:
                error = (outputs - labels) / self.target_scale[...]
                losses = jnp.abs(error) if self.metric == "mae" else error * error
        count = jnp.maximum(known.sum(), 1).astype(losses.dtype)
        return jnp.where(known, losses, jnp.zeros_like(losses)).sum() / count


def _embedded(embedding: CategoryEmbedding | None, rows: Array) -> Array:
    return rows if embedding is None else embedding(rows)


class OfDegrees(nnx.Module):
    """A model of graphs without features, which reads the nodes' degrees of the batch itself."""

    def __init__(self, model: GraphModel, num_degrees: int):
        self.model, self.num_degrees = model, num_degrees

    def __call__(
        self, batch: GraphBatch, x: Float[Array, "num_nodes 0"]
    ) -> Float[Array, "num_graphs outputs"]:
        """The outputs of the model for one-hot in-degrees; `x` has no columns."""
        degrees = jnp.minimum(jnp.diff(batch.graph.row_offsets), self.num_degrees - 1)
        return self.model(batch, jax.nn.one_hot(degrees, self.num_degrees, dtype=x.dtype))


def known_targets(
    labels: Shaped[Array, "num_graphs *targets"], mask: Bool[Array, " num_graphs"]
) -> Bool[Array, "num_graphs *targets"]:
    """The targets of a mask's graphs that are not missing (NaN)."""
    return mask if labels.ndim == 1 else mask[:, None] & ~jnp.isnan(labels)


class GraphBatches(NamedTuple):
    """The batches of an epoch.

    Attributes:
        steps: their number.
    """

    steps: int


class GraphProgram(Program):
    """A `Program` whose steps take a `GraphMinibatch` each."""

    def step_on_graphs(
        self, state: TrainState, sums: LossSums, minibatch: GraphMinibatch
    ) -> tuple[TrainState, LossSums]:
        """One step of gradient descent, and the sums of the losses with the one before it."""

        labels, known = _targets_of(minibatch)

        def loss(model: GraphModel) -> Array:
            assert minibatch.features is not None
            outputs = model(minibatch.batch, minibatch.features, minibatch.edge_features)
            return model.loss(outputs, labels, known)

        state, value = self._descend(state, loss)
        return state, _add(sums, value, known)

    def outputs_and_loss(
        self, params: Any, rest: Any, sums: LossSums, minibatch: GraphMinibatch
    ) -> tuple[Float[Array, "num_graphs outputs"], LossSums]:
        """The model's outputs, without dropout, and the sums of the losses with theirs."""
        labels, known = _targets_of(minibatch)
        assert minibatch.features is not None
        model = nnx.merge(self.inference, params, rest)
        outputs = model(minibatch.batch, minibatch.features, minibatch.edge_features)
        return outputs, _add(sums, model.loss(outputs, labels, known), known)


def _targets_of(minibatch: GraphMinibatch) -> tuple[Array, Array]:
    assert minibatch.labels is not None
    return minibatch.labels, known_targets(minibatch.labels, minibatch.batch.graph_mask)


def _add(sums: LossSums, loss: Array, known: Array) -> LossSums:
    count = known.sum().astype(sums[0].dtype)
    return sums[0] + loss * count, sums[1] + count


def build_graphs(
    config: TrainConfig,
    data: GraphSetDescription,
    steps: int,
    targets: Shaped[np.ndarray, "graphs *targets"] | None = None,
) -> tuple[GraphProgram, TrainState]:
    """The program of a configuration, and the state it starts from.

    Args:
        config: the options.
        data: what the model takes and gives.
        steps: the batches of an epoch.
        targets: those to train on, whose mean and deviation the model has.

    Raises:
        ConfigError: an unknown model, or an option that the model does not have.
    """

    def make(rngs: nnx.Rngs) -> GraphModel:
        model = GraphModel(config, data, rngs)
        if targets is not None and data.targets == "values":
            mean, scale = _moments(np.asarray(targets, np.float64))
            model.target_mean[...] = jnp.asarray(mean, model.target_mean[...].dtype)
            model.target_scale[...] = jnp.asarray(scale, model.target_scale[...].dtype)
        return model

    program, state = program_of(config, make)
    batches: Any = GraphBatches(steps)
    return GraphProgram(*program._replace(batches=batches)), dataclasses.replace(state, seed=None)


def _moments(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each known target; 0 and 1 where none is known, 1 where all are one."""
    known = ~np.isnan(targets)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, targets, 0).sum(axis=0) / count
    square = np.where(known, targets - mean, 0) ** 2
    scale = np.sqrt(square.sum(axis=0) / count)
    return mean, np.where(scale > 1e-12 * np.maximum(np.abs(mean), 1), scale, 1)
