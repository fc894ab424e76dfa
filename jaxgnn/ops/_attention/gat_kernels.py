"""The kernels of additive attention, without derivatives.

Every array has its heads at axis 1, and heads are independent of each other: `vmap` over a graph
multiplies the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from jaxgnn._core.folding import foldable_heads
from jaxgnn.graph import Graph
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty

TARGETS = (
    "jaxgnn_gat_attention",
    "jaxgnn_gat_attention_senders",
    "jaxgnn_gat_attention_receivers",
)


class Attention(NamedTuple):
    """What of an attention is static.

    Attributes:
        negative_slope: of the LeakyReLU.
        drop_below: random words below this drop an edge.
        self_loops: skip the graph's self-loops, and add one to each node that is both a sender
            and a receiver; its edge index is the number of edges plus the node's index.
    """

    negative_slope: float
    drop_below: int
    self_loops: bool


class Operands(NamedTuple):
    """What the attention is computed from; all but `v` in the accumulation dtype.

    Attributes:
        graph: the graph.
        v: what is averaged; also compressed balanced sparse rows (`sparse_rule`).
        score_src, score_dst: the two ends' shares of the scores.
        edge_bias: the edges' share, or `None`.
        loop_bias: the added self-loops' share, or `None`.
        philox_key: the key of dropout, or `None` without.
    """

    graph: Graph
    v: Any
    score_src: Float[Array, "num_senders heads"]
    score_dst: Float[Array, "num_receivers heads"]
    edge_bias: Float[Array, "num_edges heads"] | None
    loop_bias: Float[Array, "num_receivers heads"] | None
    philox_key: UInt32[Array, " 2"] | None


class Scores(NamedTuple):
    """What scores are computed from, besides the nodes' shares; each may be absent.

    Attributes:
        edge_bias: `[num_edges, heads]`, in the graph's order.
        loop_bias: `[num_receivers, heads]`.
        streams: `[3, heads]`, the key's two words and the head's index.
    """

    edge_bias: Float[Array, "num_edges heads"] | None
    loop_bias: Float[Array, "num_receivers heads"] | None
    streams: UInt32[Array, "3 heads"] | None

    @classmethod
    def of(
        cls, edge_bias: Array | None, loop_bias: Array | None, philox_key: Array | None, heads: int
    ) -> Scores:
        if philox_key is None:
            return cls(edge_bias, loop_bias, None)
        head = jnp.arange(heads, dtype=jnp.uint32)
        keys = jnp.broadcast_to(philox_key[:, None], (2, heads))
        return cls(edge_bias, loop_bias, jnp.concatenate([keys, head[None]]))

    def operands(self, dtype: Any) -> list[Array]:
        """Arrays of two axes, without elements where absent."""
        types = (dtype, dtype, jnp.uint32)
        return [
            jnp.zeros((0, 0), t) if array is None else array
            for array, t in zip(self, types, strict=True)
        ]


def call_forward(
    target: str,
    rows: Rows,
    operands: list[Array],
    shape: tuple[int, int],
    dtypes: tuple[Any, Any],
    scratch: Sequence[tuple[tuple[int, ...], Any]] = (),
    **attributes: Any,
) -> tuple[Float[Array, "rows heads width"], Float[Array, "rows heads 2"]]:
    """What a kernel of the forward pass writes: averages of `shape` (heads, width) a row, and the
    logarithm of the sum of the exponentials with what its rounding lost; of `dtypes`."""
    (heads, width), (dtype, accumulator) = shape, dtypes
    out, log_sum, *_ = row_call(
        target,
        rows,
        operands,
        [
            ((rows.num_rows, heads, width), dtype),
            ((rows.num_rows, heads, 2), accumulator),
            ((rows.chunks.table.shape[0], heads * (width + 2)), accumulator),
            *scratch,
        ],
        **attributes,
    )
    return out, log_sum


def normalized(gradients: Callable[..., Any]) -> Callable[..., Any]:
    r"""`gradients` of a log-sum, for `recomputed`, whose residual also has what rounding lost.

    The weights are $\exp(s_e - \mathrm{lse}_i) \exp(-r_i)$, where $r_i$ is what was lost. Gradients
    are linear in the weights times the cotangent, which therefore takes the factor. It is close to
    1 but where scores are large: of scores of 1e9, as finite masks are, it is one over the number
    of edges.
    """

    def of_residual(
        static: Any,
        operands: Any,
        out: Float[Array, "num_receivers heads width"],
        log_sum: Float[Array, "num_receivers heads 2"],
        cotangent: Float[Array, "num_receivers heads width"],
    ) -> Any:
        factor = jnp.exp(-log_sum[:, :, 1:])
        cotangent = (cotangent.astype(factor.dtype) * factor).astype(cotangent.dtype)
        return gradients(static, operands, out, log_sum[:, :, 0], cotangent)

    return of_residual


def forward(
    static: Attention, operands: Operands
) -> tuple[Float[Array, "num_receivers heads width"], Float[Array, "num_receivers heads 2"]]:
    """The averages, and the logarithm of the sum of the exponentials (0 without edges), with what
    its rounding lost."""

    def kernel(rows: Rows, arrays: Any) -> tuple[Array, Array]:
        v, score_src, score_dst, scores = arrays
        _, heads, width = v.shape
        dtype = score_src.dtype
        return call_forward(
            TARGETS[0],
            rows,
            [v, score_src, score_dst, *scores.operands(dtype)],
            (heads, width),
            (v.dtype, dtype),
            [((v.shape[0] * heads,), dtype)],
            **attributes(static),
        )

    rows = neighbors(operands.graph, transpose=False)
    return foldable_heads(kernel)(rows, _arrays(operands))


def sender_gradients(
    static: Attention,
    operands: Operands,
    log_sum: Float[Array, "num_receivers heads"],
    delta: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> tuple[Float[Array, "num_senders heads width"], Float[Array, "num_senders heads"]]:
    """Gradients of `v` and `score_src`, by a pass over the transpose that gathers `cotangent`."""

    def kernel(rows: Rows, arrays: Any) -> tuple[Array, Array]:
        (v, score_src, score_dst, scores), log_sum, delta, cotangent = arrays
        _, heads, width = v.shape
        dtype = score_src.dtype
        dv, dsrc, *_ = row_call(
            TARGETS[1],
            rows,
            [
                or_empty(rows.order),
                cotangent,
                v,
                score_src,
                _receiver_terms(score_dst, log_sum, delta),
                *scores.operands(dtype),
            ],
            [
                ((rows.num_rows, heads, width), v.dtype),
                ((rows.num_rows, heads), dtype),
                ((rows.chunks.table.shape[0], heads * (width + 1)), dtype),
                _gradient_scratch(rows, cotangent, dtype),
            ],
            **attributes(static),
        )
        return dv, dsrc

    rows = neighbors(operands.graph, transpose=True)
    return foldable_heads(kernel)(rows, (_arrays(operands), log_sum, delta, cotangent))


def receiver_gradients(
    static: Attention,
    operands: Operands,
    log_sum: Float[Array, "num_receivers heads"],
    delta: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> tuple[Float[Array, "num_receivers heads"], Array | None, Array | None]:
    """Gradients of `score_dst` and of the biases that are there, by a pass that gathers `v`."""

    def kernel(rows: Rows, arrays: Any) -> tuple[Array, Array | None, Array | None]:
        (v, score_src, score_dst, scores), log_sum, delta, cotangent = arrays
        heads, dtype = v.shape[1], score_src.dtype
        biases = scores.operands(dtype)[:2]
        ddst, dedge, dloop, *_ = row_call(
            TARGETS[2],
            rows,
            [
                cotangent,
                v,
                score_src,
                _receiver_terms(score_dst, log_sum, delta),
                *scores.operands(dtype),
            ],
            [
                ((rows.num_rows, heads), dtype),
                *((bias.shape, dtype) for bias in biases),
                ((rows.chunks.table.shape[0], heads), dtype),
                _gradient_scratch(rows, v, dtype),
            ],
            **attributes(static),
        )
        return (
            ddst,
            None if scores.edge_bias is None else dedge,
            None if scores.loop_bias is None else dloop,
        )

    rows = neighbors(operands.graph, transpose=False)
    return foldable_heads(kernel)(rows, (_arrays(operands), log_sum, delta, cotangent))


def _arrays(operands: Operands) -> tuple[Array, Array, Array, Scores]:
    """What has its heads at axis 1."""
    _, v, score_src, score_dst, edge_bias, loop_bias, philox_key = operands
    return v, score_src, score_dst, Scores.of(edge_bias, loop_bias, philox_key, v.shape[1])


def _receiver_terms(score_dst: Array, log_sum: Array, delta: Array) -> Array:
    """A receiver's terms, contiguous, so that an edge reads them at one address."""
    return jnp.concatenate([score_dst, log_sum, delta], axis=1)


def _gradient_scratch(rows: Rows, gathered: Array, dtype: Any) -> tuple[tuple[int], Any]:
    """Scratch of CUDA's gradients, as in common/attention_scratch.h: four terms a column and head;
    a dot product a slice (of at least 16 features), row or chunk, and head; one term a row."""
    columns, heads, width = gathered.shape
    parts = rows.num_rows + rows.chunks.table.shape[0]
    return (heads * (4 * columns + parts * -(-width // 16) + rows.num_rows),), dtype


def attributes(static: Attention) -> dict[str, Any]:
    """What the kernels know of the static arguments."""
    return {
        "negative_slope": float(static.negative_slope),
        "drop_below": static.drop_below,
        "self_loops": static.self_loops,
    }
