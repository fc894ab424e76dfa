"""Attention over neighbors against dense float64: values, masks, numbers that are not finite."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, gat_attention
from jaxgnn.ops._core import dropout_mask
from tests.support.oracle import close
from tests.support.oracle_attention import (
    KEY,
    dense_attention,
    draw_operands,
    gat_tolerance,
    gradients,
    values_and_gradients,
)
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

DTYPES = ("float32", "bfloat16", "float16")
seeds = st.integers(0, 2**32 - 1)

# One compilation a shape, where a call that is not jitted compiles each of its parts.
jitted = jax.jit(gat_attention, static_argnames=("negative_slope", "self_loops", "impl"))


@examples(20)
@given(
    graph=graphs(max_nodes=6),
    heads=st.sampled_from([1, 2, 3, 8]),
    width=st.sampled_from([1, 4, 20, 48]),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    loops=st.booleans(),
    slope=st.sampled_from([0.0, 0.2, 1.5]),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=seeds,
)
def test_equals_brute_force(graph, heads, width, dtype, biased, loops, slope, impl, seed):
    """Empty graphs, isolated nodes, repeated edges, self-loops, rectangular graphs."""
    v, src, dst, bias, loop_bias = draw_operands(graph, heads, width, dtype, seed)
    bias = bias if biased else None
    loop_bias = loop_bias if biased and loops else None
    out = jitted(
        graph,
        v,
        src,
        dst,
        bias,
        negative_slope=slope,
        self_loops=loops,
        loop_bias=loop_bias,
        impl=impl,
    )
    assert out.dtype == v.dtype
    added = np.zeros((graph.num_receivers, heads)) if loop_bias is None else loop_bias
    expected = dense_attention(
        graph, v, src, dst, bias, slope=slope, loops=added if loops else None
    )
    close(out, expected, gat_tolerance(dtype))


def test_two_runs_give_the_same_bits():
    graph = skewed_graph(300, 20_000)
    operands = draw_operands(graph, 4, 16)

    @jax.jit
    def run(graph, *operands):
        f = functools.partial(gat_attention, graph, dropout_rate=0.5, dropout_rng=KEY)
        return f(*operands), gradients(f, operands)

    first = jax.tree.leaves(run(graph, *operands[:4]))
    for _ in range(4):
        for a, b in zip(first, jax.tree.leaves(run(graph, *operands[:4])), strict=True):
            np.testing.assert_array_equal(a, b)


def test_64_bit_offsets_and_indices(x64):
    """Of graphs of 2^31 edges and more; dropout counts by both halves of an edge's number."""
    graph = skewed_graph(30, 600)
    operands = draw_operands(graph, 2, 3)
    longer = {
        name: getattr(graph, name).astype(jnp.int64)
        for name in ("row_offsets", "senders", "transpose_row_offsets", "transpose_receivers")
    }
    longer["transpose_permutation"] = graph.transpose_permutation.astype(jnp.int64)
    wide = dataclasses.replace(graph, **longer)
    ours, theirs = (values_and_gradients("kernel", True, 0.4, g, operands) for g in (graph, wide))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    words = dropout_mask.key_words(KEY)
    both = dropout_mask.dropout_words(words, 2**32 - 2, 4, 1)
    np.testing.assert_array_equal(both[:2], dropout_mask.dropout_words(words, 2**32 - 2, 2, 1))
    counter = [jnp.full((), c, jnp.uint32) for c in (1, 1, 0, 0)]
    assert both[3, 0] == dropout_mask.philox4x32(counter, words)[0]


# Masks and numbers that are not finite.


@functools.partial(jax.jit, static_argnames=("slope", "impl"))
def biased(graph, operands, slope, impl):
    """The values and the gradients, with biases of the edges."""
    f = functools.partial(gat_attention, graph, negative_slope=slope, impl=impl)
    return f(*operands), gradients(f, operands)


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_a_bias_of_minus_infinity_masks(impl, slope):
    graph = Graph.from_edges([0, 1, 2, 3, 0], [0, 0, 0, 1, 1], num_nodes=4)
    v, src, dst, bias, _ = draw_operands(graph, 2, 3)
    masked = bias.at[1].set(-jnp.inf).at[3:].set(-jnp.inf)
    out, (dv, dsrc, ddst, dbias) = biased(graph, (v, src, dst, masked), slope, impl)
    close(out, dense_attention(graph, v, src, dst, masked, slope=slope), 1e-6)
    np.testing.assert_array_equal(out[1:], 0)
    assert np.any(np.asarray(dbias[0]))
    for zero in (dv[3], dsrc[3], ddst[1], dbias[1], dbias[3:], dv[1], dsrc[1]):
        np.testing.assert_array_equal(zero, 0)
    assert all(np.all(np.isfinite(g)) for g in (dv, dsrc, ddst, dbias))


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("place", ["v", "src", "dst", "bias"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_visible(impl, place, value):
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5)
    names = ("v", "src", "dst", "bias")
    operands = dict(zip(names, draw_operands(graph, 1, 3)[:4], strict=True))
    operands[place] = operands[place].at[0].set(value)
    out, gradient = biased(graph, tuple(operands.values()), 0.2, impl)
    assert not np.isfinite(out[0]).any() and np.isfinite(out[1:]).all()
    assert np.isnan(np.asarray(gradient[1][0])).any()


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_large_scores_do_not_overflow(impl):
    graph = skewed_graph(30, 600)
    v, src, dst, bias, _ = draw_operands(graph, 2, 3, scale=1e4)
    out, gradient = biased(graph, (v, src, dst, bias), 0.2, impl)
    close(out, dense_attention(graph, v, src, dst, bias), 2e-3)
    assert all(np.all(np.isfinite(g)) for g in gradient)
