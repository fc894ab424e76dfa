"""Aggregation's kernels, without derivatives: sums, extrema and dot products over rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph._row_chunks import no_chunks
from jaxgnn.ops._core.folding import foldable
from jaxgnn.ops._core.rows import Rows, ordered_structure, structure

REDUCE = {"sum": 0, "mean": 1, "max": 2, "min": 3}


def reduce_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
) -> Float[Array, "rows heads width"]:
    r"""$y_{ihd} = \mathrm{reduce}_e \, w_{eh} x_{c(e)hd}$ over the edges of row $i$.

    `weights` are in the order of the rows and in the accumulation dtype.
    """
    (out,) = _reduce(rows, x, weights, reduce, ties=False)
    return out


def reduce_and_count_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
) -> tuple[Float[Array, "rows heads width"], Float[Array, "rows heads width"]]:
    """The same for `"max"` or `"min"`, and how many edges attained it: 0 where it is NaN."""
    out, counts = _reduce(rows, x, weights, reduce, ties=True)
    return out, counts


def _reduce(
    rows: Rows, x: Array, weights: Array | None, reduce: str, *, ties: bool
) -> tuple[Array, ...]:
    """The result, and with `ties` their numbers, of its shape and dtype."""
    target, count = ("jaxgnn_spmm_ties", 2) if ties else ("jaxgnn_spmm", 1)

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> tuple[Array, ...]:
        (x,) = features
        _, heads, width = x.shape
        accumulator = accumulation_dtype(x.dtype)
        flat = heads * width
        *out, _ = ffi.call(
            target,
            [
                *ordered_structure(rows),
                _flat(x),
                _optional(edges, 0, accumulator),
            ],
            [((rows.num_rows, flat), x.dtype)] * count
            + [((count * rows.chunks.table.shape[0], flat), accumulator)],
            reduce=REDUCE[reduce],
            split_length=rows.chunks.length,
        )
        return tuple(result.reshape(rows.num_rows, heads, width) for result in out)

    return foldable(kernel)(rows, [x], [] if weights is None else [weights])


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
        _, heads, width = x.shape
        flat = heads * width
        accumulator = accumulation_dtype(x.dtype)
        out, _ = ffi.call(
            "jaxgnn_spmm_extremum",
            [
                *structure(rows),
                _flat(x),
                _flat(y),
                _optional(edges, 0, accumulator),
                _flat(values),
                _optional(edges, 1, accumulator),
            ],
            [((rows.num_rows, flat), x.dtype), ((rows.chunks.table.shape[0], flat), accumulator)],
            transpose=0 if along else 1,
            split_length=rows.chunks.length,
        )
        return out.reshape(rows.num_rows, heads, width)

    edges = [v for v in (weights, scale) if v is not None]
    return foldable(kernel)(rows, [x, y, values], edges)


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
    weights = None if pattern is None else pattern[2]

    def kernel(rows: Rows, features: list[Array], edges: list[Array]) -> Array:
        a, b, *rest = features
        assert rows.columns is not None
        _, heads, _ = a.shape
        accumulator = accumulation_dtype(a.dtype)
        operands = [*structure(rows), _flat(a), _flat(b)]
        target = "jaxgnn_sddmm"
        if rest:
            target = "jaxgnn_sddmm_extremum"
            operands += [_flat(rest[0]), _flat(rest[1]), _optional(edges, 0, accumulator)]
        (out,) = ffi.call(
            target,
            operands,
            [((rows.columns.shape[0], heads), accumulator)],
            heads=heads,
            split_length=rows.chunks.length,
        )
        return out

    features = [a, b] + ([] if pattern is None else list(pattern[:2]))
    edges = [] if weights is None else [weights]
    return foldable(kernel, edges_out=True)(rows, features, edges)


def node_dots(
    a: Float[Array, "nodes heads width"], b: Float[Array, "nodes heads width"]
) -> Float[Array, "nodes heads"]:
    """The dot product of each node's rows in the accumulation dtype, without derivatives.

    On the CPU by a kernel, each node an edge to itself: XLA would write the products out there.
    """
    if jax.default_backend() == "cpu":
        offsets = jnp.arange(a.shape[0] + 1, dtype=jnp.int32)
        return dot_rows(Rows(offsets, offsets[:-1], no_chunks(), None), a, b)
    dtype = accumulation_dtype(a.dtype)
    # A kernel of its own: one that writes the sums into a longer record takes XLA twice as long.
    return jax.lax.optimization_barrier(jnp.sum(a.astype(dtype) * b.astype(dtype), axis=-1))


def _flat(x: Array) -> Array:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _optional(edges: list[Array], place: int, dtype: Any) -> Array:
    return edges[place] if len(edges) > place else jnp.zeros((0, 0), dtype)
