"""Calls of attention's targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.raw_calls.common import (
    CHUNKED,
    COLUMNS,
    F32,
    FEATURES,
    FREE,
    HEADS,
    I32,
    ROWS,
    U8,
    U32,
    Call,
    Calls,
    Graph,
    K,
)


def scores(g: Graph) -> dict[str, np.ndarray]:
    return {
        "edge_bias": g.x(g.edges, HEADS),
        "loop_bias": g.x(ROWS, HEADS),
        "streams": np.ones((3, HEADS), U32),
    }


GAT = {"negative_slope": 0.2, "drop_below": 1 << 20, "self_loops": 1, **CHUNKED}
FREE_GAT = FREE | {"drop_below", "self_loops"}


def scratch(columns: int) -> tuple[tuple[int, ...], Any]:
    slices = -(-FEATURES // HEADS // 16)
    parts = ROWS + len(Graph(False).chunks)
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
            "log_sum": ((ROWS, 2 * HEADS), F32),
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


def cbsr(g: Graph) -> dict[str, np.ndarray]:
    """Rows of the senders' heads, whose columns are below a head's features."""
    indices = np.tile(np.arange(K, dtype=U8), (COLUMNS * HEADS, 1))
    return {"values": g.x(COLUMNS * HEADS, K), "indices": indices}


def sparse_attention(g: Graph) -> Call:
    return Call(
        {
            **g.ordered(),
            **cbsr(g),
            "sender_scores": g.x(COLUMNS, HEADS),
            "receiver_scores": g.x(ROWS, HEADS),
            **scores(g),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "log_sum": ((ROWS, 2 * HEADS), F32),
            "partials": ((g.parts, FEATURES + 2 * HEADS), F32),
        },
        GAT,
        FREE_GAT,
    )


def sparse_attention_gradients(g: Graph) -> Call:
    """The rows of the transpose, which are the senders, have two edges each."""
    rows = g.ordered()
    transpose = {
        "transpose_row_offsets": np.minimum(np.arange(COLUMNS + 1) * 2, g.offsets[-1]).astype(I32),
        "transpose_columns": g.columns,
        "transpose_chunks": np.zeros((0, 2), I32),
        "transpose_row_order": np.zeros(0, I32),
        "permutation": g.permutation,
    }
    return Call(
        {
            **rows,
            **transpose,
            **cbsr(g),
            "sender_scores": g.x(COLUMNS, HEADS),
            "cotangent": g.x(ROWS, FEATURES),
            "receivers": g.x(ROWS, 4 * HEADS),
            **scores(g),
        },
        {
            "values_gradient": ((COLUMNS * HEADS, K), F32),
            "sender_gradient": ((COLUMNS, HEADS), F32),
            "receiver_gradient": ((ROWS, HEADS), F32),
            "edge_gradient": ((g.edges, HEADS), F32),
            "loop_gradient": ((ROWS, HEADS), F32),
            "receiver_partials": ((g.parts, HEADS), F32),
            "sender_partials": ((0, HEADS * (K + 1)), F32),
            "scratch": ((COLUMNS * HEADS * (K + 3),), F32),
        },
        {**GAT, "transpose_chunk_length": CHUNKED["chunk_length"]},
        FREE_GAT | {"transpose_chunk_length"},
    )


# There may be more windows than the receivers need, and more parts, which have place 0; nothing has
# a number for each edge.
FREE_WINDOWS = FREE | {"rows, axis 0, 2", "parts, axis 0", "columns, axis 0"}


def sparse_window_attention(g: Graph) -> Call:
    call = sparse_attention(g)
    operands = {**g.ordered(), **g.windows(ROWS), **cbsr(g)}
    for name in ("sender_scores", "receiver_scores"):
        operands[name] = call.operands[name]
    return Call(
        operands,
        {
            "out": ((ROWS, FEATURES), F32),
            "log_sum": ((ROWS, 2 * HEADS), F32),
            "partials": ((1, 64 * FEATURES), I32),
            "scratch": ((HEADS * (2 * COLUMNS + ROWS + 3 * g.parts),), F32),
        },
        {"negative_slope": 0.2, "self_loops": 0, "threads": 512, **CHUNKED},
        FREE_WINDOWS | {"partials, axis 0"},
    )


def sparse_window_gradients(g: Graph) -> Call:
    call = sparse_attention_gradients(g)
    names = ("row_offsets", "columns", "chunks", "row_order")
    transpose = {name: call.operands[f"transpose_{name}"] for name in names}
    results = {
        name: result
        for name, result in call.results.items()
        if name in ("values_gradient", "sender_gradient", "receiver_gradient")
    }
    lanes = 1  # of a head, each with four entries
    return Call(
        {
            **transpose,
            **g.windows(ROWS),
            **cbsr(g),
            "sender_scores": g.x(COLUMNS, HEADS),
            "cotangent": g.x(ROWS, FEATURES),
            "receivers": g.x(ROWS, 4 * HEADS),
            "norms": g.x(HEADS),
        },
        {
            **results,
            "sender_partials": ((0, 2 * HEADS), F32),
            "scratch": ((HEADS * (COLUMNS * (2 + 2 * K + 2 * lanes) + 3 * ROWS),), F32),
        },
        {"negative_slope": 0.2, "self_loops": 0, "threads": 512, **CHUNKED},
        FREE_WINDOWS,
    )


PAIR = {
    "score": 0,
    "score_parameter": 0.5,
    "heads": HEADS,
    "drop_below": 1 << 20,
    "self_loops": 1,
    **CHUNKED,
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
            "log_sum": ((ROWS, 2 * HEADS), F32),
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
            "log_sum": ((ROWS, 2 * HEADS), F32),
            "partials": ((g.parts, FEATURES + 2 * HEADS), F32),
        },
        {"heads": HEADS, "self_loops": 1, **CHUNKED},
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
        {"heads": HEADS, "self_loops": 1, "symmetric": 0, "tensor_cores": 0, **CHUNKED},
        FREE_GAT | {"symmetric"},
    )


CALLS: Calls = {
    "jaxgnn_gat_attention": gat_attention,
    "jaxgnn_gat_attention_senders": gat_attention_senders,
    "jaxgnn_gat_attention_receivers": gat_attention_receivers,
    "jaxgnn_sparse_attention": sparse_attention,
    "jaxgnn_sparse_attention_gradients": sparse_attention_gradients,
    "jaxgnn_pair_attention": pair_attention,
    "jaxgnn_pair_attention_gradients": pair_attention_gradients,
}
CUDA_CALLS: Calls = {
    "jaxgnn_cosine_attention": cosine_attention,
    "jaxgnn_cosine_attention_gradients": cosine_attention_gradients,
    "jaxgnn_sparse_window_attention": sparse_window_attention,
    "jaxgnn_sparse_window_gradients": sparse_window_gradients,
}
