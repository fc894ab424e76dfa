"""`draw_weights`: weights made ready once, for a custom loop and for a loader."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import draw_weights, sample_neighbors
from jaxgnn.train import NeighborLoader

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(0)
    return jaxgnn.Graph.from_edges(
        rng.integers(30, size=400), rng.integers(20, size=400), num_nodes=30
    )


@pytest.fixture(scope="module")
def weights(graph):
    rng = np.random.default_rng(1)
    found = rng.exponential(size=graph.num_edges).astype(np.float32)
    found[rng.random(graph.num_edges) < 0.3] = 0
    return found


def test_the_probabilities_of_a_table_are_those_of_the_equation(graph, weights):
    ready = draw_weights(graph, weights, replace=True)
    cells = np.asarray(ready.table).reshape(-1, 2)
    offsets = np.asarray(graph.row_offsets)
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        own = weights[begin:end].astype(np.float64)
        assert ready.counts[row] == (own > 0).sum()
        if not own.any():
            continue
        below = cells[begin:end, 0] / 2**32  # t_c
        found = below.copy()
        np.add.at(found, cells[begin:end, 1], 1 - below)
        degree = end - begin
        np.testing.assert_allclose(
            found / degree, own / own.sum(), rtol=2**-32, atol=2**-31 / degree
        )
        assert ((found > 0) == (own > 0)).all()


@pytest.mark.parametrize("replace", [False, True])
def test_a_jitted_loop_takes_it_as_an_argument(graph, weights, replace):
    """One program for all weights of a graph; each draw is what a call by itself draws."""
    traces = []

    @jax.jit
    def loop(graph, ready, keys):
        traces.append(None)

        def step(_, key):
            return None, sample_neighbors(
                graph, jnp.arange(20), [4, 2], key, weights=ready, replace=replace
            )

        return jax.lax.scan(step, None, keys)[1]

    keys = jax.random.split(KEY, 3)
    for some in (weights, weights[::-1].copy()):
        ready = draw_weights(graph, some, replace=replace)
        blocks = loop(graph, ready, keys)
        for number, key in enumerate(keys):
            given = ready if replace else some  # without replacement an array draws the same
            alone = sample_neighbors(
                graph, np.arange(20), [4, 2], key, weights=given, replace=replace
            )
            np.testing.assert_array_equal(blocks.edges[number], alone.edges)
        edges = np.asarray(blocks.edges)
        assert edges.max() >= 0 and (some[edges[edges >= 0]] > 0).all()
    assert len(traces) == 1


@pytest.mark.parametrize("replace", [False, True])
def test_a_loader_takes_it(graph, weights, replace):
    ready = draw_weights(graph, weights, replace=replace)
    options = {"batch_size": 8, "replace": replace}
    loaders = [
        NeighborLoader(graph, None, None, [3, 2], weights=given, **options)
        for given in (weights, ready)
    ]
    for one, other in zip(*loaders, strict=True):
        np.testing.assert_array_equal(one.blocks.edges, other.blocks.edges)


def test_traced_weights_draw_as_a_call_does(graph, weights):
    """The host cannot build a table of what is traced."""

    @jax.jit
    def both(graph, weights):
        ready = draw_weights(graph, weights, replace=True)
        assert ready.kind == "sums"
        return [
            sample_neighbors(graph, jnp.arange(20), [4], KEY, weights=given, replace=True).edges
            for given in (ready, weights)
        ]

    np.testing.assert_array_equal(*both(graph, weights))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(graph, weights, dtype):
    """Numbers that all dtypes have give one table; float64 keeps ratios beyond float32's range."""
    halves = np.float32(np.rint(2 * weights) / 2)
    expected = draw_weights(graph, halves, replace=True)
    given = jnp.bfloat16(halves) if dtype == "bfloat16" else halves.astype(dtype)
    if dtype == "float64":
        given = given * 2.0**500
    found = draw_weights(graph, given, replace=True)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"graph": None}, TypeError, "graph: expected a jaxgnn.Graph"),
        ({"weights": None}, TypeError, "weights: expected floating-point numbers, got None"),
        ({"weights": np.ones(400, int)}, TypeError, "weights: expected float32.*got int"),
        ({"weights": np.ones(3, np.float32)}, ValueError, r"weights: .*\(400,\), got \(3,\)"),
        ({"weights": np.full(400, -2.5)}, ValueError, "weights: .* at least 0, got -2.5"),
        ({"weights": np.full(400, np.nan)}, ValueError, "weights: expected finite.* got nan"),
        ({"weights": np.full(400, np.inf)}, ValueError, "weights: expected finite.* got inf"),
        ({"replace": 1}, TypeError, "replace: expected True or False, got 1"),
    ],
)
def test_errors_name_the_argument(graph, weights, replace, changed, error, message):
    given = {"graph": graph, "weights": weights, "replace": replace, **changed}
    with pytest.raises(error, match=message):
        draw_weights(**given)


def test_what_was_made_for_other_draws_is_refused(graph, weights):
    for replace in (False, True):
        ready = draw_weights(graph, weights, replace=not replace)
        with pytest.raises(ValueError, match=f"weights: .* made ready for replace={replace}, got"):
            sample_neighbors(graph, np.arange(3), [2], KEY, weights=ready, replace=replace)
    other = jaxgnn.Graph.from_edges([0, 1], [1, 0], num_nodes=2)
    with pytest.raises(ValueError, match="weights: expected tables of shapes"):
        sample_neighbors(other, np.arange(2), [2], KEY, weights=ready, replace=False)
