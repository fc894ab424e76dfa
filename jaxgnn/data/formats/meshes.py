"""Readers of surface meshes, OFF and OBJ: vertices are positions, faces become edges."""

from __future__ import annotations

import array
import os
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from jaxgnn.data.files.checks import charge_graph
from jaxgnn.data.files.limits import Budget, DataError, quote, reading, stem_of
from jaxgnn.data.files.lines import as_count, as_number, text_lines
from jaxgnn.data.sets.csr import offsets_of
from jaxgnn.data.sets.dataset import Metadata
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

_OFF_WORDS = ("OFF", "COFF", "NOFF", "CNOFF", "STOFF")
_FIRST = 1 << 16


def read_off(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> PlainGraph:
    """An Object File Format mesh: positions of the vertices, an edge a side of a face, both ways.

    Colors and normals are ignored. The first line may hold the counts too, as some files of
    ModelNet do (`OFF490 518 0`).

    Args:
        path: the file, gzipped or not.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, or damaged.
    """
    budget = Budget(max_bytes)
    with reading(path):
        return _graph(path, *_parse_off(path, budget), budget)


def read_obj(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> PlainGraph:
    """A Wavefront OBJ mesh: positions of the vertices, an edge a side of a face, both ways.

    Lines (`l`) are edges too. Texture coordinates, normals, groups and materials are ignored.

    Args:
        path: the file, gzipped or not.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, or damaged.
    """
    budget = Budget(max_bytes)
    with reading(path):
        return _graph(path, *_parse_obj(path, budget), budget)


def meshes_set(paths: list[tuple[str, PlainGraph]], name: str, source: str) -> GraphSet:
    """The meshes of a folder as one set, without labels."""
    graphs = [graph for _, graph in paths]
    ends = [_ends(graph.graph) for graph in graphs]
    positions = [graph.positions for graph in graphs if graph.positions is not None]
    return GraphSet(
        name=name,
        node_offsets=offsets_of([graph.num_nodes for graph in graphs]),
        edge_offsets=offsets_of([graph.num_edges for graph in graphs]),
        senders=np.concatenate([senders for senders, _ in ends]),
        receivers=np.concatenate([receivers for _, receivers in ends]),
        positions=np.concatenate(positions),
        graph_names=tuple(stem for stem, _ in paths),
        metadata=Metadata(source=source),
    )


def _ends(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.asarray(graph.row_offsets)
    receivers = np.repeat(np.arange(graph.num_receivers, dtype=np.int32), np.diff(offsets))
    return np.asarray(graph.senders), receivers


class _Grown:
    """An array of machine numbers that is charged as it doubles."""

    def __init__(self, kind: str, budget: Budget, what: str) -> None:
        self.values, self._budget, self._what = array.array(kind), budget, what
        self._room = 0

    def extend(self, values: list) -> None:
        self.values.extend(values)
        if len(self.values) > self._room:
            grown = max(_FIRST, len(self.values)) * self.values.itemsize
            self._budget.charge(3 * grown, self._what)  # old and new, and the copy that is kept
            self._room = 2 * len(self.values)

    def numpy(self, dtype: type, width: int) -> np.ndarray:
        return np.array(self.values, dtype).reshape(-1, width)


def _position(tokens: list[str], number: int) -> list[float]:
    values = [as_number(token) for token in tokens]
    if len(values) != 3 or None in values:
        raise DataError(f"line {number}: expected three coordinates, got {quote(' '.join(tokens))}")
    return [value for value in values if value is not None]


def _sides(corners: list[int], closed: bool = True) -> list[int]:
    """Both ends of each side of a face, one after the other."""
    pairs = zip(corners, corners[1:] + corners[:1] * closed, strict=False)
    return [end for pair in pairs for end in pair]


def _parse_obj(path: str | os.PathLike[str], budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    points, sides = _Grown("f", budget, "the vertices"), _Grown("q", budget, "the edges")
    for number, line in text_lines(path, budget):
        tokens = line.split()
        if not tokens or tokens[0] not in ("v", "f", "l"):
            continue
        if tokens[-1] == "\\":
            raise DataError(f"line {number}: expected a whole statement, got a continued line")
        if tokens[0] == "v":
            points.extend(_position(tokens[1:4], number))
            continue
        known = len(points.values) // 3
        corners = []
        for token in tokens[1:]:
            text = token.partition("/")[0]
            index = as_count(text.removeprefix("-"))
            if not index or (text.startswith("-") and index > known):
                raise DataError(f"line {number}: expected vertices of a face, got {quote(token)}")
            corners.append(known - index if text.startswith("-") else index - 1)
        if len(corners) < 2:
            raise DataError(f"line {number}: expected at least two vertices, got {len(corners)}")
        sides.extend(_sides(corners, closed=tokens[0] == "f"))
    return points.numpy(np.float32, 3), sides.numpy(np.int64, 2)


def _statements(path: str | os.PathLike[str], budget: Budget) -> Iterator[tuple[int, list[str]]]:
    for number, line in text_lines(path, budget):
        tokens = line.partition("#")[0].split()
        if tokens:
            yield number, tokens


def _parse_off(path: str | os.PathLike[str], budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    lines = _statements(path, budget)
    number, tokens = next(lines, (1, [""]))
    word = tokens[0].rstrip("0123456789")
    if word.upper() not in _OFF_WORDS:
        raise DataError(f"line {number}: expected OFF, got {quote(tokens[0])}")
    counts = [rest for rest in (tokens[0][len(word) :], *tokens[1:]) if rest]
    if not counts:
        number, counts = next(lines, (number + 1, []))
    sizes = [as_count(count) for count in counts]
    if len(sizes) not in (2, 3) or None in sizes:
        raise DataError(
            f"line {number}: expected the numbers of vertices, faces and edges, "
            f"got {quote(' '.join(counts))}"
        )
    num_points, num_faces = (size or 0 for size in sizes[:2])
    points, sides = _Grown("f", budget, "the vertices"), _Grown("q", budget, "the edges")
    for _ in range(num_points):
        number, tokens = next(lines, (number + 1, ["the end of the file"]))
        points.extend(_position(tokens[:3], number))
    for _ in range(num_faces):
        number, tokens = next(lines, (number + 1, ["the end of the file"]))
        size = as_count(tokens[0]) or 0
        corners = [as_count(token) for token in tokens[1 : 1 + size]]
        if size < 1 or len(corners) != size or None in corners:
            raise DataError(f"line {number}: expected a face, got {quote(' '.join(tokens[:9]))}")
        if size > 1:
            sides.extend(_sides([corner for corner in corners if corner is not None]))
    return points.numpy(np.float32, 3), sides.numpy(np.int64, 2)


def _graph(
    path: str | os.PathLike[str],
    points: Float[np.ndarray, "n 3"],
    sides: Int[np.ndarray, "e 2"],
    budget: Budget,
) -> PlainGraph:
    n = len(points)
    if sides.size and sides.max() >= n:
        raise DataError(f"expected faces of the {n} vertices, got the vertex {sides.max()}, from 0")
    charge_graph(budget, n, len(sides), undirected=True)
    return PlainGraph(
        name=stem_of(path),
        graph=Graph.from_edges(
            sides[:, 0].astype(np.int32),
            sides[:, 1].astype(np.int32),
            num_nodes=n,
            undirected=True,
            self_loops="remove",
        ),
        positions=points,
        metadata=Metadata(source=os.fspath(path)),
    )
