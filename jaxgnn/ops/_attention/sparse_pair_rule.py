"""Dot-product attention over compressed balanced sparse rows as one differentiable map.

`Nodes.values` is a `jaxgnn.CBSR` of rows `[num_senders, heads]`, whose gradient is computed at the
kept positions alone. Queries and keys are dense: `sddmm` computes the scores of the edges, which
the kernels of `sparse_rule` take as the bias of scores that are 0 otherwise. In the backward pass
the scores' gradients are summed into queries and keys by two products. Scores and their gradients,
`[num_edges, heads]`, exist while a pass runs.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl
from jaxgnn.ops._aggregation.edge_softmax import combine_first
from jaxgnn.ops._aggregation.incidence import EdgeEnd, broadcast_to_edges
from jaxgnn.ops._aggregation.kernels import node_dots
from jaxgnn.ops._aggregation.linear import LinearMap, aggregate, edge_dot
from jaxgnn.ops._attention import pair_kernels, pair_rule, sparse_kernels, sparse_rule
from jaxgnn.ops._attention.gat_kernels import Attention, Operands, normalized
from jaxgnn.ops._attention.pair_kernels import Nodes, PairAttention, PairOperands
from jaxgnn.ops._attention.sparse_rule import dense_rows, kept_entries, scattered
from jaxgnn.ops._core.recomputed import recomputed

# As in `sparse_rule`. Keys are dense, and scores are written out and read here: on a GPU dense rows
# were faster for every k but one (docs/kernels/attention.md, "Sparse rows").
FORWARD_SHARE = BACKWARD_SHARE = 0.0
BACKWARD_SHARE_16_BITS = 1 / 16


def attention(static: PairAttention, operands: PairOperands, impl: Impl) -> Array:
    """The attention by the kernels where there are some, else by the composition."""
    return pair_rule.by_rule(attend, composition, static, operands, impl)


def composition(
    static: PairAttention, operands: PairOperands, impl: Impl = None
) -> Float[Array, "num_receivers heads width"]:
    """The composition on the dense rows; it materializes these and `[num_edges, heads]` arrays."""
    return pair_rule.composition(static, with_dense_rows(operands), impl)


def with_dense_rows(operands: PairOperands) -> PairOperands:
    """The operands with the dense form of the values."""
    nodes = operands.nodes
    return operands._replace(nodes=nodes._replace(values=dense_rows(nodes.values)))


def _scattered(operands: PairOperands) -> PairOperands:
    """`with_dense_rows` for kernels, without a derivative."""
    nodes = operands.nodes
    return operands._replace(nodes=nodes._replace(values=scattered(nodes.values)))


def _forward(static: PairAttention, operands: PairOperands) -> tuple[Array, Array]:
    """The averages, and the logarithm of the sum of the exponentials (0 without edges)."""

    def sparse(operands: PairOperands) -> tuple[Array, Array]:
        return sparse_kernels.forward(*_with_scores(static, operands))

    def dense(operands: PairOperands) -> tuple[Array, Array]:
        return pair_kernels.forward(static, _scattered(operands))

    v = operands.nodes.values
    takes_dense = sparse_rule.takes_dense_rows(v.k, v.width, v.dtype, FORWARD_SHARE)
    return sparse_rule.either(takes_dense, dense, sparse)(operands)


def _gradients(
    static: PairAttention,
    operands: PairOperands,
    out: Float[Array, "num_receivers heads width"],
    log_sum: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> PairOperands:
    """Those of `pair_rule`, where $v_j$ and $dv_j$ have the kept positions alone."""

    def sparse(operands: PairOperands, out: Array, log_sum: Array, cotangent: Array) -> Any:
        delta = node_dots(cotangent, out)
        scored = _with_scores(static, operands)
        dvalues, _, _, dscores, dloops = sparse_kernels.gradients(
            *scored, log_sum, delta, cotangent
        )
        assert dscores is not None  # there are always biases here
        dqueries, dkeys, dscale = _score_gradients(static, operands, dscores, dloops)
        return PairOperands(
            None,  # type: ignore[arg-type]
            Nodes(dqueries, dkeys, dvalues, None, dscale),
            None if operands.edge_bias is None else dscores,
            None if operands.loop_bias is None else dloops,
            None,
        )

    def dense(operands: PairOperands, out: Array, log_sum: Array, cotangent: Array) -> Any:
        found = pair_rule.gradients(static, _scattered(operands), out, log_sum, cotangent)
        kept = kept_entries(found.nodes.values, operands.nodes.values)
        return found._replace(nodes=found.nodes._replace(values=kept))

    v = operands.nodes.values
    share = BACKWARD_SHARE_16_BITS if v.dtype.itemsize == 2 else BACKWARD_SHARE
    takes_dense = sparse_rule.takes_dense_rows(v.k, v.width, v.dtype, share)
    return sparse_rule.either(takes_dense, dense, sparse)(operands, out, log_sum, cotangent)


TARGETS = (*sparse_kernels.TARGETS, *pair_kernels.TARGETS)
attend = recomputed(TARGETS, _forward, normalized(_gradients), composition)


def _with_scores(static: PairAttention, operands: PairOperands) -> tuple[Attention, Operands]:
    """The additive attention whose scores are the edges' biases alone."""
    graph, nodes, edge_bias, loop_bias, philox_key = operands
    scores = static.scale_or_slope * edge_dot("rows", graph, nodes.queries, nodes.keys)
    if nodes.key_scale is not None:
        scores = scores * broadcast_to_edges(EdgeEnd(sender=True), graph, nodes.key_scale)
    if edge_bias is not None:
        scores = scores + edge_bias
    loops = None
    if static.self_loops:
        queries, keys, key_scale = _at_loops(nodes)
        loops = static.scale_or_slope * node_dots(queries, keys)
        if key_scale is not None:
            loops = loops * key_scale
        absent = graph.num_receivers - loops.shape[0]
        loops = jnp.pad(loops, ((0, absent), (0, 0)))
        if loop_bias is not None:
            loops = loops + loop_bias
    heads, dtype = scores.shape[1], scores.dtype
    senders = jnp.zeros((graph.num_senders, heads), dtype)
    receivers = jnp.zeros((graph.num_receivers, heads), dtype)
    additive = Attention(1.0, static.drop_below, static.self_loops)
    return additive, Operands(graph, nodes.values, senders, receivers, scores, loops, philox_key)


def _score_gradients(
    static: PairAttention, operands: PairOperands, dscores: Array, dloops: Array | None
) -> tuple[Array, Array, Array | None]:
    """The gradients of queries, keys and `key_scale`, of those of the scores."""
    graph, nodes = operands.graph, operands.nodes
    keys, scale = nodes.keys, nodes.key_scale
    of_edges = static.scale_or_slope * dscores
    of_loops = None if dloops is None else static.scale_or_slope * dloops
    # Of the product of keys and scale.
    dkeys = aggregate(LinearMap(transpose=True), graph, nodes.queries, of_edges)
    if scale is not None:
        of_edges = of_edges * broadcast_to_edges(EdgeEnd(sender=True), graph, scale)
    dqueries = aggregate(LinearMap(transpose=False), graph, keys, of_edges)
    if of_loops is not None:
        loop_queries, loop_keys, loop_scale = _at_loops(nodes)
        of_loops = of_loops[: loop_keys.shape[0]]
        dkeys = _with_loops(dkeys, of_loops, loop_queries)
        of_loops = of_loops if loop_scale is None else of_loops * loop_scale
        dqueries = _with_loops(dqueries, of_loops, loop_keys)
    if scale is None:
        return dqueries, dkeys, None
    dkeys, dscale = pair_rule.scaled_key_gradients(dkeys, keys, scale)
    return dqueries, dkeys, dscale


def _at_loops(nodes: Nodes) -> tuple[Array, Array, Array | None]:
    """Queries, keys and their scale at the nodes that are both a sender and a receiver."""
    count = min(nodes.queries.shape[0], nodes.keys.shape[0])
    scale = None if nodes.key_scale is None else nodes.key_scale[:count]
    return nodes.queries[:count], nodes.keys[:count], scale


def _with_loops(sums: Array, weights: Array, rows: Array) -> Array:
    """The sums over the edges plus those of the added self-loops, rounded again."""
    dtype = weights.dtype
    own = weights[:, :, None] * rows.astype(dtype)
    return combine_first(jnp.add, sums.astype(dtype), own).astype(sums.dtype)
