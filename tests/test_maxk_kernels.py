"""Each mapping of MaxK's kernels: widths, numbers of kept entries, weights, long and short rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, config, maxk, maxk_spmm
from tests.oracle import draw_array
from tests.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

# (width, k): each way to share a record among lanes, bytes and 16-bit columns, one warp a row and
# several, packs of 16 bytes and not.
SHAPES = [(7, 3), (40, 12), (256, 5), (256, 64), (300, 33), (520, 16), (1000, 8), (2000, 130)]


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(400, 20_000)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("width", "k"), SHAPES)
def test_sanitized_selection_equals_the_reference(width, k, dtype):
    x = draw_array(np.random.default_rng(width), (50, width), dtype)
    # Ties, and rows that no normal distribution describes.
    x = x.at[3].set(1).at[4, ::2].set(0).at[5].multiply(1e30 if dtype != "float16" else 1e3)
    x = x.at[6, 0].set(jnp.inf).at[7, -1].set(-jnp.inf).at[8, 1].set(jnp.nan).at[9, :2].set(-0.0)
    ours, reference = maxk(x, k), maxk(x, k, impl="jax")
    np.testing.assert_array_equal(ours.indices, reference.indices)
    np.testing.assert_array_equal(
        np.asarray(ours.values.astype(jnp.float32)),
        np.asarray(reference.values.astype(jnp.float32)),
    )
    np.testing.assert_array_equal(
        np.asarray(ours.to_dense().astype(jnp.float32))[:3],
        np.asarray(reference.to_dense().astype(jnp.float32))[:3],
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("accumulation", ["auto", "float"])
@pytest.mark.parametrize(("width", "k"), SHAPES)
def test_sanitized_products_equal_the_reference(graph, width, k, accumulation, weighted):
    rng = np.random.default_rng(k)
    cbsr = maxk(draw_array(rng, (400, width), "float32"), k, impl="jax")
    weights = draw_array(rng, graph.num_edges, "float32") if weighted else None
    cotangent = draw_array(rng, (400, width), "float32")

    def run(impl):
        def product(values, weights):
            sparse = CBSR(values, cbsr.indices, width)
            return maxk_spmm(graph, sparse, weights, reduce="mean", impl=impl)

        out, vjp = jax.vjp(product, cbsr.values, weights)
        return jax.tree.leaves((out, vjp(cotangent)))

    reference = run("jax")
    for deterministic in (False, True):
        with config.use(maxk_accumulation=accumulation, deterministic=deterministic):
            for ours, expected in zip(run(None), reference, strict=True):
                scale = float(jnp.abs(expected).max())
                np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5 * scale + 1e-6)
