"""Aggregation over neighbours: sparse matrix times dense features."""

from __future__ import annotations

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn import _ffi
from jaxgnn.graph import Graph
from jaxgnn.ops import _check, _packs
from jaxgnn.ops._extremum import extremum
from jaxgnn.ops._rows import in_row_order, neighbours, reduce_rows
from jaxgnn.ops.expand_rows import expand_rows

Reduce = Literal["sum", "mean", "max", "min"]


def spmm(
    graph: Graph,
    x: Float[Array, "num_senders *features"],
    weights: Float[Array, "num_edges *heads"] | None = None,
    *,
    reduce: Reduce = "sum",
    transpose: bool = False,
    impl: _ffi.Impl = None,
) -> Float[Array, "num_receivers *features"]:
    r"""Aggregates the features of each receiver's senders.

    $$y_i = \mathrm{reduce}_{e = (j \to i)} \; w_e \, x_j$$

    `sum` is the product $y = A x$; `mean` divides it by the number of edges (also when weighted);
    `max` and `min` are elementwise. A receiver without edges gets 0. Sums run in float32 for
    float32, bfloat16 and float16 (in float64 for float64) and in a fixed order, so that the same
    input gives the same bits, forward and backward.

    Derivatives: for $x$ the product with the transpose, for $w$ the sampled product (`sddmm`);
    at a tie of `max` or `min` the gradient is shared equally, as in `jax.ops.segment_max`.
    Nothing of the size of the messages is stored.

    Args:
        graph: the graph; edge values are in its edge order.
        x: features `[num_senders, ..., F]`.
        weights: `[num_edges]`, or with further axes that equal the leading feature axes of `x`:
            `[num_edges, heads]` for `x` of `[num_senders, heads, F]`.
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`.
        transpose: aggregate over the reversed edges, from receivers to senders.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, ..., F]` in the dtype of `x`.

    Raises:
        TypeError: `graph` is no `Graph`, or a dtype is not floating.
        ValueError: a shape does not fit the graph, or `reduce` or `impl` is unknown.

    Source: the row-wise product of GE-SpMM (Huang et al., SC 2020, section III), with rows split
    for balance.
    """
    _check.graph_argument(graph)
    _check.choice(reduce, "reduce", ("sum", "mean", "max", "min"))
    inputs, outputs = graph.num_senders, graph.num_receivers
    kind = "sender"
    if transpose:
        inputs, outputs, kind = outputs, inputs, "receiver"
    x = _check.floating_rows(x, "x", inputs, kind)
    shape = (outputs, *x.shape[1:])
    heads = 1
    if weights is not None:
        weights = _check.edge_weights(weights, graph.num_edges, x.shape[1:-1])
        heads = math.prod(weights.shape[1:])
        weights = weights.reshape(graph.num_edges, heads)
        weights = weights.astype(_ffi.accumulation_dtype(x.dtype))
    kernel = _ffi.use_kernel(impl)
    if x.size == 0 or outputs == 0 or graph.num_edges == 0:
        return _ffi.zeros(shape, x.dtype, graph, x, weights)
    x = x.reshape(inputs, heads, math.prod(x.shape[1:]) // heads)
    out: Array
    if not kernel:
        out = _reference(graph, x, weights, reduce, transpose)
    else:
        width = x.shape[-1]
        graph, x, weights = _ffi.unify_varying(graph, _packs.lengthened(x), weights)
        if reduce in ("max", "min"):
            out = extremum((transpose, reduce), graph, x, weights)
        else:
            rows = "senders" if transpose else "receivers"
            which = Map(transpose, rows if reduce == "mean" else None)
            out = aggregate(which, graph, x, weights)
        out = out[..., :width]
    return out.reshape(shape)


class Map(NamedTuple):
    """Which linear map: $A$ or its transpose, divided by the degrees of one end for a mean.

    Attributes:
        transpose: sums over the receivers of each sender.
        divide: the end by whose number of edges to divide. If the sums run at that end they
            become means; if not, the operand is divided first (the adjoint of a mean).
    """

    transpose: bool
    divide: Literal["receivers", "senders"] | None = None

    def adjoint(self) -> Map:
        return Map(not self.transpose, self.divide)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def aggregate(
    which: Map,
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    """The weighted sum or mean over neighbours; linear in `x` and in `weights`."""
    rows = neighbours(graph, transpose=which.transpose)
    at_rows = "senders" if which.transpose else "receivers"
    if which.divide != at_rows:
        x = divide_by_degree(graph, which, x)
    reduce = "mean" if which.divide == at_rows else "sum"
    return reduce_rows(rows, x, in_row_order(rows, weights), reduce)


def _aggregate_fwd(which, graph, x, weights):
    # x is needed for the weights' gradient alone.
    residuals = (graph, None if weights is None else x, weights)
    return aggregate(which, graph, x, weights), residuals


def _aggregate_bwd(which, residuals, cotangent):
    from jaxgnn.ops.sddmm import edge_dot  # sddmm's own derivative is made of `aggregate`

    graph, x, weights = residuals
    dx = aggregate(which.adjoint(), graph, cotangent, weights)
    if weights is None:
        return None, dx, None
    # The end that the degrees belong to is the same for the map and its adjoint.
    at_receivers, at_senders = (x, cotangent) if which.transpose else (cotangent, x)
    if which.divide == "receivers":
        at_receivers = divide_by_degree(graph, which, at_receivers)
    elif which.divide == "senders":
        at_senders = divide_by_degree(graph, which, at_senders)
    return None, dx, edge_dot(graph, at_receivers, at_senders)


aggregate.defvjp(_aggregate_fwd, _aggregate_bwd)


def divide_by_degree(graph: Graph, which: Map, x: Array) -> Array:
    """$D^{-1} x$ in the accumulation dtype, rounded once; $x$ lies at the end `which.divide`.

    $x$ itself if there is no such end.
    """
    if which.divide is None:
        return x
    dtype = _ffi.accumulation_dtype(x.dtype)
    degree = graph.out_degrees if which.divide == "senders" else graph.in_degrees
    degree = jnp.maximum(degree, 1).astype(dtype)
    degree = degree.reshape(-1, *(1,) * (x.ndim - 1))
    return (x.astype(dtype) / degree).astype(x.dtype)


def _reference(
    graph: Graph, x: Array, weights: Array | None, reduce: str, transpose: bool
) -> Array:
    """Gather and segment reduction, differentiated by JAX."""
    rows = neighbours(graph, transpose=transpose)
    assert rows.columns is not None
    dtype = _ffi.accumulation_dtype(x.dtype)
    messages = x[rows.columns].astype(dtype)
    weights = in_row_order(rows, weights)
    if weights is not None:
        messages = messages * weights[:, :, None]
    segments = expand_rows(rows.offsets, graph.num_edges, impl="jax")
    if reduce in ("max", "min"):
        messages = messages.astype(x.dtype)
    return segment_reference(messages, segments, rows.offsets, reduce).astype(x.dtype)


def segment_reference(
    data: Float[Array, "edges *features"],
    segments: Int[Array, " edges"],
    offsets: Int[Array, " rows+1"],
    reduce: str,
) -> Float[Array, "rows *features"]:
    """Sorted segment reduction by `jax.ops`, 0 for empty segments, the mean by edge count."""
    rows = offsets.shape[0] - 1
    function = {"max": jax.ops.segment_max, "min": jax.ops.segment_min}.get(
        reduce, jax.ops.segment_sum
    )
    out = function(data, segments, rows, indices_are_sorted=True)
    degree = jnp.diff(offsets).reshape(rows, *(1,) * (data.ndim - 1))
    if reduce == "mean":
        out = out / jnp.maximum(degree, 1).astype(out.dtype)
    if reduce in ("max", "min"):
        out = jnp.where(degree > 0, out, jnp.zeros_like(out))
    return out
