"""The graphs of all parts, of one shape and stacked, on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from jaxgnn.distributed._edge_kinds import EdgeKinds, places_of_kinds
from jaxgnn.graph import Graph
from jaxgnn.graph._build.row_chunks import pad_chunks
from jaxgnn.graph._layouts.windows import Windows, build, pad_to_one_shape, receivers_for


class WindowsOfParts(NamedTuple):
    """What the windows of parts are made of.

    Attributes:
        width: columns of the widest rows that they serve.
        weighted: whether they list the edges.
        orders: of each part, its nodes' rows in an order whose neighbors share senders.
    """

    width: int
    weighted: bool
    orders: Sequence[Int[np.ndarray, " nodes"]]


def stack_kinds(
    lists: Iterable[tuple[np.ndarray, np.ndarray]],
    rows: int,
    received: tuple[int, int],
    most: tuple[int, int],
    num_places: int,
    **options: Any,
) -> tuple[EdgeKinds, list[Int[np.ndarray, " edges"]]]:
    """The two graphs of each part.

    Args:
        lists: of each part, rows of senders, owned or behind them in the halo, and of receivers.
        rows: of a part.
        received: the first of those rows that arrives, and how many do.
        most: owned and halo edges of the largest of all parts.
        num_places: of a part's edge data.
        options: of `stack`.

    Returns:
        Also, for each part, the place in its list of the edge of each place of edge data; -1 for
        padding.
    """
    kept = list(lists)
    first, halo_rows = received
    chosen = [(np.flatnonzero(s < rows), np.flatnonzero(s >= rows)) for s, _ in kept]
    owned, owned_orders = stack(
        ((s[own], r[own]) for (s, r), (own, _) in zip(kept, chosen, strict=True)),
        rows,
        rows,
        most[0],
        **options,
    )
    halo, halo_orders = stack(
        (
            (s[far] - s.dtype.type(first), r[far])
            for (s, r), (_, far) in zip(kept, chosen, strict=True)
        ),
        halo_rows,
        rows,
        most[1],
        **options,
    )
    orders = []
    offsets = zip(np.asarray(owned.row_offsets), np.asarray(halo.row_offsets), strict=True)
    places = [places_of_kinds(*pair) for pair in offsets]
    for part, (own, far) in enumerate(chosen):
        order = np.full(num_places, -1, np.int64)
        for place, edges, of_kind in (
            (places[part][0], own, owned_orders[part]),
            (places[part][1], far, halo_orders[part]),
        ):
            known = of_kind >= 0
            order[place[known]] = edges[of_kind[known]]
        orders.append(order)
    return EdgeKinds(owned, halo), orders


def stack(
    lists: Iterable[tuple[np.ndarray, np.ndarray]],
    num_senders: int,
    num_receivers: int,
    most_edges: int,
    paddings: Sequence[int],
    scheduled: bool = False,
    windows: WindowsOfParts | None = None,
) -> tuple[Graph, list[np.ndarray]]:
    """The graphs of edge lists, padded to one shape and stacked on the host.

    Args:
        lists: senders and receivers, of each graph.
        num_senders, num_receivers: of all.
        most_edges: of the largest of all parts, also of those that are not built.
        paddings: the receiver of each graph, without other edges, where padding ends.
        scheduled: whether they get a row schedule.
        windows: that they get; then padding ends at the last receiver.

    Returns:
        Also, for each graph, the place of its edges in their list; -1 for padding.
    """
    num_edges = max(1, most_edges)
    graphs, orders = [], []
    with jax.default_device(_host()):
        for part, (end, (senders, receivers)) in enumerate(zip(paddings, lists, strict=True)):
            padding = num_edges - senders.size
            # All padding ends at one row. It starts where other edges do: at nodes, not at places
            # of padding, which may hold anything.
            graph = Graph.from_edges(
                np.append(senders, np.resize(senders, padding)),
                np.append(receivers, np.full(padding, end, receivers.dtype)),
                num_senders=num_senders,
                num_receivers=num_receivers,
            )
            order = np.asarray(graph.edge_permutation)
            orders.append(np.where(order < senders.size, order, -1))
            if windows is not None:
                graph = dataclasses.replace(graph, windows=_windows_of(graph, windows, part))
            graphs.append(_of_one_shape(graph, scheduled))
    if windows is not None:
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


def _windows_of(graph: Graph, of_parts: WindowsOfParts, part: int) -> Windows:
    """Windows in which the padding's receiver, the last one, has no edges.

    Its edges share no senders, and would be an entry and a sum each.
    """
    offsets = np.array(graph.row_offsets)
    offsets[-1] = offsets[-2]
    senders = np.asarray(graph.senders)[: offsets[-1]]
    nodes = of_parts.orders[part]
    order = np.append(nodes, np.arange(nodes.size, graph.num_receivers, dtype=np.int32))
    receivers = receivers_for(of_parts.width)
    windows = build(offsets, senders, graph.num_senders, of_parts.weighted, receivers, order)
    if windows.edges is None:
        return windows
    rest = np.arange(offsets[-1], graph.num_edges, dtype=np.int32)
    return dataclasses.replace(windows, edges=np.append(windows.edges, rest))


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
