"""Features that are padded for the kernels: results and gradients are those without."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import (
    cosine_attention,
    dot_attention,
    edge_conv,
    gat_attention,
    gatv2_attention,
    gaussian_spmm,
    spmm,
)
from jaxgnn.ops._core import padding
from tests.support.oracle import draw_array
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

NODES, EDGES, HEADS = 40, 300, 2


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(NODES, EDGES)


def scaled_values(graph, q, v):
    return dot_attention(graph, q, v, v, key_scale=jnp.ones((NODES, HEADS)))


# What is computed, and the shapes of its operands but for the features.
ROWS = (NODES, HEADS)
OPERATIONS = {
    "sum": (spmm, [(NODES,)]),
    "weighted mean": (functools.partial(spmm, reduce="mean"), [ROWS, "weights"]),
    "max": (functools.partial(spmm, reduce="max"), [ROWS, "weights"]),
    "edge_conv": (edge_conv, [(NODES,), (NODES,)]),
    "gat": (gat_attention, [ROWS, "scores", "scores"]),
    "dot": (dot_attention, [ROWS, ROWS, ROWS]),
    "values as keys": (scaled_values, [ROWS, ROWS]),
    "cosine": (cosine_attention, [ROWS]),
    "gatv2": (gatv2_attention, [ROWS, ROWS, (HEADS,)]),
    "gaussian": (gaussian_spmm, [(NODES, 3), "kernels", "kernels", "coordinates"]),
    "one row for all": (gaussian_spmm, [(NODES,), "kernels", "kernels", "coordinates"]),
}
FIXED = {
    "weights": (EDGES, HEADS),
    "scores": (NODES, HEADS),
    "kernels": (3, 2),
    "coordinates": (EDGES, 2),
}


@pytest.mark.parametrize(("width", "dtype"), [(1, "float32"), (7, "float32"), (12, "bfloat16")])
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_and_gradients(monkeypatch, graph, name, width, dtype):
    operation, operands = OPERATIONS[name]
    rng = np.random.default_rng(width)
    arrays = [
        draw_array(rng, FIXED[shape], "float32")
        if isinstance(shape, str)
        else draw_array(rng, (*shape, width), dtype)
        for shape in operands
    ]
    pad_widths = []

    def results(lanes):
        def pad_width(x, ends):
            more = -x.shape[-1] % lanes
            pad_widths.append(more)
            return more

        monkeypatch.setattr(padding, "pad_width", pad_width)

        @jax.jit
        def both(graph, *arrays):
            out, vjp = jax.vjp(functools.partial(operation, graph), *arrays)
            return jax.tree.map(lambda a: a.astype(jnp.float32), (out, vjp(jnp.cos(out))))

        return jax.tree.leaves(both(graph, *arrays))

    expected = results(1)
    assert not any(pad_widths)
    ours = results(8)
    assert any(pad_widths)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 4), ("bfloat16", 8)])
def test_lengths(dtype, lanes):
    widths = range(1, 40)

    @jax.jit
    def padded_rows():
        ones = [jnp.ones((3, 2, width), dtype) for width in widths]
        return [[padding.pad_features(rows, ends=ends) for ends in (False, True)] for rows in ones]

    for width, found in zip(widths, padded_rows(), strict=True):
        aligned = padded = -(-width // lanes) * lanes
        if jax.default_backend() == "cpu":
            whole, end = width // 16 * 16, width % 16
            aligned, padded = width, whole + min(n for n in (0, 1, 2, 4, 8, 16) if n >= end)
        for rows, expected in zip(found, (aligned, padded), strict=True):
            assert rows.shape == (3, 2, expected) and rows.dtype == dtype
            assert np.asarray(rows, float).sum() == 6 * width
