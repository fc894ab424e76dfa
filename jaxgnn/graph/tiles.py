r"""Tiles: windows of rows whose columns are condensed, so that a window reads a column once.

`translate` is TC-GNN's *sparse graph translation*. `Graph.with_tiles` makes the tiles that `spmm`
runs over; `save` and `load` keep them in a file. All of it is done once, outside `jax.jit`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from jaxgnn._core import checks, device
from jaxgnn._core.checks import boolean, floating_dtype, integer
from jaxgnn._core.device import device_array, place_like
from jaxgnn._core.ffi import cpu_module
from jaxgnn.graph._build import csr
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._layouts import device_translation, tile_file, tile_rule
from jaxgnn.graph._layouts.device_windows import numbers_fit
from jaxgnn.graph._layouts.tile_rule import Estimate, Operation
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.graph._validate import check_not_traced, check_rows

__all__ = ["Estimate", "Operation", "Tiles", "Translation", "estimate", "load", "save", "translate"]

_MOST = 1024  # rows and columns of a block


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "window_blocks",
        "window_blocks_before",
        "edge_columns",
        "edge_offsets",
        "column_offsets",
        "columns",
        "edge_histogram",
    ],
    meta_fields=["block_shape", "num_edges", "num_entries", "num_blocks", "num_blocks_before"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Translation:
    """A graph whose windows of rows have condensed columns; see `translate`.

    A *window* is `block_shape[0]` consecutive rows, the last one possibly fewer. Its *columns* are
    the distinct ones of its edges. A *block* is a window by `block_shape[1]` of its columns.

    Attributes:
        window_blocks: number of blocks of each window (TC-GNN's `winPartition`), 0 without edges.
        window_blocks_before: the same without the translation; see `translate`.
        edge_columns: rank of each edge's column among its window's columns (TC-GNN's
            `edgeToCol`), so its block is `edge_columns // block_shape[1]`.
        edge_offsets: edges of window $w$ are `edge_offsets[w]:edge_offsets[w + 1]`.
        columns: the columns of each window, ascending.
        column_offsets: those of window $w$ begin at `column_offsets[w]`.
        edge_histogram: number of columns by their number of edges; the last entry counts the
            columns with `block_shape[0]` edges or more.
        block_shape: static; rows and columns of a block.
        num_edges, num_entries: static; the edges, and the distinct pairs of row and column.
        num_blocks, num_blocks_before: static; of all windows.
    """

    window_blocks: Int[Array, " num_windows"]
    window_blocks_before: Int[Array, " num_windows"]
    edge_columns: Int[Array, " num_edges"]
    edge_offsets: Int[Array, " num_windows+1"]
    column_offsets: Int[Array, " num_windows+1"]
    columns: Int[Array, " num_columns"]
    edge_histogram: Int[Array, " rows+1"]
    block_shape: tuple[int, int]
    num_edges: int
    num_entries: int
    num_blocks: int
    num_blocks_before: int

    @property
    def num_windows(self) -> int:
        """Number of windows, those without edges included."""
        return self.window_blocks.size

    @property
    def reduction(self) -> float:
        """Share of the blocks that the translation saves, 0 if there are none."""
        return 1 - self.num_blocks / self.num_blocks_before if self.num_blocks_before else 0.0

    @property
    def density(self) -> float:
        """Share of the blocks' entries that have an edge, 0 if there are no blocks."""
        size = self.num_blocks * self.block_shape[0] * self.block_shape[1]
        return self.num_entries / size if size else 0.0

    @property
    def edges_per_column(self) -> float:
        """Mean number of edges of a window's column, 0 without edges.

        The factor by which the loads of senders fall if a window loads each of its columns once.
        """
        return self.num_edges / self.columns.size if self.num_edges else 0.0

    def restore(self) -> Int[Array, " num_edges"]:
        """The column of each edge, from its window, its rank and the list of distinct columns.

        Equal to `graph.senders` of the translated graph, or if its transpose was translated to
        `graph.transpose_receivers`. Runs on the host, as `translate` does.
        """
        first = np.repeat(np.asarray(self.column_offsets)[:-1], np.diff(self.edge_offsets))
        return device_array(np.asarray(self.columns)[first + np.asarray(self.edge_columns)])

    def __repr__(self) -> str:
        rows, columns = self.block_shape
        return (
            f"Translation({self.num_windows} windows, {self.num_blocks_before} -> "
            f"{self.num_blocks} blocks of {rows}x{columns}, "
            f"{self.edges_per_column:.2f} edges a column)"
        )


def translate(
    graph: Graph, rows: int = 16, columns: int = 8, *, transpose: bool = False
) -> Translation:
    r"""Condenses the columns that each window of `rows` rows reads: sparse graph translation.

    With $C_w$ the set of columns $j$ that have an edge to a row of window $w$, an edge from $j$
    gets the rank of $j$, and the window gets as many blocks as the ranks fill:

    $$c(e) = |\{k \in C_w : k < j\}|, \qquad b_w = \lceil |C_w| / \mathtt{columns} \rceil$$

    Without it, blocks lie where the columns are: each begins at the first column that the blocks
    to its left do not cover, which are the fewest blocks of consecutive columns
    (`window_blocks_before`).

    Rows are the receivers, columns the senders. Repeated edges have one rank. Edges keep their
    order. A graph on a GPU is sorted there; others are translated on the host, in parallel, in
    $O(E \log \mathtt{rows})$.

    Args:
        graph: any graph, also a rectangular one.
        rows, columns: of a block, 1 to 1,024. TC-GNN has 16 by 8 for products with the features,
            16 by 16 for products on the edges.
        transpose: translate the transpose: rows are the senders, columns the receivers, and edges
            are in the order of `graph.transpose_permutation`.

    Returns:
        The translation, 4 bytes an edge and 4 a window's column.

    Raises:
        MemoryError: the host has not enough memory.
        TypeError: `graph` is no `Graph`, or is being traced, `rows` or `columns` is no integer, or
            `transpose` no boolean.
        ValueError: `rows` or `columns` out of range, the graph's offsets or columns are not those
            of a graph, or a window has 2^32 edges or more.

    Source: Wang et al., TC-GNN: Bridging Sparse GNN Computation and Dense Tensor Cores on GPUs,
    USENIX ATC 2023, Algorithm 1.
    """
    _check_graph(graph, "translate")
    shape = integer(rows, "rows", 1, _MOST), integer(columns, "columns", 1, _MOST)
    if boolean(transpose, "transpose"):
        offsets, edge_columns = graph.transpose_row_offsets, graph.transpose_receivers
    else:
        offsets, edge_columns = graph.row_offsets, graph.senders
    num_columns = graph.num_receivers if transpose else graph.num_senders
    check_rows(graph, transpose=transpose, on_device=True)
    small = offsets.dtype == np.int32 and numbers_fit(offsets.size, edge_columns.size)
    if small and device.on_gpu(edge_columns):
        arrays, num_entries = device_translation.translate(
            offsets, edge_columns, *shape, num_columns
        )
    else:
        arrays, num_entries = _on_host(np.asarray(offsets), np.asarray(edge_columns), *shape)
        arrays = place_like(arrays, edge_columns)
    blocks, before = (
        int(np.asarray(arrays[name]).sum(dtype=np.int64))
        for name in ("window_blocks", "window_blocks_before")
    )
    return Translation(
        **arrays,
        block_shape=shape,
        num_edges=edge_columns.size,
        num_entries=num_entries,
        num_blocks=blocks,
        num_blocks_before=before,
    )


def estimate(
    graph: Graph,
    width: int,
    dtype: DTypeLike = np.float32,
    *,
    operation: Operation = "spmm",
    transpose: bool = False,
) -> Estimate:
    r"""What an `spmm` takes on an H200 by rows and over the graph's tiles.

    With $n$ edges of $N$ rows, of which $r$ are in no tile, $m$ entries and $s$ slots of sums, and
    $k$ slices of 128 bytes of $F$ features,

    $$t_\mathrm{rows} = n (k \tau + \epsilon) + N k \rho, \qquad
      t_\mathrm{tiles} = m k \sigma + (n - r) k \omega + r (k \tau + \epsilon)
      + N k \rho' + 2 \cdot 64 \cdot 4 \, s F \beta + t_0.$$

    Where tensor cores multiply a mask, without weights, an edge of a tile takes nothing more
    ($\omega = 0$). `docs/kernels/tiles.md` has the rates, and what they were fitted to. All of it
    is known when a program is traced: this is how `impl=None` chooses on a GPU.

    Args:
        graph: a graph with tiles.
        width: $F$, features of a row in all, heads included.
        dtype: of the features: float32, bfloat16, float16, or float64, which runs by rows.
        operation: `"spmm"`, without weights, or `"weighted_spmm"`.
        transpose: of the product with the transpose.

    Raises:
        TypeError: `graph` is no `Graph`, `width` no integer, `dtype` none of these, or `transpose`
            no boolean.
        ValueError: the graph has no tiles, `width` is below 1, or `operation` is unknown.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph: expected a jaxgnn.Graph, got {type(graph).__name__}")
    tiles = graph.transpose_tiles if boolean(transpose, "transpose") else graph.tiles
    if tiles is None:
        raise ValueError("graph: expected one with tiles, got none; see Graph.with_tiles")
    features = integer(width, "width", 1, 2**31 - 1)
    dtype = floating_dtype(dtype, "dtype")
    checks.choice(operation, "operation", get_args(Operation))
    return tile_rule.estimate(tiles, features, dtype, operation)


def save(graph: Graph, path: str | bytes | os.PathLike[str]) -> None:
    """Writes the tiles of `graph.with_tiles()` to a file, 4 bytes a node and direction.

    Finding an order takes most of the time of `with_tiles`; a file has the orders of the rows, from
    which `load` makes the same tiles for the same graph. It has a version and a checksum.

    Raises:
        OSError: the file cannot be written.
        TypeError: `graph` is no `Graph`, or is being traced, or `path` no path.
        ValueError: the graph has no tiles, or `path` has a null character.
    """
    _check_graph(graph, "tiles.save")
    path = _path(path)
    if graph.tiles is None or graph.transpose_tiles is None:
        raise ValueError("graph: expected tiles to save, got none; see Graph.with_tiles")
    tile_file.save(graph, path)


def load(graph: Graph, path: str | bytes | os.PathLike[str]) -> Graph:
    """`graph` with the tiles that `save` wrote for it.

    Args:
        graph: the same graph: receivers, senders and edges in the same order.
        path: the file.

    Raises:
        jaxgnn.data.DataError: a `ValueError`; the file is of another graph or version, damaged, or
            no such file. No file makes tiles with which a product would be wrong.
        MemoryError: the host has not enough memory.
        RuntimeError: the compiled CPU module is missing.
        TypeError: `graph` is no `Graph`, or is being traced, or `path` no path.
        ValueError: the graph's offsets, senders or receivers are not those of a graph, or `path`
            has a null character.
    """
    _check_graph(graph, "tiles.load")
    path = _path(path)
    check_rows(graph)
    check_rows(graph, transpose=True)
    tiles, transpose = tile_file.load(graph, path, graph.symmetric)
    shared = transpose is tiles
    tiles = place_like(tiles, graph.senders)
    transpose = tiles if shared else place_like(transpose, graph.senders)
    return dataclasses.replace(graph, tiles=tiles, transpose_tiles=transpose)


def _path(path: Any) -> str:
    if not isinstance(path, bytes):
        checks.path(path, "path")
    name = os.fsdecode(path)
    if "\0" in name:
        raise ValueError(f"path: expected no null character, got {path!r}")
    return name


def _check_graph(graph: Any, function: str) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"graph: expected a jaxgnn.Graph, got {type(graph).__name__}")
    check_not_traced(graph, function)


def _on_host(
    row_offsets: np.ndarray, edge_columns: np.ndarray, rows: int, columns: int
) -> tuple[dict[str, Array], int]:
    """The arrays of `Translation` by name, and the distinct pairs of row and column."""
    core: Any = _translate_numpy if cpu_module is None else cpu_module.translate
    *parts, num_entries = core(row_offsets, edge_columns, rows, columns)
    arrays = dict(zip(HostTranslation._fields, parts, strict=False))
    bounds = np.arange(0, row_offsets.size - 1 + rows, rows)
    arrays["edge_offsets"] = row_offsets[np.minimum(bounds, row_offsets.size - 1)]
    return {name: device_array(array) for name, array in arrays.items()}, num_entries


class HostTranslation(NamedTuple):
    """What both implementations on the host return: arrays of `Translation`, in NumPy."""

    window_blocks: np.ndarray
    window_blocks_before: np.ndarray
    edge_columns: np.ndarray
    column_offsets: np.ndarray
    columns: np.ndarray
    edge_histogram: np.ndarray
    num_entries: int


# The same in NumPy: for installations without the compiled module, and the oracle of the tests.


def _translate_numpy(
    row_offsets: np.ndarray, edge_columns: np.ndarray, rows: int, columns: int
) -> HostTranslation:
    """What C++'s `translate` does, in its argument order."""
    index = row_offsets.dtype
    num_windows = -(-(row_offsets.size - 1) // rows)
    width = int(edge_columns.max(initial=0)) + 1
    row = csr.row_ids(row_offsets).astype(np.int64)
    keys, inverse, edges = np.unique(
        row // rows * width + edge_columns, return_inverse=True, return_counts=True
    )
    window = keys // width
    distinct = np.bincount(window, minlength=num_windows)
    offsets = np.concatenate([[0], np.cumsum(distinct)])
    return HostTranslation(
        window_blocks=(-(-distinct // columns)).astype(np.int32),
        window_blocks_before=_blocks_in_place(keys, offsets, columns),
        edge_columns=(inverse - offsets[row // rows]).astype(np.int32),
        column_offsets=offsets.astype(index),
        columns=(keys % width).astype(np.int32),
        edge_histogram=np.bincount(np.minimum(edges, rows), minlength=rows + 1).astype(index),
        num_entries=np.unique(row * width + edge_columns).size,
    )


def _blocks_in_place(keys: np.ndarray, offsets: np.ndarray, columns: int) -> np.ndarray:
    """The blocks of each window before its columns are condensed.

    Round by round, each window that has columns left places its next block.
    """
    place, end = offsets[:-1].copy(), offsets[1:]
    blocks = np.zeros(place.size, np.int32)
    left = np.flatnonzero(place < end)
    while left.size:
        blocks[left] += 1
        covered = np.searchsorted(keys, keys[place[left]] + columns)
        place[left] = np.minimum(covered, end[left])
        left = left[place[left] < end[left]]
    return blocks
