"""Reads arrays out of `.npy` and `.npz` files: no pickles, no more memory than was agreed to.

An array's header is read first, so that its shape can be checked before its values are inflated,
straight into the array.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from jaxgnn.data.files.limits import Budget, DataError, quote, reading

_HEADERS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}
# numpy.savez writes these two; the others could ask for large dictionaries.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LONGEST_HEADER = 10_000  # as numpy.load
_BLOCK = 1 << 18


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclasses.dataclass(frozen=True)
class Header:
    """What an array claims to be; checks take it in place of the array."""

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize


class Npz:
    """An open `.npz` file. Arrays that are not asked for are not touched."""

    def __init__(self, archive: zipfile.ZipFile, budget: Budget) -> None:
        self._archive, self._budget = archive, budget
        self._entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}

    @property
    def keys(self) -> set[str]:
        """Names of the arrays."""
        return set(self._entries)

    def header(self, key: str) -> Header:
        """What an array claims to be.

        Raises:
            DataError: it is missing, damaged, of Python objects, or not as long as it claims.
        """
        with self._open(key) as (stream, size):
            return _read_header(stream, size, key)

    def read(self, key: str) -> np.ndarray:
        """An array, charged.

        Raises:
            DataError: as of `header`, or there is not the memory for it.
        """
        with self._open(key) as (stream, size):
            return _read_array(stream, size, key, self._budget)

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[tuple[_Stream, int]]:
        entry = self._entries.get(key)
        if entry is None:
            raise DataError(f"no array {key!r} in it")
        if entry.compress_type not in _COMPRESSIONS or entry.flag_bits & 1:
            raise DataError(f"{key}: expected a stored or deflated entry without password")
        with self._archive.open(entry) as stream:
            yield stream, entry.file_size


@contextlib.contextmanager
def open_npz(path: str | os.PathLike[str], budget: Budget) -> Iterator[Npz]:
    """An `.npz` file.

    Raises:
        DataError: not a regular file, or not such an archive.
    """
    with reading(path), budget.open(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise DataError(f"expected an .npz file, a zip archive: {error}") from error
        with archive:
            yield Npz(archive, budget)


def npz_keys(path: str | os.PathLike[str]) -> set[str]:
    """Names of the arrays in an `.npz` file."""
    with open_npz(path, Budget()) as archive:
        return archive.keys


@contextlib.contextmanager
def open_npy(path: str | os.PathLike[str], budget: Budget) -> Iterator[Npy]:
    """An `.npy` file."""
    with reading(path), budget.open(path) as file:
        yield Npy(file, file.size, budget)


class Npy:
    """An open `.npy` file."""

    def __init__(self, stream: io.RawIOBase | io.BytesIO, size: int, budget: Budget) -> None:
        self._stream, self._size, self._budget = stream, size, budget

    def header(self) -> Header:
        """What the array claims to be."""
        self._stream.seek(0)
        return _read_header(self._stream, self._size, "array")

    def read(self) -> np.ndarray:
        """The array, charged."""
        self._stream.seek(0)
        return _read_array(self._stream, self._size, "array", self._budget)


def _read_header(stream: _Stream, size: int, key: str) -> Header:
    """The header; the values, which follow it, are as many bytes as it claims."""
    start = _exactly(stream, 8, key)
    version = np.lib.format.read_magic(io.BytesIO(start))
    if version not in _HEADERS:
        raise DataError(f"{key}: npy format {version} is not supported")
    width, parse = _HEADERS[version]
    length = _exactly(stream, width, key)
    count = int.from_bytes(length, "little")
    if count > _LONGEST_HEADER:
        raise DataError(f"{key}: expected a header of at most {_LONGEST_HEADER} bytes, got {count}")
    header = _exactly(stream, count, key)
    with warnings.catch_warnings():  # of the parser of Python's literals
        warnings.simplefilter("ignore")
        shape, fortran, dtype = parse(io.BytesIO(length + header))
    if dtype.hasobject:
        raise DataError(f"{key}: holds pickled Python objects, which are refused")
    if dtype.kind not in "biufSU" or dtype.shape or dtype.itemsize == 0:
        raise DataError(f"{key}: expected numbers or text, got {dtype}")
    rest = size - 8 - width - count
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != rest:
        raise DataError(f"{key}: a {dtype}{quote(shape)} with {rest} bytes of values")
    return Header(dtype, shape, fortran)


def _read_array(stream: _Stream, size: int, key: str, budget: Budget) -> np.ndarray:
    header = _read_header(stream, size, key)
    budget.charge(header.nbytes, key)
    values = np.empty(header.size, header.dtype)
    target = values.view(np.uint8)
    place = 0
    while place < header.nbytes:
        block = stream.read(min(_BLOCK, header.nbytes - place))
        if not block:
            raise DataError(f"{key}: expected {header.nbytes} bytes of values, got {place}")
        target[place : place + len(block)] = np.frombuffer(block, np.uint8)
        place += len(block)
    # The end of an entry is where its checksum is compared.
    if stream.read(1):
        raise DataError(f"{key}: expected {header.nbytes} bytes of values, got more")
    if header.dtype.kind == "b":  # whatever the bytes, 0 or 1
        np.not_equal(target, 0, out=values)
    if not header.dtype.isnative:
        values = values.byteswap(inplace=True).view(header.dtype.newbyteorder("="))
    return values.reshape(header.shape, order="F" if header.fortran else "C")


def _exactly(stream: _Stream, size: int, key: str) -> bytes:
    data = b""
    while len(data) < size:
        block = stream.read(size - len(data))
        if not block:
            raise DataError(f"{key}: the file ends within its header")
        data += block
    return data
