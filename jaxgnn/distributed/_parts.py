"""The parts of a graph for the layout by rows, on the host: rectangular graphs of one shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from jaxgnn.graph import Graph
from jaxgnn.graph._row_chunks import pad_chunks
from jaxgnn.graph._windows import pad_to_one_shape


class Parts(NamedTuple):
    """The arrays of some parts, stacked, and where nodes and edges went.

    Attributes:
        own: these parts.
        graphs: of each of them, from its owned nodes and its halo to its owned nodes; the last
            receiver is padding, where padding edges end.
        sends: of each of them, from its owned nodes to the rows that it sends; the last row is
            padding.
        node_of_place: the node of each row of `scatter`, -1 for padding.
        edge_of_place: the graph's edge at each place of their edges, -1 for padding.
        rows: of a part, with padding.
        pair_rows: that a part sends to each other one, with padding.
        halo: foreign rows that the parts need, summed over them.
    """

    own: Sequence[int]
    graphs: Graph
    sends: Graph
    node_of_place: Int[np.ndarray, " places"]
    edge_of_place: Int[np.ndarray, "own edges"]
    rows: int
    pair_rows: int
    halo: int


def equal_edges(graph: Graph, parts: int) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node: contiguous blocks that end at about equal numbers of edges."""
    offsets = np.asarray(graph.row_offsets, np.int64)
    # A node counts as an edge does, so that nodes without edges are spread, too.
    before = offsets[:-1] + np.arange(graph.num_receivers)
    total = graph.num_edges + graph.num_receivers
    return (before * parts // max(total, 1)).astype(np.int32)


def split(
    graph: Graph,
    owner: Int[np.ndarray, " num_nodes"],
    parts: int,
    multiple: int = 1,
    own: Sequence[int] | None = None,
) -> Parts:
    """The parts of a square graph, with a multiple of this number of rows.

    Args:
        graph: the whole one.
        owner: of each node.
        parts: their number.
        multiple: of rows.
        own: the parts to build; `None` for all.
    """
    own = range(parts) if own is None else own
    nodes = graph.num_senders
    senders = np.asarray(graph.senders, np.int64)
    receivers = np.repeat(np.arange(nodes), np.diff(np.asarray(graph.row_offsets)))
    places = place_nodes(owner, parts, multiple)
    rows, row = places.rows, places.row

    # A halo row is a triple (part that needs it, part that owns it, node).
    ends = owner[receivers].astype(np.int64)
    starts = owner[senders].astype(np.int64)
    foreign = ends != starts
    keys = (ends[foreign] * parts + starts[foreign]) * nodes + senders[foreign]
    halo, halo_of_edge = np.unique(keys, return_inverse=True)
    pair, halo_node = np.divmod(halo, max(nodes, 1))
    pair_counts = np.bincount(pair, minlength=parts * parts)
    pair_rows = int(pair_counts.max())
    slot = rank(pair, pair_counts)
    need, source = np.divmod(pair, parts)

    local = row[senders]
    local[foreign] = rows + (source * pair_rows + slot)[halo_of_edge]
    edges_of = [np.flatnonzero(ends == part) for part in own]
    chosen_halo = [np.flatnonzero(source == part) for part in own]
    built = of_own_edges(
        places,
        [(local[chosen], row[receivers[chosen]]) for chosen in edges_of],
        [(row[halo_node[k]], need[k] * pair_rows + slot[k]) for k in chosen_halo],
        parts=parts,
        own=own,
        pair_rows=pair_rows,
        most_edges=int(np.bincount(ends, minlength=parts).max()),
        most_sends=int(np.bincount(source, minlength=parts).max()),
        halo=halo.size,
        scheduled=graph.row_schedule is not None,
        windows=0 if graph.windows is None else graph.windows.width,
        weighted=graph.windows is not None and graph.windows.edges is not None,
    )
    numbered = zip(edges_of, built.edge_of_place, strict=True)
    return built._replace(
        edge_of_place=np.stack([np.append(chosen, -1)[order] for chosen, order in numbered])
    )


class Places(NamedTuple):
    """Where nodes are.

    Attributes:
        rows: of a part, with padding.
        row: of each node, in its part: nodes ascend.
        node_of_place: the node of each row of all parts, -1 for padding.
    """

    rows: int
    row: Int[np.ndarray, " num_nodes"]
    node_of_place: Int[np.ndarray, " places"]


def place_nodes(owner: Int[np.ndarray, " num_nodes"], parts: int, multiple: int = 1) -> Places:
    """Where the nodes of each owner are; a part has a multiple of this number of rows."""
    counts = np.bincount(owner, minlength=parts)
    rows = -(-max(int(counts.max(initial=0)), 1) // multiple) * multiple
    by_owner = np.argsort(owner, kind="stable")
    row = np.empty(owner.size, np.int64)
    row[by_owner] = rank(owner[by_owner], counts)
    node_of_place = np.full(parts * rows, -1, np.int32)
    node_of_place[owner * np.int64(rows) + row] = np.arange(owner.size)
    return Places(rows, row, node_of_place)


def of_own_edges(
    places: Places,
    edges: list[tuple[np.ndarray, np.ndarray]],
    sends: list[tuple[np.ndarray, np.ndarray]],
    *,
    parts: int,
    own: Sequence[int],
    pair_rows: int,
    most_edges: int,
    most_sends: int,
    halo: int,
    scheduled: bool = False,
    windows: int = 0,
    weighted: bool = False,
) -> Parts:
    """The parts of these edges.

    Args:
        places: of the nodes.
        edges: of each part, rows of senders, owned or in the halo, and of receivers.
        sends: of each part, the rows that it sends and where they go.
        parts, own, pair_rows, halo: as in `Parts`.
        most_edges, most_sends: of the largest of all parts.
        scheduled, weighted: what the graphs get.
        windows: columns of the widest rows that their windows serve; 0: no windows.

    Returns:
        With `edge_of_place` the places in the part's own list; -1 for padding.
    """
    graphs, orders = _stack(
        edges,
        places.rows + parts * pair_rows,
        places.rows,
        most_edges,
        scheduled=scheduled,
        windows=windows,
        weighted=weighted,
    )
    sent, _ = _stack(sends, places.rows, parts * pair_rows, most_sends)
    listed = zip(edges, orders, strict=True)
    edge_of_place = [np.where(order < pair[0].size, order, -1) for pair, order in listed]
    return Parts(
        own,
        graphs,
        sent,
        places.node_of_place,
        np.stack(edge_of_place),
        places.rows,
        pair_rows,
        halo,
    )


def rank(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The place of each entry in its group; entries are sorted by group."""
    return np.arange(groups.size) - (np.cumsum(counts) - counts)[groups]


def _stack(
    lists: list[tuple[np.ndarray, np.ndarray]],
    num_senders: int,
    num_receivers: int,
    most_edges: int,
    scheduled: bool = False,
    windows: int = 0,
    weighted: bool = False,
) -> tuple[Graph, list[np.ndarray]]:
    """The graphs of edge lists, padded to one shape and stacked on the host; their edge orders.

    `most_edges` are those of the largest of all parts, also of those that are not built.
    """
    num_edges = max(1, most_edges)
    graphs, orders = [], []
    with jax.default_device(_host()):
        for senders, receivers in lists:
            padding = num_edges - senders.size
            # All padding ends at one row of its own; over its senders it is spread.
            graph = Graph.from_edges(
                np.append(senders, np.arange(padding) % num_senders),
                np.append(receivers, np.full(padding, num_receivers)),
                num_senders=num_senders,
                num_receivers=num_receivers + 1,
            )
            orders.append(np.asarray(graph.edge_permutation))
            if windows:
                graph = graph.with_windows(weighted=weighted, width=windows)
            graphs.append(_of_one_shape(graph, scheduled))
    if windows:
        padded = pad_to_one_shape([graph.windows for graph in graphs])
        graphs = [
            dataclasses.replace(graph, windows=own)
            for graph, own in zip(graphs, padded, strict=True)
        ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *graphs), orders


def _host() -> Any:
    """The CPU; the default device where JAX was started without it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _of_one_shape(graph: Graph, scheduled: bool) -> Graph:
    """Chunks' tables whose shapes the counts alone decide, and no field that differs by part."""
    padded = dataclasses.replace(
        graph.with_row_schedule() if scheduled else graph,
        edge_permutation=None,
        symmetric=False,
        row_chunks=pad_chunks(graph.row_chunks, graph.num_edges, graph.num_receivers),
        transpose_row_chunks=pad_chunks(
            graph.transpose_row_chunks, graph.num_edges, graph.num_senders
        ),
    )
    return jax.tree.map(np.asarray, padded)
