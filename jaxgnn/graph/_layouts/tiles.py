"""Tiles: the columns that the rows of a window share, for tensor cores, and the other edges."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, get_args

import jax
import numpy as np
from jaxtyping import Array, Int, UInt

from jaxgnn._core import device
from jaxgnn._core.checks import choice, integer
from jaxgnn._core.ffi import host_module
from jaxgnn.graph._build.row_chunks import RowChunks, chunk_rows
from jaxgnn.graph._layouts import device_tiles, tile_order
from jaxgnn.graph._layouts.device_windows import numbers_fit
from jaxgnn.graph._layouts.tile_sizes import ROWS

Order = Literal["auto", "numbered", "groups", "rcm", "labels"]

MIN_EDGES = 4  # from which on a shared column pays: docs/kernels/tiles.md

# What `lay_out_tiles` returns, in its order.
_LAID_OUT = [
    "columns",
    "masks",
    "parts",
    "slot_offsets",
    "rest_offsets",
    "rest_columns",
    "rest_edges",
    "stage_offsets",
    "edge_counts",
    "edge_offsets",
    "edge_entries",
    "edges",
]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", *_LAID_OUT, "rest_chunks"],
    meta_fields=["order", "min_edges", "num_edges", "num_entries", "num_columns"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tiles:
    """One direction of a graph, split into shared columns and other edges; see `with_tiles`.

    A row's *place* is its number in the order; a window has 64 consecutive places. An *entry* is a
    column that at least `min_edges` rows of a window read. 16 entries are a *batch*: a window by 16
    columns with a mask, the operand of four `mma.m16n8k16`. The edges that are in no entry, second
    and further ones of a repeated edge among them, are the *rest*. A *stage* is 64 entries of a
    part, which a thread block holds at once where it takes each edge by itself.

    Attributes:
        rows: the row at each place.
        columns: those of the entries, ascending within a window, padded to batches.
        masks: the mask of each batch, in the order in which a warp's lanes take it
            (`mask_bit` of `cpu/tiles/layout.h`).
        parts: what a thread block takes: first batch, end, slot of its sums, window.
        slot_offsets: slots of window $w$ are `slot_offsets[w]:slot_offsets[w + 1]`.
        rest_offsets, rest_columns, rest_chunks: the rest as compressed rows, by place.
        rest_edges: the edge of each, in the edge order of the direction.
        stage_offsets: stages of slot $s$ are `stage_offsets[s]:stage_offsets[s + 1]`.
        edge_counts: edges of each stage and row; row $g + 8 i$ of the window is at $8 g + i$.
        edge_offsets: by slot and $g$, where the edges of these 8 rows begin in `edges`.
        edge_entries: of each edge in a tile, its entry in the stage.
        edges: the edges in tiles, by slot, $g$, stage and row.
        order: static; of the rows: `"numbered"`, `"groups"`, `"rcm"` or `"labels"`.
        min_edges: static.
        num_edges, num_entries: static; the edges, and the entries without padding.
        num_columns: static; the distinct columns of each window, summed.
    """

    rows: Int[Array, " num_rows"]
    columns: Int[Array, " 16*num_batches"]
    masks: UInt[Array, "num_batches 32"]
    parts: Int[Array, "num_parts 4"]
    slot_offsets: Int[Array, " num_windows+1"]
    rest_offsets: Int[Array, " num_rows+1"]
    rest_columns: Int[Array, " num_rest"]
    rest_chunks: RowChunks
    rest_edges: Int[Array, " num_rest"]
    stage_offsets: Int[Array, " num_parts+1"]
    edge_counts: UInt[Array, "num_stages 64"]
    edge_offsets: Int[Array, " 8*num_parts+1"]
    edge_entries: UInt[Array, " num_tile_edges"]
    edges: Int[Array, " num_tile_edges"]
    order: str
    min_edges: int
    num_edges: int
    num_entries: int
    num_columns: int

    @property
    def num_windows(self) -> int:
        """Number of windows, those without edges included."""
        return self.slot_offsets.shape[0] - 1

    @property
    def num_batches(self) -> int:
        """Number of batches of 16 entries."""
        return self.masks.shape[0]

    @property
    def tile_share(self) -> float:
        """Share of the edges that are in tiles, 0 without edges."""
        return 1 - self.rest_columns.shape[0] / self.num_edges if self.num_edges else 0.0

    @property
    def edges_per_column(self) -> float:
        """Mean number of edges of a window's column ($u$), 0 without edges."""
        return self.num_edges / self.num_columns if self.num_edges else 0.0

    def __repr__(self) -> str:
        return (
            f"Tiles({self.num_windows} windows, order {self.order!r}, "
            f"{self.edges_per_column:.2f} edges a column, "
            f"{self.tile_share:.0%} of {self.num_edges} edges in {self.num_entries} entries)"
        )


def build(
    row_offsets: Int[Array, " rows+1"],
    columns: Int[Array, " edges"],
    num_columns: int,
    *,
    order: str,
    min_edges: int | None,
    square: bool,
    symmetric: bool,
    on_device: bool = False,
) -> Tiles:
    """The tiles of one direction. See `Graph.with_tiles`, whose errors it raises."""
    choice(order, "order", get_args(Order))
    if order == "rcm" and not square:
        raise ValueError("order: 'rcm' numbers the nodes of square graphs, got a rectangular one")
    least = MIN_EDGES if min_edges is None else integer(min_edges, "min_edges", 1, ROWS)
    if columns.size >= 1 << 31:
        raise ValueError(f"with_tiles: expected fewer than 2^31 edges, got {columns.size}")
    rows = None
    if order != "numbered":
        order, found = tile_order.choose(
            host_module("with_tiles"),
            order,
            _host(row_offsets),
            _host(columns),
            num_columns,
            square=square,
            symmetric=symmetric,
        )
        rows = None if order == "numbered" else found
    return lay_out(row_offsets, columns, num_columns, order, rows, least, on_device=on_device)


def lay_out(
    row_offsets: Int[Array | np.ndarray, " rows+1"],
    columns: Int[Array | np.ndarray, " edges"],
    num_columns: int,
    order: str,
    rows: Int[np.ndarray, " rows"] | None,
    min_edges: int,
    *,
    on_device: bool = False,
) -> Tiles:
    """The tiles of rows in a given order, a permutation of them; `None` as numbered.

    Made on the host, or with `on_device` by programs of the GPU on which the columns are.
    """
    num_rows = row_offsets.shape[0] - 1
    # Without edges there is nothing to sort: no programs are compiled for that.
    on_device = on_device and device.on_gpu(columns) and columns.size > 0
    if on_device and numbers_fit(num_rows, columns.size):
        arrays, chunks, num_entries, num_distinct = device_tiles.lay_out(
            row_offsets, columns, num_columns, rows, min_edges
        )
    else:
        rows = np.arange(num_rows, dtype=np.int32) if rows is None else rows
        *laid_out, num_entries, num_distinct = host_module("with_tiles").lay_out_tiles(
            _host(row_offsets), _host(columns), rows, num_columns, min_edges
        )
        by_name = dict(zip(_LAID_OUT, laid_out, strict=True), rows=rows)
        arrays = {name: device.device_array(array) for name, array in by_name.items()}
        chunks = chunk_rows(by_name["rest_offsets"])
        chunks = RowChunks(device.device_array(chunks.table), chunks.length)
    return Tiles(
        **arrays,
        rest_chunks=chunks,
        order=order,
        min_edges=min_edges,
        num_edges=columns.size,
        num_entries=num_entries,
        num_columns=num_distinct,
    )


def append_rows(tiles: Tiles, more: int) -> Tiles:
    """The tiles with this number of rows without edges behind the others, on the host."""
    old = tiles.rows.shape[0]
    windows = -(-(old + more) // ROWS)

    def offsets(values: Array, size: int) -> Int[np.ndarray, " _"]:
        return np.pad(np.asarray(values), (0, size - values.shape[0]), mode="edge")

    rest_offsets = offsets(tiles.rest_offsets, old + more + 1)
    return dataclasses.replace(
        tiles,
        rows=np.append(np.asarray(tiles.rows), np.arange(old, old + more, dtype=np.int32)),
        slot_offsets=offsets(tiles.slot_offsets, windows + 1),
        rest_offsets=rest_offsets,
        rest_chunks=chunk_rows(rest_offsets, tiles.rest_chunks.length),
    )


def _host(values: Array | np.ndarray) -> Int[np.ndarray, " _"]:
    return np.asarray(values).astype(np.int32, copy=False)
