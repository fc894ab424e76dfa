"""The products of a graph with compressed balanced sparse rows, without derivatives.

Arrays have a fixed rank. `vmap` is one call after the other, as every example has its own
positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import sequential
from jaxgnn.graph._windows import MAX_WIDTH, RECEIVERS, Windows
from jaxgnn.ops._aggregation import kernels as aggregation
from jaxgnn.ops._aggregation.kernels import REDUCE
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.row_call import optional, row_call
from jaxgnn.ops._core.rows import Rows, structure
from jaxgnn.ops._core.sparse_rows import on_cuda, visible
from jaxgnn.ops._maxk import choice, reference
from jaxgnn.ops._maxk.platforms import on_platforms
from jaxgnn.ops._maxk.selection_kernels import scattered

# 32-bit words of scratch in which CUDA kernels store the range of the values. The forward pass
# adds the largest value of each CBSR row, and a flag for each dense row or chunk of one.
_SCRATCH = 8
_PACKED_UP_TO = 16  # 16-bit values a row that are packed with their columns
_WEIGHTED_FIXED_FROM = 24  # values a row, below which weighted sums by rows are faster in float


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

    `weights` are in the order of the rows and in the accumulation dtype, here and below.
    `windows` are those of the rows. `packed` promises that float32 values have at most 15 bits of
    mantissa, 13 in rows wider than 256, so that one 32-bit word holds a value and its column.
    """

    def by_rows(rows: Rows, _: Any, values: Array, indices: Array, weights: Array | None) -> Array:
        accumulator = accumulation_dtype(values.dtype)
        fixed = config.maxk_accumulation == "auto"  # without scratch CUDA adds in float
        fixed = fixed and (weights is None or values.shape[1] >= _WEIGHTED_FIXED_FROM)
        flags = rows.chunks.table.shape[0] + rows.num_rows
        out, _, _ = row_call(
            "jaxgnn_maxk_spmm",
            rows,
            [values, indices, _optional(weights, accumulator)],
            [
                ((rows.num_rows, width), values.dtype),
                ((rows.chunks.table.shape[0], width), accumulator),
                ((_SCRATCH + values.shape[0] + flags if fixed else 0,), jnp.uint32),
            ],
            scheduled=False,
            reduce=REDUCE[reduce],
        )
        return out

    def by_windows(
        rows: Rows,
        windows: Windows,
        values: Array,
        indices: Array,
        weights: Array | None,
        absent: int,
    ) -> Array:
        num_cbsr_rows, k = values.shape
        indices = _of_windows(windows, indices)
        # One 32-bit word holds a 16-bit value and its column. Longer CBSR rows would move more
        # bytes this way.
        packs = packed if values.dtype == jnp.float32 else k <= _PACKED_UP_TO
        packs = packs and k % 4 == 0
        num_packed = num_cbsr_rows * k if packs else 0
        structures = [*structure(rows)[:2], *_window_operands(windows)]
        scratch = _SCRATCH + num_packed + num_cbsr_rows + rows.num_rows
        partials = ((windows.num_partials, windows.rows.shape[1], width), jnp.float32)
        result = ((rows.num_rows, width), values.dtype)
        attributes = {"packed": int(packs), "reduce": REDUCE[reduce]}
        if weights is None:
            out, _, _ = ffi.call(
                "jaxgnn_maxk_spmm_windows",
                [*structures, values, indices],
                [result, partials, ((scratch,), jnp.uint32)],
                **attributes,
            )
            return out
        # Sums of several passes are added in float32.
        num_sums = 0 if values.dtype == jnp.float32 else rows.num_rows
        out, _, _, _ = ffi.call(
            "jaxgnn_maxk_spmm_windows_weighted",
            [*structures, *_by_slot(windows, weights), values, indices, weights[:, None]],
            [
                result,
                partials,
                ((scratch + rows.num_rows,), jnp.uint32),
                ((num_sums, width), jnp.float32),
            ],
            padding=absent,
            **attributes,
        )
        return out

    def pad_rows(
        rows: Rows, windows: Windows | None, values: Array, indices: Array, weights: Array | None
    ) -> Array:
        more = _pad_width(width, indices)
        values = padding.pad_by(values, more)
        indices = _pad_indices(width, indices)
        if windows is None:
            return by_rows(rows, None, values, indices, None)
        return by_windows(rows, windows, values, indices, weights, more)

    def dense(rows: Rows, _: Any, values: Array, indices: Array, weights: Array | None) -> Array:
        x = scattered(width, values, indices)[:, None, :]
        weights = None if weights is None else weights[:, None]
        return aggregation.reduce_rows(rows, x, weights, reduce)[:, 0, :]

    values, indices = visible(width, values, indices)
    if not _use_windows(windows, width, values.dtype, indices, weights):
        windows = None
    engine = _engine("spgemm", rows.num_rows, width, values.dtype, rows, windows, indices, weights)
    if engine != "windows":
        windows = None
    kernel = by_rows
    # Sums in floating point, those of weighted entries by rows too, load an entry at a time.
    by_vectors = windows is not None or (weights is None and _pad_width(width, indices) > 0)
    if engine == "dense":
        kernel = on_cuda(dense, otherwise=by_rows)
    elif config.maxk_accumulation == "auto" and by_vectors:
        kernel = on_cuda(pad_rows, otherwise=by_rows)

    def otherwise(
        rows: Rows, _: Any, values: Array, indices: Array, weights: Array | None
    ) -> Array:
        return reference.spgemm(rows, width, values, indices, weights, reduce)

    choose = on_platforms("jaxgnn_maxk_spmm", kernel, otherwise, values.dtype)
    return sequential(choose)(rows, windows, values, indices, weights)


def sspmm(
    rows: Rows,
    dense_rows: Rows,
    windows: Windows | None,
    y: Float[Array, "columns width"],
    indices: UInt[Array, "rows k"],
    weights: Float[Array, " edges"] | None,
    dense_weights: Float[Array, " edges"] | None,
) -> Float[Array, "rows k"]:
    r"""$z_{rc} = \sum_e w_e \, y_{c(e), I_{rc}}$ over the edges of row $r$.

    `dense_rows` are the same edges by the rows of `y`, `dense_weights` the weights in their
    order, and `windows` theirs: a GPU that need not be deterministic scatters from there.
    """
    k, width = indices.shape[1], y.shape[1]
    given = indices
    _, indices = visible(width, None, given)

    def gathered(operands: _Sspmm) -> Array:
        accumulator = accumulation_dtype(operands.y.dtype)
        rows = operands.rows
        out, _ = row_call(
            "jaxgnn_maxk_sspmm",
            rows,
            [operands.y, operands.indices, _optional(operands.weights, accumulator)],
            [
                ((rows.num_rows, k), operands.y.dtype),
                ((rows.chunks.table.shape[0], k), accumulator),
            ],
            scheduled=False,
        )
        return out

    def scattered(operands: _Sspmm) -> Array:
        rows = operands.dense_rows
        weights = _optional(operands.dense_weights, jnp.dtype(jnp.float32))
        out, _ = row_call(
            "jaxgnn_maxk_sspmm_scatter",
            rows,
            [operands.y, operands.indices, weights],
            _results(operands),
            scheduled=False,
        )
        return out

    def by_windows(operands: _Sspmm) -> Array:
        assert operands.windows is not None
        windows = _window_operands(operands.windows)
        indices = _of_windows(operands.windows, operands.indices)
        if config.deterministic:
            rows, columns, _ = structure(operands.rows)
            out, _, _ = ffi.call(
                "jaxgnn_maxk_sspmm_windows_exact",
                [rows, columns, *windows, operands.y, indices],
                [
                    (indices.shape, operands.y.dtype),
                    ((*indices.shape, 2), jnp.uint32),  # 64-bit integers
                    ((_SCRATCH,), jnp.uint32),
                ],
            )
            return out
        if operands.dense_weights is not None:
            slots = _by_slot(operands.windows, operands.dense_weights)
            out, _ = ffi.call(
                "jaxgnn_maxk_sspmm_windows_weighted",
                [*windows, *slots, operands.y, indices],
                _results(operands),
            )
            return out
        out, _ = ffi.call(
            "jaxgnn_maxk_sspmm_windows",
            [*windows, operands.y, indices],
            _results(operands),
        )
        return out

    def pad_rows(kernel: Callable[[_Sspmm], Array]) -> Callable[[_Sspmm], Array]:
        def run(operands: _Sspmm) -> Array:
            indices = _pad_indices(width, operands.indices)
            return kernel(operands._replace(indices=indices))[:, :k]

        return run

    def otherwise(operands: _Sspmm) -> Array:
        return reference.sspmm(operands.rows, operands.y, operands.indices, operands.weights)

    kernel = gathered
    # Deterministic sums of many entries are 64-bit, so that gathering 16-bit rows is faster; and
    # they have one bound for all terms, which weights do not.
    wide = config.deterministic and (
        weights is not None or (y.dtype != jnp.float32 and k >= choice.SCATTER_BELOW)
    )
    if wide or not _use_windows(windows, width, y.dtype, indices, weights):
        windows = None
    engine = _engine("sspmm", y.shape[0], width, y.dtype, rows, windows, indices, weights)
    if engine == "windows":
        kernel = on_cuda(pad_rows(by_windows), otherwise=gathered)
    elif engine == "dense":
        kernel = on_cuda(otherwise, otherwise=gathered)
    elif not config.deterministic and y.dtype == jnp.float32 and k < choice.SCATTER_BELOW:
        kernel = on_cuda(pad_rows(scattered), otherwise=gathered)

    choose = on_platforms("jaxgnn_maxk_sspmm", kernel, otherwise, y.dtype)
    operands = _Sspmm(rows, dense_rows, windows, y, indices, weights, dense_weights)
    out, _ = visible(width, sequential(choose)(operands), given)
    return out


class _Sspmm(NamedTuple):
    """The operands of `sspmm`."""

    rows: Rows
    dense_rows: Rows
    windows: Windows | None
    y: Array
    indices: Array
    weights: Array | None
    dense_weights: Array | None


def _pad_width(width: int, indices: Array) -> int:
    """The padding of a CBSR row to a multiple of four entries; 0 where too few columns are left."""
    k = indices.shape[1]
    more = -k % 4
    return more if k + more <= width else 0


def _pad_indices(width: int, indices: UInt[Array, "rows k"]) -> UInt[Array, "rows padded"]:
    """CBSR rows padded to a multiple of four entries, one vector for each lane of a GPU.

    The padding consists of columns that the row does not have, so that no two lanes add to one
    address. It differs between consecutive rows, which avoids contention.
    """
    more = _pad_width(width, indices)
    if not more:
        return indices
    rows, k = indices.shape
    first = jnp.arange(rows, dtype=jnp.int32)[:, None]
    ranks = (first + jnp.arange(more, dtype=jnp.int32)[None, :]) % (width - k)
    # Columns ascend: a column minus its position is the number of absent columns below it.
    absent_below = indices.astype(jnp.int32) - jnp.arange(k, dtype=jnp.int32)[None, :]
    absent = ranks + jnp.sum(absent_below[:, :, None] <= ranks[:, None, :], axis=1, dtype=jnp.int32)
    return jnp.concatenate([indices, absent.astype(indices.dtype)], axis=1)


def _results(operands: _Sspmm) -> list[tuple[tuple[int, ...], Any]]:
    """The result of a scattering kernel, and the float32 sums of another type's."""
    dtype, shape = operands.y.dtype, operands.indices.shape
    return [(shape, dtype), (shape if dtype != jnp.float32 else (0, shape[1]), jnp.float32)]


def _use_windows(
    windows: Windows | None, width: int, dtype: Any, indices: Array, weights: Array | None
) -> bool:
    """Whether the window kernels take these operands: rows that fit in shared memory, entries with
    32-bit indices, and weights if the windows list the edges."""
    rows, k = indices.shape
    fits = width % 4 == 0 and jnp.dtype(dtype) != jnp.float64
    fits = fits and rows * (k + _pad_width(width, indices)) < 2**32
    if windows is None or (weights is not None and windows.edges is None):
        return False
    if fits and width > windows.width and jax.default_backend() == "gpu":
        advice = f"see Graph.with_windows(width={width})"
        warnings.warn(
            f"maxk_spmm: the graph's windows serve rows of up to {windows.width} columns, "
            f"got {width}, which are aggregated as without windows"
            + (f"; {advice}" if width <= MAX_WIDTH else ""),
            stacklevel=2,
        )
    return fits and width <= windows.width


def _of_windows(windows: Windows, indices: UInt[Array, "rows k"]) -> UInt[Array, "rows k"]:
    """The columns as the kernels over these windows read them: 8 bits with 64 receivers, else
    16."""
    return indices if windows.receivers == RECEIVERS else indices.astype(jnp.uint16)


def _engine(
    operation: choice.Operation,
    num_dense: int,
    width: int,
    dtype: Any,
    rows: Rows,
    windows: Windows | None,
    indices: Array,
    weights: Array | None,
) -> choice.Engine:
    """The engine that CUDA takes, one that has what it needs; `rows` are those of the call."""
    setting = config.maxk_engine
    if setting == "windows" and windows is None:
        return "rows"
    if setting != "auto":
        return setting
    if operation == "spgemm" and config.maxk_accumulation != "auto":
        return "rows"
    columns = rows.columns
    case = choice.Case(
        num_edges=0 if columns is None else columns.shape[0],
        num_dense=num_dense,
        num_sparse=indices.shape[0],
        width=width,
        k=indices.shape[1],
        itemsize=jnp.dtype(dtype).itemsize,
        num_entries=0 if windows is None else windows.senders.shape[0],
        num_parts=0 if windows is None else windows.parts.shape[0],
        weighted=weights is not None,
        deterministic=config.deterministic,
    )
    return choice.choose(case, operation)


def _window_operands(windows: Windows) -> list[Array]:
    return [windows.rows, windows.parts, windows.senders, windows.masks]


def _by_slot(windows: Windows, weights: Float[Array, " edges"]) -> list[Array]:
    """Where a window's entries have their weights, and the weights there."""
    assert windows.slots is not None and windows.edges is not None
    by_slot = weights.at[windows.edges].get(mode="promise_in_bounds", unique_indices=True)
    return [windows.slots, by_slot]


def cbsr_dot(
    rows: Rows,
    values: Float[Array, "columns k"],
    indices: UInt[Array, "columns k"],
    y: Float[Array, "rows width"],
) -> Float[Array, " edges"]:
    r"""$d_e = \sum_c v_{c(e), c} \, y_{r(e), I_{c(e), c}}$, in the order of the rows."""

    def kernel(rows: Rows, values: Array, indices: Array, y: Array) -> Array:
        assert rows.columns is not None
        (out,) = row_call(
            "jaxgnn_maxk_sddmm",
            rows,
            [values, indices, y],
            [((rows.columns.shape[0], 1), accumulation_dtype(y.dtype))],
            scheduled=False,
        )
        return out[:, 0]

    values, indices = visible(y.shape[1], values, indices)
    choose = on_platforms("jaxgnn_maxk_sddmm", kernel, reference.cbsr_dot, y.dtype)
    return sequential(choose)(rows, values, indices, y)


def _optional(weights: Array | None, dtype: Any) -> Array:
    return optional(None if weights is None else weights[:, None], dtype)
