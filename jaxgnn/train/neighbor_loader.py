"""`NeighborLoader`: mini-batches of sampled neighborhoods, made on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from jaxgnn._core import checks
from jaxgnn._core.arguments import check_integers_fit
from jaxgnn.graph import Blocks, Graph, NodeRows, graph_argument
from jaxgnn.graph._take import take_rows
from jaxgnn.ops import sample_neighbors
from jaxgnn.ops._sampling.custom import OwnMethod
from jaxgnn.ops._sampling.sample_neighbors import METHODS, Method, hop_capacities, hop_sizes
from jaxgnn.ops._sampling.weighted import DrawWeights, ready_weights
from jaxgnn.train.compiler_options import jit_steps
from jaxgnn.train.host_features import HostFeatures

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


class _Data(NamedTuple):
    """What batches are cut from; an argument of every program, never closed over."""

    graph: Graph
    features: Array | HostFeatures | None
    labels: Array | None
    input_nodes: Int[Array, " inputs"]
    key: Array
    weights: DrawWeights | None = None
    method: jax.tree_util.Partial | None = None


@dataclasses.dataclass(frozen=True)
class _Options:
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


class NeighborLoader:
    """Mini-batches of nodes with sampled neighborhoods, sampled where the graph lies.

    Iterating goes through the rest of one epoch. `scan` runs many steps as one program: sampling,
    gathering and the step itself, without the host. Both go on from the same place, `state`, and
    all batches have the same shapes, the last of an epoch included: every program is compiled once.

    Batch $b$ of epoch $e$ depends on the seed, $e$ and $b$ alone: a loader that is given the state
    of another one yields the same batches.

    Args:
        graph: a square graph.
        features: of the nodes, `[num_nodes, ...]`, on the device; or `HostFeatures`, of which a
            batch reads its rows; `None` for batches without.
        labels: of the nodes, `[num_nodes, ...]`; `None` for batches without.
        num_neighbors: the most edges of a node, hop by hop from the seeds.
        input_nodes: the nodes to go through: numbers, or a mask `[num_nodes]`; all of them if not
            given.
        batch_size: seeds of a batch.
        shuffle: in an order of its own in each epoch.
        drop_last: leave out the last batch of an epoch if it is not full.
        seed: of the order and of the samples.
        replace, weights, method, deduplicate: as for `sample_neighbors`. A function as `method` is
            traced with the program: pass the same object, or it is compiled again.
        capacity: as for `sample_neighbors`. A step whose new nodes are too many is done again with
            twice the places, from then on: nothing is dropped.
        degrees: give the blocks the degrees of their nodes in the graph (`Blocks.with_degrees`), by
            which `GCNConv` normalizes; `False` for those in the sample, as in PyG.

    Raises:
        TypeError: `graph` is no `Graph`, or an argument has a wrong type.
        ValueError: an argument is out of range, or does not fit the graph.

    Source: Hamilton et al., "Inductive representation learning on large graphs" (NeurIPS 2017),
    algorithm 2. The arguments are those of PyG's `NeighborLoader`.
    """

    def __init__(
        self,
        graph: Graph,
        features: Float[ArrayLike, "num_nodes *rest"] | HostFeatures | None,
        labels: Shaped[ArrayLike, "num_nodes *rest"] | None,
        num_neighbors: Sequence[int],
        *,
        input_nodes: Int[ArrayLike, " inputs"] | Bool[ArrayLike, " num_nodes"] | None = None,
        batch_size: int = 1024,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        replace: bool = False,
        weights: Float[ArrayLike, " num_edges"] | DrawWeights | None = None,
        method: Method | OwnMethod = "uniform",
        deduplicate: bool = False,
        capacity: Sequence[int | None] | None = None,
        degrees: bool = True,
    ):
        graph = graph_argument(graph)
        if not graph.is_square:
            raise ValueError(f"graph: expected a square graph, got {graph}")
        batch_size = checks.integer(batch_size, "batch_size", 1, 2**31 - 2)
        checks.boolean(shuffle, "shuffle")
        checks.boolean(drop_last, "drop_last")
        checks.boolean(degrees, "degrees")
        checks.boolean(replace, "replace")
        checks.boolean(deduplicate, "deduplicate")
        if not callable(method):
            checks.choice(method, "method", METHODS)
        sizes = hop_sizes(num_neighbors)
        nodes = _input_nodes(input_nodes, graph.num_nodes)
        whole = nodes.size // batch_size if drop_last else -(-nodes.size // batch_size)
        if whole == 0:
            raise ValueError(
                f"input_nodes: expected at least {batch_size if drop_last else 1}, got {nodes.size}"
            )
        self._data = _Data(
            graph,
            _rows(features, "features", graph.num_nodes),
            _rows(labels, "labels", graph.num_nodes),
            jnp.asarray(nodes),
            jax.random.key(checks.integer(seed, "seed", 0, 2**32 - 1)),
            ready_weights(graph, weights, replace, many=True),
            _partial(method),
        )
        self._options = _Options(
            sizes,
            batch_size,
            whole,
            shuffle,
            replace,
            deduplicate,
            None if capacity is None else hop_capacities(capacity, len(sizes), deduplicate),
            "uniform" if callable(method) else method,
            degrees,
        )
        self._epoch = self._position = 0
        self._orders: dict[int, Array] = {}
        order = self._order(0)
        jax.eval_shape(functools.partial(_batch, self._options), self._data, order, *self._at())

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self._options.num_batches

    @property
    def state(self) -> dict[str, int]:
        """The place in the sequence of batches, for a checkpoint; may be assigned."""
        return {"epoch": self._epoch, "position": self._position}

    @state.setter
    def state(self, state: dict[str, int]) -> None:
        if not isinstance(state, Mapping) or set(state) != {"epoch", "position"}:
            raise ValueError(f"state: expected epoch and position, got {state!r}")
        epoch = checks.integer(state["epoch"], "epoch", 0, 2**31 - 1)
        self._position = checks.integer(state["position"], "position", 0, len(self) - 1)
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch."""
        epoch = self._epoch
        while self._epoch == epoch:
            batch = self._batch(self._order(epoch))
            if self._options.capacity is not None and bool(batch.blocks.overflow):
                self._grow()
                continue
            self._advance(1)
            self._keep_features(batch.seeds)
            yield batch

    def scan(
        self,
        step: Callable[[State, Batch], tuple[State, Any]],
        state: State,
        steps: int,
    ) -> tuple[State, Any]:
        """`jax.lax.scan` of `step` over the next batches, as one program.

        Args:
            step: `step(state, batch) -> (state, output)`, jittable. The same function object in
                each call, or it is compiled again.
            state: a pytree, such as the parameters and the optimizer's state.
            steps: how many; epochs may end among them.

        Returns:
            The state, and the outputs of all steps, stacked.

        Raises:
            TypeError: `step` is no function, or `steps` no integer.
            ValueError: `steps` below 1.
        """
        checks.function(step, "step")
        steps = checks.integer(steps, "steps", 1, 2**31 - 1)
        outputs = []
        while steps > 0:
            # An epoch's length at most, so that two orders of the seeds serve a program.
            length = min(steps, len(self))
            ends = self._position + length > len(self)
            orders = self._order(self._epoch), self._order(self._epoch + ends)
            state, stacked, done = _scan(
                self._options, step, length, self._data, state, orders, *self._at()
            )
            self._keep_features(done)
            # The one value that the host waits for, where it has to know.
            count = length if self._options.capacity is None else int(done)
            outputs.append(jax.tree.map(lambda rows, count=count: rows[:count], stacked))
            self._advance(count)
            steps -= count
            if count < length:
                self._grow()
        if len(outputs) == 1:
            return state, outputs[0]
        return state, jax.tree.map(lambda *rows: jnp.concatenate(rows), *outputs)

    def _order(self, epoch: int) -> Int[Array, "batches batch_size"]:
        """Made once an epoch: to shuffle many nodes takes as long as a step or two."""
        if epoch not in self._orders:
            kept = {near: order for near, order in self._orders.items() if abs(near - epoch) == 1}
            self._orders = {**kept, epoch: _order_of(self._options, self._data, jnp.int32(epoch))}
        return self._orders[epoch]

    def _batch(self, order: Array) -> Batch:
        # Without the features: a program would copy what it returns.
        data = self._data._replace(features=None)
        batch = _batch(self._options, data, order, *self._at())
        if self._data.features is None:
            return batch
        return dataclasses.replace(batch, features=_features(self._data, batch.blocks))

    def _at(self) -> tuple[Array, Array]:
        return jnp.int32(self._epoch), jnp.int32(self._position)

    def _keep_features(self, result: Array) -> None:
        if isinstance(self._data.features, HostFeatures):
            self._data.features.keep_until(result)

    def _advance(self, steps: int) -> None:
        epochs, self._position = divmod(self._position + steps, len(self))
        self._epoch += epochs

    def _grow(self) -> None:
        assert self._options.capacity is not None
        larger = tuple(
            None if size is None else max(2 * size, 1) for size in self._options.capacity
        )
        self._options = dataclasses.replace(self._options, capacity=larger)


def _input_nodes(nodes: Any, num_nodes: int) -> np.ndarray:
    if nodes is None:
        return np.arange(num_nodes, dtype=np.int32)
    try:
        nodes = np.asarray(nodes)
    except ValueError:
        raise ValueError("input_nodes: expected one axis, got rows of unlike lengths") from None
    if nodes.ndim != 1:
        raise ValueError(f"input_nodes: expected one axis, got the shape {nodes.shape}")
    if nodes.dtype == bool:
        if nodes.size != num_nodes:
            raise ValueError(f"input_nodes: expected a mask of {num_nodes}, got {nodes.size}")
        return np.flatnonzero(nodes).astype(np.int32)
    if nodes.size and not np.issubdtype(nodes.dtype, np.integer):
        raise TypeError(f"input_nodes: expected integers or a mask, got {nodes.dtype}")
    for wrong in nodes[(nodes < 0) | (nodes >= num_nodes)][:1]:
        raise ValueError(f"input_nodes: expected nodes below {num_nodes}, got {wrong}")
    return nodes.astype(np.int32)


def _partial(method: Any) -> jax.tree_util.Partial | None:
    """A function as a pytree: itself static, the arrays of a `Partial` arguments of the program."""
    if not callable(method):
        return None
    return method if isinstance(method, jax.tree_util.Partial) else jax.tree_util.Partial(method)


def _rows(values: Any, name: str, num_nodes: int) -> Any:
    if values is None:
        return None
    if not isinstance(values, HostFeatures):
        check_integers_fit(values, name)
        values = checks.as_numbers(values, name)
    if len(values.shape) == 0 or values.shape[0] != num_nodes:
        raise ValueError(f"{name}: expected the shape ({num_nodes}, ...), got {values.shape}")
    return values


def _order(options: _Options, data: _Data, epoch: Array) -> Int[Array, "batches batch_size"]:
    """The seeds of each batch of an epoch."""
    nodes = data.input_nodes
    if options.shuffle:
        nodes = jax.random.permutation(jax.random.fold_in(data.key, epoch), nodes)
    size = options.num_batches * options.batch_size
    nodes = jnp.concatenate([nodes, jnp.full(max(size - nodes.size, 0), -1, jnp.int32)])
    return nodes[:size].reshape(options.num_batches, options.batch_size)


def _cut(options: _Options, data: _Data, seeds: Array, epoch: Array, position: Array) -> Batch:
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
        _features(data, blocks),
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


def _features(data: _Data, blocks: Blocks) -> NodeRows | Array | None:
    if isinstance(data.features, HostFeatures):
        return data.features.take(blocks.nodes)
    return None if data.features is None else blocks.rows(data.features)


@functools.partial(jax.jit, static_argnums=0)
def _batch(options: _Options, data: _Data, order: Array, epoch: Array, position: Array) -> Batch:
    seeds = jax.lax.dynamic_index_in_dim(order, position, keepdims=False)
    return _cut(options, data, seeds, epoch, position)


_order_of = jax.jit(_order, static_argnums=0)


@functools.partial(jit_steps, static_argnums=(0, 1, 2), counted=True)
def _scan(
    options: _Options,
    step: Callable[[Any, Batch], tuple[Any, Any]],
    steps: int,
    data: _Data,
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
        shapes = jax.eval_shape(step, state, cut)[1]

        def leave_out(state: Any, _: Batch) -> tuple[Any, Any]:
            return state, jax.tree.map(lambda of: jnp.zeros(of.shape, of.dtype), shapes)

        state, output = jax.lax.cond(fits, step, leave_out, state, cut)
        # Negative once a step was left out: then all that follow are.
        done = jnp.where(done < 0, done, jnp.where(fits, done + 1, -done - 1))
        return (state, done), output

    (state, done), outputs = jax.lax.scan(body, (state, jnp.int32(0)), (seeds, numbers))
    return state, outputs, jnp.where(done < 0, -done - 1, done)


def _scan_batches(
    options: _Options,
    step: Callable[[State, Batch], tuple[State, Any]],
    data: _Data,
    state: State,
    epoch: Array,
    seeds: Int[Array, "steps batch_size"],
    numbers: Int[Array, " steps"],
) -> tuple[State, Any]:
    """`jax.lax.scan` of `step` over the batches of these seeds and numbers."""

    def body(state: State, batch: tuple[Array, Array]) -> tuple[State, Any]:
        return step(state, _cut(options, data, batch[0], epoch, batch[1]))

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
    data = _Data(graph, features, labels, input_nodes, key)
    options = _Options(
        *(num_neighbors, batch_size, batches, True, replace, deduplicate, None, method),
        axis_name=axis_name,
    )
    seeds = jax.lax.dynamic_slice_in_dim(_order(options, data, epoch), first, steps)
    numbers = first + jnp.arange(steps, dtype=jnp.int32)
    return _scan_batches(options, step, data, state, epoch, seeds, numbers)
