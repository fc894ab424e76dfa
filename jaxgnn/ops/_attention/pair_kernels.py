"""The kernels of attention whose scores need both feature rows of an edge, without derivatives.

Every array has its heads at axis 1, as in `gat_kernels`: `vmap` over a graph multiplies
the heads.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.folding import foldable_heads
from jaxgnn.graph import Graph
from jaxgnn.ops._attention.gat_kernels import Scores, call_forward
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty

TARGETS = ("jaxgnn_pair_attention", "jaxgnn_pair_attention_gradients")


class PairAttention(NamedTuple):
    """What of an attention is static.

    Attributes:
        score: `"dot"`, or `"gatv2"`, whose values are the keys and whose score has a vector.
        scale_or_slope: the dot product's scale, or the LeakyReLU's slope.
        drop_below: random words below this drop an edge.
        self_loops: as in `Attention`.
    """

    score: Literal["dot", "gatv2"]
    scale_or_slope: float
    drop_below: int
    self_loops: bool


class Nodes(NamedTuple):
    """The nodes' rows, and what is between them.

    Attributes:
        queries: of the receivers.
        keys: of the senders.
        values: of the senders; `None` where they are the keys; also compressed balanced sparse
            rows (`sparse_pair_rule`).
        vector: of each head, with an axis before; `None` without.
        key_scale: what the keys are multiplied by, in the accumulation dtype; `None` without.
    """

    queries: Float[Array, "num_receivers heads features"]
    keys: Float[Array, "num_senders heads features"]
    values: Any
    vector: Float[Array, "1 heads features"] | None
    key_scale: Float[Array, "num_senders heads"] | None = None

    @property
    def averaged(self) -> Any:
        return self.keys if self.values is None else self.values

    def operands(self) -> list[Array]:
        """Arrays without elements where absent."""
        dtype = accumulation_dtype(self.keys.dtype)
        return [
            self.queries,
            self.keys,
            jnp.zeros((0, 0), self.keys.dtype) if self.values is None else self.values,
            jnp.zeros((0, 0), dtype) if self.vector is None else self.vector[0],
            jnp.zeros((0, 0), dtype) if self.key_scale is None else self.key_scale,
        ]


class PairOperands(NamedTuple):
    """What the attention is computed from.

    Attributes:
        graph: the graph.
        nodes: the nodes' rows, of one dtype; the vector in the accumulation dtype.
        edge_bias: the edges' share of the scores, in that too, or `None`.
        loop_bias: the added self-loops' share, or `None`.
        philox_key: the key of dropout, or `None` without.
    """

    graph: Graph
    nodes: Nodes
    edge_bias: Float[Array, "num_edges heads"] | None
    loop_bias: Float[Array, "num_receivers heads"] | None
    philox_key: UInt32[Array, " 2"] | None


def forward(
    static: PairAttention, operands: PairOperands
) -> tuple[Float[Array, "num_receivers heads width"], Float[Array, "num_receivers heads 2"]]:
    """The averages, and the logarithm of the sum of the exponentials (0 without edges), with what
    its rounding lost."""

    def kernel(rows: Rows, arrays: Any) -> tuple[Array, Array]:
        nodes, scores = arrays
        _, heads, width = nodes.averaged.shape
        dtype = accumulation_dtype(nodes.keys.dtype)
        return call_forward(
            TARGETS[0],
            rows,
            [*nodes.operands(), *scores.operands(dtype)],
            (heads, width),
            (nodes.keys.dtype, dtype),
            **_attributes(static, heads),
        )

    rows = neighbors(operands.graph, transpose=False)
    return foldable_heads(kernel)(rows, _arrays(operands))


def gradients(
    static: PairAttention,
    operands: PairOperands,
    log_sum: Float[Array, "num_receivers heads"],
    delta: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
    *,
    by_senders: bool,
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """By senders, over the transpose: the gradients of `keys` times `key_scale`, and of `values`,
    if there are any. By receivers: those of `queries`, of the vector (each row's share) and of the
    biases."""

    def kernel(rows: Rows, arrays: Any) -> tuple[Array, Array | None, Array | None, Array | None]:
        (nodes, scores), log_sum, delta, cotangent = arrays
        _, heads, features = nodes.keys.shape
        dtype = accumulation_dtype(nodes.keys.dtype)
        second: Array | None = nodes.values if by_senders else nodes.vector
        width = 0 if second is None else heads * second.shape[2]
        second_dtype = nodes.keys.dtype if by_senders else dtype
        biases = [bias.shape for bias in scores.operands(dtype)[:2]]
        first, more, dedge, dloop, _ = row_call(
            TARGETS[1],
            rows,
            [
                or_empty(rows.order),
                *nodes.operands(),
                *scores.operands(dtype),
                cotangent,
                jnp.concatenate([log_sum, delta], axis=1),
            ],
            [
                ((rows.num_rows, heads, features), nodes.keys.dtype),
                ((rows.num_rows, width) if width else (0, 0), second_dtype),
                *(((0, 0) if by_senders else bias, dtype) for bias in biases),
                ((rows.chunks.table.shape[0] * (heads * features + width),), dtype),
            ],
            by_senders=by_senders,
            **_attributes(static, heads),
        )
        return (
            first,
            None if second is None else more.reshape(rows.num_rows, heads, second.shape[2]),
            None if by_senders or scores.edge_bias is None else dedge,
            None if by_senders or scores.loop_bias is None else dloop,
        )

    rows = neighbors(operands.graph, transpose=by_senders)
    return foldable_heads(kernel)(rows, (_arrays(operands), log_sum, delta, cotangent))


def _arrays(operands: PairOperands) -> tuple[Nodes, Scores]:
    """What has its heads at axis 1."""
    _, nodes, edge_bias, loop_bias, philox_key = operands
    return nodes, Scores.of(edge_bias, loop_bias, philox_key, nodes.keys.shape[1])


def _attributes(static: PairAttention, heads: int) -> dict[str, Any]:
    return {
        "score": 1 if static.score == "gatv2" else 0,
        "score_parameter": float(static.scale_or_slope),
        "heads": heads,
        "drop_below": static.drop_below,
        "self_loops": static.self_loops,
    }
