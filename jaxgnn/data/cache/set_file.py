"""One data set in one file whose arrays are memory-mapped: no pickles, checked before it is used.

A file is, in little-endian numbers,

    8 bytes   b"JAXGNNGC"
    uint32    version
    uint32    CRC-32 of the manifest
    uint64    place of the manifest, bytes of the manifest
    arrays    each at a multiple of 64 bytes, which XLA's CPU client takes without a copy
    manifest  JSON: what the caller keeps beside the data set, each array's type, shape, place and
              CRC-32 of each block, and the tree of objects that hold the arrays

CRC-32 finds what a disk does to a file. What someone else wrote, with the right checksums, may be
another graph, but none that kernels read out of bounds for.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from jaxgnn._core.device import device_array
from jaxgnn.data.files.limits import BoundedFile, Budget, DataError, quote, reading
from jaxgnn.data.sets.dataset import Metadata, NodeDataset, Split
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph
from jaxgnn.graph._build.row_chunks import RowChunks
from jaxgnn.graph._validate import problem

VERSION = 3
"""Of the format; raise it, too, where a reader makes something else of the same file."""

_MAGIC = b"JAXGNNGC"
_HEAD = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64
_BLOCK = 32 << 20
_LONGEST_MANIFEST = 4 << 20
_JSON, _STRING = 64, 64  # bytes that Python takes for a character of JSON, for a string
_TYPES = {
    kind.__name__: kind
    for kind in (NodeDataset, GraphSet, PlainGraph, Graph, RowChunks, Split, Metadata)
}
_DTYPES = {
    np.dtype(name).newbyteorder("<").str: np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "float32", "float64")
}


class NotCacheable(Exception):
    """The data set holds what the format has no place for."""


# Writing.


class Encoded(NamedTuple):
    """A data set as a tree in JSON's types and the arrays that it names by their places."""

    tree: Any
    arrays: list[np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(values.nbytes for values in self.arrays)


def encode(dataset: Any) -> Encoded:
    """What `write` writes.

    Raises:
        NotCacheable: it holds something else than arrays of numbers, names and numbers.
    """
    arrays: list[np.ndarray] = []
    return Encoded(_encode(dataset, arrays, {}), arrays)


def write(file: BinaryIO, encoded: Encoded, notes: dict[str, Any]) -> None:
    """Writes a data set, and what `read_notes` returns, into an empty file."""
    entries, place = [], _aligned(_HEAD.size)
    for values in encoded.arrays:
        file.seek(place)
        checksums = []
        for block in _blocks(_bytes(values)):
            checksums.append(zlib.crc32(block))
            file.write(block)
        entries.append([values.dtype.newbyteorder("<").str, list(values.shape), place, checksums])
        place = _aligned(place + values.nbytes)
    manifest = json.dumps({"notes": notes, "arrays": entries, "tree": encoded.tree}).encode()
    if len(manifest) > _LONGEST_MANIFEST:
        raise NotCacheable(f"a manifest of {len(manifest):,} bytes")
    file.seek(place)
    file.write(manifest)
    file.seek(0)
    file.write(_HEAD.pack(_MAGIC, VERSION, zlib.crc32(manifest), place, len(manifest)))
    file.flush()


def _encode(value: Any, arrays: list[np.ndarray], places: dict[int, int]) -> Any:
    """The tree in JSON's types; arrays go to the list, those that are one object once."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | jax.Array):
        kind = "device" if isinstance(value, jax.Array) else "host"
        if id(value) not in places:
            host = np.ascontiguousarray(value)
            if _DTYPES.get(host.dtype.newbyteorder("<").str) != host.dtype:
                raise NotCacheable(f"an array of {host.dtype}")
            places[id(value)] = len(arrays)
            arrays.append(host.reshape(np.shape(value)))
        return {kind: places[id(value)]}
    if isinstance(value, tuple) and all(type(name) is str for name in value):
        text = [name.encode("utf-8", "surrogatepass") for name in value]
        ends = np.cumsum([0, *map(len, text)], dtype=np.int64)
        arrays += [np.frombuffer(b"".join(text), np.int8), ends]
        return {"names": len(arrays) - 2}
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        items = [[name, _encode(item, arrays, places)] for name, item in value.items()]
        return {"items": items}
    if _TYPES.get(type(value).__name__) is type(value):
        names = [field.name for field in dataclasses.fields(_TYPES[type(value).__name__])]
        fields = {name: _encode(getattr(value, name), arrays, places) for name in names}
        return {"type": type(value).__name__, "fields": fields}
    raise NotCacheable(f"an object of {type(value).__name__}")


# Reading.


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was kept beside the data set; raises a `DataError` for a damaged file."""
    budget = Budget()
    with reading(path), budget.open(path) as file:
        return _manifest(file, budget)["notes"]


def read(path: str | os.PathLike[str], max_bytes: int | None = None) -> tuple[Any, dict[str, Any]]:
    """The data set of a file and what was kept beside it. Its arrays are the file's, mapped.

    Writing to them changes copies of their pages, not the file. Every block is compared with its
    checksum.

    Raises:
        DataError: the file is damaged, of another version, or larger than `max_bytes`.
    """
    budget = Budget(max_bytes)
    with reading(path), budget.open(path) as file:
        manifest = _manifest(file, budget)
        budget.charge(file.size, "the data set")
        mapping = mmap.mmap(file.fileno(), file.size, access=mmap.ACCESS_COPY)
        arrays = [_array(mapping, *entry) for entry in manifest["arrays"]]
        blocks = [
            (block, checksum)
            for values, entry in zip(arrays, manifest["arrays"], strict=True)
            for block, checksum in zip(_blocks(_bytes(values)), entry[3], strict=True)
        ]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            if not all(pool.map(lambda pair: zlib.crc32(pair[0]) == pair[1], blocks)):
                raise DataError("the checksum differs: the file is damaged")
        loaded = _decode(manifest["tree"], arrays, {}, budget)
        if not isinstance(loaded, NodeDataset | GraphSet | PlainGraph):
            raise DataError(f"expected a data set, got {quote(loaded)}")
        if not isinstance(loaded, GraphSet) and (found := problem(loaded.graph, bounds_only=True)):
            raise DataError(f"graph: {found}")
        return loaded, manifest["notes"]


def _manifest(file: BoundedFile, budget: Budget) -> dict[str, Any]:
    head, size = file.read(_HEAD.size), file.size
    if len(head) < _HEAD.size:
        raise DataError(f"expected a cached data set, got {len(head)} bytes")
    magic, version, checksum, place, length = _HEAD.unpack(head)
    if magic != _MAGIC or version != VERSION:
        raise DataError(f"expected version {VERSION} of a cached data set, got {quote(head[:12])}")
    if place + length != size:
        raise DataError(f"expected {quote(place + length)} bytes, got {size}")
    budget.charge(_JSON * length, "the manifest")
    file.seek(place)
    text = b"".join(iter(lambda: file.read(1 << 20), b""))
    if zlib.crc32(text) != checksum:
        raise DataError("the checksum differs: the file is damaged")
    return json.loads(text)


def _array(
    mapping: mmap.mmap, dtype: str, shape: list[int], place: int, _: list[int]
) -> np.ndarray:
    kind = _DTYPES[dtype]
    if min(shape, default=0) < 0 or place < 0 or place % _ALIGNMENT:
        raise DataError("an array is out of place")
    if place + math.prod(shape) * kind.itemsize > len(mapping):
        raise DataError("an array ends after the file")
    return np.ndarray(tuple(shape), kind, mapping, place)


def _decode(
    tree: Any, arrays: list[np.ndarray], placed: dict[int, jax.Array], budget: Budget
) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "type" in tree:
        fields = {
            name: _decode(item, arrays, placed, budget) for name, item in tree["fields"].items()
        }
        return _TYPES[tree["type"]](**fields)
    if "items" in tree:
        return {name: _decode(item, arrays, placed, budget) for name, item in tree["items"]}
    if "names" in tree:
        values, offsets = arrays[tree["names"]], arrays[tree["names"] + 1]
        budget.charge(2 * _STRING * offsets.size + 6 * values.size, "names")
        text, ends = values.tobytes(), offsets.tolist()
        return tuple(
            text[begin:end].decode("utf-8", "surrogatepass")
            for begin, end in itertools.pairwise(ends)
        )
    if "host" in tree:
        return arrays[tree["host"]]
    place = tree["device"]
    if place not in placed:  # those that are one array stay one
        values = arrays[place]
        if jax.dtypes.canonicalize_dtype(values.dtype) != values.dtype:
            raise DataError(f"{values.dtype} needs jax_enable_x64")
        placed[place] = device_array(values)
    return placed[place]


def _bytes(values: np.ndarray) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _blocks(data: memoryview) -> list[memoryview]:
    return [data[begin : begin + _BLOCK] for begin in range(0, len(data), _BLOCK)]


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT
