"""Calls of the targets over tiles."""

from __future__ import annotations

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
)


def tiles_spmm(g: Graph) -> Call:
    """One batch that no part takes, and a part without batches."""
    places = np.zeros(ROWS + 1, I32)
    return Call(
        {
            "row_offsets": g.offsets,
            "row_columns": g.columns,
            "chunks": np.array([[-1, 0]], I32),
            "rows": g.order,
            "columns": np.zeros(16, I32),
            "masks": np.zeros((1, 32), U32),
            "parts": np.zeros((1, 4), I32),
            "slot_offsets": np.array([0, 1], I32),
            "rest_offsets": places,
            "rest_columns": np.zeros(3, I32),
            "x": g.x(COLUMNS, FEATURES),
        },
        {
            "out": ((ROWS, FEATURES), F32),
            "slots": ((1, 64, FEATURES), F32),
            "partials": ((1, FEATURES), F32),
        },
        {"reduce": 0, "tensorfloat32": 0, **CHUNKED},
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
    return call._replace(
        operands={**operands, **tile_edges(), **more},
        attributes={"reduce": 0, **CHUNKED},
        free=FREE | {"edge_counts, axis 0", "x, axis 0", "weights, axis 1, 1", "reduce"},
    )


def tiles_cosine_attention(g: Graph) -> Call:
    call = tiles_spmm(g)
    more = {
        "x": g.x(ROWS, FEATURES).astype(np.float16),
        "row_scale": g.x(ROWS, 1),
        "column_scale": g.x(ROWS, 1),
        "beta": np.ones(1, F32),
    }
    return Call(
        {**call.operands, **more},
        {
            "out": ((ROWS, FEATURES), np.float16),
            "log_sum": ((ROWS, 1), F32),
            "slots": ((1, 64, FEATURES), F32),
            "slot_totals": ((1, 64, 1), F32),
            "partials": ((1, FEATURES), F32),
            "chunk_totals": ((1, 1), F32),
            "loops": ((1, 2), U32),
        },
        {"heads": 1, "self_loops": 1, **CHUNKED},
        FREE | {"row_columns, axis 0", "rest_columns, axis 0"},
    )


CUDA_CALLS: Calls = {
    "jaxgnn_tiles_cosine_attention": tiles_cosine_attention,
    "jaxgnn_tiles_spmm": tiles_spmm,
    "jaxgnn_tiles_weighted_spmm": tiles_weighted_spmm,
}
