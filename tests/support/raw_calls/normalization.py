"""Calls of the targets of normalization."""

from __future__ import annotations

import numpy as np

from tests.support.raw_calls.common import F32, FEATURES, ROWS, Call, Calls, Graph


def layer_norm(g: Graph) -> Call:
    vectors = {name: g.x(1, FEATURES)[0] for name in ("scale", "bias")}
    operands = {"x": g.x(ROWS, FEATURES), **vectors}
    results = {"out": ((ROWS, FEATURES), F32)}
    return Call(operands, results, {"epsilon": 1e-5}, frozenset({"epsilon"}))


def layer_norm_gradient(g: Graph) -> Call:
    """Any number of blocks will do."""
    operands = {
        "x": g.x(ROWS, FEATURES),
        "scale": g.x(1, FEATURES)[0],
        "gradient": g.x(ROWS, FEATURES),
    }
    results = {
        "dx": ((ROWS, FEATURES), F32),
        "sums": ((2, FEATURES), F32),
        "partials": ((3, 2 * FEATURES), F32),
    }
    free = frozenset({"epsilon", "partials, axis 0"})
    return Call(operands, results, {"epsilon": 1e-5}, free)


def centered_sums(g: Graph) -> Call:
    """Any number of blocks will do, and no rows of a gradient or of a mask."""
    operands = {
        "x": g.x(ROWS, FEATURES),
        "shift": g.x(1, FEATURES)[0],
        "gradient": g.x(ROWS, FEATURES),
        "mask": np.arange(ROWS) % 2 == 0,
    }
    results = {"sums": ((2, FEATURES), F32), "partials": ((3, 2 * FEATURES), F32)}
    return Call(operands, results, {}, frozenset({"partials, axis 0"}))


CPU_CALLS: Calls = {
    "jaxgnn_centered_sums": centered_sums,
    "jaxgnn_layer_norm": layer_norm,
    "jaxgnn_layer_norm_gradient": layer_norm_gradient,
}
