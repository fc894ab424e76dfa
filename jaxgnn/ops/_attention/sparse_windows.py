"""The kernels of additive attention over sparse rows by windows of receivers, of a GPU alone.

A graph's windows (`Graph.with_windows`) list a sender once for 64 receivers. Without biases
and dropout; every array has its heads at axis 1, as in `sparse_kernels`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from jaxgnn._core import device
from jaxgnn.graph._layouts.windows import RECEIVERS, Windows
from jaxgnn.ops._attention.gat_kernels import Attention, Operands
from jaxgnn.ops._core import padding
from jaxgnn.ops._core.row_call import row_call
from jaxgnn.ops._core.rows import Rows, windows_of
from jaxgnn.ops._core.sparse_rows import SparseRows

MAX_WIDTH = 256  # of a head: a block has a window's rows of one head at least
SMALL_WIDTH = 236  # the same with self-loops where a block has 99 KB of shared memory
MAX_ENTRIES = 32  # of a CBSR row: a warp takes it whole
MAX_HEADS = 32768
# Threads of a block, 384 or 512: more hide latency, fewer leave registers.
FORWARD_THREADS, BACKWARD_THREADS = 512, 512


def usable_windows(static: Attention, operands: Operands) -> Windows | None:
    """The graph's windows, if these kernels serve the operands over them."""
    graph, v, *_, edge_bias, loop_bias, philox_key = operands
    windows = graph.windows
    if windows is None or windows.receivers != RECEIVERS or graph.num_edges == 0:
        return None
    plain = edge_bias is None and loop_bias is None and philox_key is None
    assert isinstance(v, SparseRows)
    most = SMALL_WIDTH if static.self_loops and device.has_small_blocks() else MAX_WIDTH
    fits = v.width % 4 == 0 and v.width <= most and v.k <= MAX_ENTRIES
    if not plain or not fits or v.dtype == jnp.float64:
        return None
    return windows_of(graph)


def forward(
    static: Attention,
    rows: Rows,
    windows: Windows,
    width: int,
    values: Float[Array, "num_senders heads k"],
    indices: UInt[Array, "num_senders heads k"],
    score_src: Float[Array, "num_senders heads"],
    score_dst: Float[Array, "num_receivers heads"],
) -> tuple[Float[Array, "num_receivers heads width"], Float[Array, "num_receivers heads 2"]]:
    """As `sparse_kernels.forward`."""
    senders, heads, _ = values.shape
    features, chunks = heads * width, rows.chunks.table.shape[0]
    places = senders if static.self_loops else 0
    out, log_sum, _, _ = row_call(
        "jaxgnn_sparse_window_attention",
        rows,
        [*_windows(windows), *_padded(values, indices), score_src, score_dst],
        [
            ((rows.num_rows, features), values.dtype),
            ((rows.num_rows, heads, 2), jnp.float32),
            ((windows.num_partials, RECEIVERS, features), jnp.int32),
            ((heads * (2 * senders + rows.num_rows + 3 * chunks) + places,), jnp.float32),
        ],
        negative_slope=static.negative_slope,
        self_loops=static.self_loops,
        threads=FORWARD_THREADS,
    )
    return out.reshape(rows.num_rows, heads, width), log_sum


def gradients(
    static: Attention,
    transpose: Rows,
    windows: Windows,
    values: Float[Array, "num_senders heads k"],
    indices: UInt[Array, "num_senders heads k"],
    score_src: Float[Array, "num_senders heads"],
    score_dst: Float[Array, "num_receivers heads"],
    log_sum: Float[Array, "num_receivers heads"],
    delta: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> tuple[Array, Array, Array]:
    """Of the values and of both scores."""
    kept = values.shape[2]
    # What bounds the sums: over the receivers, and of a CBSR row; one that is not finite is not
    # among the latter, and the kernels mark its receivers.
    largest = jnp.max(jnp.abs(cotangent), axis=2).astype(jnp.float32)
    norms = jnp.sum(jnp.abs(values.astype(jnp.float32)), axis=2)
    norms = jnp.max(jnp.where(norms <= 2.0**127, norms, 0.0), axis=0)
    receivers = jnp.stack([score_dst, log_sum, delta, largest], axis=2)
    padded, columns = _padded(values, indices)
    senders, heads, k = values.shape[0], values.shape[1], padded.shape[1]
    lanes = next(count for count in (1, 2, 4, 8) if 4 * count >= k)
    num_receivers = cotangent.shape[0]
    sums = senders * (2 + 2 * k + 2 * lanes) + 3 * num_receivers
    places = senders if static.self_loops else 0
    dvalues, dsrc, ddst, _, _ = row_call(
        "jaxgnn_sparse_window_gradients",
        transpose,
        [*_windows(windows), padded, columns, score_src, cotangent, receivers, norms],
        [
            (padded.shape, values.dtype),
            ((senders, heads), jnp.float32),
            ((num_receivers, heads), jnp.float32),
            ((transpose.chunks.table.shape[0], 2 * heads), jnp.float32),
            ((heads * sums + places,), jnp.float32),
        ],
        negative_slope=static.negative_slope,
        self_loops=static.self_loops,
        threads=BACKWARD_THREADS,
    )
    return dvalues[:, :kept].reshape(values.shape), dsrc, ddst


def _windows(windows: Windows) -> list[Array]:
    return [windows.rows, windows.parts, windows.senders, windows.masks]


def _padded(values: Array, indices: Array) -> tuple[Array, Array]:
    """A row for each sender and head, padded to whole vectors of four entries by zeros in the
    column 0: they add nothing, and their gradients are dropped."""
    k = values.shape[2]
    more = -k % 4
    return (
        padding.pad_by(values.reshape(-1, k), more),
        padding.pad_by(indices.reshape(-1, k), more),
    )
