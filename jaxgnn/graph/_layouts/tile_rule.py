"""Rows or tiles: what both take on a GPU, estimated from what is known when traced.

The rates are fitted to one H200 by `benchmarks/experiments/tiles/rates.py`. Another GPU is taken to
scale both engines alike, so that the choice is the same there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxgnn.graph._layouts.tiles import ROWS, Tiles

Operation: TypeAlias = Literal["spmm", "weighted_spmm"]

_SLICE_BYTES = 128  # of a row, which a warp takes at once
# By rows that are not long (`kLongRow` of cuda/aggregation/gather.cuh) half of a slice or
# less is read by fewer lanes: what it takes of a slice's time.
_HALF_SLICE, _LONG_ROWS = 0.6, 256


class Rates(NamedTuple):
    """Picoseconds of the terms of an operation; by itemsize where there are two."""

    edge_slice: dict[int, float]  # a slice read for an edge, by rows or in the rest
    edge: float
    row_slice: float  # by rows
    rest_row_slice: float
    entry_slice: dict[int, float]  # staged or multiplied
    tile_edge_slice: dict[int, float]  # from a staged entry
    scratch_byte: float  # of the float32 sums of the slots, written and read
    launch: float  # of the tiles' kernels, beyond that of the rows


_NO_EDGES = {2: 0.0, 4: 0.0}
_SPMM = Rates({2: 14.8, 4: 12.8}, 1.5, 112, 670, {2: 29.2, 4: 38.6}, _NO_EDGES, 0.67, 4e6)
# In 16 bits, where an edge takes as long from shared memory as from L2, rows are always faster.
_WEIGHTED = _SPMM._replace(
    edge_slice={2: 13.0, 4: 13.3}, entry_slice={2: 17, 4: 17}, tile_edge_slice={2: 13.9, 4: 8.5}
)
_RATES: dict[Operation, Rates] = {"spmm": _SPMM, "weighted_spmm": _WEIGHTED}


def counts(
    tiles: Tiles, width: int, itemsize: int, operation: Operation
) -> tuple[dict[str, int], dict[str, int]]:
    """How many of each term of `Rates` an operation has by rows, and over tiles."""
    slices = -(-width * itemsize // _SLICE_BYTES)
    rest, rows = tiles.rest_columns.shape[0], tiles.rows.shape[0]
    half = 2 * width * itemsize <= _SLICE_BYTES and tiles.num_edges < _LONG_ROWS * rows
    by_rows = {
        "edge_slice": round(tiles.num_edges * (_HALF_SLICE if half else slices)),
        "edge": tiles.num_edges,
        "row_slice": rows * slices,
    }
    over_tiles = {
        "edge_slice": rest * slices,
        "edge": rest,
        "rest_row_slice": rows * slices,
        "entry_slice": tiles.num_entries * slices,
        "scratch_byte": 2 * tiles.parts.shape[0] * ROWS * width * 4,
        "launch": 1,
    }
    if operation == "weighted_spmm":
        over_tiles["tile_edge_slice"] = (tiles.num_edges - rest) * slices
    return by_rows, over_tiles


class Estimate(NamedTuple):
    """What one call of an operation takes on an H200 by either engine; see `jaxgnn.tiles.estimate`.

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


def estimate(tiles: Tiles, width: int, dtype: DTypeLike, operation: Operation = "spmm") -> Estimate:
    """The estimate for one direction, of `width` features of a row in all, heads included."""
    itemsize, rates = jnp.dtype(dtype).itemsize, _RATES[operation]._asdict()

    def seconds(terms: dict[str, int]) -> float:
        def rate(name: str) -> float:
            value = rates[name]
            return value[min(itemsize, 4)] if isinstance(value, dict) else value

        return sum(count * rate(name) for name, count in terms.items()) * 1e-12

    by_rows, over_tiles = counts(tiles, width, itemsize, operation)
    if tiles.num_entries == 0 or itemsize > 4:
        return Estimate(seconds(by_rows), float("inf"))
    return Estimate(seconds(by_rows), seconds(over_tiles))
