"""The kernels of Gaussian weights, without derivatives, and how a batch of features folds into
them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from jaxgnn import _csr, _ffi
from jaxgnn.graph import Graph
from jaxgnn.ops._rows import REDUCE, Rows, fold, neighbours, one_by_one, unfold

TARGETS = (
    "jaxgnn_gaussian_spmm",
    "jaxgnn_gaussian_spmm_senders",
    "jaxgnn_gaussian_spmm_coordinates",
)
MAX_DIMS = 16
"""Coordinates that the kernels take, as in ffi/gaussian_limits.h."""


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


def forward(
    how: Gaussians, graph: Graph, x: Float[Array, "num_senders kernels width"], by: Weighting
) -> Float[Array, "num_receivers width"]:
    """The sums or means of the weighted rows, over the edges and the kernels."""

    def kernel(rows: Rows, x: Array, by: Weighting) -> Array:
        width = x.shape[2]
        out, _ = _ffi.call(
            TARGETS[0],
            [*_structure(rows), _flat(x), *by.operands(by_senders=False)],
            [
                ((rows.num_rows, width), x.dtype),
                ((rows.splits.shape[0], width), by.mu.dtype),
            ],
            reduce=REDUCE[how.reduce],
            **_attributes(how, rows),
        )
        return out

    return _foldable(kernel)(neighbours(graph, transpose=False), x, by)


def feature_gradient(
    how: Gaussians, graph: Graph, cotangent: Float[Array, "num_receivers width"], by: Weighting
) -> Float[Array, "num_senders kernels width"]:
    """The gradient of `x`, given that of the sums: a pass over the transpose that gathers it."""

    def kernel(rows: Rows, cotangent: Array, by: Weighting) -> Array:
        kernels, width = by.mu.shape[0], cotangent.shape[1]
        out, _ = _ffi.call(
            TARGETS[1],
            [*_structure(rows), _order(rows), cotangent, *by.operands(by_senders=True)],
            [
                ((rows.num_rows, kernels * width), cotangent.dtype),
                ((rows.splits.shape[0], kernels * width), by.mu.dtype),
            ],
            **_attributes(how, rows),
        )
        return out.reshape(rows.num_rows, kernels, width)

    return _foldable(kernel)(neighbours(graph, transpose=True), cotangent, by)


def weighting_gradients(
    how: Gaussians,
    graph: Graph,
    x: Float[Array, "num_senders kernels width"],
    cotangent: Float[Array, "num_receivers width"],
    by: Weighting,
) -> Weighting:
    """The gradients of what the weights are computed from, given that of the sums.

    The pass over the transpose gathers the cotangent, a row an edge, for all but the receivers'
    coordinates; those take another one, over the graph, which gathers `x`.
    """
    pair = by.edges is None
    senders, edges, mu, inv_sigma = _coordinates(how, graph, x, cotangent, by, transpose=True)
    receivers = None
    if pair:
        receivers = _coordinates(how, graph, x, cotangent, by, transpose=False)[0]
    return Weighting(mu, inv_sigma, None if pair else edges, receivers, senders if pair else None)


def _coordinates(
    how: Gaussians, graph: Graph, x: Array, cotangent: Array, by: Weighting, *, transpose: bool
) -> list[Array]:
    """The gradients of the rows' coordinates, of the edges', and with `transpose` of the
    kernels'."""

    @custom_vmap
    def call(rows, x, cotangent, by):
        pair, dtype = by.edges is None, by.mu.dtype
        kernels, dims = by.mu.shape
        parts = rows.splits.shape[0]
        parameters = by.mu.shape if transpose else (0, 0)
        *results, _, _ = _ffi.call(
            TARGETS[2],
            [
                *_structure(rows),
                _order(rows),
                cotangent,
                _flat(x),
                *by.operands(by_senders=transpose),
            ],
            [
                ((rows.num_rows, dims) if pair else (0, 0), dtype),
                ((0, 0) if pair else by.edges.shape, dtype),
                (parameters, dtype),
                (parameters, dtype),
                ((parts, dims), dtype),
                ((parts + rows.num_rows, 2 * kernels * dims) if transpose else (0, 0), dtype),
            ],
            rows_are_senders=transpose,
            **_attributes(how, rows),
        )
        return results

    @call.def_vmap
    def rule(axis_size, in_batched, *operands):
        del axis_size
        return one_by_one(call, in_batched, operands), [True] * 4

    return call(neighbours(graph, transpose=transpose), x, cotangent, by)


def _foldable(kernel: Any) -> Any:
    """Gives `kernel(rows, x, by)` its `vmap` rule: a batch of `x` alone widens its last axis, as
    the weights hold for every example; else the examples run one after the other."""

    @custom_vmap
    def call(rows, x, by):
        return kernel(rows, x, by)

    @call.def_vmap
    def rule(axis_size, in_batched, rows, x, by):
        rows_batched, x_batched, by_batched = in_batched
        if any(jax.tree.leaves((rows_batched, by_batched))):
            return one_by_one(call, in_batched, (rows, x, by)), True
        out = call(rows, fold(x, x_batched, axis_size, x.ndim - 2), by)
        return unfold(out, axis_size, out.ndim - 1), True

    return call


def _structure(rows: Rows) -> list[Array]:
    assert rows.columns is not None
    return [rows.offsets, rows.columns, rows.splits]


def _order(rows: Rows) -> Array:
    return jnp.zeros(0, jnp.int32) if rows.order is None else rows.order


def _flat(x: Array) -> Array:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _attributes(how: Gaussians, rows: Rows) -> dict[str, Any]:
    assert rows.columns is not None
    return {
        "activation": how.tanh,
        "split_length": _csr.split_length(rows.columns.shape[0], rows.num_rows),
    }
