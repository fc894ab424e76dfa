"""Aggregation against dense float64, its derivatives against JAX's own, and its errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, spmm
from jaxgnn.graph._build import row_chunks
from tests.support.oracle import assert_close, brute_force_spmm, draw_array
from tests.support.strategies import dense_adjacency, examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16")
REDUCE = ("sum", "mean", "max", "min")
seeds = st.integers(0, 2**32 - 1)

# One compilation a shape, where a call that is not jitted compiles each of its parts.
jitted_spmm = jax.jit(spmm, static_argnames=("reduce", "transpose", "impl"))


@given(
    graph=graphs(),
    width=st.integers(1, 300),
    heads=st.sampled_from([None, (), (1,), (2,), (3,), (2, 2)]),
    dtype=st.sampled_from(DTYPES),
    reduce=st.sampled_from(REDUCE),
    transpose=st.booleans(),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=seeds,
)
def test_equals_brute_force(graph, width, heads, dtype, reduce, transpose, impl, seed):
    rng = np.random.default_rng(seed)
    rows = graph.num_receivers if transpose else graph.num_senders
    x = draw_array(rng, (rows, *(heads or ()), width), dtype)
    weights = None if heads is None else draw_array(rng, (graph.num_edges, *heads), "float32")
    out = jitted_spmm(graph, x, weights, reduce=reduce, transpose=transpose, impl=impl)
    assert out.dtype == x.dtype
    assert_close(out, *brute_force_spmm(graph, x, weights, reduce, transpose))


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("degree", [0, 4, 20])
def test_narrow_rows(dtype, degree):
    """Rows of up to 12 vectors of 16 bytes: on a GPU teams of 2 to 16 lanes, which share what is
    longer than the mean and than 32 edges."""
    with jax.enable_x64(dtype == "float64"):
        lengths = np.full(400, degree)
        lengths[::17] = np.resize([0, 1, 31, 32, 33, 40, 64, 100, 255, 256, 257, 600], 24)
        receivers, nodes = np.repeat(np.arange(400), lengths), 400
        graph = Graph.from_edges(
            (7 * np.arange(receivers.size)) % nodes, receivers, num_nodes=nodes
        )
        rng = np.random.default_rng(0)
        vector = 16 // jnp.dtype(dtype).itemsize
        for vectors in (1, 2, 3, 4, 7, 8, 12):
            x = draw_array(rng, (nodes, vectors * vector), dtype)
            assert_close(
                jitted_spmm(graph, x, reduce="mean"),
                *brute_force_spmm(graph, x, None, "mean", False),
            )
        weights = draw_array(rng, (graph.num_edges, 2), dtype)
        for vectors in (1, 2, 5):
            x = draw_array(rng, (nodes, 2, vectors * vector), dtype)
            assert_close(
                jitted_spmm(graph, x, weights), *brute_force_spmm(graph, x, weights, "sum", False)
            )


def test_many_narrow_rows():
    """So many rows of so few edges that on a GPU a team has several."""
    nodes, rng = 270_000, np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(nodes, size=(2, 3 * nodes // 2)), num_nodes=nodes)
    x = draw_array(rng, (nodes, 16), "float32")
    ours, reference = (jitted_spmm(graph, x, impl=impl) for impl in ("kernel", "jax"))
    np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize(("nodes", "mean_degree"), [(2000, 3), (400, 30), (60, 300)])
def test_long_rows_are_split(reduce, dtype, nodes, mean_degree):
    """On each side of the mean degrees at which the CUDA kernels change their mapping."""
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(nodes, nodes * mean_degree, seed=mean_degree)
        assert graph.row_chunks.table.max() > 0 and graph.transpose_row_chunks.table.max() > 0
        rng = np.random.default_rng(0)
        for heads, width, transpose in [((), 64, False), ((2,), 16, True), (None, 7, False)]:
            x = draw_array(rng, (nodes, *(heads or ()), width), dtype)
            weights = None if heads is None else draw_array(rng, (graph.num_edges, *heads), dtype)
            out = jitted_spmm(graph, x, weights, reduce=reduce, transpose=transpose)
            assert_close(out, *brute_force_spmm(graph, x, weights, reduce, transpose))


@functools.partial(jax.jit, static_argnames="reduce")
def gradients(graph, x, weights, direction, reduce):
    def loss(x, weights, impl):
        out = spmm(graph, x, weights, reduce=reduce, impl=impl)
        return jnp.sum(direction * jnp.sin(out))

    gradient = jax.grad(loss, (0,) if weights is None else (0, 1))
    return gradient(x, weights, "kernel"), gradient(x, weights, "jax")


@examples(15)
@given(graph=graphs(max_edges=25), heads=st.sampled_from([None, (), (2,)]), seed=seeds)
@pytest.mark.parametrize("reduce", REDUCE)
def test_gradients_equal_those_of_the_reference(reduce, graph, heads, seed):
    rng = np.random.default_rng(seed)
    # Small integers: exact ties, on which the gradient is shared.
    x = rng.integers(-2, 3, (graph.num_senders, *(heads or ()), 3)).astype(np.float32)
    weights = None
    if heads is not None:
        weights = rng.integers(-1, 3, (graph.num_edges, *heads)).astype(np.float32)
    direction = draw_array(rng, (graph.num_receivers, *x.shape[1:]), "float32")
    ours, reference = gradients(graph, x, weights, direction, reduce)
    for a, b in zip(ours, reference, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCE)
def test_second_derivatives_equal_those_of_the_reference(reduce, weighted):
    with jax.enable_x64():
        graph = Graph.from_edges([0, 1, 1, 2, 3, 3, 3], [1, 1, 0, 0, 3, 3, 4], num_nodes=5)
        rng = np.random.default_rng(1)
        x = draw_array(rng, (5, 2, 3), "float64")
        weights = draw_array(rng, (7, 2), "float64") if weighted else jnp.ones((7, 2))

        def gradient_norm(impl):
            def loss(x, weights):
                w = weights if weighted else None
                return jnp.sum(jnp.sin(spmm(graph, x, w, reduce=reduce, impl=impl)))

            def norm(x, weights):
                gradients = jax.grad(loss, (0, 1))(x, weights)
                return sum(jnp.sum(jnp.sin(g) ** 2) for g in gradients)

            return jax.jit(jax.grad(norm, (0, 1)))(x, weights)

        for a, b in zip(gradient_norm("kernel"), gradient_norm("jax"), strict=True):
            assert float(jnp.abs(b).max()) > 0 or not weighted
            np.testing.assert_allclose(a, b, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("reduce", REDUCE)
def test_derivatives_equal_finite_differences(reduce, transpose):
    with jax.enable_x64():
        graph = skewed_graph(9, 40)
        rng = np.random.default_rng(2)
        x, weights = draw_array(rng, (9, 4), "float64"), draw_array(rng, (40,), "float64")

        def f(x, weights):
            return spmm(graph, x, weights, reduce=reduce, transpose=transpose)

        check_grads(f, (x, weights), order=2, modes=["rev"], eps=1e-6)


@pytest.mark.parametrize("width", [16, 96])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_runs_give_the_same_bits(dtype, width):
    graph = skewed_graph(500, 40_000)
    rng = np.random.default_rng(3)
    x = draw_array(rng, (500, width), dtype)
    weights = draw_array(rng, (graph.num_edges,), "float32")

    @jax.jit
    def value_and_gradients(graph, x, weights):
        def loss(x, weights):
            return jnp.sum(jnp.sin(spmm(graph, x, weights)).astype(jnp.float32))

        return jax.value_and_grad(loss, (0, 1))(x, weights)

    first = jax.tree.leaves(value_and_gradients(graph, x, weights))
    for _ in range(5):
        again = jax.tree.leaves(value_and_gradients(graph, x, weights))
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_nan_and_infinity_stay_visible(reduce, impl):
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5)
    x = jnp.asarray([[jnp.nan], [1.0], [jnp.inf], [2.0], [0.0]])
    out = np.asarray(spmm(graph, x, reduce=reduce, impl=impl))[:, 0]
    assert np.isnan(out[0])
    assert out[1] == (2.0 if reduce == "min" else np.inf)
    np.testing.assert_array_equal(out[2:], 0)


def test_float16_sums_do_not_overflow_in_the_mean():
    graph = Graph.from_edges(np.arange(1000), np.zeros(1000, int), num_nodes=1000)
    x = jnp.full((1000, 8), 300.0, jnp.float16)
    np.testing.assert_array_equal(np.asarray(spmm(graph, x, reduce="mean"))[0], 300.0)


@pytest.mark.parametrize("impl", [None, "jax"])
def test_gradients_of_float16_means_are_not_rounded_before_the_sum(impl):
    """A thousandth of 1e-4 is none of float16's numbers but 0, or is one of four bits."""
    graph = Graph.from_edges(
        np.repeat(np.arange(50), 80), np.zeros(4000, int), num_senders=50, num_receivers=1
    )
    x, weights = jnp.ones((50, 8), jnp.float16), jnp.ones(4000)

    def total(x, weights):
        out = spmm(graph, x, weights, reduce="mean", impl=impl)
        return jnp.sum((out * jnp.float16(1e-4)).astype(jnp.float32))

    dx, dw = jax.grad(total, (0, 1))(x, weights)
    small = float(np.float16(1e-4))
    np.testing.assert_allclose(np.asarray(dx, np.float64), small / 50, rtol=0.02)
    np.testing.assert_allclose(dw, np.full(4000, 8 * small / 4000, np.float32), rtol=1e-5)
    dx = jax.grad(lambda x: jnp.sum(spmm(graph, x, reduce="mean", impl=impl) * 1e-4))(x)
    np.testing.assert_allclose(np.asarray(dx, np.float64), small / 50, rtol=0.02)


def test_small_terms_are_not_lost_in_bfloat16():
    graph = Graph.from_edges(np.arange(4096), np.zeros(4096, int), num_nodes=4096)
    out = spmm(graph, jnp.ones((4096, 1), jnp.bfloat16))
    assert float(out[0, 0]) == 4096.0


def test_a_vector_is_one_feature():
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    np.testing.assert_array_equal(spmm(graph, jnp.asarray([1.0, 2.0, 4.0])), [0, 0, 3])


def test_is_the_dense_product():
    graph = skewed_graph(40, 300)
    rng = np.random.default_rng(4)
    x, weights = rng.standard_normal((40, 5)), rng.standard_normal(300)
    out = spmm(graph, jnp.asarray(x, jnp.float32), jnp.asarray(weights, jnp.float32))
    np.testing.assert_allclose(out, dense_adjacency(graph, weights) @ x, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda g, x: spmm(None, x), TypeError, "graph: expected a jaxgnn.Graph, got NoneType"),
        (lambda g, x: spmm(g, x[:2]), ValueError, r"x: expected the shape \(3, ...\).*\(2, 4\)"),
        (lambda g, x: spmm(g, x.astype(jnp.int32)), TypeError, "x: expected float32.*int32"),
        (lambda g, x: spmm(g, "abc"), TypeError, "x: expected an array, got str"),
        (lambda g, x: spmm(g, x, x), ValueError, r"weights: expected a shape of \(2,\), got"),
        (lambda g, x: spmm(g, x, jnp.ones((2, 4))), ValueError, "weights: expected a shape of"),
        (lambda g, x: spmm(g, x, reduce="prod"), ValueError, "reduce: expected one of 'sum'"),
        (lambda g, x: spmm(g, x, impl="cuda"), ValueError, "impl: expected one of None, 'kernel'"),
        (lambda g, x: spmm(g, x, impl="jax", reduce=3), ValueError, "reduce: .* got 3"),
        (lambda g, x: spmm(g, x, transpose="no"), TypeError, "transpose: .* True or .* got 'no'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    with pytest.raises(error, match=message):
        arguments(graph, jnp.ones((3, 4)))


@pytest.mark.parametrize("length", [16, 300, 4096])
def test_chunks_of_any_length(length):
    """The length travels with the table: no row is left unwritten."""
    graph = skewed_graph(30, 900)
    chunks = row_chunks.chunk_rows(np.asarray(graph.row_offsets), length)
    other = dataclasses.replace(graph, row_chunks=jax.tree.map(jnp.asarray, chunks))
    for width in (8, 16, 32, 64):  # on a GPU chunks of teams of 2 to 16 lanes
        x = jnp.asarray(np.random.default_rng(0).standard_normal((30, width)), jnp.float32)
        np.testing.assert_allclose(jax.jit(spmm)(other, x), spmm(graph, x), rtol=1e-4, atol=1e-4)
