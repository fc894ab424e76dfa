r"""Linear maps between compressed balanced sparse rows and dense ones, and their derivatives.

On fixed positions `indices` the aggregation of sparse rows is one trilinear form of the sparse
rows' values $v$, the edges' weights $w$ and the dense rows $y$,

$$T(v, w, y) = \sum_{e = (j \to i)} w_e \sum_c v_{jc} \, y_{i, I_{jc}},$$

and the derivative of $T$ by each of the three is a map of the other two: `spgemm` by $y$, `sspmm`
by $v$ and `cbsr_dot` by $w$. Each is linear in both, so the derivative of each is made of the
other two, to any order. `linear_map` is the same in all three and says at which end the dense
rows lie: at the receivers, or with `linear_map.transpose` at the senders; a mean divides the dense
rows by their number of edges.

`select`, `scatter` and `gather` go between dense rows and sparse ones without a graph.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt, UInt32

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.linear import LinearMap
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._core.degree import divide_by_degree
from jaxgnn.ops._core.rows import in_graph_order, in_row_order, neighbours
from jaxgnn.ops._maxk import kernels


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def spgemm(
    linear_map: LinearMap,
    width: int,
    packed: bool,
    graph: Graph,
    values: Float[Array, "sparse k"],
    indices: UInt[Array, "sparse k"],
    weights: Float[Array, " num_edges"] | None,
) -> Float[Array, "dense width"]:
    r"""$y_i = \sum_e w_e \, S(v_j)$, where $S$ puts the values at their positions; or the mean."""
    rows = neighbours(graph, transpose=linear_map.transpose)
    reduce = "sum" if linear_map.divide is None else "mean"
    windows = None if linear_map.transpose else graph.windows
    weights = in_row_order(rows, weights)
    return kernels.spgemm(rows, windows, width, values, indices, weights, reduce, packed)


def _spgemm_fwd(linear_map, width, packed, graph, values, indices, weights):
    # The values are needed for the weights' gradient alone.
    residuals = (graph, None if weights is None else values, indices, weights)
    return spgemm(linear_map, width, packed, graph, values, indices, weights), residuals


def _spgemm_bwd(linear_map, width, packed, residuals, cotangent):
    graph, values, indices, weights = residuals
    dvalues = sspmm(linear_map, width, graph, cotangent, indices, weights)
    dweights = None
    if weights is not None:
        dweights = cbsr_dot(linear_map, width, graph, values, indices, cotangent)
    return None, dvalues, None, dweights


spgemm.defvjp(_spgemm_fwd, _spgemm_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sspmm(
    linear_map: LinearMap,
    width: int,
    graph: Graph,
    y: Float[Array, "dense width"],
    indices: UInt[Array, "sparse k"],
    weights: Float[Array, " num_edges"] | None,
) -> Float[Array, "sparse k"]:
    r"""$z_{jc} = \sum_e w_e \, y_{i, I_{jc}}$; of a mean, of $y$ divided by its degrees."""
    rows = neighbours(graph, transpose=not linear_map.transpose)
    dense_rows = neighbours(graph, transpose=linear_map.transpose)
    windows = None if linear_map.transpose else graph.windows
    return kernels.sspmm(
        rows,
        dense_rows,
        windows,
        divide_by_degree(graph, linear_map.divide, y),
        indices,
        in_row_order(rows, weights),
        in_row_order(dense_rows, weights),
    )


def _sspmm_fwd(linear_map, width, graph, y, indices, weights):
    residuals = (graph, None if weights is None else y, indices, weights)
    return sspmm(linear_map, width, graph, y, indices, weights), residuals


def _sspmm_bwd(linear_map, width, residuals, cotangent):
    graph, y, indices, weights = residuals
    dy = spgemm(linear_map, width, False, graph, cotangent, indices, weights)
    dweights = None
    if weights is not None:
        dweights = cbsr_dot(linear_map, width, graph, cotangent, indices, y)
    return None, dy, None, dweights


sspmm.defvjp(_sspmm_fwd, _sspmm_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def cbsr_dot(
    linear_map: LinearMap,
    width: int,
    graph: Graph,
    values: Float[Array, "sparse k"],
    indices: UInt[Array, "sparse k"],
    y: Float[Array, "dense width"],
) -> Float[Array, " num_edges"]:
    r"""$d_e = \sum_c v_{jc} \, y_{i, I_{jc}}$ in the accumulation dtype and the graph's order."""
    rows = neighbours(graph, transpose=linear_map.transpose)
    y = divide_by_degree(graph, linear_map.divide, y)
    return in_graph_order(rows, kernels.cbsr_dot(rows, values, indices, y))


def _cbsr_dot_fwd(linear_map, width, graph, values, indices, y):
    return cbsr_dot(linear_map, width, graph, values, indices, y), (graph, values, indices, y)


def _cbsr_dot_bwd(linear_map, width, residuals, cotangent):
    graph, values, indices, y = residuals
    dvalues = sspmm(linear_map, width, graph, y, indices, cotangent)
    dy = spgemm(linear_map, width, False, graph, values, indices, cotangent)
    return None, dvalues, None, dy


cbsr_dot.defvjp(_cbsr_dot_fwd, _cbsr_dot_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def select(
    k: int, width: int, x: Float[Array, "rows width"]
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """Values and positions of the `k` largest entries of each row."""
    return kernels.select(k, x)


def _select_fwd(k, width, x):
    selected: tuple[Array, Array] = select(k, width, x)
    return selected, selected[1]


def _select_bwd(k, width, indices, cotangents):
    return (scatter(width, cotangents[0], indices),)


select.defvjp(_select_fwd, _select_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def select_transformed(
    k: int,
    width: int,
    drop_below: int,
    x: Float[Array, "rows width"],
    bias: Float[Array, " width"] | None,
    words: UInt32[Array, " 2"] | None,
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """The same of the rows plus `bias` (in the accumulation dtype), after dropout by a key."""
    return kernels.select_transformed(k, drop_below, x, bias, words)


def _select_transformed_fwd(k, width, drop_below, x, bias, words):
    selected: tuple[Array, Array] = select_transformed(k, width, drop_below, x, bias, words)
    return selected, (selected[1], bias, words)


def _select_transformed_bwd(k, width, drop_below, residuals, cotangents):
    indices, bias, words = residuals
    dvalues = cotangents[0]
    if words is not None:
        accumulator = accumulation_dtype(dvalues.dtype)
        factors = dropout_mask.keep_factors_at(words, indices, drop_below, accumulator)
        dvalues = (dvalues.astype(accumulator) * factors).astype(dvalues.dtype)
    dx: Array = scatter(width, dvalues, indices)
    dbias = None if bias is None else jnp.sum(dx.astype(bias.dtype), axis=0)
    return dx, dbias, None


select_transformed.defvjp(_select_transformed_fwd, _select_transformed_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def scatter(
    width: int, values: Float[Array, "rows k"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows width"]:
    """The dense rows, 0 where there is no entry."""
    return kernels.scatter(width, values, indices)


def _scatter_fwd(width, values, indices):
    return scatter(width, values, indices), indices


def _scatter_bwd(width, indices, cotangent):
    return gather(width, cotangent, indices), None


scatter.defvjp(_scatter_fwd, _scatter_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gather(
    width: int, dense: Float[Array, "rows width"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows k"]:
    """The entries of dense rows at the positions; the transpose of `scatter`."""
    return jnp.take_along_axis(dense, indices.astype(jnp.int32), axis=1)


def _gather_fwd(width, dense, indices):
    return gather(width, dense, indices), indices


def _gather_bwd(width, indices, cotangent):
    return scatter(width, cotangent, indices), None


gather.defvjp(_gather_fwd, _gather_bwd)
