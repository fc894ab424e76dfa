"""The kernels on compressed balanced sparse rows, without derivatives: one function for each.

Arrays have a fixed rank. `vmap` of those that only walk rows is one call on more rows; of those
that walk a graph, one call after the other, as every example has its own positions.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, UInt

from jaxgnn import _csr, _ffi
from jaxgnn.ops._rows import REDUCE, Rows, one_by_one

_SCRATCH = 8  # 32-bit words that the CUDA kernel of spgemm keeps its bound and scale in


def index_dtype(width: int) -> Any:
    """The smallest that holds a column: uint8 up to 256 columns, else uint16."""
    return jnp.dtype(jnp.uint8 if width <= 256 else jnp.uint16)


def spgemm(
    rows: Rows,
    width: int,
    values: Float[Array, "columns k"],
    indices: UInt[Array, "columns k"],
    weights: Float[Array, " edges"] | None,
    reduce: str,
) -> Float[Array, "rows width"]:
    r"""$y_{r} = \mathrm{reduce}_e \, w_e S(v_{c(e)})$ over the edges of row $r$.

    `weights` are in the order of the rows and in the accumulation dtype, here and below.
    """

    def kernel(rows: Rows, values: Array, indices: Array, weights: Array | None) -> Array:
        accumulator = _ffi.accumulation_dtype(values.dtype)
        out, _, _ = _ffi.call(
            "jaxgnn_maxk_spmm",
            [*_structure(rows), values, indices, _optional(weights, accumulator)],
            [
                ((rows.num_rows, width), values.dtype),
                ((rows.splits.shape[0], width), accumulator),
                ((_SCRATCH,), jnp.uint32),
            ],
            reduce=REDUCE[reduce],
            split_length=_split_length(rows),
        )
        return out

    return _sequential(kernel)(rows, values, indices, weights)


def sspmm(
    rows: Rows,
    y: Float[Array, "columns width"],
    indices: UInt[Array, "rows k"],
    weights: Float[Array, " edges"] | None,
) -> Float[Array, "rows k"]:
    r"""$z_{rc} = \sum_e w_e \, y_{c(e), I_{rc}}$ over the edges of row $r$."""

    def kernel(rows: Rows, y: Array, indices: Array, weights: Array | None) -> Array:
        accumulator = _ffi.accumulation_dtype(y.dtype)
        k = indices.shape[1]
        out, _ = _ffi.call(
            "jaxgnn_maxk_sspmm",
            [*_structure(rows), y, indices, _optional(weights, accumulator)],
            [((rows.num_rows, k), y.dtype), ((rows.splits.shape[0], k), accumulator)],
            split_length=_split_length(rows),
        )
        return out

    return _sequential(kernel)(rows, y, indices, weights)


def cbsr_dot(
    rows: Rows,
    values: Float[Array, "columns k"],
    indices: UInt[Array, "columns k"],
    y: Float[Array, "rows width"],
) -> Float[Array, " edges"]:
    r"""$d_e = \sum_c v_{c(e), c} \, y_{r(e), I_{c(e), c}}$, in the order of the rows."""

    def kernel(rows: Rows, values: Array, indices: Array, y: Array) -> Array:
        assert rows.columns is not None
        (out,) = _ffi.call(
            "jaxgnn_maxk_sddmm",
            [*_structure(rows), values, indices, y],
            [((rows.columns.shape[0], 1), _ffi.accumulation_dtype(y.dtype))],
            split_length=_split_length(rows),
        )
        return out[:, 0]

    return _sequential(kernel)(rows, values, indices, y)


def select(
    k: int, x: Float[Array, "rows width"]
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """Values and positions of the `k` largest entries of each row."""

    def kernel(x: Array) -> tuple[Array, ...]:
        shape = (x.shape[0], k)
        results = [(shape, x.dtype), (shape, index_dtype(x.shape[1]))]
        return tuple(_ffi.call("jaxgnn_maxk", [x], results))

    return _by_rows(kernel)(x)


def scatter(
    width: int, values: Float[Array, "rows k"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows width"]:
    """The values at their positions in rows of zeros."""

    def kernel(values: Array, indices: Array) -> tuple[Array, ...]:
        results = [((values.shape[0], width), values.dtype)]
        return tuple(_ffi.call("jaxgnn_cbsr_scatter", [values, indices], results))

    return _by_rows(kernel)(values, indices)[0]


def _sequential(kernel: Any) -> Any:
    """Gives a kernel that walks a graph its `vmap` rule: one example after the other."""
    call = custom_vmap(kernel)
    call.def_vmap(lambda _, batched, *operands: (one_by_one(call, batched, operands), True))
    return call


def _by_rows(kernel: Any) -> Any:
    """Gives a kernel from rows to a tuple of rows its `vmap` rule: more rows."""
    call = custom_vmap(kernel)

    @call.def_vmap
    def rule(axis_size, batched, *operands):
        wide = []
        for operand, moves in zip(operands, batched, strict=True):
            if not moves:
                operand = jnp.broadcast_to(operand, (axis_size, *operand.shape))
            wide.append(operand.reshape(-1, operand.shape[-1]))
        outs = call(*wide)
        return tuple(out.reshape(axis_size, -1, out.shape[-1]) for out in outs), (True,) * len(outs)

    return call


def _structure(rows: Rows) -> list[Array]:
    assert rows.columns is not None
    return [rows.offsets, rows.columns, rows.splits]


def _optional(weights: Array | None, dtype: Any) -> Array:
    return jnp.zeros((0, 0), dtype) if weights is None else weights[:, None]


def _split_length(rows: Rows) -> int:
    assert rows.columns is not None
    return _csr.split_length(rows.columns.shape[0], rows.num_rows)
