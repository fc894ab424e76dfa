"""Sparse rows (`jaxgnn.CBSR`) in expressions: where they stay sparse, and their dense form."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jaxgnn._core.platform import Impl
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    Edges,
    SegmentNormalize,
    SparseGather,
    node_gather,
)
from jaxgnn.ops import CBSR

_KEPT = ("+", "-", "*", "scale", "linear")
"""Below these, rows of the message itself may stay sparse."""


class Densified(NamedTuple):
    """An expression with dense rows in place of sparse ones.

    Attributes:
        edges: the expression.
        made_dense: the texts of the rows that were.
    """

    edges: Edges
    made_dense: tuple[str, ...]


def has_sparse_rows(e: Edges) -> bool:
    if isinstance(e, Applied):
        return any(map(has_sparse_rows, e.operands))
    if isinstance(e, SegmentNormalize | Dropout):
        return has_sparse_rows(e.operand)
    return isinstance(e, SparseGather)


def densified(edges: Edges, impl: Impl, *, keep_rows: bool = False) -> Densified:
    """Sparse rows are made dense, on the nodes; with `keep_rows` only those that weights or scores
    are made of.

    The rows of one `scatter` are one array, as rules compare arrays by identity.
    """
    dense: dict[int, Edges] = {}
    made_dense: list[str] = []

    def visit(e: Edges, keep: bool) -> Edges:
        if not has_sparse_rows(e) or (isinstance(e, SparseGather) and keep):
            return e
        keep = keep and isinstance(e, Applied) and e.name in _KEPT
        if keep:
            assert isinstance(e, Applied)
            return dataclasses.replace(e, operands=tuple(visit(o, True) for o in e.operands))
        if id(e) not in dense:
            dense[id(e)] = _densified(e)
        return dense[id(e)]

    def _densified(e: Edges) -> Edges:
        if isinstance(e, SparseGather):
            made_dense.append(e.text)
            return node_gather(e.graph, e.rows.to_dense(impl=impl), True, e.text)
        if isinstance(e, SegmentNormalize | Dropout):
            return dataclasses.replace(e, operand=visit(e.operand, False))
        assert isinstance(e, Applied)
        return dataclasses.replace(e, operands=tuple(visit(o, False) for o in e.operands))

    out = visit(edges, keep_rows)
    return Densified(out, tuple(dict.fromkeys(made_dense)))


def of_heads(rows: CBSR, heads: int) -> CBSR:
    """Rows `[nodes, *heads, width]` as `[nodes, heads, width]`."""
    shape = (rows.values.shape[0], heads, rows.k)
    values, indices = rows.values.reshape(shape), rows.indices.reshape(shape)
    return dataclasses.replace(rows, values=values, indices=indices)
