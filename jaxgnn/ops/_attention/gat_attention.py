"""Additive attention over neighbors: scores, softmax and aggregation in one operation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import End, Graph
from jaxgnn.ops._attention import gat_rule, sparse_rule
from jaxgnn.ops._attention.gat_kernels import Attention, Operands
from jaxgnn.ops._core import checks, dropout_mask, padding
from jaxgnn.ops._core.parts import over_parts
from jaxgnn.ops._core.sparse_rows import SparseRows, head_values

if TYPE_CHECKING:
    from jaxgnn.ops._maxk.maxk import CBSR

_ENDS: dict[str, End] = {
    "v": "senders",
    "score_src": "senders",
    "score_dst": "receivers",
    "edge_bias": "edges",
    "loop_bias": "receivers",
    "dropout_rng": "key",
}


@jax.named_scope("jaxgnn.gat_attention")
@over_parts(_ENDS, split="heads")
def gat_attention(
    graph: Graph,
    v: Float[Array, "num_senders heads features"] | CBSR,
    score_src: Float[Array, "num_senders heads"],
    score_dst: Float[Array, "num_receivers heads"],
    edge_bias: Float[Array, "num_edges heads"] | None = None,
    *,
    negative_slope: float = 0.2,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    self_loops: bool = False,
    loop_bias: Float[Array, "num_receivers heads"] | None = None,
    impl: Impl = None,
) -> Float[Array, "num_receivers heads features"]:
    r"""Averages the senders' features by an attention whose scores are sums over the two ends.

    $$y_{ih} = \sum_{e = (j \to i)} m_{eh} \, \alpha_{eh} \, v_{jh}, \qquad
      \alpha_{eh} = \frac{\exp s_{eh}}{\sum_{e' \to i} \exp s_{e'h}}, \qquad
      s_{eh} = \mathrm{LeakyReLU}(p_{jh} + q_{ih} + b_{eh})$$

    with $p$ = `score_src`, $q$ = `score_dst`, $b$ = `edge_bias`. $m$ is dropout's mask with its
    scale, 1 without. A receiver without edges gets 0. An edge whose sum is $-\infty$, such as one
    with a bias of $-\infty$, is masked: its weight is 0, and so is the result of a receiver all of
    whose edges are masked, and their gradients. NaN and $+\infty$ show in the result, but a
    kernel may skip the features of edges that dropout drops. Scores and sums are in float32
    for float32, bfloat16 and float16, in float64 for float64.

    With `self_loops` the graph's own self-loops (edges with equal endpoint indices) are skipped.
    Each node that is both a sender and a receiver gets one edge to itself, with the bias
    `loop_bias`. This is PyG's rule for GAT, without another graph.

    No intermediates of `[num_edges, heads]` are stored. The residuals are the operands, the result
    and each row's log-sum-exp. The backward pass recomputes the scores and gathers twice: over the
    transpose for `v` and `score_src`, and over the graph for `score_dst` and the bias. Results are
    bitwise reproducible. Derivatives of second order and above are those of the reference, which
    materializes `[num_edges, heads]` arrays.

    Sparse features, of which each head keeps the same number k (`maxk` of `[num_senders, heads,
    F]`), are averaged as they are: softmax and SpGEMM are one kernel, which reads k entries an edge
    and head, and the backward pass computes the gradient of `v` at the kept positions alone. On a
    GPU the senders' gradients are summed in fixed point, 29 bits of a bound on each sender's sums;
    one that is not finite makes all of that sender's and head's NaN. float64 is dense there. A
    graph `with_windows` has kernels of its own there, without biases and dropout, that sum
    averages in fixed point too, 30 bits of a bound on each receiver's sums.

    The dropout mask depends only on the key, the edge's index in the graph's order and the head
    (Philox4x32-10). The backward pass recomputes it, and all implementations agree.

    Args:
        graph: the graph.
        v: features of the senders, `[num_senders, heads, F]`; a `CBSR` of that shape is sparse.
        score_src: the senders' share of the scores, `[num_senders, heads]`.
        score_dst: the receivers' share, `[num_receivers, heads]`.
        edge_bias: the edges' share, `[num_edges, heads]` in the graph's edge order, not the user's
            (`Graph.sort_edge_data`); 0 if not given.
        negative_slope: of the LeakyReLU, a finite number.
        dropout_rate: share of the weights dropped, at least 0 and below 1.
        dropout_rng: a JAX key, for a `dropout_rate` above 0.
        self_loops: one self-loop for each node, in place of the graph's.
        loop_bias: its share of the scores, `[num_receivers, heads]`; 0 if not given.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, heads, F]` in the dtype of `v`.

    Raises:
        TypeError: `graph` is no `Graph`, a dtype is not floating, or a number or the key is none.
        ValueError: a shape does not fit, a number is out of range, the key is missing, or `impl`
            is unknown.

    Source: Velickovic et al., "Graph Attention Networks" (ICLR 2018), section 2.1; fused and
    recomputed as in Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022), sections
    4 to 6; sparse rows: Peng et al., "MaxK-GNN" (ASPLOS 2024); the generator: Salmon et al. (SC
    2011).
    """
    static, operands = attention_arguments(
        graph,
        v,
        score_src,
        score_dst,
        edge_bias,
        negative_slope=negative_slope,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        self_loops=self_loops,
        loop_bias=loop_bias,
    )
    impl = chosen(impl)
    v = operands.v
    empty = math.prod(v.shape) == 0 or graph.num_receivers == 0
    if empty or (graph.num_edges == 0 and not self_loops):
        return ffi.zeros((graph.num_receivers, *v.shape[1:]), v.dtype, operands)
    rule = sparse_rule if isinstance(v, SparseRows) else gat_rule
    if impl == "jax":
        return rule.composition(static, operands, impl)
    if not isinstance(v, SparseRows):
        operands = operands._replace(v=padding.pad_features(v, ends=True))
    operands = Operands(*ffi.unify_varying(*operands))
    with config.use(impl=impl):
        out, _ = rule.attend(static, operands)
    return out[..., : v.shape[2]]


@over_parts(
    _ENDS,
    ("receivers", "edges", "receivers"),
    like=gat_attention,
    name="return_attention_weights",
)
def gat_attention_with_weights(
    *arguments: Any, impl: Impl = None, **options: Any
) -> tuple[
    Float[Array, "num_receivers heads features"],
    Float[Array, "num_edges heads"],
    Float[Array, "nodes heads"] | None,
]:
    r"""`gat_attention`, and the weights $m \alpha$ that it averages by, of the edges and of the
    added self-loops: for looking at them, as they are an entry for each edge and head."""
    static, operands = attention_arguments(*arguments, **options)
    if isinstance(operands.v, SparseRows):
        operands = sparse_rule.with_dense_rows(operands)
    edges, loops = gat_rule.attention_weights(static, operands, impl)
    return gat_rule.average(operands, edges, loops, impl), edges, loops


def attention_arguments(
    graph: Any,
    v: Any,
    score_src: Any,
    score_dst: Any,
    edge_bias: Any = None,
    *,
    negative_slope: float = 0.2,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    self_loops: bool = False,
    loop_bias: Any = None,
) -> tuple[Attention, Operands]:
    """The arguments of `gat_attention`, checked; raises as it does."""
    checks.graph_argument(graph)
    v = head_values(v, graph.num_senders)
    dtype, heads = accumulation_dtype(v.dtype), v.shape[1]

    def scores(array: Any, name: str, rows: int) -> Array:
        return checks.matrix(array, name, rows, heads).astype(dtype)

    self_loops = checks.boolean(self_loops, "self_loops")
    if loop_bias is not None and not self_loops:
        raise ValueError("loop_bias: expected self_loops=True with it, got False")
    slope = checks.number(negative_slope, "negative_slope", -math.inf, math.inf)
    drop_below, philox_key = dropout_mask.arguments(dropout_rate, dropout_rng)
    operands = Operands(
        graph,
        v,
        scores(score_src, "score_src", graph.num_senders),
        scores(score_dst, "score_dst", graph.num_receivers),
        None if edge_bias is None else scores(edge_bias, "edge_bias", graph.num_edges),
        None if loop_bias is None else scores(loop_bias, "loop_bias", graph.num_receivers),
        philox_key,
    )
    return Attention(slope, drop_below, self_loops), operands
