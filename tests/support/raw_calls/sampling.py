"""Calls of sampling's targets."""

from __future__ import annotations

import numpy as np

from tests.support.raw_calls.common import (
    COLUMNS,
    F32,
    FEATURES,
    I32,
    ROWS,
    U32,
    Call,
    Calls,
    Graph,
)


def sample_edges(g: Graph) -> Call:
    listed = ((8,), I32)
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            "places": np.array([0, 3, 0], I32),
            "offsets": np.array([0, 2, 4, 6], I32),
            "key": np.ones(2, U32),
            "ids": np.array([7, 7, 2**32 - 1], U32),
            "weights": np.zeros(g.edges, I32),
        },
        {"edges": listed, "sampled_columns": listed},
        {"strategy": 6, "sample_size": 2, "sample_rate": 1 << 32},
        frozenset(
            {"row_offsets, axis 0", "columns, axis 0", "strategy", "sample_size", "sample_rate"}
        ),
    )


def mark_edges(g: Graph) -> Call:
    return Call(
        {"edges": np.array([0, 3, 99, -1], I32), "permutation": g.permutation},
        {"bits": ((1,), U32)},
        {"num_edges": g.edges},
        frozenset({"edges, axis 0"}),
    )


def drop_edges(g: Graph) -> Call:
    return Call(
        {"row_offsets": g.offsets, "columns": g.columns, "key": np.ones(2, U32)},
        {"bits": ((1,), U32)},
        {"sample_rate": 1 << 31},
        frozenset({"row_offsets, axis 0", "columns, axis 0", "sample_rate"}),
    )


def permute_bits(g: Graph) -> Call:
    return Call(
        {"bits": np.array([0b1011], U32), "permutation": g.permutation},
        {"out": ((1,), U32), "counts": ((1,), I32)},
        {"num_edges": g.edges},
    )


def compact_edges(g: Graph) -> Call:
    listed = ((5,), I32)
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            "permutation": g.permutation,
            "bits": np.array([0b1011], U32),
            "ranks": np.array([0, 3], I32),
        },
        {"offsets": ((ROWS + 1,), I32), "kept_columns": listed, "edges": listed},
        {},
    )


def gather_host_rows(g: Graph) -> Call:
    """Of no nodes: nothing is read at the address."""
    return Call(
        {
            "address": np.array([64, 0], U32),
            "nodes": np.array([-1, -1, -1], I32),
            "slots": np.full(COLUMNS, -1, I32),
            "cache": g.x(ROWS, FEATURES),
        },
        {"out": ((3, FEATURES), F32)},
        {"num_rows": COLUMNS},
        frozenset({"cache, axis 0"}),
    )


def row_offsets(g: Graph) -> Call:
    return Call(
        {"counts": np.array([3, 0, 2], I32)},
        {"offsets": ((4,), I32), "totals": ((1,), I32)},
        {},
    )


def sample_tree(g: Graph) -> Call:
    """Levels of 3, 6 and 18 places, and one of padding in each."""
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            "seeds": np.array([0, -1, 5], I32),
            "keys": np.ones((2, 2), U32),
            "weights": np.zeros(2 * g.edges, U32),
            "positive": np.ones(ROWS, I32),
        },
        {
            "nodes": ((30,), I32),
            "edges": ((24,), I32),
            "offsets": ((12,), I32),
            "receivers": ((6,), I32),
            "states": ((4,), U32),
        },
        {"sizes": (2, 3), "paddings": (1, 1, 1), "strategy": 8},
        frozenset({"row_offsets, axis 0", "columns, axis 0"}),
    )


def drawn_neighbors(g: Graph) -> Call:
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            "places": np.array([0, -1, 2], I32),
            "first_id": np.array([7], U32),
            "key": np.array([1, 2], U32),
        },
        {"out": ((3, 5), I32)},
        {},
        frozenset({"row_offsets, axis 0", "columns, axis 0", "out, axis 1"}),
    )


def drawn_rows(g: Graph) -> Call:
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            "places": np.array([0, -1, 2], I32),
            "first_id": np.array([7], U32),
            "key": np.array([1, 2], U32),
            "x": g.x(COLUMNS, FEATURES),
        },
        {"out": ((3, FEATURES), F32)},
        {"sample_size": 5, "reduce": 0},
        frozenset({"row_offsets, axis 0", "columns, axis 0", "x, axis 0", "sample_size", "reduce"}),
    )


def sage_layer(g: Graph) -> Call:
    return Call(
        {
            "places": np.array([0, -1, 2, 1], I32),
            "x": g.x(COLUMNS, FEATURES),
            "around": g.x(4, FEATURES),
            "own_matrix": g.x(FEATURES, 3),
            "around_matrix": g.x(FEATURES, 5),
        },
        {"out": ((2, 8), F32)},
        {"group": 2, "reduce": 0, "warpgroups": 1},
        frozenset({"x, axis 0", "reduce"}),
    )


def source_layers(g: Graph) -> Call:
    return Call(
        {
            "places": np.array([0, -1, 2, 1, 4], I32),
            "x": g.x(COLUMNS, FEATURES),
            "around": g.x(5, FEATURES),
            "own_matrix": g.x(3, FEATURES),
            "around_matrix": g.x(5, FEATURES),
            "second_around": g.x(5, 8),
            "second_own_matrix": g.x(3, 8),
            "second_around_matrix": g.x(4, 8),
            "start": np.array([2], I32),
            "into": g.x(8, 7),
        },
        {"out": ((8, 7), F32), "hidden": ((5, 8), F32)},
        {"warpgroups": 1},
        frozenset({"x, axis 0"}),
    )


def uninitialized(g: Graph) -> Call:
    """Any two matrices of one type."""
    free = {"like, axis 0", "like, axis 1", "out, axis 0", "out, axis 1"}
    return Call({"like": g.x(3, 4)}, {"out": ((5, 7), F32)}, {}, frozenset(free))


def counting_sort(g: Graph) -> Call:
    """Also of keys that are no value."""
    keys = np.array([3, -1, 0, 3, 9, 1], I32)
    results = {"offsets": ((ROWS + 1,), I32), "order": ((6,), I32)}
    return Call({"keys": keys}, results, {}, frozenset({"offsets, axis 0"}))


CALLS: Calls = {
    "jaxgnn_sample_edges": sample_edges,
    "jaxgnn_mark_edges": mark_edges,
    "jaxgnn_drop_edges": drop_edges,
    "jaxgnn_permute_bits": permute_bits,
    "jaxgnn_compact_edges": compact_edges,
    "jaxgnn_gather_host_rows": gather_host_rows,
}
CPU_CALLS: Calls = {
    "jaxgnn_counting_sort": counting_sort,
}
CUDA_CALLS: Calls = {
    "jaxgnn_row_offsets": row_offsets,
    "jaxgnn_sample_tree": sample_tree,
    "jaxgnn_drawn_neighbors": drawn_neighbors,
    "jaxgnn_drawn_rows": drawn_rows,
    "jaxgnn_sage_layer": sage_layer,
    "jaxgnn_source_layers": source_layers,
    "jaxgnn_uninitialized": uninitialized,
}
