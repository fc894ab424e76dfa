"""Expressions of one end alone, and linear maps, hoisted from the edges to the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    Edges,
    NodeGather,
    SegmentNormalize,
    SparseGather,
    apply,
    is_floating,
    node_gather,
    sparse_gather,
)
from jaxgnn.algebra._operators import dot_with_vector, linear_map
from jaxgnn.algebra._squeeze import drop_last_axis


def hoist_to_nodes(edges: Edges) -> Edges:
    """Equal values, up to rounding; what can be computed on nodes is computed there.

    The same projection of the same rows is computed once: rules compare arrays by identity, and
    GATv2's keys and values are one projection.
    """
    hoisted: dict[int, Edges] = {}
    projected: dict[object, tuple[Applied, Edges]] = {}

    def hoist(e: Edges) -> Edges:
        if id(e) not in hoisted:
            hoisted[id(e)] = _hoist(e)
        return hoisted[id(e)]

    def projection(e: Applied) -> Edges:
        (x,) = e.operands
        if not isinstance(x, NodeGather):
            return _distribute_linear(e)
        key = (x.sender, id(x.x), *map(id, e.parameters))
        if key not in projected:
            projected[key] = e, _distribute_linear(e)  # `e` keeps the arrays, and so their ids
        return projected[key][1]

    def _hoist(e: Edges) -> Edges:
        if isinstance(e, SegmentNormalize | Dropout):
            return dataclasses.replace(e, operand=hoist(e.operand))
        if not isinstance(e, Applied):
            return e
        e = dataclasses.replace(e, operands=tuple(map(hoist, e.operands)))
        special = {
            "linear": projection,
            "dot_with_vector": _distribute_linear,
            "scale": _distribute_scale,
            # As if the axis had never been there: below a softmax the rules know what is scored.
            "squeeze": lambda e: drop_last_axis(e.operands[0]),
        }
        return special.get(e.name, on_nodes)(e)

    return hoist(edges)


def on_nodes(e: Applied) -> Edges:
    """A function of values from one end, computed before the scatter.

    On the edges it does not see the rows of nodes without edges, so they must not matter here
    either: a derivative that is infinite or NaN, times their cotangent 0, would be NaN.
    """
    ends = {o.sender if isinstance(o, NodeGather) else None for o in e.operands}
    if len(ends) != 1 or None in ends:
        return e
    if not is_floating(e.dtype):
        return e  # masks and indices: the operations by kernels gather numbers
    nodes = [o for o in e.operands if isinstance(o, NodeGather)]
    if e.graph.num_edges == 0:
        x = jnp.zeros((nodes[0].x.shape[0], *e.features), e.dtype)
    else:
        x = e.function(*map(used_rows, nodes))
    out = node_gather(e.graph, x, nodes[0].sender, e.text)
    return dataclasses.replace(out, all_used=True)


def used_rows(nodes: NodeGather) -> Array:
    """The rows; those of nodes without edges are replaced by a row that some edge has."""
    if nodes.all_used:
        return nodes.x
    graph, x = nodes.graph, nodes.x
    if graph.num_edges == 0:
        return jnp.zeros_like(x)
    used = (graph.out_degrees if nodes.sender else graph.in_degrees) > 0
    # It gets no gradient from where it stands in.
    other = jax.lax.stop_gradient(x[jnp.argmax(used)])[None]
    return jnp.where(used.reshape(-1, *(1,) * (x.ndim - 1)), x, other)


def scaled_rows(e: SparseGather, function: Callable[[Array], Array], text: str) -> SparseGather:
    """Sparse rows whose entries a function scales."""
    values = function(e.rows.values)
    rows = dataclasses.replace(e.rows, values=values, packed=False)
    return sparse_gather(e.graph, rows, text)


def _distribute_scale(e: Applied) -> Edges:
    """A scalar factor goes to the terms of a sum, and to the wider factor of a product.

    In 16 bits not to the terms of a sum, which may cancel: `terms` has their products unrounded. In
    float16 not to a factor, whose product with it may be out of range; but to the parts of a
    concatenation, since the kernel of a linear map does not take it.
    """
    (inner,) = e.operands
    if isinstance(inner, SparseGather):
        return scaled_rows(inner, e.function, e.text)
    if not isinstance(inner, Applied) or inner.name not in ("+", "-", "*", "concat"):
        return on_nodes(e)
    floating = [operand for operand in inner.operands if is_floating(operand.dtype)]
    if inner.name == "*":
        kept = e.dtype == jnp.float16 or not floating
    elif inner.name == "concat":
        kept = e.dtype != jnp.float16 or any(o.dtype != e.dtype for o in inner.operands)
    else:
        kept = e.dtype != accumulation_dtype(e.dtype) or len(floating) < 2
    if kept:
        return e

    def scaled(operand: Edges) -> Edges:
        form = {"features": operand.features, "dtype": operand.dtype}
        return _distribute_scale(dataclasses.replace(e, **form, operands=(operand,)))

    if inner.name == "concat":
        return dataclasses.replace(inner, operands=tuple(map(scaled, inner.operands)))
    left, right = inner.operands
    if inner.name == "*":
        wide = max(floating, key=lambda o: (len(o.features), isinstance(o, NodeGather)))
        operands = (scaled(left), right) if wide is left else (left, scaled(right))
    else:
        operands = scaled(left), scaled(right)
    return dataclasses.replace(inner, operands=operands)


def _distribute_linear(e: Applied) -> Edges:
    """$(a + b) W = a W + b W$, each term hoisted to its nodes; equal nodes are projected once.

    Of `linear`, and of dot products with a vector.
    """
    kernel, bias = e.parameters if e.name == "linear" else (*e.parameters, None)
    axis = 0 if e.name == "linear" else kernel.ndim - 1
    parts: dict[object, tuple[Edges, Array]] = {}
    for part, block in _linear_terms(e.operands[0], kernel, axis):
        key = (part.sender, id(part.x)) if isinstance(part, NodeGather) else id(part)
        parts[key] = (part, block if key not in parts else parts[key][1] + block)
    blocks = [block for part, block in parts.values() if not isinstance(part, NodeGather)]
    edge_width = sum(block.shape[axis] for block in blocks)
    if edge_width > kernel.shape[axis] or len(blocks) == len(parts):
        return e  # nothing to gain
    out: Edges | None = None
    for part, block in sorted(parts.values(), key=lambda p: not isinstance(p[0], NodeGather)):
        if not is_floating(part.dtype):
            part = apply("convert", lambda x: x.astype(e.dtype), [part], template="{}")
        if e.name == "linear":
            mapped = linear_map(part, block, bias if out is None else None)
        else:
            mapped = dot_with_vector(part, block)
        projected = on_nodes(mapped)
        if out is None:
            out = projected
        else:
            out = on_nodes(apply("+", jnp.add, [out, projected], template="({} + {})"))
    assert out is not None
    return out


def _linear_terms(e: Edges, kernel: Array, axis: int) -> Iterator[tuple[Edges, Array]]:
    """Values and blocks of the kernel, along its input `axis`, whose projections sum to that of
    `e`."""
    name, operands = None, []
    if isinstance(e, Applied) and is_floating(e.dtype):
        name, operands = e.name, list(e.operands)
    narrow = jnp.float16 in (e.dtype, kernel.dtype)  # the kernel times a scalar may be out of range
    if name in ("+", "-") and operands[0].features == operands[1].features:
        yield from _linear_terms(operands[0], kernel, axis)
        yield from _linear_terms(operands[1], kernel if name == "+" else -kernel, axis)
    elif name == "scale" and not narrow:
        assert isinstance(e, Applied)
        yield from _linear_terms(operands[0], kernel * e.parameters[0].astype(kernel.dtype), axis)
    elif name == "concat":
        start = 0
        for operand in operands:
            stop = start + operand.features[-1]
            block = jax.lax.slice_in_dim(kernel, start, stop, axis=axis)
            yield from _linear_terms(operand, block, axis)
            start = stop
    else:
        yield e, kernel


def terms(e: Edges, sign: int = 1) -> Iterator[tuple[int, Edges]]:
    """Signs and values whose sum is `e`; in 16 bits some have the accumulation dtype."""
    if isinstance(e, Applied) and e.name in ("+", "-") and is_floating(e.dtype):
        left, right = e.operands
        yield from terms(left, sign)
        yield from terms(right, sign if e.name == "+" else -sign)
        return
    inner = list(terms(e.operands[0])) if isinstance(e, Applied) and e.name == "scale" else []
    if len(inner) < 2:
        yield sign, e
        return
    assert isinstance(e, Applied)
    for inner_sign, term in inner:
        yield sign * inner_sign, _scale_term(e, term)


def _scale_term(e: Applied, term: Edges) -> Edges:
    """A term times the scalar of `e`: unrounded, except for a product that rules must recognize,
    where it is in range."""
    if isinstance(term, Applied) and term.name == "*" and term.dtype != jnp.float16:
        form = {"features": term.features, "dtype": term.dtype}
        return _distribute_scale(dataclasses.replace(e, **form, operands=(term,)))
    wide = accumulation_dtype(term.dtype)

    def function(x: Array) -> Array:
        return e.function(x.astype(wide))

    return on_nodes(apply("scale", function, [term], e.parameters, e.template))


def factors(e: Edges) -> Iterator[Edges]:
    """Values whose product is `e`."""
    if isinstance(e, Applied) and e.name == "*":
        for operand in e.operands:
            yield from factors(operand)
    else:
        yield e
