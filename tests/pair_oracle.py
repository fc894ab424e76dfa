"""Attentions with scores of pairs by rows, in float64, and what their tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from oracle import draw_array, edges

from jaxgnn import Graph, _ffi
from jaxgnn.ops import _dropout


def dense_pair_attention(graph, scores_of, values, bias=None, *, loops=None, keep=1.0):
    """`scores_of(senders, receivers)` are the scores of pairs of nodes, `[pairs, heads]`; `loops`,
    if given, are the biases of the added self-loops; `keep` are dropout's factors, those of the
    self-loops after those of the edges."""
    senders, receivers = edges(graph)
    values = np.asarray(values, np.float64)
    heads = values.shape[1]
    bias = np.zeros((graph.num_edges, heads)) if bias is None else np.asarray(bias, float)
    number = np.arange(graph.num_edges)
    if loops is not None:
        nodes = np.arange(min(graph.num_senders, graph.num_receivers))
        kept = senders != receivers
        number = np.append(number[kept], graph.num_edges + nodes)
        bias = np.append(bias[kept], np.asarray(loops, float)[nodes], axis=0)
        senders, receivers = np.append(senders[kept], nodes), np.append(receivers[kept], nodes)
    keep = np.full((number.max(initial=0) + 1, heads), keep) if np.ndim(keep) == 0 else keep
    scores = scores_of(senders, receivers) + bias
    out = np.zeros((graph.num_receivers, *values.shape[1:]))
    for row in np.unique(receivers):
        own = receivers == row
        largest = scores[own].max(axis=0)
        weights = np.exp(scores[own] - np.where(np.isneginf(largest), 0, largest))
        total = weights.sum(axis=0)
        weights = weights / np.where(total == 0, 1, total) * keep[number[own]]
        out[row] = np.einsum("eh,ehf->hf", weights, values[senders[own]])
    return out


def close(actual, expected, limit):
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=limit * scale)


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
    assert graph.splits[:, 1].max() > 0 and graph.transpose_splits[:, 1].max() > 0
    assert np.any(np.asarray(graph.senders) == np.asarray(graph.receivers))
    return graph


def gradients(f, operands, seed=3):
    """Those of a random linear functional; `None` stays."""
    there = [i for i, operand in enumerate(operands) if operand is not None]

    def loss(*operands):
        out = f(*operands)
        direction = draw_array(np.random.default_rng(seed), out.shape, "float32")
        return jnp.sum(direction.astype(out.dtype) * out)

    return jax.grad(loss, there)(*operands)


def check_values_and_gradients(attention, dense, operands, dtype):
    """`attention(impl, *operands)` against `dense(*operands)`, and its gradients against those of
    the reference in the accumulation dtype."""

    @functools.partial(jax.jit, static_argnums=0)
    def run(impl, operands):
        f = functools.partial(attention, impl)
        return f(*operands), gradients(f, operands)

    out, ours = run("kernel", operands)
    assert out.dtype == jnp.dtype(dtype)
    close(out, dense(*operands), tolerance(dtype))
    wide = jax.tree.map(lambda a: a.astype(_ffi.accumulation_dtype(dtype)), operands)
    expected, theirs = run("jax", wide)
    close(expected, dense(*operands), tolerance(jnp.dtype(expected.dtype).name))
    for a, b in zip(ours, theirs, strict=True):
        assert float(jnp.abs(b).max()) > 0
        close(a, b, 20 * tolerance(dtype))


def keep_factors(key, rate, graph, heads, dtype):
    """Dropout's factors of the edges and the self-loops, or 1."""
    if rate == 0:
        return 1.0
    return np.asarray(
        _dropout.keep_factors(
            _dropout.key_words(key),
            0,
            graph.num_edges + graph.num_receivers,
            heads,
            _dropout.threshold(rate),
            _ffi.accumulation_dtype(dtype),
        )
    )
