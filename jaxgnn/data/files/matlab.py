"""Matrices out of MATLAB's files of version 5 to 7, bounded by what was agreed to.

The format is of MathWorks' "MAT-File Format": elements of a type and a size, compressed ones by
zlib. Numeric and sparse arrays are read; cells, structures, characters and objects are passed.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

import numpy as np

from jaxgnn.data.files.limits import BoundedFile, Budget, DataError, quote

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_SPARSE = 5
_NUMERIC = range(6, 16)
_COMPLEX = 0x08
_BLOCK = 1 << 18


class Matrix(NamedTuple):
    """A full matrix `[rows, columns]`, or the columns of a sparse one, one after the other."""

    name: str
    rows: int
    columns: int
    values: np.ndarray
    indices: np.ndarray
    offsets: np.ndarray


def read_matlab(path: str | os.PathLike[str], budget: Budget) -> list[Matrix]:
    """The real matrices of a file, in their order.

    Raises:
        DataError: not such a file, or damaged.
    """
    with budget.open(path) as file:
        head = _exactly(file, _HEADER)
        if not head.startswith(b"MATLAB 5.0"):
            raise DataError("expected a MATLAB file of version 5 to 7")
        order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
        if order is None:
            raise DataError(
                f"expected the mark IM or MI of the byte order, got {quote(head[126:])}"
            )
        found = []
        while file.tell() < file.size:
            kind, size = struct.unpack(f"{order}II", _exactly(file, 8))
            if kind not in (_MATRIX, _COMPRESSED) or size > file.size - file.tell():
                raise DataError(f"expected a variable, got an element of type {kind}, {size} bytes")
            if kind == _COMPRESSED:
                data = _inflate(file, size, order, budget)
            else:
                budget.charge(size, "a variable")
                data = _exactly(file, size)
            matrix = None if data is None else _matrix(data, order)
            if matrix is not None:
                found.append(matrix)
        return found


def _exactly(file: BoundedFile, size: int) -> bytes:
    parts = []
    while size and (part := file.read(min(size, _BLOCK))):
        parts.append(part)
        size -= len(part)
    if size:
        raise DataError(f"expected {size} bytes more, got the end of the file")
    return b"".join(parts)


def _inflate(file: BoundedFile, size: int, order: str, budget: Budget) -> bytes | None:
    """The one matrix that a compressed element holds, without its tag."""
    stream, end = zlib.decompressobj(), file.tell() + size
    data, wanted = bytearray(), 8
    while len(data) < wanted and file.tell() < end:
        block = file.read(min(_BLOCK, end - file.tell()))
        while block and len(data) < wanted:
            data += stream.decompress(block, wanted - len(data))
            if len(data) >= 8 and wanted == 8:
                kind, length = struct.unpack(f"{order}II", data[:8])
                if kind != _MATRIX:
                    file.seek(end)
                    return None
                budget.charge(2 * length, "a variable")
                wanted = 8 + length
            block = stream.unconsumed_tail
    if len(data) < wanted:
        raise DataError(f"expected a variable of {wanted} bytes, got {len(data)}")
    file.seek(end)
    return bytes(data[8:])


class _Elements:
    """The elements of a variable, one after the other."""

    def __init__(self, data: bytes, order: str) -> None:
        self._data, self._order, self._place = data, order, 0

    def take(self, what: str) -> np.ndarray:
        word = self._data[self._place : self._place + 8]
        if len(word) < 8:
            raise DataError(f"{what}: expected an element, got the end of the variable")
        kind, size = struct.unpack(f"{self._order}II", word)
        begin = self._place + 8
        if kind >> 16:  # a small element: its size, type and data in eight bytes
            kind, size, begin = kind & 0xFFFF, kind >> 16, self._place + 4
            self._place += 8
            if size > 4:
                raise DataError(f"{what}: expected at most 4 bytes, got {size}")
        else:
            self._place = begin + size + -size % 8
        dtype = np.dtype(self._order + _TYPES[kind]) if kind in _TYPES else None
        if dtype is None or size % dtype.itemsize or begin + size > len(self._data):
            raise DataError(f"{what}: expected numbers, got type {kind} and {size} bytes")
        return np.frombuffer(self._data, dtype, size // dtype.itemsize, begin)


def _matrix(data: bytes, order: str) -> Matrix | None:
    elements = _Elements(data, order)
    flags, shape = elements.take("flags"), elements.take("dimensions")
    if flags.size != 2 or shape.dtype.kind != "i" or shape.size < 2:
        raise DataError("expected the flags and the dimensions of a variable")
    kind = int(flags[0]) & 0xFF
    if kind != _SPARSE and kind not in _NUMERIC:
        return None
    name = bytes(elements.take("name").astype(np.uint8)).decode("latin1")
    if shape.size != 2 or int(flags[0]) >> 8 & _COMPLEX:
        return None
    rows, columns = int(shape[0]), int(shape[1])
    if rows < 0 or columns < 0:
        raise DataError(f"{quote(name)}: expected sizes from 0, got {rows} x {columns}")
    none = np.zeros(0, np.int32)
    if kind != _SPARSE:
        values = _native(elements.take(name))
        if values.size != rows * columns:
            raise DataError(f"{quote(name)}: expected {rows} x {columns}, got {values.size}")
        return Matrix(name, rows, columns, values.reshape(columns, rows).T, none, none)
    indices, offsets = _native(elements.take(name)), _native(elements.take(name))
    count = int(offsets[-1]) if offsets.size else 0
    values = _native(elements.take(name))
    # The places may be more than the entries.
    if not 0 <= count <= min(indices.size, values.size):
        raise DataError(f"{quote(name)}: expected {count} entries, got {values.size}")
    return Matrix(name, rows, columns, values[:count], indices[:count], offsets)


def _native(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder("="), copy=False)
