"""The parts of a graph for the layout by rows, on the host: rectangular graphs of one shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
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
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    places = place_nodes(owner, parts, multiple)
    rows, row = places.rows, places.row.astype(np.int32)
    owned = [of_part[of_part >= 0] for of_part in places.node_of_place.reshape(parts, rows)]
    num_edges = np.array([int((offsets[n + 1] - offsets[n]).sum()) for n in owned])

    # A halo row is a triple (part that needs it, part that owns it, node), in this order.
    edges_of = dict.fromkeys(own, np.empty(0, offsets.dtype))
    halos: list[np.ndarray] = []
    for part, nodes in enumerate(owned):
        edges = _entries_of_rows(offsets, nodes)
        needed = np.zeros(owner.size, bool)
        needed[senders[edges]] = True
        needed[nodes] = False
        foreign = np.flatnonzero(needed)
        halos.append(foreign[np.argsort(owner[foreign], kind="stable")])
        if part in edges_of:
            edges_of[part] = edges
    sources = [owner[halo].astype(np.int64) for halo in halos]
    halo_rows = np.stack([np.bincount(source, minlength=parts) for source in sources])
    pair_rows = int(halo_rows.max())
    slots = [rank(*of_need) for of_need in zip(sources, halo_rows, strict=True)]

    sends: dict[int, list[Any]] = {part: [] for part in own}
    for need, (halo, source, slot) in enumerate(zip(halos, sources, slots, strict=True)):
        for part, list_of_part in sends.items():
            chosen = source == part
            list_of_part.append((row[halo[chosen]], need * pair_rows + slot[chosen]))

    def local(part: int) -> tuple[np.ndarray, np.ndarray]:
        """The edges of a part."""
        local_row = np.full(owner.size, -1, np.int32)
        local_row[owned[part]] = row[owned[part]]
        local_row[halos[part]] = rows + sources[part] * pair_rows + slots[part]
        nodes = owned[part]
        receivers = np.repeat(row[nodes], offsets[nodes + 1] - offsets[nodes])
        return local_row[senders[edges_of[part]]], receivers

    built = of_own_edges(
        places,
        (local(part) for part in own),
        [
            tuple(map(np.concatenate, zip(*of_needs, strict=True)))  # type: ignore[misc]
            for of_needs in sends.values()
        ],
        parts=parts,
        own=own,
        pair_rows=pair_rows,
        most_edges=int(num_edges.max()),
        most_sends=int(halo_rows.sum(axis=0).max()),
        halo=int(halo_rows.sum()),
        scheduled=graph.row_schedule is not None,
        windows=0 if graph.windows is None else graph.windows.width,
        weighted=graph.windows is not None and graph.windows.edges is not None,
    )
    numbered = zip(own, built.edge_of_place, strict=True)
    return built._replace(
        edge_of_place=np.stack([np.append(edges_of[part], -1)[order] for part, order in numbered])
    )


def _entries_of_rows(offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The numbers of the entries of these rows, row after row."""
    lengths = offsets[rows + 1] - offsets[rows]
    before = np.cumsum(lengths, dtype=offsets.dtype) - lengths
    places = np.arange(lengths.sum(), dtype=offsets.dtype)
    return np.repeat(offsets[rows] - before, lengths) + places


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
    edges: Iterable[tuple[np.ndarray, np.ndarray]],
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
    return Parts(
        own,
        graphs,
        sent,
        places.node_of_place,
        np.stack(orders),
        places.rows,
        pair_rows,
        halo,
    )


def rank(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The place of each entry in its group; entries are sorted by group."""
    return np.arange(groups.size) - (np.cumsum(counts) - counts)[groups]


def _stack(
    lists: Iterable[tuple[np.ndarray, np.ndarray]],
    num_senders: int,
    num_receivers: int,
    most_edges: int,
    scheduled: bool = False,
    windows: int = 0,
    weighted: bool = False,
) -> tuple[Graph, list[np.ndarray]]:
    """The graphs of edge lists, padded to one shape and stacked on the host.

    `most_edges` are those of the largest of all parts, also of those that are not built.

    Returns:
        Also, for each graph, the place of its edges in their list; -1 for padding.
    """
    num_edges = max(1, most_edges)
    graphs, orders = [], []
    with jax.default_device(_host()):
        for senders, receivers in lists:
            padding = num_edges - senders.size
            # All padding ends at one row of its own; over its senders it is spread.
            spread = np.arange(padding, dtype=senders.dtype) % senders.dtype.type(num_senders)
            graph = Graph.from_edges(
                np.append(senders, spread),
                np.append(receivers, np.full(padding, num_receivers, receivers.dtype)),
                num_senders=num_senders,
                num_receivers=num_receivers + 1,
            )
            order = np.asarray(graph.edge_permutation)
            orders.append(np.where(order < senders.size, order, -1))
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
