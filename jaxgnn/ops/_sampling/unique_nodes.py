"""Numbers the nodes of sampled edges in the order of first occurrence, by a table over the nodes.

There is no sort: the smallest place that a node is met at is its first, by a scatter that takes the
minimum, and a prefix sum numbers those that are met for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn._core.row_offsets import offsets_of
from jaxgnn.graph._take import padding_outside

if TYPE_CHECKING:
    from jaxgnn.ops._sampling.hops import Level

_UNSEEN = 2**31 - 1


def number_nodes(
    num_nodes: int,
    table: Int[Array, " num_nodes"] | None,
    levels: Sequence[Level],
    nodes: Int[Array, " edges"],
    first: int,
    capacity: int,
) -> tuple[
    Int[Array, " num_nodes"], Int[Array, " edges"], Int[Array, " capacity"], Bool[Array, ""]
]:
    """The place of each edge's sender, and the new nodes.

    Args:
        num_nodes: of the graph.
        table: the place of each node met in earlier hops; `None` before the first.
        levels: the places so far.
        nodes: the senders of this hop's edges, -1 for padding.
        first: the place of the first new node.
        capacity: places for new nodes. One more, the padding's, follows them.

    Returns:
        The table; the place of each edge's sender, of padding and of nodes without a place the
        padding's; the new nodes, -1 where there are fewer; whether some had no place.
    """
    if table is None:
        table = jnp.full(num_nodes, _UNSEEN, jnp.int32)
        for level in levels:
            place = level.first + jnp.arange(level.count, dtype=jnp.int32)
            table = table.at[padding_outside(level.nodes, num_nodes)].min(place, mode="drop")
    met = first + jnp.arange(nodes.shape[0], dtype=jnp.int32)
    at = padding_outside(nodes, num_nodes)
    # Old nodes have smaller places than any that is met now.
    table = table.at[at].min(met, mode="drop")
    new = (nodes >= 0) & (table.at[at].get(mode="fill", fill_value=-1) == met)
    ranks = offsets_of(new)
    rank = ranks[:-1]
    padding = first + capacity
    place = jnp.where(rank < capacity, first + rank, padding)
    table = table.at[jnp.where(new, at, num_nodes)].set(place, mode="drop")
    columns = table.at[at].get(mode="fill", fill_value=padding)
    added = jnp.full(capacity, -1, jnp.int32)
    added = added.at[jnp.where(new, rank, capacity)].set(nodes, mode="drop")
    return table, columns, added, ranks[-1] > capacity
