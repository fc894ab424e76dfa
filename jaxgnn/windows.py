"""Windows of receivers, with which MaxK's GPU kernels read each shared sender once."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, UInt

from jaxgnn import _ffi

if TYPE_CHECKING:
    from jaxgnn.graph import Graph


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
    if _ffi.cpu_module is None:
        raise RuntimeError("with_windows: needs the compiled module jaxgnn._cpu")
    if isinstance(graph.senders, Tracer):
        raise ValueError("with_windows: call it outside jax.jit, on the graph itself")
    rows, parts, senders, masks, num_partials = _ffi.cpu_module.build_windows(
        np.asarray(graph.row_offsets), np.asarray(graph.senders), graph.num_senders
    )
    return Windows(
        rows=jnp.asarray(rows),
        parts=jnp.asarray(parts),
        senders=jnp.asarray(senders),
        masks=jnp.asarray(masks),
        num_partials=num_partials,
    )
