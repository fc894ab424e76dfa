"""MaxK's products over windows with weights; on a CPU they ignore windows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import config, maxk, maxk_spmm
from tests.support.oracle import edges
from tests.support.window_products import (
    TOLERANCE,
    draw_weights,
    expected_weighted,
    reference_maxk,
    row_error,
    weighted_products,
)

pytestmark = [pytest.mark.few(1), pytest.mark.usefixtures("windows_engine")]


KINDS = ("ones", "uniform", "normal", "half zero", "zero", "decades", "clusters", "many decades")
KINDS += ("1e30", "1e-30", "both")
# Weights whose rows, or some of them, are added in floating point.
FLOATING = ("clusters", "many decades", "1e30", "1e-30", "both")
# Over windows, and by rows.
WEIGHTED = [
    ("float32", 8, "sum", False, True),
    ("float32", 32, "mean", False, True),
    ("float32", 6, "sum", False, True),
    ("float32", 100, "sum", True, True),
    ("float32", 16, "sum", True, True),
    ("float32", 256, "sum", False, True),
    ("bfloat16", 32, "mean", False, True),
    ("bfloat16", 8, "sum", False, True),
    ("float16", 6, "sum", False, True),
    ("float32", 32, "mean", False, False),
    ("float32", 6, "sum", False, False),
    ("bfloat16", 100, "sum", False, False),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "k", "reduce", "packed", "windows"), WEIGHTED)
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
def test_weighted_products_of_hubs(hub_graph, dtype, k, reduce, packed, windows, alike):
    """Weights of every kind: relative to the terms of a row, and of sums of positive terms each
    element by itself."""
    graph = hub_graph if windows else dataclasses.replace(hub_graph, windows=None)
    rng = np.random.default_rng(k)
    x, cotangent = (np.abs(rng.standard_normal((6000, 256))) for _ in range(2))
    if not alike:
        x *= 10.0 ** -rng.uniform(0, 2, size=(6000, 1))
    x, cotangent = jnp.asarray(x, dtype), jnp.asarray(cotangent, dtype)
    for kind in KINDS:
        if dtype == "float16" and kind in ("clusters", "1e30", "both", "many decades"):
            continue  # beyond float16
        weights = draw_weights(rng, kind, hub_graph.num_edges)
        operands = (graph, x, jnp.asarray(weights), cotangent, k, reduce, packed)
        out, dx, dw = weighted_products(*operands)
        expected = expected_weighted(hub_graph, x, weights, cotangent, k, reduce)
        tolerance = 2**-16 if packed else TOLERANCE[dtype]
        if dtype == "float32" and kind in FLOATING and not packed:
            tolerance = 1e-5  # thousands of edges one after the other
        if dtype == "float16" and kind == "1e-30":
            tolerance = np.inf  # all are 0
        assert out.dtype == dx.dtype == x.dtype and dw.dtype == jnp.float32
        assert row_error(out, expected[0]) < tolerance, kind
        assert row_error(dx, expected[1]) < tolerance, kind
        assert row_error(dw[None], tuple(a[None] for a in expected[2])) < tolerance, kind
        if dtype == "float32" and not packed and kind in ("uniform", "decades", "clusters"):
            error = np.abs(np.asarray(out, np.float64) - expected[0][0])
            error = error / np.maximum(expected[0][0], 1e-300)
            assert error.max() < 2e-5, kind
        if kind == "uniform":
            again = weighted_products(*operands)
            np.testing.assert_array_equal(np.asarray(out), np.asarray(again[0]))


@pytest.mark.parametrize("k", [8, pytest.param(6, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_stay_visible(hub_graph, value, k):
    """In their receiver's row alone, at the columns that the sender keeps; there as a float sum."""
    rng = np.random.default_rng(8)
    x = jnp.asarray(1 + rng.random((6000, 256)), jnp.float32)
    weights = rng.random(hub_graph.num_edges).astype(np.float32)
    source, target = edges(hub_graph)
    edge = int(np.flatnonzero(target == 5)[3])
    weights[edge] = value
    out, dx, _ = weighted_products(hub_graph, x, jnp.asarray(weights), x, k)
    kept = np.asarray(reference_maxk(x, k=k).indices, np.int64)[source[edge]]
    bad = ~np.isfinite(np.asarray(out))
    assert sorted(zip(*np.nonzero(bad), strict=True)) == [(5, c) for c in kept]
    bad = ~np.isfinite(np.asarray(dx))
    assert sorted(zip(*np.nonzero(bad), strict=True)) == [(source[edge], c) for c in kept]
    weights[edge] = 0.5
    expected, _, _ = expected_weighted(hub_graph, x, weights, x, k)
    finite = np.isfinite(np.asarray(out))
    assert row_error(np.where(finite, np.asarray(out), expected[0]), expected) < 2e-6


@pytest.mark.gpu  # on the CPU tests/maxk/test_maxk_spmm.py has them
def test_weighted_second_derivatives_and_vmap(hub_graph):
    rng = np.random.default_rng(9)
    x = jnp.asarray(rng.standard_normal((2, 6000, 16)), jnp.float32)
    weights = jnp.asarray(rng.standard_normal((2, hub_graph.num_edges)), jnp.float32)

    def second(x, weights, impl):
        def loss(x, weights):
            return jnp.sum(jnp.sin(maxk_spmm(hub_graph, maxk(x, 4), weights, impl=impl)))

        def squares(x, weights):
            return sum(jnp.sum(g**2) for g in jax.grad(loss, (0, 1))(x, weights))

        return jax.grad(squares, (0, 1))(x, weights)

    with config.use(maxk_accumulation="auto"):
        ours = jax.jit(jax.vmap(lambda x, w: second(x, w, "kernel")))(x, weights)
    reference = jax.jit(jax.vmap(lambda x, w: second(x, w, "jax")))(x, weights)
    for a, b in zip(ours, reference, strict=True):
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * scale)


@pytest.mark.gpu
def test_weighted_sums_without_edges_of_windows_are_those_of_rows(hub_graph):
    """Windows that list no edges, and sums in floating point alone."""
    rng = np.random.default_rng(10)
    x = jnp.asarray(rng.standard_normal((6000, 64)), jnp.float32)
    weights = jnp.asarray(rng.standard_normal(hub_graph.num_edges), jnp.float32)
    plain = dataclasses.replace(
        hub_graph, windows=dataclasses.replace(hub_graph.windows, edges=None, slots=None)
    )
    rows = dataclasses.replace(hub_graph, windows=None)
    expected = expected_weighted(hub_graph, x, weights, x, 8)[0]
    for graph in (hub_graph, plain, rows):
        assert row_error(weighted_products(graph, x, weights, x, 8)[0], expected) < 2e-6
    with config.use(maxk_accumulation="float"):
        assert row_error(weighted_products(hub_graph, x, weights, x, 8)[0], expected) < 2e-6
