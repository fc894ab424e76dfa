"""Calls of the targets under Gaussian weights."""

from __future__ import annotations

import numpy as np

from tests.support.raw_calls.common import (
    CHUNKED,
    COLUMNS,
    DIMS,
    F32,
    FEATURES,
    FREE,
    KERNELS,
    ROWS,
    Call,
    Calls,
    Graph,
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
        {"reduce": 0, "shared_input": 0, "activation": 1, **CHUNKED},
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
        {"rows_stacked": 1, "activation": 1, **CHUNKED},
        FREE | {"activation"},
    )


CALLS: Calls = {
    "jaxgnn_gaussian_spmm": gaussian_spmm,
    "jaxgnn_gaussian_spmm_coordinates": gaussian_coordinates,
}
