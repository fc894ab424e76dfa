"""Functions given to `apply_edge` that rules know under another name, told by what they compute.

A layer as its paper writes it squeezes a score of one column, applies `jax.nn.leaky_relu`, or
multiplies a weight and a row in a function of its own. Such a function is traced once, abstractly,
and where its operations are those of `squeeze`, `leaky_relu`, `*` or `weighted_sum`, the expression
has these in its place. An exponential is told from other functions, too: divided by its sum it is a
softmax.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.algebra._edges import Edges, apply


@dataclasses.dataclass(frozen=True)
class Term:
    """A value of a traced function: an operand by its number, a scalar, or an operation of such."""

    name: str
    shape: tuple[int, ...]
    inputs: tuple[Term, ...] = ()
    value: Any = None  # an operand's number, a scalar, the axes of a sum or a broadcast

    def through(self, *names: str) -> Term:
        """What the outermost operations of these names are of."""
        term = self
        while term.name in names and len(term.inputs) == 1:
            term = term.inputs[0]
        return term


class Operators(NamedTuple):
    """What functions are told to be, beside `squeeze`, `exp` and `*`."""

    leaky_relu: Callable[[Edges, float], Edges]
    weighted_sum: Callable[[Edges, Edges], Edges]


def recognize(
    function: Callable[..., Any], operands: Sequence[Edges], operators: Operators
) -> Edges | None:
    """The same rows in operators that rules know, or `None`.

    Only functions are traced, no modules, which may change state, and no closures over arrays.
    """
    if not isinstance(function, types.FunctionType | functools.partial) and not hasattr(
        function, "__wrapped__"
    ):
        return None
    if len({operand.dtype for operand in operands}) != 1 or len(operands) > 2:
        return None
    graph = operands[0].graph
    rows = graph.num_edges + max(graph.num_senders, graph.num_receivers) + 1
    shapes = [jax.ShapeDtypeStruct((rows, *e.features), e.dtype) for e in operands]
    try:
        traced = jax.make_jaxpr(function)(*shapes)
    except Exception:  # `apply` raises it with what it says about rows
        return None
    if traced.consts or len(traced.jaxpr.outvars) != 1 or len(traced.jaxpr.eqns) > 8:
        return None
    if traced.out_avals[0].dtype != operands[0].dtype:
        return None
    inputs = [Term("operand", shape.shape, value=i) for i, shape in enumerate(shapes)]
    (term,) = _terms(traced.jaxpr, inputs, operands[0].dtype)
    return None if term.name == "operand" else _Reader(tuple(operands), operators).edges(term)


def _terms(jaxpr: Any, inputs: Sequence[Term], dtype: np.dtype) -> list[Term]:
    """The results of a traced function; calls of compiled functions are looked into.

    `dtype` is the operands': a conversion to one that has not all of its values, as to integers, is
    no term that rules may leave out.
    """
    known: dict[Any, Term] = dict(zip(jaxpr.invars, inputs, strict=True))

    def term(atom: Any) -> Term:
        if hasattr(atom, "val"):  # a literal
            return Term("scalar", np.shape(atom.val), value=atom.val)
        return known.get(atom, Term("unknown", atom.aval.shape))

    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        own = [term(atom) for atom in equation.invars]
        if name in ("jit", "pjit"):
            results = _terms(params["jaxpr"].jaxpr, own, dtype)
        elif name == "convert_element_type" and not _holds(params["new_dtype"], dtype):
            results = [Term("unknown", v.aval.shape) for v in equation.outvars]
        elif len(equation.outvars) == 1:
            value = params.get("axes", params.get("broadcast_dimensions"))
            shape = equation.outvars[0].aval.shape
            results = [Term(name, shape, tuple(own), value)]
        else:
            results = [Term("unknown", v.aval.shape) for v in equation.outvars]
        known.update(zip(equation.outvars, results, strict=True))
    return [term(atom) for atom in jaxpr.outvars]


def _holds(dtype: np.dtype, values_of: np.dtype) -> bool:
    """Whether all values of the second dtype, a floating one, are values of the first."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return False
    to, of = jnp.finfo(dtype), jnp.finfo(values_of)
    return bool(to.nmant >= of.nmant and to.maxexp >= of.maxexp)


class _Reader(NamedTuple):
    """Reads terms as expressions of the operands; `None` for what is no operator."""

    operands: tuple[Edges, ...]
    operators: Operators

    def edges(self, term: Term) -> Edges | None:
        """The expression."""
        if term.name == "operand":
            return self.operands[term.value]
        read = {
            "squeeze": self._squeeze,
            "reshape": self._squeeze,
            "select_n": self._leaky_relu,
            "mul": self._product,
            "exp": self._exp,
            "reduce_sum": self._weighted_sum,
            "convert_element_type": self._weighted_sum,
        }.get(term.name)
        return None if read is None else read(term)

    def _squeeze(self, term: Term) -> Edges | None:
        """Rows without their last axis, of size 1."""
        inner = term.inputs[0]
        rows = self.edges(inner) if inner.shape == (*term.shape, 1) else None
        return None if rows is None else squeeze(rows)

    def _exp(self, term: Term) -> Edges | None:
        rows = self.edges(term.inputs[0])
        return None if rows is None else apply("exp", jnp.exp, [rows])

    def _leaky_relu(self, term: Term) -> Edges | None:
        """$x$ where it is positive, else $x$ times a positive slope."""
        condition, scaled, x = term.inputs if len(term.inputs) == 3 else 3 * (term,)
        if condition.name not in ("ge", "gt") or scaled.name != "mul":
            return None
        factors = [f.through("convert_element_type", "broadcast_in_dim") for f in scaled.inputs]
        slopes = [f.value for f in factors if f.name == "scalar"]
        compared, zero = condition.inputs
        if compared != x or x not in factors or zero.name != "scalar" or zero.value != 0:
            return None
        if len(slopes) != 1 or not slopes[0] > 0:  # others map -inf, which masks, elsewhere
            return None
        rows = self.edges(x)
        return None if rows is None else self.operators.leaky_relu(rows, float(slopes[0]))

    def _factors(self, term: Term) -> tuple[Edges, Edges] | None:
        """Two factors whose axes are aligned from the first."""
        found = [self.edges(_unaligned(factor)) for factor in term.inputs]
        if term.name != "mul" or len(found) != 2 or found[0] is None or found[1] is None:
            return None
        return found[0], found[1]

    def _product(self, term: Term) -> Edges | None:
        found = self._factors(term)
        out = None if found is None else found[0] * found[1]
        return out if out is not None and out.features == term.shape[1:] else None

    def _weighted_sum(self, term: Term) -> Edges | None:
        """A product summed over the first feature axis, which is all that one factor has."""
        total = term.through("convert_element_type")
        if total.name != "reduce_sum" or total.value != (1,):
            return None
        found = self._factors(total.inputs[0].through("convert_element_type"))
        if found is None:
            return None
        weights, rows = sorted(found, key=lambda e: len(e.features))
        if len(rows.features) < 2 or weights.features != rows.features[:1]:
            return None
        out = self.operators.weighted_sum(weights, rows)
        return out if out.features == term.shape[1:] else None


def _unaligned(term: Term) -> Term:
    """What a factor is before axes of size 1, or broadcast ones, were put behind its own."""
    while term.name in ("broadcast_in_dim", "reshape") and len(term.inputs) == 1:
        (inner,) = term.inputs
        axes = len(inner.shape)
        if term.name == "broadcast_in_dim":
            behind = term.value == tuple(range(axes))
        else:
            behind = term.shape == inner.shape + (1,) * (len(term.shape) - axes)
        if not behind:
            return term
        term = inner
    return term


def squeeze(edges: Edges) -> Edges:
    """`edges` without their last feature axis, of size 1; the rules look through it."""

    def without_last(x: Array) -> Array:
        return x[..., 0]

    return apply("squeeze", without_last, [edges], template="{}")
