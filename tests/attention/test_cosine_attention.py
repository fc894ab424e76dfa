"""Attention by cosines against dense float64: values, derivatives, transforms."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, cosine_attention
from jaxgnn._core import ffi, platform
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.ops._attention import cosine_rule
from tests.support.oracle import close, draw_array, edges
from tests.support.oracle_attention import (
    check_values_and_gradients,
    dense_pair_attention,
    gradients,
    tolerance,
)
from tests.support.strategies import edge_lists, examples, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


def both_ways(graph):
    """The graph with each edge's reverse; repeated edges stay."""
    senders, receivers = edges(graph)
    other = senders != receivers
    symmetric = Graph.from_edges(
        np.append(senders, receivers[other]),
        np.append(receivers, senders[other]),
        num_nodes=graph.num_receivers,
    )
    assert symmetric.transpose_receivers is symmetric.senders
    return symmetric


@functools.cache
def mixed_graph(symmetric):
    """Rows of degrees 0, 1 and 600 (taken in parts), repeats and loops; senders alike."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(37, size=(2, 1400))
    receivers[:600], senders[700:1200] = 3, 4
    kept = ~np.isin(receivers, (5, 6, 8)) & ~np.isin(senders, (6, 8))
    senders, receivers = np.append(senders[kept], 6), np.append(receivers[kept], 9)
    graph = Graph.from_edges(senders, receivers, num_nodes=37)
    graph = both_ways(graph) if symmetric else graph
    degrees = np.asarray(graph.in_degrees), np.asarray(graph.out_degrees)
    assert degrees[0][8] == degrees[1][8] == 0 and degrees[1][6] == 1
    assert (
        graph.row_chunks.table[:, 1].max() > 0 and graph.transpose_row_chunks.table[:, 1].max() > 0
    )
    assert np.any(np.asarray(graph.senders) == np.asarray(graph.receivers))
    return graph


def dense(graph, x, beta, *, self_loops=False, derive=False):
    """With `derive` also the gradients of x and of beta."""
    x, beta = np.asarray(x, np.float64), np.asarray(beta, np.float64)
    norms = np.maximum(np.sqrt(np.sum(x**2, axis=-1, keepdims=True)), 1e-12)
    units = x / norms

    def cosines(senders, receivers):
        return np.einsum("ehf,ehf->eh", units[senders], units[receivers])

    def pull(senders, receivers, ds):
        dunits = np.zeros_like(x)
        np.add.at(dunits, receivers, (beta * ds)[..., None] * units[senders])
        np.add.at(dunits, senders, (beta * ds)[..., None] * units[receivers])
        along = np.sum(dunits * units, axis=-1, keepdims=True)
        dx = np.where(norms > 1e-12, dunits - along * units, dunits) / norms
        return dx, np.sum(ds * cosines(senders, receivers), axis=0)

    loops = np.zeros((graph.num_receivers, x.shape[1])) if self_loops else None
    out = dense_pair_attention(
        graph,
        lambda *ends: beta * cosines(*ends),
        x,
        loops=loops,
        pull=pull if derive else None,
    )
    if not derive:
        return out
    out, (dx, dbeta, dvalues, *_) = out
    return out, (dx + dvalues, dbeta)


# Aligned heads of one vector and more, several heads in a row, padded heads, and heads that are too
# wide for the fused kernels.
SHAPES = [
    (1, 64, "float32"),
    (3, 7, "float32"),
    (2, 32, "float32"),
    (1, 200, "float32"),
    (1, 300, "float32"),
    (5, 8, "bfloat16"),
    (1, 128, "bfloat16"),
    (2, 41, "float16"),
    (2, 12, "float64"),
]


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize(("heads", "features", "dtype"), SHAPES)
def test_long_rows_and_gradients(heads, features, dtype, symmetric):
    """Rows of no edge, of one, and of some that are taken in parts; with self-loops and without."""
    graph = mixed_graph(symmetric)
    loops = heads != 2
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(0)
        x = draw_array(rng, (graph.num_receivers, heads, features), dtype)
        beta = 3 * draw_array(rng, (heads,), accumulation_dtype(dtype))

        def attention(x, beta):
            return cosine_attention(graph, x, beta, self_loops=loops, impl="kernel")

        expected = functools.partial(dense, graph, self_loops=loops, derive=True)
        check_values_and_gradients(attention, expected, (x, beta), dtype)


@pytest.mark.parametrize("mean_degree", [5, 40])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
def test_short_rows_by_degree(mean_degree, symmetric):
    """Rows in the order of their degrees, several a warp or a warp each."""
    graph = skewed_graph(64, 64 * mean_degree)
    graph = (both_ways(graph) if symmetric else graph).with_row_schedule()
    x = draw_array(np.random.default_rng(1), (64, 1, 24), "float32")

    def attention(graph, x, beta):
        return cosine_attention(graph, x, beta, impl="kernel")

    run = jax.jit(lambda graph, *o: gradients(functools.partial(attention, graph), o))
    beta = jnp.asarray([1.5])
    expected = dense(graph, x, beta, derive=True)
    close(jax.jit(attention)(graph, x, beta), expected[0])
    for a, b in zip(run(graph, x, beta), expected[1], strict=True):
        close(a, b, 1e-5)


jitted = jax.jit(cosine_attention, static_argnames=("self_loops",))


@examples(8)
@given(
    edge_list=edge_lists(square=True, max_nodes=5),
    heads=st.sampled_from([1, 3]),
    loops=st.booleans(),
)
def test_any_graph(edge_list, heads, loops):
    """Empty graphs, isolated nodes, repeated edges, self-loops."""
    graph = edge_list.graph()
    x = draw_array(np.random.default_rng(0), (graph.num_receivers, heads, 4), "float32")
    out = jitted(graph, x, self_loops=loops)
    close(out, dense(graph, x, 1.0, self_loops=loops), tolerance("float32"))


@pytest.mark.few(1)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
def test_derivatives_equal_finite_differences(x64, symmetric):
    """To second order, of rows and of a number for all heads."""
    graph = skewed_graph(7, 25)
    graph = both_ways(graph) if symmetric else graph
    x = draw_array(np.random.default_rng(0), (7, 2, 3), "float64")
    for loops in (False, True):
        f = jax.jit(functools.partial(cosine_attention, graph, self_loops=loops))
        check_grads(f, (x, jnp.asarray(1.5)), order=2, modes=["rev"], eps=1e-6)


def test_a_number_is_of_the_precision_of_the_sums(x64):
    graph = skewed_graph(7, 25)
    x = draw_array(np.random.default_rng(0), (7, 1, 3), "float64")
    close(cosine_attention(graph, x, 1 / 3), dense(graph, x, 1 / 3), 1e-14)


def test_second_derivatives_are_those_of_jax():
    """In float32, which GPUs have kernels of their own for."""
    graph = both_ways(skewed_graph(9, 30))
    x = draw_array(np.random.default_rng(0), (9, 2, 4), "float32")

    def second(impl, x, beta):
        def first(x, beta):
            out = cosine_attention(graph, x, beta, self_loops=True, impl=impl)
            return jnp.sum(jnp.sin(out))

        def norm(*operands):
            return sum(jnp.sum(g**2) for g in jax.grad(first, (0, 1))(*operands))

        return jax.grad(norm, (0, 1))(x, beta)

    found, expected = (
        jax.jit(functools.partial(second, impl))(x, jnp.asarray([0.5, 2.0]))
        for impl in (None, "jax")
    )
    for a, b in zip(found, expected, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_large_scores_and_rows_of_zeros(impl):
    """A beta of 10^4 does not overflow; a norm at its bound is a constant."""
    graph = both_ways(skewed_graph(37, 200))
    x = draw_array(np.random.default_rng(0), (37, 2, 8), "float32")
    x = x.at[3].set(0).at[9].multiply(1e-14)

    @jax.jit
    def run(x, beta):
        f = functools.partial(cosine_attention, graph, impl=impl)
        return f(x, beta), gradients(f, (x, beta))

    out, (dx, dbeta) = run(x, jnp.asarray([1e4, -1e4]))
    close(out, dense(graph, x, [1e4, -1e4]), 5e-3)
    assert np.all(np.isfinite(dx)) and np.all(np.isfinite(dbeta))
    out, (dx, dbeta) = run(x, jnp.asarray([1.0, 0.5]))
    expected, (dx_expected, dbeta_expected) = dense(graph, x, [1.0, 0.5], derive=True)
    close(out, expected)
    close(dbeta, dbeta_expected, 1e-5)
    for own, theirs in zip(dx, dx_expected, strict=True):  # of very different sizes
        close(own / np.abs(theirs).max(), theirs / np.abs(theirs).max(), 1e-4)


def test_vmap_is_one_call_on_more_heads():
    graph = skewed_graph(12, 60)
    rng = np.random.default_rng(0)
    x, beta = draw_array(rng, (3, 12, 2, 4), "float32"), jnp.asarray([0.5, 2.0])

    def f(impl, x, beta):
        return cosine_attention(graph, x, beta, self_loops=True, impl=impl)

    mapped = jax.jit(jax.vmap(functools.partial(f, "kernel"), (0, None)))
    assert mapped.lower(x, beta).as_text().count("@jaxgnn_") == 1
    looped = jax.jit(lambda x, beta: jnp.stack([f("jax", rows, beta) for rows in x]))
    close(mapped(x, beta), looped(x, beta), 4e-6)
    ours, theirs = (jax.jit(lambda *o, f=f: gradients(f, o))(x, beta) for f in (mapped, looped))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
def test_the_same_bits_and_nothing_of_edges_times_heads(symmetric):
    graph = skewed_graph(300, 20_000)
    graph = both_ways(graph) if symmetric else graph
    x = draw_array(np.random.default_rng(0), (300, 3, 8), "float32")

    @jax.jit
    def run(graph, *operands):
        f = functools.partial(cosine_attention, graph)
        return f(*operands), gradients(f, operands)

    operands = x, jnp.ones(3)
    first = jax.tree.leaves(run(graph, *operands))
    for a, b in zip(first, jax.tree.leaves(run(graph, *operands)), strict=True):
        np.testing.assert_array_equal(a, b)
    text = run.lower(graph, *operands).as_text()
    number = graph.num_edges
    assert f"{number}x" not in text.replace(f"tensor<{number}xi32>", "")
    assert str(3 * number) not in text


def test_one_walk_or_two():
    """A graph that is not said to be symmetric is walked by either end: the same derivatives."""
    graph = mixed_graph(True)
    assert graph.symmetric
    copied = dataclasses.replace(graph, symmetric=False)
    x = draw_array(np.random.default_rng(0), (37, 2, 16), "float32")

    @jax.jit
    def run(graph, *operands):
        return gradients(functools.partial(cosine_attention, graph, self_loops=True), operands)

    beta = jnp.asarray([1.0, -2.0])
    for a, b in zip(run(graph, x, beta), run(copied, x, beta), strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_what_is_said_of_a_graph_survives_a_copy(symmetric, monkeypatch):
    """As a checkpoint or `device_put` does, which give each array a buffer of its own."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    monkeypatch.setitem(ffi.targets, "cuda", set(cosine_rule.TARGETS))
    graph = jax.tree.map(jnp.copy, mixed_graph(symmetric))
    run = jax.jit(jax.grad(lambda x, graph: jnp.sum(cosine_attention(graph, x) ** 2)))
    lowered = run.trace(jnp.ones((37, 2, 16)), graph).lower(lowering_platforms=("cuda",))
    assert re.findall(r"symmetric = (\d)", lowered.as_text()) == [str(int(symmetric))]


def test_bad_arguments():
    graph, x = Graph.from_edges([0, 1], [2, 2], num_nodes=3), jnp.ones((3, 2, 4))
    rectangular = Graph.from_edges([0, 1], [2, 2], num_senders=2, num_receivers=3)
    f = functools.partial(cosine_attention, graph)
    for call, error, message in (
        (lambda: cosine_attention(x, x), TypeError, "graph: expected a jaxgnn.Graph"),
        (
            lambda: cosine_attention(rectangular, x),
            ValueError,
            "graph: expected as many senders as receivers, got 2 and 3",
        ),
        (lambda: f(x[1:]), ValueError, r"x: .* \(3, ...\).*got \(2, 2, 4\)"),
        (lambda: f(x[:, 0]), ValueError, r"x: .* \(3, heads, features\), got \(3, 4\)"),
        (lambda: f(x.astype(int)), TypeError, "x: expected float32, .* got int32"),
        (lambda: f(x, jnp.ones(3)), ValueError, r"beta: .*number .*\(2,\), got \(3,\)"),
        (lambda: f(x, "1"), TypeError, "beta: expected a number, got str"),
        (lambda: f(x, np.nan), ValueError, "beta: expected a finite number, got nan"),
        (lambda: f(x, self_loops="keep"), TypeError, "self_loops: expected True or False"),
        (
            lambda: f(x, impl="cuda"),
            ValueError,
            "impl: expected one of None, 'kernel', 'jax', 'rows'",
        ),
        (lambda: f(x, impl="tiles"), ValueError, "impl: 'tiles' needs a graph with tiles"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.gpu
@pytest.mark.parametrize("place", range(12))
def test_operands_that_do_not_fit_are_an_error(place):
    """Below the public operation: the target itself reads nothing out of bounds."""
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    x = jnp.ones((3, 8))
    structure = [graph.row_offsets, graph.senders, graph.row_chunks.table, jnp.zeros(3, jnp.int32)]
    operands = [*structure, *structure, x, jnp.ones(2), jnp.ones((3, 8)), x]
    wrong = operands[place]
    operands[place] = wrong.astype(jnp.float32 if wrong.dtype != jnp.float32 else jnp.int32)
    results = [((3, 8), jnp.float32), ((3, 2), jnp.float32), ((3, 8), jnp.float32)]
    results.append(((2 * graph.row_chunks.table.shape[0], 16), jnp.float32))
    with pytest.raises(Exception, match="jaxgnn_cosine_attention_gradients: "):
        attributes = {"heads": 2, "self_loops": 1, "symmetric": 0, "tensor_cores": 0}
        attributes |= {"chunk_length": 8}
        out = ffi.call(cosine_rule.TARGETS[1], operands, results, **attributes)
        jax.block_until_ready(out)
