"""Additive attention as one differentiable map, and as a composition of simpler operations."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.edge_softmax import combine_first, edge_softmax
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._aggregation.kernels import node_dots
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._attention import gat_kernels as kernels
from jaxgnn.ops._attention.gat_kernels import Attention, Operands
from jaxgnn.ops._core.dropout_mask import keep_factors
from jaxgnn.ops._core.recomputed import recomputed


def gradients(
    static: Attention,
    operands: Operands,
    out: Float[Array, "num_receivers heads width"],
    log_sum: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> Operands:
    r"""The gradients of the averages, from scores recomputed in the backward pass.

    With $\alpha_e = \exp(s_e - \mathrm{lse}_i)$, the mask $m_e$ of dropout with its scale, and
    $\delta_i = \langle dy_i, y_i \rangle = \sum_e \alpha_e m_e \langle dy_i, v_j \rangle$,

    $$dv_j = \sum_e \alpha_e m_e \, dy_i, \qquad
      dt_e = \alpha_e \, (m_e \langle dy_i, v_j \rangle - \delta_i)
             \, \mathrm{LeakyReLU}'(t_e),$$

    and the scores' gradients are the sums of $dt_e$ at either end. Its own derivative is that of
    the composition's gradients.
    """
    delta = node_dots(cotangent, out)
    dv, dsrc = kernels.sender_gradients(static, operands, log_sum, delta, cotangent)
    ddst, dedge, dloop = kernels.receiver_gradients(static, operands, log_sum, delta, cotangent)
    return Operands(None, dv, dsrc, ddst, dedge, dloop, None)  # type: ignore[arg-type]


def composition(
    static: Attention, operands: Operands, impl: Impl = None
) -> Float[Array, "num_receivers heads width"]:
    """The attention composed of edge operations; it materializes `[num_edges, heads]` arrays."""
    return average(operands, *attention_weights(static, operands, impl), impl)


attend = recomputed(kernels.TARGETS, kernels.forward, kernels.normalized(gradients), composition)


def average(
    operands: Operands,
    edges: Float[Array, "num_edges heads"],
    loops: Float[Array, "nodes heads"] | None,
    impl: Impl,
) -> Float[Array, "num_receivers heads width"]:
    """The sum of the rows of `v` by given weights."""
    v = operands.v
    dtype = accumulation_dtype(v.dtype)
    out = spmm(operands.graph, v.astype(dtype), edges, impl=impl)
    if loops is not None:
        own = loops[:, :, None] * v[: loops.shape[0]].astype(dtype)
        out = combine_first(jnp.add, out, own)
    return out.astype(v.dtype)


def attention_weights(
    static: Attention, operands: Operands, impl: Impl
) -> tuple[Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    """The weights after dropout of the edges, and of the added self-loops if there are any.

    Those are at the nodes that are both a sender and a receiver, the first ones.
    """
    graph = operands.graph
    scores = gather_edges(graph, operands.score_src, operands.score_dst, "add", impl=impl)
    if operands.edge_bias is not None:
        scores = scores + operands.edge_bias
    scores = leaky_relu(scores, static.negative_slope)
    loops = _loop_scores(static, operands) if static.self_loops else None
    return softmax_weights(graph, scores, loops, operands.philox_key, static.drop_below, impl)


def softmax_weights(
    graph: Graph,
    scores: Float[Array, "num_edges heads"],
    loops: Float[Array, "nodes heads"] | None,
    philox_key: UInt32[Array, " 2"] | None,
    drop_below: int,
    impl: Impl,
) -> tuple[Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    """The softmax over each receiver's edges, after dropout; with `loops`, the scores of added
    self-loops, the graph's own are skipped."""
    if loops is not None:
        own = (graph.senders == graph.receivers)[:, None]
        scores = jnp.where(own, jnp.full_like(scores, -jnp.inf), scores)
    edges, loops = edge_softmax(graph, scores, loops, impl=impl)
    if philox_key is not None:

        def keep(first: int, weights: Array) -> Array:
            edges, heads = weights.shape
            return keep_factors(philox_key, first, edges, heads, drop_below, weights.dtype)

        edges = edges * keep(0, edges)
        loops = None if loops is None else loops * keep(graph.num_edges, loops)
    return edges, loops


def leaky_relu(scores: Array, slope: float) -> Array:
    r"""LeakyReLU with $-\infty$ kept, which masks, whatever the slope; its derivative at 0 is the
    slope, as PyTorch's."""
    kept = (scores > 0) | (scores == -jnp.inf)
    return jnp.where(kept, scores, scores * slope)


def _loop_scores(static: Attention, operands: Operands) -> Array:
    nodes = min(operands.score_src.shape[0], operands.score_dst.shape[0])
    scores = operands.score_src[:nodes] + operands.score_dst[:nodes]
    if operands.loop_bias is not None:
        scores = scores + operands.loop_bias[:nodes]
    return leaky_relu(scores, static.negative_slope)
