"""What kernels of products with compressed balanced sparse rows take: rows of a GPU's vector width,
windows, and the choice of the engine."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from jaxgnn import config
from jaxgnn.graph._layouts.windows import MAX_WIDTH, RECEIVERS, Windows
from jaxgnn.ops._core.row_call import optional
from jaxgnn.ops._core.rows import Rows
from jaxgnn.ops._maxk import choice

# 32-bit words of scratch in which CUDA kernels store the range of the values. The forward pass
# adds the largest value of each CBSR row, and a flag for each dense row or chunk of one.
SCRATCH = 8


def pad_width(width: int, indices: Array) -> int:
    """The padding of a CBSR row to a multiple of four entries; 0 where too few columns are left."""
    k = indices.shape[1]
    more = -k % 4
    return more if k + more <= width else 0


def pad_indices(width: int, indices: UInt[Array, "rows k"]) -> UInt[Array, "rows padded"]:
    """CBSR rows padded to a multiple of four entries, one vector for each lane of a GPU.

    The padding consists of columns that the row does not have, so that no two lanes add to one
    address. It differs between consecutive rows, which avoids contention.
    """
    more = pad_width(width, indices)
    if not more:
        return indices
    rows, k = indices.shape
    first = jnp.arange(rows, dtype=jnp.int32)[:, None]
    ranks = (first + jnp.arange(more, dtype=jnp.int32)[None, :]) % (width - k)
    # Columns ascend: a column minus its position is the number of absent columns below it.
    absent_below = indices.astype(jnp.int32) - jnp.arange(k, dtype=jnp.int32)[None, :]
    absent = ranks + jnp.sum(absent_below[:, :, None] <= ranks[:, None, :], axis=1, dtype=jnp.int32)
    return jnp.concatenate([indices, absent.astype(indices.dtype)], axis=1)


def use_windows(
    windows: Windows | None, width: int, dtype: Any, indices: Array, weights: Array | None
) -> bool:
    """Whether the window kernels take these operands: rows that fit in shared memory, entries with
    32-bit indices, and weights if the windows list the edges."""
    rows, k = indices.shape
    fits = width % 4 == 0 and jnp.dtype(dtype) != jnp.float64
    fits = fits and rows * (k + pad_width(width, indices)) < 2**32
    if windows is None or (weights is not None and windows.edges is None):
        return False
    if fits and width > windows.width and jax.default_backend() == "gpu":
        advice = f"see Graph.with_windows(width={width})"
        warnings.warn(
            f"maxk_spmm: the graph's windows serve rows of up to {windows.width} columns, "
            f"got {width}, which are aggregated as without windows"
            + (f"; {advice}" if width <= MAX_WIDTH else ""),
            stacklevel=2,
        )
    return fits and width <= windows.width


def window_indices(windows: Windows, indices: UInt[Array, "rows k"]) -> UInt[Array, "rows k"]:
    """The columns as the kernels over these windows read them: 8 bits with 64 receivers, else
    16."""
    return indices if windows.receivers == RECEIVERS else indices.astype(jnp.uint16)


def choose_engine(
    operation: choice.Operation,
    num_dense: int,
    width: int,
    dtype: Any,
    rows: Rows,
    windows: Windows | None,
    indices: Array,
    weights: Array | None,
) -> choice.Engine:
    """The engine that CUDA takes, one that has what it needs; `rows` are those of the call."""
    setting = config.maxk_engine
    if setting == "windows" and windows is None:
        return "rows"
    if setting != "auto":
        return setting
    if operation == "spgemm" and config.maxk_accumulation != "auto":
        return "rows"
    columns = rows.columns
    case = choice.Case(
        num_edges=0 if columns is None else columns.shape[0],
        num_dense=num_dense,
        num_sparse=indices.shape[0],
        width=width,
        k=indices.shape[1],
        itemsize=jnp.dtype(dtype).itemsize,
        num_entries=0 if windows is None else windows.senders.shape[0],
        num_parts=0 if windows is None else windows.parts.shape[0],
        weighted=weights is not None,
        deterministic=config.deterministic,
    )
    return choice.choose(case, operation)


def window_operands(windows: Windows) -> list[Array]:
    return [windows.rows, windows.parts, windows.senders, windows.masks]


def weights_by_slot(windows: Windows, weights: Float[Array, " edges"]) -> list[Array]:
    """Where a window's entries have their weights, and the weights there."""
    assert windows.slots is not None and windows.edges is not None
    by_slot = weights.at[windows.edges].get(mode="promise_in_bounds", unique_indices=True)
    return [windows.slots, by_slot]


def optional_weights(weights: Array | None, dtype: Any) -> Array:
    return optional(None if weights is None else weights[:, None], dtype)
