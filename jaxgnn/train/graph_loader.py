"""`GraphLoader`: mini-batches of many graphs, padded to few different shapes."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from jaxgnn._core import checks
from jaxgnn._core.device import device_array
from jaxgnn.graph import _csr
from jaxgnn.graph._row_chunks import chunk_rows
from jaxgnn.graph.batch import GraphBatch, _of_csr
from jaxgnn.train.graph_store import GraphStore, places

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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["batch", "features", "edge_features", "labels", "indices"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class GraphMinibatch:
    """The graphs of one step as one, and their data, all padded.

    Attributes:
        batch: the union, with the masks of what is not padding.
        features: of the nodes, 0 for padding; `None` where the graphs have none.
        edge_features: in the batch's edge order, likewise.
        labels: a class a graph, int32, 0 for padding; or float32 targets, NaN for padding; `None`
            where the graphs have none.
        indices: the graphs' numbers in the source, -1 for padding.
    """

    batch: GraphBatch
    features: Float[Array, "num_nodes num_features"] | None
    edge_features: Float[Array, "num_edges num_edge_features"] | None
    labels: Shaped[Array, "num_graphs *targets"] | None
    indices: Int[Array, " num_graphs"]


class GraphLoader:
    r"""Mini-batches of many graphs: disjoint unions, padded so that `jax.jit` compiles few shapes.

    Each graph is read, sorted and transposed once, when the loader is made, and kept in the host's
    memory: a batch copies sorted pieces. Iterating goes through the rest of one epoch; a thread
    makes the next batches meanwhile.

    A batch has $\lceil N b^k \rceil$ nodes, $\lceil E b^k \rceil$ edges and `batch_size + 1`
    graphs, with $b$ the `base`: one number $k$ decides its shape. $N$ and $E$ hold a full batch two
    standard deviations above the mean, and $k$ is the least that holds the batch, of the full ones
    at least 0: nearly all have one shape, the largest another. The last batch of an epoch has a $k$
    of its own, by the same rule, if it is not full.

    Batch $i$ of epoch $e$ depends on the seed, $e$ and $i$ alone: a loader that is given the state
    of another one yields the same batches, bit for bit.

    Args:
        graphs: `GraphSet`, a list of graphs, or another source; square graphs, all with as many
            features. Graphs without nodes are some, too.
        batch_size: graphs of a batch.
        shuffle: in an order of its own in each epoch.
        seed: of the order.
        base: ratio of the sizes of two successive buckets, from 1.001 to 16.
        drop_last: leave out the last batch of an epoch if it is not full.
        prefetch: batches made ahead, 0 without a thread.
        indices: the graphs to go through; all of them if not given.

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
        drop_last: bool = False,
        prefetch: int = 2,
        indices: Int[np.ndarray, " graphs"] | None = None,
    ):
        self._batch_size = checks.integer(batch_size, "batch_size", 1, 2**31 - 2)
        checks.boolean(shuffle, "shuffle")
        checks.boolean(drop_last, "drop_last")
        self._seed = checks.integer(seed, "seed", 0, 2**32 - 1)
        self._prefetch = checks.integer(prefetch, "prefetch", 0, 2**16)
        self._base = checks.number(base, "base", 1.001, 16)
        self._store = graphs if isinstance(graphs, GraphStore) else GraphStore.of(graphs)
        self._indices = _indices(indices, len(self._store))
        count = self._indices.size
        self._length = count // batch_size if drop_last else -(-count // batch_size)
        if self._length == 0:
            least = batch_size if drop_last else 1
            raise ValueError(f"graphs: expected at least {least}, got {count}")
        self._shuffle, self._epoch, self._position = shuffle, 0, 0
        self._bases = self._expected(min(batch_size, count))

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
            prefetch=self._prefetch,
            indices=indices,
        )
        if self._bases[1] or not loader._bases[1]:
            loader._bases = self._bases
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
        order, epoch = self._order(self._epoch), self._epoch
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

    def _advance(self) -> None:
        epochs, self._position = divmod(self._position + 1, len(self))
        self._epoch += epochs

    def _order(self, epoch: int) -> Int[np.ndarray, " graphs"]:
        if not self._shuffle:
            return self._indices
        return np.random.default_rng([self._seed, epoch]).permutation(self._indices)

    def _expected(self, count: int) -> tuple[int, int]:
        """Nodes, with one of padding, and edges that most batches of so many graphs stay below."""
        sizes = self._store.num_nodes[self._indices], self._store.num_edges[self._indices]
        nodes, edges = (
            math.ceil(count * values.mean() + 2 * math.sqrt(count) * values.std())
            for values in sizes
        )
        return nodes + 1, edges

    def _bucket(self, nodes: int, edges: int, count: int) -> tuple[int, int]:
        """The padded counts of a batch of so many graphs."""
        if nodes > _MAX_NODES:
            raise ValueError(
                f"batch_size: expected batches of fewer than 2**31 - 1 nodes, got {nodes}"
            )
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
