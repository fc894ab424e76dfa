"""`NeighborLoader`: mini-batches of sampled neighborhoods, made on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from jaxgnn._core import checks
from jaxgnn._core.arguments import check_fits
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.ops._sampling.custom import OwnMethod
from jaxgnn.ops._sampling.sample_neighbors import METHODS, Method, hop_capacities, hop_sizes
from jaxgnn.ops._sampling.weighted import DrawWeights, ready_weights
from jaxgnn.train.loaders import neighbor_programs
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.loaders.neighbor_programs import Batch, BatchData, BatchOptions
from jaxgnn.train.loaders.resumable_loader import ResumableLoader, count_batches

State = TypeVar("State")


class NeighborLoader(ResumableLoader):
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
        whole = count_batches(nodes.size, batch_size, drop_last, "input_nodes")
        self._data = BatchData(
            graph,
            _rows(features, "features", graph.num_nodes),
            _rows(labels, "labels", graph.num_nodes),
            jnp.asarray(nodes),
            jax.random.key(checks.integer(seed, "seed", 0, 2**32 - 1)),
            ready_weights(graph, weights, replace, many=True),
            _partial(method),
        )
        self._options = BatchOptions(
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
        self._orders: dict[int, Array] = {}
        order = self._order(0)
        batch = functools.partial(neighbor_programs.batch_at, self._options)
        jax.eval_shape(batch, self._data, order, *self._at())

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self._options.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch."""
        epoch = self._epoch
        while self._epoch == epoch:
            batch = self._batch(self._order(epoch))
            if self._options.capacity is not None and bool(batch.blocks.overflow):
                self._grow()
                continue
            self._advance()
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
            step: `step(state, batch) -> (state, output)`, jittable, with an output whose shapes
                are the same for all batches, also where `capacity` grows. The same function object
                in each call, or it is compiled again.
            state: a pytree, such as the parameters and the optimizer's state.
            steps: how many; epochs may end among them.

        Returns:
            The state, and the outputs of all steps, stacked.

        Raises:
            TypeError: `step` is no function, or gives no pair, or `steps` is no integer.
            ValueError: `steps` below 1, or outputs of other shapes once `capacity` has grown.
        """
        checks.function(step, "step")
        steps = checks.integer(steps, "steps", 1, 2**31 - 1)
        outputs = []
        while steps > 0:
            # An epoch's length at most, so that two orders of the seeds serve a program.
            length = min(steps, len(self))
            ends = self._position + length > len(self)
            orders = self._order(self._epoch), self._order(self._epoch + ends)
            state, stacked, done = neighbor_programs.scan(
                self._options, step, length, self._data, state, orders, *self._at()
            )
            self._keep_features(done)
            # The one value that the host waits for, where it has to know.
            count = length if self._options.capacity is None else int(done)
            if count:
                outputs.append(jax.tree.map(lambda rows, count=count: rows[:count], stacked))
                _check_alike(outputs[0], outputs[-1])
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
            order = neighbor_programs.order_of(self._options, self._data, jnp.int32(epoch))
            self._orders = {**kept, epoch: order}
        return self._orders[epoch]

    def _batch(self, order: Array) -> Batch:
        # Without the features: a program would copy what it returns.
        data = self._data._replace(features=None)
        batch = neighbor_programs.batch_at(self._options, data, order, *self._at())
        if self._data.features is None:
            return batch
        return dataclasses.replace(
            batch, features=neighbor_programs.features_of(self._data, batch.blocks)
        )

    def _at(self) -> tuple[Array, Array]:
        return jnp.int32(self._epoch), jnp.int32(self._position)

    def _keep_features(self, result: Array) -> None:
        if isinstance(self._data.features, HostFeatures):
            self._data.features.keep_until(result)

    def _grow(self) -> None:
        assert self._options.capacity is not None
        larger = tuple(
            None if size is None else max(2 * size, 1) for size in self._options.capacity
        )
        self._options = dataclasses.replace(self._options, capacity=larger)


def _check_alike(first: Any, other: Any) -> None:
    """Raises unless the outputs of steps before and after `capacity` grew have the same shapes."""
    shapes, others = ([leaf.shape[1:] for leaf in jax.tree.leaves(of)] for of in (first, other))
    if shapes != others:
        raise ValueError(
            "step: expected an output whose shapes are the same where capacity has grown, got "
            f"{others} after {shapes}"
        )


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
        check_fits(values, name)
        values = checks.as_numbers(values, name)
    if len(values.shape) == 0 or values.shape[0] != num_nodes:
        raise ValueError(f"{name}: expected the shape ({num_nodes}, ...), got {values.shape}")
    return values
