"""Readers of adjacency matrices: SciPy's `.npz` and MATLAB's `.mat` files."""

from __future__ import annotations

import os

import numpy as np
import scipy.sparse

from jaxgnn.data.files.archive import Npz, open_npz
from jaxgnn.data.files.checks import all_finite, charge_graph, check_csr, check_ids, check_kind
from jaxgnn.data.files.limits import Budget, DataError, quote, reading, stem_of
from jaxgnn.data.files.matlab import Matrix, read_matlab
from jaxgnn.data.formats.edges import plain_graph
from jaxgnn.data.formats.label_sets import dense_labels, multilabel_dataset
from jaxgnn.data.sets.dataset import NodeDataset
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

_COMPRESSED = {"format", "shape", "data", "indices", "indptr"}
_COORDINATES = {"format", "shape", "data", "row", "col"}


def is_scipy(keys: set[str]) -> bool:
    """Whether an `.npz` file with these arrays is of `scipy.sparse.save_npz`."""
    return {"format", "shape", "data"} <= keys


def read_scipy(
    path: str | os.PathLike[str],
    *,
    weights: bool = False,
    undirected: bool = False,
    max_bytes: int | None = None,
) -> PlainGraph:
    """A square matrix of `scipy.sparse.save_npz`: the entry (j, i) is the edge from j to i.

    CSR, CSC and COO; repeated entries are merged, explicit zeros are edges.

    Args:
        path: the file.
        weights: keep the entries, as float32; those of repeated ones are summed.
        undirected: add the reverse of each edge.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, damaged, another format, or not square.
    """
    budget = Budget(max_bytes)
    with open_npz(path, budget) as archive:
        keys = archive.keys
        kind = _format(archive)
        needed = _COORDINATES if kind == "coo" else _COMPRESSED
        if kind not in ("csr", "csc", "coo") or not needed <= keys:
            raise DataError(
                f"expected a CSR, CSC or COO matrix of scipy.sparse.save_npz, got {quote(kind)} "
                f"with {quote(', '.join(sorted(keys)[:9]))}"
            )
        n = _size(archive)
        if kind == "coo":
            row, column = (_ids(archive, key, n, budget) for key in ("row", "col"))
            if not row.size == column.size == archive.header("data").size:
                raise DataError("row, col, data: expected one size, got others")
            values = _values(archive.read("data"), budget) if weights else None
        else:
            data, indices, indptr = (archive.read(key) for key in ("data", "indices", "indptr"))
            matrix = check_csr(data, indices, indptr, (n, n), "matrix", budget)
            row, column, values = _entries(matrix, weights, kind == "csc", budget)
        return plain_graph(path, row, column, n, budget, weights=values, undirected=undirected)


def read_mat(
    path: str | os.PathLike[str],
    *,
    variable: str | None = None,
    weights: bool = False,
    undirected: bool = False,
    train: float = 0.5,
    val: float = 0.25,
    seed: int = 0,
    num_splits: int = 10,
    max_bytes: int | None = None,
) -> PlainGraph | NodeDataset:
    """A MATLAB file of version 5 to 7: a square matrix, sparse or full; (j, i) is j to i.

    A file with the matrices `network` and `group`, as node2vec's, is a set of nodes with several
    labels: `group[i, c]` is whether node i has label c. Of other files, `variable` names the
    matrix, where there are several square ones. Entries of a full matrix that are zero are no
    edges. Version 7.3 is HDF5 and is refused; `save -v7` writes one that is read.

    Args:
        path: the file.
        variable: name of the matrix.
        weights: keep the entries of a `PlainGraph`, as float32.
        undirected: add the reverse of each edge.
        train, val: shares of the nodes with labels; the rest is tested.
        seed: the splits are drawn with the seeds `seed`, `seed + 1`, ...
        num_splits: how many splits.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, damaged, or not one square matrix.
    """
    budget = Budget(max_bytes)
    with reading(path):
        found = read_matlab(path, budget)
        matrices = {matrix.name: matrix for matrix in found}
        square = [name for name, matrix in matrices.items() if matrix.rows == matrix.columns]
        labelled = {"network", "group"} <= set(matrices) and variable is None
        if labelled:
            variable = "network"
        elif variable is None:
            if len(square) != 1:
                raise DataError(
                    f"expected one square matrix, or variable= of {quote(', '.join(matrices))}"
                )
            variable = square[0]
        if variable not in square:
            raise DataError(f"{quote(variable)}: expected a square matrix of that name")
        network = matrices[variable]
        n = network.rows
        adjacency = _sparse(network, budget)
        row, column, values = _entries(adjacency, weights and not labelled, True, budget)
        if not labelled:
            return plain_graph(path, row, column, n, budget, weights=values, undirected=undirected)
        group = matrices["group"]
        if group.rows != n or not group.columns:
            raise DataError(f"group: expected {n} rows, got {group.rows} x {group.columns}")
        charge_graph(budget, n, row.size, undirected=undirected)
        graph = Graph.from_edges(row, column, num_nodes=n, undirected=undirected, deduplicate=True)
        sets = scipy.sparse.csr_array(_sparse(group, budget).T)
        return multilabel_dataset(
            stem_of(path),
            graph,
            dense_labels(sets, budget),
            budget,
            shares=(train, val),
            seed=seed,
            num_splits=num_splits,
            source=os.fspath(path),
        )


def _sparse(matrix: Matrix, budget: Budget) -> scipy.sparse.csr_array:
    """The transpose of a matrix: MATLAB's columns are its rows."""
    shape = (matrix.columns, matrix.rows)
    if matrix.values.ndim == 2:
        budget.charge(16 * matrix.values.size, matrix.name)
        return scipy.sparse.csr_array(matrix.values.T)
    return check_csr(matrix.values, matrix.indices, matrix.offsets, shape, matrix.name, budget)


def _entries(
    matrix: scipy.sparse.csr_array, weights: bool, transposed: bool, budget: Budget
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows, columns and values of the entries; of the transpose, if `matrix` is that."""
    budget.charge(12 * matrix.indices.size, "the entries")
    outer = np.repeat(np.arange(matrix.indptr.size - 1, dtype=np.int32), np.diff(matrix.indptr))
    inner = matrix.indices.astype(np.int32, copy=False)
    row, column = (inner, outer) if transposed else (outer, inner)
    return row, column, _values(matrix.data, budget) if weights else None


def _values(values: np.ndarray, budget: Budget) -> np.ndarray:
    if values.dtype.kind not in "fiub" or values.ndim != 1:
        raise DataError(f"data: expected real numbers, got {values.dtype}{quote(values.shape)}")
    budget.charge(4 * values.size, "data")
    values = values.astype(np.float32)
    if not all_finite(values):
        raise DataError("data: expected finite values, got NaN or infinity (or beyond float32)")
    return values


def _format(archive: Npz) -> str:
    header = archive.header("format") if "format" in archive.keys else None
    if header is None or header.size != 1 or header.dtype.itemsize > 64:
        raise DataError("format: expected the name of a sparse format")
    value = archive.read("format").reshape(()).item()
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _size(archive: Npz) -> int:
    check_kind(archive.header("shape"), "shape")
    if archive.header("shape").size != 2:
        raise DataError("shape: expected two numbers")
    rows, columns = (int(count) for count in archive.read("shape").tolist())
    if rows != columns or not 0 <= rows < 1 << 31:
        raise DataError(f"expected a square matrix, got {quote(rows)} x {quote(columns)}")
    return rows


def _ids(archive: Npz, key: str, n: int, budget: Budget) -> np.ndarray:
    check_kind(archive.header(key), key)
    return check_ids(archive.read(key), n, key, budget)
