"""Many graphs as one: disjoint unions, padded to few different shapes so that jit compiles few.

A union is a batch of graphs without edges between them; `readout(batch.membership, x)` reduces
node features to one row a graph. Padding brings it to a given number of nodes, edges and
graphs: the added edges run between added nodes, and those belong to an added graph, so that
nothing of theirs reaches the real ones. Batches padded to the same counts have the same shapes
throughout, chunk tables included, and share one compiled program.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Int, Shaped

from jaxgnn._core.arguments import as_integer, check_fill_value, check_integers_fit
from jaxgnn._core.device import device_array
from jaxgnn.graph import _csr, _edge_list
from jaxgnn.graph._graph import Graph

__all__ = [
    "GraphBatch",
    "bucket_size",
    "disjoint_union",
    "pad",
    "pad_to_bucket",
    "union_edge_data",
    "union_graph_data",
    "union_node_data",
    "union_sender_data",
]

_ARRAYS = (
    "graph",
    "membership",
    "sender_membership",
    "node_mask",
    "sender_mask",
    "edge_mask",
    "graph_mask",
)
_COUNTS = ("num_graphs",)
_MAX_EDGES = 2**40  # more than a machine holds


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=list(_ARRAYS), meta_fields=list(_COUNTS)
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GraphBatch:
    """Disjoint graphs as one graph, with the masks of what is not padding.

    Attributes:
        graph: all nodes and edges, those of the first graph first. Its `edge_permutation` counts
            the graphs' edges one after the other, each in its graph's edge order; -1: padding.
        membership: rectangular graph with an edge from each node (receiver, of rectangular graphs)
            to its graph.
        sender_membership: the same of the senders; for square graphs, `membership`. Padding senders
            have no graph where none was added.
        node_mask: the nodes (receivers, of rectangular graphs) that are not padding.
        sender_mask: the same of the senders; for square graphs, `node_mask`.
        edge_mask: the edges that are not padding.
        graph_mask: the graphs that are not padding.
        num_graphs: static count, padding included.
    """

    graph: Graph
    membership: Graph
    sender_membership: Graph
    node_mask: Bool[Array, " num_receivers"]
    sender_mask: Bool[Array, " num_senders"]
    edge_mask: Bool[Array, " num_edges"]
    graph_mask: Bool[Array, " num_graphs"]
    num_graphs: int

    def __repr__(self) -> str:
        return f"GraphBatch(num_graphs={self.num_graphs}, graph={self.graph})"


def disjoint_union(graphs: Sequence[Graph]) -> GraphBatch:
    """Batch of graphs, all square or all rectangular, without padding.

    Raises:
        TypeError: something else than graphs.
        ValueError: square graphs mixed with rectangular ones.
    """
    if isinstance(graphs, Graph):
        raise TypeError("graphs: expected a sequence of graphs, got one Graph")
    if not isinstance(graphs, Iterable):
        raise TypeError(f"graphs: expected a sequence of graphs, got {type(graphs).__name__}")
    graphs = list(graphs)
    for i, graph in enumerate(graphs):
        if not isinstance(graph, Graph):
            raise TypeError(f"graphs[{i}]: expected a jaxgnn.Graph, got {type(graph).__name__}")
        if graph.is_square != graphs[0].is_square:
            raise ValueError(
                "graphs: expected all square or all rectangular, got "
                f"graphs[0] = {graphs[0]} and graphs[{i}] = {graph}"
            )
        if isinstance(graph.senders, Tracer):
            raise TypeError(
                f"graphs[{i}]: batches are made outside jax.jit, and are arguments of the jitted "
                f"function; got a {graph} that is being traced"
            )
    first_sender = _starts([graph.num_senders for graph in graphs])
    first_receiver = _starts([graph.num_receivers for graph in graphs])
    senders = _concatenate(
        [np.asarray(graph.senders) + first_sender[i] for i, graph in enumerate(graphs)]
    )
    receivers = _concatenate(
        [
            _csr.row_ids(np.asarray(graph.row_offsets)) + first_receiver[i]
            for i, graph in enumerate(graphs)
        ]
    )
    return _assemble(
        senders,
        receivers,
        graph_sizes=np.array([graph.num_receivers for graph in graphs], np.int64),
        sender_sizes=np.array([graph.num_senders for graph in graphs], np.int64),
        num_senders=int(first_sender[-1]),
        square=all(graph.is_square for graph in graphs),
        real=(int(first_sender[-1]), int(first_receiver[-1]), senders.size, len(graphs)),
    )


def pad(
    batch: GraphBatch | Graph,
    *,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    num_graphs: int | None = None,
    num_senders: int | None = None,
) -> GraphBatch:
    """Pads a batch (a graph is a batch of one) to the given counts.

    The padding nodes belong to the first added graph and share the padding edges evenly: as
    self-loops, or, in rectangular graphs, from the padding senders to the padding receivers.

    Args:
        num_nodes: nodes afterwards; default: as before. Of rectangular graphs, receivers.
        num_edges: edges afterwards; default: as before.
        num_graphs: graphs afterwards; default: one more, if there are padding nodes.
        num_senders: senders afterwards, of rectangular graphs; default: as before.

    Raises:
        TypeError: `batch` is neither a `GraphBatch` nor a `Graph`, or is traced, or a count is no
            integer.
        ValueError: a count is too small or too large; edges are to be padded but not nodes; nodes
            are to be padded but not graphs; `num_senders` of a square graph.
    """
    batch = _batch_argument(batch)
    graph = batch.graph
    if graph.is_square and num_senders is not None:
        raise ValueError("num_senders: expected none for square graphs, whose senders are nodes")
    receivers_count = _target(num_nodes, graph.num_receivers, "num_nodes")
    senders_count = (
        receivers_count
        if graph.is_square
        else _target(num_senders, graph.num_senders, "num_senders")
    )
    edges_count = _target(num_edges, graph.num_edges, "num_edges", _MAX_EDGES)
    new_nodes = receivers_count - graph.num_receivers
    new_senders = senders_count - graph.num_senders
    new_edges = edges_count - graph.num_edges
    default = batch.num_graphs + (new_nodes > 0)
    graphs_count = _target(
        default if num_graphs is None else num_graphs, batch.num_graphs, "num_graphs"
    )
    if new_edges and not (new_nodes and new_senders):
        name = "num_nodes" if not new_nodes else "num_senders"
        count = graph.num_receivers if not new_nodes else graph.num_senders
        raise ValueError(
            f"{name}: expected more than {count}, for the {new_edges} padding edges to run "
            f"between padding nodes, got {count}"
        )
    if new_nodes and graphs_count == batch.num_graphs:
        raise ValueError(
            f"num_graphs: expected more than {batch.num_graphs}, for the {new_nodes} padding "
            f"nodes to belong to a padding graph, got {graphs_count}"
        )

    # Spread evenly: a single node with all of them would be the longest row of the batch.
    places = np.arange(new_edges, dtype=np.int64)
    senders = graph.num_senders + places * new_senders // max(new_edges, 1)
    receivers = graph.num_receivers + places * new_nodes // max(new_edges, 1)

    def sizes(membership: Graph, new: int) -> Int[np.ndarray, " graphs"]:
        """The nodes of each graph, the new ones in the first one that is added, if one is."""
        before = _sizes(membership).astype(np.int64)
        added = np.zeros(graphs_count - batch.num_graphs, np.int64)
        added[:1] = new
        return np.concatenate([before, added])

    return _assemble(
        np.concatenate([np.asarray(graph.senders), senders.astype(np.int32)]),
        np.concatenate([_csr.row_ids(np.asarray(graph.row_offsets)), receivers.astype(np.int32)]),
        graph_sizes=sizes(batch.membership, new_nodes),
        sender_sizes=sizes(batch.sender_membership, new_senders),
        num_senders=senders_count,
        square=graph.is_square,
        real=tuple(
            int(np.sum(np.asarray(mask)))
            for mask in (batch.sender_mask, batch.node_mask, batch.edge_mask, batch.graph_mask)
        ),
    )


def bucket_size(size: int, *, base: float = 2.0, minimum: int = 8) -> int:
    """The smallest of `minimum`, `minimum * base`, `minimum * base**2`, ... that holds `size`.

    At most a share of `1 - 1 / base` of a bucket is padding, and sizes up to n share
    log(n / minimum) / log(base) + 1 buckets.

    Raises:
        TypeError: `size` or `minimum` is no integer, or `base` no number.
        ValueError: `size` is negative, `base` not above 1 or `minimum` not positive, or any of
            them too large.
    """
    for name, value in (("size", size), ("minimum", minimum)):
        if as_integer(value) is None:
            raise TypeError(f"bucket_size: {name}: expected an integer, got {reprlib.repr(value)}")
    if not hasattr(base, "__float__"):
        raise TypeError(f"bucket_size: base: expected a number, got {reprlib.repr(base)}")
    if not (0 <= size <= _MAX_EDGES and 1 < base <= _MAX_EDGES and 1 <= minimum <= _MAX_EDGES):
        raise ValueError(
            "bucket_size: expected size >= 0, base > 1 and minimum >= 1, all at most 2**40, got "
            f"size={reprlib.repr(size)}, base={reprlib.repr(base)}, "
            f"minimum={reprlib.repr(minimum)}"
        )
    bucket, step = minimum, 0
    while bucket < size:
        step += 1
        bucket = max(math.ceil(minimum * base**step), bucket + 1)
    return bucket


def pad_to_bucket(batch: GraphBatch | Graph, *, base: float = 2.0, minimum: int = 8) -> GraphBatch:
    """Pads nodes, edges and graphs each to its `bucket_size`, with room for a padding node.

    Raises:
        TypeError, ValueError: as `pad` and `bucket_size`.
    """
    batch = _batch_argument(batch)
    graph = batch.graph

    def bucket(size: int) -> int:
        return bucket_size(size, base=base, minimum=minimum)

    return pad(
        batch,
        num_nodes=bucket(graph.num_receivers + 1),
        num_senders=None if graph.is_square else bucket(graph.num_senders + 1),
        num_edges=bucket(graph.num_edges),
        num_graphs=bucket(batch.num_graphs + 1),
    )


# Data over the edges, nodes and graphs of a batch.


def union_edge_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "edges ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_edges ..."]:
    """Edge data of each graph, in its edge order, as one array over the batch's edges.

    The order is the graph's, not the user's (`Graph.sort_edge_data`). Padding edges get
    `fill_value`.

    Raises:
        TypeError: `batch` is neither a `GraphBatch` nor a `Graph`, or is traced, or `data` is no
            sequence.
        ValueError: not one array for each graph, of one row for each of its edges and of one shape
            behind, or their dtype does not hold `fill_value`.
    """
    batch = _batch_argument(batch)
    ends = np.asarray(batch.graph.row_offsets)[np.asarray(batch.membership.row_offsets)]
    _check_parts(batch, data, np.diff(ends), "edges")
    return _union(data, batch.graph.num_edges, batch.edge_mask, fill_value, "edges")


def union_node_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "nodes ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_nodes ..."]:
    """Node data (receivers', of rectangular graphs) of each graph as one array over the batch.

    Raises:
        TypeError, ValueError: as `union_edge_data`, for nodes.
    """
    batch = _batch_argument(batch)
    _check_parts(batch, data, _sizes(batch.membership), "nodes")
    return _union(data, batch.graph.num_receivers, batch.node_mask, fill_value, "nodes")


def union_sender_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "senders ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_senders ..."]:
    """The same of the senders of rectangular graphs.

    Raises:
        TypeError, ValueError: as `union_edge_data`, for senders.
    """
    batch = _batch_argument(batch)
    _check_parts(batch, data, _sizes(batch.sender_membership), "senders")
    return _union(data, batch.graph.num_senders, batch.sender_mask, fill_value, "senders")


def union_graph_data(
    batch: GraphBatch, data: Shaped[ArrayLike, "graphs ..."], *, fill_value: float = 0.0
) -> Shaped[Array, "num_graphs ..."]:
    """A row for each graph (labels, say), padded to the batch's number of graphs.

    Raises:
        TypeError: `batch` is neither a `GraphBatch` nor a `Graph`, or is traced.
        ValueError: not a row for each graph, or the dtype does not hold `fill_value`.
    """
    batch = _batch_argument(batch)
    return _union([data], batch.num_graphs, batch.graph_mask, fill_value, "graphs")


def _check_parts(batch: GraphBatch, data: Sequence[Any], sizes: np.ndarray, what: str) -> None:
    """Raises unless there is a part for each graph that is not padding, of its size."""
    _check_sequence(data)
    sizes = sizes[: int(np.sum(np.asarray(batch.graph_mask)))]
    if len(data) != sizes.size:
        raise ValueError(f"data: expected {sizes.size} arrays, one for each graph, got {len(data)}")
    for i, (part, size) in enumerate(zip(data, sizes, strict=True)):
        if np.shape(part)[:1] != (size,):
            raise ValueError(
                f"data[{i}]: expected {size} rows, one for each of the {what}, "
                f"got the shape {np.shape(part)}"
            )


def _check_sequence(data: Any) -> None:
    """Raises unless `data` is a sequence, if an array then along its first axis."""
    if not isinstance(data, Sequence | np.ndarray | jax.Array) or isinstance(data, str):
        raise TypeError(f"data: expected a sequence of arrays, got {type(data).__name__}")
    if not isinstance(data, Sequence) and data.ndim == 0:
        raise ValueError("data: expected a sequence of arrays, got an array of no axes")
    kinds = {np.shape(part)[1:] for part in data}
    if len(kinds) > 1:
        raise ValueError(
            f"data: expected arrays that differ in the first axis alone, got rows of the shapes "
            f"{', '.join(map(str, sorted(kinds)))}"
        )


def _union(
    data: Sequence[Any], size: int, mask: Bool[Array, " size"], fill_value: float, what: str
) -> Array:
    for part in data:
        _edge_list.check_concrete(part, "data", "a batch is made of arrays")
    parts = [np.asarray(part) for part in data]
    for part in parts:
        if part.dtype != np.bool_ and not jnp.issubdtype(part.dtype, jnp.number):
            raise TypeError(f"data: expected arrays of numbers, got {part.dtype}")
    real = int(np.sum(np.asarray(mask)))
    if any(part.ndim == 0 for part in parts):
        raise ValueError(f"data: expected {real} rows, one for each of the {what}, got a scalar")
    rows = np.concatenate(parts) if parts else np.zeros(0)
    if rows.shape[0] != real:
        raise ValueError(
            f"data: expected {real} rows, one for each of the {what}, got {rows.shape[0]}"
        )
    check_fill_value(fill_value, rows.dtype)
    check_integers_fit(rows, "data")
    padding = np.full((size - real, *rows.shape[1:]), fill_value, rows.dtype)
    return device_array(np.concatenate([rows, padding]))


# Assembly.


def _assemble(
    senders: np.ndarray,
    receivers: np.ndarray,
    *,
    graph_sizes: np.ndarray,
    sender_sizes: np.ndarray,
    num_senders: int,
    square: bool,
    real: tuple[int, ...],
) -> GraphBatch:
    """Batch of sorted edges; `real` counts the senders, receivers, edges, graphs before padding."""
    num_receivers = int(graph_sizes.sum())
    counts: dict[str, Any] = (
        {"num_nodes": num_receivers}
        if square
        else {"num_senders": num_senders, "num_receivers": num_receivers}
    )
    csr = _csr.build(senders, receivers, **counts)
    permutation = csr.edge_permutation
    assert permutation is not None
    permutation = np.where(permutation < real[2], permutation, -1).astype(permutation.dtype)
    # How many edges are real is no static count: batches of one shape share a program.
    csr = csr._replace(edge_permutation=permutation, num_input_edges=None)
    return _of_csr(
        csr, graph_sizes=graph_sizes, sender_sizes=None if square else sender_sizes, real=real
    )


def _of_csr(
    csr: _csr.HostCSR,
    *,
    graph_sizes: np.ndarray,
    sender_sizes: np.ndarray | None,
    real: tuple[int, ...],
) -> GraphBatch:
    """Batch of host arrays, on the device; without `sender_sizes` the graphs are square."""
    real_senders, real_receivers, real_edges, real_graphs = real
    membership = _membership(graph_sizes, csr.num_receivers)

    def mask(count: int, size: int) -> Bool[Array, " size"]:
        return device_array(np.arange(size) < count)

    node_mask = mask(real_receivers, csr.num_receivers)
    square = sender_sizes is None
    return GraphBatch(
        graph=Graph._from_host(csr.pad_chunks()),
        membership=membership,
        sender_membership=membership if square else _membership(sender_sizes, csr.num_senders),
        node_mask=node_mask,
        sender_mask=node_mask if square else mask(real_senders, csr.num_senders),
        edge_mask=mask(real_edges, csr.num_edges),
        graph_mask=mask(real_graphs, len(graph_sizes)),
        num_graphs=len(graph_sizes),
    )


def _membership(sizes: Int[np.ndarray, " graphs"], nodes: int) -> Graph:
    """An edge from each node to its graph; the graphs' nodes are consecutive."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = np.arange(offsets[-1], dtype=np.int32)
    csr = _csr.build_from_csr(offsets, columns, num_senders=nodes)
    return Graph._from_host(csr.pad_chunks())


def _sizes(membership: Graph) -> Int[np.ndarray, " graphs"]:
    """How many nodes each graph has."""
    return np.diff(np.asarray(membership.row_offsets))


def _starts(counts: list[int]) -> np.ndarray:
    """Where each begins, and the total."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if starts[-1] > 2**31 - 1:
        raise ValueError(f"graphs: expected fewer than 2**31 nodes in all, got {starts[-1]}")
    return starts.astype(np.int32)


def _concatenate(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _batch_argument(batch: Any) -> GraphBatch:
    """A batch as it is, or a graph as a batch of one."""
    if isinstance(batch, Graph):
        batch = disjoint_union([batch])
    if not isinstance(batch, GraphBatch):
        raise TypeError(f"batch: expected a GraphBatch or a Graph, got {type(batch).__name__}")
    if isinstance(batch.graph.senders, Tracer):
        raise TypeError(
            "batch: batches are padded outside jax.jit, and are arguments of the jitted function"
        )
    return batch


def _target(count: int | None, current: int, name: str, most: int = _edge_list.MAX_NODES) -> int:
    if count is None:
        return current
    number = as_integer(count)
    if number is None:
        raise TypeError(f"{name}: expected an integer, got {type(count).__name__}")
    if number < current:
        raise ValueError(f"{name}: expected at least the batch's {current}, got {number}")
    if number > most:
        bound = "2**40" if most == _MAX_EDGES else "2**31 - 1"
        raise ValueError(f"{name}: expected at most {bound}, got {reprlib.repr(number)}")
    return number
