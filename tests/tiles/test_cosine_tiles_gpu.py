"""Attention by cosines over tiles on a GPU, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import Graph
from jaxgnn.ops._attention import cosine_tiles
from jaxgnn.ops._core.rows import neighbors
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
# Of the terms' sizes: weights in tiles and results are rounded to 16 bits.
TOLERANCE = {"bfloat16": 6e-3, "float16": 1.5e-3}


@jax.jit
def over_tiles(graph: Graph, x: jax.Array, beta: jax.Array) -> tuple[jax.Array, jax.Array]:
    assert graph.tiles is not None
    return cosine_tiles.forward(neighbors(graph, transpose=False), graph.tiles, x, beta)


def hubs(nodes: int = 331) -> Graph:
    """A window in two parts, a hub whose rest is cut into chunks, rows without edges."""
    senders = np.concatenate([np.tile(np.arange(7_000), 5), RNG.integers(0, 9_000, 60_000)])
    receivers = np.concatenate([np.repeat(np.arange(5), 7_000), RNG.integers(0, nodes, 60_000)])
    receivers[-20_000:] = 70
    return Graph.from_edges(senders, receivers, num_nodes=9_000)


def features(graph: Graph, heads: int, width: int, dtype: str) -> jax.Array:
    """Rows of any length, one of them 0."""
    x = RNG.standard_normal((graph.num_senders, heads, width)) * RNG.uniform(0.1, 3, (1, heads, 1))
    x[graph.num_senders // 2] = 0
    return jnp.asarray(x, dtype)


def exact(graph: Graph, x: jax.Array, beta: list[float]) -> tuple[np.ndarray, ...]:
    """In float64: the averages, those of the rows' sizes, and the logarithms of the sums."""
    rows = np.asarray(x, np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    out, sizes, log_sum = np.zeros(rows.shape), np.zeros(rows.shape), np.zeros(rows.shape[:2])
    for head, b in enumerate(beta):
        dots = np.einsum("ef,ef->e", unit[senders, head], unit[receivers, head])
        shape = graph.num_receivers, graph.num_senders
        weights = np.exp(b * dots - abs(b)), senders, np.asarray(graph.row_offsets)
        matrix = scipy.sparse.csr_matrix(weights, shape=shape)
        totals = np.asarray(matrix.sum(axis=1))
        there = totals[:, 0] > 0
        log_sum[there, head] = np.log(totals[there, 0]) + abs(b)
        totals[~there] = 1
        out[:, head] = matrix @ rows[:, head] / totals
        sizes[:, head] = matrix @ np.abs(rows[:, head]) / totals
    return out, sizes, log_sum


def check(graph: Graph, width: int, dtype: str, beta: list[float]) -> None:
    x = features(graph, len(beta), width, dtype)
    operands = graph, x, jnp.asarray(beta, jnp.float32)
    out, log_sum = over_tiles(*operands)
    for again, one in zip(over_tiles(*operands), (out, log_sum), strict=True):
        np.testing.assert_array_equal(again, one)  # the same bits
    expected, sizes, expected_log_sum = exact(graph, x, beta)
    error = np.abs(np.asarray(out, np.float64) - expected)
    assert (error <= TOLERANCE[dtype] * sizes + 1e-7).all(), error.max()
    np.testing.assert_allclose(log_sum, expected_log_sum, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_against_float64(dtype):
    """Several widths and heads, windows in parts, chunks, empty windows and an empty graph."""
    check(hubs().with_tiles(min_edges=2), 64, dtype, [1.5])
    graph = skewed_graph(331, 30_000, undirected=True)
    check(graph.with_tiles(), 40, dtype, [-2.0, 0.0, 9.0])
    check(skewed_graph(200, 9_000).with_tiles(min_edges=1), 8, dtype, [1.0])
    check(Graph.from_edges([], [], num_nodes=70).with_tiles(), 16, dtype, [1.0])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_all_or_no_edges_in_tiles(dtype):
    dense = Graph.from_edges(np.tile(np.arange(64), 64), np.repeat(np.arange(64), 64), num_nodes=64)
    check(dense.with_tiles(), 64, dtype, [1.0])
    check(dense.with_tiles(min_edges=64), 24, dtype, [1.0])
    lonely = Graph.from_edges(np.arange(3_000), np.arange(3_000) % 3, num_nodes=3_000)
    check(lonely.with_tiles(min_edges=64), 64, dtype, [1.0, 2.0])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_large_beta_runs_by_rows(dtype):
    """Where exp(-2 |beta|) is no normal number of the dtype."""
    graph = skewed_graph(200, 9_000).with_tiles(min_edges=2)
    check(graph, 16, dtype, [60.0, -60.0])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_what_is_not_finite_reaches_its_receivers_alone(dtype):
    graph = skewed_graph(300, 20_000).with_tiles(min_edges=2)
    assert graph.tiles is not None and graph.tiles.tile_share > 0.3
    x = np.asarray(features(graph, 1, 40, "float32")).copy()
    sender = int(graph.senders[0])
    x[sender, 0, :2] = np.nan, np.inf
    x, beta = jnp.asarray(x, dtype), jnp.ones(1)
    out, log_sum = over_tiles(graph, x, beta)
    reached = np.zeros(300, bool)
    reached[np.asarray(graph.receivers)[np.asarray(graph.senders) == sender]] = True
    reached[sender] = bool(np.diff(graph.row_offsets)[sender])  # its own scores
    np.testing.assert_array_equal(jnp.isnan(out).any(axis=(1, 2)), reached)
    np.testing.assert_array_equal(jnp.isnan(log_sum)[:, 0], reached)
    zeroed = x.at[sender].set(0)  # others do not read it
    expected, sizes, _ = exact(graph, zeroed, [1.0])
    error = np.abs(np.asarray(out, np.float64) - expected)[~reached]
    assert (error <= TOLERANCE[dtype] * sizes[~reached] + 1e-7).all(), error.max()
