"""Each mapping of MaxK's kernels: widths, numbers of kept entries, weights, long and short rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, config, maxk, maxk_spmm
from jaxgnn.ops._core.sparse_rows import index_dtype
from jaxgnn.ops._maxk import product_operands
from tests.support.oracle import draw_array
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

# (width, k): each way to share a CBSR row among lanes, bytes and 16-bit columns, one warp a row and
# several, vectors of 16 bytes and scalar loads.
SHAPES = [(7, 3), (40, 12), (256, 5), (256, 64), (300, 33), (520, 16), (1000, 8), (2000, 130)]


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(400, 20_000)


jitted_maxk = jax.jit(maxk, static_argnames=("k", "impl"))


@functools.partial(jax.jit, static_argnames=("k", "impl"))
def selection(x, k, impl):
    """The indices, and the values and the dense rows in float32."""
    cbsr = maxk(x, k, impl=impl)
    dense = cbsr.to_dense()[:3]
    return cbsr.indices, cbsr.values.astype(jnp.float32), dense.astype(jnp.float32)


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("width", "k"), SHAPES)
def test_sanitized_selection_equals_the_reference(width, k, dtype):
    x = np.array(draw_array(np.random.default_rng(width), (50, width), dtype))
    # Ties, and rows that no normal distribution describes.
    x[3], x[4, ::2] = 1, 0
    x[5] *= 1e30 if dtype != "float16" else 1e3
    x[6, 0], x[7, -1], x[8, 1], x[9, :2] = np.inf, -np.inf, np.nan, -0.0
    for ours, reference in zip(selection(x, k, None), selection(x, k, "jax"), strict=True):
        np.testing.assert_array_equal(ours, reference)


@functools.partial(jax.jit, static_argnames="impl")
def product_and_gradients(graph, cbsr, weights, cotangent, impl):
    def product(values, weights):
        sparse = CBSR(values, cbsr.indices, cbsr.width)
        return maxk_spmm(graph, sparse, weights, reduce="mean", impl=impl)

    out, vjp = jax.vjp(product, cbsr.values, weights)
    return jax.tree.leaves((out, vjp(cotangent)))


# The CPU's kernels heed neither setting, so that on the CPU one of the four says all.
SETTINGS = [
    pytest.param("auto", False, id="auto"),
    pytest.param("float", True, id="float-deterministic", marks=pytest.mark.gpu),
    pytest.param("auto", True, id="auto-deterministic", marks=pytest.mark.gpu),
    pytest.param("float", False, id="float", marks=pytest.mark.gpu),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("accumulation", "deterministic"), SETTINGS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("width", "k"), SHAPES)
def test_sanitized_products_equal_the_reference(
    graph, width, k, weighted, accumulation, deterministic
):
    rng = np.random.default_rng(k)
    cbsr = jitted_maxk(draw_array(rng, (400, width), "float32"), k, impl="jax")
    weights = draw_array(rng, graph.num_edges, "float32") if weighted else None
    cotangent = draw_array(rng, (400, width), "float32")
    reference = product_and_gradients(graph, cbsr, weights, cotangent, "jax")
    with config.use(maxk_accumulation=accumulation, deterministic=deterministic):
        results = product_and_gradients(graph, cbsr, weights, cotangent, None)
    for ours, expected in zip(results, reference, strict=True):
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5 * scale + 1e-6)


@pytest.mark.parametrize(("width", "k"), [(4, 1), (7, 3), (9, 6), (256, 2), (256, 253), (300, 33)])
def test_rows_are_padded_to_the_vector_width_by_absent_columns(width, k):
    """What a GPU's kernels take: a column twice in a row would be a race."""
    rng = np.random.default_rng(k)
    kept = np.sort(rng.permuted(np.tile(np.arange(width), (50, 1)), axis=1)[:, :k], axis=1)
    kept[0], kept[1] = np.arange(k), np.arange(width - k, width)
    indices = jnp.asarray(kept, index_dtype(width))
    grown = product_operands.pad_indices(width, indices)
    more = product_operands.pad_width(width, indices)
    assert grown.shape == (50, k + more) and (k + more) % 4 == 0 and 0 < more < 4
    assert grown.dtype == indices.dtype
    np.testing.assert_array_equal(grown[:, :k], indices)
    assert int(jnp.max(grown)) < width
    assert all(len(set(row)) == len(row) for row in np.asarray(grown).tolist())


@pytest.mark.parametrize(("width", "k"), [(256, 8), (7, 5), (2, 1)])
def test_rows_without_columns_for_padding_stay(width, k):
    indices = jnp.zeros((3, k), jnp.uint8)
    assert product_operands.pad_indices(width, indices) is indices
    assert product_operands.pad_width(width, indices) == 0
