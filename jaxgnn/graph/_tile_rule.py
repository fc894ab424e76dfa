"""Rows or tiles: what both take on a GPU, estimated from what is known when traced.

The rates are of one H200 and are to be calibrated: the docs' page on tiles says what they are from.
Another GPU scales both alike, so that the choice is the same there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxgnn.graph._tiles import ROWS, Tiles

_SECTOR_BYTES = 32  # what a read of L2 is made of
_SLICE_BYTES = 128  # of a row, which a thread block over tiles takes
_ROW_PS_A_BYTE = 57 / 512  # a sender's row from L2: 57 ps for 256 bfloat16, 114 for 256 float32
_ENTRY_PS_A_SLICE = {2: 153 / 4, 4: 390 / 8}  # by itemsize: an entry, read and multiplied
_SCRATCH_PS_A_BYTE = 1 / 4.8  # the tiles' float32 sums, written and read, at 4.8 TB/s
_LAUNCH_PS = 4e6  # one kernel more; assumed


class Estimate(NamedTuple):
    """What one call of `spmm` takes on an H200 by either engine; see `jaxgnn.tiles.estimate`.

    Attributes:
        rows: seconds by rows.
        tiles: seconds over tiles; infinite where they do not serve the dtype or have no entries.
    """

    rows: float
    tiles: float

    @property
    def engine(self) -> Literal["rows", "tiles"]:
        """The faster one, which `impl=None` takes on a GPU."""
        return "tiles" if self.tiles < self.rows else "rows"

    def calls_until_paid(self, seconds: float) -> int | None:
        """Calls after which making the tiles, which took `seconds`, has paid; `None`: never."""
        gain = self.rows - self.tiles
        return -int(-seconds // gain) if gain > 0 else None


def estimate(tiles: Tiles, width: int, dtype: DTypeLike) -> Estimate:
    """The estimate for one direction, of `width` features of a row in all, heads included."""
    itemsize = jnp.dtype(dtype).itemsize
    row = -(-width * itemsize // _SECTOR_BYTES) * _SECTOR_BYTES * _ROW_PS_A_BYTE
    rows = tiles.num_edges * row
    if tiles.num_entries == 0 or itemsize not in _ENTRY_PS_A_SLICE:
        return Estimate(rows * 1e-12, float("inf"))
    slices = -(-width * itemsize // _SLICE_BYTES)
    entries = tiles.num_entries * slices * _ENTRY_PS_A_SLICE[itemsize]
    scratch = 2 * tiles.parts.shape[0] * ROWS * width * 4 * _SCRATCH_PS_A_BYTE
    rest = tiles.rest_columns.shape[0] * row
    return Estimate(rows * 1e-12, (entries + scratch + rest + _LAUNCH_PS) * 1e-12)
