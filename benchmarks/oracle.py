"""The oracle: rows of the product in float64, by NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from jaxtyping import Float, Int

# Largest relative error of a row. Rounding the result to the dtype costs 2^-8 (bfloat16) and
# 2^-11 (float16) at most, so that these two leave no room for a sum in the dtype itself; float32
# leaves room for rows of tens of thousands of terms, summed in any order.
TOLERANCE = {"float32": 2e-5, "bfloat16": 4.5e-3, "float16": 6e-4}


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` rounded to the nearest number of `dtype`, in `dtype`."""
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def sample_rows(
    row_offsets: Int[np.ndarray, " rows+1"], seed: int, count: int = 256, longest: int = 8
) -> Int[np.ndarray, " sample"]:
    """Random rows, and the longest ones: they are where sums go wrong and kernels split."""
    lengths = np.diff(row_offsets)
    rng = np.random.default_rng(seed)
    random = rng.choice(lengths.size, min(count, lengths.size), replace=False)
    longest = min(longest, lengths.size)
    top = np.argpartition(lengths, lengths.size - longest)[lengths.size - longest :]
    return np.unique(np.concatenate([random, top]))


def product_rows(
    row_offsets: Int[np.ndarray, " rows+1"],
    columns: Int[np.ndarray, " edges"],
    x: Float[np.ndarray, "columns width"],
    weights: Float[np.ndarray, " edges"] | None,
    rows: Int[np.ndarray, " sample"],
) -> Float[np.ndarray, "sample width"]:
    """The rows `rows` of the sparse product, in float64; `x` in the dtype that is tested."""
    out = np.zeros((rows.size, x.shape[1]))
    for place, row in enumerate(rows):
        edges = slice(int(row_offsets[row]), int(row_offsets[row + 1]))
        terms = x[columns[edges]].astype(np.float64)
        if weights is not None:
            terms *= weights[edges, None].astype(np.float64)
        out[place] = terms.sum(axis=0)
    return out


def row_error(got: Float[np.ndarray, "rows width"], expected: np.ndarray) -> float:
    """Largest over the rows of |got - expected| / |expected|; infinite if anything is not finite.

    A row that must be 0 (one without edges) has to be exactly 0.
    """
    got = np.asarray(got, np.float64)
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    if got.size == 0:
        return 0.0
    difference = np.linalg.norm(got - expected, axis=1)
    size = np.linalg.norm(expected, axis=1)
    if (difference[size == 0] != 0).any():
        return float("inf")
    return float((difference / np.where(size == 0, 1, size)).max())
