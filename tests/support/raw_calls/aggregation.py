"""Calls of the aggregation targets."""

from __future__ import annotations

from tests.support.raw_calls.common import (
    CHUNKED,
    COLUMNS,
    F32,
    FEATURES,
    FREE,
    HEADS,
    I32,
    ROWS,
    Call,
    Calls,
    Graph,
)


def spmm(g: Graph, ties: bool = False) -> Call:
    out = ((ROWS, FEATURES), F32)
    more = {} if ties else {"narrow_slices": 0, "row_limit": 0, "longest_row": 0}
    return Call(
        {**g.ordered(), "x": g.x(COLUMNS, FEATURES), "weights": g.x(g.edges, HEADS)},
        {
            "out": out,
            **({"ties": out} if ties else {}),
            "partials": (((2 if ties else 1) * g.parts, FEATURES), F32),
        },
        {"reduce": 2, **more, **CHUNKED},
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
        {"transpose": 0, **CHUNKED},
        FREE,
    )


def sddmm(g: Graph) -> Call:
    return Call(
        {**g.rows(), "a": g.x(ROWS, FEATURES), "b": g.x(COLUMNS, FEATURES)},
        {"out": ((g.edges, HEADS), F32)},
        {"heads": HEADS, **CHUNKED},
        FREE | {"b, axis 0", "chunks, axis 0"},
    )


def sddmm_extremum(g: Graph) -> Call:
    call = sddmm(g)
    more = {
        "x": g.x(COLUMNS, FEATURES),
        "y": g.x(ROWS, FEATURES),
        "weights": g.x(g.edges, HEADS),
    }
    return call._replace(operands={**call.operands, **more}, free=FREE | {"chunks, axis 0"})


def edge_softmax(g: Graph) -> Call:
    rows = {**g.rows(), "columns": g.columns[:0]}
    return Call(
        {**rows, "scores": g.x(g.edges, HEADS)},
        {"out": ((g.edges, HEADS), F32), "partials": ((g.parts, 2 * HEADS), F32)},
        {**CHUNKED},
        FREE | {"row_offsets, axis 0"},  # nothing else tells how many rows there are
    )


def csr_row_ids(g: Graph) -> Call:
    free = {"row_offsets, axis 0", "out, axis 0"}  # the number of edges, and of rows
    return Call({"row_offsets": g.offsets}, {"out": ((g.edges,), I32)}, {}, frozenset(free))


CALLS: Calls = {
    "jaxgnn_spmm": spmm,
    "jaxgnn_spmm_ties": lambda g: spmm(g, ties=True),
    "jaxgnn_spmm_extremum": spmm_extremum,
    "jaxgnn_sddmm": sddmm,
    "jaxgnn_sddmm_extremum": sddmm_extremum,
    "jaxgnn_csr_row_ids": csr_row_ids,
}

CPU_CALLS: Calls = {"jaxgnn_edge_softmax": edge_softmax}
