"""Checks of what a file holds, made before anything trusts it.

Those of shapes and dtypes take an array or what the file claims of it (`archive.Header`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from jaxgnn.data.files.limits import Budget, DataError, quote

_BLOCK = 1 << 20


class ArrayLike(Protocol):
    """An array, or a claim of one."""

    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...


def check_kind(values: ArrayLike, what: str, ndim: int = 1) -> None:
    """Refuses what is not of integers, or has not `ndim` axes."""
    if values.dtype.kind not in "iu" or values.ndim != ndim:
        raise DataError(
            f"{what}: expected integers with {ndim} axes, got {values.dtype}{quote(values.shape)}"
        )


def check_vector(values: ArrayLike, size: int, what: str) -> None:
    """Refuses what is not a vector of `size` integers."""
    check_kind(values, what)
    if values.size != size:
        raise DataError(f"{what}: expected {size} entries, one a node, got {values.size}")


def check_integers(
    values: np.ndarray, what: str, budget: Budget, ndim: int = 1
) -> Int[np.ndarray, "..."]:
    """The array as int64, if it holds integers and has `ndim` axes."""
    check_kind(values, what, ndim)
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: expected 64-bit signed integers, got {values.max()}")
    return _cast(values, np.int64, what, budget)


def check_ids(
    values: np.ndarray, num_nodes: int, what: str, budget: Budget
) -> Int[np.ndarray, "..."]:
    """Integers from 0 to `num_nodes - 1`, as int32."""
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < num_nodes:
        raise DataError(
            f"{what}: expected 0 to {num_nodes - 1}, got {values.min()} to {values.max()}"
        )
    return _cast(values, np.int32, what, budget)


def check_csr_claims(
    data: ArrayLike, indices: ArrayLike, indptr: ArrayLike, shape: tuple[int, int], what: str
) -> None:
    """Refuses arrays whose dtypes and sizes are not those of a CSR matrix."""
    rows, columns = shape
    if not (0 <= rows < 1 << 31 and 0 <= columns < 1 << 31):
        raise DataError(
            f"{what}: expected a shape from 0 to 2**31 - 1, got {quote(rows)} x {quote(columns)}"
        )
    check_kind(indices, f"{what} indices")
    check_kind(indptr, f"{what} indptr")
    if data.dtype.kind not in "fiub" or data.ndim != 1:
        raise DataError(f"{what} data: expected numbers, got {data.dtype}{quote(data.shape)}")
    if indptr.size != rows + 1:
        raise DataError(f"{what} indptr: expected {rows + 1} entries, got {indptr.size}")
    if data.size != indices.size:
        raise DataError(
            f"{what}: expected as many values as indices, got {data.size}, {indices.size}"
        )


def check_csr_structure(
    indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], what: str, budget: Budget
) -> tuple[np.ndarray, np.ndarray]:
    """The indices as int32 and the offsets as integers, consistent with each other."""
    with budget.scope():
        budget.charge(indptr.size, f"{what} indptr")
        ascends = not (indptr[1:] < indptr[:-1]).any()
    if indptr[0] != 0 or indptr[-1] != indices.size or not ascends:
        raise DataError(f"{what} indptr: expected an ascent from 0 to {indices.size}")
    wide = np.int32 if indices.size < 1 << 31 else np.int64
    return check_ids(indices, shape[1], f"{what} indices", budget), _cast(
        indptr, wide, what, budget
    )


def check_csr(
    data: np.ndarray,
    indices: np.ndarray,
    indptr: np.ndarray,
    shape: tuple[int, int],
    what: str,
    budget: Budget,
) -> scipy.sparse.csr_array:
    """A SciPy matrix of arrays that are consistent: SciPy's own code trusts them."""
    check_csr_claims(data, indices, indptr, shape, what)
    indices, indptr = check_csr_structure(indices, indptr, shape, what, budget)
    if indptr.dtype != indices.dtype:
        indices = _cast(indices, indptr.dtype, what, budget)
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)


def check_features(
    matrix: np.ndarray | scipy.sparse.csr_array, what: str, budget: Budget
) -> Float[np.ndarray, "num_nodes num_features"]:
    """Features as a dense float32 matrix of finite values; a float32 array is not copied."""
    sparse = isinstance(matrix, scipy.sparse.csr_array)
    values = matrix.data if sparse else matrix
    if values.dtype.kind not in "fiub" or matrix.ndim != 2:
        raise DataError(
            f"{what}: expected a matrix of numbers, got {matrix.dtype}{quote(matrix.shape)}"
        )
    rows, columns = (int(count) for count in matrix.shape or ())
    if sparse or values.dtype != np.float32:
        budget.charge(4 * max(rows, 1) * max(columns, 1), f"{what} of {rows} x {columns} floats")
    if sparse:
        budget.charge(4 * values.size, what)
    converted = values.astype(np.float32, copy=False)
    if not all_finite(converted):
        raise DataError(f"{what}: expected finite values, got NaN or infinity (or beyond float32)")
    if not sparse:
        return converted
    # SciPy adds repeated entries up, which could overflow: the dataset checks the sums.
    parts = (converted, matrix.indices, matrix.indptr)
    return scipy.sparse.csr_array(parts, shape=(rows, columns)).toarray()


def read_features(
    read: Callable[[], np.ndarray | scipy.sparse.csr_array], what: str, budget: Budget
) -> Float[np.ndarray, "num_nodes num_features"]:
    """`check_features` of what `read` returns, which is not kept."""
    with budget.scope():
        features = check_features(read(), what, budget)
    budget.charge(features.nbytes, what)
    return features


def check_labels(
    values: np.ndarray, num_nodes: int, what: str, budget: Budget
) -> Int[np.ndarray, " num_nodes"]:
    """One class a node from 0, int32; fewer classes than nodes."""
    check_vector(values, num_nodes, what)
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < num_nodes:
        raise DataError(
            f"{what}: expected classes from 0, fewer than nodes, "
            f"got {values.min()} to {values.max()}"
        )
    return _cast(values, np.int32, what, budget)


def check_rows(values: Any, rows: int, ndim: int, what: str) -> None:
    """Refuses what is neither None nor `rows` rows of finite float32 numbers."""
    if values is None:
        return
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        got = getattr(values, "dtype", quote(values))
        kind = "" if isinstance(values, np.ndarray) else f"{type(values).__name__} of "
        raise DataError(f"{what}: expected NumPy's array of float32, got {kind}{got}")
    if values.ndim != ndim or len(values) != rows:
        raise DataError(
            f"{what}: expected {rows} rows and {ndim} axes, got the shape {quote(values.shape)}"
        )
    if not all_finite(values):
        raise DataError(f"{what}: expected finite values, got NaN or infinity")


def check_offsets(offsets: Int[np.ndarray, " n+1"], total: int, what: str) -> None:
    """Refuses what is not an ascent from 0 to `total`."""
    if not (
        isinstance(offsets, np.ndarray)
        and offsets.ndim == 1
        and offsets.size
        and offsets.dtype.kind == "i"
        and offsets[0] == 0
        and offsets[-1] == total
        and (offsets[1:] >= offsets[:-1]).all()
    ):
        raise DataError(f"{what}: expected an ascent from 0 to {total}")


def check_ends(
    senders: Any, receivers: Any, num_nodes: int
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """The ends of pairs of nodes as arrays on the host; empty lists may be of any type.

    Raises:
        DataError: they are no nodes, or of two lengths.
        TypeError: they are no array.
    """
    ends = []
    for name, values in (("senders", senders), ("receivers", receivers)):
        try:
            ids = np.asarray(values)
        except (TypeError, ValueError):  # lists of several lengths
            got = type(values).__name__
            raise TypeError(f"{name}: expected an array of integers, got {got}") from None
        ids = ids if ids.size else ids.astype(np.int32)
        ends.append(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(f"{name}: expected integers with 1 axis, got {ids.dtype}{ids.shape}")
        if ids.size and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise DataError(
                f"{name}: expected 0 to {num_nodes - 1}, got {ids.min()} to {ids.max()}"
            )
    sizes = [ids.size for ids in ends]
    if sizes[0] != sizes[1]:
        raise DataError(f"senders, receivers: expected one length, got {sizes[0]} and {sizes[1]}")
    return ends[0], ends[1]


def charge_graph(
    budget: Budget, num_nodes: int, num_edges: int, *, undirected: bool = False
) -> None:
    """Counts what `Graph.from_edges` takes at its peak, beside its arguments."""
    num_edges *= 1 + undirected
    # Of an edge: both ends, its place and their copies while they are sorted.
    width = 8 if num_edges >= 1 << 31 else 4
    budget.charge(
        num_edges * (5 * 4 + 5 * width) + num_nodes * (4 + 4 * width),
        f"a graph of {num_nodes:,} nodes and {num_edges:,} edges",
    )


def charge_splits(budget: Budget, num_nodes: int, num_splits: int = 1) -> None:
    """Counts masks of the nodes and what it takes to draw them."""
    budget.charge(num_nodes * (3 * max(num_splits, 1) + 32), f"{num_splits} splits")


def all_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite."""
    rows = row_blocks(values)
    return all(bool(np.isfinite(values[begin:end]).all()) for begin, end in rows)


def row_blocks(values: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of rows of about a million values, so that temporaries of them are small."""
    if not values.size:
        return []
    width = max(1, values[:1].size)
    step = max(1, _BLOCK // width)
    return [(begin, min(begin + step, len(values))) for begin in range(0, len(values), step)]


def _cast(values: np.ndarray, dtype: Any, what: str, budget: Budget) -> np.ndarray:
    if values.dtype != dtype:
        budget.charge(values.size * np.dtype(dtype).itemsize, what)
    return values.astype(dtype, copy=False)
