"""A model over a learned embedding of the nodes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxgnn.distributed import ShardedGraph
from jaxgnn.nn import NodeEmbedding
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.model import build_model, param_dtype


class WithEncoder(nnx.Module):
    """What is trained around a model, `encoder`, whose layers and nonlinearity it has."""

    encoder: Any

    @property
    def convs(self) -> Any:
        """The encoder's layers."""
        return self.encoder.convs

    @property
    def activation(self) -> Any:
        """The encoder's nonlinearity."""
        return self.encoder.activation


class EmbeddedModel(WithEncoder):
    """A model over a learned embedding of the nodes, called as the model: features are not read."""

    def __init__(self, config: TrainConfig, num_nodes: int, out_features: int, rngs: nnx.Rngs):
        types = {"dtype": jnp.dtype(config.dtype), "param_dtype": param_dtype(config)}
        self.embedding = NodeEmbedding(num_nodes, config.hidden, **types, rngs=rngs)
        self.encoder = build_model(config, config.hidden, out_features, rngs)

    def __call__(self, graph: Any, x: Any, weights: Any = None, **call: Any) -> Array:
        """The encoder's outputs."""
        rows = self.embedding()  # in the nodes' order on any number of devices
        if isinstance(graph, ShardedGraph):
            rows = graph.scatter(rows)
        return self.encoder(graph, rows, weights, **call)


class _Padded(nnx.Module):
    """A model over an embedding, on graphs that have further nodes, whose rows are 0."""

    def __init__(self, model: EmbeddedModel):
        self.model = model

    def __call__(self, graph: Any, x: Any, weights: Any = None) -> Array:
        rows = self.model.embedding()
        missing = graph.num_receivers - rows.shape[0]
        return self.model.encoder(graph, jnp.pad(rows, ((0, missing), (0, 0))), weights)


def padding_embedding(model: nnx.Module) -> nnx.Module:
    """The model, or of one over an embedding that which also takes graphs with padding nodes."""
    return _Padded(model) if isinstance(model, EmbeddedModel) else model
