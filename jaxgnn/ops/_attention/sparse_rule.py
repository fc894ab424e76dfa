"""Additive attention over compressed balanced sparse rows as one differentiable map.

`Operands.v` is a `jaxgnn.CBSR` of rows `[num_senders, heads]`. Its gradient is computed at the kept
positions alone.

On a GPU the dense operation's kernels are the faster ones where many features are kept, and those
that add in float64. They then take the dense rows, in either direction by itself.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl
from jaxgnn.graph._layouts.windows import Windows
from jaxgnn.ops._aggregation.kernels import node_dots
from jaxgnn.ops._attention import gat_kernels, gat_rule
from jaxgnn.ops._attention import sparse_kernels as kernels
from jaxgnn.ops._attention.gat_kernels import Attention, Operands
from jaxgnn.ops._attention.sparse_windows import usable_windows
from jaxgnn.ops._core.recomputed import recomputed
from jaxgnn.ops._core.sparse_rows import SparseRows, gather, on_cuda, scatter, visible

# A GPU has sparse kernels where at most this share of a head's features is kept: at the next larger
# k that was measured, the dense ones are as fast (docs/kernels/attention.md, "Sparse rows").
FORWARD_SHARE, BACKWARD_SHARE = 1 / 8, 1 / 16
# The same of the kernels over a graph's windows, which come before the others: in float32, and in
# 16 bits, whose dense kernels read half the bytes.
FORWARD_WINDOWS_SHARES, BACKWARD_WINDOWS_SHARES = (1 / 4, 1 / 8), (1 / 4, 1 / 8)
# Their time follows the windows' entries, that of the kernels by rows the edges: the least edges an
# entry, by what both take at 2.37 (the same page).
FORWARD_EDGES_AN_ENTRY, BACKWARD_EDGES_AN_ENTRY = 2.0, 1.25
_DENSE_WIDTHS = 8  # the dense kernels' vectors, which `gat_attention` pads dense rows to


def composition(
    static: Attention, operands: Operands, impl: Impl = None
) -> Float[Array, "num_receivers heads width"]:
    """The composition on the dense rows; it materializes these and `[num_edges, heads]` arrays."""
    return gat_rule.composition(static, with_dense_rows(operands), impl)


def with_dense_rows(operands: Operands) -> Operands:
    """The operands with the dense form of `v`."""
    return operands._replace(v=dense_rows(operands.v))


def dense_rows(v: SparseRows) -> Float[Array, "num_senders heads width"]:
    """The dense form of sparse rows of heads."""
    dense = scatter(v.width, v.values.reshape(-1, v.k), v.indices.reshape(-1, v.k))
    return dense.reshape(v.shape)


def scattered(v: SparseRows) -> Float[Array, "num_senders heads width"]:
    """`dense_rows` for kernels, without a derivative."""
    kept = visible(v.width, v.values.reshape(-1, v.k), v.indices.reshape(-1, v.k))
    return scatter(v.width, *kept).reshape(v.shape)


def kept_entries(
    dense: Float[Array, "num_senders heads width"], like: SparseRows
) -> Float[Array, "num_senders heads k"]:
    """The entries of dense rows at the positions that sparse rows keep."""
    kept = gather(dense.reshape(-1, like.width), like.indices.reshape(-1, like.k))
    return kept.reshape(like.values.shape)


def takes_dense_rows(k: int, width: int, dtype: Any, share: float) -> bool:
    """Whether a GPU takes the dense operation's kernels: its sparse ones do not add in float64."""
    return jnp.dtype(dtype) == jnp.float64 or (k > share * width and width % _DENSE_WIDTHS == 0)


def either(takes_dense: bool, dense: Any, sparse: Any) -> Any:
    """The kernels on sparse rows, or those on dense rows on a GPU that takes these."""
    return on_cuda(dense, otherwise=sparse) if takes_dense else sparse


def _windows(
    static: Attention, operands: Operands, shares: tuple[float, float], edges_an_entry: float
) -> Windows | None:
    """The windows that a GPU walks, if it does."""
    v = operands.v
    if v.k > shares[v.dtype.itemsize == 2] * v.width:
        return None
    windows = usable_windows(static, operands)
    if windows is None or operands.graph.num_edges < edges_an_entry * windows.senders.shape[0]:
        return None
    return windows


def _forward(static: Attention, operands: Operands) -> tuple[Array, Array]:
    windows = _windows(static, operands, FORWARD_WINDOWS_SHARES, FORWARD_EDGES_AN_ENTRY)

    def sparse(operands: Operands) -> tuple[Array, Array]:
        return kernels.forward(static, operands, windows)

    def dense(operands: Operands) -> tuple[Array, Array]:
        return gat_kernels.forward(static, operands._replace(v=scattered(operands.v)))

    v = operands.v
    takes_dense = windows is None and takes_dense_rows(v.k, v.width, v.dtype, FORWARD_SHARE)
    return either(takes_dense, dense, sparse)(operands)


def _gradients(
    static: Attention,
    operands: Operands,
    out: Float[Array, "num_receivers heads width"],
    log_sum: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> Operands:
    """Those of `gat_rule`, where $v_j$ and $dv_j$ have the kept positions alone."""
    windows = _windows(static, operands, BACKWARD_WINDOWS_SHARES, BACKWARD_EDGES_AN_ENTRY)

    def sparse(operands: Operands, out: Array, log_sum: Array, cotangent: Array) -> Operands:
        delta = node_dots(cotangent, out)
        found = kernels.gradients(static, operands, log_sum, delta, cotangent, windows)
        return Operands(None, *found, None)  # type: ignore[arg-type]

    def dense(operands: Operands, out: Array, log_sum: Array, cotangent: Array) -> Operands:
        rows = operands._replace(v=scattered(operands.v))
        found = gat_rule.gradients(static, rows, out, log_sum, cotangent)
        return found._replace(v=kept_entries(found.v, operands.v))

    v = operands.v
    takes_dense = windows is None and takes_dense_rows(v.k, v.width, v.dtype, BACKWARD_SHARE)
    return either(takes_dense, dense, sparse)(operands, out, log_sum, cotangent)


TARGETS = (*kernels.TARGETS, *gat_kernels.TARGETS)
attend = recomputed(TARGETS, _forward, gat_kernels.normalized(_gradients), composition)
