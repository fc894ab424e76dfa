"""Messages as expressions of the algebra, beside the same in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.algebra import (
    apply_edge,
    concat,
    dot,
    dropout,
    gaussian,
    leaky_relu,
    linear,
    segment_normalize,
    weighted_sum,
)
from jaxgnn.ops._core import dropout_mask
from tests.support.message_operands import HEADS, NUM_EDGES

KEY = jax.random.key(3)


def softmax(scores, receivers):
    out = np.exp(scores)
    for row in np.unique(receivers):
        out[receivers == row] /= out[receivers == row].sum(axis=0)
    return out


def leaky(x, slope=0.2):
    return np.where(x > 0, x, slope * x)


def gaussians(places, mu, inv):
    return np.exp(-0.5 * (((places[:, None] - mu) * inv) ** 2).sum(-1))


def attention(s, leave_out=False):
    scores = segment_normalize(leaky_relu(s.p - s.q + s.b, 0.1))
    return (dropout(scores, 0.4, KEY) if leave_out else scores) * s.h


def dense_attention(d):
    scores = d.p - d.q + d.b
    return softmax(leaky(scores, 0.1), d.receivers)[..., None] * d.h


def softmax_by_hand(s):
    """The exponentials of scores less a number of the receiver, such as their maximum, divided."""
    scores = leaky_relu(s.p - s.q + s.b, 0.1) - s.q
    return segment_normalize(apply_edge(jnp.exp, scores), "sum") * s.h


def gat_as_written(s):
    """Velickovic et al., equation 3, of one head: the column's axis of 1 stays."""
    return segment_normalize(leaky_relu(linear(concat(s.y, s.x), s.ends, s.one))) * s.x


def gat_by_functions(s):
    """The same with the axis squeezed, the LeakyReLU and the message in custom functions."""
    scores = apply_edge(lambda e: jax.nn.leaky_relu(e, 0.2), linear(concat(s.y, s.x), s.ends))
    weights = apply_edge(lambda a: a[..., 0], dropout(segment_normalize(scores), 0.4, KEY))
    return apply_edge(lambda a, x: a[:, None] * x, weights, s.x)


def dense_gat_by_functions(d):
    scores = leaky(np.concatenate([d.y, d.x], 1) @ d.ends)
    return mask()[:, :1] * softmax(scores, d.receivers) * d.x


def gat_heads_as_written(s):
    return segment_normalize(leaky_relu(dot(concat(s.r, s.h), s.head_ends))) * s.h


def gatv2(s):
    scores = dot(leaky_relu(s.h + s.r), s.att)
    return dropout(segment_normalize(0.5 * scores + s.b), 0.4, KEY) * s.h


def dense_gatv2(d):
    scores = 0.5 * (leaky(d.h + d.r) * d.att).sum(-1) + d.b
    return mask()[..., None] * softmax(scores, d.receivers)[..., None] * d.h


def gatv2_of_one_head(s):
    """Keys and values are one projection, written twice."""
    ends = linear(s.x, s.wide) + linear(s.y, s.wide)
    weights = segment_normalize(linear(leaky_relu(ends), s.column, s.one))
    return weights * linear(s.x, s.wide)


def dense_gatv2_of_one_head(d):
    scores = leaky(d.x @ d.wide + d.y @ d.wide) @ d.column + d.one
    return softmax(scores, d.receivers) * (d.x @ d.wide)


def monet(s):
    places = apply_edge(jnp.tanh, linear(concat(s.y, s.x), s.narrow, s.bias))
    return weighted_sum(gaussian(places, s.mu, s.inv), s.h)


def dense_monet(d):
    places = np.tanh(np.concatenate([d.y, d.x], 1) @ d.narrow + d.bias)
    return (gaussians(places, d.mu, d.inv)[..., None] * d.h).sum(1)


def divided(weights, d, reduce):
    out = np.array(weights)
    for row in np.unique(d.receivers):
        out[d.receivers == row] /= getattr(np, reduce)(out[d.receivers == row], axis=0)
    return out


@functools.cache
def mask():
    def kept():
        words, drop_below = dropout_mask.key_words(KEY), dropout_mask.threshold(0.4)
        return dropout_mask.keep_factors(words, 0, NUM_EDGES, HEADS, drop_below, "float32")

    return np.asarray(jax.jit(kept)(), np.float64)


# Reductions, what is planned, the expression, and the messages in NumPy.
CASES = {
    "copy": (("sum", "min"), "spmm({}) of u", lambda s: s.x, lambda d: d.x),
    "weights": (
        ("mean", "max"),
        "spmm({}) of u weighted by e",
        lambda s: s.x * s.w,
        lambda d: d.x * d.w[:, None],
    ),
    "heads": (
        ("sum",),
        "spmm(sum) of (0.5 * u) weighted by e",
        lambda s: 0.5 * (s.b * s.h),
        lambda d: 0.5 * d.b[..., None] * d.h,
    ),
    "entries": (("sum",), "spmm(sum) of u weighted by e", lambda s: s.z * s.x, lambda d: d.z * d.x),
    "one end": (
        ("max",),
        "spmm(max) of tanh((2.0 * u))",
        lambda s: apply_edge(jnp.tanh, 2.0 * s.x),
        lambda d: np.tanh(2 * d.x),
    ),
    "difference": (
        ("sum", "mean", "max", "min"),
        "edge_conv({}) of (u - v)",
        lambda s: s.x - s.y,
        lambda d: d.x - d.y,
    ),
    "receivers": (("sum", "max"), "on the nodes: (-1 * v)", lambda s: -s.y, lambda d: -d.y),
    "edge_conv": (
        ("max",),
        "edge_conv(max) of (linear(v) + linear(u))",
        lambda s: linear(concat(s.y, s.x - s.y), s.narrow, s.bias),
        lambda d: np.concatenate([d.y, d.x - d.y], 1) @ d.narrow + d.bias,
    ),
    "postponed": (
        ("mean",),
        "linear of [edge_conv(mean) of (u - v)]",
        lambda s: linear(s.x - s.y, s.wide),
        lambda d: (d.x - d.y) @ d.wide,
    ),
    "gated": (
        ("sum",),
        "v * [spmm(sum) of u weighted by e]",
        lambda s: s.y * (s.w * s.x),
        lambda d: d.y * d.w[:, None] * d.x,
    ),
    "terms": (
        ("sum",),
        "[spmm(sum) of u weighted by e] - [on the nodes: v] + [segment_reduce(sum) of e]",
        lambda s: s.w * s.x - s.y + s.z,
        lambda d: d.w[:, None] * d.x - d.y + d.z,
    ),
    "attention": (("sum",), "gat_attention of u", attention, dense_attention),
    "softmax by hand": (("sum",), "gat_attention of u", softmax_by_hand, dense_attention),
    "dropout": (
        ("sum",),
        "gat_attention of u",
        lambda s: attention(s, leave_out=True),
        lambda d: mask()[..., None] * dense_attention(d),
    ),
    "dot attention": (
        ("sum",),
        "dot_attention of u",
        lambda s: segment_normalize(0.5 * dot(s.x, s.y) + s.w) * s.x,
        lambda d: softmax(0.5 * (d.x * d.y).sum(1) + d.w, d.receivers)[:, None] * d.x,
    ),
    "mean of an attention": (
        ("mean",),
        "[gat_attention of u] / degree",
        attention,
        dense_attention,
    ),
    "GAT as written": (
        ("sum",),
        "gat_attention of u",
        gat_as_written,
        lambda d: softmax(leaky(np.concatenate([d.y, d.x], 1) @ d.ends + d.one), d.receivers) * d.x,
    ),
    "GAT by functions": (
        ("sum",),
        "gat_attention of u",
        gat_by_functions,
        dense_gat_by_functions,
    ),
    "GAT's heads as written": (
        ("sum",),
        "gat_attention of u",
        gat_heads_as_written,
        lambda d: (
            softmax(leaky((np.concatenate([d.r, d.h], -1) * d.head_ends).sum(-1)), d.receivers)[
                ..., None
            ]
            * d.h
        ),
    ),
    "GATv2": (("sum",), "gatv2_attention of u", gatv2, dense_gatv2),
    "GATv2 of one head": (
        ("sum",),
        "gatv2_attention of linear(u)",
        gatv2_of_one_head,
        dense_gatv2_of_one_head,
    ),
    "MoNet": (
        ("sum", "mean"),
        "gaussian_spmm({}) of u under gaussian(tanh((linear(v) + linear(u))))",
        monet,
        dense_monet,
    ),
    "Gaussians of the edges": (
        ("mean",),
        "gaussian_spmm(mean) of <lambda>(u) under gaussian(e)",
        lambda s: gaussian(s.z, s.centers, s.scales) * apply_edge(lambda x: x[:, None], s.x),
        lambda d: gaussians(d.z, d.centers, d.scales)[..., None] * d.x[:, None],
    ),
    "weights by kernel": (
        ("sum",),
        "sum over kernels of [spmm(sum) of u weighted by e]",
        lambda s: apply_edge(lambda w, x: (w[..., None] * x).sum(1), s.b, s.h),
        lambda d: (d.b[..., None] * d.h).sum(1),
    ),
    "normalized by the mean": (
        ("sum",),
        "[spmm(sum) of u weighted by exp(e), recomputed in backward] / "
        "[segment_reduce(mean) of exp(e), recomputed in backward]",
        lambda s: segment_normalize(apply_edge(jnp.exp, s.w), "mean") * s.x,
        lambda d: divided(np.exp(d.w), d, "mean")[:, None] * d.x,
    ),
    "normalized by the minimum": (
        ("mean",),
        "[spmm(mean) of (exp(u) * u)] / [spmm(min) of exp(u)]",
        lambda s: segment_normalize(apply_edge(jnp.exp, s.p), "min") * s.h,
        lambda d: divided(np.exp(d.p), d, "min")[..., None] * d.h,
    ),
    "weights of an expression": (
        ("sum",),
        "spmm(sum) of u weighted by dot(u, v), recomputed in backward",
        lambda s: dot(s.x, s.y) * s.x,
        lambda d: (d.x * d.y).sum(1, keepdims=True) * d.x,
    ),
    "shares": (
        ("sum",),
        "segment_reduce(sum) of normalize by sum((2 + e)), recomputed in backward",
        lambda s: segment_normalize(2 + s.w, "sum"),
        lambda d: divided(2 + d.w, d, "sum"),
    ),
    "any function": (
        ("max",),
        "reference: relu((linear(u) + linear(e))) on the edges, segment_reduce(max), "
        "recomputed in backward",
        lambda s: apply_edge(jax.nn.relu, linear(concat(s.x, s.z), s.narrow)),
        lambda d: np.maximum(np.concatenate([d.x, d.z], 1) @ d.narrow, 0),
    ),
}
