"""The sampled edges as rows: by place, and by sender for the backward pass.

Nothing is kept for the backward pass: it draws the same sample again.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxgnn._core.counting_sort import counting_sort
from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn._core.row_offsets import offsets_of
from jaxgnn.graph._build.row_chunks import RowChunks, chunk_length, chunk_rows_on_device, no_chunks
from jaxgnn.ops._core.rows import Rows
from jaxgnn.ops._sampling import kernels, reference
from jaxgnn.ops._sampling.sample import ALL, Places, Sample, capacity


def sampled_rows(sample: Sample, places: Places, *, order: bool = True) -> Rows:
    """The senders of the sampled edges of each place.

    The arrays over edges are of the sample's capacity: entries beyond the last offset belong to no
    row, and `order`, which is there if asked for, holds `num_edges`.
    """
    size = capacity(sample, places)
    if sample.strategy == "dropedge":
        offsets, columns, edges = kernels.compact_edges(
            sample, places, None, size, transpose=False, order=order
        )
    else:
        offsets = _offsets(sample, places)
        edges, columns = kernels.sample_edges(sample, places, offsets, size, edges=order)
    if places.rows is None and not sample.replace:
        chunks = _chunks_left(places.graph.row_chunks, offsets, sample.size)
    else:
        chunks = _chunks(offsets, size, sample.size)
    return Rows(offsets, columns, chunks, edges)


def row_limit(sample: Sample, places: Places) -> int | None:
    """How many of a row's first edges the sample is, where `reduce_rows` can take them from the
    graph's own rows: nothing is drawn then, and nothing copied."""
    of_all = sample.strategy == "bucket" and sample.rate == ALL and places.rows is None
    return sample.size if of_all and sample.size <= places.graph.row_chunks.length else None


def sampled_rows_by_sender(
    sample: Sample, places: Places, *, order: bool = True
) -> tuple[Rows, Int[Array, " capacity"] | None]:
    """The places of the sampled edges of each sender, and how often each edge was taken.

    `None`: once each. The rows have their `order` if it is asked for.
    """
    size = capacity(sample, places)
    if places.rows is not None:
        return _sorted_by_sender(sample, places, size), None
    edges = None
    if sample.strategy != "dropedge":
        starts = _offsets(sample, places)
        edges, _ = kernels.sample_edges(sample, places, starts, size, columns=False)
    offsets, columns, listed = kernels.compact_edges(
        sample, places, edges, size, transpose=True, order=order or sample.repeats
    )
    rows = Rows(offsets, columns, _chunks(offsets, size), listed)
    if edges is None or listed is None or not sample.repeats:
        return rows, None
    return rows, times_taken(edges, places.graph.num_edges)[listed]


def times_taken(edges: Int[Array, " capacity"], num_edges: int) -> Int[Array, " num_edges"]:
    """How often each edge is in the list."""
    return jnp.zeros(num_edges, jnp.int32).at[edges].add(1, mode="drop")


def rows_are_even(sample: Sample, places: Places) -> bool:
    """Whether most places take `sample_size` edges: a GPU's narrow slices pay then."""
    return places.count * sample.size < places.graph.num_edges


def fits_in_cache(rows: int) -> bool:
    """Whether a slice of 128 bytes of so many rows stays in a GPU's L2 cache (about 40 MB)."""
    return rows * 128 <= 40_000_000


def taken_counts(sample: Sample, places: Places) -> Int[Array, " places"]:
    """How many edges each place takes."""
    if sample.strategy == "dropedge":
        return jnp.diff(sampled_rows(sample, places).offsets)
    return reference.edges_taken(sample, kernels.row_bounds(places)[1])


def rows_by_edge(rows: Rows, num_edges: int) -> Rows:
    """Which entries of the sampled `rows` each edge of the graph has."""
    assert rows.order is not None
    offsets, entries = counting_sort(rows.order, num_edges)
    return Rows(offsets, entries, no_chunks(), None)


def rows_by_node(nodes: Int[Array, " places"], num_nodes: int) -> Rows:
    """Which places each node has; `num_nodes` stands for none."""
    offsets, places = counting_sort(nodes, num_nodes)
    return Rows(offsets, places, _chunks(offsets, nodes.shape[0]), None)


def _sorted_by_sender(sample: Sample, places: Places, size: int) -> Rows:
    """The transpose by a stable sort, where a place is no row of the graph."""
    rows = sampled_rows(sample, places)
    graph = places.graph
    assert rows.columns is not None and rows.order is not None
    free = rows.order >= graph.num_edges
    senders = jnp.where(free, graph.num_senders, rows.columns)
    offsets, entries = counting_sort(senders, graph.num_senders)
    place = csr_row_ids(rows.offsets, size)[entries]
    return Rows(offsets, place, _chunks(offsets, size), rows.order[entries])


def _offsets(sample: Sample, places: Places) -> Int[Array, " places+1"]:
    _, degrees = kernels.row_bounds(places)
    return offsets_of(reference.edges_taken(sample, degrees))


def _chunks_left(chunks: RowChunks, offsets: Int[Array, " rows+1"], longest: int) -> RowChunks:
    """Those of all edges' chunks that rows of the same graph still have: they have become shorter.

    `longest`: the most edges of a row.
    """
    if longest <= chunks.length:
        return no_chunks()
    row, chunk = chunks.table.T
    known = jnp.maximum(row, 0)
    length = offsets[known + 1] - offsets[known]
    left = (row >= 0) & (length > chunks.length) & (chunk * chunks.length < length)
    padding = jnp.asarray([[-1, 0]], jnp.int32)
    return RowChunks(jnp.where(left[:, None], chunks.table, padding), chunks.length)


def _chunks(offsets: Int[Array, " rows+1"], size: int, longest: int | None = None) -> RowChunks:
    """The chunks of long rows, where a row can be that long."""
    if longest is not None and longest <= chunk_length(size, offsets.shape[0] - 1):
        return no_chunks()
    return chunk_rows_on_device(offsets, size)
