"""Builds the host arrays of a graph: sorted edges, their transpose, and the chunks of long rows.

NumPy arrays in and out. The sort runs in C++ (`cpu/host/graph.cc`), or in NumPy where the compiled
module is missing: slower, with the same result.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._core.ffi import cpu_module
from jaxgnn.graph._build.edge_list import SELF_LOOPS, as_indices, check_edges
from jaxgnn.graph._build.row_chunks import RowChunks, chunk_rows, pad_chunks

_WIDE_FROM = 2**31  # edges that no int32 counts


class HostCSR(NamedTuple):
    """The arrays of `Graph`, in NumPy. If `symmetric`, the transpose's are the same objects."""

    row_offsets: np.ndarray
    senders: np.ndarray
    row_chunks: RowChunks
    transpose_row_offsets: np.ndarray
    transpose_receivers: np.ndarray
    transpose_permutation: np.ndarray
    transpose_row_chunks: RowChunks
    edge_permutation: np.ndarray | None
    self_loops: np.ndarray | None
    num_senders: int
    num_receivers: int
    num_edges: int
    symmetric: bool
    num_input_edges: int | None = None
    merges_edges: bool = False
    edge_positions: np.ndarray | None = None

    def pad_chunks(self) -> HostCSR:
        """The same arrays, the chunks' tables padded to shapes that the counts alone decide."""
        return self._replace(
            row_chunks=pad_chunks(self.row_chunks, self.num_edges, self.num_receivers),
            transpose_row_chunks=pad_chunks(
                self.transpose_row_chunks, self.num_edges, self.num_senders
            ),
        )


# Building.


def build(
    senders: Any,
    receivers: Any,
    *,
    num_nodes: int | None = None,
    num_senders: int | None = None,
    num_receivers: int | None = None,
    undirected: bool = False,
    deduplicate: bool = False,
    self_loops: str = "keep",
    wide: bool | None = None,
) -> HostCSR:
    """Arrays of `Graph.from_edges`, but `undirected` merges nothing: edges merge by `deduplicate`.

    `wide` forces 64-bit edge counts (for tests).
    """
    senders, receivers, num_senders, num_receivers, square = check_edges(
        senders,
        receivers,
        undirected,
        self_loops,
        num_nodes=num_nodes,
        num_senders=num_senders,
        num_receivers=num_receivers,
    )
    forward = senders.size
    added = num_receivers if self_loops.startswith("add") else 0
    forced = wide is not None
    if wide is None:
        wide = senders.size * (2 if undirected else 1) + added >= _WIDE_FROM
    core: Any = _build_numpy if cpu_module is None else cpu_module.build_csr
    offsets, columns, t_offsets, t_columns, t_permutation, permutation, loops = core(
        senders,
        receivers,
        num_senders,
        num_receivers,
        square,
        undirected,
        deduplicate,
        SELF_LOOPS.index(self_loops),
        wide,
    )
    num_edges, symmetric = columns.size, t_columns is columns
    if wide and not forced and num_edges < _WIDE_FROM:  # fewer edges came out than might have
        offsets, t_permutation = offsets.astype(np.int32), t_permutation.astype(np.int32)
        t_offsets = offsets if symmetric else t_offsets.astype(np.int32)
        if senders.size <= _WIDE_FROM:
            permutation = permutation.astype(np.int32)
    chunks = chunk_rows(offsets)
    return HostCSR(
        row_offsets=offsets,
        senders=columns,
        row_chunks=chunks,
        transpose_row_offsets=t_offsets,
        transpose_receivers=t_columns,
        transpose_permutation=t_permutation,
        transpose_row_chunks=chunks if symmetric else chunk_rows(t_offsets),
        edge_permutation=permutation,
        self_loops=loops,
        num_senders=num_senders,
        num_receivers=num_receivers,
        num_edges=num_edges,
        symmetric=symmetric,
        num_input_edges=forward,
        merges_edges=deduplicate,
    )


def build_from_csr(row_offsets: Any, senders: Any, *, num_senders: int | None = None) -> HostCSR:
    """Arrays of `Graph.from_csr`, which see."""
    offsets = as_indices(row_offsets, "row_offsets")
    senders = as_indices(senders, "senders")
    if offsets.size == 0:
        raise ValueError("row_offsets: expected num_receivers + 1 of them, got none")
    check_row_offsets(offsets, senders.size)
    num_rows = offsets.size - 1
    receivers = np.repeat(np.arange(num_rows, dtype=senders.dtype), np.diff(offsets))
    if num_senders is None:
        return build(senders, receivers, num_nodes=num_rows)
    return build(senders, receivers, num_senders=num_senders, num_receivers=num_rows)


def check_row_offsets(offsets: np.ndarray, num_senders: int) -> None:
    """Raises a `ValueError` unless the offsets rise from 0 to the number of senders."""
    if offsets[0] != 0 or offsets[-1] != num_senders:
        raise ValueError(
            f"row_offsets: expected them to run from 0 to the number of senders "
            f"({num_senders}), got {offsets[0]} to {offsets[-1]}"
        )
    falls = offsets[1:] < offsets[:-1]  # compared: a difference of int64 may wrap around
    if falls.any():
        row = int(falls.argmax())
        raise ValueError(
            f"row_offsets: expected them to rise, got row_offsets[{row}] = {offsets[row]} "
            f"before row_offsets[{row + 1}] = {offsets[row + 1]}"
        )


def row_ids(row_offsets: np.ndarray) -> np.ndarray:
    """The row of each edge, int32."""
    return np.repeat(np.arange(row_offsets.size - 1, dtype=np.int32), np.diff(row_offsets))


def first_of_equal(senders: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of sorted edges begin a group of equal ones."""
    first = np.ones(senders.size, bool)
    first[1:] = (senders[1:] != senders[:-1]) | (rows[1:] != rows[:-1])
    return first


def gcn_normalize(row_offsets: np.ndarray, senders: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""$d_j^{-1/2} w_{ij} d_i^{-1/2}$ with $d_i = \sum_j w_{ij}$ in double; 0 where $d = 0$.

    `weights` is `[E]` or `[E, ...]`, floating.
    """
    native = weights.ndim == 1 and weights.dtype in (np.float32, np.float64)
    if native and cpu_module is not None:
        return cpu_module.gcn_normalize(row_offsets, senders, np.ascontiguousarray(weights))
    receivers = row_ids(row_offsets)
    degrees = np.zeros((row_offsets.size - 1, *weights.shape[1:]))
    np.add.at(degrees, receivers, weights.astype(np.float64))
    # Narrow types (bfloat16, float16) are computed in float32 and rounded once.
    dtype = np.float64 if weights.dtype == np.float64 else np.float32
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = degrees.astype(dtype) ** dtype(-0.5)
    scale[np.isposinf(scale)] = 0
    return (scale[senders] * weights.astype(dtype) * scale[receivers]).astype(weights.dtype)


# The same in NumPy: for installations without the compiled module, and the oracle of the tests.


def _build_numpy(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_senders: int,
    num_receivers: int,
    square: bool,
    undirected: bool,
    deduplicate: bool,
    self_loops: int,
    wide: bool,
) -> tuple[np.ndarray | None, ...]:
    """What C++'s `build_csr` does, in its argument order."""
    index = np.int64 if wide else np.int32
    ids = np.arange(senders.size, dtype=index)
    is_loop = senders == receivers
    nodes = np.arange(num_receivers, dtype=senders.dtype)
    parts = [(senders, receivers, ids)]
    if SELF_LOOPS[self_loops] == "remove":
        parts = [(senders[~is_loop], receivers[~is_loop], ids[~is_loop])]
    if undirected:
        parts.append((receivers[~is_loop], senders[~is_loop], ids[~is_loop]))
    if SELF_LOOPS[self_loops] == "add_remaining":
        nodes = np.setdiff1d(nodes, receivers[is_loop])
    if SELF_LOOPS[self_loops].startswith("add"):
        parts.append((nodes, nodes, np.full(nodes.size, -1, index)))
    s, r, ids = (np.concatenate(part) for part in zip(*parts, strict=True))

    order = np.lexsort((s, r))
    s, r, ids = s[order].astype(np.int32), r[order].astype(np.int32), ids[order]
    if deduplicate:
        first = first_of_equal(s, r)
        s, r, ids = s[first], r[first], ids[first]

    offsets_of = functools.partial(_offsets, dtype=index)
    offsets, t_offsets = offsets_of(r, num_receivers), offsets_of(s, num_senders)
    permutation = np.argsort(s, kind="stable").astype(index)
    t_columns = r[permutation]
    if np.array_equal(offsets, t_offsets) and np.array_equal(s, t_columns):
        t_offsets, t_columns = offsets, s
    loops = None
    if square:
        loops = np.bincount(r[s == r], minlength=num_receivers).astype(np.int32)
    return offsets, s, t_offsets, t_columns, permutation, ids, loops


def _offsets(rows: np.ndarray, num_rows: int, dtype: Any) -> np.ndarray:
    counts = np.bincount(rows, minlength=num_rows)
    return np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
