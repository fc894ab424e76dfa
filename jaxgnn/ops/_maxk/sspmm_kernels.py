"""The gradient of a product with compressed balanced sparse rows at their positions, without
derivatives of its own; `vmap` as in `spgemm_kernels.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import sequential
from jaxgnn.graph._layouts.windows import Windows
from jaxgnn.ops._core.degree import divide_rows, widened
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, structure
from jaxgnn.ops._core.sparse_rows import on_cuda, visible
from jaxgnn.ops._maxk import choice, reference
from jaxgnn.ops._maxk.platforms import on_platforms
from jaxgnn.ops._maxk.product_operands import (
    SCRATCH,
    choose_engine,
    optional_weights,
    pad_indices,
    use_windows,
    weights_by_slot,
    window_indices,
    window_operands,
)


class _Operands(NamedTuple):
    """The operands of `sspmm`."""

    rows: Rows
    dense_rows: Rows
    windows: Windows | None
    y: Array
    indices: Array
    weights: Array | None
    dense_weights: Array | None


def sspmm(
    rows: Rows,
    dense_rows: Rows,
    windows: Windows | None,
    y: Float[Array, "columns width"],
    indices: UInt[Array, "rows k"],
    weights: Float[Array, " edges"] | None,
    dense_weights: Float[Array, " edges"] | None,
    reduce: Literal["sum", "mean"],
) -> Float[Array, "rows k"]:
    r"""$z_{rc} = \sum_e w_e \, y_{c(e), I_{rc}}$ over the edges of row $r$; of a mean, of $y$
    divided by its degrees.

    `dense_rows` are the same edges by the rows of `y`, `dense_weights` the weights in their
    order, and `windows` theirs: a GPU that need not be deterministic scatters from there. Weights
    are in the accumulation dtype.
    """
    k, width = indices.shape[1], y.shape[1]
    given = indices
    _, indices = visible(width, None, given)
    mean = reduce == "mean"

    def of(kernel: Callable[[_Operands], Array]) -> Callable[[_Operands], Array]:
        return functools.partial(_divided, kernel) if mean else kernel

    gathered, kernel = of(_gathered), of(_gathered)
    # Deterministic sums of many entries are 64-bit, so that gathering 16-bit rows is faster; and
    # they have one bound for all terms, which weights do not.
    wide = config.deterministic and (
        weights is not None or (y.dtype != jnp.float32 and k >= choice.SCATTER_BELOW)
    )
    if wide or not use_windows(windows, width, y.dtype, indices, weights):
        windows = None
    engine = choose_engine("sspmm", y.shape[0], width, y.dtype, rows, windows, indices, weights)
    if engine == "windows":
        if config.deterministic:
            by_windows = of(_by_windows_exactly)
        elif y.dtype == jnp.float16:  # a divided cotangent may be 0: see `widened`
            by_windows = of(functools.partial(_by_windows, False))
        else:
            by_windows = functools.partial(_by_windows, mean)
        kernel = on_cuda(functools.partial(_padded, by_windows), otherwise=gathered)
    elif engine == "dense":
        kernel = on_cuda(of(_reference), otherwise=gathered)
    elif not config.deterministic and y.dtype == jnp.float32 and k < choice.SCATTER_BELOW:
        kernel = on_cuda(functools.partial(_padded, of(_scattered)), otherwise=gathered)

    choose = on_platforms("jaxgnn_maxk_sspmm", kernel, of(_reference), y.dtype)
    operands = _Operands(rows, dense_rows, windows, y, indices, weights, dense_weights)
    out, _ = visible(width, sequential(choose)(operands), given)
    return out


def _padded(kernel: Callable[[_Operands], Array], operands: _Operands) -> Array:
    """The kernel on CBSR rows padded to a GPU's vector width."""
    indices = pad_indices(operands.y.shape[1], operands.indices)
    return kernel(operands._replace(indices=indices))[:, : operands.indices.shape[1]]


def _divided(kernel: Callable[[_Operands], Array], operands: _Operands) -> Array:
    """The kernel on $y$ divided by its degrees."""
    degrees, y = jnp.diff(operands.dense_rows.offsets), operands.y
    return kernel(operands._replace(y=divide_rows(degrees, widened(y)))).astype(y.dtype)


def _gathered(operands: _Operands) -> Array:
    """Over the sparse rows: one writer a row."""
    rows, k = operands.rows, operands.indices.shape[1]
    accumulator = accumulation_dtype(operands.y.dtype)
    out, _ = row_call(
        "jaxgnn_maxk_sspmm",
        rows,
        [operands.y, operands.indices, optional_weights(operands.weights, accumulator)],
        [
            ((rows.num_rows, k), operands.y.dtype),
            ((rows.chunks.table.shape[0], k), accumulator),
        ],
        scheduled=False,
    )
    return out


def _scattered(operands: _Operands) -> Array:
    """Over the dense rows, reduced into the sparse ones in any order."""
    weights = optional_weights(operands.dense_weights, jnp.dtype(jnp.float32))
    out, _ = row_call(
        "jaxgnn_maxk_sspmm_scatter",
        operands.dense_rows,
        [operands.y, operands.indices, weights],
        _results(operands),
        scheduled=False,
    )
    return out


def _by_windows_exactly(operands: _Operands) -> Array:
    """In 64-bit fixed point: the same bits in every run."""
    assert operands.windows is not None
    indices = window_indices(operands.windows, operands.indices)
    rows, columns, _ = structure(operands.rows)
    out, _, _ = ffi.call(
        "jaxgnn_maxk_sspmm_windows_exact",
        [rows, columns, *window_operands(operands.windows), operands.y, indices],
        [
            (indices.shape, operands.y.dtype),
            ((*indices.shape, 2), jnp.uint32),  # 64-bit integers
            ((SCRATCH,), jnp.uint32),
        ],
    )
    return out


def _by_windows(mean: bool, operands: _Operands) -> Array:
    """In float, in any order; of a mean, the kernel divides what it reads of $y$."""
    windows, target, slots = operands.windows, "jaxgnn_maxk_sspmm_windows", ()
    assert windows is not None
    if operands.dense_weights is not None:
        target = f"{target}_weighted"
        slots = weights_by_slot(windows, operands.dense_weights)
    indices = window_indices(windows, operands.indices)
    offsets = operands.dense_rows.offsets
    out, _ = ffi.call(
        target,
        [offsets if mean else offsets[:0], *window_operands(windows), *slots, operands.y, indices],
        _results(operands),
    )
    return out


def _results(operands: _Operands) -> list[tuple[tuple[int, ...], Any]]:
    """The result of a scattering kernel, and the float32 sums of another type's."""
    dtype, shape = operands.y.dtype, operands.indices.shape
    return [(shape, dtype), (shape if dtype != jnp.float32 else (0, shape[1]), jnp.float32)]


def _reference(operands: _Operands) -> Array:
    return reference.sspmm(operands.rows, operands.y, operands.indices, operands.weights)
