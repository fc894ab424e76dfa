"""Receivers that share senders in windows: MaxK's GPU kernels read each shared sender once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt

from jaxgnn._core.device import device_array
from jaxgnn._core.ffi import host_module

RECEIVERS = 64  # of a window at most: its entries' masks have a bit for each
MAX_WIDTH = 1024  # of the rows that windows serve: a packed entry's column has 10 bits
_FEATURES = RECEIVERS * 256  # of a window's rows at most, which lie in a GPU's shared memory


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", "parts", "senders", "masks", "edges", "slots"],
    meta_fields=["num_partials"],
)
@dataclasses.dataclass(frozen=True)
class Windows:
    """Receivers in groups of 64, or fewer for wide rows, that share senders; see
    `Graph.with_windows`.

    Attributes:
        rows: the receivers of each window; -1 is padding. Consecutive windows share senders, too.
        parts: the windows by descending work, those with much of it split: window, first
            entry, end, index among the partial results or -1.
        senders: the sender of each entry. A window has an entry for each of its senders.
        masks: which of the window's receivers the sender has an edge to, a bit each.
        num_partials: number of partial results.
        edges: the graph's edge at each slot: the edges entry by entry, those of an entry by
            receiver; `None` without.
        slots: where a window's entries of n edges lie, n from 0 to its number of receivers: entry
            e from slot `slots[n] + n e` on (modulo 2^32); `None` without.
    """

    rows: Int[Array, "num_windows receivers"]
    parts: Int[Array, "num_parts 4"]
    senders: Int[Array, " num_entries"]
    masks: UInt[Array, "num_entries 2"]
    num_partials: int
    edges: Int[Array, " num_edges"] | None = None
    slots: Int[Array, "num_windows receivers+1"] | None = None

    @property
    def receivers(self) -> int:
        """Receivers of a window, padding included."""
        return self.rows.shape[-1]

    @property
    def width(self) -> int:
        """Columns of the widest rows that the windows serve."""
        return min(_FEATURES // self.receivers, MAX_WIDTH)

    @property
    def order(self) -> Int[np.ndarray, " num_receivers"]:
        """The receivers, of which consecutive ones make a window; on the host."""
        rows = np.asarray(self.rows).ravel()
        return rows[rows >= 0]


def receivers_for(width: int) -> int:
    """The most receivers of windows that serve rows of a width."""
    return min(_FEATURES // width, RECEIVERS)


def pad_to_one_shape(several: list[Windows]) -> list[Windows]:
    """The windows of graphs with the same numbers of receivers and edges, so that they
    stack.

    Padding is a window without receivers, and parts of it without entries.
    """
    entries = max(windows.senders.shape[0] for windows in several)
    parts = max(windows.parts.shape[0] for windows in several)
    partials = max(windows.num_partials for windows in several)

    def padded(windows: Windows) -> Windows:
        own, last = np.asarray(windows.parts), windows.senders.shape[0]
        more = entries - last
        # The parts' first entries ascend.
        empty = np.array([[windows.rows.shape[0], last, last, -1]], own.dtype)
        arrays: dict[str, Any] = {
            "rows": np.pad(windows.rows, ((0, 1), (0, 0)), constant_values=-1),
            "parts": np.concatenate([own, np.repeat(empty, parts - own.shape[0], 0)]),
            "senders": np.pad(windows.senders, (0, more)),
            "masks": np.pad(windows.masks, ((0, more), (0, 0))),
            "edges": windows.edges,
        }
        if windows.slots is not None:
            arrays["slots"] = np.pad(windows.slots, ((0, 1), (0, 0)))
        return Windows(**arrays, num_partials=partials)

    return [padded(windows) for windows in several]


def build(
    row_offsets: Int[np.ndarray, " num_receivers+1"],
    senders: Int[np.ndarray, " num_edges"],
    num_senders: int,
    with_edges: bool,
    receivers: int = RECEIVERS,
    order: Int[np.ndarray, " num_receivers"] | None = None,
) -> Windows:
    """The windows of a graph, of so many receivers each, built on the host in time linear in the
    number of edges.

    `with_edges` also lists the edges, by which weights are found. `order`: the receivers, of which
    consecutive ones make a window; by default as below.

    Source: receivers are grouped by label propagation (Raghavan et al., Phys. Rev. E 76, 2007),
    with labels discounted by the root of their size, and within a group by degree. Condensing a
    window's senders is the sparse graph translation of TC-GNN (Wang et al., USENIX ATC 2023,
    section 4.1).

    Raises:
        MemoryError: the host has not enough memory.
        RuntimeError: the compiled CPU module is missing.
        ValueError: 2^31 entries or more, or with edges 2^31 edges.
    """
    module = host_module("with_windows")
    rows, parts, entries, masks, edges, slots, num_partials = module.build_windows(
        row_offsets, senders, num_senders, with_edges, receivers, order
    )
    return Windows(
        rows=device_array(rows),
        parts=device_array(parts),
        senders=device_array(entries),
        masks=device_array(masks),
        num_partials=num_partials,
        edges=device_array(edges) if with_edges else None,
        slots=device_array(slots) if with_edges else None,
    )


@jax.jit
def masks_within(windows: Windows) -> Bool[Array, ""]:
    """Whether the masks have bits of a window's receivers alone."""
    own = (1 << windows.receivers) - 1
    beyond = np.array([~own >> shift & 0xFFFFFFFF for shift in (0, 32)], np.uint32)
    return jnp.all(windows.masks & beyond == 0)


@functools.partial(jax.jit, static_argnames="num_edges")
def slots_within(windows: Windows, num_edges: int) -> Bool[Array, ""]:
    """Whether the slots of all entries lie within the edges, if there are any."""
    if windows.slots is None:
        return jnp.asarray(True)
    number = jnp.sum(jax.lax.population_count(windows.masks), axis=1).astype(jnp.int32)
    entry = jnp.arange(number.size, dtype=jnp.int32)
    # The windows' parts, and so their first entries, ascend.
    window, first, _, _ = windows.parts.T
    of_entry = window[jnp.searchsorted(first, entry, side="right") - 1]
    slot = windows.slots[of_entry, number] + number * entry  # modulo 2^32, as in the kernels
    return jnp.all((number == 0) | ((slot >= 0) & (slot <= num_edges - number)))
