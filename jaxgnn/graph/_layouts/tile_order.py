"""The order of rows whose windows share the most columns."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from jaxtyping import Int


def choose(
    module: ModuleType,
    order: str,
    row_offsets: Int[np.ndarray, " rows+1"],
    columns: Int[np.ndarray, " edges"],
    num_columns: int,
    *,
    square: bool,
    symmetric: bool,
) -> tuple[str, Int[np.ndarray, " rows"]]:
    """The name of an order, and the rows in it. `"auto"` takes the one whose windows of 64 rows
    have the fewest distinct columns, the earliest of equals: never more than as numbered."""

    def rows_in(name: str) -> Int[np.ndarray, " rows"]:
        if name == "groups" and square:
            return module.order_by_communities(row_offsets, columns)
        if name in ("groups", "labels"):
            return module.order_rows(row_offsets, columns, num_columns)
        if name == "rcm":
            return _reverse_cuthill_mckee(row_offsets, columns, symmetric)
        return np.arange(row_offsets.size - 1, dtype=np.int32)

    if order != "auto":
        return order, rows_in(order)
    best, fewest = ("numbered", rows_in("numbered")), columns.size + 1
    for name in ("numbered", "groups", "rcm", "labels") if square else ("numbered", "groups"):
        rows = rows_in(name)
        distinct = module.count_window_columns(row_offsets, columns, rows, num_columns)
        if distinct < fewest:
            best, fewest = (name, rows), distinct
    return best


def _reverse_cuthill_mckee(
    row_offsets: Int[np.ndarray, " rows+1"], columns: Int[np.ndarray, " edges"], symmetric: bool
) -> Int[np.ndarray, " rows"]:
    """SciPy's, of the graph with both directions of each edge.

    Source: Cuthill and McKee, Reducing the bandwidth of sparse symmetric matrices, ACM 1969.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    rows = row_offsets.size - 1
    if rows == 0:
        return np.zeros(0, np.int32)
    ones = np.ones(columns.size, np.float32)
    matrix = csr_array((ones, columns, row_offsets), shape=(rows, rows))
    order = reverse_cuthill_mckee(matrix, symmetric_mode=symmetric)
    return np.ascontiguousarray(order, np.int32)  # a reversed view
