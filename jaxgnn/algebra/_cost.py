"""What recomputing costs: which values on edges the backward pass reads back instead.

Zhang et al. (MLSys 2022), section 6: an O(E) result is recomputed where that takes O(1) operations
an entry, and kept where it takes more, as of products with a matrix. Everything here follows from
shapes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxgnn.algebra._edges import Applied, Dropout, Edges, SegmentNormalize

OPERATIONS_A_BYTE = 4.0
"""A value is kept where recomputing it takes more operations for each of its bytes.

Between what a byte costs that is written and read back (a processor does 10 to 20 operations in
that time) and that values kept are memory which other layers lack.
"""

NODES = "jaxgnn_nodes"
_COST = "jaxgnn_edges_cost:"
_MOVES = frozenset(
    (
        *("broadcast_in_dim", "concatenate", "convert_element_type", "copy", "iota", "pad"),
        *("reshape", "rev", "slice", "split", "squeeze", "stop_gradient", "transpose"),
    )
)
"""Primitives that compute nothing."""

Policy = Callable[..., bool]


class Candidate(NamedTuple):
    """A value on edges that the backward pass may read back.

    Attributes:
        text: what it is.
        nbytes: its size.
        cost: operations to recompute it from its operands, for each byte.
    """

    text: str
    nbytes: int
    cost: float


def cost_name(e: Applied) -> str:
    """A name for the result of a function, which tells policies what it costs."""
    return f"{_COST}{_operations(e)[0]:.6g}"


def candidates(expressions: Sequence[Edges]) -> list[Candidate]:
    """The results of functions in the expressions, and the matrix products within."""
    found: dict[int, list[Candidate]] = {}

    def visit(e: Edges) -> None:
        if isinstance(e, SegmentNormalize | Dropout):
            visit(e.operand)
        elif isinstance(e, Applied) and id(e) not in found:
            cost, products = _operations(e)
            size = e.graph.num_edges * math.prod(e.features) * jnp.dtype(e.dtype).itemsize
            parts = [Candidate(e.text, nbytes, cost) for nbytes, cost in products]
            found[id(e)] = [Candidate(e.text, size, cost), *parts]
            for operand in e.operands:
                visit(operand)

    for e in expressions:
        visit(e)
    return [candidate for some in found.values() for candidate in some]


def threshold(candidates: Sequence[Candidate], budget: int | None) -> float:
    """The cost a byte above which values are kept.

    With a budget in bytes the costliest are, as long as they fit; those of one cost together.
    """
    if budget is None:
        return OPERATIONS_A_BYTE
    costs = sorted({candidate.cost for candidate in candidates if candidate.cost > 0})
    for cost in [0.0, *costs]:
        if sum(c.nbytes for c in candidates if c.cost > cost) <= budget:
            return cost
    return math.inf


@functools.cache
def policy(num_edges: int, threshold: float) -> Policy:
    """For `jax.checkpoint`: the nodes' values are stored, and on the edges what costs more."""

    def stored(primitive: Any, *operands: Any, **parameters: Any) -> bool:
        if primitive.name == "name":
            name = parameters["name"]
            return name == NODES or (
                name.startswith(_COST) and float(name.removeprefix(_COST)) > threshold
            )
        if primitive.name != "dot_general":
            return False
        shape, cost = _product(operands, parameters)
        return num_edges in shape and cost > threshold

    return stored


def _operations(e: Applied) -> tuple[float, list[tuple[int, float]]]:
    """Operations for each byte of the result, without matrix products; and of those, which are
    values of their own, the bytes and the operations for each."""
    rows = e.graph.num_edges
    operands = (jax.ShapeDtypeStruct((rows, *o.features), o.dtype) for o in e.operands)
    total, products = 0.0, []
    for eqn, times in _equations(jax.make_jaxpr(e.function)(*operands).jaxpr, 1):
        name = eqn.primitive.name
        if name == "dot_general":
            shape, cost = _product([v.aval for v in eqn.invars], eqn.params)
            if rows in shape:
                products.append((math.prod(shape) * eqn.outvars[0].aval.dtype.itemsize, cost))
        elif name not in _MOVES:
            values = eqn.invars if name.startswith("reduce") else eqn.outvars
            total += times * sum(math.prod(getattr(v.aval, "shape", ())) for v in values)
    nbytes = rows * math.prod(e.features) * jnp.dtype(e.dtype).itemsize
    return total / max(nbytes, 1), products


def _product(operands: Sequence[Any], parameters: Any) -> tuple[tuple[int, ...], float]:
    """The shape of a `dot_general`'s result, and operations for each of its bytes."""
    a, b = operands
    (left, right), (left_batch, right_batch) = parameters["dimension_numbers"]
    free = [n for axis, n in enumerate(a.shape) if axis not in (*left, *left_batch)]
    more = [n for axis, n in enumerate(b.shape) if axis not in (*right, *right_batch)]
    dtype = parameters["preferred_element_type"] or jnp.result_type(a.dtype, b.dtype)
    length = math.prod(a.shape[axis] for axis in left)
    shape = (*(a.shape[axis] for axis in left_batch), *free, *more)
    return shape, 2 * length / jnp.dtype(dtype).itemsize


def _equations(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    """The equations, also those of functions called within, and how often they run."""
    for eqn in jaxpr.eqns:
        inner = [sub for value in eqn.params.values() for sub in _jaxprs(value)]
        again = times * eqn.params.get("length", 1) if eqn.primitive.name == "scan" else times
        for sub in inner:
            yield from _equations(sub, again)
        if not inner:
            yield eqn, times


def _jaxprs(value: Any) -> Iterator[Any]:
    from jax.extend.core import ClosedJaxpr, Jaxpr  # as in jaxgnn/_core/primitive.py

    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _jaxprs(part)
