"""Sums over tiles, on a GPU: the columns that a window's rows share are read once."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import foldable
from jaxgnn.graph._tile_rule import estimate
from jaxgnn.graph._tiles import ROWS, Tiles
from jaxgnn.ops._aggregation import kernels
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.rows import Rows, or_empty

_TARGET = "jaxgnn_tiles_spmm"
_VECTOR_BYTES = 16
_MOST_ROW_BYTES = 65_535 * 128  # a grid has as many slices of a row


def serves(tiles: Tiles | None, x: Float[Array, "columns heads width"]) -> bool:
    """Whether the kernel takes these features: tiles have entries, and 16 or 32 bits."""
    return tiles is not None and tiles.num_batches > 0 and x.dtype.itemsize <= 4


def reduce_rows(
    rows: Rows,
    tiles: Tiles,
    x: Float[Array, "columns heads width"],
    reduce: str,
    *,
    always: bool,
) -> Float[Array, "rows heads width"]:
    r"""$y_{ihd} = \mathrm{reduce}_e \, x_{c(e)hd}$, a sum or a mean, where `serves` holds.

    A mask has a bit for each edge, so there are no weights. Where a GPU has no kernel for it, and
    on a CPU, it runs by rows; unless `always`, also where they are faster by estimate.
    """

    def by_rows(operands: Any, x: Array) -> Array:
        return kernels.reduce_rows(operands[0], x, None, reduce)

    def by_tiles(operands: Any, x: Array) -> Array:
        rows, tiles = operands
        features = x.reshape(x.shape[0], -1)
        width = features.shape[1]
        # Features were padded for the default platform, which may be another.
        features = padding.pad_by(features, -width % (_VECTOR_BYTES // x.dtype.itemsize))
        padded = features.shape[1]
        chunks = tiles.rest_chunks
        out, _, _ = ffi.call(
            _TARGET,
            [
                rows.offsets,
                rows.columns,
                tiles.rows,
                tiles.columns,
                tiles.masks,
                tiles.parts,
                tiles.slot_offsets,
                tiles.rest_offsets,
                or_empty(tiles.rest_columns),
                chunks.table,
                features,
            ],
            [
                ((rows.num_rows, padded), x.dtype),
                ((tiles.parts.shape[0], ROWS, padded), jnp.float32),
                ((chunks.table.shape[0], padded), jnp.float32),
            ],
            reduce=kernels.REDUCE[reduce],
            split_length=chunks.length,
        )
        return out[:, :width].reshape(rows.num_rows, *x.shape[1:])

    def choose(operands: Any, features: list[Array], _: list[Array]) -> Array:
        (x,) = features
        width = math.prod(x.shape[1:])
        if width * x.dtype.itemsize > _MOST_ROW_BYTES - _VECTOR_BYTES:
            return by_rows(operands, x)
        if not always and estimate(tiles, width, x.dtype).engine == "rows":
            return by_rows(operands, x)
        return dispatch((_TARGET,), by_tiles, by_rows, operands, x, platforms=("cuda",))

    return foldable(choose)((rows, tiles), [x], [])
