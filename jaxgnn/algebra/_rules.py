"""Which operation computes a gather: the rules, from an expression to an operation or `None`.

To add one, write a function from `Wanted` to a `Plan` or `None` and put it into `RULES`; the first
that fits is taken. Expressions reach the rules moved to the nodes as far as they go.
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
from jaxgnn.algebra._edges import Across, Applied, Copied, Edges, Given, apply, binary, copied
from jaxgnn.algebra._moves import factors, moved, on_nodes, terms
from jaxgnn.algebra._reference import on_edges, recomputed
from jaxgnn.ops import dot_attention, edge_conv, gat_attention, segment_reduce, spmm
from jaxgnn.ops._aggregation.spmm import Reduce


class Wanted(NamedTuple):
    """A gather: of what, by what reduction, of what dtype, and as `gather` was asked to.

    `dtype` is that of `edges`, but for a sum (or mean) that is only a part of the result: that one
    has the accumulation dtype. In 16 bits it would lose the digits that a sum of parts is left
    with when they cancel, or, in float16, be infinite.
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
    """What would run, in words, and how to run it."""

    text: str
    run: Callable[[], Array]


Rule = Callable[[Wanted], Plan | None]


def plan(wanted: Wanted) -> Plan:
    """The first rule's that fits, else the values on the edges and their reduction."""
    found = _postponed(wanted)
    if found is not None:
        return found
    wanted = wanted._replace(edges=moved(wanted.edges))
    return _fused(wanted) or reference(wanted, fuse=True)


def reference(wanted: Wanted, *, fuse: bool) -> Plan:
    """The values on the edges, reduced; backward computes them once more."""

    def run() -> Array:
        values = on_edges(wanted.edges, wanted.impl, fuse=fuse).astype(wanted.dtype)
        return segment_reduce(wanted.edges.graph, values, wanted.reduce, impl=wanted.impl)

    text = f"reference: {wanted.edges.text} on the edges, segment_reduce({wanted.reduce})"
    return _maybe_recomputed(wanted, Plan(text, run))


def _fused(wanted: Wanted) -> Plan | None:
    for rule in RULES:
        found = rule(wanted)
        if found is not None:
            return found
    return None


def _maybe_recomputed(wanted: Wanted, plan: Plan) -> Plan:
    if not wanted.recompute:
        return Plan(f"{plan.text}, stored for backward", plan.run)
    return Plan(f"{plan.text}, recomputed in backward", lambda: recomputed(plan.run))


def additive_attention(wanted: Wanted) -> Plan | None:
    r"""$\sum_e \mathrm{softmax}_i(\mathrm{LeakyReLU}(p_j + q_i + b_e)) \, x_j$: `gat_attention`."""
    found = _averaged(wanted)
    if found is None:
        return None
    scores, x, options = found
    slope, graph, features = 1.0, x.graph, scores.features
    if isinstance(scores, Applied) and scores.name == "leaky_relu":
        slope, scores = scores.parameters[0], scores.operands[0]
    source, target, own = _by_ends(scores, accumulation_dtype(scores.dtype))
    if not all(map(_on_edges_alone, own)):
        return None

    def run() -> Array:
        def share(scores: Array | None, nodes: int) -> Array:
            heads = math.prod(features)
            return jnp.zeros((nodes, heads)) if scores is None else scores.reshape(nodes, heads)

        p, q = share(source, graph.num_senders), share(target, graph.num_receivers)
        v, bias = _by_heads(x.x, features), _bias(wanted, own, scores)
        out = gat_attention(graph, v, p, q, bias, negative_slope=slope, impl=wanted.impl, **options)
        return out.reshape(graph.num_receivers, *x.features).astype(wanted.dtype)

    return _with_bias(wanted, own, scores, Plan(f"gat_attention of {x.text}", run))


def product_attention(wanted: Wanted) -> Plan | None:
    r"""$\sum_e \mathrm{softmax}_i(\langle q_i, k_j \rangle + b_e) \, x_j$: `dot_attention`."""
    found = _averaged(wanted)
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
    if len(dots) != 1 or not all(map(_on_edges_alone, rest)):
        return None
    ((scale, q, k),) = dots
    if x.dtype not in (q.dtype, accumulation_dtype(q.dtype)):
        return None
    graph, features = x.graph, scores.features

    def run() -> Array:
        query, key, value = (_by_heads(end.x.astype(x.dtype), features) for end in (q, k, x))
        heads = jnp.full(math.prod(features), scale)
        bias = _bias(wanted, rest, scores)
        out = dot_attention(
            graph, query, key, value, bias, scale=heads, impl=wanted.impl, **options
        )
        return out.reshape(graph.num_receivers, *x.features).astype(wanted.dtype)

    return _with_bias(wanted, rest, scores, Plan(f"dot_attention of {x.text}", run))


def _averaged(wanted: Wanted) -> tuple[Edges, Copied, dict[str, Any]] | None:
    """The scores, the rows, and dropout's options, of rows averaged by a softmax."""
    found = _weighted_rows(wanted)
    if wanted.reduce != "sum" or found is None:
        return None
    weight, x = found
    options = {}
    if isinstance(weight, Across) and weight.name == "dropout":
        options = {"dropout_rate": weight.parameters[0], "dropout_rng": weight.parameters[1]}
        weight = weight.operand
    if not isinstance(weight, Across) or weight.name != "softmax":
        return None
    return weight.operand, x, options


def _as_dot(e: Edges) -> tuple[Array | float, Copied, Copied] | None:
    """A number, the receivers' rows and the senders', if `e` is that times their dot products."""
    if not isinstance(e, Applied):
        return None
    if e.name == "scale":
        inner = _as_dot(e.operands[0])
        return None if inner is None else (e.parameters[0] * inner[0], *inner[1:])
    ends = {o.sender: o for o in e.operands if isinstance(o, Copied)}
    return (1.0, ends[False], ends[True]) if e.name == "dot" and len(ends) == 2 else None


def _by_heads(x: Array, heads: tuple[int, ...]) -> Array:
    """Rows whose first feature axes are those of the heads, as `[nodes, heads, features]`."""
    return x.reshape(x.shape[0], math.prod(heads), math.prod(x.shape[1 + len(heads) :]))


def _bias(wanted: Wanted, own: list[Edges], scores: Edges) -> Array | None:
    """The terms of the edges, `[num_edges, heads]`."""
    if not own:
        return None
    dtype = scores.dtype if len(own) == 1 else accumulation_dtype(scores.dtype)
    values = (_full(wanted.values(e), scores.features, dtype) for e in own)
    bias = functools.reduce(operator.add, values)
    return bias.reshape(bias.shape[0], math.prod(scores.features))


def _with_bias(wanted: Wanted, own: list[Edges], scores: Edges, fused: Plan) -> Plan:
    """It keeps its operands: a bias that was given as it is, but not one that was computed."""
    kept = all(isinstance(e, Given) and e.features == scores.features for e in own)
    return fused if kept and len(own) < 2 else _maybe_recomputed(wanted, fused)


def product(wanted: Wanted) -> Plan | None:
    r"""$\mathrm{reduce}_e \, w_e x_j$: `spmm`."""
    found = _weighted_rows(wanted)
    if found is None:
        return None
    weight, x = found
    # A weight for each entry is one for each head, of width 1.
    rows = x.x[..., None] if weight is not None and weight.features == x.features != () else x.x

    def run() -> Array:
        weights = None if weight is None else wanted.values(weight)
        out = spmm(x.graph, rows, weights, reduce=wanted.reduce, impl=wanted.impl)
        return out.reshape(x.graph.num_receivers, *x.features).astype(wanted.dtype)

    text = f"spmm({wanted.reduce}) of {x.text}"
    if weight is None:
        return Plan(text, run)
    fused = Plan(f"{text} weighted by {weight.text}", run)
    return fused if isinstance(weight, Given) else _maybe_recomputed(wanted, fused)


def two_ends(wanted: Wanted) -> Plan | None:
    r"""$\mathrm{reduce}_e (u_j + v_i)$: `edge_conv`; of $v_i$ alone nothing runs on the edges."""
    graph, reduce = wanted.edges.graph, wanted.reduce
    own = [term for _, term in terms(wanted.edges)]
    # An extremum of one rounded term from each end is of the same bits in the narrow dtype.
    rounded = len(own) < 3 and all(term.dtype == wanted.dtype for term in own)
    narrow = reduce in ("max", "min") and rounded
    u, v, rest = _by_ends(wanted.edges, wanted.dtype if narrow else wanted.wide)
    if rest or v is None:
        return None
    if u is None:

        def alone() -> Array:
            degree = graph.in_degrees.reshape(-1, *(1,) * (v.ndim - 1))
            times = degree if reduce == "sum" else jnp.minimum(degree, 1)
            out = (v.astype(wanted.wide) * times.astype(wanted.wide)).astype(wanted.dtype)
            return jnp.where(degree > 0, out, jnp.zeros_like(out))

        return Plan(f"on the nodes: {wanted.edges.text}", alone)

    def run() -> Array:
        if reduce == "min":
            return -edge_conv(graph, -u, -v, reduce="max", impl=wanted.impl).astype(wanted.dtype)
        return edge_conv(graph, u, v, reduce=reduce, impl=wanted.impl).astype(wanted.dtype)

    return Plan(f"edge_conv({reduce}) of {wanted.edges.text}", run)


def edges_alone(wanted: Wanted) -> Plan | None:
    r"""$\mathrm{reduce}_e \, d_e$ of arrays over the edges: `segment_reduce`."""
    e = wanted.edges
    if not _on_edges_alone(e):
        return None

    def run() -> Array:
        values = wanted.values(e).astype(wanted.dtype)
        return segment_reduce(e.graph, values, wanted.reduce, impl=wanted.impl)

    found = Plan(f"segment_reduce({wanted.reduce}) of {e.text}", run)
    return found if isinstance(e, Given) else _maybe_recomputed(wanted, found)


def receivers_out(wanted: Wanted) -> Plan | None:
    r"""$\sum_e v_i m_e = v_i \sum_e m_e$."""
    own = list(factors(wanted.edges))
    outside = [f for f in own if isinstance(f, Copied) and not f.sender]
    if wanted.reduce not in ("sum", "mean") or not outside or len(outside) == len(own):
        return None
    features, wide = wanted.edges.features, wanted.wide
    v = _times(*outside)
    inside = _times(*(f for f in own if f not in outside))
    found = plan(wanted._replace(edges=inside, dtype=wide))

    def run() -> Array:
        assert isinstance(v, Copied)
        factor, total = (_full(x, features, wide) for x in (v.x, found.run()))
        # Without edges there is nothing to multiply: not even 0, which an infinity makes NaN.
        degree = wanted.edges.graph.in_degrees.reshape(-1, *(1,) * len(features))
        factor = jnp.where(degree > 0, factor, jnp.zeros_like(factor))
        return (factor * total).astype(wanted.dtype)

    return Plan(f"{v.text} * [{found.text}]", run)


def term_by_term(wanted: Wanted) -> Plan | None:
    r"""$\sum_e (a_e + b_e) = \sum_e a_e + \sum_e b_e$, where there are rules for the terms."""
    own = list(terms(wanted.edges))
    if wanted.reduce not in ("sum", "mean") or len(own) == 1:
        return None
    features, wide = wanted.edges.features, wanted.wide
    found = [_fused(wanted._replace(edges=e, dtype=wide)) for _, e in own]
    if any(plan is None for plan in found):
        return None
    plans = [plan for plan in found if plan is not None]

    def run() -> Array:
        values = [_full(plan.run(), features, wide) for plan in plans]
        signed = (v if sign > 0 else -v for v, (sign, _) in zip(values, own, strict=True))
        return functools.reduce(operator.add, signed).astype(wanted.dtype)

    signs = ("-" if sign < 0 else "+" for sign, _ in own)
    text = " ".join(f"{s} [{p.text}]" for s, p in zip(signs, plans, strict=True))
    return Plan(text.removeprefix("+ "), run)


RULES: list[Rule] = [
    receivers_out,
    additive_attention,
    product_attention,
    product,
    two_ends,
    edges_alone,
    term_by_term,
]


def _postponed(wanted: Wanted) -> Plan | None:
    r"""$\sum_e m_e W = (\sum_e m_e) W$, unless a product on the nodes makes the rows narrower.

    A number's factor too, in 16 bits, where its products with the terms of a sum would be rounded.
    """
    e = wanted.edges
    if not isinstance(e, Applied) or wanted.reduce not in ("sum", "mean"):
        return None
    inner, written = e.operands[0], e.written
    if e.name == "linear":
        kernel, bias = e.parameters
        narrowed = kernel.shape[1] < kernel.shape[0]
        of_nodes = all(isinstance(part, Copied) for _, part in terms(moved(inner)))
        if bias is not None or (narrowed and of_nodes):
            return None
        written = "linear of {}"
    elif e.name != "scale" or e.dtype == wanted.wide:
        return None
    found = plan(wanted._replace(edges=inner, dtype=wanted.wide))
    text = written.format(f"[{found.text}]")
    return Plan(text, lambda: e.function(found.run()).astype(wanted.dtype))


def _weighted_rows(wanted: Wanted) -> tuple[Edges | None, Copied] | None:
    """Rows of the senders times a weight of the edge, or of each of its first axes."""
    e = wanted.edges
    own = list(factors(e))
    rows = [f for f in own if isinstance(f, Copied) and f.sender]
    rest = [f for f in own if f not in rows]
    if not rows:
        return None
    x = _times(*rows)
    assert isinstance(x, Copied)
    # A product of rows that were apart is not rounded for itself.
    dtype = wanted.dtype if len(rows) == 1 else wanted.wide
    x = copied(x.graph, x.x.astype(dtype), True, x.text)
    if not rest:
        return None, x
    weight = _times(*rest)
    if len(weight.features) == len(x.features) and weight.features[-1:] == (1,):
        weight = apply("squeeze", lambda w: w[..., 0], [weight], written="{}")
    return (weight, x) if weight.features == x.features[: len(weight.features)] else None


def _times(*factors: Edges) -> Edges:
    """The product, in the accumulation dtype if there is more than one: another order of factors
    than the one written must fit too."""
    if len(factors) == 1:
        return factors[0]
    wide = functools.reduce(jnp.promote_types, (accumulation_dtype(f.dtype) for f in factors))

    def function(a: Array, b: Array) -> Array:
        return binary(jnp.multiply, a.astype(wide), b.astype(wide))

    def both(a: Edges, b: Edges) -> Edges:
        return on_nodes(apply("*", function, [a, b], written="({} * {})"))

    return functools.reduce(both, factors)


def _by_ends(e: Edges, dtype: np.dtype) -> tuple[Array | None, Array | None, list[Edges]]:
    """`e` as a sum: the senders' terms, the receivers', both of `dtype`, and what is left."""
    ends: dict[bool, Array] = {}
    rest = []
    for sign, term in terms(e):
        signed = term if sign > 0 else -term
        if not isinstance(term, Copied):
            rest.append(signed)
            continue
        x = _full(term.x if sign > 0 else -term.x, e.features, dtype)
        ends[term.sender] = ends[term.sender] + x if term.sender in ends else x
    return ends.get(True), ends.get(False), rest


def _on_edges_alone(e: Edges) -> bool:
    if isinstance(e, Applied):
        return all(map(_on_edges_alone, e.operands))
    return _on_edges_alone(e.operand) if isinstance(e, Across) else isinstance(e, Given)


def _full(x: Array, features: tuple[int, ...], dtype: np.dtype) -> Array:
    """`x` with all feature axes, aligned from the first."""
    x = x.reshape(x.shape + (1,) * (1 + len(features) - x.ndim))
    return jnp.broadcast_to(x, (x.shape[0], *features)).astype(dtype)
