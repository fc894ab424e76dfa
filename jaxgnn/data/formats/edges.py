"""Readers of bare graphs: Matrix Market files and edge lists.

The parsers are C++ (`cpu/host/text.cc`). They take files block by block, gzipped or not.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxgnn._core.arguments import as_integer
from jaxgnn.data.files.checks import charge_graph
from jaxgnn.data.files.limits import Budget, DataError, head_of, quote, reading, stem_of
from jaxgnn.data.files.native import native_module
from jaxgnn.data.formats.edge_list_format import check_delimiter, edge_list_format
from jaxgnn.data.sets.csr import CSR
from jaxgnn.data.sets.dataset import Metadata
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

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
        parser = native_module("the readers of text").EdgeListParser(skip_lines)
        parse(parser, path, budget)
        senders, receivers = parser.take()
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        n = parser.max_id + 1 if num_nodes is None else num_nodes
        if num_nodes is None:
            _check_first_line(parser, senders, receivers)
            _check_density(n, senders.size, "; if so give num_nodes (Python)")
        elif parser.max_id >= n:
            raise DataError(f"expected ids from 0 to {n - 1}, got {parser.max_id}")
        return _pattern(senders, receivers, n, undirected, budget)


def read_weighted_matrix_market(
    path: str | os.PathLike[str],
    *,
    weights: bool = False,
    undirected: bool = False,
    max_bytes: int | None = None,
) -> PlainGraph:
    """A square Matrix Market matrix as `read_matrix_market` reads it, with its values if wanted.

    Args:
        path: the file.
        weights: keep the values; those of repeated entries are summed, as SciPy does. Explicit
            zeros are edges of weight 0.
        undirected: add the reverse of each edge.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: as of `read_matrix_market`, or a value that float32 does not hold.
    """
    budget = Budget(max_bytes)
    with reading(path):
        parser = native_module("the readers of text").MatrixMarketParser(keep_values=weights)
        parse(parser, path, budget)
        rows, columns = parser.rows, parser.columns
        if rows != columns:
            raise DataError(f"expected a square matrix, got {rows} x {columns}")
        senders, receivers = parser.take()
        values = parser.take_values() if weights else None
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        _check_density(rows, senders.size, "")
        return plain_graph(
            path, senders, receivers, rows, budget, weights=values, undirected=undirected
        )


def read_edges(
    path: str | os.PathLike[str],
    *,
    num_nodes: int | None = None,
    undirected: bool = False,
    weights: bool = False,
    names: bool | None = None,
    delimiter: str | None = None,
    comments: str = "#%",
    skip_lines: int | None = None,
    max_bytes: int | None = None,
) -> PlainGraph:
    """The graph of a text file with an edge a line: sender, receiver and perhaps a weight.

    A file may be gzipped, and start with a byte order mark. Repeated edges are merged, and their
    weights summed.

    Args:
        path: the file.
        num_nodes: number of nodes; the largest id + 1 by default. Not with `names`.
        undirected: add the reverse of each edge.
        weights: read the third column; otherwise further columns are ignored.
        names: whether ids are any text, numbered from 0 in the order in which they come, and kept
            as `node_names`; by default, unless both ids of the first edge are integers from 0
            below 2**31 - 1.
        delimiter: one character between the columns; `" "` stands for any blanks. By default the
            first edge decides: a tab, comma, semicolon or `|` in it, else blanks.
        comments: characters; a line that starts with one of them is no edge.
        skip_lines: number of lines at the start that are not read. By default a header is skipped:
            a first line of words that is followed by integers, or of words such as `source`.
            `metadata.notes` names a first edge whose names are in no other one.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, damaged, an id out of range, a weight that is not finite, a
            line of counts (of nodes and edges) in place of the first edge, or the header of a
            table of nodes, with a column `id`.
    """
    budget = Budget(max_bytes)
    if num_nodes is not None:
        num_nodes = _count(num_nodes, "num_nodes")
    if skip_lines is not None:
        skip_lines = _count(skip_lines, "skip_lines")
    check_delimiter(delimiter, comments)
    with reading(path):
        found = edge_list_format(head_of(path), delimiter, comments, skip_lines, names)
        named = found.names
        if named and num_nodes is not None:
            raise DataError("num_nodes: expected none where ids are names")
        parser = native_module("the readers of text").EdgeListParser(
            found.skip_lines,
            delimiter=found.delimiter,
            comments=comments,
            names=named,
            weights=weights,
        )
        parse(parser, path, budget)
        senders, receivers = parser.take()
        values = parser.take_weights() if weights else None
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        n = parser.max_id + 1 if num_nodes is None else num_nodes
        node_names, notes = _names(parser.take_names(), budget) if named else None, ""
        if node_names is not None:
            _check_quotes(node_names, found.delimiter)
            notes = _note_of_first_line(parser.first_line, senders, receivers, node_names)
        elif num_nodes is None:
            _check_first_line(parser, senders, receivers)
            hint = "; where ids are names, put a letter before each (Python: names=True; num_nodes)"
            _check_density(n, senders.size, hint)
        elif parser.max_id >= n:
            raise DataError(f"expected ids from 0 to {n - 1}, got {parser.max_id}")
        return plain_graph(
            path,
            senders,
            receivers,
            n,
            budget,
            weights=values,
            undirected=undirected,
            node_names=node_names,
            notes=notes,
        )


def plain_graph(
    path: str | os.PathLike[str],
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int,
    budget: Budget,
    *,
    weights: np.ndarray | None = None,
    undirected: bool = False,
    node_names: tuple[str, ...] | None = None,
    notes: str = "",
    **fields: Any,
) -> PlainGraph:
    """The graph of int32 edges, each once; the weights of merged ones are summed."""
    if weights is None:
        csr = _pattern(senders, receivers, num_nodes, undirected, budget)
        charge_graph(budget, num_nodes, csr.num_edges)
        graph, values = csr.to_graph(), None
    else:
        edges = senders.size * (1 + undirected)
        budget.charge(5 * weights.nbytes * (1 + undirected), "the weights")
        charge_graph(budget, num_nodes, edges)
        graph, values = Graph.from_edges(
            senders,
            receivers,
            num_nodes=num_nodes,
            undirected=undirected,
            deduplicate=True,
            edge_data=weights.astype(np.float32, copy=False),
        )
        values = np.asarray(values)
    return PlainGraph(
        name=stem_of(path),
        graph=graph,
        weights=values,
        node_names=node_names,
        metadata=Metadata(source=os.fspath(path), notes=notes),
        **fields,
    )


def _names(arena: tuple[np.ndarray, np.ndarray], budget: Budget) -> tuple[str, ...]:
    text, ends = arena
    budget.charge(100 * ends.size + 4 * text.size, "the names of the nodes")
    whole, begin, names = text.tobytes(), 0, []
    for end in ends.tolist():
        try:
            names.append(whole[begin:end].decode())
        except UnicodeDecodeError:
            raise DataError(
                f"expected UTF-8 text, got the name {quote(whole[begin:end])}"
            ) from None
        begin = end
    return tuple(names)


def _check_quotes(names: tuple[str, ...], delimiter: str) -> None:
    """Refuses names in quotes, as CSV has them: a delimiter within them would end them."""
    if delimiter not in ",;|":
        return
    for name in names:
        if name.startswith('"'):
            raise DataError(
                f"expected names without quotes, got {quote(name)}: two tables, nodes.csv and "
                "edges.csv, may have them"
            )


def parse(
    parser: Any,
    path: str | os.PathLike[str],
    budget: Budget,
    change: Callable[[Iterator[bytes]], Iterator[bytes]] = iter,
) -> None:
    """Feeds a file, as `change` makes it, to a parser, within what is left of the budget; without a
    byte order mark."""
    try:
        for block in change(_without_mark(budget.blocks(path))):
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


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    begin = b""
    for block in blocks:
        begin += block
        if len(begin) >= len(codecs.BOM_UTF8):
            break
    yield begin.removeprefix(codecs.BOM_UTF8)
    yield from blocks


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
            f"edges: delete the line, or begin it with # (Python: skip_lines={parser.first_line}); "
            "if it is an edge, move it to the end (Python: num_nodes)"
        )


def _note_of_first_line(
    line: int, senders: np.ndarray, receivers: np.ndarray, names: tuple[str, ...]
) -> str:
    """What to say of a first edge that may be a header: its names are in no other edge."""
    # Names are numbered in the order in which they come.
    if senders.size < 2:
        return ""
    if min(senders[1:].min(), receivers[1:].min()) <= max(senders[0], receivers[0]):
        return ""
    ends = ", ".join(quote(names[int(ids[0])]) for ids in (senders, receivers))
    return f"line {line} ({ends}) is read as an edge: delete it if it is a header"


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
