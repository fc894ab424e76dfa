"""Reorganisation: what depends on one end alone, and products, moved to the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.algebra._edges import Across, Applied, Copied, Edges, apply, copied
from jaxgnn.algebra.operators import linear_map


def moved(edges: Edges) -> Edges:
    """Equal values, up to rounding, with as much as can be computed on nodes computed there."""
    known: dict[int, Edges] = {}

    def move(e: Edges) -> Edges:
        if id(e) not in known:
            known[id(e)] = _move(e)
        return known[id(e)]

    def _move(e: Edges) -> Edges:
        if isinstance(e, Across):
            return dataclasses.replace(e, operand=move(e.operand))
        if not isinstance(e, Applied):
            return e
        e = dataclasses.replace(e, operands=tuple(map(move, e.operands)))
        special = {"linear": _distributed, "scale": _scaled}
        return special.get(e.name, on_nodes)(e)

    return move(edges)


def on_nodes(e: Applied) -> Edges:
    """A function of values from one end is computed before the scatter.

    On the edges it does not see the rows of nodes that have none there, so they must not matter
    here either: a derivative that is infinite or NaN, times their cotangent 0, would be NaN.
    """
    ends = {o.sender if isinstance(o, Copied) else None for o in e.operands}
    if len(ends) != 1 or None in ends:
        return e
    nodes = [o for o in e.operands if isinstance(o, Copied)]
    if e.graph.num_edges == 0:
        x = jnp.zeros((nodes[0].x.shape[0], *e.features), e.dtype)
    else:
        x = e.function(*map(_of_edges, nodes))
    out = copied(e.graph, x, nodes[0].sender, e.text)
    return dataclasses.replace(out, of_edges=True)


def _of_edges(nodes: Copied) -> Array:
    """The rows, those of nodes without edges replaced by a row that some edge has."""
    if nodes.of_edges:
        return nodes.x
    graph, x = nodes.graph, nodes.x
    used = (graph.out_degrees if nodes.sender else graph.in_degrees) > 0
    # It gets no gradient from where it stands in.
    other = jax.lax.stop_gradient(x[jnp.argmax(used)])[None]
    return jnp.where(used.reshape(-1, *(1,) * (x.ndim - 1)), x, other)


def _scaled(e: Applied) -> Edges:
    """A number's factor goes to the terms of a sum, and to the wider factor of a product.

    Not in 16 bits to those of a sum, which may cancel: `terms` has their products unrounded.
    """
    (inner,) = e.operands
    if not isinstance(inner, Applied) or inner.name not in ("+", "-", "*"):
        return on_nodes(e)
    if inner.name != "*" and e.dtype != accumulation_dtype(e.dtype):
        return e

    def scaled(operand: Edges) -> Edges:
        like = {"features": operand.features, "dtype": operand.dtype}
        return _scaled(dataclasses.replace(e, **like, operands=(operand,)))

    left, right = inner.operands
    if inner.name == "*":
        wide = max(inner.operands, key=lambda o: (len(o.features), isinstance(o, Copied)))
        both = (scaled(left), right) if wide is left else (left, scaled(right))
    else:
        both = scaled(left), scaled(right)
    return dataclasses.replace(inner, operands=both)


def _distributed(e: Applied) -> Edges:
    """$(a + b) W = a W + b W$, and so on to the nodes; equal nodes are multiplied once."""
    kernel, bias = e.parameters
    parts: dict[object, tuple[Edges, Array]] = {}
    for part, own in _parts(e.operands[0], kernel):
        key = (part.sender, id(part.x)) if isinstance(part, Copied) else id(part)
        parts[key] = (part, own if key not in parts else parts[key][1] + own)
    on_edges = sum(own.shape[0] for part, own in parts.values() if not isinstance(part, Copied))
    if on_edges > kernel.shape[0] or not any(isinstance(p, Copied) for p, _ in parts.values()):
        return e  # nothing to gain
    out: Edges | None = None
    for part, own in sorted(parts.values(), key=lambda p: not isinstance(p[0], Copied)):
        product = on_nodes(linear_map(part, own, bias if out is None else None))
        if out is None:
            out = product
        else:
            out = on_nodes(apply("+", jnp.add, [out, product], written="({} + {})"))
    assert out is not None
    return out


def _parts(e: Edges, kernel: Array) -> Iterator[tuple[Edges, Array]]:
    """Values and kernels whose products sum up to that of `e`."""
    name, operands = (e.name, list(e.operands)) if isinstance(e, Applied) else (None, [])
    if name in ("+", "-") and operands[0].features == operands[1].features:
        yield from _parts(operands[0], kernel)
        yield from _parts(operands[1], kernel if name == "+" else -kernel)
    elif name == "scale":
        assert isinstance(e, Applied)
        yield from _parts(operands[0], kernel * e.parameters[0].astype(kernel.dtype))
    elif name == "concat":
        start = 0
        for operand in operands:
            stop = start + operand.features[-1]
            yield from _parts(operand, kernel[start:stop])
            start = stop
    else:
        yield e, kernel


def terms(e: Edges, sign: int = 1) -> Iterator[tuple[int, Edges]]:
    """Signs and values whose sum is `e`; of 16 bits some have the accumulation dtype."""
    if isinstance(e, Applied) and e.name in ("+", "-"):
        left, right = e.operands
        yield from terms(left, sign)
        yield from terms(right, sign if e.name == "+" else -sign)
        return
    own = list(terms(e.operands[0])) if isinstance(e, Applied) and e.name == "scale" else []
    if len(own) < 2:
        yield sign, e
        return
    assert isinstance(e, Applied)
    for own_sign, term in own:
        yield sign * own_sign, _scaled_term(e, term)


def _scaled_term(e: Applied, term: Edges) -> Edges:
    """A term times the number of `e`: not rounded, but for a product that rules are to know."""
    if isinstance(term, Applied) and term.name == "*":
        like = {"features": term.features, "dtype": term.dtype}
        return _scaled(dataclasses.replace(e, **like, operands=(term,)))
    wide = accumulation_dtype(term.dtype)

    def function(x: Array) -> Array:
        return e.function(x.astype(wide))

    return on_nodes(apply("scale", function, [term], e.parameters, e.written))


def factors(e: Edges) -> Iterator[Edges]:
    """Values whose product is `e`."""
    if isinstance(e, Applied) and e.name == "*":
        for operand in e.operands:
            yield from factors(operand)
    else:
        yield e
