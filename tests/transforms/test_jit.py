"""The operations under jit, scan and checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import (
    Graph,
    edge_conv,
    maxk,
    maxk_spmm,
    sddmm,
    segment_reduce,
    spmm,
)
from jaxgnn._core.row_ids import csr_row_ids
from tests.support.arrays import normal

pytestmark = pytest.mark.usefixtures("strict")

NODES, EDGES = 12, 60


def test_the_graph_is_an_operand_and_the_kernel_is_called(graph):
    text = jax.jit(spmm).lower(graph, normal(NODES, 4)).as_text()
    assert "jaxgnn_spmm" in text
    assert "stablehlo.constant dense<[" not in text  # no array became part of the program


def test_scan_and_checkpoint(graph):
    x, weights = normal(NODES, 4), normal(EDGES, seed=1) / 8

    def step(x, _):
        return jax.checkpoint(lambda x: jnp.tanh(spmm(graph, x, weights, reduce="mean")))(x), None

    def scanned(x):
        return jnp.sum(jax.lax.scan(step, x, length=4)[0] ** 2)

    def unrolled(x):
        for _ in range(4):
            x = jnp.tanh(spmm(graph, x, weights, reduce="mean", impl="jax"))
        return jnp.sum(x**2)

    value, gradient = jax.jit(jax.value_and_grad(scanned))(x)
    expected_value, expected_gradient = jax.jit(jax.value_and_grad(unrolled))(x)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_scan_and_checkpoint_of_sparse_rows(graph):
    x, weights = normal(NODES, 10), normal(EDGES, seed=1) / 8

    def layer(x, impl):
        return x + maxk_spmm(graph, maxk(x, 4, impl=impl), weights, reduce="mean", impl=impl)

    def scanned(x):
        def step(x, _):
            return jax.checkpoint(lambda x: jnp.tanh(layer(x, None)))(x), None

        return jnp.sum(jax.lax.scan(step, x, length=3)[0] ** 2)

    def unrolled(x):
        for _ in range(3):
            x = jnp.tanh(layer(x, "jax"))
        return jnp.sum(x**2)

    value, gradient = jax.jit(jax.value_and_grad(scanned))(x)
    expected_value, expected_gradient = jax.jit(jax.value_and_grad(unrolled))(x)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_a_graph_without_edges_takes_no_bad_impl():
    graph, x = Graph.from_edges([], [], num_nodes=3), normal(3, 4)
    calls = {
        "spmm": lambda: spmm(graph, x, impl="bogus"),
        "sddmm": lambda: sddmm(graph, x, x, impl="bogus"),
        "segment_reduce": lambda: segment_reduce(graph, normal(0, 4), impl="bogus"),
        "edge_conv": lambda: edge_conv(graph, x, x, impl="bogus"),
        "expand_rows": lambda: csr_row_ids(graph.row_offsets, 0, impl="bogus"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=r"impl: .* got 'bogus'"):
            call()
            pytest.fail(f"{name} took it")
