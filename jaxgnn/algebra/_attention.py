"""Rules for rows averaged by a softmax: additive scores, dot products, and GATv2's."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    EdgeInput,
    Edges,
    NodeGather,
    SegmentNormalize,
    SparseGather,
    is_floating,
)
from jaxgnn.algebra._hoist import terms
from jaxgnn.algebra._plans import (
    Plan,
    Request,
    broadcast_features,
    is_edge_inputs_only,
    match_weighted_rows,
    maybe_recomputed,
    split_by_end,
)
from jaxgnn.algebra._sparse import of_heads
from jaxgnn.ops import CBSR, dot_attention, gat_attention, gatv2_attention
from jaxgnn.ops._core import divide_by_degree

_NOTES = ("in backward the kernel recomputes: scores, softmax",)


def additive_attention(request: Request) -> Plan | None:
    r"""$\sum_e \mathrm{softmax}_i(\mathrm{LeakyReLU}(p_j + q_i + b_e)) \, x_j$: `gat_attention`."""
    found = _softmax_average(request)
    if found is None:
        return None
    scores, x, options = found
    slope, graph, features = 1.0, x.graph, scores.features
    if isinstance(scores, Applied) and scores.name == "leaky_relu":
        slope, scores = scores.parameters[0], scores.operands[0]
    source, target, own = split_by_end(scores, accumulation_dtype(scores.dtype))
    if not all(map(is_edge_inputs_only, own)):
        return None

    def run() -> Array:
        def node_scores(scores: Array | None, nodes: int) -> Array:
            heads = math.prod(features)
            return jnp.zeros((nodes, heads)) if scores is None else scores.reshape(nodes, heads)

        p, q = node_scores(source, graph.num_senders), node_scores(target, graph.num_receivers)
        v, bias = _values(x, features), _bias(request, own, scores)
        out = gat_attention(
            graph, v, p, q, bias, negative_slope=slope, impl=request.impl, **options
        )
        return out.reshape(graph.num_receivers, *x.features).astype(request.dtype)

    return _with_bias(request, own, scores, Plan(f"gat_attention of {x.text}", run, _NOTES))


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
    if len(dots) != 1 or not all(map(is_edge_inputs_only, rest)):
        return None
    ((scale, q, k),) = dots
    if x.dtype not in (q.dtype, accumulation_dtype(q.dtype)):
        return None
    graph, features = x.graph, scores.features

    def run() -> Array:
        query, key = (_flatten_heads(end.x.astype(x.dtype), features) for end in (q, k))
        value = _values(x, features)
        heads = jnp.full(math.prod(features), scale)
        bias = _bias(request, rest, scores)
        out = dot_attention(
            graph, query, key, value, bias, scale=heads, impl=request.impl, **options
        )
        return out.reshape(graph.num_receivers, *x.features).astype(request.dtype)

    return _with_bias(request, rest, scores, Plan(f"dot_attention of {x.text}", run, _NOTES))


def gatv2(request: Request) -> Plan | None:
    r"""$\sum_e \mathrm{softmax}_i(\langle a, \mathrm{LeakyReLU}(x_j + q_i) \rangle + b_e) \, x_j$:
    `gatv2_attention`."""
    found = _match_gatv2(request)
    if found is None or found.keys.x is not found.x.x:
        return None  # the kernel reads one row for the key and the value
    scores, x, options, vector, slope, inner, rest, _ = found
    graph, heads = x.graph, scores.features
    _, target, _ = split_by_end(inner, x.dtype)
    if target is None:
        target = jnp.zeros((graph.num_receivers, *x.features), x.dtype)

    def run() -> Array:
        left, right = (_flatten_heads(end, heads) for end in (x.x, target))
        att = vector.reshape(left.shape[1:])
        bias = _bias(request, rest, scores)
        out = gatv2_attention(
            graph, left, right, att, bias, negative_slope=slope, impl=request.impl, **options
        )
        return out.reshape(graph.num_receivers, *x.features).astype(request.dtype)

    return _with_bias(request, rest, scores, Plan(f"gatv2_attention of {x.text}", run, _NOTES))


class _GATv2(NamedTuple):
    """What the rule for GATv2 finds; `keys` are the senders' term of `inner`."""

    scores: Edges
    x: NodeGather
    options: dict[str, Any]
    vector: Array
    slope: float
    inner: Edges
    rest: list[Edges]
    keys: NodeGather


def _match_gatv2(request: Request) -> _GATv2 | None:
    found = _softmax_average(request)
    if found is None:
        return None
    scores, x, options = found
    if isinstance(x, SparseGather):
        return None  # the kernel reads dense rows
    pairs, rest = [], []
    for sign, term in terms(scores):
        pair = _as_gatv2(term) if term.features == scores.features else None
        if pair is None:
            rest.append(term if sign > 0 else -term)
        else:
            pairs.append((sign * pair[0], *pair[1:]))
    if len(pairs) != 1 or not all(map(is_edge_inputs_only, rest)):
        return None
    ((vector, slope, inner),) = pairs
    own = [(sign, term) for sign, term in terms(inner) if not _from_receivers(term)]
    if len(own) != 1 or own[0][0] < 0 or (x.features, x.dtype) != (inner.features, inner.dtype):
        return None
    keys = own[0][1]
    if not isinstance(keys, NodeGather):
        return None
    return _GATv2(scores, x, options, vector, slope, inner, rest, keys)


def why_not_fused(request: Request) -> tuple[str, ...]:
    """Notes on an attention that is one of the rules' but for its arrays."""
    found = _match_gatv2(request)
    if found is None or found.keys.x is found.x.x:
        return ()
    return (
        f"no gatv2_attention: its keys and values are one array, {found.keys.text} and "
        f"{found.x.text} are two",
    )


def _from_receivers(e: Edges) -> bool:
    return isinstance(e, NodeGather) and not e.sender


def _as_gatv2(e: Edges) -> tuple[Array, float, Edges] | None:
    """The vector, the slope and what the LeakyReLU is of, if `e` is GATv2's score."""
    if not isinstance(e, Applied):
        return None
    if e.name == "scale":
        inner = _as_gatv2(e.operands[0])
        if inner is None:
            return None
        wide = accumulation_dtype(e.dtype)
        return (e.parameters[0].astype(wide) * inner[0].astype(wide), *inner[1:])
    inner = e.operands[0]
    if e.name != "dot_with_vector" or not isinstance(inner, Applied) or inner.name != "leaky_relu":
        return None
    return e.parameters[0], inner.parameters[0], inner.operands[0]


def mean_of_attention(request: Request) -> Plan | None:
    """A mean of softmax-weighted rows: the sum, divided by the degrees on the nodes."""
    if request.reduce != "mean":
        return None
    sums = request._replace(reduce="sum", dtype=request.wide)
    total = additive_attention(sums) or dot_product_attention(sums) or gatv2(sums)
    if total is None:
        return None

    def run() -> Array:
        mean = divide_by_degree(request.edges.graph, "receivers", total.run())
        return mean.astype(request.dtype)

    return Plan(f"[{total.text}] / degree", run, total.notes)


def _softmax_average(
    request: Request,
) -> tuple[Edges, NodeGather | SparseGather, dict[str, Any]] | None:
    """The scores, the rows, and dropout's options, of rows averaged by a softmax."""
    found = match_weighted_rows(request)
    if request.reduce != "sum" or found is None:
        return None
    weight, x = found
    options = {}
    if isinstance(weight, Dropout):
        options = {"dropout_rate": weight.rate, "dropout_rng": weight.dropout_rng}
        weight = weight.operand
    scores = None if weight is None else _softmax_scores(weight)
    if weight is None or scores is None:
        return None
    if isinstance(x, SparseGather) and len(x.features) != len(weight.features) + 1:
        return None  # the kernels take rows of one axis
    return scores, x, options


def _softmax_scores(weight: Edges) -> Edges | None:
    r"""The scores of a softmax, also of one written as $\exp s_e / \sum_{e'} \exp s_{e'}$.

    The kernels subtract a row's maximum by themselves. One that is written is left out, as it
    changes neither the weights nor their derivative.
    """
    if not isinstance(weight, SegmentNormalize):
        return None
    scores = weight.operand
    if weight.method == "softmax":
        return scores  # with the receivers' terms, which may be -inf and so mask
    if weight.method != "sum" or not isinstance(scores, Applied) or scores.name != "exp":
        return None
    (scores,) = scores.operands
    inner = [(sign, term) for sign, term in terms(scores) if not _from_receivers(term)]
    if len(inner) == 1 and isinstance(inner[0][1], Applied) and inner[0][0] > 0:
        (_, term), *_ = inner
        return term if term.features == scores.features else scores
    return scores


def _as_dot(e: Edges) -> tuple[Array | float, NodeGather, NodeGather] | None:
    """A scalar, the receivers' rows and the senders', if `e` is that times their dot products."""
    if not isinstance(e, Applied):
        return None
    if e.name == "scale":
        inner = _as_dot(e.operands[0])
        scalar = e.parameters[0].astype(accumulation_dtype(e.dtype))
        return None if inner is None else (scalar * inner[0], *inner[1:])
    ends = {o.sender: o for o in e.operands if isinstance(o, NodeGather)}
    return (1.0, ends[False], ends[True]) if e.name == "dot" and len(ends) == 2 else None


def _flatten_heads(x: Array, heads: tuple[int, ...]) -> Array:
    """Rows whose first feature axes are those of the heads, as `[nodes, heads, features]`."""
    return x.reshape(x.shape[0], math.prod(heads), math.prod(x.shape[1 + len(heads) :]))


def _values(x: NodeGather | SparseGather, heads: tuple[int, ...]) -> Array | CBSR:
    """The rows as an attention's values."""
    if isinstance(x, SparseGather):
        return of_heads(x.rows, math.prod(heads))
    return _flatten_heads(x.x, heads)


def _bias(request: Request, own: list[Edges], scores: Edges) -> Array | None:
    """The terms of the edges, `[num_edges, heads]`."""
    if not own:
        return None
    narrow = len(own) == 1 and is_floating(scores.dtype)
    dtype = scores.dtype if narrow else accumulation_dtype(scores.dtype)
    values = (broadcast_features(request.values(e), scores.features, dtype) for e in own)
    bias = functools.reduce(operator.add, values)
    return bias.reshape(bias.shape[0], math.prod(scores.features))


def _with_bias(request: Request, own: list[Edges], scores: Edges, fused: Plan) -> Plan:
    """`fused`, which stores its operands; a bias that is computed is recomputed instead."""
    stored = all(isinstance(e, EdgeInput) and e.features == scores.features for e in own)
    return fused if stored and len(own) < 2 else maybe_recomputed(request, fused, own)
