"""Orders of the rows: which rows follow each other, and that no result depends on it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxgnn import Graph, dot_attention, gat_attention, gatv2_attention, gaussian_spmm, spmm
from jaxgnn.graph import squared
from tests.support.strategies import graphs, skewed_graph

pytestmark = pytest.mark.few(1)


@given(graphs())
def test_row_orders_hold_every_row_once(graph):
    ordered = graph.with_row_schedule()
    for order, rows in (
        (ordered.row_schedule, graph.num_receivers),
        (ordered.transpose_row_schedule, graph.num_senders),
    ):
        assert order.dtype == jnp.int32
        np.testing.assert_array_equal(np.sort(order), np.arange(rows))


def test_rows_that_share_senders_come_together():
    """Eight communities whose members are strewn over the numbers."""
    rng = np.random.default_rng(0)
    members = rng.permutation(400).reshape(8, 50)
    senders = rng.permuted(np.repeat(members, 30, axis=1), axis=1).ravel()
    receivers = np.repeat(members, 30, axis=1).ravel()
    graph = Graph.from_edges(senders, receivers, num_nodes=400)
    adjacency = graph.to_scipy().T.tocsr()

    def mean_distinct(order: np.ndarray) -> float:
        blocks = [order[i : i + 64] for i in range(0, 384, 64)]
        return float(np.mean([np.unique(adjacency[block].indices).size for block in blocks]))

    order = np.asarray(graph.with_row_schedule().row_schedule)
    assert mean_distinct(order) < 0.5 * mean_distinct(np.arange(400))


def test_short_rows_come_by_falling_length():
    graph = skewed_graph(300, 1500)
    ordered = graph.with_row_schedule()
    for order, degrees in (
        (ordered.row_schedule, graph.in_degrees),
        (ordered.transpose_row_schedule, graph.out_degrees),
    ):
        found = list(zip(-np.asarray(degrees)[order], np.asarray(order), strict=True))
        assert found == sorted(found)


def test_rows_of_some_length_come_by_steps_of_it():
    """Two steps to a factor of two, and within each as the rows that share senders come."""
    graph = skewed_graph(300, 9000)
    ordered = graph.with_row_schedule()
    for order, degrees in (
        (ordered.row_schedule, graph.in_degrees),
        (ordered.transpose_row_schedule, graph.out_degrees),
    ):
        np.testing.assert_array_equal(np.sort(order), np.arange(300))
        steps = np.floor(2 * np.log2(np.maximum(np.asarray(degrees)[order], 1)))
        assert np.all(np.diff(steps) <= 0) and len(set(steps)) > 3


@pytest.mark.gpu  # the CPU's kernels heed no row schedule
@pytest.mark.parametrize("edges_a_row", [3, 40, 300], ids=["tiny", "short", "long"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_order_of_rows_changes_no_bit(edges_a_row, dtype):
    graph = skewed_graph(300, 300 * edges_a_row)
    ordered = graph.with_row_schedule()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((graph.num_senders, 2, 40)), dtype)
    weights = jnp.asarray(rng.standard_normal((graph.num_edges, 2)), jnp.float32)

    @functools.partial(jax.jit, static_argnames="reduce")
    def both(graph, weights, reduce):
        out, pull = jax.vjp(lambda x: spmm(graph, x, weights, reduce=reduce), x)
        return out, pull(out)

    for reduce in ("sum", "mean", "max"):
        for values in (None, weights):
            for ours, plain in zip(
                both(ordered, values, reduce), both(graph, values, reduce), strict=True
            ):
                np.testing.assert_array_equal(ours, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 250, 301])
@pytest.mark.parametrize("edges_a_row", [3, 12, 40], ids=["few", "tiny", "short"])
def test_order_of_narrow_rows_changes_no_bit(edges_a_row, num_rows):
    """Several rows a warp, which come from as many parts of the schedule."""
    rng = np.random.default_rng(num_rows)
    # Of geometric lengths, and one row of several chunks.
    lengths = rng.geometric(1 / edges_a_row, num_rows)
    lengths[num_rows // 2] = 600
    receivers = np.repeat(np.arange(num_rows), lengths)
    senders = rng.integers(90, size=receivers.size)
    graph = Graph.from_edges(senders, receivers, num_senders=90, num_receivers=num_rows)
    ordered = graph.with_row_schedule()
    mean = jax.jit(functools.partial(spmm, reduce="mean"))
    for width, dtype in itertools.product((2, 4, 8, 16, 32, 64, 128), ("float32", "float16")):
        x = jnp.asarray(rng.standard_normal((90, width)), dtype)
        np.testing.assert_array_equal(mean(ordered, x), mean(graph, x))
        expected = np.zeros((num_rows, width))
        np.add.at(expected, receivers, np.asarray(x, np.float64)[senders])
        close = 1e-5 if dtype == "float32" else 2e-3
        np.testing.assert_allclose(
            np.asarray(mean(ordered, x), np.float64), expected / lengths[:, None], close, close
        )


@pytest.mark.gpu
@pytest.mark.parametrize("edges_a_row", [3, 40, 80], ids=["tiny", "short", "long"])
def test_order_of_rows_changes_no_bit_of_attention(edges_a_row):
    """But those of the Gaussians' parameters, which are sums over all rows."""
    graph = skewed_graph(300, 300 * edges_a_row)
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    q, k = draw(graph.num_receivers, 2, 8), draw(graph.num_senders, 2, 8)
    operations = {
        "dot": (dot_attention, (q, k, 2 * k)),
        "gatv2": (gatv2_attention, (k, q, draw(2, 8))),
        "gat": (gat_attention, (k, k[..., 0], q[..., 0])),
        "gaussian": (gaussian_spmm, (k, draw(2, 2), draw(2, 2), (q[:, 0, :2], k[:, 0, :2]))),
    }

    @functools.partial(jax.jit, static_argnums=0)
    def both(name, graph):
        f, operands = operations[name]
        out, pull = jax.vjp(lambda *operands: f(graph, *operands), *operands)
        return out, pull(out)

    ordered = graph.with_row_schedule()
    for name in operations:
        ours, plain = (jax.tree.leaves(both(name, g)) for g in (ordered, graph))
        for a, b in zip(ours, plain, strict=True):
            if b.shape[0] == 2:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
            else:
                np.testing.assert_array_equal(a, b)


def test_transpose_keeps_the_orders():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(
        rng.integers(20, size=60), rng.integers(9, size=60), num_senders=20, num_receivers=9
    ).with_row_schedule()
    other = graph.transpose()
    np.testing.assert_array_equal(other.row_schedule, graph.transpose_row_schedule)
    np.testing.assert_array_equal(other.transpose_row_schedule, graph.row_schedule)


def test_a_squared_graph_has_no_layout_of_the_old_receivers():
    graph = Graph.from_edges([3, 0, 2], [0, 1, 1], num_senders=4, num_receivers=2)
    square = squared(graph.with_row_schedule().with_windows().with_tiles())
    assert square.num_receivers == 4
    assert square.row_schedule is square.windows is square.tiles is None
    square.validate()


def test_order_outside_jit_alone():
    with pytest.raises(TypeError, match=r"with_row_schedule: call it outside jax\.jit"):
        jax.jit(lambda g: g.with_row_schedule())(skewed_graph(20, 60))
