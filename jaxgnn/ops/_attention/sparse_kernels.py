"""The kernels of additive attention over compressed balanced sparse rows, without derivatives.

Every array has its heads at axis 1, as in `gat_kernels`: `vmap` over a graph multiplies the heads.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.folding import foldable_heads
from jaxgnn.ops._attention.gat_kernels import (
    Attention,
    Operands,
    Scores,
    attributes,
    call_forward,
)
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty, ordered_structure
from jaxgnn.ops._core.sparse_rows import SparseRows, visible

TARGETS = ("jaxgnn_sparse_attention", "jaxgnn_sparse_attention_gradients")


def forward(
    static: Attention, operands: Operands
) -> tuple[Float[Array, "num_receivers heads width"], Float[Array, "num_receivers heads"]]:
    """The averages, and the logarithm of the sum of the exponentials (0 without edges)."""
    width = operands.v.shape[2]

    def kernel(rows: Rows, arrays: Any) -> tuple[Array, Array]:
        values, indices, score_src, score_dst, scores = arrays
        heads, dtype = values.shape[1], score_src.dtype
        return call_forward(
            TARGETS[0],
            rows,
            [*_cbsr_rows(width, values, indices), score_src, score_dst, *scores.operands(dtype)],
            (heads, width),
            (values.dtype, dtype),
            **attributes(static),
        )

    rows = neighbors(operands.graph, transpose=False)
    return foldable_heads(kernel)(rows, _arrays(operands))


def gradients(
    static: Attention,
    operands: Operands,
    log_sum: Float[Array, "num_receivers heads"],
    delta: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Of the values, `score_src`, `score_dst`, and of the biases that are there."""
    width = operands.v.shape[2]

    def kernel(both: tuple[Rows, Rows], arrays: Any) -> tuple[Array | None, ...]:
        rows, transpose = both
        (values, indices, score_src, score_dst, scores), log_sum, delta, cotangent = arrays
        senders, heads, k = values.shape
        dtype = score_src.dtype
        biases = scores.operands(dtype)
        # By which a GPU bounds sums over the receivers.
        largest = jnp.max(jnp.abs(cotangent), axis=2).astype(dtype)
        dvalues, dsrc, ddst, dedge, dloop, *_ = row_call(
            TARGETS[1],
            rows,
            [
                *ordered_structure(transpose),
                or_empty(transpose.order),
                *_cbsr_rows(width, values, indices),
                score_src,
                cotangent,
                jnp.concatenate([score_dst, log_sum, delta, largest], axis=1),
                *biases,
            ],
            [
                ((senders * heads, k), values.dtype),
                ((senders, heads), dtype),
                ((rows.num_rows, heads), dtype),
                *((bias.shape, dtype) for bias in biases[:2]),
                ((rows.chunks.table.shape[0], heads), dtype),
                ((transpose.chunks.table.shape[0], heads * (k + 1)), dtype),
                ((senders * heads * (k + 3),), dtype),
            ],
            transpose_split_length=transpose.chunks.length,
            **attributes(static),
        )
        return (
            dvalues.reshape(values.shape),
            dsrc,
            ddst,
            None if scores.edge_bias is None else dedge,
            None if scores.loop_bias is None else dloop,
        )

    both = tuple(neighbors(operands.graph, transpose=end) for end in (False, True))
    return foldable_heads(kernel)(both, (_arrays(operands), log_sum, delta, cotangent))


def _arrays(operands: Operands) -> tuple[Array, Array, Array, Array, Scores]:
    """What has its heads at axis 1."""
    _, v, score_src, score_dst, edge_bias, loop_bias, philox_key = operands
    assert isinstance(v, SparseRows)
    scores = Scores.of(edge_bias, loop_bias, philox_key, v.shape[1])
    return v.values, v.indices, score_src, score_dst, scores


def _cbsr_rows(width: int, values: Array, indices: Array) -> tuple[Array, Array]:
    """A row for each sender and head."""
    k = values.shape[2]
    return visible(width, values.reshape(-1, k), indices.reshape(-1, k))
