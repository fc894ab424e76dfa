"""The kernels of additive attention over compressed balanced sparse rows, without derivatives.

Every array has its heads at axis 1, as in `gat_kernels`: `vmap` over a graph multiplies the heads.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.folding import foldable_heads
from jaxgnn.graph._layouts.windows import Windows
from jaxgnn.ops._attention import sparse_windows
from jaxgnn.ops._attention.gat_kernels import (
    Attention,
    Operands,
    Scores,
    attributes,
    call_forward,
)
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty, ordered_structure
from jaxgnn.ops._core.sparse_rows import SparseRows, on_cuda, visible

TARGETS = ("jaxgnn_sparse_attention", "jaxgnn_sparse_attention_gradients")


def forward(
    static: Attention, operands: Operands, windows: Windows | None = None
) -> tuple[Float[Array, "num_receivers heads width"], Float[Array, "num_receivers heads 2"]]:
    """The averages, and the logarithm of the sum of the exponentials (0 without edges), with what
    its rounding lost.

    A GPU walks the `windows`, if there are any (`sparse_windows.usable_windows`).
    """
    width = operands.v.shape[2]

    def by_rows(rows: Rows, _: Any, arrays: Any) -> tuple[Array, Array]:
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

    def by_windows(rows: Rows, windows: Windows, arrays: Any) -> tuple[Array, Array]:
        values, indices, score_src, score_dst, _ = arrays
        values, indices = _visible_heads(width, values, indices)
        return sparse_windows.forward(
            static, rows, windows, width, values, indices, score_src, score_dst
        )

    def kernel(structure: tuple[Rows, Windows | None], arrays: Any) -> tuple[Array, Array]:
        choose = _either(by_windows, by_rows, structure[1], arrays)
        return choose(*structure, arrays)

    structure = (neighbors(operands.graph, transpose=False), windows)
    return foldable_heads(kernel)(structure, _arrays(operands))


def gradients(
    static: Attention,
    operands: Operands,
    log_sum: Float[Array, "num_receivers heads"],
    delta: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
    windows: Windows | None = None,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Of the values, `score_src`, `score_dst`, and of the biases that are there."""
    width = operands.v.shape[2]

    def by_rows(both: tuple[Rows, Rows], _: Any, arrays: Any) -> tuple[Array | None, ...]:
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
            transpose_chunk_length=transpose.chunks.length,
            **attributes(static),
        )
        return (
            dvalues.reshape(values.shape),
            dsrc,
            ddst,
            None if scores.edge_bias is None else dedge,
            None if scores.loop_bias is None else dloop,
        )

    def by_windows(
        both: tuple[Rows, Rows], windows: Windows, arrays: Any
    ) -> tuple[Array | None, ...]:
        (values, indices, score_src, score_dst, _), *others = arrays
        values, indices = _visible_heads(width, values, indices)
        found = sparse_windows.gradients(
            static, both[1], windows, values, indices, score_src, score_dst, *others
        )
        return *found, None, None

    def kernel(structure: Any, arrays: Any) -> tuple[Array | None, ...]:
        choose = _either(by_windows, by_rows, structure[1], arrays[0])
        return choose(*structure, arrays)

    both = tuple(neighbors(operands.graph, transpose=end) for end in (False, True))
    return foldable_heads(kernel)((both, windows), (_arrays(operands), log_sum, delta, cotangent))


def _either(by_windows: Any, by_rows: Any, windows: Windows | None, arrays: Any) -> Any:
    """The kernels over windows on a GPU, if there are any for so many heads."""
    if windows is None or arrays[0].shape[1] > sparse_windows.MAX_HEADS:
        return by_rows
    return on_cuda(by_windows, otherwise=by_rows)


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


def _visible_heads(width: int, values: Array, indices: Array) -> tuple[Array, Array]:
    """The same, with their heads."""
    rows = _cbsr_rows(width, values, indices)
    return rows[0].reshape(values.shape), rows[1].reshape(indices.shape)
