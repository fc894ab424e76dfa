"""The maximum or minimum over neighbors, and the linear maps of their derivative.

Where the extremum is attained, its derivative is the selection of the attaining edges, shared
equally at ties. Which edges those are is recomputed from input and output, so there are no O(E)
intermediates. The selection is linear in the selected values, its transpose is a selection too,
and so derivatives of every order are made of the same two kernels. How many edges tie is counted
with the reduction, if that is differentiated.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import Multilinear, is_zero
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.kernels import (
    dot_rows,
    reduce_and_count_rows,
    reduce_rows,
    select_rows,
)
from jaxgnn.ops._aggregation.reference import TIES_UNIT
from jaxgnn.ops._core.rows import in_graph_order, in_row_order, neighbors


class Extremum(NamedTuple):
    """What is static: over the transpose, and `"max"` or `"min"`."""

    transpose: bool
    reduce: str


class Pattern(NamedTuple):
    """What was reduced and what came out: an edge attained the extremum if `weights * x == y`."""

    graph: Graph
    x: Float[Array, "_ heads width"]
    y: Float[Array, "_ heads width"]
    weights: Float[Array, "num_edges heads"] | None


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def extremum(
    static: Extremum,
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    """The maximum or minimum of the weighted rows."""
    rows = neighbors(graph, transpose=static.transpose)
    return reduce_rows(rows, x, in_row_order(rows, weights), static.reduce)


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def _extremum_and_ties(
    static: Extremum,
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> tuple[Float[Array, "_ heads width"], Float[Array, "_ heads width"]]:
    """`extremum`, and its ties, which are piecewise constant."""
    rows = neighbors(graph, transpose=static.transpose)
    return reduce_and_count_rows(rows, x, in_row_order(rows, weights), static.reduce)


def _extremum_and_ties_jvp(static, primals, tangents):
    graph, x, weights = primals
    _, dx, dweights = tangents
    results: tuple[Array, Array] = _extremum_and_ties(static, *primals)
    y, ties = results
    pattern = jax.lax.stop_gradient(Pattern(graph, x, y, weights))
    selection = (static.transpose, True)
    terms = []
    if not is_zero(dx):
        terms.append(_select.linear(0, selection, pattern, dx, weights, like=y))
    if not is_zero(dweights):
        terms.append(_select.linear(1, selection, pattern, x, dweights, like=y))
    total = sum((_share(term, ties) for term in terms), ffi.zeros_like(y))
    return (y, ties), (total, ffi.zeros_like(ties))


def _extremum_jvp(static, primals, tangents):
    out, d_out = _extremum_and_ties_jvp(static, primals, tangents)
    return out[0], d_out[0]


extremum.defjvp(_extremum_jvp, symbolic_zeros=True)
_extremum_and_ties.defjvp(_extremum_and_ties_jvp, symbolic_zeros=True)


def _share(values: Array, ties: Array) -> Array:
    """Each value divided by the number of edges that attained the extremum there."""
    dtype = accumulation_dtype(values.dtype)
    # Rows without edges, and those with NaN, count 0: they select nothing.
    ties = jax.lax.stop_gradient(ties).astype(dtype) * dtype.type(TIES_UNIT)
    ties = jnp.maximum(ties, jnp.ones((), dtype))
    return (values.astype(dtype) / ties).astype(values.dtype)


def _select_rows(
    direction: tuple[bool, bool],
    pattern: Pattern,
    values: Float[Array, "_ heads width"],
    scale: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    """Sums `scale * values` over attaining edges; `direction` is (over the transpose?, along?)."""
    transpose, along = direction
    rows = neighbors(pattern.graph, transpose=transpose == along)
    weights, scale = in_row_order(rows, pattern.weights), in_row_order(rows, scale)
    return select_rows(rows, pattern.x, pattern.y, weights, values, scale, along=along)


def _select_transpose_values(direction, pattern, cotangent, scale):
    transpose, along = direction
    return _select((transpose, not along), pattern, cotangent, scale)


def _select_transpose_scale(direction, pattern, values, cotangent):
    transpose, along = direction
    beside_y, beside_x = (cotangent, values) if along else (values, cotangent)
    return _select_dot(transpose, pattern, beside_y, beside_x)


_select = Multilinear(_select_rows, (_select_transpose_values, _select_transpose_scale))


def _select_dot_rows(
    transpose: bool,
    pattern: Pattern,
    beside_y: Float[Array, "_ heads width"],
    beside_x: Float[Array, "_ heads width"],
) -> Float[Array, "num_edges heads"]:
    """Per edge and head, the dot product over the features that attained the extremum."""
    rows = neighbors(pattern.graph, transpose=transpose)
    weights = in_row_order(rows, pattern.weights)
    out = dot_rows(rows, beside_y, beside_x, (pattern.x, pattern.y, weights))
    return in_graph_order(rows, out)


_select_dot = Multilinear(
    _select_dot_rows,
    (
        lambda transpose, pattern, ct, beside_x: _select((transpose, True), pattern, beside_x, ct),
        lambda transpose, pattern, beside_y, ct: _select((transpose, False), pattern, beside_y, ct),
    ),
)
