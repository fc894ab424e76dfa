"""`spmm` over tiles on a GPU, against float64 and against rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, sddmm, spmm
from jaxgnn._core import device
from jaxgnn.graph._layouts import tiles
from jaxgnn.ops._aggregation.linear import Precision
from tests.support.strategies import dense_adjacency, skewed_graph

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
# Of the sum of the terms' sizes: three bfloat16 are a float32, 16-bit results are rounded.
TOLERANCE = {"float32": 2e-6, "bfloat16": 5e-3, "float16": 1e-3}
ROUNDED = 2**-16  # two bfloat16, the second one rounded
SMALLEST = {"float32": 1e-30, "bfloat16": 1e-30, "float16": 6e-8}  # subnormal ones are rounded more


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


@pytest.mark.parametrize("min_edges", [1, 4])
def test_layout_is_the_hosts(min_edges):
    """Made on the GPU, with its sorts and atomic sums of integers: the host's bits, every time."""
    lonely = Graph.from_edges(np.arange(3_000), np.arange(3_000) % 3, num_nodes=3_000)  # no tiles
    for graph in (hubs(), empty_windows(), skewed_graph(331, 30_000), lonely):
        offsets, columns = graph.row_offsets, graph.senders
        assert device.on_gpu(columns)
        for order in (None, RNG.permutation(graph.num_receivers).astype(np.int32)):
            host, *made = (
                tiles.lay_out(
                    *rows, graph.num_senders, "numbered", order, min_edges, on_device=True
                )
                for rows in [(np.asarray(offsets), np.asarray(columns)), *[(offsets, columns)] * 3]
            )
            for one in made:
                assert jax.tree.structure(one) == jax.tree.structure(host)
                jax.tree.map(np.testing.assert_array_equal, one, host)


@functools.partial(jax.jit, static_argnames="precision")
def value_and_gradient(graph, x, cotangent, precision=None):
    out, pull = jax.vjp(lambda x: spmm(graph, x, impl="tiles", precision=precision), x)
    return out, pull(cotangent)[0]


def check(graph: Graph, width: int, dtype: str, precision: Precision = None) -> None:
    matrix = dense_adjacency(graph)
    x, y = features(graph.num_senders, width, dtype), features(graph.num_receivers, width, dtype)
    got = value_and_gradient(graph, x, y, precision)
    for again, one in zip(value_and_gradient(graph, x, y, precision), got, strict=True):
        np.testing.assert_array_equal(again, one)  # the same bits
    tolerance = TOLERANCE[dtype] + (ROUNDED if precision else 0)
    for result, a, operand in zip(got, (matrix, matrix.T), (x, y), strict=True):
        operand = np.asarray(operand, np.float64)
        error = np.abs(np.asarray(result, np.float64) - a @ operand)
        assert (error <= tolerance * (a @ np.abs(operand) + 1e-30)).all(), error.max()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [1, 16, 100, 602])
def test_sums_and_gradients(width, dtype):
    """Directed, rectangular, symmetric and empty; every row and column, forward and backward."""
    graphs = [hubs(), skewed_graph(331, 30_000), skewed_graph(200, 9_000, undirected=True)]
    for graph in graphs if width == 100 else graphs[:1]:
        check(graph.with_tiles(), width, dtype)
    check(empty_windows().with_tiles(min_edges=1), width, dtype)
    check(Graph.from_edges([], [], num_nodes=70).with_tiles(), width, dtype)


@pytest.mark.parametrize("width", [1, 16, 100])
def test_tensorfloat32(width):
    """The stated error, forward and backward; float32 is rounded, and other dtypes are not."""
    graph = skewed_graph(331, 30_000).with_tiles()
    for tiled in (hubs().with_tiles(), graph, empty_windows().with_tiles(min_edges=1)):
        check(tiled, width, "float32", "tensorfloat32")
    for dtype in TOLERANCE:
        x, y = features(331, width, dtype), features(331, width, dtype)
        plain, rounded = (value_and_gradient(graph, x, y, p) for p in (None, "tensorfloat32"))
        for one, other in zip(plain, rounded, strict=True):
            assert np.array_equal(one, other) == (dtype != "float32")


def test_tensorfloat32_keeps_16_bits():
    """Sums of integers of 16 bits are exact."""
    dense = Graph.from_edges(
        np.tile(np.arange(64), 64), np.repeat(np.arange(64), 64), num_nodes=64
    ).with_tiles()
    x = RNG.integers(1 << 15, 1 << 16, (64, 40)) * RNG.choice([-1, 1], (64, 40))
    got = spmm(dense, jnp.asarray(x, jnp.float32), impl="tiles", precision="tensorfloat32")
    np.testing.assert_array_equal(got, np.broadcast_to(x.sum(axis=0), (64, 40)))


@jax.jit
def weighted(graph, x, weights, cotangent):
    """The product and its gradients by x and by the weights."""
    out, pull = jax.vjp(lambda x, w: spmm(graph, x, w, impl="tiles"), x, weights)
    return out, *pull(cotangent)


def check_weighted(graph: Graph, width: int, dtype: str, heads: int = 1) -> None:
    """Each head against the dense matrix of its weights."""
    shape = () if heads == 1 else (heads,)
    weights = jnp.asarray(RNG.standard_normal((graph.num_edges, *shape)), jnp.float32)
    x, y = (
        features(rows, heads * width, dtype).reshape(rows, *shape, width)
        for rows in (graph.num_senders, graph.num_receivers)
    )
    got = weighted(graph, x, weights, y)
    for again, one in zip(weighted(graph, x, weights, y), got, strict=True):
        np.testing.assert_array_equal(again, one)  # the same bits
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    for head in range(heads):

        def of(array, head=head):
            array = np.asarray(array, np.float64)
            return array if heads == 1 else array[:, head]

        a, b = of(y), of(x)
        matrix, size = (dense_adjacency(graph, w) for w in (of(weights), np.abs(of(weights))))
        dots = np.zeros(graph.num_edges), np.zeros(graph.num_edges)
        for sums, (left, right) in zip(dots, ((a, b), (np.abs(a), np.abs(b))), strict=True):
            for first in range(0, graph.num_edges, 10_000):
                part = slice(first, first + 10_000)
                sums[part] = np.sum(left[receivers[part]] * right[senders[part]], axis=1)
        expected = [
            (matrix @ b, size @ np.abs(b)),
            (matrix.T @ a, size.T @ np.abs(a)),
            dots,
        ]
        for name, result, (value, terms) in zip(
            ("product", "by x", "by weights"), got, expected, strict=True
        ):
            error = np.abs(of(result) - value)
            bound = TOLERANCE[dtype] * terms + SMALLEST[dtype]
            assert (error <= bound).all(), (name, (error / bound).max())


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [1, 16, 48, 100, 602])
def test_weighted_sums_and_gradients(width, dtype):
    """Rows of 8 and 16 lanes, several slices, windows in parts, chunks, empty windows."""
    graphs = [hubs(), skewed_graph(331, 30_000), skewed_graph(200, 9_000, undirected=True)]
    for graph in graphs if width == 100 else graphs[:1]:
        check_weighted(graph.with_tiles(), width, dtype)
    check_weighted(empty_windows().with_tiles(min_edges=1), width, dtype)
    check_weighted(skewed_graph(70, 3_000).with_tiles(min_edges=2), width, dtype, heads=3)


def test_all_or_no_edges_in_tiles():
    """No rest; and a rest in chunks alone, with one batch."""
    dense = Graph.from_edges(
        np.tile(np.arange(64), 64), np.repeat(np.arange(64), 64), num_nodes=64
    ).with_tiles()
    assert dense.tiles is not None and dense.tiles.rest_columns.size == 0
    check_weighted(dense, 24, "float32")
    repeated = np.concatenate([np.zeros(9_000, int), np.tile(np.arange(16), 4)])
    receivers = np.concatenate([np.arange(9_000) % 3, np.repeat(np.arange(4), 16)])
    check_weighted(rectangular(16, 64, repeated, receivers).with_tiles(min_edges=4), 24, "bfloat16")


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_sanitized(dtype):
    """Small enough for the sanitizer: all kernels, chunks among them."""
    lonely = Graph.from_edges(np.arange(3_000), np.arange(3_000) % 3, num_nodes=3_000)
    check(lonely.with_tiles(min_edges=2), 24, dtype)
    check(skewed_graph(70, 3_000).with_tiles(min_edges=2), 24, dtype)
    check(skewed_graph(70, 3_000).with_tiles(min_edges=2), 24, dtype, "tensorfloat32")
    check_weighted(lonely.with_tiles(min_edges=2), 24, dtype)
    check_weighted(skewed_graph(70, 3_000).with_tiles(min_edges=2), 24, dtype, heads=2)
    check_weighted(skewed_graph(70, 3_000).with_tiles(min_edges=2), 200, dtype)


@pytest.mark.parametrize(
    ("dtype", "precision"), [*((dtype, None) for dtype in TOLERANCE), ("float32", "tensorfloat32")]
)
def test_what_is_not_finite_reaches_its_receivers_alone(dtype, precision):
    """And sums whose doubles overflow are finite, as by rows."""
    graph = skewed_graph(300, 20_000).with_tiles(min_edges=2)
    assert graph.tiles is not None and graph.tiles.tile_share > 0.3
    x = np.asarray(features(300, 40, "float32")).copy()
    sender = int(graph.senders[0])
    for place, value in ((0, np.inf), (7, np.nan), (39, -np.inf)):
        x[sender, place] = value
    x[(sender + 1) % 300, 20] = 6e4 if dtype == "float16" else 3e38
    x = jnp.asarray(x, dtype)
    run = jax.jit(spmm, static_argnames=("impl", "precision", "reduce"))
    tolerance = 2 * TOLERANCE[dtype] + (ROUNDED if precision else 0)
    ones = jnp.ones(graph.num_edges)
    for reduce, weights in (("sum", None), ("mean", None), ("mean", ones)):
        got, expected = (
            np.asarray(
                run(graph, x, weights, impl=impl, precision=precision, reduce=reduce), np.float64
            )
            for impl in ("tiles", "rows")
        )
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
        assert np.isfinite(got[:, 1:7]).any() and not np.isfinite(got).all()
        finite = np.isfinite(expected)
        sizes = run(graph, jnp.abs(x), impl="rows", reduce=reduce)[finite]
        error = np.abs(got[finite] - expected[finite])
        assert (error <= tolerance * np.asarray(sizes, np.float64)).all()


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

        def scored(x, impl):
            scores = sddmm(graph, x, jnp.cos(x))
            return jnp.sum(spmm(graph, x, scores, impl=impl) ** 2)

        def hessian_of_scores(impl):
            small = x / 4
            return jax.jvp(jax.grad(lambda x: scored(x, impl)), (small[0],), (small[1],))

        def weights_of_each(impl):
            scores = jax.vmap(lambda x: sddmm(graph, x, x))(x)
            return scores, jax.vmap(lambda x, w: spmm(graph, x, w, impl=impl))(x, scores)

        return many, both(hessian_times_x), both(hessian_of_scores), both(weights_of_each)

    for one, other in run(graph, x):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(
                a, b, rtol=1e-5, atol=1e-4 + 2e-6 * float(jnp.max(jnp.abs(a)))
            ),
            one,
            other,
        )
