"""What aggregation's kernels compute, in JAX: on platforms without them, and as their reference."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.ops._core.rows import Rows

# In these units float16 holds 1 (its smallest normal number) to 10^9.
TIES_UNIT = 2.0**14


def ties_dtype(dtype: DTypeLike) -> np.dtype:
    """In which ties are kept: float16 for bfloat16, which counts to 256 alone, else the same."""
    return np.dtype(np.float16) if jnp.dtype(dtype).itemsize == 2 else np.dtype(dtype)


def reduce_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
    row_limit: int | None = None,
) -> Float[Array, "rows heads width"]:
    """Gather and segment reduction; differentiated by JAX, it shares a gradient at ties."""
    if row_limit is not None:
        rows, edges = _first_edges(rows, x, row_limit)
        weights = None if weights is None else weights[edges]
    messages = _messages(rows, x, weights)
    if reduce in ("max", "min"):
        # What is compared is rounded; in the wider dtype ties are counted exactly.
        messages = messages.astype(x.dtype).astype(messages.dtype)
    return segment_reduce(messages, row_ids(rows, x), rows.offsets, reduce).astype(x.dtype)


def gather_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
) -> Float[Array, "rows heads width"]:
    """`reduce_rows` of rows of at most one edge, whatever the reduction."""
    assert rows.columns is not None
    begins = rows.offsets[:-1]
    edge = jnp.minimum(begins, rows.columns.shape[0] - 1)
    found = rows.offsets[1:] > begins
    # Out of range for none, so that the gather alone writes the zeros.
    column = jnp.where(found, rows.columns[edge], x.shape[0])
    out = x.at[column].get(mode="fill", fill_value=0)
    if weights is None:
        return out
    factors = jnp.where(found[:, None], weights[edge], 0)
    return (out.astype(weights.dtype) * factors[..., None]).astype(x.dtype)


def reduce_and_count_rows(
    rows: Rows,
    x: Float[Array, "columns heads width"],
    weights: Float[Array, "edges heads"] | None,
    reduce: str,
) -> tuple[Float[Array, "rows heads width"], Float[Array, "rows heads width"]]:
    """The same, and the ties: how many edges attained the extremum."""
    out = reduce_rows(rows, x, weights, reduce)
    ids = row_ids(rows, x)
    attained = _messages(rows, x, weights).astype(x.dtype) == out[ids]
    counts = attained.astype(accumulation_dtype(x.dtype)) / TIES_UNIT
    dtype = ties_dtype(x.dtype)
    ties = jnp.minimum(segment_reduce(counts, ids, rows.offsets, "sum"), np.finfo(np.float16).max)
    return out, ties.astype(dtype)


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
    """The sum of `scale * values` over the edges that attained the extremum."""
    attained = _attained(rows, x, y, weights, along=along)
    terms = jnp.where(attained, _messages(rows, values, scale), 0)
    return segment_reduce(terms, row_ids(rows, values), rows.offsets, "sum").astype(values.dtype)


def dot_rows(
    rows: Rows,
    a: Float[Array, "rows heads width"],
    b: Float[Array, "columns heads width"],
    pattern: tuple[Array, Array, Array | None] | None = None,
) -> Float[Array, "edges heads"]:
    """The dot product of both ends of each edge, of the terms that attained the extremum."""
    dtype = accumulation_dtype(a.dtype)
    # The gathers are of the wide type: their derivatives are sums.
    at_rows = a.astype(dtype).at[row_ids(rows, b)].get(mode="clip")
    terms = at_rows * b.astype(dtype)[rows.columns]
    if pattern is not None:
        terms = jnp.where(_attained(rows, *pattern, along=True), terms, 0)
    return jnp.sum(terms, axis=-1)


def segment_reduce(
    data: Float[Array, "edges *features"],
    segments: Int[Array, " edges"],
    offsets: Int[Array, " rows+1"],
    reduce: str,
) -> Float[Array, "rows *features"]:
    """Sorted segment reduction by `jax.ops`, 0 for empty segments, the mean by edge count."""
    rows = offsets.shape[0] - 1
    if reduce in ("max", "min"):
        out = _extremum(data, segments, rows, reduce)
    else:
        out = jax.ops.segment_sum(data, segments, rows, indices_are_sorted=True)
    degree = jnp.diff(offsets).reshape(rows, *(1,) * (data.ndim - 1))
    if reduce == "mean":
        out = out / jnp.maximum(degree, 1).astype(out.dtype)
    if reduce in ("max", "min"):
        out = jnp.where(degree > 0, out, jnp.zeros_like(out))
    return out


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _extremum(
    data: Float[Array, "edges *features"], segments: Int[Array, " edges"], rows: int, reduce: str
) -> Float[Array, "rows *features"]:
    """By `jax.ops`, whose own derivative counts the infinity that it starts from as a tie."""
    function = jax.ops.segment_max if reduce == "max" else jax.ops.segment_min
    return function(data, segments, rows, indices_are_sorted=True)


@_extremum.defjvp
def _extremum_jvp(
    rows: int, reduce: str, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    """The mean of the tangents of the edges that attained the extremum."""
    data, segments = primals
    out = _extremum(data, segments, rows, reduce)
    attained = data == out[segments]
    total = functools.partial(
        jax.ops.segment_sum, segment_ids=segments, num_segments=rows, indices_are_sorted=True
    )
    ties = jnp.maximum(total(attained.astype(jnp.int32)), 1).astype(data.dtype)
    return out, total(jnp.where(attained, tangents[0], 0)) / ties


def row_ids(rows: Rows, x: Array) -> Int[Array, " edges"]:
    """The row of each edge; without `columns` each row of `x` is an edge.

    Edges beyond the last offset, which those of a sample have, are in the row `num_rows`.
    """
    edges = x.shape[0] if rows.columns is None else rows.columns.shape[0]
    ids = csr_row_ids(rows.offsets, edges, impl="jax")
    beyond = jnp.arange(edges, dtype=rows.offsets.dtype) >= rows.offsets[-1]
    return jnp.where(beyond, jnp.int32(rows.num_rows), ids)


def _first_edges(rows: Rows, x: Array, limit: int) -> tuple[Rows, Int[Array, " edges"]]:
    """The rows of the first edges of each row alone, and these edges."""
    edges = x.shape[0] if rows.columns is None else rows.columns.shape[0]
    taken = jnp.minimum(jnp.diff(rows.offsets), limit)
    offsets = jnp.concatenate([jnp.zeros(1, taken.dtype), jnp.cumsum(taken)])
    ids = csr_row_ids(offsets, min(edges, rows.num_rows * limit), impl="jax")
    entry = jnp.arange(ids.shape[0], dtype=offsets.dtype)
    edge = jnp.minimum(rows.offsets[ids] + (entry - offsets[ids]), max(edges - 1, 0))
    columns = edge if rows.columns is None else rows.columns[edge]
    return rows._replace(offsets=offsets, columns=columns, order=None), edge


def _messages(
    rows: Rows, x: Float[Array, "columns heads width"], weights: Float[Array, "edges heads"] | None
) -> Float[Array, "edges heads width"]:
    """$w_e x_{c(e)}$ in the accumulation dtype."""
    x = x.astype(accumulation_dtype(x.dtype))  # before the gather, whose derivative is a sum
    messages = x if rows.columns is None else x[rows.columns]
    return messages if weights is None else messages * weights[:, :, None]


def _attained(
    rows: Rows, x: Array, y: Array, weights: Array | None, *, along: bool
) -> Bool[Array, "edges heads width"]:
    """Whether $w_e x = y$; with `along` the rows are those of $y$, else those of $x$."""
    if along:
        return _messages(rows, x, weights).astype(x.dtype) == y[row_ids(rows, x)]
    own = x[row_ids(rows, y)].astype(accumulation_dtype(x.dtype))
    if weights is not None:
        own = own * weights[:, :, None]
    return own.astype(x.dtype) == (y if rows.columns is None else y[rows.columns])
