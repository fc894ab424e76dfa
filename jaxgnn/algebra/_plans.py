"""What a rule gets and gives, and what rules share: products of rows and weights, sums by end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.algebra import _cost
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    EdgeInput,
    Edges,
    NodeGather,
    SegmentNormalize,
    SparseGather,
    apply,
    binary,
    node_gather,
)
from jaxgnn.algebra._hoist import factors, on_nodes, scaled_rows, terms, used_rows
from jaxgnn.algebra._reference import on_edges, recompute_edges, recomputed
from jaxgnn.algebra._squeeze import drop_last_axis
from jaxgnn.ops._aggregation.spmm import Reduce

Recompute = bool | Literal["cost"]


class Request(NamedTuple):
    """A gather: the expression, the reduction, the result's dtype, and `gather`'s options.

    `dtype` is that of `edges`, except for a sum (or mean) that is a part of the result: that one
    has the accumulation dtype. In 16 bits it would lose the digits that remain when parts cancel,
    or overflow float16.
    """

    edges: Edges
    reduce: Reduce
    dtype: np.dtype
    recompute: Recompute
    budget: int | None
    impl: Impl

    def values(self, edges: Edges) -> Array:
        """An expression's values on the edges."""
        return on_edges(edges, self.impl, fuse=True)

    @property
    def wide(self) -> np.dtype:
        """The dtype of the parts of the result."""
        return accumulation_dtype(self.dtype)


class Plan(NamedTuple):
    """A description of what runs, a function that runs it, and what else was rewritten."""

    text: str
    run: Callable[[], Array]
    notes: tuple[str, ...] = ()


Rule = Callable[[Request], Plan | None]


def merged(*notes: tuple[str, ...]) -> tuple[str, ...]:
    """Each note once."""
    return tuple(dict.fromkeys(note for some in notes for note in some))


def node_texts(e: Edges) -> list[str]:
    """The rows of nodes that an expression gathers, each once."""
    if isinstance(e, NodeGather):
        return [e.text]
    parts: tuple[Edges, ...] = ()
    if isinstance(e, Applied):
        parts = e.operands
    elif isinstance(e, SegmentNormalize | Dropout):
        parts = (e.operand,)
    return list(dict.fromkeys(text for part in parts for text in node_texts(part)))


def maybe_recomputed(request: Request, plan: Plan, evaluated: Sequence[Edges]) -> Plan:
    """The plan, whose backward pass recomputes the evaluated expressions, or some of them."""
    if not request.recompute:
        return plan._replace(text=f"{plan.text}, stored for backward")
    policy, notes = recompute_policy(request, evaluated)
    run = functools.partial(recomputed, plan.run, policy)
    text = f"{plan.text}, recomputed in backward"
    return plan._replace(text=text, run=run, notes=merged(plan.notes, notes))


def recompute_policy(
    request: Request, evaluated: Sequence[Edges]
) -> tuple[_cost.Policy, tuple[str, ...]]:
    """What is stored for the backward pass, and notes of it."""
    if request.recompute is True:
        return recompute_edges, ()
    candidates = _cost.candidates(evaluated)
    threshold = _cost.threshold(candidates, request.budget)
    notes = [
        f"kept if a derivative needs it: {c.text}, {c.nbytes:,} bytes, "
        f"{c.cost:.3g} operations a byte"
        for c in candidates
        if c.cost > threshold
    ]
    if request.budget is not None:
        notes.append(f"within a budget of {request.budget:,} bytes")
    return _cost.policy(request.edges.graph.num_edges, threshold), tuple(notes)


def match_weighted_rows(
    request: Request,
) -> tuple[Edges | None, NodeGather | SparseGather] | None:
    """Rows of the senders times a weight of the edge, or of each of its first axes."""
    own = list(factors(request.edges))
    rows = [f for f in own if isinstance(f, NodeGather) and f.sender]
    sparse = [f for f in own if isinstance(f, SparseGather)]
    rest = [f for f in own if f not in rows and f not in sparse]
    # A product of rows that were apart is not rounded for itself.
    dtype = request.dtype if len(rows) + len(sparse) == 1 else request.wide
    x = _product_of_rows(rows, dtype) if not sparse else _scaled_sparse_rows(sparse, rows, dtype)
    if x is None or not rest:
        return None if x is None else (None, x)
    weight = multiply(*rest)
    if len(weight.features) == len(x.features) and weight.features[-1:] == (1,):
        weight = drop_last_axis(weight)
    return (weight, x) if weight.features == x.features[: len(weight.features)] else None


def _product_of_rows(rows: list[NodeGather], dtype: np.dtype) -> NodeGather | None:
    if not rows:
        return None
    x = multiply(*rows)
    assert isinstance(x, NodeGather)
    if x.dtype != dtype:  # else the array itself, which rules compare by identity
        x = node_gather(x.graph, x.x.astype(dtype), True, x.text)
    return x


def _scaled_sparse_rows(
    sparse: list[SparseGather], scales: list[NodeGather], dtype: np.dtype
) -> SparseGather | None:
    """Sparse rows times numbers of the senders, or of their heads."""
    x, *more = sparse
    axes = len(x.features)
    if more or any(s.features != x.features[: min(len(s.features), axes - 1)] for s in scales):
        return None
    x = scaled_rows(x, lambda v: v.astype(dtype), x.text) if x.dtype != dtype else x
    for scale in scales:
        values = broadcast_features(used_rows(scale), x.rows.values.shape[1:], dtype)
        text = f"({scale.text} * {x.text})"
        x = scaled_rows(x, functools.partial(jnp.multiply, values), text)
    return x


def multiply(*factors: Edges) -> Edges:
    """The product. Of several factors it has the accumulation dtype, since any order must fit."""
    if len(factors) == 1:
        return factors[0]
    wide = functools.reduce(jnp.promote_types, (accumulation_dtype(f.dtype) for f in factors))

    def function(a: Array, b: Array) -> Array:
        return binary(jnp.multiply, a.astype(wide), b.astype(wide))

    def product(a: Edges, b: Edges) -> Edges:
        return on_nodes(apply("*", function, [a, b], template="({} * {})"))

    return functools.reduce(product, factors)


def split_by_end(e: Edges, dtype: np.dtype) -> tuple[Array | None, Array | None, list[Edges]]:
    """`e` as a sum: the senders' terms, the receivers', both of `dtype`, and the rest."""
    ends: dict[bool, Array] = {}
    rest = []
    for sign, term in terms(e):
        signed = term if sign > 0 else -term
        if not isinstance(term, NodeGather):
            rest.append(signed)
            continue
        x = broadcast_features(term.x if sign > 0 else -term.x, e.features, dtype)
        ends[term.sender] = ends[term.sender] + x if term.sender in ends else x
    return ends.get(True), ends.get(False), rest


def is_edge_inputs_only(e: Edges) -> bool:
    if isinstance(e, Applied):
        return all(map(is_edge_inputs_only, e.operands))
    if isinstance(e, SegmentNormalize | Dropout):
        return is_edge_inputs_only(e.operand)
    return isinstance(e, EdgeInput)


def broadcast_features(x: Array, features: tuple[int, ...], dtype: np.dtype) -> Array:
    """`x` with all feature axes, aligned from the first."""
    x = x.reshape(x.shape + (1,) * (1 + len(features) - x.ndim))
    return jnp.broadcast_to(x, (x.shape[0], *features)).astype(dtype)
