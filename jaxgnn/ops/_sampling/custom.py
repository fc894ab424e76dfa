"""Edges that a user's function chooses, checked and listed in the order of the places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from jaxgnn._core.arguments import unwrap
from jaxgnn._core.row_offsets import offsets_of
from jaxgnn.graph import Graph
from jaxgnn.ops._sampling.kernels import row_bounds
from jaxgnn.ops._sampling.sample import Places, numbers_below

OwnMethod = Callable[[Graph, Int[Array, " places"], int, Array], Int[Array, "places size"]]
"""`method(graph, nodes, size, key)`: numbers of the graph's edges, -1 for none."""


def chosen_edges(
    method: OwnMethod, places: Places, key: Array, size: int, capacity: int
) -> tuple[Int[Array, " places+1"], Int[Array, " capacity"], Int[Array, " capacity"]]:
    """Where the edges of each place begin, the edges and their senders.

    What the edges leave free holds the edge `num_edges` and the sender 0. Edges that do not enter
    the place's node are an error, or left out where they are traced.
    """
    graph, nodes = places.graph, places.rows
    assert nodes is not None
    given = _checked(method(graph, nodes, size, key), nodes.shape[0], size)
    edges = numbers_below(given, graph.num_edges, graph.row_offsets.dtype)
    begins, degrees = row_bounds(places)
    number = edges - begins[:, None]
    there = (edges >= 0) & (number >= 0) & (number < degrees[:, None].astype(number.dtype))
    if not isinstance(there, Tracer):
        _check_ends(given, there, places)
    rank = jnp.cumsum(there, axis=1, dtype=jnp.int32)
    offsets = offsets_of(rank[:, -1])
    slot = jnp.where(there, offsets[:-1, None] + rank - 1, capacity).reshape(-1)
    free = jnp.full(capacity, graph.num_edges, edges.dtype)
    listed = free.at[slot].set(edges.reshape(-1), mode="drop")
    senders = jnp.where(listed < graph.num_edges, graph.senders.at[listed].get(mode="clip"), 0)
    return offsets, listed, senders


def _checked(edges: Any, count: int, size: int) -> Int[Array | np.ndarray, "places size"]:
    edges = unwrap(edges)
    if not isinstance(edges, jax.Array | np.ndarray):
        raise TypeError(f"method: expected an array of edges, got {type(edges).__name__}")
    if not jnp.issubdtype(edges.dtype, jnp.integer):
        raise TypeError(f"method: expected integers, edges of the graph, got {edges.dtype}")
    if edges.shape != (count, size):
        raise ValueError(
            f"method: expected edges of the shape ({count}, {size}), a row for each node, "
            f"got {edges.shape}"
        )
    return edges


def _check_ends(given: Any, there: Array, places: Places) -> None:
    """Raises for the first edge that does not enter its place's node."""
    given = np.asarray(given)
    for place, i in np.argwhere(~np.asarray(there) & (given != -1))[:1]:
        begins, degrees = row_bounds(places)
        assert places.rows is not None
        begin, end = int(begins[place]), int(begins[place] + degrees[place])
        own = f"one of {begin} to {end - 1} or -1" if end > begin else "-1"
        raise ValueError(
            f"method: expected {own}, of edges that enter node {places.rows[place]}, "
            f"got {given[place, i]}"
        )
