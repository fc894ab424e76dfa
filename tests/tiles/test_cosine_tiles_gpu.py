"""Attention by cosines of 16-bit rows on a GPU, over tiles and by rows, against float64."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import Graph, cosine_attention
from jaxgnn.ops._attention import cosine_rule, cosine_tiles
from jaxgnn.ops._core.rows import neighbors
from tests.support.oracle_attention import gradients
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
# Of the terms' sizes: weights in tiles and results are rounded to 16 bits.
TOLERANCE = {"bfloat16": 8e-3, "float16": 1.5e-3}


@functools.partial(jax.jit, static_argnames=("tiled", "loops"))
def forward(
    graph: Graph, x: jax.Array, beta: jax.Array, *, tiled: bool, loops: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The kernels by rows, or over the graph's tiles, whichever is faster."""
    rows, tiles = neighbors(graph, transpose=False), graph.tiles if tiled else None
    assert tiled == (tiles is not None) and cosine_tiles.serves(rows, x)
    reciprocals = cosine_rule.reciprocal_norms(x)[0]
    return cosine_tiles.forward(rows, tiles, x, beta, reciprocals, self_loops=loops)


def hubs(nodes: int = 331) -> Graph:
    """A window in two parts, a hub whose rest is cut into chunks, rows without edges."""
    senders = np.concatenate([np.tile(np.arange(7_000), 5), RNG.integers(0, 9_000, 60_000)])
    receivers = np.concatenate([np.repeat(np.arange(5), 7_000), RNG.integers(0, nodes, 60_000)])
    receivers[-20_000:] = 70
    return Graph.from_edges(senders, receivers, num_nodes=9_000)


def looped() -> Graph:
    """Self-loops in tiles and in the rest, one, three or none of a row."""
    senders, receivers = RNG.integers(0, 300, (2, 30_000))
    receivers[-9_000:] = 70  # in chunks
    kept = senders != receivers
    loops = np.concatenate([np.arange(0, 300, 2), np.repeat(np.arange(0, 300, 6), 2), [70] * 3])
    return Graph.from_edges(
        np.append(senders[kept], loops), np.append(receivers[kept], loops), num_nodes=310
    )


def features(graph: Graph, heads: int, width: int, dtype: str) -> jax.Array:
    """Rows of any length, one of them 0."""
    x = RNG.standard_normal((graph.num_senders, heads, width)) * RNG.uniform(0.1, 3, (1, heads, 1))
    x[graph.num_senders // 2] = 0
    return jnp.asarray(x, dtype)


def exact(
    graph: Graph, x: jax.Array, beta: list[float], *, loops: bool = False
) -> tuple[np.ndarray, ...]:
    """In float64: the averages, those of the rows' sizes, and the logarithms of the sums."""
    rows = np.asarray(x, np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    if loops:
        kept, nodes = senders != receivers, np.arange(graph.num_senders)
        senders, receivers = np.append(senders[kept], nodes), np.append(receivers[kept], nodes)
    out, sizes, log_sum = np.zeros(rows.shape), np.zeros(rows.shape), np.zeros(rows.shape[:2])
    for head, b in enumerate(beta):
        dots = np.einsum("ef,ef->e", unit[senders, head], unit[receivers, head])
        shape = graph.num_receivers, graph.num_senders
        weights = np.exp(b * dots - abs(b))
        matrix: Any = scipy.sparse.coo_matrix((weights, (receivers, senders)), shape).tocsr()
        totals = np.asarray(matrix.sum(axis=1))
        there = totals[:, 0] > 0
        log_sum[there, head] = np.log(totals[there, 0]) + abs(b)
        totals[~there] = 1
        out[:, head] = matrix @ rows[:, head] / totals
        sizes[:, head] = matrix @ np.abs(rows[:, head]) / totals
    return out, sizes, log_sum


def check(graph: Graph, width: int, dtype: str, beta: list[float], *, loops: bool = False) -> None:
    """The averages and the logarithms of the sums, in the same bits twice."""
    x = features(graph, len(beta), width, dtype)
    run = functools.partial(forward, tiled=graph.tiles is not None, loops=loops)
    operands = graph, x, jnp.asarray(beta, jnp.float32)
    out, log_sum = run(*operands)
    for again, one in zip(run(*operands), (out, log_sum), strict=True):
        np.testing.assert_array_equal(again, one)
    expected, sizes, expected_log_sum = exact(graph, x, beta, loops=loops)
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
def test_by_rows_against_float64(dtype):
    """In the graph's order and a schedule; a table of chunks with padding."""
    graph = hubs()
    check(graph, 64, dtype, [1.5])
    check(graph.with_row_schedule(), 64, dtype, [1.5])
    table = np.append(graph.row_chunks.table, np.full((9, 2), [-1, 0]), axis=0)
    chunks = dataclasses.replace(graph.row_chunks, table=jnp.asarray(table, jnp.int32))
    check(dataclasses.replace(graph, row_chunks=chunks), 64, dtype, [1.5])
    check(skewed_graph(331, 30_000).with_row_schedule(), 40, dtype, [-2.0, 0.0, 9.0])
    check(skewed_graph(70, 90), 8, dtype, [1.0], loops=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_self_loops(dtype):
    """One for each row, in place of the graph's, also where these are in tiles; large betas."""
    graph = looped()
    check(graph, 24, dtype, [3.0, 60.0], loops=True)
    check(graph.with_row_schedule(), 64, dtype, [3.0], loops=True)
    for min_edges in (2, 14):  # all loops in tiles but the repeated ones, and some
        tiled = graph.with_tiles(min_edges=min_edges)
        assert tiled.tiles is not None and 0.2 < tiled.tiles.tile_share < 0.8
        check(tiled, 64, dtype, [3.0, -1.0], loops=True)
        check(tiled, 64, dtype, [-50.0], loops=True)
    check(hubs().with_tiles(min_edges=2), 64, dtype, [1.5], loops=True)
    alone = Graph.from_edges(np.arange(70), np.arange(70), num_nodes=90)
    check(alone, 8, dtype, [1.0], loops=True)
    check(alone.with_tiles(min_edges=1), 8, dtype, [1.0], loops=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_all_or_no_edges_in_tiles(dtype):
    dense = Graph.from_edges(np.tile(np.arange(64), 64), np.repeat(np.arange(64), 64), num_nodes=64)
    for loops in (False, True):
        check(dense.with_tiles(), 64, dtype, [1.0], loops=loops)
        check(dense.with_tiles(min_edges=64), 24, dtype, [1.0], loops=loops)
    lonely = Graph.from_edges(np.arange(3_000), np.arange(3_000) % 3, num_nodes=3_000)
    check(lonely.with_tiles(min_edges=64), 64, dtype, [1.0, 2.0])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_large_beta_runs_by_rows(dtype):
    """Where exp(-2 |beta|) is no normal number of the dtype."""
    graph = skewed_graph(200, 9_000)
    check(graph, 16, dtype, [60.0, -60.0])
    check(graph.with_tiles(min_edges=2), 16, dtype, [60.0, -60.0])


@pytest.mark.parametrize("loops", [False, True], ids=["", "loops"])
@pytest.mark.parametrize("tiled", [False, True], ids=["rows", "tiles"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_what_is_not_finite_reaches_its_receivers_alone(dtype, tiled, loops):
    graph = skewed_graph(300, 20_000)
    if tiled:
        graph = graph.with_tiles(min_edges=2)
        assert graph.tiles is not None and graph.tiles.tile_share > 0.3
    x = np.asarray(features(graph, 2, 40, "float32")).copy()
    sender = int(graph.senders[0])
    x[sender, 0, :2] = np.nan, np.inf
    x, beta = jnp.asarray(x, dtype), jnp.ones(2)
    out, log_sum = forward(graph, x, beta, tiled=tiled, loops=loops)
    reached = np.zeros((300, 2), bool)  # of the first head alone
    reached[np.asarray(graph.receivers)[np.asarray(graph.senders) == sender], 0] = True
    reached[sender, 0] = loops or bool(np.diff(graph.row_offsets)[sender])  # its own scores
    np.testing.assert_array_equal(jnp.isnan(out).any(axis=2), reached)
    np.testing.assert_array_equal(jnp.isnan(log_sum), reached)
    zeroed = x.at[sender, 0].set(0)  # others do not read it
    expected, sizes, _ = exact(graph, zeroed, [1.0, 1.0], loops=loops)
    error = np.abs(np.asarray(out, np.float64) - expected)[~reached]
    assert (error <= TOLERANCE[dtype] * sizes[~reached] + 1e-7).all(), error.max()


@pytest.mark.parametrize("loops", [False, True], ids=["", "loops"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_gradients_are_those_of_float32(dtype, loops):
    """Of the operation over tiles and by the rows' kernel, by a traced beta, within `vmap`."""
    graph = skewed_graph(300, 30_000, undirected=True).with_tiles(min_edges=2)
    assert graph.tiles is not None
    x, beta = features(graph, 2, 64, dtype), jnp.asarray([1.5, -3.0])
    x = x.at[graph.num_senders // 2].set(0.5)  # at 0 a norm's derivative is beyond 16 bits

    @functools.partial(jax.jit, static_argnames="impl")
    def run(x, beta, impl):
        f = functools.partial(cosine_attention, graph, self_loops=loops, impl=impl)
        return f(x, beta), *gradients(f, (x, beta))

    expected = run(x.astype(jnp.float32), beta, "jax")
    for impl in ("tiles", "rows", None):
        for own, theirs in zip(run(x, beta, impl), expected, strict=True):
            size = float(jnp.max(jnp.abs(theirs)))
            error = np.abs(np.asarray(own, np.float64) - np.asarray(theirs, np.float64))
            assert error.max() <= 6 * TOLERANCE[dtype] * size, (impl, error.max(), size)
    batch = jnp.stack([x, 2 * x[::-1], -x])

    def tiled(x: jax.Array) -> jax.Array:
        return cosine_attention(graph, x, beta, self_loops=loops, impl="tiles")

    each = jnp.stack([jax.jit(tiled)(one) for one in batch])
    error = jnp.abs(jax.jit(jax.vmap(tiled))(batch).astype(jnp.float32) - each)
    assert error.max() <= TOLERANCE[dtype] * jnp.max(jnp.abs(each))
