"""Which operation computes a gather: the rules, from an expression to an operation or `None`.

To add one, write a function from `Request` to a `Plan` or `None` and put it into `RULES`; the first
that fits is taken. Expressions reach the rules hoisted to the nodes as far as possible.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    EdgeInput,
    Edges,
    NodeGather,
    SegmentNormalize,
    apply,
    binary,
    node_gather,
)
from jaxgnn.algebra._hoist import factors, hoist_to_nodes, on_nodes, terms
from jaxgnn.algebra._reference import on_edges, recomputed
from jaxgnn.ops import dot_attention, edge_conv, gat_attention, segment_reduce, spmm
from jaxgnn.ops._aggregation.spmm import Reduce


class Request(NamedTuple):
    """A gather: the expression, the reduction, the result's dtype, and `gather`'s options.

    `dtype` is that of `edges`, except for a sum (or mean) that is a part of the result: that one
    has the accumulation dtype. In 16 bits it would lose the digits that remain when parts cancel,
    or overflow float16.
    """

    edges: Edges
    reduce: Reduce
    dtype: np.dtype
    recompute: bool
    impl: Impl

    def values(self, edges: Edges) -> Array:
        """An expression's values on the edges."""
        return on_edges(edges, self.impl, fuse=True)

    @property
    def wide(self) -> np.dtype:
        """The dtype of the parts of the result."""
        return accumulation_dtype(self.dtype)


class Plan(NamedTuple):
    """A description of what runs, and a function that runs it."""

    text: str
    run: Callable[[], Array]


Rule = Callable[[Request], Plan | None]


def plan(request: Request) -> Plan:
    """The plan of the first rule that fits, else the values on the edges and their reduction."""
    found = defer_linear(request)
    if found is not None:
        return found
    request = request._replace(edges=hoist_to_nodes(request.edges))
    return _fused(request) or reference(request, fuse=True)


def reference(request: Request, *, fuse: bool) -> Plan:
    """The values on the edges, reduced; they are recomputed in the backward pass."""

    def run() -> Array:
        values = on_edges(request.edges, request.impl, fuse=fuse).astype(request.dtype)
        return segment_reduce(request.edges.graph, values, request.reduce, impl=request.impl)

    text = f"reference: {request.edges.text} on the edges, segment_reduce({request.reduce})"
    return _maybe_recomputed(request, Plan(text, run))


def _fused(request: Request) -> Plan | None:
    for rule in RULES:
        found = rule(request)
        if found is not None:
            return found
    return None


def _maybe_recomputed(request: Request, plan: Plan) -> Plan:
    if not request.recompute:
        return Plan(f"{plan.text}, stored for backward", plan.run)
    return Plan(f"{plan.text}, recomputed in backward", lambda: recomputed(plan.run))


def additive_attention(request: Request) -> Plan | None:
    r"""$\sum_e \mathrm{softmax}_i(\mathrm{LeakyReLU}(p_j + q_i + b_e)) \, x_j$: `gat_attention`."""
    found = _softmax_average(request)
    if found is None:
        return None
    scores, x, options = found
    slope, graph, features = 1.0, x.graph, scores.features
    if isinstance(scores, Applied) and scores.name == "leaky_relu":
        slope, scores = scores.parameters[0], scores.operands[0]
    source, target, own = _split_by_end(scores, accumulation_dtype(scores.dtype))
    if not all(map(_is_edge_inputs_only, own)):
        return None

    def run() -> Array:
        def node_scores(scores: Array | None, nodes: int) -> Array:
            heads = math.prod(features)
            return jnp.zeros((nodes, heads)) if scores is None else scores.reshape(nodes, heads)

        p, q = node_scores(source, graph.num_senders), node_scores(target, graph.num_receivers)
        v, bias = _flatten_heads(x.x, features), _bias(request, own, scores)
        out = gat_attention(
            graph, v, p, q, bias, negative_slope=slope, impl=request.impl, **options
        )
        return out.reshape(graph.num_receivers, *x.features).astype(request.dtype)

    return _with_bias(request, own, scores, Plan(f"gat_attention of {x.text}", run))


def dot_product_attention(request: Request) -> Plan | None:
    r"""$\sum_e \mathrm{softmax}_i(\langle q_i, k_j \rangle + b_e) \, x_j$: `dot_attention`."""
    found = _softmax_average(request)
    if found is None:
        return None
    scores, x, options = found
    dots, rest = [], []
    for sign, term in terms(scores):
        product = _as_dot(term) if sign > 0 and term.features == scores.features else None
        if product is None:
            rest.append(term if sign > 0 else -term)
        else:
            dots.append(product)
    if len(dots) != 1 or not all(map(_is_edge_inputs_only, rest)):
        return None
    ((scale, q, k),) = dots
    if x.dtype not in (q.dtype, accumulation_dtype(q.dtype)):
        return None
    graph, features = x.graph, scores.features

    def run() -> Array:
        query, key, value = (_flatten_heads(end.x.astype(x.dtype), features) for end in (q, k, x))
        heads = jnp.full(math.prod(features), scale)
        bias = _bias(request, rest, scores)
        out = dot_attention(
            graph, query, key, value, bias, scale=heads, impl=request.impl, **options
        )
        return out.reshape(graph.num_receivers, *x.features).astype(request.dtype)

    return _with_bias(request, rest, scores, Plan(f"dot_attention of {x.text}", run))


def _softmax_average(request: Request) -> tuple[Edges, NodeGather, dict[str, Any]] | None:
    """The scores, the rows, and dropout's options, of rows averaged by a softmax."""
    found = _match_weighted_rows(request)
    if request.reduce != "sum" or found is None:
        return None
    weight, x = found
    options = {}
    if isinstance(weight, Dropout):
        options = {"dropout_rate": weight.rate, "dropout_rng": weight.dropout_rng}
        weight = weight.operand
    if not isinstance(weight, SegmentNormalize) or weight.method != "softmax":
        return None
    return weight.operand, x, options


def _as_dot(e: Edges) -> tuple[Array | float, NodeGather, NodeGather] | None:
    """A scalar, the receivers' rows and the senders', if `e` is that times their dot products."""
    if not isinstance(e, Applied):
        return None
    if e.name == "scale":
        inner = _as_dot(e.operands[0])
        return None if inner is None else (e.parameters[0] * inner[0], *inner[1:])
    ends = {o.sender: o for o in e.operands if isinstance(o, NodeGather)}
    return (1.0, ends[False], ends[True]) if e.name == "dot" and len(ends) == 2 else None


def _flatten_heads(x: Array, heads: tuple[int, ...]) -> Array:
    """Rows whose first feature axes are those of the heads, as `[nodes, heads, features]`."""
    return x.reshape(x.shape[0], math.prod(heads), math.prod(x.shape[1 + len(heads) :]))


def _bias(request: Request, own: list[Edges], scores: Edges) -> Array | None:
    """The terms of the edges, `[num_edges, heads]`."""
    if not own:
        return None
    dtype = scores.dtype if len(own) == 1 else accumulation_dtype(scores.dtype)
    values = (_broadcast_features(request.values(e), scores.features, dtype) for e in own)
    bias = functools.reduce(operator.add, values)
    return bias.reshape(bias.shape[0], math.prod(scores.features))


def _with_bias(request: Request, own: list[Edges], scores: Edges, fused: Plan) -> Plan:
    """`fused`, which stores its operands; a bias that is computed is recomputed instead."""
    stored = all(isinstance(e, EdgeInput) and e.features == scores.features for e in own)
    return fused if stored and len(own) < 2 else _maybe_recomputed(request, fused)


def weighted_rows(request: Request) -> Plan | None:
    r"""$\mathrm{reduce}_e \, w_e x_j$: `spmm`."""
    found = _match_weighted_rows(request)
    if found is None:
        return None
    weight, x = found
    # A weight for each entry is one for each head, of width 1.
    rows = x.x[..., None] if weight is not None and weight.features == x.features != () else x.x

    def run() -> Array:
        weights = None if weight is None else request.values(weight)
        out = spmm(x.graph, rows, weights, reduce=request.reduce, impl=request.impl)
        return out.reshape(x.graph.num_receivers, *x.features).astype(request.dtype)

    text = f"spmm({request.reduce}) of {x.text}"
    if weight is None:
        return Plan(text, run)
    fused = Plan(f"{text} weighted by {weight.text}", run)
    return fused if isinstance(weight, EdgeInput) else _maybe_recomputed(request, fused)


def sum_of_ends(request: Request) -> Plan | None:
    r"""$\mathrm{reduce}_e (u_j + v_i)$: `edge_conv`; $v_i$ alone needs the nodes only."""
    graph, reduce = request.edges.graph, request.reduce
    own = [term for _, term in terms(request.edges)]
    # An extremum of one rounded term from each end has the same bits in the narrow dtype.
    rounded = len(own) < 3 and all(term.dtype == request.dtype for term in own)
    narrow = reduce in ("max", "min") and rounded
    u, v, rest = _split_by_end(request.edges, request.dtype if narrow else request.wide)
    if rest or v is None:
        return None
    if u is None:

        def on_receivers() -> Array:
            degree = graph.in_degrees.reshape(-1, *(1,) * (v.ndim - 1))
            factor = degree if reduce == "sum" else jnp.minimum(degree, 1)
            out = (v.astype(request.wide) * factor.astype(request.wide)).astype(request.dtype)
            return jnp.where(degree > 0, out, jnp.zeros_like(out))

        return Plan(f"on the nodes: {request.edges.text}", on_receivers)

    def run() -> Array:
        if reduce == "min":
            return -edge_conv(graph, -u, -v, reduce="max", impl=request.impl).astype(request.dtype)
        return edge_conv(graph, u, v, reduce=reduce, impl=request.impl).astype(request.dtype)

    return Plan(f"edge_conv({reduce}) of {request.edges.text}", run)


def edge_inputs_only(request: Request) -> Plan | None:
    r"""$\mathrm{reduce}_e \, d_e$ of arrays over the edges alone: `segment_reduce`."""
    e = request.edges
    if not _is_edge_inputs_only(e):
        return None

    def run() -> Array:
        values = request.values(e).astype(request.dtype)
        return segment_reduce(e.graph, values, request.reduce, impl=request.impl)

    found = Plan(f"segment_reduce({request.reduce}) of {e.text}", run)
    return found if isinstance(e, EdgeInput) else _maybe_recomputed(request, found)


def factor_out_receivers(request: Request) -> Plan | None:
    r"""$\sum_e v_i m_e = v_i \sum_e m_e$."""
    own = list(factors(request.edges))
    outside = [f for f in own if isinstance(f, NodeGather) and not f.sender]
    if request.reduce not in ("sum", "mean") or not outside or len(outside) == len(own):
        return None
    features, wide = request.edges.features, request.wide
    v = _multiply(*outside)
    inside = _multiply(*(f for f in own if f not in outside))
    found = plan(request._replace(edges=inside, dtype=wide))

    def run() -> Array:
        assert isinstance(v, NodeGather)
        factor, total = (_broadcast_features(x, features, wide) for x in (v.x, found.run()))
        # A receiver without edges gets 0, also where its factor is infinite.
        degree = request.edges.graph.in_degrees.reshape(-1, *(1,) * len(features))
        factor = jnp.where(degree > 0, factor, jnp.zeros_like(factor))
        return (factor * total).astype(request.dtype)

    return Plan(f"{v.text} * [{found.text}]", run)


def term_by_term(request: Request) -> Plan | None:
    r"""$\sum_e (a_e + b_e) = \sum_e a_e + \sum_e b_e$, where there are rules for the terms."""
    own = list(terms(request.edges))
    if request.reduce not in ("sum", "mean") or len(own) == 1:
        return None
    features, wide = request.edges.features, request.wide
    found = [_fused(request._replace(edges=e, dtype=wide)) for _, e in own]
    if any(plan is None for plan in found):
        return None
    plans = [plan for plan in found if plan is not None]

    def run() -> Array:
        values = [_broadcast_features(plan.run(), features, wide) for plan in plans]
        signed = (v if sign > 0 else -v for v, (sign, _) in zip(values, own, strict=True))
        return functools.reduce(operator.add, signed).astype(request.dtype)

    signs = ("-" if sign < 0 else "+" for sign, _ in own)
    text = " ".join(f"{s} [{p.text}]" for s, p in zip(signs, plans, strict=True))
    return Plan(text.removeprefix("+ "), run)


RULES: list[Rule] = [
    factor_out_receivers,
    additive_attention,
    dot_product_attention,
    weighted_rows,
    sum_of_ends,
    edge_inputs_only,
    term_by_term,
]


def defer_linear(request: Request) -> Plan | None:
    r"""$\sum_e m_e W = (\sum_e m_e) W$, unless a projection on the nodes makes the rows narrower.

    A scalar factor too, in 16 bits, where its products with the terms of a sum would be rounded.
    """
    e = request.edges
    if not isinstance(e, Applied) or request.reduce not in ("sum", "mean"):
        return None
    inner, template = e.operands[0], e.template
    if e.name == "linear":
        kernel, bias = e.parameters
        narrowed = kernel.shape[1] < kernel.shape[0]
        of_nodes = all(isinstance(part, NodeGather) for _, part in terms(hoist_to_nodes(inner)))
        if bias is not None or (narrowed and of_nodes):
            return None
        template = "linear of {}"
    elif e.name != "scale" or e.dtype == request.wide:
        return None
    found = plan(request._replace(edges=inner, dtype=request.wide))
    text = template.format(f"[{found.text}]")
    return Plan(text, lambda: e.function(found.run()).astype(request.dtype))


def _match_weighted_rows(request: Request) -> tuple[Edges | None, NodeGather] | None:
    """Rows of the senders times a weight of the edge, or of each of its first axes."""
    e = request.edges
    own = list(factors(e))
    rows = [f for f in own if isinstance(f, NodeGather) and f.sender]
    rest = [f for f in own if f not in rows]
    if not rows:
        return None
    x = _multiply(*rows)
    assert isinstance(x, NodeGather)
    # A product of rows that were apart is not rounded for itself.
    dtype = request.dtype if len(rows) == 1 else request.wide
    x = node_gather(x.graph, x.x.astype(dtype), True, x.text)
    if not rest:
        return None, x
    weight = _multiply(*rest)
    if len(weight.features) == len(x.features) and weight.features[-1:] == (1,):
        weight = apply("squeeze", lambda w: w[..., 0], [weight], template="{}")
    return (weight, x) if weight.features == x.features[: len(weight.features)] else None


def _multiply(*factors: Edges) -> Edges:
    """The product. Of several factors it has the accumulation dtype, since any order must fit."""
    if len(factors) == 1:
        return factors[0]
    wide = functools.reduce(jnp.promote_types, (accumulation_dtype(f.dtype) for f in factors))

    def function(a: Array, b: Array) -> Array:
        return binary(jnp.multiply, a.astype(wide), b.astype(wide))

    def multiply(a: Edges, b: Edges) -> Edges:
        return on_nodes(apply("*", function, [a, b], template="({} * {})"))

    return functools.reduce(multiply, factors)


def _split_by_end(e: Edges, dtype: np.dtype) -> tuple[Array | None, Array | None, list[Edges]]:
    """`e` as a sum: the senders' terms, the receivers', both of `dtype`, and the rest."""
    ends: dict[bool, Array] = {}
    rest = []
    for sign, term in terms(e):
        signed = term if sign > 0 else -term
        if not isinstance(term, NodeGather):
            rest.append(signed)
            continue
        x = _broadcast_features(term.x if sign > 0 else -term.x, e.features, dtype)
        ends[term.sender] = ends[term.sender] + x if term.sender in ends else x
    return ends.get(True), ends.get(False), rest


def _is_edge_inputs_only(e: Edges) -> bool:
    if isinstance(e, Applied):
        return all(map(_is_edge_inputs_only, e.operands))
    if isinstance(e, SegmentNormalize | Dropout):
        return _is_edge_inputs_only(e.operand)
    return isinstance(e, EdgeInput)


def _broadcast_features(x: Array, features: tuple[int, ...], dtype: np.dtype) -> Array:
    """`x` with all feature axes, aligned from the first."""
    x = x.reshape(x.shape + (1,) * (1 + len(features) - x.ndim))
    return jnp.broadcast_to(x, (x.shape[0], *features)).astype(dtype)
