"""The kernels of Gaussian weights, without derivatives, and how a batch of features folds into
them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.folding import fold, one_by_one, sequential, unfold, with_vmap_rule
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.incidence import EdgeEnd, reduce_to_nodes
from jaxgnn.ops._aggregation.kernels import REDUCE
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty

TARGETS = ("jaxgnn_gaussian_spmm", "jaxgnn_gaussian_spmm_coordinates")
MAX_DIMS = 16
"""Coordinates that the kernels take, as in common/gaussian.h."""

EDGE_SHARE = 4
"""A pair's edge gradients are materialized if the kernels' rows take this many times the memory."""


class Gaussians(NamedTuple):
    """What of the weights is static.

    Attributes:
        reduce: `"sum"` or `"mean"`.
        tanh: whether the coordinates go through it.
    """

    reduce: str
    tanh: bool


class Weighting(NamedTuple):
    """What the weights are computed from, all in the accumulation dtype.

    Attributes:
        mu, inv_sigma: the kernels' means and inverse deviations.
        edges: the edges' coordinates, in the graph's order, or `None`:
        receivers, senders: the terms of both ends, which are summed.
    """

    mu: Float[Array, "kernels dims"]
    inv_sigma: Float[Array, "kernels dims"]
    edges: Float[Array, "num_edges dims"] | None
    receivers: Float[Array, "num_receivers dims"] | None
    senders: Float[Array, "num_senders dims"] | None

    def operands(self, *, by_senders: bool) -> list[Array]:
        """The terms of rows, columns and edges (empty where absent), then the parameters."""
        empty = jnp.zeros((0, 0), self.mu.dtype)
        rows, columns = self.receivers, self.senders
        if by_senders:
            rows, columns = columns, rows
        terms = (empty if array is None else array for array in (rows, columns, self.edges))
        return [*terms, self.mu, self.inv_sigma]


def sums(
    static: Gaussians,
    graph: Graph,
    x: Float[Array, "columns kernels width"] | Float[Array, "columns width"],
    weighting: Weighting,
    *,
    transpose: bool,
) -> Float[Array, "rows width"] | Float[Array, "rows kernels width"]:
    """The sums or means over a receiver's edges of the senders' weighted rows.

    If each kernel has its own rows, the result is one sum over edges and kernels. If all kernels
    share one row, the result is one sum for each kernel. With `transpose` the sums (never means)
    run over a sender's edges and gather the receivers' rows. The shared map with `transpose` is the
    transpose of the per-kernel map, and vice versa.
    """

    def kernel(rows: Rows, x: Array, weighting: Weighting) -> Array:
        shared_input, kernels, width = x.ndim == 2, weighting.mu.shape[0], x.shape[-1]
        shape = (kernels, width) if shared_input else (width,)
        out, _ = row_call(
            TARGETS[0],
            rows,
            [
                or_empty(rows.order),
                x,
                *weighting.operands(by_senders=transpose),
            ],
            [
                ((rows.num_rows, *shape), x.dtype),
                ((rows.chunks.table.shape[0], *shape), weighting.mu.dtype),
            ],
            reduce=REDUCE["sum" if transpose else static.reduce],
            shared_input=shared_input,
            activation=static.tanh,
        )
        return out

    return _foldable(kernel)(neighbors(graph, transpose=transpose), x, weighting)


def weighting_gradients(
    static: Gaussians, graph: Graph, x: Array, cotangent: Array, weighting: Weighting
) -> Weighting:
    """The gradients of what the weights are computed from, given that of the sums.

    The pass over the end whose features have a row for each kernel gathers one row of the other
    end for each edge. It yields every gradient except that of the other end's coordinates, which
    is a sum of the edges' gradients. These are materialized where they are small beside the
    rows. Otherwise a second pass, which gathers the rows of every kernel, recomputes them.
    """
    by_senders = x.ndim == 3
    pair = weighting.edges is None
    coordinates = functools.partial(_coordinates, static, graph, x, cotangent, weighting)
    stacked = x if by_senders else cotangent
    edge_bytes = graph.num_edges * weighting.mu.shape[1] * weighting.mu.dtype.itemsize
    materialize_edge_grads = (
        not pair or EDGE_SHARE * edge_bytes <= stacked.size * stacked.dtype.itemsize
    )
    row_gradient, edges, mu, inv_sigma = coordinates(
        transpose=by_senders, with_edges=materialize_edge_grads
    )
    if not pair:
        return Weighting(mu, inv_sigma, edges, None, None)
    column_gradient: Array
    if materialize_edge_grads:
        column_gradient = reduce_to_nodes(EdgeEnd(not by_senders, False), graph, edges)
    else:
        column_gradient = coordinates(transpose=not by_senders, with_edges=False)[0]
    receivers, senders = row_gradient, column_gradient
    if by_senders:
        receivers, senders = senders, receivers
    return Weighting(mu, inv_sigma, None, receivers, senders)


def _coordinates(
    static: Gaussians,
    graph: Graph,
    x: Array,
    cotangent: Array,
    weighting: Weighting,
    *,
    transpose: bool,
    with_edges: bool,
) -> list[Array]:
    """The gradients of the rows' coordinates, if pairs have them; of the edges' in the graph's
    order, if asked for; and where the rows have features for each kernel, the parameters'."""

    def kernel(rows: Rows, x: Array, cotangent: Array, weighting: Weighting) -> list[Array]:
        dtype = weighting.mu.dtype
        kernels, dims = weighting.mu.shape
        assert rows.columns is not None
        edges, parts = rows.columns.shape[0], rows.chunks.table.shape[0]
        stacked = x.ndim == 3
        rows_stacked = stacked == transpose
        parameters = weighting.mu.shape if rows_stacked else (0, 0)
        *results, _, _ = row_call(
            TARGETS[1],
            rows,
            [
                or_empty(rows.order),
                *((cotangent, x) if stacked else (x, cotangent)),
                *weighting.operands(by_senders=transpose),
            ],
            [
                ((rows.num_rows, dims) if weighting.edges is None else (0, 0), dtype),
                ((edges, dims) if with_edges else (0, 0), dtype),
                (parameters, dtype),
                (parameters, dtype),
                ((parts, dims), dtype),
                ((parts + rows.num_rows, 2 * kernels * dims) if rows_stacked else (0, 0), dtype),
            ],
            rows_stacked=rows_stacked,
            activation=static.tanh,
        )
        return results

    rows = neighbors(graph, transpose=transpose)
    results: list[Array] = sequential(kernel)(rows, x, cotangent, weighting)
    return results


def _foldable(kernel: Any) -> Any:
    """Gives `kernel(rows, x, weighting)` its `vmap` rule.

    A batch of `x` alone widens its last axis, as all examples share the weights. Otherwise the
    examples run one after the other.
    """

    def rule(call, axis_size, in_batched, rows, x, weighting):
        rows_batched, x_batched, by_batched = in_batched
        if any(jax.tree.leaves((rows_batched, by_batched))):
            return one_by_one(call, in_batched, (rows, x, weighting))
        out = call(rows, fold(x, x_batched, axis_size, x.ndim - 2), weighting)
        return unfold(out, axis_size, out.ndim - 1)

    return with_vmap_rule(kernel, rule)
