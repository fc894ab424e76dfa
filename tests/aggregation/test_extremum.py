"""The derivative of the maximum and minimum over neighbors against loops over edges in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, segment_reduce, spmm
from tests.support.oracle import draw_array, edges
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


@functools.partial(jax.jit, static_argnames=("reduce", "transpose"))
def value_and_gradients(graph, x, weights, cotangent, reduce, transpose):
    def run(x, weights):
        return spmm(graph, x, weights, reduce=reduce, transpose=transpose)

    out, pull = jax.vjp(run, x, weights)
    return out, *pull(cotangent)


def brute_force(graph, x, weights, cotangent, reduce, transpose):
    """The extrema, the gradients of x and of the weights, and the size of what these sum."""
    source, target = edges(graph)
    if transpose:
        source, target = target, source
    x, cotangent = np.asarray(x), np.asarray(cotangent)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    factor = np.ones((len(source), 1, 1), wide)
    if weights is not None:
        factor = np.asarray(weights).reshape(len(source), -1, 1)
    x, cotangent = (a.reshape(len(a), factor.shape[1], -1) for a in (x, cotangent))
    products = (factor * x[source].astype(wide)).astype(x.dtype)  # rounded as they are compared
    out = np.zeros(cotangent.shape, x.dtype)
    attained = np.zeros(products.shape, bool)
    ties = np.ones(cotangent.shape)
    for row in np.unique(target):
        here = target == row
        out[row] = getattr(products[here], reduce)(axis=0)
        attained[here] = products[here] == out[row]
        ties[row] = np.maximum(attained[here].sum(axis=0), 1)
    shares = (cotangent.astype(np.float64) / ties)[target] * attained
    terms = factor.astype(np.float64) * shares
    dx, size = np.zeros(x.shape), np.zeros(x.shape)
    np.add.at(dx, source, terms)
    np.add.at(size, source, np.abs(terms))
    products = shares * x[source].astype(np.float64)
    return out, (dx, size), (products.sum(-1), np.abs(products).sum(-1))


def close(actual, expected, size, unit):
    actual = np.asarray(actual, np.float64).reshape(expected.shape)
    assert (np.abs(actual - expected) <= 4 * unit * size + 1e-30).all()


# The mappings of the CUDA kernels: 8, 16 and 32 lanes, single values, warps; split rows in each.
CASES = [
    # mean degree, heads, width, dtype
    (4, None, 24, "float32"), (4, None, 40, "float32"), (4, None, 200, "float32"),
    (4, (2,), 20, "float32"), (4, None, 7, "bfloat16"), (4, (), 128, "bfloat16"),
    (4, (3,), 6, "float64"), (30, None, 132, "float32"), (30, (3,), 8, "float16"),
    (300, None, 72, "float32"), (300, (), 40, "float32"), (300, (2,), 16, "bfloat16"),
    (300, None, 12, "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("degree", "heads", "width", "dtype"), CASES)
def test_sanitized_mappings(degree, heads, width, dtype):
    with jax.enable_x64(dtype == "float64"):
        nodes = {4: 901, 30: 203, 300: 61}[degree]  # no multiple of the rows of a block
        graph = skewed_graph(nodes, nodes * degree, seed=degree)
        assert graph.row_chunks.table.max() > 0 and graph.transpose_row_chunks.table.max() > 0
        transpose, reduce = heads == (2,), "min" if width % 3 == 0 else "max"
        rng = np.random.default_rng(width)
        wide = "float64" if dtype == "float64" else "float32"
        shape = (nodes, *(heads or ()), width)
        # Few distinct values, so that ties are many; products that are rounded.
        x = jax.device_put((rng.integers(-6, 7, shape) / 4).astype(jnp.dtype(dtype)))
        weights = None
        if heads is not None:
            weights = rng.integers(-4, 5, (graph.num_edges, *heads)) / 3
            weights = jax.device_put(weights.astype(wide))
        cotangent = draw_array(rng, shape, dtype)
        arguments = (graph, x, weights, cotangent, reduce, transpose)
        out, dx, dweights = value_and_gradients(*arguments)
        expected, of_x, of_weights = brute_force(*arguments)
        np.testing.assert_array_equal(np.asarray(out).reshape(expected.shape), expected)
        # The shares are rounded to the dtype, and so is their sum; sums run in the wider one, and
        # are of thousands of terms where rows are long.
        unit = float(jnp.finfo(dtype).eps) + degree // 100 * float(jnp.finfo(wide).eps)
        close(dx, *of_x, unit)
        if weights is not None:
            close(dweights, *of_weights, unit)


def test_a_derivative_walks_the_edges_twice():
    """Once to reduce and to count ties, once back; without a derivative nothing is counted."""
    graph = skewed_graph(12, 60)
    x = jnp.ones((12, 4))
    forward = functools.partial(spmm, reduce="max")
    text = jax.jit(forward).lower(graph, x).as_text()
    assert text.count("@jaxgnn_") == 1 and "jaxgnn_spmm_ties" not in text

    def loss(x, graph):
        return jnp.sum(forward(graph, x))

    text = jax.jit(jax.grad(loss)).lower(x, graph).as_text()
    assert text.count("@jaxgnn_spmm_ties") == text.count("@jaxgnn_spmm_extremum") == 1
    assert text.count("@jaxgnn_") == 2


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_nan_selects_nothing_and_infinities_tie(reduce):
    graph = Graph.from_edges([0, 1, 2, 2, 0, 3], [0, 0, 1, 1, 2, 2], num_nodes=4)
    worst = -np.inf if reduce == "max" else np.inf
    x = jnp.asarray([[1.0, worst], [np.nan, worst], [2.0, 3.0], [1.0, worst]])
    cotangent = jnp.ones((4, 2))
    out, dx, _ = value_and_gradients(graph, x, None, cotangent, reduce, False)
    np.testing.assert_array_equal(out, [[np.nan, worst], [2, 3], [1, worst], [0, 0]])
    # Row 1 takes its sender twice, a half each; the others share between two senders.
    np.testing.assert_array_equal(dx, [[0.5, 1.0], [0.0, 0.5], [1.0, 1.0], [0.5, 0.5]])


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_of_infinities_are_counted_once(reduce, impl):
    """Also where all of a row are the value that a maximum of nothing starts from."""
    graph = Graph.from_edges([0, 1, 2, 2], [0, 0, 1, 1], num_nodes=4)
    worst = -np.inf if reduce == "max" else np.inf
    x = jnp.asarray([[worst], [worst], [3.0], [1.0]])

    def total(x):
        return spmm(graph, x, reduce=reduce, impl=impl).sum()

    np.testing.assert_array_equal(jax.grad(total)(x), [[0.5], [0.5], [1.0], [0.0]])


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize(
    ("dtype", "ties"),
    [("bfloat16", 1000), ("bfloat16", 60_000), ("float16", 1001), ("float16", 131_008)],
)
def test_shares_of_many_ties_sum_to_one(dtype, ties, impl):
    """ReLU's zeros at a hub: 16 bits count neither them nor the sum of their shares."""
    hub = Graph.from_edges(np.arange(ties), np.zeros(ties, int), num_senders=ties, num_receivers=1)
    x = jnp.zeros((ties, 1), dtype)
    for total in (
        lambda x: spmm(hub, x, reduce="max", impl=impl).astype(jnp.float32).sum(),
        lambda x: segment_reduce(hub, x, "max", impl=impl).astype(jnp.float32).sum(),
    ):
        shares = jax.grad(total)(x)
        assert shares.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(shares, np.float64).sum(), 1, rtol=5e-3)
