"""Attention with additive scores by rows, in float64, and what its tests share."""

import functools

import jax
import numpy as np

from jaxgnn import gat_attention
from jaxgnn._core.dtypes import accumulation_dtype
from tests.support.oracle import draw_array
from tests.support.pair_oracle import attended, gradients

KEY = jax.random.key(7)


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
    """By rows, in float64; `loops`, if given, are the biases of the added self-loops; `keep` are
    dropout's factors, those of the self-loops after those of the edges."""
    v, src, dst = (np.asarray(a, np.float64) for a in (v, src, dst))
    senders, receivers, number, bias = attended(graph, src.shape[1], bias, loops)
    keep = np.broadcast_to(keep, (number.max(initial=0) + 1, src.shape[1]))
    out = np.zeros((graph.num_receivers, *v.shape[1:]))
    scores = src[senders] + dst[receivers] + bias
    below = np.where(np.isneginf(scores), 0, scores)
    scores = np.where((scores > 0) | np.isneginf(scores), scores, slope * below)
    for row in np.unique(receivers):
        own = receivers == row
        largest = scores[own].max(axis=0)
        weights = np.exp(scores[own] - np.where(np.isneginf(largest), 0, largest))
        total = weights.sum(axis=0)
        weights = weights / np.where(total == 0, 1, total) * keep[number[own]]
        out[row] = np.einsum("eh,ehf->hf", weights, v[senders[own]])
    return out


def tolerance(dtype):
    return {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-9, "float64": 1e-13}[dtype]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def values_and_gradients(impl, loops, rate, graph, operands):
    def f(v, src, dst, bias, loop_bias):
        options = {"self_loops": True, "loop_bias": loop_bias} if loops else {}
        return gat_attention(
            graph, v, src, dst, bias, dropout_rate=rate, dropout_rng=KEY, impl=impl, **options
        )

    return f(*operands), gradients(f, operands)
