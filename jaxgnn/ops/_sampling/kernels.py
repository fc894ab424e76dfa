"""Sampling's kernels: the edges of each place, and the rows that marked edges make.

Platforms without a kernel run the reference. Under `vmap` samples of other keys or graphs are drawn
one after the other.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import sequential
from jaxgnn._core.row_offsets import offsets_of
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty
from jaxgnn.ops._sampling import reference
from jaxgnn.ops._sampling.sample import Places, Sample

_STRATEGY = {"bucket": 0, "fastrand": 1, "stride": 2, "random": 3, "labor": 5, "weighted": 6}
_WITH_REPLACEMENT = {"random": 4, "weighted": 7, "alias": 8}
_EDGES_PER_WORD, _EDGES_PER_GROUP = 32, 1024  # common/sampling.h


def strategy_number(sample: Sample) -> int:
    """The `Strategy` of `common/sampling.h`."""
    return (_WITH_REPLACEMENT if sample.replace else _STRATEGY)[sample.strategy]


def row_bounds(places: Places) -> tuple[Int[Array, " places"], Int[Array, " places"]]:
    """The first edge of each place's row, and its degree; 0 where there is no such row."""
    offsets = neighbors(places.graph, transpose=False).offsets
    if places.rows is None:
        return offsets[:-1], jnp.diff(offsets).astype(jnp.int32)
    inside = (places.rows >= 0) & (places.rows < places.graph.num_receivers)
    row = jnp.where(inside, places.rows, 0)
    if places.graph.num_receivers == 0:
        return jnp.zeros(row.shape, offsets.dtype), jnp.zeros(row.shape, jnp.int32)
    begins = offsets[row]
    return begins, jnp.where(inside, offsets[row + 1] - begins, 0).astype(jnp.int32)


def sample_edges(
    sample: Sample,
    places: Places,
    offsets: Int[Array, " places+1"],
    capacity: int,
    *,
    edges: bool = True,
    columns: bool = True,
) -> tuple[Int[Array, " capacity"] | None, Int[Array, " capacity"] | None]:
    """The edges of each place and their senders, from the place's offset on, if asked for.

    What the edges leave free holds the edge `num_edges` and the sender 0.
    """
    rows = neighbors(places.graph, transpose=False)
    num_edges = places.graph.num_edges

    def kernel(rows: Rows, places: Places, offsets: Array) -> tuple[Array, Array]:
        key = jnp.zeros(0, jnp.uint32) if places.key is None else places.key
        listed_rows = rows.offsets, or_empty(rows.columns)
        weights = or_empty(places.weights)
        listed = ffi.call(
            "jaxgnn_sample_edges",
            [*listed_rows, or_empty(places.rows), offsets, key, or_empty(places.ids), weights],
            [((capacity * edges,), rows.offsets.dtype), ((capacity * columns,), np.int32)],
            strategy=strategy_number(sample),
            sample_size=sample.size,
            sample_rate=sample.rate,
        )
        return listed[0], listed[1]

    def otherwise(rows: Rows, places: Places, offsets: Array) -> tuple[Array, Array]:
        assert rows.columns is not None
        begins, degrees = row_bounds(places)
        taken = reference.sample_edges(
            sample, places, begins, degrees, rows.columns, offsets, num_edges, capacity
        )
        senders = jnp.where(taken < num_edges, rows.columns[taken], 0)
        return taken[: capacity * edges], senders[: capacity * columns]

    def choose(rows: Rows, places: Places, offsets: Array) -> tuple[Array, Array]:
        return dispatch(("jaxgnn_sample_edges",), kernel, otherwise, rows, places, offsets)

    taken, senders = sequential(choose)(rows, places, offsets)
    return taken if edges else None, senders if columns else None


def compact_edges(
    sample: Sample,
    places: Places,
    edges: Int[Array, " capacity"] | None,
    capacity: int,
    *,
    transpose: bool,
    order: bool = True,
) -> tuple[Int[Array, " rows+1"], Int[Array, " capacity"], Int[Array, " capacity"] | None]:
    """The rows, or those of the transpose, of the edges in a list, or that `"dropedge"` keeps.

    Returns:
        Offsets, columns and, if asked for by `order`, the graph's edges, as `sample_edges` has
        them.
    """
    graph = places.graph
    num_edges, symmetric = graph.num_edges, graph.symmetric
    source, rows = neighbors(graph, transpose=False), neighbors(graph, transpose=transpose)

    def kernel(
        source: Rows, rows: Rows, key: Array | None, edges: Array | None
    ) -> tuple[Array, Array, Array]:
        words, groups = -(-num_edges // _EDGES_PER_WORD), -(-num_edges // _EDGES_PER_GROUP)
        bit_words = ((words,), np.uint32)
        permutation = or_empty(rows.order)
        # Where the graph is its own transpose the permutation is its own inverse: the bits of the
        # few edges are set at once where they belong, and not gathered for every edge.
        direct = transpose and symmetric and edges is not None
        if edges is not None:
            (bits,) = ffi.call(
                "jaxgnn_mark_edges",
                [edges, permutation if direct else or_empty(None)],
                [bit_words],
                num_edges=num_edges,
            )
        else:
            assert key is not None
            operands = [source.offsets, or_empty(source.columns), key]
            (bits,) = ffi.call("jaxgnn_drop_edges", operands, [bit_words], sample_rate=sample.rate)
        bits, counts = ffi.call(
            "jaxgnn_permute_bits",
            [bits, or_empty(None) if direct else permutation],
            [bit_words, ((groups,), np.int32)],
            num_edges=num_edges,
        )
        listed = ((capacity,), np.int32)
        offsets, columns, kept = ffi.call(
            "jaxgnn_compact_edges",
            [rows.offsets, or_empty(rows.columns), permutation, bits, offsets_of(counts)],
            [((rows.num_rows + 1,), np.int32), listed, ((capacity * order,), rows.offsets.dtype)],
        )
        return offsets, columns, kept

    def otherwise(
        source: Rows, rows: Rows, key: Array | None, edges: Array | None
    ) -> tuple[Array, Array, Array]:
        if edges is not None:
            kept = jnp.zeros(num_edges, bool).at[edges].set(True, mode="drop")
        else:
            assert key is not None
            kept = reference.kept_edges(sample, source.offsets, key, num_edges)
        offsets, columns, listed = _compact(rows, kept, num_edges, capacity)
        return offsets, columns, listed[: capacity * order]

    targets = ("jaxgnn_mark_edges", "jaxgnn_drop_edges", "jaxgnn_permute_bits")

    def choose(source: Rows, rows: Rows, key: Array | None, edges: Array | None):
        return dispatch(
            (*targets, "jaxgnn_compact_edges"), kernel, otherwise, source, rows, key, edges
        )

    offsets, columns, listed = sequential(choose)(source, rows, places.key, edges)
    return offsets, columns, listed if order else None


def _compact(
    rows: Rows, kept: Bool[Array, " edges"], num_edges: int, capacity: int
) -> tuple[Array, Array, Array]:
    order = jnp.arange(num_edges, dtype=rows.offsets.dtype) if rows.order is None else rows.order
    kept = kept[order]
    ranks = offsets_of(kept.astype(jnp.int32))
    slot = jnp.where(kept, ranks[:-1], capacity)
    assert rows.columns is not None
    columns = jnp.zeros(capacity, jnp.int32).at[slot].set(rows.columns, mode="drop")
    free = jnp.full(capacity, num_edges, rows.offsets.dtype)
    return ranks[rows.offsets], columns, free.at[slot].set(order.astype(free.dtype), mode="drop")
