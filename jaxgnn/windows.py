"""Receivers that share senders: in windows, with which MaxK's GPU kernels read each shared sender
once, and as an order of rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, UInt

from jaxgnn import _ffi
from jaxgnn._device import device_array

if TYPE_CHECKING:
    from jaxgnn.graph import Graph

# Mean row lengths below which rows are ordered by their lengths, and from which they are not: in
# between, and below, kernels give several rows to a warp (`kSharedRow` of pair_attention.cuh in
# cuda/attention/, `kTinyRow` and `kLongRow` of gathered_rows.cuh in cuda/aggregation/).
_SHORT_ROWS = 16
_LONG_ROWS = 256
# Steps of lengths that count as alike, to each factor of two.
_STEPS = 2


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", "parts", "senders", "masks"],
    meta_fields=["num_partials"],
)
@dataclasses.dataclass(frozen=True)
class Windows:
    """Receivers in groups of 64 that share senders; see `Graph.with_windows`.

    Attributes:
        rows: the receivers of each window; -1 is padding.
        parts: each window, in parts if it has many entries: window, first entry, end, place among
            the partial results or -1.
        senders: the sender of each entry. A window has an entry for each of its senders.
        masks: which of the window's receivers the sender has an edge to, a bit each.
        num_partials: number of partial results.
    """

    rows: Int[Array, "num_windows 64"]
    parts: Int[Array, "num_parts 4"]
    senders: Int[Array, " num_entries"]
    masks: UInt[Array, "num_entries 2"]
    num_partials: int


def build(graph: Graph) -> Windows:
    """The windows of a graph, built on the host in time linear in the number of edges.

    Source: receivers are grouped by label propagation (Raghavan et al., Phys. Rev. E 76, 2007),
    with labels discounted by the root of their size, and within a group by degree. Condensing a
    window's senders is the sparse graph translation of TC-GNN (Wang et al., USENIX ATC 2023,
    section 4.1).

    Raises:
        RuntimeError: the compiled CPU module is missing.
        ValueError: the graph has no arrays on the host, for it is being traced; or 2^31 entries.
    """
    module = _host_module(graph, "with_windows")
    rows, parts, senders, masks, num_partials = module.build_windows(
        np.asarray(graph.row_offsets), np.asarray(graph.senders), graph.num_senders
    )
    return Windows(
        rows=device_array(rows),
        parts=device_array(parts),
        senders=device_array(senders),
        masks=device_array(masks),
        num_partials=num_partials,
    )


def row_orders(
    graph: Graph,
) -> tuple[Int[Array, " num_receivers"], Int[Array, " num_senders"]]:
    """The receivers in an order in which neighbours share senders, and so for the transpose.

    Groups are those of `build`. The lanes of a warp take several rows where these are not long, and
    wait for the longest: so rows are first ordered by steps of their lengths then, and where they
    are short by these alone.

    Raises:
        RuntimeError: the compiled CPU module is missing.
        ValueError: the graph has no arrays on the host, for it is being traced.
    """
    module = _host_module(graph, "with_row_order")

    def order(offsets: Array, columns: Array, num_columns: int) -> Array:
        if columns.size < _SHORT_ROWS * (offsets.size - 1):
            return device_array(_by_falling_length(np.asarray(offsets)))
        numbers = module.order_rows(np.asarray(offsets), np.asarray(columns), num_columns)
        if columns.size < _LONG_ROWS * (offsets.size - 1):
            numbers = _by_steps(numbers, np.diff(np.asarray(offsets)))
        return device_array(numbers)

    rows = order(graph.row_offsets, graph.senders, graph.num_senders)
    if graph.transpose_receivers is graph.senders:  # a symmetric structure
        return rows, rows
    return rows, order(graph.transpose_row_offsets, graph.transpose_receivers, graph.num_receivers)


def _by_falling_length(offsets: Int[np.ndarray, " rows+1"]) -> Int[np.ndarray, " rows"]:
    """The rows, the longest first, and among equals by number."""
    most = np.iinfo(np.uint16).max  # rows as long are taken in parts anyway; 16 bits sort faster
    return _falling(np.minimum(np.diff(offsets), most).astype(np.uint16)).astype(np.int32)


def _by_steps(
    numbers: Int[np.ndarray, " rows"], lengths: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " rows"]:
    """Numbers of rows, those of the longest rows first, and of rows about as long as they were."""
    steps = (_STEPS * np.log2(np.maximum(lengths[numbers], 1))).astype(np.uint8)
    return numbers[_falling(steps)]


def _falling(keys: UInt[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """The places of the largest keys first, and of equal ones as they are."""
    return np.argsort(np.iinfo(keys.dtype).max - keys, kind="stable")


def _host_module(graph: Graph, method: str) -> Any:
    if _ffi.cpu_module is None:
        raise RuntimeError(f"{method}: needs the compiled module jaxgnn._cpu")
    if isinstance(graph.senders, Tracer):
        raise ValueError(f"{method}: call it outside jax.jit, on the graph itself")
    return _ffi.cpu_module
