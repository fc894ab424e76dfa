"""`GraphLoader`: mini-batches of many graphs, padded to few different shapes."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core import checks
from jaxgnn._core.device import device_array
from jaxgnn.train.loaders import graph_programs
from jaxgnn.train.loaders.device_graphs import LARGEST_COUNT, DeviceGraphs, device_bytes
from jaxgnn.train.loaders.graph_minibatch import GraphMinibatch
from jaxgnn.train.loaders.graph_shapes import Shapes
from jaxgnn.train.loaders.graph_store import GraphStore
from jaxgnn.train.loaders.host_union import host_union
from jaxgnn.train.loaders.resumable_loader import ResumableLoader, count_batches

State = TypeVar("State")


class GraphSource(Protocol):
    """Graphs by number: a `GraphSet`, a list of them, or any other source with these two."""

    def __len__(self) -> int:
        """The number of graphs."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """A `PlainGraph`, anything with its `graph`, `features`, `edge_features` and `label`, or a
        `Graph`."""
        ...


class GraphLoader(ResumableLoader):
    r"""Mini-batches of many graphs: disjoint unions, padded so that `jax.jit` compiles few shapes.

    Each graph is read, sorted and transposed once, when the loader is made: a batch copies sorted
    pieces. A set of at most `max_device_bytes` lies on the device, and its batches are gathered
    there; a larger one stays in the host's memory, and a thread makes the next batches meanwhile.

    Iterating goes through the rest of one epoch. `scan` runs many steps as few programs, without
    the host between them where the graphs lie on the device. Both go on from the same place,
    `state`.

    A batch has $\lceil N b^k \rceil$ nodes, $\lceil E b^k \rceil$ edges and `batch_size + 1`
    graphs, with $b$ the `base`: one number $k$ decides its shape. $N$ and $E$ hold a full batch two
    standard deviations above the mean, and $k$ is the least that holds the batch, of the full ones
    at least 0: nearly all have one shape, the largest another. The last batch of an epoch has a $k$
    of its own, by the same rule, if it is not full. With $n > 1$ `shapes` there are $n - 1$ smaller
    ones of $2 - 4 i / n$ deviations, $0 < i < n$, and one for the last batch, and a batch has the
    least that holds it.

    Batch $i$ of epoch $e$ depends on the seed, $e$ and $i$ alone: a loader that is given the state
    of another one yields the same batches, bit for bit.

    Args:
        graphs: `GraphSet`, a list of graphs, or another source; square graphs, all with as many
            features. Graphs without nodes are some, too.
        batch_size: graphs of a batch.
        shuffle: in an order of its own in each epoch.
        seed: of the order.
        base: ratio of the sizes of two successive buckets, from 1.001 to 16.
        shapes: of the full batches that are not among the largest, from 1 to 64: more pad less,
            and compile more often.
        drop_last: leave out the last batch of an epoch if it is not full.
        prefetch: batches made ahead on the host, 0 without a thread.
        indices: the graphs to go through; all of them if not given.
        max_device_bytes: the most memory of the device for the graphs; 0: they stay on the host.

    Raises:
        TypeError: an argument has a wrong type, or the source yields no graphs.
        ValueError: an argument is out of range, no graphs, or graphs that do not fit together.

    Source: the padding of jraph's `dynamically_batch`; the arguments are those of PyG's
    `DataLoader`.
    """

    def __init__(
        self,
        graphs: GraphSource,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        base: float = 1.5,
        shapes: int = 1,
        drop_last: bool = False,
        prefetch: int = 2,
        indices: Int[np.ndarray, " graphs"] | None = None,
        max_device_bytes: int = 1 << 28,
    ):
        batch_size = self._batch_size = checks.integer(batch_size, "batch_size", 1, 2**31 - 2)
        checks.boolean(shuffle, "shuffle")
        checks.boolean(drop_last, "drop_last")
        self._seed = checks.integer(seed, "seed", 0, 2**32 - 1)
        self._prefetch = checks.integer(prefetch, "prefetch", 0, 2**16)
        base = checks.number(base, "base", 1.001, 16)
        shapes = checks.integer(shapes, "shapes", 1, 64)
        self._store = graphs if isinstance(graphs, GraphStore) else GraphStore.of(graphs)
        self._indices = _indices(indices, len(self._store))
        name = "graphs" if indices is None else "indices"
        self._length = count_batches(self._indices.size, batch_size, drop_last, name)
        self._shuffle = shuffle
        self._shapes = Shapes(
            self._store.num_nodes[self._indices],
            self._store.num_edges[self._indices],
            batch_size,
            base,
            shapes,
        )
        self._device_graphs = None
        max_device_bytes = checks.integer(max_device_bytes, "max_device_bytes", 0, 2**63 - 1)
        if max_device_bytes and self._can_lie_on_device(max_device_bytes):
            self._device_graphs = DeviceGraphs.of(self._store)

    @property
    def device_graphs(self) -> DeviceGraphs | None:
        """The graphs on the device, an argument of the programs that make batches of them; `None`
        where they stay on the host."""
        return self._device_graphs

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self._length

    def part(self, indices: Int[np.ndarray, " graphs"], *, shuffle: bool = False) -> GraphLoader:
        """A loader of other graphs of the same source, such as those to validate on.

        Its batches are padded to this one's buckets, so that both share programs. The last one may
        have fewer graphs, also where this loader drops it.

        Args:
            indices: the graphs to go through.
            shuffle: in an order of its own in each epoch.

        Raises:
            TypeError: `indices` are no integers.
            ValueError: no graphs, or one that the source does not have.
        """
        store: Any = self._store
        loader = GraphLoader(
            store,
            self._batch_size,
            shuffle=shuffle,
            seed=self._seed,
            base=self._shapes.base,
            shapes=self._shapes.number,
            prefetch=self._prefetch,
            indices=indices,
            max_device_bytes=0,
        )
        loader._device_graphs = self._device_graphs
        loader._shapes.take(self._shapes)
        return loader

    def union_size(self) -> tuple[int, int]:
        """Nodes, with one of padding, and edges that nearly all of its batches stay below, and each
        graph alone."""
        return self._shapes.union_size()

    def __iter__(self) -> Iterator[GraphMinibatch]:
        """The rest of the epoch."""
        epoch = self._epoch
        if self._device_graphs is not None:
            chosen, sizes = self.batches_of_epoch()
            while self._epoch == epoch:
                position = self._position
                self._advance()
                yield graph_programs.union_at(
                    self._device_graphs, chosen, np.int32(position), sizes[position]
                )
            return
        order = self._order(epoch)
        if self._prefetch == 0:
            while self._epoch == epoch:
                minibatch = self._minibatch(order, self._position)
                self._advance()
                yield minibatch
            return
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="GraphLoader")
        waiting: dict[int, concurrent.futures.Future[GraphMinibatch]] = {}  # by position
        try:
            while self._epoch == epoch:
                # Where another iterator, `scan` or `state` has moved the position, too.
                near = range(self._position, min(self._position + self._prefetch + 1, len(self)))
                for passed in waiting.keys() - set(near):
                    waiting.pop(passed).cancel()
                for ahead in near:
                    if ahead not in waiting:
                        waiting[ahead] = executor.submit(self._minibatch, order, ahead)
                minibatch = waiting.pop(self._position).result()
                self._advance()
                yield minibatch
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def scan(
        self, step: Callable[[State, GraphMinibatch], tuple[State, Any]], state: State, steps: int
    ) -> tuple[State, Any]:
        """`jax.lax.scan` of `step` over the next batches, of which those of one shape that follow
        each other are one program.

        Args:
            step: `step(state, minibatch) -> (state, output)`, jittable, with an output whose shapes
                are the same for all batches. The same function object in each call, or it is
                compiled again.
            state: a pytree, such as the parameters and the optimizer's state.
            steps: how many; epochs may end among them. Another number compiles again.

        Returns:
            The state, and the outputs of all steps, stacked.

        Raises:
            TypeError: `step` is no function, or `steps` no integer.
            ValueError: `steps` below 1.
        """
        checks.function(step, "step")
        steps = checks.integer(steps, "steps", 1, 2**31 - 1)
        if self._device_graphs is None:
            outputs = []
            while len(outputs) < steps:
                for minibatch in itertools.islice(self, steps - len(outputs)):
                    state, output = graph_programs.one_step(step, state, minibatch)
                    outputs.append(output)
            return state, jax.tree.map(lambda *rows: jnp.stack(rows), *outputs)
        rows, sizes = self._ahead(steps)
        chosen = device_array(rows)
        # Shapes of outputs are those of any batch: of always the same one, `step` is traced once.
        outputs = graph_programs.no_outputs(
            step, state, self._device_graphs, chosen, self._shapes.largest
        )
        for run in graph_programs.runs(sizes):
            state, outputs = graph_programs.run(
                *(step, run.sizes, self._device_graphs, chosen, state, outputs),
                *(np.int32(run.first), np.int32(run.end)),
            )
        self._advance(steps)
        return state, outputs

    def batches_of_epoch(self) -> tuple[Int[Array, "batches slots"], list[tuple[int, int]]]:
        """The graphs of each batch of the epoch, -1 for padding, on the device; and each batch's
        nodes and edges."""
        rows, sizes = self._batches(self._order(self._epoch))
        return device_array(rows), sizes

    def _ahead(self, steps: int) -> tuple[Int[np.ndarray, "steps slots"], list[tuple[int, int]]]:
        rows, sizes, epoch, position = [], [], self._epoch, self._position
        while steps > 0:
            of_epoch = self._batches(self._order(epoch))
            rows.append(of_epoch[0][position:][:steps])
            sizes += of_epoch[1][position:][:steps]
            epoch, position, steps = epoch + 1, 0, steps - len(rows[-1])
        return np.concatenate(rows), sizes

    def _batches(
        self, order: Int[np.ndarray, " graphs"]
    ) -> tuple[Int[np.ndarray, "batches slots"], list[tuple[int, int]]]:
        """The graphs of each batch of an epoch, -1 for padding, and its padded counts."""
        whole = np.full(len(self) * self._batch_size, -1, np.int32)
        used = min(whole.size, order.size)
        whole[:used] = order[:used]
        rows = np.full((len(self), self._batch_size + 1), -1, np.int32)
        rows[:, :-1] = whole.reshape(len(self), -1)
        starts = np.arange(0, used, self._batch_size)
        counts = np.diff(starts, append=used)
        nodes, edges = (
            np.add.reduceat(of[order[:used]], starts).tolist()
            for of in (self._store.num_nodes, self._store.num_edges)
        )
        return rows, list(map(self._shapes.of, nodes, edges, counts.tolist()))

    def _can_lie_on_device(self, most_bytes: int) -> bool:
        """Whether the graphs fit, and any batch's counts are those of `union`."""
        if device_bytes(self._store) > most_bytes:
            return False
        nodes, edges = (int(of.sum()) for of in (self._store.num_nodes, self._store.num_edges))
        edges *= self._shapes.largest[1] > 0  # no shape has room for edges that others alone have
        largest = self._shapes.of(nodes, edges, min(self._batch_size, self._indices.size))
        return max(largest) <= LARGEST_COUNT

    def _order(self, epoch: int) -> Int[np.ndarray, " graphs"]:
        if not self._shuffle:
            return self._indices
        return np.random.default_rng([self._seed, epoch]).permutation(self._indices)

    def _minibatch(self, order: np.ndarray, position: int) -> GraphMinibatch:
        chosen = order[position * self._batch_size :][: self._batch_size]
        nodes, edges = (
            int(of[chosen].sum()) for of in (self._store.num_nodes, self._store.num_edges)
        )
        sizes = self._shapes.of(nodes, edges, chosen.size)
        return host_union(self._store, chosen, self._batch_size + 1, *sizes)


def _indices(indices: Any, count: int) -> Int[np.ndarray, " graphs"]:
    if indices is None:
        return np.arange(count)
    indices = checks.host_array(indices, "indices")
    if indices.shape == (0,):
        indices = indices.astype(np.int64)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        hint = ": numpy.flatnonzero(mask) are a mask's" if indices.dtype == bool else ""
        got = f"{indices.dtype}{list(indices.shape)}"
        raise TypeError(f"indices: expected integers, got {got}{hint}")
    for wrong in indices[(indices < 0) | (indices >= count)][:1]:
        raise ValueError(f"indices: expected graphs below {count}, got {wrong}")
    return indices.astype(np.int64)
