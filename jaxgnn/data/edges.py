"""Readers of bare graphs: Matrix Market files and edge lists."""

from __future__ import annotations

import gzip
import os
import pathlib

import numpy as np
import scipy.io
import scipy.sparse
from jaxtyping import Int

from jaxgnn.data.checks import reading
from jaxgnn.data.csr import CSR
from jaxgnn.data.dataset import DataError


def read_matrix_market(path: str | os.PathLike[str]) -> CSR:
    """The pattern of a square Matrix Market matrix: an edge from row `j` to column `i` per entry.

    Values, explicit zeros among them, are not looked at; repeated entries are merged. A file
    may be gzipped.

    Raises:
        DataError: not such a file, damaged, or not square.
    """
    with reading(path):
        rows, columns, entries, *_ = scipy.io.mminfo(os.fspath(path))
        if rows != columns:
            raise DataError(f"expected a square matrix, got {rows} x {columns}")
        _check_counts(path, rows, entries)
        matrix = scipy.sparse.coo_array(scipy.io.mmread(os.fspath(path)))
        return _pattern(matrix.coords[0], matrix.coords[1], rows)


def read_edge_list(
    path: str | os.PathLike[str], *, num_nodes: int | None = None, undirected: bool = False
) -> CSR:
    """The graph of a text file with an edge a line: two ids from 0, the sender first.

    Ids are split by blanks or a comma; lines that start with `#` or `%` are comments; further
    columns are not looked at. Repeated edges are merged. A file may be gzipped.

    Args:
        path: the file.
        num_nodes: number of nodes; the largest id + 1 by default.
        undirected: add the reverse of each edge.

    Raises:
        DataError: not such a file, damaged, or an id out of range.
    """
    with reading(path):
        opener = gzip.open if pathlib.Path(path).suffix == ".gz" else open
        with opener(path, "rt", encoding="ascii") as file:
            lines = (line.replace(",", " ") for line in file)
            edges = np.loadtxt(lines, dtype=np.int64, comments=("#", "%"), usecols=(0, 1), ndmin=2)
        low, high = int(edges.min(initial=0)), int(edges.max(initial=-1))
        n = high + 1 if num_nodes is None else num_nodes
        if low < 0 or high >= n:
            raise DataError(f"expected ids from 0 to {n - 1}, got {low} to {high}")
        if num_nodes is None:
            _check_counts(path, n, len(edges))
        senders, receivers = edges[:, 0], edges[:, 1]
        if undirected:
            senders, receivers = (
                np.concatenate([senders, receivers]),
                np.concatenate([receivers, senders]),
            )
        return _pattern(senders, receivers, n)


def _check_counts(path: str | os.PathLike[str], num_nodes: int, num_edges: int) -> None:
    """Refuses counts out of proportion to the file, before anything of that size is allocated."""
    # Gzip reaches 1,000 : 1, and an edge takes 4 bytes of text; few nodes are isolated.
    limit = 1000 * os.path.getsize(path) + 1_000_000
    if num_nodes > limit or num_edges > limit or num_nodes >= 1 << 31:
        raise DataError(f"claims {num_nodes} nodes and {num_edges} edges, too many for its size")


def _pattern(
    senders: Int[np.ndarray, " edges"], receivers: Int[np.ndarray, " edges"], num_nodes: int
) -> CSR:
    ones = np.ones(senders.size, bool)
    matrix = scipy.sparse.csr_array((ones, (receivers, senders)), shape=(num_nodes, num_nodes))
    matrix.sort_indices()
    return CSR(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
