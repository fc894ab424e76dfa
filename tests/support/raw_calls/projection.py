"""Calls of the targets of projections."""

from __future__ import annotations

from tests.support.raw_calls.common import F32, FEATURES, HEADS, ROWS, Call, Calls, Graph


def weight_gradient(g: Graph) -> Call:
    """Any number of blocks will do: without rows some are empty."""
    results = {
        "out": ((FEATURES, HEADS), F32),
        "partials": ((3, FEATURES * HEADS), F32),
    }
    operands = {"x": g.x(ROWS, FEATURES), "g": g.x(ROWS, HEADS)}
    return Call(operands, results, {"warpgroups": 1}, frozenset({"partials, axis 0"}))


CALLS: Calls = {
    "jaxgnn_weight_gradient": weight_gradient,
}
