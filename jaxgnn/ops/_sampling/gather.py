"""Rows of nodes at places, and sums of them; the transposes sum in a fixed order, without float
atomics."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import Multilinear
from jaxgnn.graph import Graph, NodeRows
from jaxgnn.graph._build.row_chunks import padding_chunk
from jaxgnn.ops._aggregation.kernels import reduce_rows
from jaxgnn.ops._aggregation.linear import LinearMap, aggregate, edge_dot_of
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.rows import neighbors
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


class _NodeMap(NamedTuple):
    """The sum or mean over the edges of rows of nodes; static."""

    linear_map: LinearMap
    num_nodes: int


@jax.named_scope("jaxgnn.aggregate_nodes")
def aggregate_nodes(
    graph: Graph,
    x: NodeRows,
    weights: Float[Array, " num_edges"] | None = None,
    *,
    mean: bool,
) -> Float[Array, "num_receivers *rest"]:
    """`spmm` of blocks' rows, read where the nodes have them.

    The receivers are the first places, and those of padding have padding's senders alone.
    """
    num_nodes, rest = x.values.shape[0], x.shape[1:]
    shape = (graph.num_receivers, *rest)
    if math.prod(shape) == 0 or num_nodes == 0 or graph.num_edges == 0:
        return ffi.zeros(shape, x.dtype, graph, x, weights)
    values = x.values.reshape(num_nodes, 1, math.prod(rest))
    if weights is not None:
        weights = weights.astype(accumulation_dtype(x.dtype))[:, None]
    graph, nodes, values, weights = ffi.unify_varying(graph, x.nodes, values, weights)
    static = _NodeMap(LinearMap(False, "receivers" if mean else None), num_nodes)
    out = _aggregate_nodes(static, (graph, nodes), padding.pad_features(values), weights)
    return out[..., : values.shape[-1]].reshape(shape)


def _aggregate(
    static: _NodeMap,
    fixed: tuple[Graph, Int[Array, " places"]],
    values: Float[Array, "num_nodes 1 width"],
    weights: Float[Array, "num_edges 1"] | None,
) -> Float[Array, "num_receivers 1 width"]:
    graph, nodes = fixed
    rows = neighbors(graph, transpose=False)
    # Padding has receivers of its own. Its edges read any row, and long rows of it are not summed
    # at all: a kernel leaves a row that is longer than a chunk, and has none, as it is.
    table = padding_chunk()
    if not rows.chunks.of_padding:
        padding_row = nodes[jnp.maximum(rows.chunks.table[:, 0], 0)] < 0
        table = jnp.where(padding_row[:, None], table, rows.chunks.table)
    chunks = dataclasses.replace(rows.chunks, table=table)
    rows = rows._replace(columns=jnp.maximum(nodes[graph.senders], 0), chunks=chunks)
    reduce = "sum" if static.linear_map.divide is None else "mean"
    out = reduce_rows(rows, values, weights, reduce)
    return jnp.where((nodes[: graph.num_receivers] >= 0)[:, None, None], out, 0)


def _at_places(
    static: _NodeMap, nodes: Int[Array, " places"], values: Float[Array, "num_nodes 1 width"]
) -> Float[Array, "places 1 width"]:
    return gather_nodes(nodes, values[:, 0])[:, None]


def _transpose_values(static, fixed, cotangent, weights):
    graph, nodes = fixed
    at_places = aggregate(static.linear_map.adjoint(), graph, cotangent, weights)
    flat = jnp.where(nodes < 0, static.num_nodes, nodes)
    return _sum(static.num_nodes, flat, at_places[:, 0])[:, None]


def _transpose_weights(static, fixed, values, cotangent):
    graph, nodes = fixed
    return edge_dot_of(static.linear_map, graph, _at_places(static, nodes, values), cotangent)


_aggregate_nodes = Multilinear(_aggregate, (_transpose_values, _transpose_weights))
