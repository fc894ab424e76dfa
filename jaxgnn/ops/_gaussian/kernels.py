"""The kernels of Gaussian weights, without derivatives, and how a batch of features folds into
them."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.incidence import EdgeEnd, reduce_to_nodes
from jaxgnn.ops._aggregation.kernels import REDUCE
from jaxgnn.ops._core.folding import fold, one_by_one, sequential, unfold, with_vmap_rule
from jaxgnn.ops._core.rows import Rows, neighbours, or_empty, ordered_structure

TARGETS = ("jaxgnn_gaussian_spmm", "jaxgnn_gaussian_spmm_coordinates")
MAX_DIMS = 16
"""Coordinates that the kernels take, as in ffi/gaussian_limits.h."""

EDGE_SHARE = 4
"""A pair's gradients of the edges are held if the kernels' rows take so many times the memory."""


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
        receivers, senders: the ends' shares, whose sum they are.
    """

    mu: Float[Array, "kernels dims"]
    inv_sigma: Float[Array, "kernels dims"]
    edges: Float[Array, "num_edges dims"] | None
    receivers: Float[Array, "num_receivers dims"] | None
    senders: Float[Array, "num_senders dims"] | None

    def operands(self, *, by_senders: bool) -> list[Array]:
        """Those of the rows, of the columns and of the edges, without elements where absent, and
        the kernels'."""
        empty = jnp.zeros((0, 0), self.mu.dtype)
        near, far = self.receivers, self.senders
        if by_senders:
            near, far = far, near
        places = (empty if array is None else array for array in (near, far, self.edges))
        return [*places, self.mu, self.inv_sigma]


def sums(
    how: Gaussians,
    graph: Graph,
    x: Float[Array, "columns kernels width"] | Float[Array, "columns width"],
    by: Weighting,
    *,
    transpose: bool,
) -> Float[Array, "rows width"] | Float[Array, "rows kernels width"]:
    """The sums or means over a receiver's edges of the senders' weighted rows.

    Of rows for each kernel one sum over the kernels, too; of a row for all kernels a sum for each
    of them. With `transpose` the sums, never means, over a sender's edges of the receivers' rows:
    of one of these maps that is the transpose of the other.
    """

    def kernel(rows: Rows, x: Array, by: Weighting) -> Array:
        each, kernels, width = x.ndim == 2, by.mu.shape[0], x.shape[-1]
        shape = (kernels, width) if each else (width,)
        flat = math.prod(shape)
        out, _ = ffi.call(
            TARGETS[0],
            [
                *ordered_structure(rows),
                or_empty(rows.order),
                _flat(x),
                *by.operands(by_senders=transpose),
            ],
            [((rows.num_rows, flat), x.dtype), ((rows.chunks.table.shape[0], flat), by.mu.dtype)],
            reduce=REDUCE["sum" if transpose else how.reduce],
            each=each,
            **_attributes(how, rows),
        )
        return out.reshape(rows.num_rows, *shape)

    return _foldable(kernel)(neighbours(graph, transpose=transpose), x, by)


def weighting_gradients(
    how: Gaussians, graph: Graph, x: Array, cotangent: Array, by: Weighting
) -> Weighting:
    """The gradients of what the weights are computed from, given that of the sums.

    A pass over the rows of that end whose features are those of every kernel gathers the other
    end's one row an edge, for all but the other end's coordinates. Those are sums of the edges'
    gradients, which are held for a moment where they are small beside the rows; else another pass,
    which gathers the rows of every kernel, computes them again.
    """
    by_senders = x.ndim == 3
    pair = by.edges is None
    coordinates = functools.partial(_coordinates, how, graph, x, cotangent, by)
    stacked = x if by_senders else cotangent
    edge_bytes = graph.num_edges * by.mu.shape[1] * by.mu.dtype.itemsize
    held = not pair or EDGE_SHARE * edge_bytes <= stacked.size * stacked.dtype.itemsize
    near, edges, mu, inv_sigma = coordinates(transpose=by_senders, with_edges=held)
    if not pair:
        return Weighting(mu, inv_sigma, edges, None, None)
    far: Array
    if held:
        far = reduce_to_nodes(EdgeEnd(not by_senders, False), graph, edges)
    else:
        far = coordinates(transpose=not by_senders, with_edges=False)[0]
    senders, receivers = (near, far) if by_senders else (far, near)
    return Weighting(mu, inv_sigma, None, receivers, senders)


def _coordinates(
    how: Gaussians,
    graph: Graph,
    x: Array,
    cotangent: Array,
    by: Weighting,
    *,
    transpose: bool,
    with_edges: bool,
) -> list[Array]:
    """The gradients of the rows' coordinates, if pairs have them; of the edges' in the graph's
    order, if asked for; and where the rows have features for each kernel, the parameters'."""

    def kernel(rows: Rows, x: Array, cotangent: Array, by: Weighting) -> list[Array]:
        dtype = by.mu.dtype
        kernels, dims = by.mu.shape
        assert rows.columns is not None
        edges, parts = rows.columns.shape[0], rows.chunks.table.shape[0]
        stacked = x.ndim == 3
        rows_stacked = stacked == transpose
        parameters = by.mu.shape if rows_stacked else (0, 0)
        *results, _, _ = ffi.call(
            TARGETS[1],
            [
                *ordered_structure(rows),
                or_empty(rows.order),
                *map(_flat, (cotangent, x) if stacked else (x, cotangent)),
                *by.operands(by_senders=transpose),
            ],
            [
                ((rows.num_rows, dims) if by.edges is None else (0, 0), dtype),
                ((edges, dims) if with_edges else (0, 0), dtype),
                (parameters, dtype),
                (parameters, dtype),
                ((parts, dims), dtype),
                ((parts + rows.num_rows, 2 * kernels * dims) if rows_stacked else (0, 0), dtype),
            ],
            rows_stacked=rows_stacked,
            **_attributes(how, rows),
        )
        return results

    rows = neighbours(graph, transpose=transpose)
    results: list[Array] = sequential(kernel)(rows, x, cotangent, by)
    return results


def _foldable(kernel: Any) -> Any:
    """Gives `kernel(rows, x, by)` its `vmap` rule: a batch of `x` alone widens its last axis, as
    the weights hold for every example; else the examples run one after the other."""

    def rule(call, axis_size, in_batched, rows, x, by):
        rows_batched, x_batched, by_batched = in_batched
        if any(jax.tree.leaves((rows_batched, by_batched))):
            return one_by_one(call, in_batched, (rows, x, by))
        out = call(rows, fold(x, x_batched, axis_size, x.ndim - 2), by)
        return unfold(out, axis_size, out.ndim - 1)

    return with_vmap_rule(kernel, rule)


def _flat(x: Array) -> Array:
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def _attributes(how: Gaussians, rows: Rows) -> dict[str, Any]:
    assert rows.columns is not None
    return {
        "activation": how.tanh,
        "split_length": rows.chunks.length,
    }
