"""Aggregation's kernels, without derivatives: sums, extrema and dot products over rows.

`vmap` is one call on a wider array. Platforms without a kernel run the reference.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import foldable
from jaxgnn.graph._build.row_chunks import no_chunks
from jaxgnn.ops._aggregation import reference
from jaxgnn.ops._core.row_call import optional, row_call
from jaxgnn.ops._core.rows import Rows

REDUCE = {"sum": 0, "mean": 1, "max": 2, "min": 3}


def reduce_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
    *,
    narrow_slices: bool = False,
    row_limit: int | None = None,
) -> Float[Array, "rows heads width"]:
    r"""$y_{ihd} = \mathrm{reduce}_e \, w_{eh} x_{c(e)hd}$ over the edges of row $i$.

    `weights` are in the order of the rows and in the accumulation dtype. With `narrow_slices` a GPU
    cuts the features into slices of 128 bytes also for short rows: faster for rows of equal length
    whose senders' slices fit in the L2 cache. With a `row_limit` only the first so many edges of
    a row count, in a sum or mean; the rows then have no chunks.

    On a GPU rows of at most one edge, such as the transpose of a sampled tree, are a gather that
    XLA fuses with what follows, an activation's derivative and the gradient of receivers' rows.
    """

    def kernel(rows: Rows, x: Array, weights: Array | None) -> Array:
        attributes = {
            "narrow_slices": int(narrow_slices),
            "row_limit": row_limit or 0,
            "longest_row": rows.chunks.longest or 0,
        }
        out, _ = _reduce("jaxgnn_spmm", 1, rows, x, weights, reduce, attributes)
        return out

    gathers = rows.chunks.longest == 1 and rows.columns is not None

    def otherwise(rows: Rows, x: Array, weights: Array | None) -> Array:
        if gathers:
            return reference.gather_rows(rows, x, weights)
        return reference.reduce_rows(rows, x, weights, reduce, row_limit)

    platforms = ("cpu",) if gathers else ("cpu", "cuda")

    def choose(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        weights = edges[0] if edges else None
        operands = rows, features[0], weights
        return dispatch(("jaxgnn_spmm",), kernel, otherwise, *operands, platforms=platforms)

    return foldable(choose)(rows, [x], [] if weights is None else [weights])


def reduce_and_count_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
) -> tuple[Float[Array, "rows heads width"], Float[Array, "rows heads width"]]:
    """The same for `"max"` or `"min"`, and the ties: how many edges attained it, 0 where it is NaN.

    They are in units of `reference.TIES_UNIT` and in `reference.ties_dtype`.
    """

    def kernel(rows: Rows, x: Array, weights: Array | None) -> tuple[Array, Array]:
        out, ties, _ = _reduce("jaxgnn_spmm_ties", 2, rows, x, weights, reduce, {})
        return out, ties

    def choose(rows: Rows, features: list[Array], edges: list[Array]) -> tuple[Array, Array]:
        def otherwise(rows: Rows, x: Array, weights: Array | None) -> tuple[Array, Array]:
            return reference.reduce_and_count_rows(rows, x, weights, reduce)

        weights = edges[0] if edges else None
        return dispatch(("jaxgnn_spmm_ties",), kernel, otherwise, rows, features[0], weights)

    out: tuple[Array, Array] = foldable(choose)(rows, [x], [] if weights is None else [weights])
    return out


def _reduce(
    target: str,
    count: int,
    rows: Rows,
    x: Array,
    weights: Array | None,
    reduce: str,
    attributes: dict[str, int],
) -> list[Array]:
    """The extremum or sum, with `count` 2 also the ties, and scratch."""
    _, heads, width = x.shape
    accumulator = accumulation_dtype(x.dtype)
    shape = (rows.num_rows, heads, width)
    ties = [(shape, reference.ties_dtype(x.dtype))] * (count - 1)
    scratch = (count * rows.chunks.table.shape[0], heads * width)
    return row_call(
        target,
        rows,
        [x, optional(weights, accumulator)],
        [(shape, x.dtype), *ties, (scratch, accumulator)],
        scheduled=True,
        reduce=REDUCE[reduce],
        **attributes,
    )


def select_rows(
    rows: Rows,
    x: Float[Array, "_ heads width"],
    y: Float[Array, "_ heads width"],
    weights: Float[Array, "edges heads"] | None,
    values: Float[Array, "columns heads width"],
    scale: Float[Array, "edges heads"] | None,
    *,
    along: bool,
) -> Float[Array, "rows heads width"]:
    r"""Sums `scale * values` over those edges of a row that attained the extremum.

    An edge did where $w_{eh} x_{jhd} = y_{ihd}$, $x$ being what was reduced and $y$ the result.
    With `along` the rows are those of $y$ and `values` lie beside $x$; else the transpose: the
    rows are those of $x$ and `values` lie beside $y$. Without `weights` and `scale`, of which there
    are both or neither, they are 1.
    """

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        x, y, values = features
        weights, scale = edges or (None, None)
        _, heads, width = x.shape
        accumulator = accumulation_dtype(x.dtype)
        out, _ = row_call(
            "jaxgnn_spmm_extremum",
            rows,
            [x, y, optional(weights, accumulator), values, optional(scale, accumulator)],
            [
                ((rows.num_rows, heads, width), x.dtype),
                ((rows.chunks.table.shape[0], heads * width), accumulator),
            ],
            scheduled=False,
            transpose=0 if along else 1,
        )
        return out

    def otherwise(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        x, y, values = features
        weights, scale = edges or (None, None)
        return reference.select_rows(rows, x, y, weights, values, scale, along=along)

    def choose(*operands: Any) -> Array:
        return dispatch(("jaxgnn_spmm_extremum",), kernel, otherwise, *operands)

    edges = [v for v in (weights, scale) if v is not None]
    return foldable(choose)(rows, [x, y, values], edges)


def dot_rows(
    rows: Rows,
    a: Float[Array, "rows heads width"],
    b: Float[Array, "columns heads width"],
    pattern: tuple[Array, Array, Array | None] | None = None,
) -> Float[Array, "edges heads"]:
    r"""$s_{eh} = \sum_d a_{r(e)hd} b_{c(e)hd}$ in the accumulation dtype and the rows' order.

    With `pattern = (x, y, weights)` only the terms that attained the extremum (`select_rows`,
    along the rows) count.
    """
    target = "jaxgnn_sddmm" if pattern is None else "jaxgnn_sddmm_extremum"

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        assert rows.columns is not None
        heads = features[0].shape[1]
        accumulator = accumulation_dtype(features[0].dtype)
        operands = features
        if pattern is not None:
            operands = [*features, optional(edges[0] if edges else None, accumulator)]
        (out,) = row_call(
            target,
            rows,
            operands,
            [((rows.columns.shape[0], heads), accumulator)],
            scheduled=False,
            heads=heads,
        )
        return out

    def otherwise(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        a, b, *rest = features
        attained = (rest[0], rest[1], edges[0] if edges else None) if rest else None
        return reference.dot_rows(rows, a, b, attained)

    def choose(*operands: Any) -> Array:
        return dispatch((target,), kernel, otherwise, *operands)

    features, edges = [a, b], []
    if pattern is not None:
        features += pattern[:2]
        edges = [] if pattern[2] is None else [pattern[2]]
    return foldable(choose, edges_out=True)(rows, features, edges)


def node_dots(
    a: Float[Array, "nodes heads width"], b: Float[Array, "nodes heads width"]
) -> Float[Array, "nodes heads"]:
    """The dot product of each node's rows in the accumulation dtype, without derivatives.

    On the CPU by a kernel, each node an edge to itself: XLA would write the products out there.
    """

    def kernel(a: Array, b: Array) -> Array:
        offsets = jnp.arange(a.shape[0] + 1, dtype=jnp.int32)
        return dot_rows(Rows(offsets, offsets[:-1], no_chunks(), None), a, b)

    def otherwise(a: Array, b: Array) -> Array:
        dtype = accumulation_dtype(a.dtype)
        # A kernel of its own: one that writes the sums beside others takes XLA twice as long.
        return jax.lax.optimization_barrier(jnp.sum(a.astype(dtype) * b.astype(dtype), axis=-1))

    return dispatch(("jaxgnn_sddmm",), kernel, otherwise, a, b, platforms=("cpu",))
