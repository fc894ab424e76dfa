"""The parts of a graph for the layout by rows, on the host: rectangular graphs of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxgnn.distributed._costs import Edges
from jaxgnn.distributed._edge_kinds import EdgeKinds
from jaxgnn.distributed._halo import Halo
from jaxgnn.distributed._part_graphs import WindowsOfParts, stack, stack_kinds
from jaxgnn.graph import Graph

_MANY_ROWS, _GROUPS = 1 << 14, 128


class Parts(NamedTuple):
    """The arrays of some parts, stacked, and where nodes and edges went.

    Attributes:
        own: these parts.
        graphs: of each of them, from its owned nodes and its halo to its own rows, of which the
            last one is padding, where padding edges end. `None` where `kinds` serve alone.
        kinds: the same edges in two graphs, or `None` without overlap.
        sends: of each of them, from its owned nodes to the rows that it sends; padding edges end
            among those that it would send to itself. `None` where it sends all of them.
        node_of_place: the node of each row of `scatter`, -1 for padding.
        edge_of_place: the graph's edge at each place of their edges, -1 for padding.
        rows: of a part, with padding; the last one is padding in all of them.
        pair_rows: that a part sends to each other one, with padding.
        halo: foreign rows that the parts need, summed over them.
        edges: of the largest parts.
    """

    own: Sequence[int]
    graphs: Graph | None
    kinds: EdgeKinds | None
    sends: Graph | None
    node_of_place: Int[np.ndarray, " places"]
    edge_of_place: Int[np.ndarray, "own edges"]
    rows: int
    pair_rows: int
    halo: int
    edges: Edges


def split(
    graph: Graph,
    owner: Int[np.ndarray, " num_nodes"],
    parts: int,
    multiple: int = 1,
    own: Sequence[int] | None = None,
    overlap: bool | None = False,
    sent_bytes: int = 4,
) -> Parts:
    """The parts of a square graph, with a multiple of this number of rows.

    Args:
        graph: the whole one.
        owner: of each node.
        parts: their number.
        multiple: of rows.
        own: the parts to build; `None` for all.
        overlap, sent_bytes: as of `of_own_edges`.
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
    halo_edges = np.zeros(parts, np.int64)
    for part, nodes in enumerate(owned):
        edges = _entries_of_rows(offsets, nodes)
        halo_edges[part] = np.count_nonzero(owner[senders[edges]] != part)
        needed = np.zeros(owner.size, bool)
        needed[senders[edges]] = True
        needed[nodes] = False
        foreign = np.flatnonzero(needed)
        halos.append(foreign[np.argsort(owner[foreign], kind="stable")])
        if part in edges_of:
            edges_of[part] = edges
    sources = [owner[halo].astype(np.int64) for halo in halos]
    halo_rows = np.stack([np.bincount(source, minlength=parts) for source in sources])
    exchange = Halo.of(rows, halo_rows)
    slots = [rank(*of_need) for of_need in zip(sources, halo_rows, strict=True)]

    sends: dict[int, list[Any]] = {part: [] for part in own}
    for need, (halo, source, slot) in enumerate(zip(halos, sources, slots, strict=True)):
        for part, list_of_part in sends.items():
            chosen = source == part
            list_of_part.append((row[halo[chosen]], need * exchange.pair_rows + slot[chosen]))

    def local(part: int) -> tuple[np.ndarray, np.ndarray]:
        """The edges of a part."""
        local_row = np.full(owner.size, -1, np.int32)
        local_row[owned[part]] = row[owned[part]]
        halo = halos[part]
        local_row[halo] = exchange.places(part, sources[part], slots[part], row[halo])
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
        num_edges=num_edges,
        halo_edges=halo_edges,
        halo_rows=halo_rows,
        overlap=overlap,
        sent_bytes=sent_bytes,
        scheduled=graph.row_schedule is not None,
        windows=_windows_of_parts(graph, [owned[part] for part in own]),
    )
    numbered = zip(own, built.edge_of_place, strict=True)
    return built._replace(
        edge_of_place=np.stack([np.append(edges_of[part], -1)[order] for part, order in numbered])
    )


def _windows_of_parts(
    graph: Graph, owned: Sequence[Int[np.ndarray, " nodes"]]
) -> WindowsOfParts | None:
    """What the windows of parts with these nodes are made of, if the graph has windows.

    Nodes are grouped as in the whole graph: a part's edges alone say less about who shares senders.
    """
    if graph.windows is None:
        return None
    order = graph.windows.order
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    orders = [np.argsort(place[nodes]).astype(np.int32) for nodes in owned]
    return WindowsOfParts(graph.windows.width, graph.windows.edges is not None, orders)


def _entries_of_rows(offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The numbers of the entries of these rows, row after row."""
    lengths = offsets[rows + 1] - offsets[rows]
    before = np.cumsum(lengths, dtype=offsets.dtype) - lengths
    places = np.arange(lengths.sum(), dtype=offsets.dtype)
    return np.repeat(offsets[rows] - before, lengths) + places


def rows_of_device(num_nodes: int, devices: int) -> int:
    """Rows of each of the devices that share so many nodes: at least one, all the same number.

    Many are a multiple of 128. XLA's GPU backend shares the sum of a weight gradient out among so
    many groups of rows, and pads copies of both operands where these do not divide the rows.
    """
    rows = max(-(-num_nodes // devices), 1)
    return -(-rows // _GROUPS) * _GROUPS if rows >= _MANY_ROWS else rows


def rows_of_part(num_nodes: int, multiple: int) -> int:
    """Rows of a part of so many nodes at most, that so many devices share.

    The last one is padding, where padding edges end: with a receiver of their own behind the rows
    each result would be a row longer than what follows, and be copied, as would its gradient.
    """
    return multiple * rows_of_device(num_nodes + 1, multiple)


class Places(NamedTuple):
    """Where nodes are.

    Attributes:
        rows: of a part, with padding: at least one, the last.
        row: of each node, in its part: nodes ascend.
        node_of_place: the node of each row of all parts, -1 for padding.
    """

    rows: int
    row: Int[np.ndarray, " num_nodes"]
    node_of_place: Int[np.ndarray, " places"]


def place_nodes(owner: Int[np.ndarray, " num_nodes"], parts: int, multiple: int = 1) -> Places:
    """Where the nodes of each owner are; a part has a multiple of this number of rows."""
    counts = np.bincount(owner, minlength=parts)
    rows = rows_of_part(int(counts.max(initial=0)), multiple)
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
    num_edges: Int[np.ndarray, " parts"],
    halo_edges: Int[np.ndarray, " parts"],
    halo_rows: Int[np.ndarray, "parts parts"],
    overlap: bool | None,
    sent_bytes: int,
    scheduled: bool = False,
    windows: WindowsOfParts | None = None,
) -> Parts:
    """The parts of these edges.

    Args:
        places: of the nodes.
        edges: of each part, rows of senders, owned or in the halo as `Halo` places them, and of
            receivers.
        sends: of each part, the rows that it sends and where they go, where those are not all.
        parts, own: as in `Parts`.
        num_edges, halo_edges: of each of all parts; the second ones are among the first.
        halo_rows: that each part needs, by owner.
        overlap: edges in two graphs; `None`: where that is predicted to be faster, and then in one,
            too.
        sent_bytes: of a value that is sent, of 4 elsewhere.
        scheduled: whether the graphs get a row schedule.
        windows: that they get.

    Returns:
        With `edge_of_place` the places in the part's own list; -1 for padding.
    """
    exchange = Halo.of(places.rows, halo_rows)
    pair_rows = exchange.pair_rows
    most = Edges(
        int(num_edges.max()),
        int((num_edges - halo_edges).max()),
        int(halo_edges.max()),
        places.rows,
        pair_rows,
    )
    split_edges = overlap
    if overlap is None:
        # Sparse rows, which windows serve, are a small share of what is aggregated.
        split_edges = windows is None and most.overlap(parts, sent_bytes)
    split_edges = bool(split_edges) and pair_rows > 0
    last = [places.rows - 1] * len(own)  # where padding ends
    options: dict[str, Any] = {"scheduled": scheduled, "windows": windows, "paddings": last}
    graphs = kinds = sent = None
    orders: list[np.ndarray] = []
    if split_edges:
        edges = list(edges)
        most_kinds = most.owned, most.halo
        num_places = max(1, most.all)
        received = exchange.received(parts)
        kinds, orders = stack_kinds(edges, places.rows, received, most_kinds, num_places, **options)
    if not split_edges or overlap is None:
        senders = exchange.num_senders(parts)
        graphs, orders = stack(edges, senders, places.rows, most.all, **options)
    if not exchange.all_rows:
        most_sends = int(halo_rows.sum(axis=0).max())
        to_itself = [part * pair_rows for part in own]
        sent_rows = max(parts * pair_rows, 1)
        sent, _ = stack(sends, places.rows, sent_rows, most_sends, paddings=to_itself)
    return Parts(
        own,
        graphs,
        kinds,
        sent,
        places.node_of_place,
        np.stack(orders),
        places.rows,
        pair_rows,
        int(halo_rows.sum(dtype=np.int64)),
        most,
    )


def rank(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The place of each entry in its group; entries are sorted by group."""
    return np.arange(groups.size) - (np.cumsum(counts) - counts)[groups]
