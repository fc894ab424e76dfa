"""Receivers that share senders in windows: MaxK's GPU kernels read each shared sender once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, UInt

from jaxgnn._core.device import device_array
from jaxgnn._core.ffi import host_module


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
        parts: the windows, those with many entries split: window, first entry, end, index among
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


def pad_to_one_shape(several: list[Windows]) -> list[Windows]:
    """The windows of graphs with the same number of receivers, so that they stack.

    Padding is a window without receivers, and parts of it without entries.
    """
    entries = max(windows.senders.shape[0] for windows in several)
    parts = max(windows.parts.shape[0] for windows in several)
    partials = max(windows.num_partials for windows in several)

    def padded(windows: Windows) -> Windows:
        own, more = np.asarray(windows.parts), entries - windows.senders.shape[0]
        empty = np.array([[windows.rows.shape[0], 0, 0, -1]], own.dtype)
        arrays: dict[str, Any] = {
            "rows": np.pad(windows.rows, ((0, 1), (0, 0)), constant_values=-1),
            "parts": np.concatenate([own, np.repeat(empty, parts - own.shape[0], 0)]),
            "senders": np.pad(windows.senders, (0, more)),
            "masks": np.pad(windows.masks, ((0, more), (0, 0))),
        }
        return Windows(**arrays, num_partials=partials)

    return [padded(windows) for windows in several]


def build(
    row_offsets: Int[np.ndarray, " num_receivers+1"],
    senders: Int[np.ndarray, " num_edges"],
    num_senders: int,
) -> Windows:
    """The windows of a graph, built on the host in time linear in the number of edges.

    Source: receivers are grouped by label propagation (Raghavan et al., Phys. Rev. E 76, 2007),
    with labels discounted by the root of their size, and within a group by degree. Condensing a
    window's senders is the sparse graph translation of TC-GNN (Wang et al., USENIX ATC 2023,
    section 4.1).

    Raises:
        MemoryError: the host has not enough memory.
        RuntimeError: the compiled CPU module is missing.
        ValueError: 2^31 entries or more.
    """
    module = host_module("with_windows")
    rows, parts, entries, masks, num_partials = module.build_windows(
        row_offsets, senders, num_senders
    )
    return Windows(
        rows=device_array(rows),
        parts=device_array(parts),
        senders=device_array(entries),
        masks=device_array(masks),
        num_partials=num_partials,
    )
