"""Alias tables: their exact shares, who builds them, and what is drawn by them."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import jaxgnn
from jaxgnn import DrawWeights, draw_weights
from jaxgnn.ops._sampling import alias
from jaxgnn.ops._sampling.weighted import ready_weights
from jaxgnn.train import NeighborLoader
from tests.support.raw_calls.common import Graph
from tests.support.raw_calls.sampling import sample_edges

CELL = 2**32
HUB = 40_000

needs_module = pytest.mark.skipif(alias.cpu_module is None, reason="jaxgnn._cpu is not built")


def in_numpy(rows):
    """The table in NumPy of some lists of weights, and their offsets and weights."""
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    weights = np.concatenate([np.zeros(0), *rows]).astype(np.float32)
    return offsets, weights, alias._alias_table_numpy(offsets, weights)


def units_of(table):
    """The exact units that a row's table gives to each edge."""
    thresholds, aliases = table.reshape(-1, 2).astype(np.int64).T
    units = thresholds.copy()
    np.add.at(units, aliases, CELL - thresholds)
    return units


def same_in_cpp(offsets, weights, expected):
    for threads in (1, 2, 8):
        for index in (np.int32, np.int64):
            found = alias.cpu_module.alias_table(
                offsets.astype(index), weights, num_threads=threads
            )
            for a, b in zip(found, expected, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


FLOATS = st.floats(0, float(np.finfo(np.float32).max), width=32)
WEIGHTS = st.one_of(FLOATS, st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 1e-30, 2.0**-149, 2.0**-126]))


@given(st.lists(st.lists(WEIGHTS, max_size=12), max_size=6))
def test_the_shares_are_those_of_the_weights(rows):
    """Each edge with a weight has a unit, and its share of the others but for one."""
    offsets, weights, (table, counts) = in_numpy(rows)
    if alias.cpu_module is not None:
        same_in_cpp(offsets, weights, (table, counts))
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        exact = [Fraction(float(weight)) for weight in weights[begin:end]]
        assert counts[i] == sum(weight > 0 for weight in exact)
        assert (table[2 * begin : 2 * end].reshape(-1, 2)[:, 1] < end - begin).all()
        if counts[i] == 0:
            continue
        units = units_of(table[2 * begin : 2 * end])
        shared = CELL * len(exact) - int(counts[i])
        assert units.sum() == CELL * len(exact)
        for unit, weight in zip(units.tolist(), exact, strict=True):
            if weight == 0:
                assert unit == 0
            else:
                # Of so few edges, what the weights' rounding to 62 bits adds is less than 0.01.
                assert unit >= 1
                assert abs(unit - 1 - shared * weight / sum(exact)) < 1.01


def rows_of(kind):
    rng = np.random.default_rng(0)
    sizes = np.maximum(rng.lognormal(2, 1.5, 600).astype(int) - 2, 0)
    sizes[[0, 5, 599]] = 0, HUB, 0
    draw = {
        "even": lambda d: np.ones(d),
        "integers": lambda d: rng.integers(0, 3, d),
        "decades": lambda d: np.exp(np.clip(rng.normal(size=d) * 25, -100, 88)),
        "extremes": lambda d: rng.choice([0, 2.0**-149, 1e-38, 1e-30, 1, 3e38, np.inf], d),
        "none": lambda d: np.zeros(d),
    }[kind]
    return [draw(d) for d in sizes]


@needs_module
@pytest.mark.parametrize("kind", ["even", "integers", "decades", "extremes", "none"])
def test_cpp_and_numpy_build_the_same(kind):
    """Also of float64 that float32 has no number for: infinity counts as 2^128."""
    offsets, weights, expected = in_numpy(rows_of(kind))
    same_in_cpp(offsets, weights, expected)


@needs_module
def test_bad_arguments_of_the_module():
    weights = np.ones(3, np.float32)
    for offsets in ([0, 2], [0, 4], [1, 3], [0, 2, 1, 3], []):
        with pytest.raises(ValueError, match="inconsistent"):
            alias.cpu_module.alias_table(np.array(offsets, np.int32), weights)


@pytest.mark.parametrize("large", [2.0**-126, 1.0, 1e38])
def test_a_hub(large):
    """One edge prevails over 39,999: the others have a unit each, and those of weight 0 none."""
    weights = np.full(HUB, large * 1e-30, np.float32)  # subnormal or 0 beside the smallest
    weights[123], weights[5:9] = large, 0
    _, weights, (table, counts) = in_numpy([weights])
    units = units_of(table)
    assert units.sum() == CELL * HUB
    assert counts[0] == (weights > 0).sum()
    np.testing.assert_array_equal(units > 0, weights > 0)
    others = np.delete(units, 123)
    assert others.max() <= 1
    drawn = draws(star(weights), weights, 40_000)
    np.testing.assert_array_equal(drawn, 123)


def star(weights):
    d = len(weights)
    return jaxgnn.Graph.from_edges(np.arange(d), np.zeros(d, int), num_nodes=d)


def draws(graph, weights, places, impl=None):
    """The edges that a loader's table draws of row 0, five a place."""
    ready = draw_weights(graph, weights, replace=True)
    assert ready.kind == "alias"
    seeds = jnp.zeros(places, jnp.int32)
    blocks = jaxgnn.sample_neighbors(
        graph, seeds, [5], jax.random.key(7), weights=ready, replace=True, impl=impl
    )
    edges = np.asarray(blocks.edges)
    return edges[edges >= 0]


def p_value(counts, law):
    expected = counts.sum() * law
    assert not counts[expected == 0].any()
    return stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_draws_are_proportional(dtype):
    weights = np.array([1, 0, 7, 2.5, 0.25, 3, 0, 1e-3])
    given_weights = weights.astype(dtype) if dtype != "bfloat16" else jnp.bfloat16(weights)
    if dtype == "float64":
        with jax.enable_x64(True):
            drawn = draws(star(weights), weights, 100_000)
    else:
        drawn = draws(star(weights), given_weights, 100_000)
    law = np.asarray(given_weights, np.float64)
    assert p_value(np.bincount(drawn, minlength=8), law / law.sum()) > 1e-4


def test_draws_of_a_hub_are_proportional():
    rng = np.random.default_rng(1)
    weights = np.exp(rng.normal(scale=3, size=HUB)).astype(np.float32)
    weights[rng.random(HUB) < 0.3] = 0
    drawn = draws(star(weights), weights, 100_000)
    assert (weights[drawn] > 0).all()
    # In 40 groups of equal weight: most edges are too light to be counted by themselves.
    law = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    order = np.argsort(law)
    group = np.empty(HUB, int)
    group[order] = np.minimum(40 * np.cumsum(law[order]), 39).astype(int)
    counts = np.bincount(group[drawn], minlength=40)
    assert p_value(counts, np.bincount(group, law, 40)) > 1e-4


def graph_and_weights():
    """Rows without edges, of one edge, without weights, and long ones."""
    rng = np.random.default_rng(2)
    degrees = [0, 1, 1, 7, 40, 3, 500, 2]
    receivers = np.repeat(np.arange(8), degrees)
    senders = rng.integers(0, 8, receivers.size)
    graph = jaxgnn.Graph.from_edges(senders, receivers, num_nodes=8)
    weights = np.exp(rng.normal(scale=9, size=graph.num_edges)).astype(np.float32)
    weights[rng.random(weights.size) < 0.4] = 0
    rows = np.asarray(graph.receivers)
    weights[rows == 1], weights[rows == 2], weights[rows == 5] = 1e-45, 0, 0
    return graph, weights


@pytest.mark.parametrize("deduplicate", [False, True])
def test_the_kernel_and_the_reference_draw_the_same(deduplicate):
    graph, weights = graph_and_weights()
    ready = draw_weights(graph, weights, replace=True)
    found = {}
    for impl in (None, "jax"):
        found[impl] = jaxgnn.sample_neighbors(
            *(graph, np.arange(-1, 8), [33, 2], jax.random.key(0)),
            weights=ready,
            replace=True,
            deduplicate=deduplicate,
            impl=impl,
        )
    jax.tree.map(np.testing.assert_array_equal, found[None], found["jax"])
    edges = np.asarray(found[None].edges)
    assert (weights[edges[edges >= 0]] > 0).all()
    # A row takes all of its draws, or none where nothing has a weight.
    expected = np.where(np.asarray(ready.counts) > 0, 33, 0)
    np.testing.assert_array_equal(found[None].graphs[-1].in_degrees[:9], [0, *expected])
    np.testing.assert_array_equal(expected, [0, 33, 0, 33, 33, 0, 33, 33])


def test_vmap_over_keys_and_tables():
    graph, weights = graph_and_weights()
    tables = [draw_weights(graph, w, replace=True) for w in (weights, weights[::-1].copy())]
    keys = jax.random.split(jax.random.key(0), 2)

    def sample(ready, key):
        return jaxgnn.sample_neighbors(
            graph, np.arange(8), [4], key, weights=ready, replace=True
        ).edges

    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *tables)
    expected = np.stack([sample(*pair) for pair in zip(tables, keys, strict=True)])
    np.testing.assert_array_equal(jax.vmap(sample)(stacked, keys), expected)


def loader(graph, weights, **options):
    return NeighborLoader(
        *(graph, None, None, [4, 3]), batch_size=3, weights=weights, replace=True, **options
    )


@pytest.mark.parametrize("deduplicate", [False, True])
def test_a_loader_goes_on_where_another_stopped(deduplicate):
    graph, weights = graph_and_weights()
    first = loader(graph, weights, deduplicate=deduplicate)
    assert first._data.weights.kind == "alias"
    following = iter(first)
    next(following)
    state, expected = first.state, next(following).blocks
    second = loader(graph, jnp.asarray(weights), deduplicate=deduplicate)
    second.state = state
    jax.tree.map(np.testing.assert_array_equal, next(iter(second)).blocks, expected)


@needs_module
def test_a_loader_without_the_module_draws_the_same(monkeypatch):
    graph, weights = graph_and_weights()
    expected = [batch.blocks.edges for batch in loader(graph, weights)]
    monkeypatch.setattr(alias, "cpu_module", None)
    for batch, edges in zip(loader(graph, weights), expected, strict=True):
        np.testing.assert_array_equal(batch.blocks.edges, edges)


def test_what_is_made_ready_where():
    """Tables on the host alone, where many draws follow; and not without replacement."""
    graph, weights = graph_and_weights()
    assert ready_weights(graph, weights, True).kind == "sums"
    assert draw_weights(graph, weights).kind == "race"
    kinds = []

    @jax.jit
    def trace(graph, weights):
        kinds.append(draw_weights(graph, weights, replace=True).kind)
        kinds.append(draw_weights(graph, np.ones(graph.num_edges), replace=True).kind)

    trace(graph, weights)
    assert kinds == ["sums", "sums"]


def test_a_table_that_does_not_fit():
    graph, weights = graph_and_weights()
    ready = draw_weights(graph, weights, replace=True)

    def sample(ready, replace=True):
        key = jax.random.key(0)
        return jaxgnn.sample_neighbors(
            graph, np.arange(8), [4], key, weights=ready, replace=replace
        )

    with pytest.raises(ValueError, match="made ready for replace=False, got 'alias'"):
        sample(ready, replace=False)
    with pytest.raises(ValueError, match="made ready for replace=True, got 'race'"):
        sample(draw_weights(graph, weights))
    for table, counts in ((ready.table[:-2], ready.counts), (ready.table, ready.counts[1:])):
        with pytest.raises(ValueError, match="weights: expected tables of shapes"):
            sample(DrawWeights(table, counts, "alias"))


@pytest.mark.parametrize("word", [0, 2**31, 2**32 - 1])
def test_whatever_a_table_is_a_row_draws_its_own_edges(word):
    graph, weights = graph_and_weights()
    ready = draw_weights(graph, weights, replace=True)
    ready = DrawWeights(jnp.full_like(ready.table, word), ready.counts, "alias")
    found = [
        jaxgnn.sample_neighbors(
            graph, np.arange(8), [7], jax.random.key(0), weights=ready, replace=True, impl=impl
        )
        for impl in (None, "jax")
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)
    edges = np.asarray(found[0].edges)
    receivers = np.asarray(found[0].graphs[0].receivers)[edges >= 0]
    np.testing.assert_array_equal(np.asarray(graph.receivers)[edges[edges >= 0]], receivers)


@needs_module
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="calls the CPU's handler")
def test_the_handler_refuses_other_tables():
    call = sample_edges(Graph(empty=False))
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in call.results.values()]
    attributes = {name: np.int64(value) for name, value in call.attributes.items()}
    edges = call.operands["weights"].size

    def run(weights, strategy=8):
        operands = {**call.operands, "weights": weights}.values()
        given = {**attributes, "strategy": np.int64(strategy)}
        jax.block_until_ready(jax.ffi.ffi_call("jaxgnn_sample_edges", types)(*operands, **given))

    run(np.zeros(2 * edges, np.uint32))
    for weights in (
        np.zeros(2 * edges, np.int32),
        np.zeros(edges, np.uint32),
        np.zeros((edges, 2), np.uint32),
        np.zeros(0, np.uint32),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="weights must be uint32"):
            run(weights)
    with pytest.raises(jax.errors.JaxRuntimeError, match="strategy must be from 0 to 8"):
        run(np.zeros(2 * edges, np.uint32), strategy=9)


def test_without_edges():
    graph = jaxgnn.Graph.from_edges([], [], num_nodes=3)
    for batch in loader(graph, np.zeros(0, np.float32)):
        assert not batch.blocks.edge_mask.any()
    _, _, (table, counts) = in_numpy([])
    assert table.size == counts.size == 0
