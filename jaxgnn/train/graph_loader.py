"""`GraphLoader`: mini-batches of many graphs, padded to few different shapes."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core import checks
from jaxgnn._core.device import device_array
from jaxgnn.graph import _csr
from jaxgnn.graph._row_chunks import chunk_rows
from jaxgnn.graph.batch import _of_csr
from jaxgnn.train.device_graphs import LARGEST_COUNT, DeviceGraphs, device_bytes, union
from jaxgnn.train.graph_minibatch import GraphMinibatch
from jaxgnn.train.graph_store import GraphStore, places

State = TypeVar("State")

_MAX_NODES = 2**31 - 2


class GraphSource(Protocol):
    """Graphs by number: a `GraphSet`, a list of them, or any other source with these two."""

    def __len__(self) -> int:
        """The number of graphs."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """A `PlainGraph`, anything with its `graph`, `features`, `edge_features` and `label`, or a
        `Graph`."""
        ...


class Run(NamedTuple):
    """Steps that follow each other and whose batches have one shape.

    Attributes:
        sizes: nodes and edges of a batch.
        first, end: the numbers of the steps.
    """

    sizes: tuple[int, int]
    first: int
    end: int


class GraphLoader:
    r"""Mini-batches of many graphs: disjoint unions, padded so that `jax.jit` compiles few shapes.

    Each graph is read, sorted and transposed once, when the loader is made: a batch copies sorted
    pieces. A set of at most `max_device_bytes` lies on the device, and its batches are gathered
    there; a larger one stays in the host's memory, and a thread makes the next batches meanwhile.

    Iterating goes through the rest of one epoch. `scan` runs many steps as few programs, without
    the host between them where the graphs lie on the device. Both go on from the same place,
    `state()`.

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
        self._batch_size = checks.integer(batch_size, "batch_size", 1, 2**31 - 2)
        checks.boolean(shuffle, "shuffle")
        checks.boolean(drop_last, "drop_last")
        self._seed = checks.integer(seed, "seed", 0, 2**32 - 1)
        self._prefetch = checks.integer(prefetch, "prefetch", 0, 2**16)
        self._base = checks.number(base, "base", 1.001, 16)
        self._shapes = checks.integer(shapes, "shapes", 1, 64)
        self._store = graphs if isinstance(graphs, GraphStore) else GraphStore.of(graphs)
        self._indices = _indices(indices, len(self._store))
        count = self._indices.size
        self._length = count // batch_size if drop_last else -(-count // batch_size)
        if self._length == 0:
            least = batch_size if drop_last else 1
            raise ValueError(f"graphs: expected at least {least}, got {count}")
        self._shuffle, self._epoch, self._position = shuffle, 0, 0
        self._expectations: dict[tuple[int, float], tuple[int, int]] = {}
        self._bases = self._expected(min(batch_size, count))
        self._smaller = self._smaller_shapes(count % batch_size)
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

        Its batches are padded to this one's buckets, so that both share programs.

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
            base=self._base,
            shapes=self._shapes,
            prefetch=self._prefetch,
            indices=indices,
            max_device_bytes=0,
        )
        loader._device_graphs = self._device_graphs
        if self._bases[1] or not loader._bases[1]:
            loader._bases, loader._smaller = self._bases, self._smaller
        return loader

    def union_size(self) -> tuple[int, int]:
        """Nodes, with one of padding, and edges that nearly all of its batches stay below, and each
        graph alone."""
        nodes, edges = (
            int(sizes[self._indices].max())
            for sizes in (self._store.num_nodes, self._store.num_edges)
        )
        return max(self._bases[0], nodes + 1), max(self._bases[1], edges)

    def state(self) -> dict[str, int]:
        """The place in the sequence of batches, for a checkpoint."""
        return {"epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, int]) -> None:
        """Goes on from the place that `state` gave.

        Raises:
            TypeError, ValueError: it is none of a loader of as many batches.
        """
        if not isinstance(state, Mapping) or set(state) != {"epoch", "position"}:
            raise ValueError(f"state: expected epoch and position, got {state!r}")
        epoch = checks.integer(state["epoch"], "epoch", 0, 2**31 - 1)
        self._position = checks.integer(state["position"], "position", 0, len(self) - 1)
        self._epoch = epoch

    def __iter__(self) -> Iterator[GraphMinibatch]:
        """The rest of the epoch."""
        epoch = self._epoch
        if self._device_graphs is not None:
            chosen, sizes = self.batches_of_epoch()
            while self._epoch == epoch:
                position = self._position
                self._advance()
                yield _union_at(self._device_graphs, chosen, np.int32(position), sizes[position])
            return
        order = self._order(epoch)
        if self._prefetch == 0:
            while self._epoch == epoch:
                minibatch = self._minibatch(order, self._position)
                self._advance()
                yield minibatch
            return
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="GraphLoader")
        waiting: collections.deque[concurrent.futures.Future[GraphMinibatch]] = collections.deque()
        ahead = self._position
        try:
            while self._epoch == epoch:
                while ahead < len(self) and len(waiting) <= self._prefetch:
                    waiting.append(executor.submit(self._minibatch, order, ahead))
                    ahead += 1
                minibatch = waiting.popleft().result()
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
        """
        steps = checks.integer(steps, "steps", 1, 2**31 - 1)
        if self._device_graphs is None:
            outputs = []
            while len(outputs) < steps:
                for minibatch in itertools.islice(self, steps - len(outputs)):
                    state, output = _one_step(step, state, minibatch)
                    outputs.append(output)
            return state, jax.tree.map(lambda *rows: jnp.stack(rows), *outputs)
        rows, sizes = self._ahead(steps)
        chosen = device_array(rows)
        # Shapes of outputs are those of any batch: of always the same one, `step` is traced once.
        outputs = _no_outputs(step, state, self._device_graphs, chosen, self._bases)
        for run in runs(sizes):
            state, outputs = _run(
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
        return rows, list(map(self._bucket, nodes, edges, counts.tolist()))

    def _can_lie_on_device(self, most_bytes: int) -> bool:
        """Whether the graphs fit, and any batch's counts are those of `union`."""
        if device_bytes(self._store) > most_bytes:
            return False
        nodes, edges = (int(of.sum()) for of in (self._store.num_nodes, self._store.num_edges))
        largest = self._bucket(nodes, edges, min(self._batch_size, self._indices.size))
        return max(largest) <= LARGEST_COUNT

    def _advance(self, steps: int = 1) -> None:
        epochs, self._position = divmod(self._position + steps, len(self))
        self._epoch += epochs

    def _order(self, epoch: int) -> Int[np.ndarray, " graphs"]:
        if not self._shuffle:
            return self._indices
        return np.random.default_rng([self._seed, epoch]).permutation(self._indices)

    def _expected(self, count: int, deviations: float = 2.0) -> tuple[int, int]:
        """Nodes, with one of padding, and edges of a batch of so many graphs that is so many
        standard deviations above the mean: most batches stay below two."""
        key = count, deviations
        if key not in self._expectations:
            sizes = self._store.num_nodes[self._indices], self._store.num_edges[self._indices]
            nodes, edges = (
                math.ceil(
                    max(count * values.mean() + deviations * math.sqrt(count) * values.std(), 0)
                )
                for values in sizes
            )
            self._expectations[key] = nodes + 1, edges
        return self._expectations[key]

    def _smaller_shapes(self, rest: int) -> list[tuple[int, int]]:
        """Shapes below that of most full batches, ascending; one of them is of the last batch of an
        epoch, with so many graphs, where that is not full."""
        full, shapes = min(self._batch_size, self._indices.size), self._shapes
        smaller = [self._expected(full, 2 - 4 * i / shapes) for i in range(1, shapes)]
        if smaller and rest:
            smaller.append(self._expected(rest))
        return sorted(smaller)

    def _bucket(self, nodes: int, edges: int, count: int) -> tuple[int, int]:
        """The padded counts of a batch of so many graphs."""
        if nodes > _MAX_NODES:
            raise ValueError(
                f"batch_size: expected batches of fewer than 2**31 - 1 nodes, got {nodes}"
            )
        # Of full batches the size decides, of others what most batches of as many graphs need.
        expected = (0, 0) if count == self._batch_size else self._expected(count)
        needed = max(nodes + 1, expected[0]), max(edges, expected[1])
        for sizes in self._smaller:
            if needed[0] <= sizes[0] and needed[1] <= sizes[1]:
                return sizes
        expected = self._expected(count)
        needed = max(nodes + 1, expected[0]), max(edges, expected[1])
        k = -1 + max(
            math.floor(math.log(need / size) / math.log(self._base)) if need and size else -64
            for need, size in zip(needed, self._bases, strict=True)
        )
        while True:  # the logarithm is rounded
            sizes = tuple(math.ceil(size * self._base**k) for size in self._bases)
            if sizes[0] >= needed[0] and sizes[1] >= needed[1]:
                return min(sizes[0], _MAX_NODES + 1), sizes[1]
            k += 1

    def _minibatch(self, order: np.ndarray, position: int) -> GraphMinibatch:
        chosen = order[position * self._batch_size :][: self._batch_size]
        store = self._store
        node_counts, edge_counts = store.num_nodes[chosen], store.num_edges[chosen]
        nodes, edges = int(node_counts.sum()), int(edge_counts.sum())
        num_nodes, num_edges = self._bucket(nodes, edges, chosen.size)
        node_places = places(store.node_offsets[chosen], node_counts)
        edge_places = places(store.edge_offsets[chosen], edge_counts)
        csr = _union(
            store, node_counts, edge_counts, node_places, edge_places, num_nodes, num_edges
        )
        graphs = self._batch_size + 1
        graph_sizes = np.zeros(graphs, np.int64)
        graph_sizes[: chosen.size] = node_counts
        graph_sizes[chosen.size] = num_nodes - nodes
        batch = _of_csr(
            csr,
            graph_sizes=graph_sizes,
            sender_sizes=None,
            real=(nodes, nodes, edges, chosen.size),
        )
        labels = store.labels
        missing = 0 if labels is None or labels.dtype == np.int32 else np.nan
        return GraphMinibatch(
            batch=batch,
            features=_rows(store.features, node_places, num_nodes),
            edge_features=_rows(store.edge_features, edge_places, num_edges),
            labels=_rows(labels, chosen, graphs, missing),
            indices=device_array(_padded(chosen.astype(np.int32), graphs, -1)),
        )


@functools.partial(jax.jit, static_argnums=3)
def _union_at(
    graphs: DeviceGraphs, chosen: Array, position: Array, sizes: tuple[int, int]
) -> GraphMinibatch:
    return union(graphs, chosen[position], *sizes)


def run_steps(
    step: Callable[[State, GraphMinibatch], tuple[State, Any]],
    sizes: tuple[int, int],
    graphs: DeviceGraphs,
    chosen: Int[Array, "steps slots"],
    state: State,
    outputs: Any,
    first: Array,
    end: Array,
) -> tuple[State, Any]:
    """Steps `first` to `end` on batches of one shape, as a part of a program that serves any number
    of them; their outputs are put to the places of the steps."""

    def body(i: Array, carry: tuple[State, Any]) -> tuple[State, Any]:
        state, output = step(carry[0], union(graphs, chosen[i], *sizes))
        return state, jax.tree.map(lambda all, of_step: all.at[i].set(of_step), carry[1], output)

    return jax.lax.fori_loop(first, end, body, (state, outputs))


_run = jax.jit(run_steps, static_argnums=(0, 1))


@functools.partial(jax.jit, static_argnums=0)
def _one_step(step: Any, state: Any, minibatch: GraphMinibatch) -> tuple[Any, Any]:
    return step(state, minibatch)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _no_outputs(
    step: Any, state: Any, graphs: DeviceGraphs, chosen: Array, sizes: tuple[int, int]
) -> Any:
    """Places for the outputs of all steps. Jitted: `step` is traced for them once."""
    minibatch = jax.eval_shape(functools.partial(_union_at, sizes=sizes), graphs, chosen, 0)
    shapes = jax.eval_shape(step, state, minibatch)[1]
    return jax.tree.map(lambda of: jnp.zeros((len(chosen), *of.shape), of.dtype), shapes)


def runs(
    sizes: list[tuple[int, int]], most: int | None = None, multiple: int | None = None
) -> Iterator[Run]:
    """Steps of one shape each: at most `most`, none of them across a multiple of `multiple`."""
    most, multiple = most or len(sizes), multiple or len(sizes)
    first = 0
    for size, group in itertools.groupby(sizes):
        end = first + len(list(group))
        while first < end:
            stop = min(end, first + most, (first // multiple + 1) * multiple)
            yield Run(size, first, stop)
            first = stop


def _indices(indices: Any, count: int) -> Int[np.ndarray, " graphs"]:
    if indices is None:
        return np.arange(count)
    indices = np.asarray(indices)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise TypeError(f"indices: expected integers, got {indices.dtype}{list(indices.shape)}")
    for wrong in indices[(indices < 0) | (indices >= count)][:1]:
        raise ValueError(f"indices: expected graphs below {count}, got {wrong}")
    return indices.astype(np.int64)


def _padded(rows: np.ndarray, size: int, value: float) -> np.ndarray:
    padded = np.full((size, *rows.shape[1:]), value, rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _rows(
    data: np.ndarray | None, chosen: np.ndarray, size: int, value: float = 0.0
) -> Array | None:
    return None if data is None else device_array(_padded(data[chosen], size, value))


def _union(
    store: GraphStore,
    node_counts: np.ndarray,
    edge_counts: np.ndarray,
    node_places: np.ndarray,
    edge_places: np.ndarray,
    num_nodes: int,
    num_edges: int,
) -> _csr.HostCSR:
    """The arrays that sorting the padded union would give: `pad(disjoint_union(graphs), ...)`."""
    nodes, edges = node_places.size, edge_places.size
    first_node = np.repeat(np.cumsum(node_counts) - node_counts, edge_counts)
    first_edge = np.repeat(np.cumsum(edge_counts) - edge_counts, edge_counts)
    # Self-loops of the padding nodes, spread evenly, as `pad` does.
    loops = nodes + np.arange(num_edges - edges) * (num_nodes - nodes) // max(num_edges - edges, 1)
    loop_counts = np.bincount(loops - nodes, minlength=num_nodes - nodes)

    def offsets(degrees: np.ndarray) -> np.ndarray:
        ends = np.cumsum(np.concatenate([degrees[node_places], loop_counts]))
        return np.concatenate([[0], ends]).astype(np.int32)

    def ends(columns: np.ndarray) -> np.ndarray:
        return np.concatenate([columns[edge_places] + first_node, loops]).astype(np.int32)

    row_offsets, senders = offsets(store.in_degrees), ends(store.senders)
    chunks = chunk_rows(row_offsets)
    transpose = row_offsets, senders, chunks
    if not store.symmetric:
        t_offsets = offsets(store.out_degrees)
        transpose = t_offsets, ends(store.transpose_receivers), chunk_rows(t_offsets)
    permutation = np.concatenate(
        [store.transpose_permutation[edge_places] + first_edge, np.arange(edges, num_edges)]
    )
    return _csr.HostCSR(
        row_offsets=row_offsets,
        senders=senders,
        row_chunks=chunks,
        transpose_row_offsets=transpose[0],
        transpose_receivers=transpose[1],
        transpose_permutation=permutation.astype(np.int32),
        transpose_row_chunks=transpose[2],
        edge_permutation=_padded(np.arange(edges, dtype=np.int32), num_edges, -1),
        self_loops=np.concatenate([store.self_loops[node_places], loop_counts]).astype(np.int32),
        num_senders=num_nodes,
        num_receivers=num_nodes,
        num_edges=num_edges,
        symmetric=store.symmetric,
    )
