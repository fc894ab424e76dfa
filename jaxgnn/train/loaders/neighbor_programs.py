"""Programs of a `NeighborLoader`'s steps, and what they make: `Batch`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from jaxgnn.graph import Blocks, Graph, NodeRows
from jaxgnn.graph._take import take_rows
from jaxgnn.ops import sample_neighbors
from jaxgnn.ops._sampling.sample_neighbors import Method
from jaxgnn.ops._sampling.weighted import DrawWeights
from jaxgnn.train.loaders.compiler_options import jit_steps
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.loaders.resumable_loader import as_pair

State = TypeVar("State")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["blocks", "features", "labels", "seeds"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Batch:
    """The seeds of one step, their neighborhood, and its data.

    Attributes:
        blocks: the sampled neighborhood.
        features: of each place of the blocks, 0 for padding, gathered where they are used
            (`NodeRows`; `jnp.asarray` makes the array), or of `HostFeatures` the array itself;
            `None` where the loader has none.
        labels: of each seed, 0 for padding; `None` where the loader has none.
        seeds: the nodes, -1 for padding: the last batch of an epoch may have fewer.
    """

    blocks: Blocks
    features: NodeRows | Array | None
    labels: Shaped[Array, "batch_size *rest"] | None
    seeds: Int[Array, " batch_size"]

    @property
    def mask(self) -> Bool[Array, " batch_size"]:
        """Which seeds are no padding."""
        return self.seeds >= 0


class BatchData(NamedTuple):
    """What batches are cut from; an argument of every program, never closed over."""

    graph: Graph
    features: Array | HostFeatures | None
    labels: Array | None
    input_nodes: Int[Array, " inputs"]
    key: Array
    weights: DrawWeights | None = None
    method: jax.tree_util.Partial | None = None


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """The static part of a program."""

    num_neighbors: tuple[int, ...]
    batch_size: int
    num_batches: int
    shuffle: bool
    replace: bool
    deduplicate: bool
    capacity: tuple[int | None, ...] | None
    method: Method = "uniform"
    degrees: bool = True
    axis_name: str | None = None
    """Of the devices that share the seeds of a batch, within `shard_map`."""


def _order(
    options: BatchOptions, data: BatchData, epoch: Array
) -> Int[Array, "batches batch_size"]:
    """The seeds of each batch of an epoch."""
    nodes = data.input_nodes
    if options.shuffle:
        nodes = jax.random.permutation(jax.random.fold_in(data.key, epoch), nodes)
    size = options.num_batches * options.batch_size
    nodes = jnp.concatenate([nodes, jnp.full(max(size - nodes.size, 0), -1, jnp.int32)])
    return nodes[:size].reshape(options.num_batches, options.batch_size)


def _cut(
    options: BatchOptions, data: BatchData, seeds: Array, epoch: Array, position: Array
) -> Batch:
    """The batch of these seeds; a position beyond the epoch's last is of the next epoch."""
    # Apart from the order's key, which has the epoch folded in and nothing else.
    number = epoch.astype(jnp.uint32) * jnp.uint32(options.num_batches)
    number = number + position.astype(jnp.uint32)
    key = jax.random.fold_in(jax.random.fold_in(data.key, np.uint32(2**31)), number)
    if options.axis_name is not None:
        seeds = _share(seeds, options.axis_name)
    blocks = sample_neighbors(
        data.graph,
        seeds,
        options.num_neighbors,
        key,
        replace=options.replace,
        weights=data.weights,
        method=options.method if data.method is None else data.method,
        deduplicate=options.deduplicate,
        capacity=options.capacity,
        axis_name=options.axis_name,
    )
    if options.degrees:
        blocks = blocks.with_degrees(data.graph)
    return Batch(
        blocks,
        features_of(data, blocks),
        None if data.labels is None else take_rows(data.labels, seeds),
        seeds,
    )


def _share(seeds: Int[Array, " batch_size"], axis_name: str) -> Int[Array, " share"]:
    """A device's seeds, as many on each; the last ones may be padding."""
    devices = jax.lax.axis_size(axis_name)
    share = -(-seeds.shape[0] // devices)
    padding = jnp.full(share * devices - seeds.shape[0], -1, seeds.dtype)
    first = jax.lax.axis_index(axis_name) * share
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([seeds, padding]), first, share)


def features_of(data: BatchData, blocks: Blocks) -> NodeRows | Array | None:
    if isinstance(data.features, HostFeatures):
        return data.features.take(blocks.nodes)
    return None if data.features is None else blocks.rows(data.features)


@functools.partial(jax.jit, static_argnums=0)
def batch_at(
    options: BatchOptions, data: BatchData, order: Array, epoch: Array, position: Array
) -> Batch:
    seeds = jax.lax.dynamic_index_in_dim(order, position, keepdims=False)
    return _cut(options, data, seeds, epoch, position)


order_of = jax.jit(_order, static_argnums=0)


@functools.partial(jit_steps, static_argnums=(0, 1, 2), counted=True)
def scan(
    options: BatchOptions,
    step: Callable[[Any, Batch], tuple[Any, Any]],
    steps: int,
    data: BatchData,
    state: Any,
    orders: tuple[Int[Array, "batches batch_size"], Int[Array, "batches batch_size"]],
    epoch: Array,
    position: Array,
) -> tuple[Any, Any, Array]:
    """The state, the outputs, and the steps done before one had too many nodes.

    `orders` are the epoch's and, if the steps go beyond it, the next one's.
    """
    # One array of both: a choice within the loop would have to reach the host.
    seeds = jax.lax.dynamic_slice_in_dim(jnp.concatenate(orders), position, steps)
    numbers = position + jnp.arange(steps, dtype=jnp.int32)

    if options.capacity is None:
        state, outputs = _scan_batches(options, step, data, state, epoch, seeds, numbers)
        return state, outputs, jnp.int32(steps)

    def body(carry: tuple[Any, Array], batch: tuple[Array, Array]) -> tuple[Any, Any]:
        state, done = carry
        cut = _cut(options, data, batch[0], epoch, batch[1])
        fits = ~cut.blocks.overflow & (done >= 0)
        shapes = as_pair(jax.eval_shape(step, state, cut))[1]

        def leave_out(state: Any, _: Batch) -> tuple[Any, Any]:
            return state, jax.tree.map(lambda of: jnp.zeros(of.shape, of.dtype), shapes)

        state, output = jax.lax.cond(fits, step, leave_out, state, cut)
        # Negative once a step was left out: then all that follow are.
        done = jnp.where(done < 0, done, jnp.where(fits, done + 1, -done - 1))
        return (state, done), output

    (state, done), outputs = jax.lax.scan(body, (state, jnp.int32(0)), (seeds, numbers))
    return state, outputs, jnp.where(done < 0, -done - 1, done)


def _scan_batches(
    options: BatchOptions,
    step: Callable[[State, Batch], tuple[State, Any]],
    data: BatchData,
    state: State,
    epoch: Array,
    seeds: Int[Array, "steps batch_size"],
    numbers: Int[Array, " steps"],
) -> tuple[State, Any]:
    """`jax.lax.scan` of `step` over the batches of these seeds and numbers."""

    def body(state: State, batch: tuple[Array, Array]) -> tuple[State, Any]:
        return as_pair(step(state, _cut(options, data, batch[0], epoch, batch[1])))

    return jax.lax.scan(body, state, (seeds, numbers))


def scan_epoch(
    step: Callable[[State, Batch], tuple[State, Any]],
    state: State,
    epoch: Array,
    graph: Graph,
    features: Array | HostFeatures,
    labels: Array,
    input_nodes: Int[Array, " inputs"],
    key: Array,
    *,
    num_neighbors: tuple[int, ...],
    batch_size: int,
    replace: bool,
    method: Method,
    deduplicate: bool,
    steps: int,
    first: Array | int = 0,
    axis_name: str | None = None,
) -> tuple[State, Any]:
    """`jax.lax.scan` of `step` over shuffled batches of an epoch, as a part of a program.

    The batches are those of a `NeighborLoader` with these arguments, `steps` of them from number
    `first` on; nodes of -1 are padding. Within `shard_map`
    the devices along `axis_name` share the seeds of each batch.
    """
    batches = -(-input_nodes.shape[0] // batch_size)
    data = BatchData(graph, features, labels, input_nodes, key)
    options = BatchOptions(
        *(num_neighbors, batch_size, batches, True, replace, deduplicate, None, method),
        axis_name=axis_name,
    )
    seeds = jax.lax.dynamic_slice_in_dim(_order(options, data, epoch), first, steps)
    numbers = first + jnp.arange(steps, dtype=jnp.int32)
    return _scan_batches(options, step, data, state, epoch, seeds, numbers)
