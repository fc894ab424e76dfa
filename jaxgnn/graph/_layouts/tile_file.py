"""Files of tiles: which order the rows have. The rest of the layout follows from it.

A file is, in little-endian numbers,

    8 bytes   b"JAXGNNTI"
    uint32    version, 1
    uint32    min_edges
    uint32    the order of the receivers, of the senders (its place in `_ORDERS`), 16 bits each
    uint32    1 if both directions share the tiles, else 0
    uint64    receivers, senders, edges of the graph
    32 bytes  SHA-256 of the graph's `row_offsets` and `senders`
    int32     the receivers in their order; unless shared, the senders in theirs
    32 bytes  SHA-256 of all of this

Its length follows from the graph, and orders are checked to be permutations: a file can make tiles
worse, but not wrong.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from jaxgnn._core.limits import Budget, DataError, quote, reading
from jaxgnn.graph._layouts import tiles as _tiles

if TYPE_CHECKING:
    from jaxgnn.graph._graph import Graph

_MAGIC = b"JAXGNNTI"
_VERSION = 1
_ORDERS = ("numbered", "groups", "rcm", "labels")  # files have places: append
_HEADER = struct.Struct("<8sIIHHIQQQ32s")
_CHECKSUM = 32


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes the file in one piece: it is there as a whole or not at all."""
    tiles, transpose = graph.tiles, graph.transpose_tiles
    assert tiles is not None and transpose is not None
    shared = transpose is tiles
    data = bytearray(
        _HEADER.pack(
            _MAGIC,
            _VERSION,
            tiles.min_edges,
            _ORDERS.index(tiles.order),
            _ORDERS.index(transpose.order),
            int(shared),
            graph.num_receivers,
            graph.num_senders,
            graph.num_edges,
            _fingerprint(graph),
        )
    )
    for side in (tiles,) if shared else (tiles, transpose):
        data += np.asarray(side.rows, "<i4").tobytes()
    data += hashlib.sha256(data).digest()
    temporary = f"{os.fsdecode(path)}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def load(
    graph: Graph, path: str | os.PathLike[str], symmetric: bool
) -> tuple[_tiles.Tiles, _tiles.Tiles]:
    """The tiles of both directions; raises a `DataError` for any other file."""
    with reading(path):
        budget = Budget()
        with budget.open(path) as file:
            if file.size < _HEADER.size + _CHECKSUM:
                raise DataError(f"expected a file of tiles, got {file.size} bytes")
            header = _HEADER.unpack(file.read(_HEADER.size))
            magic, version, min_edges, order, transpose_order, shared, *counts, graph_hash = header
            if magic != _MAGIC:
                raise DataError(f"expected a file of tiles, got one that begins {quote(magic)}")
            if version != _VERSION:
                raise DataError(f"expected version {_VERSION}, got {version}")
            expected = [graph.num_receivers, graph.num_senders, graph.num_edges]
            if counts != expected:
                raise DataError(
                    "the tiles are of another graph: its receivers, senders and edges are "
                    f"{quote(counts)}, this one's {quote(expected)}"
                )
            if graph_hash != _fingerprint(graph):
                raise DataError("the tiles are of another graph of this size: its edges differ")
            known = max(order, transpose_order) < len(_ORDERS) and shared <= symmetric
            if not (known and 1 <= min_edges <= _tiles.ROWS):
                raise DataError("orders, min_edges or the shared directions are out of range")
            sides = [graph.num_receivers] if shared else [graph.num_receivers, graph.num_senders]
            size = _HEADER.size + 4 * sum(sides) + _CHECKSUM
            if file.size != size:
                raise DataError(f"expected {size} bytes, got {file.size}")
            budget.charge(2 * size, "the tiles' rows")
            file.seek(0)
            data = file.read_all()
        if hashlib.sha256(data[:-_CHECKSUM]).digest() != data[-_CHECKSUM:]:
            raise DataError("the checksum differs: the file is damaged")
        rows, place = [], _HEADER.size
        for count in sides:
            rows.append(_permutation(data[place : place + 4 * count]))
            place += 4 * count
        names = _ORDERS[order], _ORDERS[transpose_order]
    tiles = _tiles.lay_out(
        graph.row_offsets,
        graph.senders,
        graph.num_senders,
        names[0],
        rows[0],
        min_edges,
    )
    if shared:
        return tiles, tiles
    return tiles, _tiles.lay_out(
        graph.transpose_row_offsets,
        graph.transpose_receivers,
        graph.num_receivers,
        names[1],
        rows[1],
        min_edges,
    )


def _permutation(data: bytes) -> Int[np.ndarray, " rows"]:
    rows = np.frombuffer(data, "<i4").astype(np.int32)
    seen = np.zeros(rows.size, bool)
    seen[rows[(rows >= 0) & (rows < rows.size)]] = True
    if not seen.all():
        raise DataError(f"expected each row from 0 to {rows.size - 1} once")
    return rows


def _fingerprint(graph: Graph) -> bytes:
    digest = hashlib.sha256()
    for values in (graph.row_offsets, graph.senders):
        digest.update(np.ascontiguousarray(values, "<i4").tobytes())
    return digest.digest()
