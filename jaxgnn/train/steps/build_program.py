"""The program of a configuration, and the state it starts from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgnn.nn import annealed_k
from jaxgnn.ops import sample_neighbors
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.embedded_model import EmbeddedModel
from jaxgnn.train.steps.layerwise import NodeBatches
from jaxgnn.train.steps.model import build_model
from jaxgnn.train.steps.optimizer import build_optimizer
from jaxgnn.train.steps.step import MiniBatches, Program, TrainState
from jaxgnn.train.steps.task import Task

# Gradients of a mean over many nodes leave float16's normal range: scaled by a power of two they
# are exact again.
_FLOAT16_LOSS_SCALE = 1024.0

# The least batches of an evaluation that reads features on the host.
_HOST_BATCHES = 4


def build(config: TrainConfig, task: Task) -> tuple[Program, TrainState]:
    """The program of a configuration, and the state it starts from.

    Raises:
        TypeError: `config` is no `TrainConfig`.
        ConfigError: an unknown model, an option that the model does not have, or a task with
            weights without `--edge-weights`, or without them with it.
    """
    check_config(config)
    if config.edge_weights != (task.weights is not None):
        expected, got = ("some", "none") if config.edge_weights else ("none", "some")
        how = "with" if config.edge_weights else "without"
        raise ConfigError(f"task: weights: expected {expected} {how} --edge-weights, got {got}")
    program, state = program_of(config, lambda rngs: _node_model(config, task, rngs))
    batches = build_batches(config, task)
    seed = None if batches is None else jnp.uint32(config.seed)
    evaluation = None if batches is None else _evaluation(config, task)
    program = program._replace(batches=batches, evaluation=evaluation)
    return program, dataclasses.replace(state, seed=seed)


def program_of(config: TrainConfig, make: Callable[[nnx.Rngs], Any]) -> tuple[Program, TrainState]:
    """The program of a custom model, and the state it starts from, without mini-batches.

    Args:
        config: the options.
        make: makes the model, with the `convs` and the `activation` of its encoder.
    """
    # Streams of their own: the initial parameters depend neither on the dropout rate nor on the
    # sample.
    rngs = nnx.Rngs(
        params=config.seed,
        dropout=config.seed ^ 0x9E3779B9,
        sampling=config.seed ^ 0x85EBCA6B,
    )
    model = make(rngs)
    model.train()
    if config.fixed_sample:
        for conv in model.convs:
            conv.sample.eval()
    training, params, rest = nnx.split(model, nnx.Param, ...)
    model.eval()
    # As dropout, sampling is for training: scores are those of all edges.
    model.set_attributes(sample_size=None, sample_rate=None, raise_if_not_found=False)
    inference = nnx.split(model, nnx.Param, ...)[0]
    scale = _FLOAT16_LOSS_SCALE if config.dtype == "float16" else 1.0
    active = None
    if config.anneal_from and not config.anneal_stages:
        schedule = {"wide": config.anneal_from, "narrow": config.k, "steps": config.anneal_epochs}
        active = functools.partial(annealed_k, **schedule)
    program = Program(training, inference, build_optimizer(config), scale, active)
    return program, TrainState(params, rest, program.optimizer.init(params))


def _node_model(config: TrainConfig, task: Task, rngs: nnx.Rngs) -> Any:
    if config.features == "embedding":
        return EmbeddedModel(config, task.graph.num_nodes, task.num_classes, rngs)
    return build_model(config, task.features.shape[1], task.num_classes, rngs)


def build_batches(config: TrainConfig, task: Task) -> MiniBatches | None:
    """The configuration's mini-batches; `None` where a step takes the whole graph.

    Raises:
        ConfigError: a model without aggregation, or batches of too many places.
    """
    if not config.num_neighbors:
        return None
    if config.model == "mlp":
        raise ConfigError("--num-neighbors: expected a model that looks at the graph, got mlp")
    num_seeds = max(int(jnp.sum(task.train)), 1)
    batches = MiniBatches(
        num_seeds,
        min(config.batch_size, num_seeds),
        config.neighbors,
        config.replace,
        config.method,
        config.deduplicate,
        config.steps_per_call or config.checkpoint_steps,
        sharded.mesh_of(task.graph),
    )
    sample = functools.partial(
        sample_neighbors,
        replace=batches.replace,
        method=batches.method,
        deduplicate=batches.deduplicate,
    )
    seeds = jax.ShapeDtypeStruct((batches.batch_size,), jnp.int32)
    try:
        jax.eval_shape(
            lambda graph, seeds, key: sample(graph, seeds, batches.num_neighbors, key),
            task.graph,
            seeds,
            jax.random.key(0),
        )
    except ValueError as error:
        raise ConfigError(f"--num-neighbors: {error}") from error
    return batches


def _evaluation(config: TrainConfig, task: Task) -> NodeBatches | None:
    """How a model that trains on mini-batches is evaluated; `None`: on all nodes at once."""
    num_nodes, batch_size = task.graph.num_nodes, config.evaluation_batch_size
    if isinstance(task.features, HostFeatures):
        batch_size = host_batch_size(config, num_nodes)
    return NodeBatches.of(task.whole_graph, batch_size) if num_nodes > batch_size else None


def host_batch_size(config: TrainConfig, num_nodes: int) -> int:
    """The nodes of a batch of an evaluation that reads features on the host: a small graph, too,
    may have rows that the device is not to hold at once."""
    return min(config.evaluation_batch_size, max(-(-num_nodes // _HOST_BATCHES), 1))
