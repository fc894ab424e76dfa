"""The rows that kernels walk: of a graph, of its transpose, or the edges of each node."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxgnn import config
from jaxgnn.graph import Graph
from jaxgnn.graph._build.row_chunks import RowChunks
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.graph._layouts.windows import Windows
from jaxgnn.ops._core.checked import check_rows, check_tiles, check_windows


class Rows(NamedTuple):
    """A row structure.

    Attributes:
        offsets: edges of row $i$ are `offsets[i]:offsets[i + 1]`.
        columns: which entry each edge reads; `None` for its own.
        chunks: chunks of the long rows.
        order: the graph's edge at each place; `None` where that is the place itself.
        schedule: the order in which a GPU processes the rows; `None` for the original order.
    """

    offsets: Int[Array, " rows+1"]
    columns: Int[Array, " edges"] | None
    chunks: RowChunks
    order: Int[Array, " edges"] | None
    schedule: Int[Array, " rows"] | None = None

    @property
    def num_rows(self) -> int:
        return self.offsets.shape[0] - 1


def structure(rows: Rows) -> list[Array]:
    """What every kernel takes of the rows: an array without elements stands for an absent one."""
    return [rows.offsets, or_empty(rows.columns), or_empty(rows.chunks.table)]


def ordered_structure(rows: Rows) -> list[Array]:
    """The same, and the order in which a GPU takes the rows."""
    return [*structure(rows), or_empty(rows.schedule)]


def tiled_structure(rows: Rows, tiles: Tiles, *, weighted: bool) -> list[Array]:
    """What every kernel over tiles takes: masks and all columns, or for weighted sums the edges in
    tiles one by one."""
    return [
        rows.offsets,
        *([] if weighted else [or_empty(rows.columns)]),
        or_empty(tiles.rest_chunks.table),
        tiles.rows,
        or_empty(tiles.columns),
        *([] if weighted else [tiles.masks]),
        tiles.parts,
        tiles.slot_offsets,
        tiles.rest_offsets,
        or_empty(tiles.rest_columns),
        *(_edges_in_tiles(tiles) if weighted else []),
    ]


def _edges_in_tiles(tiles: Tiles) -> list[Array]:
    return [
        or_empty(tiles.rest_edges),
        tiles.stage_offsets,
        tiles.edge_counts,
        tiles.edge_offsets,
        tiles.edge_entries,
        tiles.edges,
    ]


def or_empty(numbers: Int[Array, "..."] | None) -> Int[Array, "..."]:
    """The numbers, or an array without elements, which is made here also where they are one:
    compiling an argument without elements under `shard_map` crashes jaxlib 0.11."""
    if numbers is None:
        return jnp.zeros(0, jnp.int32)
    return jnp.zeros(numbers.shape, jnp.int32) if numbers.size == 0 else numbers


def neighbors(graph: Graph, *, transpose: bool) -> Rows:
    """Senders of each receiver, or with `transpose` receivers of each sender."""
    if transpose:
        rows = Rows(
            graph.transpose_row_offsets,
            graph.transpose_receivers,
            graph.transpose_row_chunks,
            graph.transpose_permutation,
            graph.transpose_row_schedule,
        )
        return _checked(rows, graph.num_receivers, graph)
    rows = Rows(graph.row_offsets, graph.senders, graph.row_chunks, None, graph.row_schedule)
    return _checked(rows, graph.num_senders, graph)


def edges_of(graph: Graph, *, by_sender: bool) -> Rows:
    """The edges that end at each receiver, or with `by_sender` that start at each sender."""
    if by_sender:
        rows = Rows(
            graph.transpose_row_offsets,
            graph.transpose_permutation,
            graph.transpose_row_chunks,
            graph.transpose_permutation,
        )
    else:
        rows = Rows(graph.row_offsets, None, graph.row_chunks, None)
    return _checked(rows, graph.num_edges, graph)


def ends_of(graph: Graph, *, senders: bool) -> Int[Array, " num_edges"]:
    """The sender of each edge, or its receiver."""
    if not config.check_graphs:
        return graph.senders if senders else graph.receivers
    rows = neighbors(graph, transpose=False)
    graph = dataclasses.replace(graph, row_offsets=rows.offsets, senders=rows.columns)
    return graph.senders if senders else graph.receivers


def windows_of(graph: Graph) -> Windows | None:
    """The graph's windows, if it has any."""
    windows = graph.windows
    if windows is None or not config.check_graphs:
        return windows
    return check_windows(windows, graph.num_receivers, graph.num_senders, graph.num_edges)


def tiles_of(graph: Graph, *, transpose: bool) -> Tiles | None:
    """The tiles of a direction, if the graph has any."""
    tiles = graph.transpose_tiles if transpose else graph.tiles
    if tiles is None or not config.check_graphs:
        return tiles
    return check_tiles(tiles, graph.num_receivers if transpose else graph.num_senders)


def _checked(rows: Rows, num_columns: int, graph: Graph) -> Rows:
    """The rows, without a table of chunks where that is one entry, thus padding: a GPU then
    launches no kernel that joins chunks."""
    if config.check_graphs:
        rows = check_rows(rows, num_columns, graph.num_edges)
    if rows.chunks.table.shape[0] != 1:
        return rows
    none = dataclasses.replace(rows.chunks, table=jnp.zeros((0, 2), jnp.int32))
    return rows._replace(chunks=none)


def in_row_order(rows: Rows, values: Array | None) -> Array | None:
    """Edge values from the graph's edge order into that of the rows."""
    return values if values is None or rows.order is None else values[rows.order]


def in_graph_order(rows: Rows, values: Array) -> Array:
    """Edge values from the order of the rows into the graph's."""
    if rows.order is None:
        return values
    # A permutation: every place is written once, so the result does not depend on any order.
    return jnp.zeros_like(values).at[rows.order].set(values, unique_indices=True)
