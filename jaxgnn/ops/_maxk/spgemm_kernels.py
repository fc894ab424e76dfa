"""The product of a graph with compressed balanced sparse rows, without derivatives.

Arrays have a fixed rank. `vmap` is one call after the other, as every example has its own
positions.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import sequential
from jaxgnn.graph._layouts.windows import Windows
from jaxgnn.ops._aggregation import kernels as aggregation
from jaxgnn.ops._aggregation.kernels import REDUCE
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, structure
from jaxgnn.ops._core.sparse_rows import on_cuda, visible
from jaxgnn.ops._maxk import reference
from jaxgnn.ops._maxk.platforms import on_platforms
from jaxgnn.ops._maxk.product_operands import (
    SCRATCH,
    choose_engine,
    optional_weights,
    pad_indices,
    pad_width,
    use_windows,
    weights_by_slot,
    window_indices,
    window_operands,
)
from jaxgnn.ops._maxk.selection_kernels import scattered

_PACKED_UP_TO = 16  # 16-bit values a row that are packed with their columns
_WEIGHTED_FIXED_FROM = 24  # values a row, below which weighted sums by rows are faster in float


class _Product(NamedTuple):
    """What is static: columns of the result, the reduction, and the promise of few bits."""

    width: int
    reduce: str
    packed: bool


class _Operands(NamedTuple):
    """The operands of `spgemm`."""

    rows: Rows
    windows: Windows | None
    values: Array
    indices: Array
    weights: Array | None


def spgemm(
    rows: Rows,
    windows: Windows | None,
    width: int,
    values: Float[Array, "columns k"],
    indices: UInt[Array, "columns k"],
    weights: Float[Array, " edges"] | None,
    reduce: str,
    packed: bool,
) -> Float[Array, "rows width"]:
    r"""$y_{r} = \mathrm{reduce}_e \, w_e S(v_{c(e)})$ over the edges of row $r$.

    `weights` are in the order of the rows and in the accumulation dtype. `windows` are those of the
    rows. `packed` promises that float32 values have at most 15 bits of mantissa, 13 in rows wider
    than 256, so that one 32-bit word holds a value and its column.
    """
    values, indices = visible(width, values, indices)
    if not use_windows(windows, width, values.dtype, indices, weights):
        windows = None
    engine = choose_engine(
        "spgemm", rows.num_rows, width, values.dtype, rows, windows, indices, weights
    )
    if engine != "windows":
        windows = None
    static = _Product(width, reduce, packed)
    by_rows = functools.partial(_by_rows, static)
    kernel = by_rows
    # Sums in floating point, those of weighted entries by rows too, load an entry at a time.
    by_vectors = windows is not None or (weights is None and pad_width(width, indices) > 0)
    if engine == "dense":
        kernel = on_cuda(functools.partial(_dense, static), otherwise=by_rows)
    elif config.maxk_accumulation == "auto" and by_vectors:
        kernel = on_cuda(functools.partial(_by_vectors, static), otherwise=by_rows)
    otherwise = functools.partial(_reference, static)
    choose = on_platforms("jaxgnn_maxk_spmm", kernel, otherwise, values.dtype)
    return sequential(choose)(_Operands(rows, windows, values, indices, weights))


def _by_rows(static: _Product, operands: _Operands) -> Array:
    """A row at a time; a GPU adds in fixed point where it gets scratch for the bound."""
    rows, _, values, indices, weights = operands
    accumulator = accumulation_dtype(values.dtype)
    fixed = config.maxk_accumulation == "auto"  # without scratch CUDA adds in float
    fixed = fixed and (weights is None or values.shape[1] >= _WEIGHTED_FIXED_FROM)
    flags = rows.chunks.table.shape[0] + rows.num_rows
    out, _, _ = row_call(
        "jaxgnn_maxk_spmm",
        rows,
        [values, indices, optional_weights(weights, accumulator)],
        [
            ((rows.num_rows, static.width), values.dtype),
            ((rows.chunks.table.shape[0], static.width), accumulator),
            ((SCRATCH + values.shape[0] + flags if fixed else 0,), jnp.uint32),
        ],
        scheduled=False,
        reduce=REDUCE[static.reduce],
    )
    return out


def _by_vectors(static: _Product, operands: _Operands) -> Array:
    """Over windows or by rows, of CBSR rows padded to a GPU's vector width."""
    more = pad_width(static.width, operands.indices)
    operands = operands._replace(
        values=padding.pad_by(operands.values, more),
        indices=pad_indices(static.width, operands.indices),
    )
    if operands.windows is None:
        return _by_rows(static, operands)
    if operands.weights is None:
        return _by_windows(static, operands, operands.windows)
    return _by_weighted_windows(static, operands, operands.windows, operands.weights, more)


def _by_windows(static: _Product, operands: _Operands, windows: Windows) -> Array:
    out, _, _ = ffi.call(
        "jaxgnn_maxk_spmm_windows",
        [
            *structure(operands.rows)[:2],
            *window_operands(windows),
            operands.values,
            window_indices(windows, operands.indices),
        ],
        [*_window_results(static, operands, windows), ((_scratch(static, operands),), jnp.uint32)],
        packed=int(_packs(static, operands.values)),
        reduce=REDUCE[static.reduce],
    )
    return out


def _by_weighted_windows(
    static: _Product, operands: _Operands, windows: Windows, weights: Array, absent: int
) -> Array:
    """`absent` entries of each CBSR row are padding."""
    num_rows, dtype = operands.rows.num_rows, operands.values.dtype
    out, _, _, _ = ffi.call(
        "jaxgnn_maxk_spmm_windows_weighted",
        [
            *structure(operands.rows)[:2],
            *window_operands(windows),
            *weights_by_slot(windows, weights),
            operands.values,
            window_indices(windows, operands.indices),
            weights[:, None],
        ],
        [
            *_window_results(static, operands, windows),
            ((_scratch(static, operands),), jnp.uint32),
            # Sums of several passes are added in float32.
            ((0 if dtype == jnp.float32 else num_rows, static.width), jnp.float32),
        ],
        padding=absent,
        packed=int(_packs(static, operands.values)),
        reduce=REDUCE[static.reduce],
    )
    return out


def _window_results(
    static: _Product, operands: _Operands, windows: Windows
) -> list[tuple[tuple[int, ...], Any]]:
    """The product, and the sums of windows' parts."""
    return [
        ((operands.rows.num_rows, static.width), operands.values.dtype),
        ((windows.num_partials, windows.rows.shape[1], static.width), jnp.float32),
    ]


def _packs(static: _Product, values: Array) -> bool:
    """Whether one 32-bit word holds a value and its column. Longer CBSR rows of 16-bit values would
    move more bytes this way."""
    k = values.shape[1]
    few = static.packed if values.dtype == jnp.float32 else k <= _PACKED_UP_TO
    return few and k % 4 == 0


def _scratch(static: _Product, operands: _Operands) -> int:
    num_cbsr_rows, k = operands.values.shape
    num_rows = operands.rows.num_rows
    num_packed = num_cbsr_rows * k if _packs(static, operands.values) else 0
    # For each row a flag and a bound, or the sum of its weights; without weights a byte for each
    # CBSR row.
    codes = 0 if operands.weights is not None else -(-num_cbsr_rows // 4)
    return SCRATCH + num_packed + num_cbsr_rows + 2 * num_rows + codes


def _dense(static: _Product, operands: _Operands) -> Array:
    x = scattered(static.width, operands.values, operands.indices)[:, None, :]
    weights = None if operands.weights is None else operands.weights[:, None]
    return aggregation.reduce_rows(operands.rows, x, weights, static.reduce)[:, 0, :]


def _reference(static: _Product, operands: _Operands) -> Array:
    rows, _, values, indices, weights = operands
    return reference.spgemm(rows, static.width, values, indices, weights, static.reduce)
