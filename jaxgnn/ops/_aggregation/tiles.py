"""Sums over tiles, on a GPU: the columns that a window's rows share are read once.

Where a GPU has no kernel for it, and on a CPU, they run by rows; unless `always`, also where that
is faster by estimate.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import foldable
from jaxgnn.graph._layouts.tile_rule import Operation, estimate
from jaxgnn.graph._layouts.tiles import ROWS, Tiles
from jaxgnn.ops._aggregation import kernels
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.rows import Rows, tiled_structure

_MASKED = "jaxgnn_tiles_spmm"  # on tensor cores
_WEIGHTED = "jaxgnn_tiles_weighted_spmm"
_VECTOR_BYTES = 16
_MOST_SLICES = 65_535  # of a grid's second axis: 128 bytes of a row each


def serves(tiles: Tiles | None, x: Float[Array, "columns heads width"]) -> bool:
    """Whether the kernels take these features: tiles have entries, and 16 or 32 bits."""
    return tiles is not None and tiles.num_batches > 0 and x.dtype.itemsize <= 4


def reduce_rows(
    rows: Rows,
    tiles: Tiles,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
    *,
    precision: Literal["tensorfloat32"] | None,
    always: bool,
) -> Float[Array, "rows heads width"]:
    r"""$y_{ihd} = \mathrm{reduce}_e \, w_{eh} x_{c(e)hd}$, a sum or a mean, where `serves` holds.

    Without weights tensor cores multiply the tiles' masks, and a float32 is a sum of three
    bfloat16, or of two with `precision`. `weights` are in the order of the rows and in the
    accumulation dtype.
    """

    def by_rows(operands: Any, x: Array, weights: Array | None) -> Array:
        return kernels.reduce_rows(operands[0], x, weights, reduce)

    def by_tiles(operands: Any, x: Array, weights: Array | None) -> Array:
        rows, tiles = operands
        width = x.shape[2]
        if weights is None:
            padded = _padded(x.reshape(x.shape[0], -1))
            target, attributes = _MASKED, {"tensorfloat32": int(precision == "tensorfloat32")}
        else:
            padded = _padded(x).reshape(x.shape[0], -1)
            target, attributes = _WEIGHTED, {}
        results = [
            ((rows.num_rows, padded.shape[1]), x.dtype),
            ((tiles.parts.shape[0], ROWS, padded.shape[1]), jnp.float32),
            ((tiles.rest_chunks.table.shape[0], padded.shape[1]), jnp.float32),
        ]
        out, _, _ = ffi.call(
            target,
            [
                *tiled_structure(rows, tiles, weighted=weights is not None),
                padded,
                *([] if weights is None else [weights]),
            ],
            results,
            reduce=kernels.REDUCE[reduce],
            chunk_length=tiles.rest_chunks.length,
            **attributes,
        )
        if weights is None:
            return out[:, : x.shape[1] * width].reshape(rows.num_rows, *x.shape[1:])
        return out.reshape(rows.num_rows, x.shape[1], -1)[..., :width]

    def choose(operands: Any, features: list[Array], edges: list[Array]) -> Array:
        (x,) = features
        weights = edges[0] if edges else None
        operation = "spmm" if weights is None else "weighted_spmm"
        if not _takes(operands[1], x, operation, always=always):
            return by_rows(operands, x, weights)
        target = _MASKED if weights is None else _WEIGHTED
        return dispatch((target,), by_tiles, by_rows, operands, x, weights, platforms=("cuda",))

    return foldable(choose)((rows, tiles), [x], [] if weights is None else [weights])


def _takes(
    tiles: Tiles, x: Float[Array, "columns heads width"], operation: Operation, *, always: bool
) -> bool:
    """Whether a GPU runs over tiles."""
    _, heads, width = x.shape
    padded = width + -width % (_VECTOR_BYTES // x.dtype.itemsize)
    bytes_of_row = heads * padded * x.dtype.itemsize + _VECTOR_BYTES
    if bytes_of_row > _MOST_SLICES * 128:
        return False
    return always or estimate(tiles, math.prod(x.shape[1:]), x.dtype, operation).engine == "tiles"


def _padded(x: Array) -> Array:
    """The last axis of whole 16 bytes: it was padded for the default platform, if at all."""
    return padding.pad_by(x, -x.shape[-1] % (_VECTOR_BYTES // x.dtype.itemsize))
