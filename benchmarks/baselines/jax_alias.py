"""Alias tables in plain JAX: draws by weight, with replacement, in constant time an edge.

The table of a row with d edges splits [0, d) into d cells of two edges each: number i, up to the
cell's threshold, and its alias. Walker (1977); built as by Vose, "A linear algorithm for generating
random numbers with a given distribution" (1991).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32


def tables(row_offsets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The threshold, of 2^32, and the alias in the row of each edge, `uint32[num_edges, 2]`.

    All rows at once: a step settles a cell of each row that has one left. `weights` are positive.
    """
    offsets = np.asarray(row_offsets).astype(np.int64)
    degrees = np.diff(offsets)
    rows = np.repeat(np.arange(degrees.size), degrees)
    sums = np.bincount(rows, weights, degrees.size)
    heights = weights * (degrees / np.where(sums > 0, sums, 1))[rows]
    # The low edges of each row, below the mean, before the high ones.
    high = heights >= 1
    order = np.argsort(2 * rows + high, kind="stable")
    own = order - offsets[rows]
    heights = heights[order]
    shares, aliases = np.ones(rows.size), own.copy()

    row = np.flatnonzero(degrees > 0)
    low, end = offsets[row], offsets[row + 1]
    first_high = low + np.bincount(rows, ~high, degrees.size).astype(np.int64)[row]
    filling, low_end = first_high.copy(), first_high
    # What is left of the high edge that fills the cells of low ones.
    left = np.where(filling < end, heights[np.minimum(filling, end - 1)], 1)
    while row.size:
        # Cells of low edges first; a high edge that fell below the mean is filled by the next.
        fill = (low < low_end) & (left >= 1) & (filling < end)
        step_on = ~fill & (filling + 1 < end)
        at = low[fill]
        shares[at], aliases[at] = heights[at], own[filling[fill]]
        left[fill] -= 1 - heights[at]
        at = filling[step_on]
        shares[at], aliases[at] = np.minimum(left[step_on], 1), own[at + 1]
        left[step_on] = heights[at + 1] - (1 - np.minimum(left[step_on], 1))
        low[fill] += 1
        filling[step_on] += 1
        # By rounding a row may have low edges left when nothing is left to fill them with.
        going = (fill | step_on) & ((low < low_end) | (filling + 1 < end))
        if not going.all():
            row, low, end, low_end, filling, left = (
                values[going] for values in (row, low, end, low_end, filling, left)
            )
    thresholds = np.clip(np.rint(shares * 2.0**32), 0, 2**32 - 1).astype(np.uint32)
    table = np.empty((rows.size, 2), np.uint32)
    table[order] = np.stack([thresholds, aliases.astype(np.uint32)], axis=1)
    return table


Rows = tuple[Int[Array, " nodes+1"], Int[Array, " edges"], UInt32[Array, "edges 2"]]
"""The offsets and the senders of the rows, and the tables."""


def draw_hop(
    rows: Rows, nodes: Int[Array, " places"], size: int, key: Array
) -> tuple[Int[Array, "places size"], Int[Array, "places size"]]:
    """The edges drawn for each place by weight and their senders; -1 is padding."""
    offsets, senders, table = rows
    begins = offsets[nodes]
    degrees = jnp.where(nodes < 0, 0, offsets[nodes + 1] - begins)[:, None]
    cells, words = jax.random.split(key)
    uniform = jax.random.uniform(cells, (nodes.shape[0], size))
    cell = jnp.clip((uniform * degrees).astype(jnp.int32), 0, jnp.maximum(degrees - 1, 0))
    threshold, alias = jnp.moveaxis(table[begins[:, None] + cell], -1, 0)
    itself = jax.random.bits(words, cell.shape, jnp.uint32) < threshold
    edges = begins[:, None] + jnp.where(itself, cell, alias.astype(jnp.int32))
    edges = jnp.where(degrees > 0, edges, -1)
    return edges, jnp.where(degrees > 0, senders[edges], -1)
