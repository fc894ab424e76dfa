"""Graphs of the nearest neighbors of points."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from jaxtyping import Float
from scipy.spatial import KDTree

from jaxgnn._core.arguments import as_integer
from jaxgnn._core.checks import boolean
from jaxgnn.data.files.limits import DataError
from jaxgnn.data.sets.csr import CSR

# Rows of candidates held at once: bounds the memory of a query with many ties.
_CHUNK_ENTRIES = 1 << 23


def knn(points: Float[np.ndarray, "num_points dimensions"], k: int, *, symmetrize: bool) -> CSR:
    """Graph with an edge to each point from each of its `k` nearest other points.

    Distances are Euclidean, in float64; of points equally far, the lower index is nearer, so
    the graph is a function of the points alone.

    Args:
        points: one row a point; finite.
        k: number of neighbors, less than the number of points.
        symmetrize: also add the reverse of each edge.

    Raises:
        TypeError: `k` is no integer, or `symmetrize` no boolean.
        DataError: `points` is not such an array, or `k` is out of range.
    """
    boolean(symmetrize, "symmetrize")
    if as_integer(k) is None:
        raise TypeError(f"k: expected an integer, got {k!r}")
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or not points.shape[1] or not np.isfinite(points).all():
        raise DataError(f"points: expected finite [points, dimensions], got {points.shape}")
    n = len(points)
    if not 1 <= k < n:
        raise DataError(f"k: expected 1 to {n - 1} neighbors among {n} points, got {k}")
    tree = KDTree(points)
    neighbors = np.empty((n, k), np.int32)
    pending = np.arange(n)
    width = k + 9
    while pending.size:
        width = min(width, n)
        unresolved = []
        step = max(1, _CHUNK_ENTRIES // width)
        for start in range(0, pending.size, step):
            rows = pending[start : start + step]
            nearest, resolved = _nearest(tree, points, rows, k, width)
            neighbors[rows[resolved]] = nearest[resolved]
            unresolved.append(rows[~resolved])
        pending = np.concatenate(unresolved)
        width *= 4
    receivers = np.repeat(np.arange(n, dtype=np.int32), k)
    pattern = scipy.sparse.csr_array(
        (np.ones(n * k, bool), (receivers, neighbors.ravel())), shape=(n, n)
    )
    if symmetrize:
        pattern = (pattern + pattern.T).tocsr()
    pattern.sort_indices()
    return CSR(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32))


def _nearest(
    tree: KDTree, points: np.ndarray, rows: np.ndarray, k: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` nearest among `width` candidates, and whether ties cannot hide a better one."""
    distance, index = tree.query(points[rows], k=width)
    distance, index = distance.reshape(len(rows), width), index.reshape(len(rows), width)
    farthest = distance[:, -1].copy()
    distance[index == rows[:, None]] = np.inf
    order = np.lexsort((index, distance), axis=-1)[:, :k]
    kth = np.take_along_axis(distance, order[:, -1:], axis=1)[:, 0]
    nearest = np.take_along_axis(index, order, axis=1)
    return nearest, (kth < farthest) | (width == tree.n)
