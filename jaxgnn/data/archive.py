"""Reads arrays out of `.npy` and `.npz` files: no pickles, no more memory than was agreed to."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterable

import numpy as np

from jaxgnn.data.checks import MAX_BYTES, check_size, reading
from jaxgnn.data.dataset import DataError

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# numpy.savez writes these two; the others could ask for large dictionaries.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def npz_keys(path: str | os.PathLike[str]) -> set[str]:
    """Names of the arrays in an `.npz` file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def read_npz(
    path: str | os.PathLike[str], keys: Iterable[str], *, max_bytes: int = MAX_BYTES
) -> dict[str, np.ndarray]:
    """The named arrays of an `.npz` file; others in it are not touched.

    Raises:
        DataError: an array is missing, damaged, of Python objects, or all together (as the
            file declares it, before anything is decompressed) exceed `max_bytes`.
    """
    with reading(path), zipfile.ZipFile(path) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        keys = tuple(keys)
        for key in keys:
            if key not in entries:
                raise DataError(f"no array {key!r} in it")
            if entries[key].compress_type not in _COMPRESSIONS or entries[key].flag_bits & 1:
                raise DataError(f"{key}: expected a stored or deflated entry without password")
        check_size(sum(entries[key].file_size for key in keys), "its arrays", max_bytes)
        return {key: _parse(_content(archive, entries[key]), key) for key in keys}


def read_npy(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> np.ndarray:
    """The array of an `.npy` file.

    Raises:
        DataError: it is damaged, of Python objects, or takes more than `max_bytes`.
    """
    with reading(path):
        check_size(os.stat(path).st_size, "its array", max_bytes)
        with open(path, "rb") as stream:
            return _parse(stream.read(), "array")


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The entry's bytes, their checksum checked; `archive.read` would inflate past their size."""
    with archive.open(entry) as stream:
        return stream.read(entry.file_size)


def _parse(data: bytes, key: str) -> np.ndarray:
    """`numpy.load` of one `.npy`, but allocating nothing that the header merely claims."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise DataError(f"{key}: npy format {version} is not supported")
    shape, fortran, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise DataError(f"{key}: holds pickled Python objects, which are refused")
    if dtype.kind not in "biufSU" or dtype.shape or dtype.itemsize == 0:
        raise DataError(f"{key}: expected numbers or text, got {dtype}")
    rest = len(data) - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != rest:
        raise DataError(f"{key}: a {dtype}{list(shape)} with {rest} bytes of values")
    array = np.frombuffer(data, dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="))
