"""The training step: model, optimizer and their state as pure functions over pytrees."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn.distributed import ShardedGraph
from jaxgnn.nn import (
    GAT,
    GCN,
    GIN,
    GNN,
    MODELS,
    GraphSAGE,
    MaxK,
    MoNet,
    NodeEmbedding,
    PNAConv,
    SAGEEmbedding,
    annealed_k,
)
from jaxgnn.ops import sample_neighbors
from jaxgnn.train import sharded
from jaxgnn.train.config import ConfigError, Method, TrainConfig, option
from jaxgnn.train.host_features import HostFeatures
from jaxgnn.train.layerwise import NodeBatches, outputs_by_layer
from jaxgnn.train.neighbor_loader import Batch, scan_epoch
from jaxgnn.train.task import Task, masked_accuracy, masked_loss, mean_loss

# Gradients of a mean over many nodes leave float16's normal range: scaled by a power of two they
# are exact again.
_FLOAT16_LOSS_SCALE = 1024.0

# The least batches of an evaluation that reads features on the host.
_HOST_BATCHES = 4

_SAMPLING = (GCN, GraphSAGE, SAGEEmbedding, GIN, MoNet)
_OPTIONS_OF_A_MODEL = {
    "kernel_size": "monet",
    "dim": "monet",
    "train_eps": "gin",
    "head_k": "gat",
}
SAMPLING_MODELS = tuple(name for name, model in MODELS.items() if issubclass(model, _SAMPLING))
"""The models whose layers aggregate a sample of the edges if asked to."""

_ACTIVATIONS = {"relu": jax.nn.relu, "elu": jax.nn.elu}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "rest", "optimizer", "seed"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a step changes.

    Attributes:
        params: the model's parameters.
        rest: the model's other variables (random streams, running statistics).
        optimizer: Optax's state.
        seed: of the mini-batches, which no step changes; `None` where there are none.
    """

    params: Any
    rest: Any
    optimizer: Any
    seed: Array | None = None


class MiniBatches(NamedTuple):
    """How the training nodes are cut into batches.

    Attributes:
        num_seeds: the training nodes.
        batch_size, num_neighbors, replace, method, deduplicate: as for `NeighborLoader`.
        steps_per_call: the most steps of a call from the host; 0: an epoch's.
        mesh: of the devices that share the seeds of a batch, along `sharded.AXIS`; `None`: one.
    """

    num_seeds: int
    batch_size: int
    num_neighbors: tuple[int, ...]
    replace: bool
    method: Method
    deduplicate: bool
    steps_per_call: int = 0
    mesh: Mesh | None = None

    @property
    def axis_name(self) -> str | None:
        """Of the mesh."""
        return None if self.mesh is None else sharded.AXIS

    @property
    def steps(self) -> int:
        """The batches of an epoch."""
        return -(-self.num_seeds // self.batch_size)

    def calls(self, done: int = 0) -> list[int]:
        """The steps of each call of an epoch, of which some steps are done."""
        whole = self.steps_per_call or self.steps
        return [min(whole, self.steps - first) for first in range(done, self.steps, whole)]


LossSums = tuple[Float[Array, ""], Float[Array, ""]]
"""The losses of an epoch's batches so far, times their seeds, and the number of these."""


def no_loss(task: Task) -> LossSums:
    """The sums before the first batch."""
    return zero_sums(task.features.dtype)


def zero_sums(dtype: DTypeLike) -> LossSums:
    """The sums before the first batch, for a model of that dtype."""
    zero = jnp.zeros((), jnp.promote_types(dtype, jnp.float32))
    return zero, zero


def mean_of(sums: LossSums) -> Float[Array, ""]:
    """The mean loss of the seeds."""
    return sums[0] / jnp.maximum(sums[1], 1)


class Program(NamedTuple):
    """A model and an optimizer, taken apart: static parts, to be closed over by `jax.jit`."""

    training: nnx.GraphDef
    inference: nnx.GraphDef
    optimizer: optax.GradientTransformation
    loss_scale: float
    active: Callable[[Array], Array] | None = None
    """The entries that an annealed MaxK keeps, by the number of epochs done."""
    batches: MiniBatches | None = None
    evaluation: NodeBatches | None = None
    """How the nodes are cut where the model is evaluated layer by layer; `None`: all at once."""

    def step(self, state: TrainState, task: Task) -> tuple[TrainState, Float[Array, ""]]:
        """One epoch: a step of gradient descent on all training nodes, and the loss before it; or
        one on each mini-batch, and the mean loss of their seeds, each before its step."""
        if self.batches is not None:
            state, sums = self.step_on_batches(self.batches.steps, state, no_loss(task), task)
            return state, mean_of(sums)

        def loss(model):
            return masked_loss(task, model(task.graph, task.features), task.train)

        return self._descend(state, loss)

    def step_on(self, state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, ""]]:
        """One step of gradient descent on the seeds of a batch, and the loss before it."""

        labels = batch.labels
        assert labels is not None
        axis = None if self.batches is None else self.batches.axis_name

        def loss(model):
            own = mean_loss(labels, model(batch.blocks, batch.features), batch.mask)
            if axis is None:
                return own
            # A share of the mean over the seeds of all devices, which the sum over them is.
            count = batch.mask.sum()
            total = jnp.maximum(jax.lax.psum(count, axis), 1)
            return own * (count.astype(own.dtype) / total.astype(own.dtype))

        return self._descend(state, loss, axis)

    def step_on_batches(
        self, steps: int, state: TrainState, sums: LossSums, task: Task
    ) -> tuple[TrainState, LossSums]:
        """One step on each of so many mini-batches, the next ones of the epoch; its losses, added
        in their order: they do not depend on where an epoch is cut into calls.

        Over several devices each takes its share of a batch's seeds, and all take the same step.
        """
        batches = self.batches
        assert batches is not None
        steps_of = functools.partial(self._step_on_batches, steps)
        if batches.mesh is not None:
            everywhere = PartitionSpec()
            steps_of = jax.shard_map(
                steps_of, mesh=batches.mesh, in_specs=everywhere, out_specs=everywhere
            )
        return steps_of(state, sums, task)

    def _step_on_batches(
        self, steps: int, state: TrainState, sums: LossSums, task: Task
    ) -> tuple[TrainState, LossSums]:
        batches = self.batches
        assert state.seed is not None and batches is not None
        axis = batches.axis_name

        def step(carry: tuple[TrainState, LossSums], batch: Batch):
            state, (total, seeds) = carry
            state, loss = self.step_on(state, batch)
            count = batch.mask.sum().astype(total.dtype)
            if axis is not None:
                count = jax.lax.psum(count, axis)
            return (state, (total + loss * count, seeds + count)), None

        done = steps_done(state.optimizer)
        # The epoch, and with it each batch, follows from the state: a run that is continued
        # draws what it would have drawn.
        return scan_epoch(
            step,
            (state, sums),
            self._epochs_done(state),
            task.whole_graph,
            task.features,
            task.labels,
            jnp.flatnonzero(task.train, size=batches.num_seeds, fill_value=-1).astype(jnp.int32),
            jax.random.key(state.seed),
            num_neighbors=batches.num_neighbors,
            batch_size=batches.batch_size,
            replace=batches.replace,
            method=batches.method,
            deduplicate=batches.deduplicate,
            steps=steps,
            first=0 if steps == batches.steps else done % batches.steps,
            axis_name=axis,
        )[0]

    def _epochs_done(self, state: TrainState) -> Int[Array, ""]:
        steps = steps_done(state.optimizer)
        return steps if self.batches is None else steps // self.batches.steps

    def _descend(
        self, state: TrainState, loss_of: Callable[[Any], Array], axis: str | None = None
    ) -> tuple[TrainState, Float[Array, ""]]:
        """A step. With `axis`, within `shard_map`, the loss is a device's share of one."""

        def loss(params):
            rest = state.rest if axis is None else _own_keys(state.rest, axis)
            model = nnx.merge(self.training, params, rest, copy=True)
            if axis is not None:
                model.set_attributes(nnx.BatchNorm, axis_name=axis, raise_if_not_found=False)
            if self.active is not None:
                model.activation.active[...] = self.active(self._epochs_done(state))
            value = loss_of(model)
            rest = nnx.state(model, nnx.Not(nnx.Param))
            return value * jnp.asarray(self.loss_scale, value.dtype), (value, rest)

        # Of parameters that are on all devices JAX sums the gradients over them.
        gradients, (value, rest) = jax.grad(loss, has_aux=True)(state.params)
        if axis is not None:
            value, rest = jax.lax.psum(value, axis), _with_keys_of(rest, state.rest)
        gradients = jax.tree.map(lambda g: g * jnp.asarray(1 / self.loss_scale, g.dtype), gradients)
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, rest, optimizer, state.seed), value

    def logits(self, params: Any, rest: Any, task: Task) -> Float[Array, "nodes classes"]:
        """The model's outputs, without dropout."""
        model = nnx.merge(self.inference, params, rest)
        if self.evaluation is not None:
            return outputs_by_layer(model, self.evaluation, task.whole_graph, task.features)
        return model(task.graph, features_of_all(task))

    def evaluate(self, params: Any, rest: Any, task: Task) -> tuple[Array, dict[str, Array]]:
        """The logits, and losses and accuracies on the training and validation nodes."""
        logits = self.logits(params, rest, task)
        return logits, {
            "train_accuracy": masked_accuracy(task, logits, task.train),
            "val_loss": masked_loss(task, logits, task.val),
            "val_accuracy": masked_accuracy(task, logits, task.val),
        }


def _own_keys(rest: Any, axis: str) -> Any:
    """The variables with random keys of this device's own."""
    keys, others = nnx.split_state(rest, nnx.RngKey, ...)
    fold = functools.partial(jax.random.fold_in, data=jax.lax.axis_index(axis))
    return nnx.merge_state(jax.tree.map(fold, keys), others)


def _with_keys_of(rest: Any, before: Any) -> Any:
    """The variables with the random keys of other ones."""
    keys, _ = nnx.split_state(before, nnx.RngKey, ...)
    _, others = nnx.split_state(rest, nnx.RngKey, ...)
    return nnx.merge_state(keys, others)


def features_of_all(task: Task) -> Float[Array, "nodes features"]:
    """The features of all nodes within a program; of those on the host the device has no copy once
    it has ended."""
    features = task.features
    if isinstance(features, HostFeatures):
        return features.take(jnp.arange(task.graph.num_nodes))
    return features


def build(config: TrainConfig, task: Task) -> tuple[Program, TrainState]:
    """The program of a configuration, and the state it starts from.

    Raises:
        ConfigError: an unknown model, or an option that the model does not have.
    """
    program, state = program_of(
        config,
        lambda rngs: _node_model(config, task, rngs),
    )
    batches = build_batches(config, task)
    seed = None if batches is None else jnp.uint32(config.seed)
    evaluation = None if batches is None else _evaluation(config, task)
    program = program._replace(batches=batches, evaluation=evaluation)
    return program, dataclasses.replace(state, seed=seed)


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


def _node_model(config: TrainConfig, task: Task, rngs: nnx.Rngs) -> Any:
    if config.features == "embedding":
        return EmbeddedModel(config, task.graph.num_nodes, task.num_classes, rngs)
    return build_model(config, task.features.shape[1], task.num_classes, rngs)


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

    def __call__(self, graph: Any, x: Any) -> Array:
        rows = self.model.embedding()
        missing = graph.num_receivers - rows.shape[0]
        return self.model.encoder(graph, jnp.pad(rows, ((0, missing), (0, 0))))


def padding_embedding(model: nnx.Module) -> nnx.Module:
    """The model, or of one over an embedding that which also takes graphs with padding nodes."""
    return _Padded(model) if isinstance(model, EmbeddedModel) else model


def param_dtype(config: TrainConfig) -> Any:
    """The dtype of a configuration's parameters."""
    return jnp.dtype(jnp.float64 if config.dtype == "float64" else jnp.float32)


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
    if config.anneal_from:
        schedule = {"wide": config.anneal_from, "narrow": config.k, "steps": config.anneal_epochs}
        active = functools.partial(annealed_k, **schedule)
    program = Program(training, inference, build_optimizer(config), scale, active)
    return program, TrainState(params, rest, program.optimizer.init(params))


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


EDGE_FEATURE_MODELS = (
    "gin",
    "pna",
    *(name for name, model in MODELS.items() if issubclass(model, GAT)),
)
"""The models whose layers take features of the edges if they are made for some."""


def build_model(
    config: TrainConfig,
    in_features: int,
    num_classes: int,
    rngs: nnx.Rngs,
    *,
    edge_dim: int | None = None,
    degree_histogram: Sequence[int] | None = None,
) -> GNN:
    """The configuration's model from `jaxgnn.nn.MODELS`, or a `GNN` of `PNAConv`.

    Args:
        config: the options.
        in_features, num_classes: widths of input and output.
        rngs: of the parameters and dropout.
        edge_dim: width of the edges' features, of `EDGE_FEATURE_MODELS`.
        degree_histogram: of the training graphs, which `pna` needs.

    Raises:
        ConfigError: an unknown model, or an option that the model does not have.
    """
    is_pna = config.model == "pna" and degree_histogram is not None
    if config.model not in MODELS and not is_pna:
        raise ConfigError(
            f"--model: expected one of {', '.join(sorted(MODELS))}, got {config.model!r}"
        )
    model = GNN if is_pna else MODELS[config.model]
    arguments: dict[str, Any] = {
        "activation": build_activation(config),
        "input_layer": config.input_layer,
        "dropout": config.dropout,
        "input_dropout": config.input_dropout,
        "norm": None if config.norm == "none" else config.norm,
        "residual": config.residual,
        "recompute": config.recompute,
        "jumping": None if config.jumping == "none" else config.jumping,
    }
    if is_pna:
        arguments["conv"] = functools.partial(
            PNAConv,
            aggregators=("mean", "max", "min", "std"),
            scalers=("identity", "amplification", "attenuation"),
            degree_histogram=np.asarray(degree_histogram),
        )
    if issubclass(model, GAT):
        if config.hidden % config.heads:
            raise ConfigError(
                f"--heads: expected a divisor of --hidden, {config.hidden}, got {config.heads}"
            )
        arguments["heads"] = config.heads
        arguments["out_heads"] = config.out_heads or config.heads
    else:
        for name in ("heads", "out_heads"):
            value = getattr(config, name)
            if value != getattr(TrainConfig, name):
                raise ConfigError(
                    f"{option(name)}: {config.model} has no attention heads, got {value}"
                )
    for name, owner in _OPTIONS_OF_A_MODEL.items():
        value = getattr(config, name)
        if config.model == owner:
            arguments[name] = value
        elif value != getattr(TrainConfig, name):
            raise ConfigError(
                f"{option(name)}: expected --model {owner} with it, got --model {config.model}"
            )
    if config.head_k > config.hidden // config.heads:
        raise ConfigError(
            f"--head-k: expected at most the {config.hidden // config.heads} features of a head, "
            f"got {config.head_k}"
        )
    if config.model == "gat":
        arguments["head_k"] = config.head_k or None
    if edge_dim is not None:
        if config.samples:
            raise ConfigError(
                "--edge-features: expected none with --sample-size and --sample-rate, got auto"
            )
        arguments["edge_dim"] = edge_dim
    if config.samples:
        name = "sample_size" if config.sample_size else "sample_rate"
        check_samples(config.model, option(name))
        arguments["sample_size"] = config.sample_size or None
        arguments["sample_rate"] = config.sample_rate or None
        arguments["strategy"] = config.strategy
    return model(
        in_features,
        config.hidden,
        num_classes,
        num_layers=config.layers,
        dtype=jnp.dtype(config.dtype),
        param_dtype=param_dtype(config),
        rngs=rngs,
        **arguments,
    )


def check_samples(model: str, name: str) -> None:
    """Refuses a model that cannot aggregate a part of the edges; `name` is what asked for it.

    Raises:
        ConfigError: it cannot.
    """
    if model not in SAMPLING_MODELS:
        listed = ", ".join(SAMPLING_MODELS)
        raise ConfigError(f"{name}: expected a model that samples edges ({listed}), got {model}")


def build_activation(config: TrainConfig) -> Callable[[Array], Array]:
    """The configuration's nonlinearity."""
    if config.activation != "maxk":
        return _ACTIVATIONS[config.activation]
    if config.k == 0:
        raise ConfigError("--k: expected a number, got auto: jaxgnn train --task node chooses one")
    wide = config.anneal_from
    return MaxK(wide or config.k, anneal=wide > 0, packed=config.packed)


def steps_done(optimizer: Any) -> Int[Array, ""]:
    """The steps that Adam, in the state of `build_optimizer`, has counted."""
    return optax.tree_utils.tree_get(optimizer, "count")


def build_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    r"""Adam with weight decay.

    With L2, $g \leftarrow g + \lambda \theta$ before Adam's moments, biases included, as
    `torch.optim.Adam(weight_decay=...)`; decoupled, AdamW (Loshchilov and Hutter, 2019).
    """
    mask = _first_layer if config.decay_layers == "first" else None
    if config.decay == "decoupled":
        return optax.adamw(config.learning_rate, weight_decay=config.weight_decay, mask=mask)
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, mask), optax.adam(config.learning_rate)
    )


def _first_layer(params: Any) -> Any:
    """Marks the parameters of the first of the layers: the input layer's, or without one those
    whose path's first index is 0."""
    inputs = jax.tree_util.tree_map_with_path(
        lambda path, _: any(getattr(key, "key", None) == "linear_in" for key in path), params
    )
    if any(jax.tree.leaves(inputs)):
        return inputs

    def is_first(path, _):
        for key in path:
            index = getattr(key, "key", getattr(key, "idx", None))
            if isinstance(index, int) or (isinstance(index, str) and index.isdigit()):
                return int(index) == 0
        return False

    return jax.tree_util.tree_map_with_path(is_first, params)
