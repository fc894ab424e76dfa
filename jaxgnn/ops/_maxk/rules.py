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
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, UInt, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.custom_jvp import custom_jvp
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import Multilinear, instantiate, is_zero
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.linear import LinearMap
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._core.degree import divide_by_degree, widened
from jaxgnn.ops._core.rows import in_graph_order, in_row_order, neighbors, windows_of
from jaxgnn.ops._maxk import (
    cbsr_dot_kernels,
    reference,
    selection_kernels,
    spgemm_kernels,
    sspmm_kernels,
)


class Spgemm(NamedTuple):
    """What is static.

    Attributes:
        linear_map: at which end the dense rows lie, and the mean.
        width: columns of the dense rows.
        packed: whether 15 bits of mantissa are all that float32 values have.
    """

    linear_map: LinearMap
    width: int
    packed: bool = False


def _spgemm(
    static: Spgemm,
    fixed: tuple[Graph, UInt[Array, "sparse k"]],
    values: Float[Array, "sparse k"],
    weights: Float[Array, " num_edges"] | None,
) -> Float[Array, "dense width"]:
    graph, indices = fixed
    linear_map = static.linear_map
    rows = neighbors(graph, transpose=linear_map.transpose)
    reduce = "sum" if linear_map.divide is None else "mean"
    windows = None if linear_map.transpose else windows_of(graph)
    weights = in_row_order(rows, weights)
    return spgemm_kernels.spgemm(
        rows, windows, static.width, values, indices, weights, reduce, static.packed
    )


def _sspmm(
    static: Spgemm,
    fixed: tuple[Graph, UInt[Array, "sparse k"]],
    y: Float[Array, "dense width"],
    weights: Float[Array, " num_edges"] | None,
) -> Float[Array, "sparse k"]:
    graph, indices = fixed
    linear_map = static.linear_map
    rows = neighbors(graph, transpose=not linear_map.transpose)
    dense_rows = neighbors(graph, transpose=linear_map.transpose)
    windows = None if linear_map.transpose else windows_of(graph)
    return sspmm_kernels.sspmm(
        rows,
        dense_rows,
        windows,
        y,
        indices,
        in_row_order(rows, weights),
        in_row_order(dense_rows, weights),
        "sum" if linear_map.divide is None else "mean",
    )


def _cbsr_dot(
    static: Spgemm,
    fixed: tuple[Graph, UInt[Array, "sparse k"]],
    values: Float[Array, "sparse k"],
    y: Float[Array, "dense width"],
) -> Float[Array, " num_edges"]:
    graph, indices = fixed
    linear_map = static.linear_map
    rows = neighbors(graph, transpose=linear_map.transpose)
    if linear_map.divide is not None:
        values, y = widened(values), divide_by_degree(graph, linear_map.divide, widened(y))
    return in_graph_order(rows, cbsr_dot_kernels.cbsr_dot(rows, values, indices, y))


def _unpacked(static: Spgemm) -> Spgemm:
    return static._replace(packed=False)


spgemm = Multilinear(
    _spgemm,
    (
        lambda static, fixed, ct, weights: sspmm(static, fixed, ct, weights),
        lambda static, fixed, values, ct: cbsr_dot(static, fixed, values, ct),
    ),
)
r"""`spgemm(static, (graph, indices), values, weights)`: $y_i = \sum_e w_e \, S(v_j)$, where $S$
puts the values at their positions; or the mean."""

sspmm = Multilinear(
    _sspmm,
    (
        lambda static, fixed, ct, weights: spgemm(_unpacked(static), fixed, ct, weights),
        lambda static, fixed, y, ct: cbsr_dot(static, fixed, ct, y),
    ),
)
r"""`sspmm(static, (graph, indices), y, weights)`: $z_{jc} = \sum_e w_e \, y_{i, I_{jc}}$; of a
mean, of $y$ divided by its degrees."""

cbsr_dot = Multilinear(
    _cbsr_dot,
    (
        lambda static, fixed, ct, y: sspmm(static, fixed, y, ct),
        lambda static, fixed, values, ct: spgemm(_unpacked(static), fixed, values, ct),
    ),
)
r"""`cbsr_dot(static, (graph, indices), values, y)`: $d_e = \sum_c v_{jc} \, y_{i, I_{jc}}$ in the
accumulation dtype and the graph's order."""

scatter = Multilinear(
    lambda width, indices, values: selection_kernels.scatter(width, values, indices),
    (lambda width, indices, ct: gather(width, indices, ct),),
)
"""`scatter(width, indices, values)`: the dense rows, 0 where there is no entry."""

gather = Multilinear(
    lambda _, indices, dense: reference.gather(dense, indices),
    (lambda width, indices, ct: scatter(width, indices, ct),),
)
"""`gather(width, indices, dense)`: the entries of dense rows at the positions."""


def select(
    k: int,
    drop_below: int,
    x: Float[Array, "rows width"],
    bias: Float[Array, " width"] | None,
    philox_key: UInt32[Array, " 2"] | None,
) -> tuple[Float[Array, "rows k"], UInt[Array, "rows k"]]:
    """Values and positions of the `k` largest entries of each row plus `bias` (in the accumulation
    dtype), after dropout by a key."""
    operands = jax.lax.stop_gradient((x, bias))
    if bias is None and philox_key is None:
        values, indices = selection_kernels.select(k, operands[0])
    else:
        values, indices = selection_kernels.select_transformed(k, drop_below, *operands, philox_key)
    return _kept(drop_below, (values, indices, philox_key), x, bias), indices


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def _kept(drop_below, selected, x, bias):
    """The selected values, as a function of the rows and the bias."""
    return selected[0]


def _kept_jvp(drop_below, primals, tangents):
    (_, indices, philox_key), x, _ = primals
    values: Array = _kept(drop_below, *primals)  # with the derivative of the outer level
    _, dx, dbias = tangents
    accumulator = accumulation_dtype(x.dtype)
    if is_zero((dx, dbias)):
        return values, ffi.zeros_like(values)
    moving = instantiate(dx, x)
    if not is_zero(dbias):
        moving = (moving.astype(accumulator) + dbias[None, :]).astype(x.dtype)
    d_values = gather.linear(0, x.shape[1], indices, moving, like=values)
    if philox_key is not None:
        factors = dropout_mask.keep_factors_at(philox_key, indices, drop_below, accumulator)
        d_values = (d_values.astype(accumulator) * factors).astype(x.dtype)
    return values, d_values


_kept.defjvp(_kept_jvp, symbolic_zeros=True)
