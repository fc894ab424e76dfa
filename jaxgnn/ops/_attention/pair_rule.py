"""Attention whose scores need both feature rows of an edge, as one differentiable map and as a
composition of simpler operations."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.ops._aggregation.edge_softmax import combine_first
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._aggregation.kernels import node_dots
from jaxgnn.ops._aggregation.sddmm import sddmm
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._attention import pair_kernels as kernels
from jaxgnn.ops._attention.gat_kernels import normalized
from jaxgnn.ops._attention.gat_rule import leaky_relu, softmax_weights
from jaxgnn.ops._attention.pair_kernels import Nodes, PairAttention, PairOperands
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.recomputed import recomputed
from jaxgnn.ops._core.sparse_rows import SparseRows


def pair_attention(static: PairAttention, operands: PairOperands, impl: Impl) -> Array:
    """The attention by the kernels where there are some, else by the composition."""
    return by_rule(attend, composition, static, operands, impl)


def by_rule(
    attend: Any,
    composition: Any,
    static: PairAttention,
    operands: PairOperands,
    impl: Impl,
) -> Array:
    """`pair_attention` by a rule's kernels and composition; 0 without edges or features."""
    impl = chosen(impl)
    graph, nodes = operands.graph, operands.nodes
    shape = (graph.num_receivers, *nodes.averaged.shape[1:])
    without_edges = graph.num_edges == 0 and not static.self_loops
    if 0 in shape or graph.num_senders == 0 or without_edges:
        return ffi.zeros(shape, nodes.keys.dtype, operands)
    if impl == "jax" or nodes.keys.shape[2] == 0:
        return composition(static, operands, impl)
    operands = operands._replace(nodes=_pad_features(nodes))
    with config.use(impl=impl):
        out, _ = attend(static, PairOperands(*ffi.unify_varying(*operands)))
    return out[..., : shape[2]]


def _pad_features(nodes: Nodes) -> Nodes:
    """The features padded, by zeros that change no score and no average."""
    keys, values, vector = padding.pad_features(nodes.keys, ends=True), nodes.values, nodes.vector
    # Kernels read an array that is both once. Sparse rows have nothing to pad.
    if values is not None and not isinstance(values, SparseRows):
        values = keys if values is nodes.keys else padding.pad_features(values, ends=True)
    if vector is not None:
        vector = padding.pad_by(vector, padding.pad_width(nodes.keys, ends=True))
    queries = padding.pad_features(nodes.queries, ends=True)
    return nodes._replace(queries=queries, keys=keys, values=values, vector=vector)


def gradients(
    static: PairAttention,
    operands: PairOperands,
    out: Float[Array, "num_receivers heads width"],
    log_sum: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> PairOperands:
    r"""The gradients of the averages, from scores recomputed in the backward pass.

    With $\alpha_e = \exp(s_e - \mathrm{lse}_i)$, the mask $m_e$ of dropout with its scale, and
    $\delta_i = \langle dy_i, y_i \rangle$,

    $$dv_j = \sum_e \alpha_e m_e \, dy_i, \qquad
      ds_e = \alpha_e \, (m_e \langle dy_i, v_j \rangle - \delta_i),$$

    and the rows' gradients are the sums at either end of $ds_e$ times the score's derivative. Its
    own derivative is that of the composition's gradients.
    """
    delta = node_dots(cotangent, out)
    at_end = functools.partial(kernels.gradients, static, operands, log_sum, delta, cotangent)
    dkeys, dvalues, _, _ = at_end(by_senders=True)
    dqueries, shares, dedge, dloop = at_end(by_senders=False)
    dvector = None if shares is None else jnp.sum(shares, axis=0, keepdims=True)
    keys, scale, dscale = operands.nodes.keys, operands.nodes.key_scale, None
    if scale is not None:
        dkeys, dscale = scaled_key_gradients(dkeys, keys, scale)
    nodes = Nodes(dqueries, dkeys, dvalues, dvector, dscale)
    return PairOperands(None, nodes, dedge, dloop, None)  # type: ignore[arg-type]


def scaled_key_gradients(
    dproducts: Float[Array, "num_senders heads features"],
    keys: Float[Array, "num_senders heads features"],
    scale: Float[Array, "num_senders heads"],
) -> tuple[Float[Array, "num_senders heads features"], Float[Array, "num_senders heads"]]:
    """The gradients of keys and scale, of those of their products."""
    dkeys = (dproducts.astype(scale.dtype) * scale[:, :, None]).astype(keys.dtype)
    return dkeys, node_dots(dproducts, keys)


def composition(
    static: PairAttention,
    operands: PairOperands,
    impl: Impl = None,
    edge_rows: Float[Array, "num_edges heads features"] | None = None,
    loop_rows: Float[Array, "nodes heads features"] | None = None,
) -> Float[Array, "num_receivers heads width"]:
    """The attention out of operations on edges."""
    edges, loops = attention_weights(static, operands, impl, edge_rows, loop_rows)
    return average(operands, edges, loops, impl)


attend = recomputed(kernels.TARGETS, kernels.forward, normalized(gradients), composition)


def average(
    operands: PairOperands,
    edges: Float[Array, "num_edges heads"],
    loops: Float[Array, "nodes heads"] | None,
    impl: Impl,
) -> Float[Array, "num_receivers heads width"]:
    """The sum of the senders' values by given weights."""
    values = operands.nodes.averaged
    dtype = accumulation_dtype(values.dtype)
    out = spmm(operands.graph, values.astype(dtype), edges, impl=impl)
    if loops is not None:
        own = loops[:, :, None] * values[: loops.shape[0]].astype(dtype)
        out = combine_first(jnp.add, out, own)
    return out.astype(values.dtype)


def attention_weights(
    static: PairAttention,
    operands: PairOperands,
    impl: Impl,
    edge_rows: Float[Array, "num_edges heads features"] | None = None,
    loop_rows: Float[Array, "nodes heads features"] | None = None,
) -> tuple[Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    """The weights after dropout of the edges, and of the added self-loops if there are any.

    `edge_rows` and `loop_rows` are GATv2's terms of the edges, inside of the LeakyReLU.
    """
    graph, nodes = operands.graph, operands.nodes
    dtype = accumulation_dtype(nodes.keys.dtype)
    queries, keys = nodes.queries.astype(dtype), nodes.keys.astype(dtype)
    if nodes.key_scale is not None:
        keys = keys * nodes.key_scale[:, :, None]

    def score_rows(rows: Array, more: Array | None) -> Array:
        assert nodes.vector is not None
        rows = rows if more is None else rows + more.astype(dtype)
        return jnp.sum(leaky_relu(rows, static.scale_or_slope) * nodes.vector, axis=-1)

    if static.score == "dot":
        scores = static.scale_or_slope * sddmm(graph, queries, keys, impl=impl)
    else:
        scores = score_rows(gather_edges(graph, keys, queries, "add", impl=impl), edge_rows)
    if operands.edge_bias is not None:
        scores = scores + operands.edge_bias
    loops = None
    if static.self_loops:
        count = min(keys.shape[0], queries.shape[0])
        keys, queries = keys[:count], queries[:count]
        if static.score == "dot":
            loops = static.scale_or_slope * jnp.sum(queries * keys, axis=-1)
        else:
            loops = score_rows(queries + keys, loop_rows)
        if operands.loop_bias is not None:
            loops = loops + operands.loop_bias[:count]
    return softmax_weights(graph, scores, loops, operands.philox_key, static.drop_below, impl)
