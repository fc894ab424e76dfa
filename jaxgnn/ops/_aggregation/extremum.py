"""The elementwise maximum and minimum over neighbours, and the linear maps of their derivative.

Where the extremum is attained, its derivative is the selection of the attaining edges, shared
equally at ties. Which edges those are is recomputed from input and output, so the residuals are
of the nodes' size. The selection is linear in the selected values, its transpose is a selection
too, and so derivatives of every order are made of the same two kernels. How many edges tie is
counted with the reduction, if that is differentiated.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.kernels import (
    dot_rows,
    reduce_and_count_rows,
    reduce_rows,
    select_rows,
)
from jaxgnn.ops._core.rows import in_graph_order, in_row_order, neighbours


class Pattern(NamedTuple):
    """What was reduced and what came out: an edge attained the extremum if `weights * x == y`."""

    x: Float[Array, "_ heads width"]
    y: Float[Array, "_ heads width"]
    weights: Float[Array, "num_edges heads"] | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def extremum(
    how: tuple[bool, str],
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    """`how` is (over the transpose?, `"max"` or `"min"`)."""
    transpose, reduce = how
    rows = neighbours(graph, transpose=transpose)
    return reduce_rows(rows, x, in_row_order(rows, weights), reduce)


def _extremum_fwd(how, graph, x, weights):
    both: tuple[Array, Array] = _extremum_and_ties(how, graph, x, weights)
    y, ties = both
    return y, (graph, Pattern(x, y, weights), ties)


def _extremum_bwd(how, residuals, cotangent):
    graph, pattern, ties = residuals
    transpose, _ = how
    shares = _share(cotangent, ties)
    dx = _select((transpose, False), graph, pattern, shares, pattern.weights)
    dweights = None
    if pattern.weights is not None:
        dweights = _select_dot(transpose, graph, pattern, shares, pattern.x)
    return None, dx, dweights


extremum.defvjp(_extremum_fwd, _extremum_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _extremum_and_ties(
    how: tuple[bool, str],
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> tuple[Float[Array, "_ heads width"], Float[Array, "_ heads width"]]:
    """`extremum`, and the number of edges that attained it, which is piecewise constant."""
    transpose, reduce = how
    rows = neighbours(graph, transpose=transpose)
    return reduce_and_count_rows(rows, x, in_row_order(rows, weights), reduce)


def _extremum_and_ties_fwd(how, graph, x, weights):
    y, residuals = _extremum_fwd(how, graph, x, weights)
    return (y, residuals[-1]), residuals


def _extremum_and_ties_bwd(how, residuals, cotangents):
    return _extremum_bwd(how, residuals, cotangents[0])


_extremum_and_ties.defvjp(_extremum_and_ties_fwd, _extremum_and_ties_bwd)


def _share(cotangent: Array, ties: Array) -> Array:
    """The cotangent of each output divided by the number of edges that attained it."""
    dtype = accumulation_dtype(cotangent.dtype)
    # Rows without edges, and those with NaN, count 0: they select nothing. More than float16 can
    # count are its largest number.
    most = jnp.asarray(jnp.finfo(ties.dtype).max, dtype)
    ties = jnp.clip(jax.lax.stop_gradient(ties).astype(dtype), jnp.ones((), dtype), most)
    return (cotangent.astype(dtype) / ties).astype(cotangent.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _select(how, graph, pattern, values, scale):
    """Sums `scale * values` over attaining edges; `how` is (over the transpose?, along?)."""
    transpose, along = how
    rows = neighbours(graph, transpose=transpose == along)
    weights = in_row_order(rows, pattern.weights)
    scale = in_row_order(rows, scale)
    return select_rows(rows, pattern.x, pattern.y, weights, values, scale, along=along)


def _select_fwd(how, graph, pattern, values, scale):
    return _select(how, graph, pattern, values, scale), (graph, pattern, values, scale)


def _select_bwd(how, residuals, cotangent):
    graph, pattern, values, scale = residuals
    transpose, along = how
    dvalues = _select((transpose, not along), graph, pattern, cotangent, scale)
    dscale = None
    if scale is not None:
        beside_y, beside_x = (cotangent, values) if along else (values, cotangent)
        dscale = _select_dot(transpose, graph, pattern, beside_y, beside_x)
    return None, None, dvalues, dscale


_select.defvjp(_select_fwd, _select_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _select_dot(transpose, graph, pattern, beside_y, beside_x):
    """Per edge and head, the dot product over the features that attained the extremum."""
    rows = neighbours(graph, transpose=transpose)
    weights = in_row_order(rows, pattern.weights)
    out = dot_rows(rows, beside_y, beside_x, (pattern.x, pattern.y, weights))
    return in_graph_order(rows, out)


def _select_dot_fwd(transpose, graph, pattern, beside_y, beside_x):
    out = _select_dot(transpose, graph, pattern, beside_y, beside_x)
    return out, (graph, pattern, beside_y, beside_x)


def _select_dot_bwd(transpose, residuals, cotangent):
    graph, pattern, beside_y, beside_x = residuals
    d_y = _select((transpose, True), graph, pattern, beside_x, cotangent)
    d_x = _select((transpose, False), graph, pattern, beside_y, cotangent)
    return None, None, d_y, d_x


_select_dot.defvjp(_select_dot_fwd, _select_dot_bwd)
