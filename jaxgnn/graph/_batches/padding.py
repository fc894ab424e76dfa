"""Batches padded to given numbers of nodes, edges and graphs, or to buckets of them."""

from __future__ import annotations

import dataclasses
import math
import reprlib

import numpy as np
from jaxtyping import Int

from jaxgnn._core.arguments import as_integer
from jaxgnn.graph._batches.graph_batch import (
    GraphBatch,
    assemble,
    batch_argument,
    graph_sizes_of,
)
from jaxgnn.graph._build import csr, edge_list
from jaxgnn.graph._graph import Graph

_MAX_EDGES = 2**40  # more than a machine holds


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
    self-loops, or, in rectangular graphs, from the padding senders to the padding receivers. The
    counts alone decide the shapes and static fields: `symmetric` is `False`, whatever the edges.

    Args:
        batch: a batch, or a graph as one.
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
    batch = batch_argument(batch)
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
        before = graph_sizes_of(membership).astype(np.int64)
        added = np.zeros(graphs_count - batch.num_graphs, np.int64)
        added[:1] = new
        return np.concatenate([before, added])

    padded = assemble(
        np.concatenate([np.asarray(graph.senders), senders.astype(np.int32)]),
        np.concatenate([csr.row_ids(np.asarray(graph.row_offsets)), receivers.astype(np.int32)]),
        graph_sizes=sizes(batch.membership, new_nodes),
        sender_sizes=sizes(batch.sender_membership, new_senders),
        num_senders=senders_count,
        square=graph.is_square,
        real=tuple(
            int(np.sum(np.asarray(mask)))
            for mask in (batch.sender_mask, batch.node_mask, batch.edge_mask, batch.graph_mask)
        ),
    )
    # A static field that follows the edges would keep batches of one shape from sharing a program.
    return dataclasses.replace(padded, graph=dataclasses.replace(padded.graph, symmetric=False))


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
    if not hasattr(base, "__float__") or np.ndim(base):
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
    batch = batch_argument(batch)
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


def _target(count: int | None, current: int, name: str, most: int = edge_list.MAX_NODES) -> int:
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
