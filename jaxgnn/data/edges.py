"""Readers of bare graphs: Matrix Market files and edge lists.

The parsers are C++ (`cpu/host/text.cc`). They take files block by block, gzipped or not.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jaxgnn._core.arguments import as_integer
from jaxgnn.data.csr import CSR
from jaxgnn.data.limits import Budget, DataError, quote, reading
from jaxgnn.data.native import native_module

_MOST_NODES = 2**31 - 1
# A graph with more nodes than this has an edge for each hundred of them, unless the number of nodes
# is an argument: ids that large are more often a damaged file.
_FREE_NODES, _NODES_PER_EDGE = 1_000_000, 100


def read_matrix_market(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> CSR:
    """The pattern of a square Matrix Market matrix: an edge from row `j` to column `i` per entry.

    Coordinate and array format; real, integer and pattern; general, symmetric and skew-symmetric,
    whose entries stand for both directions. Values of the coordinate format, explicit zeros among
    them, are checked to be numbers and ignored; of the array format, zeros are no edges. Repeated
    entries are merged. A file may be gzipped.

    Args:
        path: the file.
        max_bytes: refuse to take more memory; by default 1,024 bytes for each of the file, at
            least 256 MiB and at most 16 GiB.

    Raises:
        DataError: not such a file, damaged, complex, or not square.
    """
    budget = Budget(max_bytes)
    with reading(path):
        parser = native_module("the readers of text").MatrixMarketParser()
        parse(parser, path, budget)
        rows, columns = parser.rows, parser.columns
        if rows != columns:
            raise DataError(f"expected a square matrix, got {rows} x {columns}")
        senders, receivers = parser.take()
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        _check_density(rows, senders.size, "")
        return _pattern(senders, receivers, rows, False, budget)


def read_edge_list(
    path: str | os.PathLike[str],
    *,
    num_nodes: int | None = None,
    undirected: bool = False,
    skip_lines: int = 0,
    max_bytes: int | None = None,
) -> CSR:
    """The graph of a text file with an edge a line: two ids from 0, the sender first.

    Ids are split by blanks or a comma; lines that start with `#` or `%` are comments; further
    columns are ignored. Repeated edges are merged. A file may be gzipped.

    Args:
        path: the file.
        num_nodes: number of nodes; the largest id + 1 by default.
        undirected: add the reverse of each edge.
        skip_lines: number of lines at the start that are not read, such as a line of counts.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, damaged, an id out of range, or a line of counts (of nodes and
            edges) in place of the first edge.
    """
    budget = Budget(max_bytes)
    skip_lines = _count(skip_lines, "skip_lines")
    if num_nodes is not None:
        num_nodes = _count(num_nodes, "num_nodes")
    with reading(path):
        parser = native_module("the readers of text").EdgeListParser(skip_lines, strict=False)
        parse(parser, path, budget)
        senders, receivers = parser.take()
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        n = parser.max_id + 1 if num_nodes is None else num_nodes
        if num_nodes is None:
            _check_first_line(parser, senders, receivers)
            _check_density(n, senders.size, "; give num_nodes if so")
        elif parser.max_id >= n:
            raise DataError(f"expected ids from 0 to {n - 1}, got {parser.max_id}")
        return _pattern(senders, receivers, n, undirected, budget)


def parse(parser: Any, path: str | os.PathLike[str], budget: Budget) -> None:
    """Feeds a file to a parser that was allowed what is left of the budget."""
    try:
        for block in budget.blocks(path):
            parser.allow(budget.left)  # by default it depends on the file, which is open by now
            parser.feed(block)
        parser.finish()
    except ValueError as error:  # of a line, with its number
        raise DataError(str(error)) from None
    except MemoryError:
        raise DataError(
            f"what its lines hold would take more than the limit of {budget.limit:,} bytes "
            "(option max_bytes)"
        ) from None


def _count(value: Any, name: str) -> int:
    count = as_integer(value)
    if count is None or not 0 <= count <= _MOST_NODES:
        raise DataError(f"{name}: expected an integer from 0 to 2**31 - 1, got {quote(value)}")
    return count


def _check_first_line(parser: Any, senders: np.ndarray, receivers: np.ndarray) -> None:
    """Refuses an edge whose ids are counts of what follows, and ids of nothing else."""
    if senders.size < 2:
        return
    nodes, edges = int(senders[0]), int(receivers[0])
    later, largest = senders.size - 1, parser.max_later_id
    # Ids from 0 or 1; each edge listed once or both ways.
    counts_edges = edges in (later, 2 * later, later // 2)
    if counts_edges and (nodes == largest + 1 or (nodes >= largest and edges > largest)):
        raise DataError(
            f"line {parser.first_line}: '{nodes} {edges}' looks like the numbers of nodes and "
            f"edges: pass skip_lines={parser.first_line}, or num_nodes if it is an edge"
        )


def _check_density(num_nodes: int, num_edges: int, hint: str) -> None:
    """Refuses more nodes than such a number of edges makes likely, before they take memory."""
    if num_nodes > _FREE_NODES + _NODES_PER_EDGE * num_edges:
        raise DataError(
            f"claims {num_nodes} nodes for {num_edges} edges: expected at most {_FREE_NODES} and "
            f"{_NODES_PER_EDGE} an edge{hint}"
        )


def _pattern(
    senders: np.ndarray, receivers: np.ndarray, num_nodes: int, undirected: bool, budget: Budget
) -> CSR:
    placed = senders.size * (1 + undirected)
    budget.charge(8 * placed + 8 * (num_nodes + 1), f"a graph of {num_nodes:,} nodes")
    build = native_module("the readers of text").build_pattern
    return CSR(*build(senders, receivers, num_nodes, undirected))
