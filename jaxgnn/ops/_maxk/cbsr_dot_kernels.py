"""Dot products of sparse and dense rows on the edges, without derivatives; `vmap` as in
`spgemm_kernels.py`."""

from __future__ import annotations

from jaxtyping import Array, Float, UInt

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import sequential
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows
from jaxgnn.ops._core.sparse_rows import visible
from jaxgnn.ops._maxk import reference
from jaxgnn.ops._maxk.platforms import on_platforms


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
