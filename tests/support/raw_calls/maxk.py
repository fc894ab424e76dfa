"""Calls of MaxK's targets."""

from __future__ import annotations

import numpy as np

from tests.support.raw_calls.common import (
    CHUNKED,
    COLUMNS,
    F32,
    FEATURES,
    FREE,
    I32,
    ROWS,
    U8,
    U32,
    Call,
    Calls,
    Graph,
    K,
)

# There may be more windows than the receivers need: the parts say which are used.
_MORE_WINDOWS = "rows, axis 0, 2"


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


def maxk_normalized(g: Graph) -> Call:
    x = {"x": g.x(ROWS, FEATURES), "scale": g.x(2, FEATURES), "bias": g.x(2, FEATURES)}
    operands = {**x, "keys": np.ones((2, 2), U32)}
    attributes = {"drop_below": 1 << 20, "epsilon": 1e-5, "rows_per_example": ROWS // 2}
    free = {"drop_below", "epsilon", *(f"{name}, axis 0, 1" for name in ("scale", "bias", "keys"))}
    return maxk(g)._replace(operands=operands, attributes=attributes, free=frozenset(free))


def maxk_normalized_gradient(g: Graph) -> Call:
    return Call(
        {
            "x": g.x(ROWS, FEATURES),
            "scale": g.x(1, FEATURES),
            "key": np.ones((1, 2), U32),
            "gradient": g.x(ROWS, K),
            "indices": g.indices(ROWS),
        },
        {
            "dx": ((ROWS, FEATURES), F32),
            "sums": ((2, FEATURES), F32),
            "partials": ((3, 2 * FEATURES), F32),
        },
        {"drop_below": 1 << 20, "epsilon": 1e-5},
        frozenset({"drop_below", "epsilon", "partials, axis 0"}),
    )


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
        {"reduce": 0, **CHUNKED},
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
        CHUNKED,
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
        CHUNKED,
        FREE | {"dense, axis 1", "chunks, axis 0"},
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
        CHUNKED,
        FREE | {"dense, axis 1", "chunks, axis 0"},  # no scratch says how many chunks there are
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
            # A part more, padded with zeros, has place 0: what the parts' contents say is trusted.
            "partials": ((1, 64, FEATURES), F32),
            "scratch": ((8 + COLUMNS + 2 * ROWS + -(-COLUMNS // 4),), U32),
        },
        {"packed": 0, "reduce": 0},
        # How many places there are the parts say.
        frozenset(
            {"columns, axis 0", "parts, axis 0", "partials, axis 0", "reduce", _MORE_WINDOWS}
        ),
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
    free = frozenset({"parts, axis 0", "partials, axis 0", "reduce", "padding"})
    return Call(operands, results, {**call.attributes, "padding": 0}, free)


def maxk_sspmm_windows(g: Graph) -> Call:
    offsets = np.zeros(ROWS + 1, I32)
    return Call(
        {
            "row_offsets": offsets,
            **g.windows(ROWS),
            "dense": g.x(ROWS, FEATURES),
            "indices": g.indices(COLUMNS),
        },
        {"out": ((COLUMNS, K), F32), "sums": ((0, 0), F32)},
        {},
        # How many receivers a window's rows are is known to within those that it may hold.
        frozenset({"parts, axis 0", "dense, axis 0", _MORE_WINDOWS}),
    )


def maxk_sspmm_windows_weighted(g: Graph) -> Call:
    call = maxk_sspmm_windows(g)
    slots = {"slots": np.zeros((1, 65), I32), "slot_weights": g.x(g.edges)}
    offsets = call.operands["row_offsets"]
    operands = {"row_offsets": offsets, **g.windows(ROWS), **slots, **call.operands}
    # How many edges there are the windows' entries say.
    return Call(operands, call.results, {}, call.free | {"slot_weights, axis 0"})


def maxk_sspmm_windows_exact(g: Graph) -> Call:
    call = maxk_sspmm_windows(g)
    operands = {name: array for name, array in call.operands.items() if name != "row_offsets"}
    offsets = np.zeros(COLUMNS + 1, I32)
    return Call(
        {"row_offsets": offsets, "columns": g.columns, **operands},
        {
            "out": ((COLUMNS, K), F32),
            "sums": ((COLUMNS, K, 2), U32),
            "scratch": ((8,), U32),
        },
        {},
        call.free | {"columns, axis 0", "sums, rank + 1"},  # scratch is counted by its elements
    )


CALLS: Calls = {
    "jaxgnn_maxk": maxk,
    "jaxgnn_maxk_transformed": maxk_transformed,
    "jaxgnn_maxk_normalized": maxk_normalized,
    "jaxgnn_maxk_normalized_gradient": maxk_normalized_gradient,
    "jaxgnn_cbsr_scatter": cbsr_scatter,
    "jaxgnn_maxk_spmm": maxk_spmm,
    "jaxgnn_maxk_sspmm": maxk_sspmm,
    "jaxgnn_maxk_sddmm": maxk_sddmm,
}
CUDA_CALLS: Calls = {
    "jaxgnn_maxk_spmm_windows": maxk_spmm_windows,
    "jaxgnn_maxk_spmm_windows_weighted": maxk_spmm_windows_weighted,
    "jaxgnn_maxk_sspmm_scatter": maxk_sspmm_scatter,
    "jaxgnn_maxk_sspmm_windows": maxk_sspmm_windows,
    "jaxgnn_maxk_sspmm_windows_weighted": maxk_sspmm_windows_weighted,
    "jaxgnn_maxk_sspmm_windows_exact": maxk_sspmm_windows_exact,
}
