"""Aggregation of sparse rows against dense float64, and its derivatives of both orders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import CBSR, Graph, config, maxk, maxk_spmm
from tests.support.oracle import assert_close, brute_force_spmm, draw_array, edges
from tests.support.strategies import dense_adjacency, examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")
REDUCE = ("sum", "mean")
SHAPES = [(1, 1), (3, 2), (16, 16), (33, 5), (64, 8), (100, 31), (256, 32), (257, 9), (300, 40)]
seeds = st.integers(0, 2**32 - 1)


# One compilation a shape, where a call that is not jitted compiles each of its parts.
jitted_maxk = jax.jit(maxk, static_argnames=("k", "impl"))
jitted_maxk_spmm = jax.jit(maxk_spmm, static_argnames=("reduce", "transpose", "impl"))


def rows_of(rng, rows, width, k, dtype) -> CBSR:
    return jitted_maxk(draw_array(rng, (rows, width), dtype), k)


def dense_rows(cbsr) -> np.ndarray:
    dense = np.zeros(cbsr.shape, cbsr.dtype)
    np.put_along_axis(dense, np.asarray(cbsr.indices, int), np.asarray(cbsr.values), 1)
    return dense


def assert_aggregates(graph, cbsr, weights, reduce, transpose, impl):
    out = jitted_maxk_spmm(graph, cbsr, weights, reduce=reduce, transpose=transpose, impl=impl)
    assert out.dtype == cbsr.dtype
    assert_close(out, *brute_force_spmm(graph, dense_rows(cbsr), weights, reduce, transpose))


@given(
    graph=graphs(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    weighted=st.booleans(),
    reduce=st.sampled_from(REDUCE),
    transpose=st.booleans(),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=seeds,
)
def test_equals_brute_force(graph, shape, dtype, weighted, reduce, transpose, impl, seed):
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(seed)
        rows = graph.num_receivers if transpose else graph.num_senders
        weights = draw_array(rng, (graph.num_edges,), "float32") if weighted else None
        cbsr = rows_of(rng, rows, *shape, dtype)
        assert_aggregates(graph, cbsr, weights, reduce, transpose, impl)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("nodes", "mean_degree"), [(2000, 3), (60, 200)])
def test_long_rows_are_split(dtype, nodes, mean_degree):
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(nodes, nodes * mean_degree, seed=mean_degree)
        assert graph.row_chunks.table.max() > 0 and graph.transpose_row_chunks.table.max() > 0
        rng = np.random.default_rng(0)
        weights = draw_array(rng, (graph.num_edges,), dtype)
        cbsr = rows_of(rng, nodes, 64, 9, dtype)
        assert_aggregates(graph, cbsr, None, "sum", False, "kernel")
        assert_aggregates(graph, cbsr, weights, "mean", False, "kernel")
        assert_aggregates(graph, cbsr, weights, "sum", True, "kernel")


@pytest.mark.parametrize("shape", [(1024, 32), (4096, 1), (4096, 300), (4096, 4096)])
def test_wide_rows(shape):
    graph = skewed_graph(20, 90)
    rng = np.random.default_rng(1)
    weights = draw_array(rng, (90,), "float32")
    assert_aggregates(graph, rows_of(rng, 20, *shape, "float32"), weights, "mean", False, "kernel")


def loss_of(out, direction):
    return jnp.sum(direction * jnp.sin(out))


def dense_gradients(graph, cbsr, weights, direction, reduce, transpose):
    """The derivatives of `loss_of` in float64, over the dense matrices."""
    adjacency, count = dense_adjacency(graph, weights), dense_adjacency(graph)
    senders, receivers = edges(graph)
    if transpose:
        adjacency, count = adjacency.T, count.T
        senders, receivers = receivers, senders
    degree = np.maximum(count.sum(axis=1, keepdims=True), 1) if reduce == "mean" else 1
    rows, direction = dense_rows(cbsr), np.asarray(direction)
    of_sums = direction * np.cos(adjacency @ rows / degree) / degree
    of_values = np.take_along_axis(adjacency.T @ of_sums, np.asarray(cbsr.indices, int), axis=1)
    return of_values, (of_sums[receivers] * rows[senders]).sum(axis=1)


@functools.partial(jax.jit, static_argnames=("reduce", "transpose"))
def gradients(graph, cbsr, weights, direction, reduce, transpose):
    def loss(values, weights, impl):
        rows = CBSR(values, cbsr.indices, cbsr.width)
        out = maxk_spmm(graph, rows, weights, reduce=reduce, transpose=transpose, impl=impl)
        return loss_of(out, direction)

    gradient = jax.grad(loss, (0, 1))
    return [gradient(cbsr.values, weights, impl) for impl in ("kernel", "jax")]


@examples(15)
@given(
    graph=graphs(max_edges=25),
    shape=st.sampled_from([(3, 2), (40, 9), (300, 4)]),
    reduce=st.sampled_from(REDUCE),
    transpose=st.booleans(),
    seed=seeds,
)
def test_gradients_equal_those_of_the_dense_product(graph, shape, reduce, transpose, seed):
    with jax.enable_x64():
        rng = np.random.default_rng(seed)
        inputs, outputs = graph.num_senders, graph.num_receivers
        if transpose:
            inputs, outputs = outputs, inputs
        cbsr = rows_of(rng, inputs, *shape, "float64")
        weights = draw_array(rng, (graph.num_edges,), "float64")
        direction = draw_array(rng, (outputs, shape[0]), "float64")
        expected = dense_gradients(graph, cbsr, weights, direction, reduce, transpose)
        for ours in gradients(graph, cbsr, weights, direction, reduce, transpose):
            for a, b in zip(ours, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_the_input_in_every_dtype(dtype, weighted):
    graph = skewed_graph(30, 400)
    rng = np.random.default_rng(3)
    x = draw_array(rng, (30, 80), dtype)
    weights = draw_array(rng, (400,), dtype) if weighted else None
    direction = draw_array(rng, (30, 80), dtype)
    kept = maxk(x, 11)

    def loss(x, impl):
        out = maxk_spmm(graph, maxk(x, 11, impl=impl), weights, impl=impl)
        return jnp.sum((direction * out).astype(jnp.float32))

    gradient = jax.grad(loss)(x, "kernel")
    assert gradient.dtype == x.dtype
    expected, tolerance = brute_force_spmm(graph, direction, weights, "sum", True)
    mask = np.zeros((30, 80))
    np.put_along_axis(mask, np.asarray(kept.indices, int), 1, axis=1)
    assert_close(gradient, expected * mask, tolerance)
    np.testing.assert_array_equal(np.asarray(gradient, float)[mask == 0], 0)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_equal_finite_differences(reduce, transpose, weighted):
    with jax.enable_x64():
        graph = skewed_graph(9, 40)
        rng = np.random.default_rng(4)
        cbsr = rows_of(rng, 9, 7, 3, "float64")
        weights = draw_array(rng, (40,), "float64")

        def f(values, weights):
            rows = CBSR(values, cbsr.indices, 7)
            w = weights if weighted else None
            return maxk_spmm(graph, rows, w, reduce=reduce, transpose=transpose, impl="kernel")

        check_grads(f, (cbsr.values, weights), order=2, modes=["rev"], eps=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCE)
def test_second_and_third_derivatives_equal_those_of_the_reference(reduce, weighted):
    with jax.enable_x64():
        graph = Graph.from_edges([0, 1, 1, 2, 3, 3, 3], [1, 1, 0, 0, 3, 3, 4], num_nodes=5)
        rng = np.random.default_rng(5)
        x, weights = draw_array(rng, (5, 6), "float64"), draw_array(rng, (7,), "float64")

        def norm_of_gradient(f):
            def norm(*operands):
                return sum(jnp.sum(jnp.sin(g)) for g in jax.grad(f, (0, 1))(*operands))

            return norm

        def derivative(impl):
            def loss(x, weights):
                w = weights if weighted else None
                rows = maxk(x, 2, impl=impl)
                return jnp.sum(jnp.sin(maxk_spmm(graph, rows, w, reduce=reduce, impl=impl)))

            return jax.jit(jax.grad(norm_of_gradient(norm_of_gradient(loss)), (0, 1)))(x, weights)

        for a, b in zip(derivative("kernel"), derivative("jax"), strict=True):
            assert float(jnp.abs(b).max()) > 0 or not weighted
            np.testing.assert_allclose(a, b, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_runs_give_the_same_bits(dtype):
    graph = skewed_graph(500, 40_000)
    rng = np.random.default_rng(6)
    x, weights = draw_array(rng, (500, 96), dtype), draw_array(rng, (40_000,), "float32")

    @jax.jit
    def value_and_gradients(graph, x, weights):
        def loss(x, weights):
            return jnp.sum(jnp.sin(maxk_spmm(graph, maxk(x, 12), weights)).astype(jnp.float32))

        return jax.value_and_grad(loss, (0, 1))(x, weights)

    with config.use(deterministic=True):
        first = jax.tree.leaves(value_and_gradients(graph, x, weights))
        for _ in range(5):
            again = jax.tree.leaves(value_and_gradients(graph, x, weights))
            for a, b in zip(first, again, strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_nan_and_infinity_stay_visible(impl):
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5)
    x = jnp.asarray([[jnp.nan, 0.0], [1.0, 0.0], [jnp.inf, 1.0], [2.0, 3.0], [0.0, 0.0]])
    out = np.asarray(maxk_spmm(graph, maxk(x, 1, impl=impl), impl=impl))
    assert np.isnan(out[0, 0]) and out[0, 1] == 0
    np.testing.assert_array_equal(out[1], [np.inf, 3])
    np.testing.assert_array_equal(out[2:], 0)


def test_residuals_are_the_indices_and_with_weights_the_values():
    graph = skewed_graph(12, 60)
    x, weights = jnp.ones((12, 40)), jnp.ones(60)
    cbsr = maxk(x, 5)

    def f(values, weights):
        return maxk_spmm(graph, CBSR(values, cbsr.indices, 40), weights, impl="kernel")

    def kept(values, weights):
        _, pullback = jax.vjp(f, values, weights)
        shapes = [leaf.shape for leaf in jax.tree.leaves(pullback)]
        assert (12, 40) not in shapes  # nothing of the dense rows' size
        return [s for s in shapes if s == (12, 5)]

    assert len(kept(cbsr.values, weights)) == 2
    assert len(kept(cbsr.values, None)) == 1


GRAPH = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
ROWS = maxk(jnp.ones((3, 4)), 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: maxk_spmm(None, ROWS), TypeError, "graph: expected a jaxgnn.Graph, got NoneType"),
        (lambda: maxk_spmm(GRAPH, ROWS.values), TypeError, "cbsr: expected a jaxgnn.CBSR, got"),
        (
            lambda: maxk_spmm(GRAPH, maxk(jnp.ones((2, 4)), 2)),
            ValueError,
            r"cbsr: expected the shape \(3, k\), a row for each sender, got \(2, 2\)",
        ),
        (lambda: maxk_spmm(GRAPH, maxk(jnp.ones((1, 3, 4)), 2)), ValueError, "cbsr: expected the"),
        (lambda: maxk_spmm(GRAPH, ROWS.astype(int)), TypeError, "cbsr.values: expected float32"),
        (
            lambda: maxk_spmm(GRAPH, CBSR(ROWS.values, ROWS.indices.astype(int), 4)),
            TypeError,
            "cbsr.indices: expected uint8 for the width 4, got int32",
        ),
        (lambda: maxk_spmm(GRAPH, ROWS, jnp.ones(3)), ValueError, r"weights: expected a shape of"),
        (lambda: maxk_spmm(GRAPH, ROWS, jnp.ones((2, 2))), ValueError, "weights: expected a shape"),
        (lambda: maxk_spmm(GRAPH, ROWS, jnp.ones(2, int)), TypeError, "weights: expected float32"),
        (lambda: maxk_spmm(GRAPH, ROWS, reduce="max"), ValueError, "reduce: .* got 'max'"),
        (lambda: maxk_spmm(GRAPH, ROWS, transpose=2), TypeError, "transpose: expected .* got 2"),
        (lambda: maxk_spmm(GRAPH, ROWS, impl="cuda"), ValueError, "impl: expected None, 'kernel'"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


BEYOND = CBSR(ROWS.values, ROWS.indices.at[:, 1].set(4), 4)


@pytest.mark.gpu
def test_an_index_beyond_the_width_gives_nan():
    assert jnp.isnan(BEYOND.to_dense()).any(axis=1).all()
    out, vjp = jax.vjp(
        lambda values: maxk_spmm(GRAPH, CBSR(values, BEYOND.indices, 4)), BEYOND.values
    )
    assert jnp.isnan(out).any()
    assert jnp.isnan(vjp(jnp.ones_like(out))[0]).all()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's kernel checks indices")
def test_the_cpu_kernel_refuses_an_index_beyond_the_width():
    with pytest.raises(Exception, match="jaxgnn_maxk_spmm: an index lies beyond the width"):
        jax.block_until_ready(maxk_spmm(GRAPH, BEYOND, impl="kernel"))


@pytest.mark.parametrize("impl", [None, "jax"])
def test_gradients_of_float16_means_are_not_rounded_before_the_sum(impl):
    graph = Graph.from_edges(
        np.repeat(np.arange(50), 80), np.zeros(4000, int), num_senders=50, num_receivers=1
    )
    x, weights = jnp.ones((50, 8), jnp.float16), jnp.ones(4000)
    small = float(np.float16(1e-4))

    def total(x, weights):
        out = maxk_spmm(graph, maxk(x, 4), weights, reduce="mean", impl=impl)
        return jnp.sum((out * jnp.float16(1e-4)).astype(jnp.float32))

    for w in (weights, None):
        dx = jax.grad(total)(x, w)[:, :4]
        np.testing.assert_allclose(np.asarray(dx, np.float64), small / 50, rtol=0.02)
    dw = jax.grad(total, 1)(x, weights)
    np.testing.assert_allclose(dw, np.full(4000, 4 * small / 4000, np.float32), rtol=1e-5)
