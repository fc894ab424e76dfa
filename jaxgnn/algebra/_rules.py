"""Which operation computes a gather: the rules, from an expression to an operation or `None`.

To add one, write a function from `Request` to a `Plan` or `None` and put it into `RULES`; the first
that fits is taken. Expressions reach the rules hoisted to the nodes as far as possible.
"""

from __future__ import annotations

import functools
import operator

import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn.algebra._attention import (
    additive_attention,
    dot_product_attention,
    gatv2,
    mean_of_attention,
    why_not_fused,
)
from jaxgnn.algebra._edges import Applied, EdgeInput, Edges, NodeGather, SegmentNormalize
from jaxgnn.algebra._hoist import factors, hoist_to_nodes, terms
from jaxgnn.algebra._mixture import gaussian_mixture
from jaxgnn.algebra._plans import (
    Plan,
    Request,
    Rule,
    broadcast_features,
    is_edge_inputs_only,
    maybe_recomputed,
    merged,
    multiply,
    node_texts,
    split_by_end,
)
from jaxgnn.algebra._reference import on_edges
from jaxgnn.algebra._sparse import densified, has_sparse_rows
from jaxgnn.algebra._weighted import weighted_rows
from jaxgnn.ops import edge_conv, segment_reduce


def plan(request: Request) -> Plan:
    """The plan of the first rule that fits, else the values on the edges and their reduction."""
    found = _of_sparse_rows(request)
    if found is not None:
        return found
    request, made_dense = _made_dense(request, keep_rows=False)
    found = defer_linear(request, plan)
    if found is None:
        request = request._replace(edges=hoist_to_nodes(request.edges))
        found = _fused(request) or reference(request, fuse=True)
        found = _with_hoisted(found, request.edges)
        found = found._replace(notes=merged(found.notes, why_not_fused(request)))
    return found._replace(notes=merged(made_dense, found.notes))


def _of_sparse_rows(request: Request) -> Plan | None:
    """The plan of the first rule that fits rows which stay sparse."""
    if not has_sparse_rows(request.edges):
        return None
    request, made_dense = _made_dense(request, keep_rows=True)
    if not has_sparse_rows(request.edges):
        return None
    found = defer_linear(request, _of_sparse_rows)
    if found is None:
        request = request._replace(edges=hoist_to_nodes(request.edges))
        found = _fused(request)
        found = None if found is None else _with_hoisted(found, request.edges)
    return None if found is None else found._replace(notes=merged(made_dense, found.notes))


def _made_dense(request: Request, *, keep_rows: bool) -> tuple[Request, tuple[str, ...]]:
    """The request with dense rows in place of sparse ones, and a note of them."""
    edges, texts = densified(request.edges, request.impl, keep_rows=keep_rows)
    notes = (f"on the nodes: the dense form of {', '.join(texts)}",) if texts else ()
    return request._replace(edges=edges), notes


def _with_hoisted(found: Plan, edges: Edges) -> Plan:
    hoisted = [text for text in node_texts(edges) if text not in ("u", "v")]
    if not hoisted:
        return found
    return found._replace(notes=merged((f"on the nodes: {', '.join(hoisted)}",), found.notes))


def reference(request: Request, *, fuse: bool) -> Plan:
    """The values on the edges, reduced; they are recomputed in the backward pass."""

    def run() -> Array:
        values = on_edges(request.edges, request.impl, fuse=fuse).astype(request.dtype)
        return segment_reduce(request.edges.graph, values, request.reduce, impl=request.impl)

    text = f"reference: {request.edges.text} on the edges, segment_reduce({request.reduce})"
    return maybe_recomputed(request, Plan(text, run), [request.edges])


def _fused(request: Request) -> Plan | None:
    for rule in RULES:
        found = rule(request)
        if found is not None:
            return found
    return None


def sum_of_ends(request: Request) -> Plan | None:
    r"""$\mathrm{reduce}_e (u_j + v_i)$: `edge_conv`; $v_i$ alone needs the nodes only."""
    graph, reduce = request.edges.graph, request.reduce
    own = [term for _, term in terms(request.edges)]
    # An extremum of one rounded term from each end has the same bits in the narrow dtype.
    rounded = len(own) < 3 and all(term.dtype == request.dtype for term in own)
    narrow = reduce in ("max", "min") and rounded
    u, v, rest = split_by_end(request.edges, request.dtype if narrow else request.wide)
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
    if not is_edge_inputs_only(e):
        return None

    def run() -> Array:
        values = request.values(e).astype(request.dtype)
        return segment_reduce(e.graph, values, request.reduce, impl=request.impl)

    found = Plan(f"segment_reduce({request.reduce}) of {e.text}", run)
    return found if isinstance(e, EdgeInput) else maybe_recomputed(request, found, [e])


def factor_out_receivers(request: Request) -> Plan | None:
    r"""$\sum_e v_i m_e = v_i \sum_e m_e$."""
    own = list(factors(request.edges))
    outside = [f for f in own if isinstance(f, NodeGather) and not f.sender]
    if request.reduce not in ("sum", "mean") or not outside or len(outside) == len(own):
        return None
    features, wide = request.edges.features, request.wide
    v = multiply(*outside)
    inside = multiply(*(f for f in own if f not in outside))
    found = plan(request._replace(edges=inside, dtype=wide))

    def run() -> Array:
        assert isinstance(v, NodeGather)
        factor, total = (broadcast_features(x, features, wide) for x in (v.x, found.run()))
        # A receiver without edges gets 0, also where its factor is infinite.
        degree = request.edges.graph.in_degrees.reshape(-1, *(1,) * len(features))
        factor = jnp.where(degree > 0, factor, jnp.zeros_like(factor))
        return (factor * total).astype(request.dtype)

    return Plan(f"{v.text} * [{found.text}]", run, found.notes)


def normalize_on_nodes(request: Request) -> Plan | None:
    r"""$\sum_e \frac{m_e}{R_i} x_j = \frac{1}{R_i} \sum_e m_e x_j$ with the reduction $R$ of the
    receiver's edges: no normalized weights on the edges.

    Where $m$ is of one end or given: else it is computed once, on the edges.
    """
    own = list(factors(request.edges))
    divided = [f for f in own if isinstance(f, SegmentNormalize) and f.method != "softmax"]
    if request.reduce not in ("sum", "mean") or len(divided) != 1 or len(own) == 1:
        return None
    (normalized,) = divided
    weight, graph, features = normalized.operand, normalized.graph, request.edges.features
    if not isinstance(weight, NodeGather) and not is_edge_inputs_only(weight):
        return None
    wide = request.wide
    inside = multiply(*(weight if f is normalized else f for f in own))
    total = _fused(request._replace(edges=inside, dtype=wide))
    assert normalized.method != "softmax"
    parts = request._replace(edges=weight, reduce=normalized.method, dtype=wide)
    divisor = _fused(parts)
    if total is None or divisor is None or inside.features != features:
        return None

    def run() -> Array:
        over, under = (broadcast_features(p.run(), features, wide) for p in (total, divisor))
        # A receiver without edges gets 0, and its divisor no gradient.
        degree = graph.in_degrees.reshape(-1, *(1,) * len(features))
        return (over / jnp.where(degree > 0, under, jnp.ones_like(under))).astype(request.dtype)

    notes = merged(total.notes, divisor.notes)
    return Plan(f"[{total.text}] / [{divisor.text}]", run, notes)


def sum_over_kernels(request: Request) -> Plan | None:
    r"""$\sum_e \sum_k w_{ek} x_{ek} = \sum_k \sum_e w_{ek} x_{ek}$: the inner sum on the nodes."""
    e = request.edges
    if not isinstance(e, Applied) or e.name != "weighted_sum":
        return None
    if request.reduce not in ("sum", "mean"):
        return None
    product = multiply(*e.operands)
    found = _fused(request._replace(edges=product, dtype=request.wide))
    if found is None or len(product.features) != len(e.features) + 1:
        return None

    def run() -> Array:
        return jnp.sum(found.run(), axis=1).astype(request.dtype)

    return Plan(f"sum over kernels of [{found.text}]", run, found.notes)


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
        values = [broadcast_features(plan.run(), features, wide) for plan in plans]
        signed = (v if sign > 0 else -v for v, (sign, _) in zip(values, own, strict=True))
        return functools.reduce(operator.add, signed).astype(request.dtype)

    signs = ("-" if sign < 0 else "+" for sign, _ in own)
    text = " ".join(f"{s} [{p.text}]" for s, p in zip(signs, plans, strict=True))
    return Plan(text.removeprefix("+ "), run, merged(*(p.notes for p in plans)))


RULES: list[Rule] = [
    factor_out_receivers,
    normalize_on_nodes,
    additive_attention,
    dot_product_attention,
    gatv2,
    mean_of_attention,
    gaussian_mixture,
    sum_over_kernels,
    weighted_rows,
    sum_of_ends,
    edge_inputs_only,
    term_by_term,
]


def defer_linear(request: Request, plan: Rule) -> Plan | None:
    r"""$\sum_e m_e W = (\sum_e m_e) W$, unless a projection on the nodes makes the rows narrower.

    A scalar factor too, in 16 bits, where its products with the terms of a sum would be rounded.
    `plan` gets what is left.
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
    if found is None:
        return None
    text = template.format(f"[{found.text}]")
    notes = merged((f"on the nodes, after the {request.reduce}: {e.name}",), found.notes)
    return Plan(text, lambda: e.function(found.run()).astype(request.dtype), notes)
