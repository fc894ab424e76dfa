"""Aggregation over neighbors: sparse matrix times dense features."""

from __future__ import annotations

import math
from typing import Literal

import jax
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.ops._aggregation import reference
from jaxgnn.ops._aggregation.extremum import Extremum, extremum
from jaxgnn.ops._aggregation.linear import (
    LinearMap,
    Precision,
    aggregate,
    check_precision,
    engine_of,
)
from jaxgnn.ops._core import checks, padding
from jaxgnn.ops._core.rows import in_row_order, neighbors

Reduce = Literal["sum", "mean", "max", "min"]


@jax.named_scope("jaxgnn.spmm")
def spmm(
    graph: Graph,
    x: Float[Array, "num_senders *features"],
    weights: Float[Array, "num_edges *heads"] | None = None,
    *,
    reduce: Reduce = "sum",
    transpose: bool = False,
    impl: Impl | Literal["rows", "tiles"] = None,
    precision: Precision = None,
) -> Float[Array, "num_receivers *features"]:
    r"""Aggregates the features of each receiver's senders.

    $$y_i = \mathrm{reduce}_{e = (j \to i)} \; w_e \, x_j$$

    `sum` is the product $y = A x$; `mean` divides it by the number of edges (also when weighted);
    `max` and `min` are elementwise. A receiver without edges gets 0. Sums run in float32 for
    float32, bfloat16 and float16 (in float64 for float64) and in a fixed order, so that the same
    input gives the same bits, forward and backward.

    Derivatives: for $x$ the product with the transpose, for $w$ the sampled product (`sddmm`);
    at a tie of `max` or `min` the gradient is shared equally, as in `jax.ops.segment_max`.
    There are no O(E) intermediates.

    Args:
        graph: the graph; edge values are in its edge order, not the user's
            (`Graph.sort_edge_data`).
        x: features `[num_senders, ..., F]`.
        weights: `[num_edges]`, or with further axes that equal the leading feature axes of `x`:
            `[num_edges, heads]` for `x` of `[num_senders, heads, F]`.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`.
        transpose: aggregate over the reversed edges, from receivers to senders.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`; or
            the engine: `"rows"`, or `"tiles"` for graphs of `Graph.with_tiles`. Over tiles run
            sums and means of float32, bfloat16 and float16 on a GPU, weighted or not, and all sums
            among their derivatives; all else, and everything on a CPU, runs by rows. `None` and
            `"kernel"` take the faster engine by `jaxgnn.tiles.estimate`, for each derivative anew.
        precision: `None`, or `"tensorfloat32"`: on a GPU's tensor cores a float32 feature may be
            rounded, to no fewer bits than TensorFloat-32 has. That is so in sums and means without
            weights over tiles, and in their derivatives, where it keeps 16 bits: the error is at
            most 2^-16 of the sum of the terms' sizes more than without it. It has no effect on all
            else: by rows, with weights, in other dtypes, on a CPU. No setting of JAX, such as
            `jax.default_matmul_precision`, implies it.

    Returns:
        `[num_receivers, ..., F]` in the dtype of `x`.

    Raises:
        TypeError: `graph` is no `Graph`, or a dtype is not floating.
        ValueError: a shape does not fit the graph, `reduce`, `impl` or `precision` is unknown, or
            `impl` is `"tiles"` and the graph has none.

    Source: the row-wise product of GE-SpMM (Huang et al., SC 2020, section III), with rows split
    for balance.
    """
    substitute = isinstance(graph, GraphSubstitute)
    if not substitute:
        checks.graph_argument(graph)
    checks.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    check_precision(precision)
    transpose = checks.boolean(transpose, "transpose")
    inputs, outputs = graph.num_senders, graph.num_receivers
    kind = "sender"
    if transpose:
        inputs, outputs, kind = outputs, inputs, "receiver"
    x = checks.floating_rows(x, "x", inputs, kind)
    shape = (outputs, *x.shape[1:])
    heads = 1
    if weights is not None:
        weights = checks.edge_weights(weights, graph.num_edges, x.shape[1:-1])
    if substitute:
        return graph.spmm(
            x, weights, reduce=reduce, transpose=transpose, impl=impl, precision=precision
        )
    if weights is not None:
        heads = math.prod(weights.shape[1:])
        weights = weights.reshape(graph.num_edges, heads)
        weights = weights.astype(accumulation_dtype(x.dtype))
    engine, impl = engine_of(impl, graph.transpose_tiles if transpose else graph.tiles)
    if x.size == 0 or outputs == 0 or graph.num_edges == 0:
        return ffi.zeros(shape, x.dtype, graph, x, weights)
    x = x.reshape(inputs, heads, math.prod(x.shape[1:]) // heads)
    out: Array
    if impl == "jax":
        rows = neighbors(graph, transpose=transpose)
        out = reference.reduce_rows(rows, x, in_row_order(rows, weights), reduce)
        return out.reshape(shape)
    width = x.shape[-1]
    graph, x, weights = ffi.unify_varying(graph, padding.pad_features(x), weights)
    with config.use(impl=impl):
        if reduce in ("max", "min"):
            out = extremum(Extremum(transpose, reduce), graph, x, weights)
        else:
            rows = "senders" if transpose else "receivers"
            divide = rows if reduce == "mean" else None
            linear_map = LinearMap(transpose, divide, engine, precision)
            out = aggregate(linear_map, graph, x, weights)
    return out[..., :width].reshape(shape)
