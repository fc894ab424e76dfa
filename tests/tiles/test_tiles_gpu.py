"""`spmm` over tiles on a GPU, against float64 and against rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, spmm
from tests.support.strategies import dense_adjacency, skewed_graph

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
# Of the sum of the terms' sizes: three bfloat16 are a float32, 16-bit results are rounded.
TOLERANCE = {"float32": 2e-6, "bfloat16": 5e-3, "float16": 1e-3}


def rectangular(num_senders: int, num_receivers: int, senders, receivers) -> Graph:
    return Graph.from_edges(
        senders, receivers, num_senders=num_senders, num_receivers=num_receivers
    )


def hubs() -> Graph:
    """A window in two parts, a hub whose rest is cut into chunks, 64 does not divide the rows."""
    senders = np.concatenate([np.tile(np.arange(7_000), 5), RNG.integers(0, 9_000, 120_000)])
    receivers = np.concatenate([np.repeat(np.arange(5), 7_000), RNG.integers(0, 331, 120_000)])
    receivers[-40_000:] = 70
    return rectangular(9_000, 331, senders, receivers)


def empty_windows() -> Graph:
    return rectangular(40, 500, RNG.integers(0, 40, 4_000), RNG.integers(200, 220, 4_000))


def features(rows: int, width: int, dtype: str) -> jax.Array:
    return jnp.asarray(RNG.standard_normal((rows, width)), dtype)


@jax.jit
def value_and_gradient(graph, x, cotangent):
    out, pull = jax.vjp(lambda x: spmm(graph, x, impl="tiles"), x)
    return out, pull(cotangent)[0]


def check(graph: Graph, width: int, dtype: str) -> None:
    matrix = dense_adjacency(graph)
    x, y = features(graph.num_senders, width, dtype), features(graph.num_receivers, width, dtype)
    got = value_and_gradient(graph, x, y)
    for again, one in zip(value_and_gradient(graph, x, y), got, strict=True):
        np.testing.assert_array_equal(again, one)  # the same bits
    for result, a, operand in zip(got, (matrix, matrix.T), (x, y), strict=True):
        operand = np.asarray(operand, np.float64)
        error = np.abs(np.asarray(result, np.float64) - a @ operand)
        assert (error <= TOLERANCE[dtype] * (a @ np.abs(operand) + 1e-30)).all(), error.max()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [1, 16, 100, 602])
def test_sums_and_gradients(width, dtype):
    """Directed, rectangular, symmetric and empty; every row and column, forward and backward."""
    graphs = [hubs(), skewed_graph(331, 30_000), skewed_graph(200, 9_000, undirected=True)]
    for graph in graphs if width == 100 else graphs[:1]:
        check(graph.with_tiles(), width, dtype)
    check(empty_windows().with_tiles(min_edges=1), width, dtype)
    check(Graph.from_edges([], [], num_nodes=70).with_tiles(), width, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_sanitized(dtype):
    """Small enough for the sanitizer: all kernels, chunks among them."""
    lonely = Graph.from_edges(np.arange(3_000), np.arange(3_000) % 3, num_nodes=3_000)
    check(lonely.with_tiles(min_edges=2), 24, dtype)
    check(skewed_graph(70, 3_000).with_tiles(min_edges=2), 24, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_what_is_not_finite_reaches_its_receivers_alone(dtype):
    """And sums whose doubles overflow are finite, as by rows."""
    graph = skewed_graph(300, 20_000).with_tiles(min_edges=2)
    assert graph.tiles is not None and graph.tiles.tile_share > 0.3
    x = np.asarray(features(300, 40, "float32")).copy()
    sender = int(graph.senders[0])
    for place, value in ((0, np.inf), (7, np.nan), (39, -np.inf)):
        x[sender, place] = value
    x[(sender + 1) % 300, 20] = 6e4 if dtype == "float16" else 3e38
    x = jnp.asarray(x, dtype)
    run = jax.jit(spmm, static_argnames=("impl", "reduce"))
    for reduce in ("sum", "mean"):
        got, expected = (
            np.asarray(run(graph, x, impl=impl, reduce=reduce), np.float64)
            for impl in ("tiles", "rows")
        )
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
        assert np.isfinite(got[:, 1:7]).any() and not np.isfinite(got).all()
        finite = np.isfinite(expected)
        sizes = run(graph, jnp.abs(x), impl="rows", reduce=reduce)[finite]
        error = np.abs(got[finite] - expected[finite])
        assert (error <= 2 * TOLERANCE[dtype] * np.asarray(sizes, np.float64)).all()


def test_vmap_heads_and_second_derivatives():
    graph = skewed_graph(200, 9_000).with_tiles(min_edges=2)
    x = jnp.asarray(RNG.standard_normal((3, 200, 2, 5)), jnp.float32)

    @jax.jit
    def run(graph, x):
        def both(f):
            return [f(impl) for impl in ("rows", "tiles")]

        def loss(x, impl):
            return jnp.sum(spmm(graph, jnp.sin(x), reduce="mean", impl=impl) ** 3)

        def hessian_times_x(impl):
            return jax.jvp(jax.grad(lambda x: loss(x, impl)), (x[0],), (x[1],))

        many = both(lambda impl: jax.vmap(lambda x: spmm(graph, x, impl=impl))(x))
        return many, both(hessian_times_x)

    for one, other in run(graph, x):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), one, other
        )
