"""Rows of nodes at places, and their transpose: sums in a fixed order, without float atomics."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._core import ffi
from jaxgnn._core.linear_call import Multilinear
from jaxgnn.ops._aggregation.kernels import reduce_rows
from jaxgnn.ops._core import padding
from jaxgnn.ops._sampling.rows import rows_by_node


def gather_nodes(
    nodes: Int[Array, "*places"], x: Float[Array, "num_nodes width"]
) -> Float[Array, "*places width"]:
    """The row of each place's node, 0 where that is -1."""
    num_nodes, width = x.shape
    if nodes.size == 0 or num_nodes == 0:
        return ffi.zeros((*nodes.shape, width), x.dtype, nodes, x)
    nodes, x = ffi.unify_varying(nodes, x)
    flat = jnp.where(nodes < 0, num_nodes, nodes).reshape(-1)
    return _gather(num_nodes, flat, x).reshape(*nodes.shape, width)


def _gather_rows(
    num_nodes: int, nodes: Int[Array, " places"], x: Float[Array, "num_nodes width"]
) -> Float[Array, "places width"]:
    return x.at[nodes].get(mode="fill", fill_value=0)


def _sum_rows(
    num_nodes: int, nodes: Int[Array, " places"], y: Float[Array, "places width"]
) -> Float[Array, "num_nodes width"]:
    rows = rows_by_node(nodes, num_nodes)
    return reduce_rows(rows, padding.pad_features(y[:, None, :]), None, "sum")[:, 0, : y.shape[1]]


_gather = Multilinear(
    _gather_rows, (lambda num_nodes, nodes, cotangent: _sum(num_nodes, nodes, cotangent),)
)
_sum = Multilinear(
    _sum_rows, (lambda num_nodes, nodes, cotangent: _gather(num_nodes, nodes, cotangent),)
)
