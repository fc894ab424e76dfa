"""Dot-product attention over neighbors: scores, softmax and aggregation in one operation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.graph import End, Graph
from jaxgnn.ops._attention import pair_rule, sparse_pair_rule
from jaxgnn.ops._attention.pair_kernels import Nodes, PairAttention, PairOperands
from jaxgnn.ops._core import checks, dropout_mask
from jaxgnn.ops._core.parts import over_parts
from jaxgnn.ops._core.sparse_rows import SparseRows, head_values

if TYPE_CHECKING:
    from jaxgnn.ops._maxk.maxk import CBSR

_ENDS: dict[str, End] = {
    "q": "receivers",
    "k": "senders",
    "v": "senders",
    "edge_bias": "edges",
    "scale": "replicated",
    "key_scale": "senders",
    "dropout_rng": "key",
    "loop_bias": "receivers",
}


@jax.named_scope("jaxgnn.dot_attention")
@over_parts(_ENDS, split="heads")
def dot_attention(
    graph: Graph,
    q: Float[Array, "num_receivers heads features"],
    k: Float[Array, "num_senders heads features"],
    v: Float[Array, "num_senders heads width"] | CBSR,
    edge_bias: Float[Array, "num_edges heads"] | None = None,
    *,
    scale: float | Float[Array, " heads"] | None = None,
    key_scale: Float[Array, "num_senders heads"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    self_loops: bool = False,
    loop_bias: Float[Array, "num_receivers heads"] | None = None,
    impl: Impl = None,
) -> Float[Array, "num_receivers heads width"]:
    r"""Averages the senders' values by an attention whose scores are dot products of the ends.

    $$y_{ih} = \sum_{e = (j \to i)} m_{eh} \, \alpha_{eh} \, v_{jh}, \qquad
      \alpha_{eh} = \frac{\exp s_{eh}}{\sum_{e' \to i} \exp s_{e'h}}, \qquad
      s_{eh} = \gamma_h \, c_{jh} \langle q_{ih}, k_{jh} \rangle + b_{eh}$$

    with $\gamma$ = `scale`, $c$ = `key_scale`, 1 if not given, $b$ = `edge_bias` and dropout's
    mask with its scale $m$, 1 without. A receiver without edges gets 0. A bias of $-\infty$ masks
    an edge: its weight is 0, and so is the result of a receiver all of whose edges are masked.
    Scores and sums are in float32 for float32, bfloat16 and float16, in float64 for float64.
    Self-loops and dropout are those of `gat_attention`.

    No intermediates of `[num_edges, heads]` are stored. The residuals are the operands, the result
    and each row's log-sum-exp. The backward pass recomputes the scores and gathers twice: over the
    transpose for `k` and `v`, and over the graph for `q` and the biases. Results are bitwise
    reproducible. Derivatives of second order and above are those of the composition of `sddmm`, a
    softmax and `spmm`, which materializes `[num_edges, heads]` arrays.

    Sparse values, of which each head keeps the same number of features (`maxk` of `[num_senders,
    heads, G]`), are averaged as they are: a kernel computes the scores, the next one softmax and
    SpGEMM, and the gradient of `v` is at the kept positions alone. The scores and their gradients,
    `[num_edges, heads]`, exist while a pass runs; the residuals are as above. What
    `gat_attention` says of the sums of a GPU's sparse kernels holds for the gradient of `v`.
    A GPU takes the dense operation's kernels where these are faster, and for float64.

    Args:
        graph: the graph.
        q: queries of the receivers, `[num_receivers, heads, F]`.
        k: keys of the senders, `[num_senders, heads, F]`.
        v: values of the senders, `[num_senders, heads, G]`; a `CBSR` of that shape is sparse. All
            three are of one dtype.
        edge_bias: added to the scores, `[num_edges, heads]` in the graph's edge order, not the
            user's (`Graph.sort_edge_data`).
        scale: a number, or one for each head as an array, which has a derivative and is multiplied
            into `q`, or where `q` has 16 bits into `key_scale`; $1 / \sqrt{F}$ if not given.
        key_scale: of the keys, `[num_senders, heads]`. Keys that are multiples of the values, as
            where scores are cosines, are then the array `v` itself.
        dropout_rate: share of the weights dropped, at least 0 and below 1.
        dropout_rng: a JAX key, for a `dropout_rate` above 0.
        self_loops: one self-loop for each node, in place of the graph's.
        loop_bias: added to its score, `[num_receivers, heads]`.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, heads, G]` in the dtype of `v`.

    Raises:
        TypeError: `graph` is no `Graph`, a dtype is not floating or differs, or a number or the key
            is none.
        ValueError: a shape does not fit, a number is out of range, the key is missing, or `impl`
            is unknown.

    Source: Vaswani et al., "Attention is all you need" (NeurIPS 2017), section 3.2.1; on graphs Shi
    et al., "Masked label prediction" (IJCAI 2021), section 3.1. The softmax that is scaled as it
    goes and the gradient from the sum's logarithm: Dao et al., "FlashAttention" (NeurIPS 2022),
    section 3.1.
    """
    static, operands = dot_arguments(
        graph,
        q,
        k,
        v,
        edge_bias,
        scale=scale,
        key_scale=key_scale,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        self_loops=self_loops,
        loop_bias=loop_bias,
    )
    if isinstance(operands.nodes.values, SparseRows):
        return sparse_pair_rule.attention(static, operands, impl)
    return pair_rule.pair_attention(static, operands, impl)


@over_parts(
    _ENDS,
    ("receivers", "edges", "receivers"),
    like=dot_attention,
    name="return_attention_weights",
)
def dot_attention_with_weights(
    *arguments: Any, impl: Impl = None, **options: Any
) -> tuple[Array, Float[Array, "num_edges heads"], Float[Array, "nodes heads"] | None]:
    r"""`dot_attention`, and the weights $m \alpha$ that it averages by, of the edges and of the
    added self-loops: an entry for each edge and head."""
    static, operands = dot_arguments(*arguments, **options)
    if isinstance(operands.nodes.values, SparseRows):
        operands = sparse_pair_rule.with_dense_rows(operands)
    edges, loops = pair_rule.attention_weights(static, operands, impl)
    return pair_rule.average(operands, edges, loops, impl), edges, loops


def dot_arguments(
    graph: Any,
    q: Any,
    k: Any,
    v: Any,
    edge_bias: Any = None,
    *,
    scale: Any = None,
    key_scale: Any = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    self_loops: bool = False,
    loop_bias: Any = None,
) -> tuple[PairAttention, PairOperands]:
    """The arguments of `dot_attention`, checked; raises as it does."""
    checks.graph_argument(graph)
    k = node_rows(k, "k", graph.num_senders, "sender")
    q = node_rows(q, "q", graph.num_receivers, "receiver", k)
    v = head_values(v, graph.num_senders)
    if v.dtype != k.dtype or v.shape[1] != k.shape[1]:
        raise ValueError(
            f"v: expected the dtype and heads of k, {k.dtype} and {k.shape[1]}, "
            f"got {v.dtype} and {v.shape[1]}"
        )
    if key_scale is not None:
        key_scale = checks.matrix(key_scale, "key_scale", graph.num_senders, k.shape[1])
        key_scale = key_scale.astype(accumulation_dtype(k.dtype))
    dot_scale = 1 / math.sqrt(max(k.shape[2], 1))
    scale = unwrap(scale)
    if isinstance(scale, jax.Array | np.ndarray) and scale.ndim > 0:
        scale = checks.floating(scale, "scale")
        if scale.shape != k.shape[1:2]:
            raise ValueError(f"scale: expected a number or {k.shape[1:2]}, got {scale.shape}")
        dtype, dot_scale = accumulation_dtype(q.dtype), 1.0
        scale = scale.astype(dtype)[None]
        if q.dtype == dtype:
            q = q * scale[:, :, None]
        else:  # 16 bits would round the product, and may overflow
            of_keys = scale if key_scale is None else key_scale * scale
            key_scale = jnp.broadcast_to(of_keys, k.shape[:2])
    elif scale is not None:
        dot_scale = checks.number(scale, "scale", -math.inf, math.inf)
    nodes = Nodes(q, k, v, None, key_scale)
    return pair_arguments(
        graph, nodes, "dot", dot_scale, edge_bias, dropout_rate, dropout_rng, self_loops, loop_bias
    )


def node_rows(x: Any, name: str, rows: int, what: str, like: Array | None = None) -> Array:
    """`x` as rows of heads of features, of the dtype and the shape of a row of `like`."""
    x = checks.floating_rows(x, name, rows, what)
    if x.ndim != 3:
        raise ValueError(f"{name}: expected the shape ({rows}, heads, features), got {x.shape}")
    if like is not None and x.dtype != like.dtype:
        raise TypeError(f"{name}: expected the dtype of the other end, {like.dtype}, got {x.dtype}")
    if like is not None and x.shape[1:] != like.shape[1:]:
        raise ValueError(f"{name}: expected the shape {(rows, *like.shape[1:])}, got {x.shape}")
    return x


def pair_arguments(
    graph: Graph,
    nodes: Nodes,
    score: Any,
    scale_or_slope: float,
    edge_bias: Any,
    dropout_rate: Any,
    dropout_rng: Any,
    self_loops: bool,
    loop_bias: Any,
) -> tuple[PairAttention, PairOperands]:
    """The arguments that attentions with scores of pairs share, checked."""
    dtype, heads = accumulation_dtype(nodes.keys.dtype), nodes.keys.shape[1]

    def bias(array: Any, name: str, rows: int) -> Array | None:
        return None if array is None else checks.matrix(array, name, rows, heads).astype(dtype)

    self_loops = checks.boolean(self_loops, "self_loops")
    if loop_bias is not None and not self_loops:
        raise ValueError("loop_bias: expected self_loops=True with it, got False")
    drop_below, philox_key = dropout_mask.arguments(dropout_rate, dropout_rng)
    operands = PairOperands(
        graph,
        nodes,
        bias(edge_bias, "edge_bias", graph.num_edges),
        bias(loop_bias, "loop_bias", graph.num_receivers),
        philox_key,
    )
    return PairAttention(score, scale_or_slope, drop_below, self_loops), operands
