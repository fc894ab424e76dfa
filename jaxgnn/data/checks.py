"""Checks of what a file holds, made before anything trusts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from jaxgnn.data.dataset import DataError

# The most that a reader allocates for one file's arrays unless told otherwise.
MAX_BYTES = 2 << 30


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns whatever goes wrong while a file is read into a `DataError` that names the file."""
    name = os.fspath(path)
    try:
        yield
    except DataError as error:
        message = str(error)
        raise DataError(message if message.startswith(name) else f"{name}: {message}") from error
    # Damaged bytes make the standard library, NumPy and SciPy raise almost anything.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{name}: cannot be read: {reason}") from error


def check_size(num_bytes: int, what: str, max_bytes: int) -> None:
    """Refuses an allocation of more than `max_bytes`."""
    if num_bytes > max_bytes:
        raise DataError(
            f"{what} would take {num_bytes:,} bytes, more than the limit of {max_bytes:,} "
            "(option max_bytes)"
        )


def check_integers(values: np.ndarray, what: str, ndim: int = 1) -> Int[np.ndarray, "..."]:
    """The array as int64, if it holds integers and has `ndim` axes."""
    if values.dtype.kind not in "iu" or values.ndim != ndim:
        raise DataError(
            f"{what}: expected integers with {ndim} axes, got {values.dtype}{list(values.shape)}"
        )
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: expected 64-bit signed integers, got {values.max()}")
    return values.astype(np.int64)


def check_csr(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], what: str
) -> scipy.sparse.csr_array:
    """A SciPy matrix of arrays that are consistent: SciPy's own code trusts them."""
    rows, columns = shape
    if not (0 <= rows < 1 << 31 and 0 <= columns < 1 << 31):
        raise DataError(f"{what}: expected a shape from 0 to 2**31 - 1, got {rows} x {columns}")
    indices, indptr = (
        check_integers(indices, f"{what} indices"),
        check_integers(indptr, f"{what} indptr"),
    )
    if data.dtype.kind not in "fiub" or data.ndim != 1:
        raise DataError(f"{what} data: expected numbers, got {data.dtype}{list(data.shape)}")
    if indptr.size != rows + 1:
        raise DataError(f"{what} indptr: expected {rows + 1} entries, got {indptr.size}")
    if data.size != indices.size:
        raise DataError(
            f"{what}: expected as many values as indices, got {data.size}, {indices.size}"
        )
    if indptr[0] != 0 or indptr[-1] != indices.size or (indptr[1:] < indptr[:-1]).any():
        raise DataError(f"{what} indptr: expected an ascent from 0 to {indices.size}")
    if indices.size and not 0 <= indices.min() <= indices.max() < columns:
        raise DataError(
            f"{what} indices: expected 0 to {columns - 1}, got {indices.min()} to {indices.max()}"
        )
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)


def check_features(
    matrix: np.ndarray | scipy.sparse.csr_array, what: str, max_bytes: int
) -> Float[np.ndarray, "num_nodes num_features"]:
    """Features as a dense float32 matrix of finite values."""
    sparse = isinstance(matrix, scipy.sparse.csr_array)
    values = matrix.data if sparse else matrix
    if values.dtype.kind not in "fiub" or matrix.ndim != 2:
        raise DataError(f"{what}: expected a matrix of numbers, got {matrix.dtype} {matrix.shape}")
    rows, columns = (int(count) for count in matrix.shape or ())
    check_size(
        4 * max(rows, 1) * max(columns, 1), f"{what} of {rows} x {columns} floats", max_bytes
    )
    with np.errstate(over="ignore"):
        converted = values.astype(np.float32)
    if not np.isfinite(converted).all():
        raise DataError(f"{what}: expected finite values, got NaN or infinity (or beyond float32)")
    if not sparse:
        return converted
    # SciPy adds repeated entries up, which could overflow: the dataset checks the sums.
    parts = (converted, matrix.indices, matrix.indptr)
    return scipy.sparse.csr_array(parts, shape=(rows, columns)).toarray()


def check_labels(values: np.ndarray, num_nodes: int, what: str) -> Int[np.ndarray, " num_nodes"]:
    """One class a node from 0, int32; fewer classes than nodes."""
    labels = check_integers(values, what)
    if labels.size != num_nodes:
        raise DataError(f"{what}: expected {num_nodes} entries, one a node, got {labels.size}")
    if labels.size and not 0 <= labels.min() <= labels.max() < num_nodes:
        raise DataError(
            f"{what}: expected classes from 0, fewer than nodes, "
            f"got {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int32)
