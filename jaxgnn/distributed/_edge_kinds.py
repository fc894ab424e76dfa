"""A part's edges in two graphs: those between its nodes are aggregated while the halo travels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph import End, Graph


class EdgeKinds(NamedTuple):
    """Both graphs end at the part's rows; padding edges end at the last one, which is padding.

    Edge data is in the order of one graph of all edges, by receiver and sender: of each receiver
    the owned edges come first, as the halo's rows lie behind the owned ones.

    Attributes:
        owned: from the part's own nodes.
        halo: from the rows that it receives.
    """

    owned: Graph
    halo: Graph


def places_of_kinds(
    owned_offsets: Int[np.ndarray, " rows+1"], halo_offsets: Int[np.ndarray, " rows+1"]
) -> tuple[Int[np.ndarray, " owned_edges"], Int[np.ndarray, " halo_edges"]]:
    """The place of each graph's edges in the order of edge data, on the host."""
    owned_row, halo_row = (
        np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        for offsets in (owned_offsets, halo_offsets)
    )
    owned = np.arange(owned_row.size) + halo_offsets[owned_row]
    return owned, np.arange(halo_row.size) + owned_offsets[halo_row + 1]


def reduce_kinds(
    kinds: EdgeKinds,
    operation: Callable[..., Any],
    reduce: str,
    arguments: dict[str, Any],
    halo: dict[str, Any],
    ends: Mapping[str, End],
) -> Float[Array, "receivers *features"]:
    """A sum or mean over each receiver's edges, of the two graphs' results.

    No input of the first one depends on `halo`, so that XLA can run it while the rows travel.

    Args:
        kinds: the edges.
        operation: called as `operation(graph, **arguments)`.
        reduce: `"sum"` or `"mean"`.
        arguments: with the owned rows of senders.
        halo: the senders' rows that were received, by the arguments' names.
        ends: of the arguments.
    """
    of_edges = [name for name in arguments if ends[name] == "edges"]
    owned_data, halo_data = dict(arguments), {**arguments, **halo}
    if of_edges:
        # Of the padding some places are behind the last one; its weights are 0.
        data = {name: arguments[name] for name in of_edges}
        first, second = _places(kinds)
        owned_data.update(jax.tree.map(lambda leaf: _take(leaf, first), data))
        halo_data.update(jax.tree.map(lambda leaf: _take(leaf, second), data))
    a, b = operation(kinds.owned, **owned_data), operation(kinds.halo, **halo_data)
    dtype = accumulation_dtype(a.dtype)
    wide = (a.astype(dtype), b.astype(dtype))
    if reduce == "mean":
        # Of means, not of sums: those could overflow in 16 bits.
        counts = [graph.in_degrees.astype(dtype) for graph in kinds]
        total = jnp.maximum(counts[0] + counts[1], 1)
        shape = (-1, *(1,) * (a.ndim - 1))
        wide = tuple(
            out * (own / total).reshape(shape) for out, own in zip(wide, counts, strict=True)
        )
    return (wide[0] + wide[1]).astype(a.dtype)


def _places(kinds: EdgeKinds) -> tuple[Int[Array, " owned"], Int[Array, " halo"]]:
    """`places_of_kinds` with JAX's operations."""
    owned, halo = (csr_row_ids(graph.row_offsets, graph.num_edges) for graph in kinds)
    before = jnp.arange(owned.shape[0], dtype=jnp.int32) + kinds.halo.row_offsets[owned]
    behind = jnp.arange(halo.shape[0], dtype=jnp.int32) + kinds.owned.row_offsets[halo + 1]
    return before, behind


def _take(data: Array, places: Int[Array, " edges"]) -> Array:
    return data.at[places].get(
        mode="fill", fill_value=0, unique_indices=True, indices_are_sorted=True
    )
