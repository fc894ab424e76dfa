"""Tiles in files: what `save` writes, and files that `load` refuses."""

import hashlib
import os
import struct

import jax
import numpy as np
import pytest

from jaxgnn import Graph, tiles
from jaxgnn.data import DataError
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.few(1)


def test_files(tmp_path):
    path = tmp_path / "graph.tiles"
    directed = skewed_graph(200, 2_000)
    symmetric = skewed_graph(90, 700, undirected=True)
    for graph in (directed, symmetric, Graph.from_edges([], [], num_nodes=0)):
        tiled = graph.with_tiles(min_edges=3, order="labels")
        tiles.save(tiled, path)
        loaded = tiles.load(graph, path)
        assert jax.tree.structure(loaded) == jax.tree.structure(tiled)
        jax.tree.map(np.testing.assert_array_equal, loaded, tiled)
        assert (loaded.tiles is loaded.transpose_tiles) == graph.symmetric
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="expected tiles to save"):
        tiles.save(directed, path)
    with pytest.raises(TypeError, match="graph: expected a jaxgnn"):
        tiles.load(None, path)  # pyright: ignore[reportArgumentType]
    tiles.save(directed.with_tiles(), path)
    with pytest.raises(DataError, match="another graph of this size: its edges differ"):
        tiles.load(skewed_graph(200, 2_000, seed=1), path)
    with pytest.raises(
        DataError, match=r"another graph: .* are \[200, 200, 2000\], this one's \[90"
    ):
        tiles.load(symmetric, path)
    as_bytes = os.fsencode(tmp_path / "bytes")
    tiles.save(directed.with_tiles(), as_bytes)
    assert tiles.load(directed, as_bytes).tiles is not None
    for call in (tiles.load, tiles.save):
        with pytest.raises(TypeError, match="path: expected a path, got float"):
            call(directed.with_tiles(), 3.5)
        for wrong in ("a\0b", b"a\0b"):
            with pytest.raises(ValueError, match=r"path: expected no null .*, got b?'a\\x00b'"):
                call(directed.with_tiles(), wrong)
    (tmp_path / "bytes").unlink()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(DataError, match="No such file"):
        tiles.load(directed, tmp_path / "none")
    with pytest.raises(DataError, match="regular file, got a directory"):
        tiles.load(directed, tmp_path)


def test_hostile_files(tmp_path):
    """Any change is refused, also with a checksum that fits it."""
    path = tmp_path / "graph.tiles"
    graph = skewed_graph(60, 700)
    tiles.save(graph.with_tiles(order="numbered"), path)
    whole = path.read_bytes()

    def refused(data: bytes, message: str = ": ") -> None:
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            tiles.load(graph, path)

    for size in (0, 7, 100, len(whole) - 1):
        refused(whole[:size], "expected")
    refused(whole + b"\0", f"expected {len(whole)} bytes, got")
    for place in range(0, len(whole), 3):
        refused(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    def signed(place: int, form: str, value: int) -> bytes:
        data = bytearray(whole[:-32])
        struct.pack_into(form, data, place, value)
        return bytes(data) + hashlib.sha256(data).digest()

    refused(signed(8, "<I", 2), "expected version 1, got 2")
    refused(signed(12, "<I", 0), "out of range")
    refused(signed(16, "<H", 4), "out of range")
    refused(signed(20, "<I", 1), "out of range")  # one side for a graph that has two
    refused(signed(24, "<Q", 1 << 60), "another graph")
    for row in (-1, 60, 0):
        refused(signed(84, "<i", row), "each row from 0 to 59 once")
    path.write_bytes(whole)
    assert tiles.load(graph, path).tiles is not None
