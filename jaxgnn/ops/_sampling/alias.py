"""Alias tables: draws by weight, with replacement, in one step. Integers, equal everywhere.

A row of d edges has d cells of $2^{32}$ units each. A cell has units of its own edge below its
threshold, and of its alias from there on. Tables are built on the host, row by row in C++
(`cpu/sampling/alias_table.cc`, which has the rules), or in NumPy, all rows at once.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from jaxgnn._core.ffi import cpu_module
from jaxgnn.ops._sampling.draws import Words, below

_CELL = np.uint64(1 << 32)
_SUM_BITS = 62
_CHUNK = 1 << 15  # edges whose long divisions stay in a cache


def alias_table(
    row_offsets: Int[np.ndarray, " rows+1"], weights: np.ndarray
) -> tuple[UInt32[np.ndarray, " 2*num_edges"], Int[np.ndarray, " rows"]]:
    """The threshold and the alias of each cell, side by side, and how many edges of each row have
    a weight.

    A row's units are split in proportion to the weights, rounded, but an edge with a weight has at
    least one, and one without none. A whole cell's alias is itself, and its threshold 0. Weights
    are floating-point numbers of at least 0, read as float32.
    """
    with np.errstate(over="ignore"):
        weights = np.ascontiguousarray(weights, np.float32)
    core: Any = _alias_table_numpy if cpu_module is None else cpu_module.alias_table
    return core(np.ascontiguousarray(row_offsets), weights)


def edges_by_alias(
    table: UInt32[Array, " 2*num_edges"],
    begins: Int[Array, "*draws"],
    degrees: Words,
    pairs: tuple[Words, Words],
) -> Words:
    """The number in the row of the edge that each two words draw: `edge_of_pair`, in JAX."""
    first, second = pairs
    entries = table.reshape(-1, 2)
    cells = below(first, degrees)
    at = jnp.clip(begins + cells.astype(begins.dtype), 0, entries.shape[0] - 1)
    thresholds, aliases = jnp.moveaxis(entries[at], -1, 0)
    return jnp.where(second < thresholds, cells, jnp.minimum(aliases, degrees - 1))


def _alias_table_numpy(
    row_offsets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    degrees = np.diff(row_offsets).astype(np.int64)
    rows = np.repeat(np.arange(degrees.size), degrees)
    positive = weights > 0
    counts = np.bincount(rows[positive], minlength=degrees.size).astype(np.int32)
    begins = np.asarray(row_offsets, np.int64)[:-1]
    units = _units(weights, positive, rows, begins, degrees, counts)
    return _cells(units, rows, begins).reshape(-1), counts


def _units(
    weights: np.ndarray,
    positive: np.ndarray,
    rows: np.ndarray,
    begins: np.ndarray,
    degrees: np.ndarray,
    counts: np.ndarray,
) -> np.ndarray:
    """The units of each edge; those of a row without weights have a cell each."""
    bits = weights.view(np.int32).astype(np.int64)
    mantissas = (bits & 0x7FFFFF) | np.where(bits >> 23 > 0, 0x800000, 0)
    exponents = np.maximum(bits >> 23, 1)
    highest = np.zeros(degrees.size, np.int64)
    lengths = np.frexp(mantissas.astype(np.float64))[1]
    np.maximum.at(highest, rows[positive], (exponents + lengths)[positive])
    row_bits = np.frexp(degrees.astype(np.float64))[1]
    shifts = (_SUM_BITS - row_bits - highest)[rows] + exponents
    mantissas = np.where(positive, mantissas, 0).astype(np.uint64)
    # Sums over all rows wrap, their differences do not.
    scaled = mantissas << np.clip(shifts, 0, 63).astype(np.uint64)
    scaled = scaled >> np.clip(-shifts, 0, 63).astype(np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(scaled, dtype=np.uint64)])
    before = sums[begins]
    totals = sums[begins + degrees] - before
    shared = _CELL * degrees.astype(np.uint64) - counts.astype(np.uint64)
    ends = _shares(sums[1:] - before[rows], np.maximum(totals, np.uint64(1))[rows], shared[rows])
    first = np.arange(rows.size) == begins[rows]
    previous = np.where(first, np.uint64(0), np.roll(ends, 1))
    units = np.where(positive, ends - previous + np.uint64(1), np.uint64(0))
    return np.where(counts[rows] > 0, units, _CELL)


def _shares(sums: np.ndarray, totals: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """The integers `shared * sums / totals`, rounded down, by long division, bit by bit."""
    one, quotients = np.uint64(1), np.zeros_like(sums)
    for begin in range(0, sums.size, _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        part, total, factor = sums[chunk], totals[chunk], shared[chunk]
        rest, quotient = np.zeros_like(part), np.zeros_like(part)
        for bit in range(int(factor.max()).bit_length() - 1, -1, -1):
            rest = (rest << one) + (factor >> np.uint64(bit) & one) * part
            quotient <<= one
            for _ in range(2):  # the rest is below three totals, as sums are at most totals
                over = (rest >= total).astype(np.uint64)
                rest -= over * total
                quotient += over
        quotients[chunk] = quotient
    return quotients


def _cells(units: np.ndarray, rows: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Which edge fills up a cell, by the sums of what small edges lack and of what large ones have
    over: in each row they end at the same number."""
    own = np.arange(rows.size) - begins[rows]
    table = np.empty((rows.size, 2), np.uint32)
    small, large = np.flatnonzero(units < _CELL), np.flatnonzero(units >= _CELL)
    lacking = np.cumsum(_CELL - units[small], dtype=np.uint64)
    spare = np.cumsum(units[large] - _CELL, dtype=np.uint64)
    # A small edge is filled up by the first of the row that has a cell or more left before it.
    before = lacking - (_CELL - units[small])
    first_of_row = np.searchsorted(large, begins)
    filling = np.maximum(np.searchsorted(spare, before), first_of_row[rows[small]])
    table[small, 0] = units[small]
    table[small, 1] = own[large[filling]] if large.size else 0
    # A large edge keeps what it has left at the small one that takes it below a cell, and the next
    # fills it up.
    last = np.searchsorted(lacking, spare, side="right")
    inside = last < small.size
    inside[inside] = rows[small[last[inside]]] == rows[large[inside]]
    table[large, 0] = 0
    table[large, 1] = own[large]
    partial = np.flatnonzero(inside)
    left = _CELL + spare[partial] - lacking[last[partial]]
    table[large[partial], 0] = left
    table[large[partial], 1] = own[large[partial + 1]]
    return table
