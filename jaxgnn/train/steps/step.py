"""The training step: a model and an optimizer as pure functions over pytrees."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.loaders.neighbor_programs import Batch, scan_epoch
from jaxgnn.train.settings.options import Method
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.layerwise import NodeBatches, outputs_by_layer
from jaxgnn.train.steps.optimizer import steps_done
from jaxgnn.train.steps.task import Task, masked_accuracy, masked_loss, mean_loss


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
            return masked_loss(task, model(task.graph, task.features, task.weights), task.train)

        return self._descend(state, loss)

    def step_on(
        self,
        state: TrainState,
        batch: Batch,
        weights: Float[Array, " num_edges"] | None = None,
    ) -> tuple[TrainState, Float[Array, ""]]:
        """One step of gradient descent on the seeds of a batch, and the loss before it; `weights`
        are those of all edges of the graph."""

        labels = batch.labels
        if weights is not None:
            weights = batch.blocks.take_edges(weights)
        assert labels is not None
        axis = None if self.batches is None else self.batches.axis_name

        def loss(model):
            own = mean_loss(labels, model(batch.blocks, batch.features, weights), batch.mask)
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
            state, loss = self.step_on(state, batch, task.weights)
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
            graph = task.whole_graph
            return outputs_by_layer(model, self.evaluation, graph, task.features, task.weights)
        return model(task.graph, features_of_all(task), task.weights)

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
