"""Columns of features that are categories: 0, 1, ... in each."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from jaxgnn.data.files.limits import DataError

MOST_CATEGORIES = 1 << 20
"""Of a column: more are taken for numbers."""


def count_categories(
    rows: Float[np.ndarray, "rows columns"] | None,
) -> Int[np.ndarray, " columns"] | None:
    """How many values each column takes, counted from 0; None where there are no columns, or one
    has other numbers than whole ones from 0 below `MOST_CATEGORIES`."""
    if rows is None or not rows.shape[1]:
        return None
    largest = rows.max(axis=0, initial=0)
    if largest.max() >= MOST_CATEGORIES or rows.min(initial=0) < 0:
        return None
    return None if (rows != np.floor(rows)).any() else largest.astype(np.int64) + 1


def check_categories(
    rows: Float[np.ndarray, "rows columns"] | None,
    categories: Int[np.ndarray, " columns"] | None,
    name: str,
) -> None:
    """Raises a `DataError` for rows that are not of these categories."""
    if categories is None:
        return
    if rows is None or categories.shape != (rows.shape[1],):
        width = 0 if rows is None else rows.shape[1]
        raise DataError(f"{name}: expected {categories.size} columns of categories, got {width}")
    wrong = ~((rows >= 0) & (rows < categories) & (rows == np.floor(rows)))
    for row, column in np.argwhere(wrong)[:1]:
        raise DataError(
            f"{name}: column {column}: expected categories from 0 to {categories[column] - 1}, "
            f"got {rows[row, column]:g}"
        )
