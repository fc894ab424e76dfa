"""Sampled hops as the graphs of a model's layers.

The places of a level are those that one hop added, and padding places at their end. The edges of
the hop are sorted by the receivers' places, so the rows of all hops follow one another, and the
graph of any layer is a prefix of the first layer's: the row of a level's last padding place has the
hop's padding edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph import Blocks, Graph
from jaxgnn.graph._device_csr import transpose_order
from jaxgnn.graph._row_chunks import (
    RowChunks,
    chunk_length,
    chunk_rows_on_device,
    padding_chunk,
)

MOST_PADDING = 128
"""The most padding places of a level, whose rows are a multiple of it: XLA copies the operands of a
GEMM that sums over another number of rows."""


class Level(NamedTuple):
    """The places that a hop added, the seeds' to begin with.

    Attributes:
        nodes: of each place, -1 for padding.
        first: the number of the first place; static.
        padding: how many places at the end are padding in any case; static.
    """

    nodes: Int[Array, " places"]
    first: int
    padding: int

    @property
    def count(self) -> int:
        return self.nodes.shape[0]


class Hop(NamedTuple):
    """The edges drawn for the places of a level.

    Attributes:
        offsets: of each place's edges among the hop's.
        columns: the place of each edge's sender; in a tree one after the other.
        edges: the graph's edge, -1 for padding.
        size: the most edges of a place; static.
    """

    offsets: Int[Array, " places+1"]
    columns: Int[Array, " edges"]
    edges: Int[Array, " edges"]
    size: int

    @property
    def count(self) -> int:
        return self.columns.shape[0]


def level_of(nodes: Int[Array, " nodes"], first: int) -> Level:
    """The level of these nodes and a padding place, or as many as align the rows of large ones."""
    end = first + nodes.shape[0] + 1
    padding = 1 + (-end % MOST_PADDING if nodes.shape[0] >= 8 * MOST_PADDING else 0)
    places = jnp.concatenate([nodes, jnp.full(padding, -1, jnp.int32)])
    return Level(places, first, padding)


def blocks_of(
    levels: Sequence[Level],
    hops: Sequence[Hop],
    overflow: Bool[Array, ""],
    *,
    tree: bool,
    num_seeds: int,
) -> Blocks:
    """The graph of each layer, the first of all hops and the last of the first hop alone."""
    begins = [sum(hop.count for hop in hops[:h]) for h in range(len(hops) + 1)]
    rows = [begin + hop.offsets[:-1] for begin, hop in zip(begins, hops, strict=False)]
    offsets = jnp.concatenate([*rows, jnp.full(1, begins[-1], jnp.int32)]).astype(jnp.int32)
    columns = jnp.concatenate([hop.columns for hop in hops])
    receivers = csr_row_ids(offsets, begins[-1])
    graphs = []
    for last in range(len(hops), 0, -1):
        num_receivers, num_edges = levels[last].first, begins[last]
        num_senders = num_receivers + levels[last].count
        layer_offsets = offsets[: num_receivers + 1]
        layer_columns, layer_receivers = columns[:num_edges], receivers[:num_edges]
        transpose = _tree_transpose if tree else _sorted_transpose
        transpose_offsets, permutation, chunks = transpose(
            layer_columns, levels[: last + 1], begins, num_senders
        )
        graph = Graph(
            row_offsets=layer_offsets,
            senders=layer_columns,
            row_chunks=_row_chunks(layer_offsets, levels[:last], hops[:last], begins),
            transpose_row_offsets=transpose_offsets,
            transpose_receivers=layer_receivers if tree else layer_receivers[permutation],
            transpose_permutation=permutation,
            transpose_row_chunks=chunks,
            edge_permutation=None,
            self_loops=None,
            num_senders=num_senders,
            num_receivers=num_receivers,
            num_edges=num_edges,
            symmetric=False,
        )
        graphs.append(graph)
    nodes = jnp.concatenate([level.nodes for level in levels])
    edges = jnp.concatenate([hop.edges for hop in hops])
    return Blocks(tuple(graphs), nodes, edges, overflow, num_seeds)


def _row_chunks(
    offsets: Int[Array, " receivers+1"],
    levels: Sequence[Level],
    hops: Sequence[Hop],
    begins: Sequence[int],
) -> RowChunks:
    """Those of the padding places: the rows of others are shorter than a chunk."""
    num_edges = begins[len(hops)]
    length = chunk_length(num_edges, offsets.shape[0] - 1)
    if max(hop.size for hop in hops) > length:
        return chunk_rows_on_device(offsets, num_edges)
    tables = [padding_chunk()]
    for h, (level, hop) in enumerate(zip(levels, hops, strict=True)):
        row = level.first + level.count - 1
        padding = begins[h + 1] - offsets[row]
        chunk = jnp.arange(-(-hop.count // length), dtype=jnp.int32)
        used = (padding > length) & (chunk * length < padding)
        pair = [jnp.where(used, row, -1), jnp.where(used, chunk, 0)]
        tables.append(jnp.stack(pair, axis=1).astype(jnp.int32))
    return RowChunks(jnp.concatenate(tables), length)


def _tree_transpose(
    columns: Int[Array, " edges"], levels: Sequence[Level], begins: Sequence[int], num_senders: int
) -> tuple[Int[Array, " senders+1"], Int[Array, " edges"], RowChunks]:
    """Each place but the seeds' and the padding's has one edge, in the places' order."""
    offsets = [jnp.zeros(levels[0].count, jnp.int32)]
    for level, begin in zip(levels[1:], begins, strict=False):
        # The rows of padding places are empty, so that the next level begins where this one ends.
        place = jnp.arange(level.count, dtype=jnp.int32)
        offsets.append(begin + jnp.minimum(place, level.count - level.padding))
    offsets.append(jnp.full(1, columns.shape[0], jnp.int32))
    length = chunk_length(columns.shape[0], num_senders)
    permutation = jnp.arange(columns.shape[0], dtype=jnp.int32)
    return jnp.concatenate(offsets), permutation, RowChunks(padding_chunk(), length, longest=1)


def _sorted_transpose(
    columns: Int[Array, " edges"], levels: Sequence[Level], begins: Sequence[int], num_senders: int
) -> tuple[Int[Array, " senders+1"], Int[Array, " edges"], RowChunks]:
    """Any number of edges a sender."""
    del levels, begins
    offsets, permutation = transpose_order(columns, num_senders)
    return offsets, permutation, chunk_rows_on_device(offsets, columns.shape[0])
