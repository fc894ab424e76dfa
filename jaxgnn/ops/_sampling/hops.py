"""Sampled hops as the graphs of a model's layers.

The places of a level are those that one hop added, and padding places at their end. The edges of
the hop are sorted by the receivers' places, so the rows of all hops follow one another, and the
graph of any layer is a prefix of the first layer's: the row of a level's last padding place has the
hop's padding edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph import Blocks, Graph
from jaxgnn.graph._build.device_csr import transpose_order
from jaxgnn.graph._build.row_chunks import (
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


class Layout(NamedTuple):
    """Where the places of each level and the edges of each hop are; static.

    Attributes:
        sizes: the most edges of a place, hop by hop.
        firsts: the number of each level's first place.
        counts: the places of each level, padding included.
        paddings: those at the end of each level that are padding in any case.
        begins: the number of each hop's first edge, and of all edges.
    """

    sizes: tuple[int, ...]
    firsts: tuple[int, ...]
    counts: tuple[int, ...]
    paddings: tuple[int, ...]
    begins: tuple[int, ...]

    @property
    def num_receivers(self) -> int:
        """The places of all levels but the last."""
        return self.firsts[-1]

    @property
    def inner_edges(self) -> int:
        """The edges of all hops but the last."""
        return self.begins[-2]


class Joined(NamedTuple):
    """The arrays of all levels and hops.

    Attributes:
        nodes: of each place, -1 for padding.
        edges: the graph's edge of each edge, -1 for padding.
        offsets: of each receiver's edges.
        inner_receivers: the place of each edge's receiver, without the last hop's: the layers that
            a gradient goes through have no more.
    """

    nodes: Int[Array, " places"]
    edges: Int[Array, " edges"]
    offsets: Int[Array, " receivers+1"]
    inner_receivers: Int[Array, " inner_edges"]


def level_of(nodes: Int[Array, " nodes"], first: int) -> Level:
    """The level of these nodes and its padding."""
    padding = _padding_of(nodes.shape[0], first)
    places = jnp.concatenate([nodes, jnp.full(padding, -1, jnp.int32)])
    return Level(places, first, padding)


def _padding_of(nodes: int, first: int) -> int:
    """A padding place, or as many as align the rows of large levels."""
    return 1 + (-(first + nodes + 1) % MOST_PADDING if nodes >= 8 * MOST_PADDING else 0)


def layout_of_tree(num_seeds: int, sizes: Sequence[int]) -> Layout:
    """That of a tree, in which each place of a level has so many children."""
    nodes = list(itertools.accumulate(sizes, int.__mul__, initial=num_seeds))
    firsts, counts, paddings = [0], [], []
    for count in nodes:
        paddings.append(_padding_of(count, firsts[-1]))
        counts.append(count + paddings[-1])
        firsts.append(firsts[-1] + counts[-1])
    begins = itertools.accumulate(nodes[1:], initial=0)
    return Layout(tuple(sizes), tuple(firsts[:-1]), tuple(counts), tuple(paddings), tuple(begins))


def joined(levels: Sequence[Level], hops: Sequence[Hop]) -> tuple[Layout, Joined]:
    """The levels and the hops one after the other."""
    layout = Layout(
        tuple(hop.size for hop in hops),
        tuple(level.first for level in levels),
        tuple(level.count for level in levels),
        tuple(level.padding for level in levels),
        tuple(itertools.accumulate((hop.count for hop in hops), initial=0)),
    )
    begins = layout.begins
    rows = [begin + hop.offsets[:-1] for begin, hop in zip(begins, hops, strict=False)]
    offsets = jnp.concatenate([*rows, jnp.full(1, begins[-1], jnp.int32)]).astype(jnp.int32)
    inner = offsets[: layout.firsts[-2] + 1]
    return layout, Joined(
        jnp.concatenate([level.nodes for level in levels]),
        jnp.concatenate([hop.edges for hop in hops]),
        offsets,
        csr_row_ids(inner, layout.inner_edges),
    )


def blocks_of(
    layout: Layout,
    arrays: Joined,
    columns: Int[Array, " edges"] | None,
    overflow: Bool[Array, ""],
    num_seeds: int,
) -> Blocks:
    """The graph of each layer, the first of all hops and the last of the first hop alone.

    `columns`: the place of each edge's sender; `None` in a tree, where they follow one another.
    """
    begins = layout.begins
    graphs = []
    for last in range(len(layout.sizes), 0, -1):
        num_receivers, num_edges = layout.firsts[last], begins[last]
        num_senders = num_receivers + layout.counts[last]
        offsets = arrays.offsets[: num_receivers + 1]
        receivers = arrays.inner_receivers[:num_edges]
        if num_edges > layout.inner_edges:
            receivers = csr_row_ids(offsets, num_edges)
        if columns is None:
            senders = _tree_senders(layout, last)
            transpose_offsets, permutation, chunks = _tree_transpose(layout, last)
        else:
            senders = columns[:num_edges]
            transpose_offsets, permutation = transpose_order(senders, num_senders)
            receivers = receivers[permutation]
            chunks = chunk_rows_on_device(transpose_offsets, num_edges)
        graph = Graph(
            row_offsets=offsets,
            senders=senders,
            row_chunks=_row_chunks(layout, last, offsets),
            transpose_row_offsets=transpose_offsets,
            transpose_receivers=receivers,
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
    return Blocks(tuple(graphs), arrays.nodes, arrays.edges, overflow, num_seeds)


def _row_chunks(layout: Layout, last: int, offsets: Int[Array, " receivers+1"]) -> RowChunks:
    """Those of the padding places: the rows of others are shorter than a chunk."""
    begins = layout.begins
    length = chunk_length(begins[last], offsets.shape[0] - 1)
    if max(layout.sizes[:last]) > length:
        return chunk_rows_on_device(offsets, begins[last])
    tables = [padding_chunk()]
    for h in range(last):
        row = layout.firsts[h + 1] - 1
        padding = begins[h + 1] - offsets[row]
        chunk = jnp.arange(-(-(begins[h + 1] - begins[h]) // length), dtype=jnp.int32)
        used = (padding > length) & (chunk * length < padding)
        pair = [jnp.where(used, row, -1), jnp.where(used, chunk, 0)]
        tables.append(jnp.stack(pair, axis=1).astype(jnp.int32))
    return RowChunks(jnp.concatenate(tables), length, of_padding=True)


def _tree_senders(layout: Layout, last: int) -> Int[Array, " edges"]:
    """The place of each edge's sender: each but the seeds' and the padding's has one edge."""
    ends = layout.begins[1 : last + 1]
    edges = zip(layout.firsts[1:], layout.begins, ends, strict=False)
    return jnp.concatenate(
        [first + jnp.arange(end - begin, dtype=jnp.int32) for first, begin, end in edges]
    )


def _tree_transpose(
    layout: Layout, last: int
) -> tuple[Int[Array, " senders+1"], Int[Array, " edges"], RowChunks]:
    """Each place but the seeds' and the padding's has one edge, in the places' order."""
    num_edges = layout.begins[last]
    num_senders = layout.firsts[last] + layout.counts[last]
    offsets = [jnp.zeros(layout.counts[0], jnp.int32)]
    for level in range(1, last + 1):
        # The rows of padding places are empty, so that the next level begins where this one ends.
        place = jnp.arange(layout.counts[level], dtype=jnp.int32)
        nodes = layout.counts[level] - layout.paddings[level]
        offsets.append(layout.begins[level - 1] + jnp.minimum(place, nodes))
    offsets.append(jnp.full(1, num_edges, jnp.int32))
    length = chunk_length(num_edges, num_senders)
    permutation = jnp.arange(num_edges, dtype=jnp.int32)
    return jnp.concatenate(offsets), permutation, RowChunks(padding_chunk(), length, longest=1)
