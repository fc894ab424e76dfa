"""GATv2's attention over neighbors: scores, softmax and aggregation in one operation."""

from __future__ import annotations

import math
from typing import Any

import jax
from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import End, Graph
from jaxgnn.ops._attention import pair_rule
from jaxgnn.ops._attention.dot_attention import node_rows, pair_arguments
from jaxgnn.ops._attention.pair_kernels import Nodes, PairAttention, PairOperands
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.parts import over_parts

_ENDS: dict[str, End] = {
    "left": "senders",
    "right": "receivers",
    "att": "replicated",
    "edge_bias": "edges",
    "edge": "edges",
    "loop_edge": "receivers",
    "dropout_rng": "key",
    "loop_bias": "receivers",
}


@jax.named_scope("jaxgnn.gatv2_attention")
@over_parts(_ENDS, split="heads")
def gatv2_attention(
    graph: Graph,
    left: Float[Array, "num_senders heads features"],
    right: Float[Array, "num_receivers heads features"],
    att: Float[Array, "heads features"],
    edge_bias: Float[Array, "num_edges heads"] | None = None,
    *,
    edge: Float[Array, "num_edges heads features"] | None = None,
    loop_edge: Float[Array, "num_receivers heads features"] | None = None,
    negative_slope: float = 0.2,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    self_loops: bool = False,
    loop_bias: Float[Array, "num_receivers heads"] | None = None,
    impl: Impl = None,
) -> Float[Array, "num_receivers heads features"]:
    r"""Averages the senders' features by an attention that looks at both ends at once.

    $$y_{ih} = \sum_{e = (j \to i)} m_{eh} \, \alpha_{eh} \, l_{jh}, \qquad
      \alpha_{eh} = \frac{\exp s_{eh}}{\sum_{e' \to i} \exp s_{e'h}}, \qquad
      s_{eh} = a_h^\top \mathrm{LeakyReLU}(l_{jh} + r_{ih} + z_{eh}) + b_{eh}$$

    with $l$ = `left`, $r$ = `right`, $a$ = `att`, $z$ = `edge`, $b$ = `edge_bias` and dropout's
    mask with its scale $m$. A receiver without edges gets 0; a bias of $-\infty$ masks an edge.
    Scores and sums are in float32 for float32, bfloat16 and float16, in float64 for float64.
    Self-loops and dropout are those of `gat_attention`.

    Without `edge` no intermediates of `[num_edges, heads]` are stored. The backward pass recomputes
    the scores and gathers twice: over the transpose for `left` (as a key and as a value), and over
    the graph for `right`, `att` and the biases. Results are bitwise reproducible. With `edge`, and
    for derivatives of second order, the attention is composed of operations on edges. These
    materialize the terms of the scores, `[num_edges, heads, F]` like `edge` itself.

    Args:
        graph: the graph.
        left: features of the senders, `[num_senders, heads, F]`.
        right: features of the receivers, `[num_receivers, heads, F]`, of the same dtype.
        att: the scores' vectors, `[heads, F]`.
        edge_bias: added to the scores, `[num_edges, heads]` in the graph's edge order, not the
            user's (`Graph.sort_edge_data`).
        edge: added to the features of the two ends, `[num_edges, heads, F]` in that order.
        loop_edge: the same of the added self-loops, `[num_receivers, heads, F]`; 0 if not given.
        negative_slope: of the LeakyReLU, a finite number.
        dropout_rate: share of the weights dropped, at least 0 and below 1.
        dropout_rng: a JAX key, for a `dropout_rate` above 0.
        self_loops: one self-loop for each node, in place of the graph's.
        loop_bias: added to its score, `[num_receivers, heads]`.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, heads, F]` in the dtype of `left`.

    Raises:
        TypeError: `graph` is no `Graph`, a dtype is not floating or differs, or a number or the key
            is none.
        ValueError: a shape does not fit, a number is out of range, the key is missing, or `impl`
            is unknown.

    Source: Brody et al., "How attentive are graph attention networks?" (ICLR 2022), section 3.2;
    recomputed as in Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022), section 6.
    """
    static, operands, edge, loop_edge = gatv2_arguments(
        graph,
        left,
        right,
        att,
        edge_bias,
        edge=edge,
        loop_edge=loop_edge,
        negative_slope=negative_slope,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        self_loops=self_loops,
        loop_bias=loop_bias,
    )
    if edge is None and loop_edge is None:
        return pair_rule.pair_attention(static, operands, impl)
    impl = chosen(impl)
    if operands.nodes.keys.size == 0 or graph.num_receivers == 0:
        return ffi.zeros(right.shape, left.dtype, operands, edge, loop_edge)
    return pair_rule.composition(static, operands, impl, edge, loop_edge)


@over_parts(
    _ENDS,
    ("receivers", "edges", "receivers"),
    like=gatv2_attention,
    name="return_attention_weights",
)
def gatv2_attention_with_weights(
    *arguments: Any, impl: Impl = None, **options: Any
) -> tuple[Array, Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    r"""`gatv2_attention`, and the weights $m \alpha$ that it averages by, of the edges and of the
    added self-loops."""
    static, operands, edge, loop_edge = gatv2_arguments(*arguments, **options)
    edges, loops = pair_rule.attention_weights(static, operands, impl, edge, loop_edge)
    return pair_rule.average(operands, edges, loops, impl), edges, loops


def gatv2_arguments(
    graph: Any,
    left: Any,
    right: Any,
    att: Any,
    edge_bias: Any = None,
    *,
    edge: Any = None,
    loop_edge: Any = None,
    negative_slope: float = 0.2,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    self_loops: bool = False,
    loop_bias: Any = None,
) -> tuple[PairAttention, PairOperands, Array | None, Array | None]:
    """The arguments of `gatv2_attention`, checked; raises as it does."""
    checks.graph_argument(graph)
    left = node_rows(left, "left", graph.num_senders, "sender")
    right = node_rows(right, "right", graph.num_receivers, "receiver", left)
    att = checks.matrix(att, "att", *left.shape[1:])
    vector = att.astype(accumulation_dtype(left.dtype))[None]
    slope = checks.number(negative_slope, "negative_slope", -math.inf, math.inf)

    def term(array: Any, name: str, rows: int) -> Array | None:
        if array is None:
            return None
        array = checks.floating(array, name)
        if array.shape != (rows, *left.shape[1:]):
            raise ValueError(
                f"{name}: expected the shape {(rows, *left.shape[1:])}, got {array.shape}"
            )
        return array

    self_loops = checks.boolean(self_loops, "self_loops")
    if loop_edge is not None and not self_loops:
        raise ValueError("loop_edge: expected self_loops=True with it, got False")
    edge = term(edge, "edge", graph.num_edges)
    loop_edge = term(loop_edge, "loop_edge", graph.num_receivers)
    if loop_edge is not None:
        loop_edge = loop_edge[: min(graph.num_senders, graph.num_receivers)]
    static, operands = pair_arguments(
        graph,
        Nodes(right, left, None, vector),
        "gatv2",
        slope,
        edge_bias,
        dropout_rate,
        dropout_rng,
        self_loops,
        loop_bias,
    )
    return static, operands, edge, loop_edge
