"""Whole windows of receivers dealt to parts, so that MaxK's work is balanced."""

from __future__ import annotations

import heapq

import numpy as np
from jaxtyping import Int

from jaxgnn.graph._layouts.windows import Windows

_ENTRY_COST = 1
"""Work of a window's entry, beside its edges, in edges; as in cpu/host/windows.cc."""


def deal_windows(
    windows: Windows, row_offsets: Int[np.ndarray, " num_nodes+1"], parts: int
) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node: a window's receivers have the same one.

    The longest windows first, each goes to the part with least work so far, of those that have no
    more windows than the others will have.
    """
    rows, cut = np.asarray(windows.rows), np.asarray(windows.parts)
    count = rows.shape[0]
    entries = np.bincount(cut[:, 0], cut[:, 2] - cut[:, 1], minlength=count)
    degrees = np.append(np.diff(row_offsets), 0)
    work = _ENTRY_COST * entries + degrees[rows].sum(axis=1)
    most = -(-count // parts)
    owner_of_window = np.empty(count, np.int32)
    loads = [(0.0, part, 0) for part in range(parts)]  # work, part, windows
    first = np.sort(np.unique(cut[:, 0], return_index=True)[1])
    longest = cut[first, 0]  # the windows, by descending work
    for window in longest[np.argsort(-work[longest], kind="stable")]:
        load, part, number = heapq.heappop(loads)
        owner_of_window[window] = part
        if number + 1 < most:
            heapq.heappush(loads, (load + work[window], part, number + 1))
    owner = np.empty(degrees.size - 1, np.int32)
    known = rows >= 0
    owner[rows[known]] = np.broadcast_to(owner_of_window[:, None], rows.shape)[known]
    return owner
