"""Dot products on edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, sddmm
from tests.support.oracle import assert_close, draw_array, edges
from tests.support.strategies import graphs, skewed_graph

pytestmark = pytest.mark.usefixtures("strict")


def brute_force(graph, a, b):
    senders, receivers = edges(graph)
    unit = float(jnp.finfo(a.dtype).eps)
    products = np.asarray(a, np.float64)[receivers] * np.asarray(b, np.float64)[senders]
    out = products.sum(-1)
    error = unit * np.abs(out) + 1.2e-7 * (a.shape[-1] + 2) * np.abs(products).sum(-1) + 1e-7
    return out, error


@given(
    graph=graphs(),
    width=st.integers(1, 300),
    heads=st.sampled_from([(), (1,), (3,), (2, 2)]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_brute_force(graph, width, heads, dtype, impl, seed):
    rng = np.random.default_rng(seed)
    a = draw_array(rng, (graph.num_receivers, *heads, width), dtype)
    b = draw_array(rng, (graph.num_senders, *heads, width), dtype)
    # Jitted, one compilation a shape; not, each of its parts is compiled.
    out = jax.jit(sddmm, static_argnames="impl")(graph, a, b, impl=impl)
    assert out.dtype == a.dtype
    assert_close(out, *brute_force(graph, a, b))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("width", [7, 64, 256])
def test_long_rows(dtype, width):
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(60, 3_000)
        rng = np.random.default_rng(0)
        a, b = draw_array(rng, (60, 2, width), dtype), draw_array(rng, (60, 2, width), dtype)
        assert_close(sddmm(graph, a, b), *brute_force(graph, a, b))


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 32), ("float32", 20), ("bfloat16", 64), ("float64", 12)]
)
def test_rows_of_one_slice(dtype, width):
    """Of 65 to 128 bytes, read by many edges: on a GPU the kernel of slices, which has one."""
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(4)
        shares = np.concatenate([[2_500, 0, 1, 33, 32], np.full(55, 17)])
        receivers = np.repeat(np.arange(60), shares)
        senders = rng.integers(0, 40, receivers.size)  # some edges are repeated
        graph = Graph.from_edges(senders, receivers, num_senders=40, num_receivers=60)
        a, b = (draw_array(rng, (rows, width), dtype) for rows in (60, 40))
        assert_close(sddmm(graph, a, b), *brute_force(graph, a, b))


@pytest.mark.few(1)
@pytest.mark.parametrize(("dtype", "width"), [("float32", 132), ("bfloat16", 264), ("float32", 64)])
def test_matrices_beyond_the_cache(dtype, width):
    """Of more than 32 MB the CUDA kernel takes slices of 128 bytes, the last one not whole."""
    rng = np.random.default_rng(3)
    senders, receivers = 2**25 // 256 + 10_000, 60
    shares = np.concatenate([[2_500, 0, 1, 33], np.full(receivers - 4, 17)])
    graph = Graph.from_edges(
        rng.integers(0, senders, shares.sum()),
        np.repeat(np.arange(receivers), shares),
        num_senders=senders,
        num_receivers=receivers,
    )
    a, b = (draw_array(rng, (rows, width), dtype) for rows in (receivers, senders))
    assert_close(sddmm(graph, a, b), *brute_force(graph, a, b))


def test_derivatives_of_first_and_second_order():
    with jax.enable_x64():
        graph = skewed_graph(7, 30)
        rng = np.random.default_rng(1)
        a, b = draw_array(rng, (7, 2, 3), "float64"), draw_array(rng, (7, 2, 3), "float64")
        check_grads(lambda a, b: sddmm(graph, a, b) ** 2, (a, b), order=2, modes=["rev"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, x: sddmm(g, x[:2], x), ValueError, r"a: expected the shape \(3, ...\)"),
        (lambda g, x: sddmm(g, x, x[:2]), ValueError, r"b: expected the shape \(3, ...\)"),
        (lambda g, x: sddmm(g, x, x[:, :2]), ValueError, "a, b: expected equal shapes"),
        (lambda g, x: sddmm(g, x, x.astype(jnp.bfloat16)), TypeError, "b: expected the dtype of a"),
        (lambda g, x: sddmm(g, x[:, 0], x[:, 0]), ValueError, "a, b: expected equal shapes"),
    ],
)
def test_bad_arguments(call, error, message):
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    with pytest.raises(error, match=message):
        call(graph, jnp.ones((3, 4)))
