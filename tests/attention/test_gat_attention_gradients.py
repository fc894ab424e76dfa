"""Attention's derivatives of both orders: against the reference, which JAX differentiates, and
against finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, gat_attention
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.ops._aggregation import kernels
from tests.support.oracle import close, edges
from tests.support.oracle_attention import (
    KEY,
    dense_attention,
    draw_operands,
    gat_tolerance,
    gradients,
    values_and_gradients,
)
from tests.support.strategies import examples, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

seeds = st.integers(0, 2**32 - 1)


@st.composite
def graphs_of_one_size(draw, nodes=9, count=30):
    """For one compilation: loops, repeats, isolated nodes; square or taken for two sets."""
    highest = draw(st.sampled_from([1, 4, nodes - 1]))
    ends = st.lists(st.integers(0, highest), min_size=count, max_size=count)
    return Graph.from_edges(np.array(draw(ends)), np.array(draw(ends)), num_nodes=nodes)


@pytest.mark.parametrize(
    ("heads", "width", "loops", "rate"),
    [(3, 4, True, 0.4), (20, 1, False, 0.4), (2, 150, True, 0.0)],
)
@examples(8)
@given(graph=graphs_of_one_size(), seed=seeds)
def test_gradients_equal_those_of_the_reference(heads, width, loops, rate, graph, seed):
    operands = draw_operands(graph, heads, width, seed=seed)
    ours, theirs = (
        values_and_gradients(impl, loops, rate, graph, operands) for impl in ("kernel", "jax")
    )
    # Of sums of `width` products that may cancel.
    jax.tree.map(lambda a, b: close(a, b, max(5e-6, 2e-6 * width**0.5)), ours, theirs)


@pytest.mark.parametrize(("heads", "width"), [(1, 300), (3, 48), (8, 8), (70, 1), (5, 7)], ids=str)
def test_shapes(heads, width):
    """However the features are cut into slices, with all biases."""
    graph = skewed_graph(40, 700, seed=heads)
    operands = draw_operands(graph, heads, width)
    ours, theirs = (
        values_and_gradients(impl, True, 0.0, graph, operands) for impl in ("kernel", "jax")
    )
    jax.tree.map(lambda a, b: close(a, b, 5e-6), ours, theirs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def unbiased(impl, loops, rate, graph, operands):
    """The values and the gradients, without biases."""
    f = functools.partial(
        gat_attention, graph, self_loops=loops, dropout_rate=rate, dropout_rng=KEY, impl=impl
    )
    return f(*operands), gradients(f, operands)


@pytest.mark.parametrize(
    ("heads", "width", "dtype", "loops", "rate"),
    [
        (2, 64, "float32", True, 0.0),
        (2, 64, "bfloat16", False, 0.4),
        (1, 96, "bfloat16", True, 0.0),
        (1, 300, "float32", False, 0.4),
        (3, 64, "float16", True, 0.4),
        (4, 5, "float32", True, 0.4),
        (8, 8, "float16", False, 0.0),
        (1, 1, "float32", True, 0.0),
        (2, 32, "float64", True, 0.4),
    ],
)
def test_long_rows(heads, width, dtype, loops, rate):
    """Without biases, rows of 0 and 1 edges among long ones."""
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(40, 4000, seed=heads)
        senders, receivers = edges(graph)
        kept = (receivers != 5) & ((receivers != 6) | (np.cumsum(receivers == 6) == 1))
        graph = Graph.from_edges(senders[kept], receivers[kept], num_nodes=40)
        assert set(np.asarray(graph.in_degrees)[[5, 6]]) <= {0, 1} and graph.num_edges > 40 * 64
        operands = draw_operands(graph, heads, width, dtype)[:3]
        out, ours = unbiased("kernel", loops, rate, graph, operands)
        wide = tuple(a.astype(accumulation_dtype(dtype)) for a in operands)
        expected, theirs = unbiased("jax", loops, rate, graph, wide)
        close(out, expected, 2 * gat_tolerance(dtype))
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, 20 * gat_tolerance(dtype))


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 20), ("bfloat16", 96), ("float16", 64), ("float64", 12)]
)
def test_a_row_of_40000_edges(dtype, width):
    """Its parts' softmaxes are joined; other rows are short."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        ends = rng.integers(500, size=(2, 44_000))
        ends[1, :40_000] = 3
        ends[0, 42_000:] = 5
        graph = Graph.from_edges(*ends, num_nodes=500)
        assert (
            graph.row_chunks.table[:, 1].max() > 5
            and graph.transpose_row_chunks.table[:, 1].max() > 0
        )
        operands = draw_operands(graph, 2, width, dtype, scale=3.0)
        out, ours = values_and_gradients("kernel", True, 0.0, graph, operands)
        close(out, dense_attention(graph, *operands[:4], loops=operands[4]), gat_tolerance(dtype))
        wide = tuple(a.astype(accumulation_dtype(dtype)) for a in operands)
        theirs = values_and_gradients("jax", True, 0.0, graph, wide)[1]
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, 20 * gat_tolerance(dtype))
        ours, theirs = (
            unbiased(impl, False, 0.0, graph, o[:3])[1]
            for impl, o in (("kernel", operands), ("jax", wide))
        )
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, 20 * gat_tolerance(dtype))


def test_derivatives_equal_finite_differences(x64):
    """To second order, with dropout held by its key."""
    graph = skewed_graph(7, 25)
    operands = draw_operands(graph, 2, 3, "float64")
    f = functools.partial(gat_attention, graph, dropout_rate=0.3, dropout_rng=KEY, self_loops=True)
    check_grads(
        jax.jit(lambda v, src, dst, bias, loops: f(v, src, dst, bias, loop_bias=loops)),
        operands,
        order=2,
        modes=["rev"],
        eps=1e-6,
    )


def test_second_derivatives_equal_those_of_the_reference(x64):
    graph = Graph.from_edges([0, 1, 1, 2, 3, 3, 3], [1, 1, 0, 0, 3, 3, 4], num_nodes=6)
    operands = draw_operands(graph, 2, 3, "float64")[:4]

    def second(impl):
        def loss(*operands):
            return jnp.sum(jnp.sin(gat_attention(graph, *operands, self_loops=True, impl=impl)))

        def norm(*operands):
            return sum(jnp.sum(jnp.sin(g) ** 2) for g in jax.grad(loss, range(4))(*operands))

        return jax.jit(jax.grad(norm, range(4)))(*operands)

    for a, b in zip(second("kernel"), second("jax"), strict=True):
        assert float(jnp.abs(b).max()) > 0
        close(a, b, 1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dot_products_of_nodes(dtype, monkeypatch):
    """Those that gradients take: the CPU's kernel gives what other platforms compute."""
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (50, 3, 40), jnp.float32).astype(dtype) for key in keys)
    found = jax.jit(kernels.node_dots)(a, b)
    batched = jax.vmap(kernels.node_dots, (1, None), 1)(a[:, None], b)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    expected = kernels.node_dots(a, b)
    assert expected.dtype == found.dtype == batched.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(batched[:, 0], expected, rtol=0, atol=1e-4)
