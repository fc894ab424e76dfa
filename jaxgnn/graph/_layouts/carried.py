"""What a graph carries for a GPU's kernels: windows, row schedules, tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core.checks import boolean, integer
from jaxgnn._core.device import place_like
from jaxgnn.graph._layouts import row_schedule
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts import windows as _windows
from jaxgnn.graph._validate import check_not_traced, check_rows

if TYPE_CHECKING:
    from jaxgnn.graph._graph import Graph


def windows(graph: Graph, weighted: bool, width: Any) -> _windows.Windows:
    """Those of `Graph.with_windows`, which says what it raises."""
    check_not_traced(graph, "with_windows")
    width = integer(width, "width", 1, _windows.MAX_WIDTH)
    check_rows(graph)
    built = _windows.build(
        np.asarray(graph.row_offsets),
        np.asarray(graph.senders),
        graph.num_senders,
        boolean(weighted, "weighted"),
        _windows.receivers_for(width),
    )
    return place_like(built, graph.senders)


def row_schedules(
    graph: Graph,
) -> tuple[Int[Array, " num_receivers"], Int[Array, " num_senders"]]:
    """Those of `Graph.with_row_schedule`."""
    check_not_traced(graph, "with_row_schedule")
    return _of_directions(
        graph,
        lambda offsets, columns, num_columns: row_schedule.build(
            np.asarray(offsets), np.asarray(columns), num_columns
        ),
    )


def tiles(
    graph: Graph, order: _tiles.Order, min_edges: int | None, on_device: bool
) -> tuple[_tiles.Tiles, _tiles.Tiles]:
    """Those of `Graph.with_tiles`, of either direction."""
    check_not_traced(graph, "with_tiles")
    on_device = boolean(on_device, "on_device")
    options: dict[str, Any] = {
        "order": order,
        "min_edges": min_edges,
        "square": graph.is_square,
        "symmetric": graph.symmetric,
        "on_device": on_device,
    }
    return _of_directions(
        graph,
        lambda *rows: _tiles.build(*rows, **options),
        on_device=on_device and order == "numbered",  # the others are found on the host
    )


def _of_directions(
    graph: Graph, build: Callable[[Array, Array, int], Any], *, on_device: bool = False
) -> tuple[Any, Any]:
    """What `build(row_offsets, columns, num_columns)` makes of the graph and of its transpose, once
    where these are alike; placed like the graph."""
    check_rows(graph, on_device=on_device)
    own = place_like(build(graph.row_offsets, graph.senders, graph.num_senders), graph.senders)
    if graph.symmetric:
        return own, own
    check_rows(graph, transpose=True, on_device=on_device)
    other = build(graph.transpose_row_offsets, graph.transpose_receivers, graph.num_receivers)
    return own, place_like(other, graph.senders)
