"""Attentions by rows, in float64, and what their tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import Graph, gat_attention
from jaxgnn.ops._core import dropout_mask
from tests.support.oracle import close, draw_array, edges

KEY = jax.random.key(7)


def dense_pair_attention(
    graph, scores_of, values, bias=None, *, loops=None, keep=1.0, pull=None, activation=None
):
    """`scores_of(senders, receivers)` are the scores of pairs of nodes, `[pairs, heads]`; `loops`,
    if given, are the biases of the added self-loops; `keep` are dropout's factors, those of the
    self-loops after those of the edges; `activation` is that of the scores with their biases.

    With `pull(senders, receivers, ds)`, which gives the gradients of what scores are made of, also
    those of the functional of `gradients`: `pull`'s, then those of the values and of the biases.
    """
    values = np.asarray(values, np.float64)
    heads = values.shape[1]
    senders, receivers, number, bias = attended(graph, heads, bias, loops)
    keep = np.full((number.max(initial=0) + 1, heads), keep) if np.ndim(keep) == 0 else keep
    scores = scores_of(senders, receivers) + bias
    scores = scores if activation is None else activation(scores)
    alpha = np.zeros_like(scores)
    for row in np.unique(receivers):
        own = receivers == row
        largest = scores[own].max(axis=0)
        weights = np.exp(scores[own] - np.where(np.isneginf(largest), 0, largest))
        total = weights.sum(axis=0)
        alpha[own] = weights / np.where(total == 0, 1, total)
    kept = keep[number]
    shape = (graph.num_receivers, *values.shape[1:])
    out = _summed(receivers, (alpha * kept)[..., None] * values[senders], shape)
    if pull is None:
        return out
    direction = _direction(shape)
    dvalues = _summed(senders, (alpha * kept)[..., None] * direction[receivers], values.shape)
    dots = np.einsum("ehf,ehf->eh", direction[receivers], values[senders])
    delta = np.einsum("nhf,nhf->nh", direction, out)
    ds = alpha * (kept * dots - delta[receivers])
    dbias = _summed(number, ds, (graph.num_edges + graph.num_receivers, heads))
    biases = (dbias[: graph.num_edges], dbias[graph.num_edges :])
    return out, (*pull(senders, receivers, ds), dvalues, *biases[: 1 if loops is None else 2])


def attended(graph, heads, bias, loops):
    """Senders, receivers, numbers and biases of the edges; with `loops`, the biases of self-loops,
    those of these in place of the graph's."""
    senders, receivers = edges(graph)
    bias = np.zeros((graph.num_edges, heads)) if bias is None else np.asarray(bias, float)
    number = np.arange(graph.num_edges)
    if loops is None:
        return senders, receivers, number, bias
    nodes = np.arange(min(graph.num_senders, graph.num_receivers))
    kept = senders != receivers
    number = np.append(number[kept], graph.num_edges + nodes)
    bias = np.append(bias[kept], np.asarray(loops, float)[nodes], axis=0)
    return np.append(senders[kept], nodes), np.append(receivers[kept], nodes), number, bias


# Senders, receivers, heads and width of graphs without edges, of which one is 0.
WITHOUT_ELEMENTS = ((3, 0, 2, 4), (3, 2, 0, 4), (3, 2, 2, 0), (0, 2, 1, 1))


def _summed(places, rows, shape):
    out = np.zeros(shape)
    np.add.at(out, places, rows)
    return out


def _direction(shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32).astype(np.float64)


def tolerance(dtype):
    return {"float32": 4e-6, "bfloat16": 2**-7, "float16": 2**-9, "float64": 1e-12}[dtype]


def mixed_graph():
    """Rows of degrees 0, 1 and 600 (taken in parts), repeats and loops; senders alike; 30 of each
    end's nodes have the same numbers, and there are 7 senders more."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(37, size=1400), rng.integers(30, size=1400)
    receivers[:600], senders[700:1200] = 3, 4
    kept = (receivers != 5) & ((receivers != 6) | (np.cumsum(receivers == 6) == 1))
    kept &= senders != 8
    graph = Graph.from_edges(senders[kept], receivers[kept], num_senders=37, num_receivers=30)
    assert {0, 1} <= set(np.asarray(graph.in_degrees).tolist())
    assert (
        graph.row_chunks.table[:, 1].max() > 0 and graph.transpose_row_chunks.table[:, 1].max() > 0
    )
    assert np.any(np.asarray(graph.senders) == np.asarray(graph.receivers))
    return graph


def gradients(f, operands):
    """Those of a random linear functional."""

    def loss(*operands):
        out = f(*operands)
        return jnp.sum(jnp.asarray(_direction(out.shape), out.dtype) * out)

    return jax.grad(loss, range(len(operands)))(*operands)


def check_values_and_gradients(attention, dense, operands, dtype):
    """`attention(*operands)` and its gradients against the two that `dense(*operands)` gives."""

    @jax.jit
    def run(*operands):
        return attention(*operands), gradients(attention, operands)

    out, ours = run(*operands)
    assert out.dtype == jnp.dtype(dtype)
    expected, theirs = dense(*operands)
    close(out, expected, tolerance(dtype))
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(b).max() > 0
        close(a, b, 20 * tolerance(dtype))


def keep_factors(key, rate, graph, heads, dtype):
    """Dropout's factors of the edges and the self-loops, or 1."""
    if rate == 0:
        return 1.0
    return np.asarray(
        dropout_mask.keep_factors(
            dropout_mask.key_words(key),
            0,
            graph.num_edges + graph.num_receivers,
            heads,
            dropout_mask.threshold(rate),
            accumulation_dtype(dtype),
        )
    )


def accumulation_dtype(dtype):
    """What sums of this dtype are computed in."""
    return jnp.dtype("float64" if jnp.dtype(dtype) == "float64" else "float32")


# Additive attention.


def draw_operands(graph, heads, width, dtype="float32", seed=0, scale=1.0):
    """v, both scores and the biases of the edges and of the self-loops."""
    rng = np.random.default_rng(seed)
    accumulator = accumulation_dtype(dtype)

    def scores(rows):
        return jax.device_put(scale * np.asarray(draw_array(rng, (rows, heads), accumulator)))

    v = draw_array(rng, (graph.num_senders, heads, width), dtype)
    nodes = graph.num_senders, graph.num_receivers
    return v, *map(scores, (*nodes, graph.num_edges, graph.num_receivers))


def dense_attention(graph, v, src, dst, bias=None, *, slope=0.2, loops=None, keep=1.0):
    """`dense_pair_attention` by scores that are sums over the two ends."""
    v, src, dst = (np.asarray(a, np.float64) for a in (v, src, dst))

    def leaky(scores):
        below = np.where(np.isneginf(scores), 0, scores)
        return np.where((scores > 0) | np.isneginf(scores), scores, slope * below)

    def scores_of(senders, receivers):
        return src[senders] + dst[receivers]

    options = {"loops": loops, "keep": keep, "activation": leaky}
    return dense_pair_attention(graph, scores_of, v, bias, **options)


def gat_tolerance(dtype):
    return {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-9, "float64": 1e-13}[dtype]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def values_and_gradients(impl, loops, rate, graph, operands):
    def f(v, src, dst, bias, loop_bias):
        options = {"self_loops": True, "loop_bias": loop_bias} if loops else {}
        return gat_attention(
            graph, v, src, dst, bias, dropout_rate=rate, dropout_rng=KEY, impl=impl, **options
        )

    return f(*operands), gradients(f, operands)


def check_sparse_values(run, graph, operands, dtype="float32", **options):
    """The kernel against the dense reference in the accumulation dtype, of operands whose first is
    a `CBSR`: `run` returns the result and the gradients."""
    out, ours = run(graph, operands, impl="kernel", **options)
    cbsr = operands[0]
    assert out.dtype == cbsr.dtype and out.shape == (graph.num_receivers, *cbsr.shape[1:])
    wide = (cbsr.astype(accumulation_dtype(dtype)), *operands[1:])
    expected, theirs = run(graph, wide, impl="jax", dense=True, **options)
    close(out, expected, 2 * gat_tolerance(dtype))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 20 * gat_tolerance(dtype))
