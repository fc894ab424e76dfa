"""A valid call of every FFI target, by the target's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxgnn.graph import _row_chunks

ROWS, COLUMNS, FEATURES, HEADS, K, KERNELS, DIMS = 6, 8, 8, 2, 4, 3, 2
SPLIT_LENGTH = 4
F32, I32, U32, U8 = np.float32, np.int32, np.uint32, np.uint8


class Call(NamedTuple):
    """A valid call. `free` are the extents and attributes that may have other values, as
    "x, axis 0", "keys, axis 0, 1" (one alone) or "reduce": a gathered operand may have more rows
    than are gathered."""

    operands: dict[str, np.ndarray]
    results: dict[str, tuple[tuple[int, ...], Any]]
    attributes: dict[str, int | float]
    free: frozenset[str] = frozenset()


class Graph:
    """A graph from the last columns of which no edge comes. On a GPU its rows are empty: nothing
    that an operand says is then read out of bounds."""

    def __init__(self, empty: bool):
        rng = np.random.default_rng(0)
        degrees = np.array([7, 0, 1, 3, 2, 1])
        self.edges = int(degrees.sum())
        self.offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(I32)
        self.columns = rng.integers(0, ROWS - 2, self.edges).astype(I32)
        self.splits = _row_chunks.chunk_rows(self.offsets.astype(np.int64), SPLIT_LENGTH).table
        self.order = rng.permutation(ROWS).astype(I32)
        self.permutation = rng.permutation(self.edges).astype(I32)
        if empty:
            self.offsets *= 0
            self.columns *= 0
        self.rng = rng
        self.parts = len(self.splits)

    def x(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(F32)

    def rows(self) -> dict[str, np.ndarray]:
        return {"row_offsets": self.offsets, "columns": self.columns, "splits": self.splits}

    def ordered(self) -> dict[str, np.ndarray]:
        return {**self.rows(), "row_order": self.order}

    def indices(self, rows: int) -> np.ndarray:
        picked = [np.sort(self.rng.choice(FEATURES, K, replace=False)) for _ in range(rows)]
        return np.array(picked, U8)

    def windows(self, rows: int) -> dict[str, np.ndarray]:
        """A window without entries."""
        receivers = np.full((1, 64), -1, I32)
        receivers[0, :rows] = np.arange(rows)
        parts = np.array([[0, 0, 0, -1]], I32)
        senders, masks = np.zeros(5, I32), np.zeros((5, 2), U32)
        return {"rows": receivers, "parts": parts, "senders": senders, "masks": masks}


SPLIT = {"split_length": SPLIT_LENGTH}
FREE = frozenset({"split_length"})  # any positive one: what is read stays within the row
BOOLEANS = {
    "self_loops",
    "by_senders",
    "narrow_slices",
    "rows_stacked",
    "shared_input",
    "transpose",
    "packed",
}


def spmm(g: Graph, ties: bool = False) -> Call:
    out = ((ROWS, FEATURES), F32)
    return Call(
        {**g.ordered(), "x": g.x(COLUMNS, FEATURES), "weights": g.x(g.edges, HEADS)},
        {
            "out": out,
            **({"ties": out} if ties else {}),
            "partials": (((2 if ties else 1) * g.parts, FEATURES), F32),
        },
        {"reduce": 2, **({} if ties else {"narrow_slices": 0}), **SPLIT},
        FREE | {"x, axis 0", "weights, axis 1", "reduce"},
    )


def spmm_extremum(g: Graph) -> Call:
    return Call(
        {
            **g.rows(),
            "x": g.x(COLUMNS, FEATURES),
            "y": g.x(ROWS, FEATURES),
            "weights": g.x(g.edges, HEADS),
            "values": g.x(COLUMNS, FEATURES),
            "scale": g.x(g.edges, HEADS),
        },
        {"out": ((ROWS, FEATURES), F32), "partials": ((g.parts, FEATURES), F32)},
        {"transpose": 0, **SPLIT},
        FREE,
    )


def sddmm(g: Graph) -> Call:
    return Call(
        {**g.rows(), "a": g.x(ROWS, FEATURES), "b": g.x(COLUMNS, FEATURES)},
        {"out": ((g.edges, HEADS), F32)},
        {"heads": HEADS, **SPLIT},
        FREE | {"b, axis 0", "splits, axis 0"},
    )


def sddmm_extremum(g: Graph) -> Call:
    call = sddmm(g)
    more = {
        "x": g.x(COLUMNS, FEATURES),
        "y": g.x(ROWS, FEATURES),
        "weights": g.x(g.edges, HEADS),
    }
    return call._replace(operands={**call.operands, **more}, free=FREE | {"splits, axis 0"})


def csr_row_ids(g: Graph) -> Call:
    free = {"row_offsets, axis 0", "out, axis 0"}  # the number of edges, and of rows
    return Call({"row_offsets": g.offsets}, {"out": ((g.edges,), I32)}, {}, frozenset(free))


def maxk(g: Graph) -> Call:
    return Call(
        {"x": g.x(ROWS, FEATURES)},
        {"values": ((ROWS, K), F32), "indices": ((ROWS, K), U8)},
        {},
        frozenset({"x, axis 1"}),  # the width
    )


def maxk_transformed(g: Graph) -> Call:
    x = {"x": g.x(ROWS, FEATURES), "bias": g.x(2, FEATURES), "keys": np.ones((2, 2), U32)}
    attributes = {"drop_below": 1 << 20, "rows_per_example": ROWS // 2}
    # One bias or key for all examples.
    free = frozenset({"drop_below", "bias, axis 0, 1", "keys, axis 0, 1"})
    return maxk(g)._replace(operands=x, attributes=attributes, free=free)


def cbsr_scatter(g: Graph) -> Call:
    return Call(
        {"values": g.x(ROWS, K), "indices": g.indices(ROWS)},
        {"out": ((ROWS, FEATURES), F32)},
        {},
        frozenset({"out, axis 1"}),  # the width
    )


def maxk_spmm(g: Graph) -> Call:
    return Call(
        {
            **g.rows(),
            "values": g.x(COLUMNS, K),
            "indices": g.indices(COLUMNS),
            "weights": g.x(g.edges, 1),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "partials": ((g.parts, FEATURES), F32),
            "scratch": ((0,), U32),
        },
        {"reduce": 0, **SPLIT},
        FREE | {"reduce"},
    )


def maxk_sspmm(g: Graph) -> Call:
    return Call(
        {
            **g.rows(),
            "dense": g.x(COLUMNS, FEATURES),
            "indices": g.indices(ROWS),
            "weights": g.x(g.edges, 1),
        },
        {"out": ((ROWS, K), F32), "partials": ((g.parts, K), F32)},
        SPLIT,
        FREE | {"dense, axis 0", "dense, axis 1"},
    )


def maxk_sddmm(g: Graph) -> Call:
    return Call(
        {
            **g.rows(),
            "values": g.x(COLUMNS, K),
            "indices": g.indices(COLUMNS),
            "dense": g.x(ROWS, FEATURES),
        },
        {"out": ((g.edges, 1), F32)},
        SPLIT,
        FREE | {"dense, axis 1", "splits, axis 0"},
    )


def maxk_sspmm_scatter(g: Graph) -> Call:
    return Call(
        {
            **g.rows(),
            "dense": g.x(ROWS, FEATURES),
            "indices": g.indices(COLUMNS),
            "weights": g.x(g.edges, 1),
        },
        {"out": ((COLUMNS, K), F32), "sums": ((0, 0), F32)},
        SPLIT,
        FREE | {"dense, axis 1", "splits, axis 0"},  # no scratch says how many chunks there are
    )


def maxk_spmm_windows(g: Graph) -> Call:
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            **g.windows(ROWS),
            "values": g.x(COLUMNS, K),
            "indices": g.indices(COLUMNS),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "partials": ((0, 64, FEATURES), F32),
            "scratch": ((8 + COLUMNS + ROWS,), U32),
        },
        {"packed": 0, "reduce": 0},
        frozenset({"columns, axis 0", "parts, axis 0", "reduce"}),
    )


def maxk_spmm_windows_weighted(g: Graph) -> Call:
    call = maxk_spmm_windows(g)
    operands = {
        **{
            name: array
            for name, array in call.operands.items()
            if name not in ("values", "indices")
        },
        "slots": np.zeros((1, 65), I32),
        "slot_weights": g.x(g.edges),
        "values": call.operands["values"],
        "indices": call.operands["indices"],
        "weights": g.x(g.edges, 1),
    }
    results = {
        **call.results,
        "scratch": ((8 + COLUMNS + 2 * ROWS,), U32),
        "sums": ((0, FEATURES), F32),
    }
    free = frozenset({"parts, axis 0", "reduce", "padding"})
    return Call(operands, results, {**call.attributes, "padding": 0}, free)


def tiles_spmm(g: Graph) -> Call:
    """One batch that no part takes, and a part without batches."""
    places = np.zeros(ROWS + 1, I32)
    return Call(
        {
            "row_offsets": g.offsets,
            "row_columns": g.columns,
            "rows": g.order,
            "columns": np.zeros(16, I32),
            "masks": np.zeros((1, 32), U32),
            "parts": np.zeros((1, 4), I32),
            "slot_offsets": np.array([0, 1], I32),
            "rest_offsets": places,
            "rest_columns": np.zeros(3, I32),
            "chunks": np.array([[-1, 0]], I32),
            "x": g.x(COLUMNS, FEATURES),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "slots": ((1, 64, FEATURES), F32),
            "partials": ((1, FEATURES), F32),
        },
        {"reduce": 0, **SPLIT},
        FREE | {"row_columns, axis 0", "rest_columns, axis 0", "x, axis 0", "reduce"},
    )


def tile_edges() -> dict[str, np.ndarray]:
    """Two edges in tiles and three others, which no part takes and no row has."""
    return {
        "rest_edges": np.zeros(3, I32),
        "stage_offsets": np.zeros(2, I32),
        "edge_counts": np.zeros((1, 64), U8),
        "edge_offsets": np.zeros(9, I32),
        "edge_entries": np.zeros(2, U8),
        "edges": np.zeros(2, I32),
    }


def tiles_weighted_spmm(g: Graph) -> Call:
    call = tiles_spmm(g)
    operands = {k: v for k, v in call.operands.items() if k not in ("row_columns", "masks", "x")}
    more = {"x": call.operands["x"], "weights": g.x(5, HEADS)}
    free = FREE | {"edge_counts, axis 0", "x, axis 0", "weights, axis 1, 1", "reduce"}
    return call._replace(operands={**operands, **tile_edges(), **more}, free=free)


def maxk_sspmm_windows(g: Graph) -> Call:
    return Call(
        {**g.windows(ROWS), "dense": g.x(ROWS, FEATURES), "indices": g.indices(COLUMNS)},
        {"out": ((COLUMNS, K), F32), "sums": ((0, 0), F32)},
        {},
        # How many receivers a window's rows are is known to within those that it may hold.
        frozenset({"parts, axis 0", "dense, axis 0"}),
    )


def maxk_sspmm_windows_weighted(g: Graph) -> Call:
    call = maxk_sspmm_windows(g)
    slots = {"slots": np.zeros((1, 65), I32), "slot_weights": g.x(g.edges)}
    operands = {**g.windows(ROWS), **slots, **call.operands}
    # How many edges there are the windows' entries say.
    return Call(operands, call.results, {}, call.free | {"slot_weights, axis 0"})


def maxk_sspmm_windows_exact(g: Graph) -> Call:
    call = maxk_sspmm_windows(g)
    offsets = np.zeros(COLUMNS + 1, I32)
    return Call(
        {"row_offsets": offsets, "columns": g.columns, **call.operands},
        {
            "out": ((COLUMNS, K), F32),
            "sums": ((COLUMNS, K, 2), U32),
            "scratch": ((8,), U32),
        },
        {},
        call.free | {"columns, axis 0", "sums, rank + 1"},  # scratch is counted by its elements
    )


def scores(g: Graph) -> dict[str, np.ndarray]:
    return {
        "edge_bias": g.x(g.edges, HEADS),
        "loop_bias": g.x(ROWS, HEADS),
        "streams": np.ones((3, HEADS), U32),
    }


GAT = {"negative_slope": 0.2, "drop_below": 1 << 20, "self_loops": 1, **SPLIT}
FREE_GAT = FREE | {"drop_below", "self_loops"}


def scratch(columns: int) -> tuple[tuple[int, ...], Any]:
    slices = -(-FEATURES // HEADS // 16)
    parts = ROWS + len(Graph(False).splits)
    return (HEADS * (4 * columns + parts * slices + ROWS),), F32


def gat_attention(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            "values": g.x(COLUMNS, FEATURES),
            "sender_scores": g.x(COLUMNS, HEADS),
            "receiver_scores": g.x(ROWS, HEADS),
            **scores(g),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "log_sum": ((ROWS, HEADS), F32),
            "partials": ((g.parts, FEATURES + 2 * HEADS), F32),
            "scratch": ((COLUMNS * HEADS,), F32),
        },
        GAT,
        FREE_GAT,
    )


def gat_attention_senders(g: Graph) -> Call:
    """The rows are the senders, and there are fewer of them here than receivers."""
    return Call(
        {
            **g.ordered(),
            "permutation": g.permutation,
            "cotangent": g.x(COLUMNS, FEATURES),
            "values": g.x(ROWS, FEATURES),
            "sender_scores": g.x(ROWS, HEADS),
            "receivers": g.x(COLUMNS, 3 * HEADS),
            **scores(g),
            "loop_bias": g.x(COLUMNS, HEADS),
        },
        {
            "values_gradient": ((ROWS, FEATURES), F32),
            "scores_gradient": ((ROWS, HEADS), F32),
            "partials": ((g.parts, FEATURES + HEADS), F32),
            "scratch": scratch(COLUMNS),
        },
        GAT,
        FREE_GAT,
    )


def gat_attention_receivers(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            "cotangent": g.x(ROWS, FEATURES),
            "values": g.x(COLUMNS, FEATURES),
            "sender_scores": g.x(COLUMNS, HEADS),
            "receivers": g.x(ROWS, 3 * HEADS),
            **scores(g),
        },
        {
            "scores_gradient": ((ROWS, HEADS), F32),
            "edge_gradient": ((g.edges, HEADS), F32),
            "loop_gradient": ((ROWS, HEADS), F32),
            "partials": ((g.parts, HEADS), F32),
            "scratch": scratch(COLUMNS),
        },
        GAT,
        FREE_GAT,
    )


PAIR = {
    "score": 0,
    "score_parameter": 0.5,
    "heads": HEADS,
    "drop_below": 1 << 20,
    "self_loops": 1,
    **SPLIT,
}


def pair_attention(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            "queries": g.x(ROWS, FEATURES),
            "keys": g.x(COLUMNS, FEATURES),
            "values": g.x(COLUMNS, FEATURES),
            "vector": np.zeros((0, 0), F32),
            "key_scale": g.x(COLUMNS, HEADS),
            **scores(g),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "log_sum": ((ROWS, HEADS), F32),
            "partials": ((g.parts, FEATURES + 2 * HEADS), F32),
        },
        PAIR,
        FREE_GAT,
    )


def pair_attention_gradients(g: Graph) -> Call:
    rows = {**g.ordered(), "permutation": g.permutation}
    nodes = {
        "queries": g.x(COLUMNS, FEATURES),
        "keys": g.x(ROWS, FEATURES),
        "values": g.x(ROWS, FEATURES),
        "vector": np.zeros((0, 0), F32),
        "key_scale": g.x(ROWS, HEADS),
    }
    rest = {"cotangent": g.x(COLUMNS, FEATURES), "node_terms": g.x(COLUMNS, 2 * HEADS)}
    return Call(
        {**rows, **nodes, **scores(g), "loop_bias": g.x(COLUMNS, HEADS), **rest},
        {
            "first": ((ROWS, FEATURES), F32),
            "second": ((ROWS, FEATURES), F32),
            "edge_gradient": ((0, 0), F32),
            "loop_gradient": ((0, 0), F32),
            "partials": ((g.parts * 2 * FEATURES,), F32),
        },
        {"by_senders": 1, **PAIR},
        FREE_GAT | {"by_senders"},
    )


def cosine_attention(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            "x": g.x(ROWS, FEATURES),
            "row_scale": g.x(ROWS, HEADS),
            "column_scale": g.x(ROWS, HEADS),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "log_sum": ((ROWS, HEADS), F32),
            "partials": ((g.parts, FEATURES + 2 * HEADS), F32),
        },
        {"heads": HEADS, "self_loops": 1, **SPLIT},
        FREE_GAT | {"columns, axis 0"},
    )


def cosine_attention_gradients(g: Graph) -> Call:
    transpose = {f"transpose_{name}": array for name, array in g.ordered().items()}
    return Call(
        {
            **g.ordered(),
            **transpose,
            "x": g.x(ROWS, FEATURES),
            "beta": g.x(HEADS),
            "node_terms": g.x(ROWS, 4 * HEADS),
            "cotangent": g.x(ROWS, FEATURES),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "dots": ((ROWS, HEADS), F32),
            "carried": ((ROWS, FEATURES), F32),
            "partials": ((2 * g.parts, 2 * FEATURES), F32),
        },
        {"heads": HEADS, "self_loops": 1, "symmetric": 0, **SPLIT},
        FREE_GAT | {"symmetric"},
    )


def gaussians(g: Graph) -> dict[str, np.ndarray]:
    return {
        "row_terms": g.x(ROWS, DIMS),
        "column_terms": g.x(COLUMNS, DIMS),
        "edges": np.zeros((0, 0), F32),
        "mu": g.x(KERNELS, DIMS),
        "inv_sigma": g.x(KERNELS, DIMS),
    }


def gaussian_spmm(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            "permutation": g.permutation,
            "x": g.x(COLUMNS, KERNELS * FEATURES),
            **gaussians(g),
        },
        {"out": ((ROWS, FEATURES), F32), "partials": ((g.parts, FEATURES), F32)},
        {"reduce": 0, "shared_input": 0, "activation": 1, **SPLIT},
        FREE | {"reduce", "activation"},
    )


def gaussian_coordinates(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            "permutation": g.permutation,
            "single": g.x(COLUMNS, FEATURES),
            "stacked": g.x(ROWS, KERNELS * FEATURES),
            **gaussians(g),
        },
        {
            "row_terms_gradient": ((ROWS, DIMS), F32),
            "edge_gradient": ((g.edges, DIMS), F32),
            "mu_gradient": ((KERNELS, DIMS), F32),
            "inv_sigma_gradient": ((KERNELS, DIMS), F32),
            "partials": ((g.parts, DIMS), F32),
            "block_sums": ((g.parts + ROWS, 2 * KERNELS * DIMS), F32),
        },
        {"rows_stacked": 1, "activation": 1, **SPLIT},
        FREE | {"activation"},
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


def drawn_neighbors(g: Graph) -> Call:
    return Call(
        {
            "row_offsets": g.offsets,
            "columns": g.columns,
            "places": np.array([0, -1, 2], I32),
            "ids": np.array([0, 1, 2], U32),
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
            "ids": np.array([0, 1, 2], U32),
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
        {"group": 2, "reduce": 0},
        frozenset({"x, axis 0", "reduce"}),
    )


def unit_layer(g: Graph) -> Call:
    return Call(
        {
            "x": g.x(5, FEATURES),
            "around": g.x(5, FEATURES),
            "own_matrix": g.x(3, FEATURES),
            "around_matrix": g.x(4, FEATURES),
        },
        {"out": ((5, 7), F32)},
        {},
        frozenset(),
    )


def counting_sort(g: Graph) -> Call:
    """Also of keys that are no value."""
    keys = np.array([3, -1, 0, 3, 9, 1], I32)
    results = {"offsets": ((ROWS + 1,), I32), "order": ((6,), I32)}
    return Call({"keys": keys}, results, {}, frozenset({"offsets, axis 0"}))


CALLS: dict[str, Callable[[Graph], Call]] = {
    "jaxgnn_spmm": spmm,
    "jaxgnn_spmm_ties": lambda g: spmm(g, ties=True),
    "jaxgnn_spmm_extremum": spmm_extremum,
    "jaxgnn_sddmm": sddmm,
    "jaxgnn_sddmm_extremum": sddmm_extremum,
    "jaxgnn_csr_row_ids": csr_row_ids,
    "jaxgnn_maxk": maxk,
    "jaxgnn_maxk_transformed": maxk_transformed,
    "jaxgnn_cbsr_scatter": cbsr_scatter,
    "jaxgnn_maxk_spmm": maxk_spmm,
    "jaxgnn_maxk_sspmm": maxk_sspmm,
    "jaxgnn_maxk_sddmm": maxk_sddmm,
    "jaxgnn_gat_attention": gat_attention,
    "jaxgnn_gat_attention_senders": gat_attention_senders,
    "jaxgnn_gat_attention_receivers": gat_attention_receivers,
    "jaxgnn_pair_attention": pair_attention,
    "jaxgnn_pair_attention_gradients": pair_attention_gradients,
    "jaxgnn_gaussian_spmm": gaussian_spmm,
    "jaxgnn_gaussian_spmm_coordinates": gaussian_coordinates,
    "jaxgnn_sample_edges": sample_edges,
    "jaxgnn_mark_edges": mark_edges,
    "jaxgnn_drop_edges": drop_edges,
    "jaxgnn_permute_bits": permute_bits,
    "jaxgnn_compact_edges": compact_edges,
    "jaxgnn_gather_host_rows": gather_host_rows,
}
CPU_CALLS: dict[str, Callable[[Graph], Call]] = {"jaxgnn_counting_sort": counting_sort}
CUDA_CALLS: dict[str, Callable[[Graph], Call]] = {
    "jaxgnn_tiles_spmm": tiles_spmm,
    "jaxgnn_row_offsets": row_offsets,
    "jaxgnn_tiles_weighted_spmm": tiles_weighted_spmm,
    "jaxgnn_drawn_neighbors": drawn_neighbors,
    "jaxgnn_drawn_rows": drawn_rows,
    "jaxgnn_sage_layer": sage_layer,
    "jaxgnn_unit_layer": unit_layer,
    "jaxgnn_maxk_spmm_windows": maxk_spmm_windows,
    "jaxgnn_maxk_spmm_windows_weighted": maxk_spmm_windows_weighted,
    "jaxgnn_maxk_sspmm_scatter": maxk_sspmm_scatter,
    "jaxgnn_maxk_sspmm_windows": maxk_sspmm_windows,
    "jaxgnn_maxk_sspmm_windows_weighted": maxk_sspmm_windows_weighted,
    "jaxgnn_maxk_sspmm_windows_exact": maxk_sspmm_windows_exact,
    "jaxgnn_cosine_attention": cosine_attention,
    "jaxgnn_cosine_attention_gradients": cosine_attention_gradients,
}
