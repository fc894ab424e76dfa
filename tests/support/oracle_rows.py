"""Sampled rows of products in float64, and the entries that MaxK keeps, by NumPy alone."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float, Int

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


def kept_product_rows(
    row_offsets: Int[np.ndarray, " rows+1"],
    columns: Int[np.ndarray, " edges"],
    x: Float[np.ndarray, "columns width"],
    kept: Int[np.ndarray, "columns k"],
    weights: Float[np.ndarray, " edges"] | None,
    rows: Int[np.ndarray, " sample"],
) -> Float[np.ndarray, "sample width"]:
    """`product_rows` of `x` with zeros where an entry is not kept."""
    out = np.zeros((rows.size, x.shape[1]))
    for place, row in enumerate(rows):
        edges = slice(int(row_offsets[row]), int(row_offsets[row + 1]))
        neighbors = columns[edges]
        entries = kept[neighbors]
        values = x[neighbors[:, None], entries].astype(np.float64)
        if weights is not None:
            values *= weights[edges, None].astype(np.float64)
        out[place] = np.bincount(entries.ravel(), values.ravel(), minlength=x.shape[1])
    return out


def keep(
    x: Float[np.ndarray, "rows width"], kept: Int[np.ndarray, "rows k"]
) -> Float[np.ndarray, "rows width"]:
    """`x` with zeros where an entry is not kept."""
    out, columns = np.zeros_like(x), kept.astype(np.int64)
    np.put_along_axis(out, columns, np.take_along_axis(x, columns, axis=1), axis=1)
    return out


def descending(x: Float[np.ndarray, "rows width"]) -> Int[np.ndarray, "rows width"]:
    """The columns of each row from its largest entry down, of equal entries the lower one first.

    NaN counts as the largest; -0 equals +0.
    """

    def order(block: np.ndarray) -> np.ndarray:
        block = block.astype(np.float64)
        missing = np.isnan(block)
        if missing.any():  # the last key is the first that counts
            return np.lexsort((-np.where(missing, np.inf, block), ~missing), axis=-1)
        return np.argsort(-block, axis=-1, kind="stable")

    return _by_blocks(order, x, np.empty(x.shape, index_dtype(x.shape[1])))


def largest(order: Int[np.ndarray, "rows width"], k: int) -> Int[np.ndarray, "rows k"]:
    """The columns of the `k` largest entries of each row, ascending, from their `descending`."""
    out = np.empty((order.shape[0], k), order.dtype)
    return _by_blocks(lambda block: np.sort(block[:, :k], axis=1), order, out)


def philox_kept(
    rows: Int[np.ndarray, " sample"], width: int, rate: float, key: tuple[int, int]
) -> Bool[np.ndarray, "sample width"]:
    """Which entries of these rows `jaxgnn.maxk` keeps in dropout by a key of two words."""
    low, high = np.uint64(2**32 - 1), np.uint64(32)
    row, block = np.meshgrid(rows, np.arange(-(-width // 4)), indexing="ij")
    c0, c2 = row.astype(np.uint64) & low, block.astype(np.uint64)
    c1, c3 = row.astype(np.uint64) >> high, np.zeros_like(c2)
    key0, key1 = key
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (p1 >> high) ^ c1 ^ np.uint64(key0), p1 & low
        c2, c3 = (p0 >> high) ^ c3 ^ np.uint64(key1), p0 & low
        key0, key1 = (key0 + 0x9E3779B9) % 2**32, (key1 + 0xBB67AE85) % 2**32
    words = np.stack([c0, c1, c2, c3], axis=-1).reshape(rows.size, -1)[:, :width]
    return words >= round(rate * 2**32)


def index_dtype(width: int) -> np.dtype:
    """The smallest integer that holds a column."""
    return np.dtype(np.uint8 if width <= 256 else np.uint16)


def _by_blocks(
    function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """`out = function(x)` for a function of rows, over blocks of them, in threads."""

    def run(start: int) -> None:
        block = slice(start, start + 8192)
        out[block] = function(x[block])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, range(0, x.shape[0], 8192)))
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
