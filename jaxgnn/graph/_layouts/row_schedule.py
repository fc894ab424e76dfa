"""The order in which a GPU processes rows: those that share columns, or of one length, together."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Int, UInt

from jaxgnn._core.device import device_array
from jaxgnn._core.ffi import host_module

# Mean row lengths below which the length alone decides, and from which it does not matter: below
# the latter, several rows share a warp (`kSharedRow` of cuda/attention/pair_attention.cuh,
# `kTinyRow` and `kLongRow` of cuda/aggregation/gather.cuh) and wait for the longest.
_SHORT_ROWS = 16
_LONG_ROWS = 256
# Buckets of row lengths to each factor of two.
_BUCKETS = 2


def build(
    row_offsets: Int[np.ndarray, " rows+1"], columns: Int[np.ndarray, " edges"], num_columns: int
) -> Int[Array, " rows"]:
    """A row schedule in which adjacent rows share columns, or have similar lengths.

    Rows are grouped as windows are (`_windows.build`).

    Raises:
        MemoryError: the host has not enough memory.
        RuntimeError: the compiled CPU module is missing.
    """
    module = host_module("with_row_schedule")
    num_rows = row_offsets.size - 1
    if columns.size < _SHORT_ROWS * num_rows:
        return device_array(_by_length(row_offsets))
    rows = module.order_rows(row_offsets, columns, num_columns)
    if columns.size < _LONG_ROWS * num_rows:
        rows = _bucket_by_length(rows, np.diff(row_offsets))
    return device_array(rows)


def _by_length(row_offsets: Int[np.ndarray, " rows+1"]) -> Int[np.ndarray, " rows"]:
    """The rows by descending length, and among equals in the original order."""
    most = np.iinfo(np.uint16).max  # longer rows are cut into chunks; 16 bits sort faster
    lengths = np.minimum(np.diff(row_offsets), most).astype(np.uint16)
    return _argsort_descending(lengths).astype(np.int32)


def _bucket_by_length(
    rows: Int[np.ndarray, " rows"], lengths: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " rows"]:
    """The buckets of the longest rows first; within a bucket the order of `rows` stays."""
    buckets = (_BUCKETS * np.log2(np.maximum(lengths[rows], 1))).astype(np.uint8)
    return rows[_argsort_descending(buckets)]


def _argsort_descending(keys: UInt[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """The places of the largest keys first; equal keys keep their order."""
    return np.argsort(np.iinfo(keys.dtype).max - keys, kind="stable")
