"""Chi-squared tests of `sample_neighbors`: each edge, and each set of edges, is as likely."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxgnn

# Ways to draw edges that are all alike. Weights of 1 are drawn alike, too.
WAYS = {
    "tree": {},
    "unique": {"deduplicate": True},
    "labor": {"method": "labor"},
    "labor, unique": {"method": "labor", "deduplicate": True},
    "weights": {"weights": "array"},
    "replace": {"replace": True},
    "weights, replace": {"weights": "array", "replace": True},
    "alias": {"weights": "table", "replace": True},
}
SIZES = [(1, 2), (3, 7), (10, 11), (15, 577)]
SHARE_OF_NOISE = 1e-6  # of either tail


@functools.partial(jax.jit, static_argnames=("rows", "size", "way"))
def places(graph, keys, weights, *, rows, size, way):
    options = {name: value for name, value in WAYS[way].items() if name != "weights"}

    def one(key):
        blocks = jaxgnn.sample_neighbors(
            graph, jnp.arange(rows), [size], key, weights=weights, **options
        )
        return blocks.edges[: rows * size].reshape(rows, size)

    return jax.lax.map(one, keys)


def drawn(way, size, degree, draws):
    """The numbers within its row of the edges that each of many places draws, `[places, size]`.

    All senders are distinct: LABOR draws a number a sender, and rows have nothing in common.
    """
    rows = min(-(-draws // size), (1 << 19) // degree)
    receivers = np.repeat(np.arange(rows), degree)
    edges = rows * degree
    graph = jaxgnn.Graph.from_edges(np.arange(edges), receivers, num_nodes=edges)
    weights = {"array": np.ones(edges, np.float32)}
    if WAYS[way].get("weights") == "table":
        weights["table"] = jaxgnn.draw_weights(graph, weights["array"], replace=True)
    keys = jax.random.split(jax.random.key(5), -(-draws // (rows * size)))
    found = places(
        graph, keys, weights.get(WAYS[way].get("weights")), rows=rows, size=size, way=way
    )
    found = np.asarray(found).reshape(-1, size)
    assert (found // degree == np.tile(np.arange(rows), len(keys))[:, None]).all()
    return found % degree


def check_edges(way, size, degree, draws):
    counts = np.bincount(drawn(way, size, degree, draws).reshape(-1), minlength=degree)
    total, replace = counts.sum(), WAYS[way].get("replace", False)
    assert total >= draws and counts.size == degree
    expected = total / degree
    # Without replacement the counts of a row are correlated: they vary by (1 - k / d) of this.
    share = 1.0 if replace else (degree - size) / (degree - 1)
    statistic = np.sum((counts - expected) ** 2) / (expected * share)
    assert SHARE_OF_NOISE < stats.chi2.sf(statistic, degree - 1) < 1 - SHARE_OF_NOISE
    # The first and the last neighbor alone, which an error by one in a bound would miss.
    deviation = np.sqrt(expected * (1 - (1 if replace else size) / degree))
    assert (np.abs(counts[[0, -1]] - expected) < 5 * deviation).all()


def check_pairs(way, draws):
    """Of 2 of 4 edges there are six pairs; with replacement sixteen, in order."""
    pairs = drawn(way, 2, 4, draws)
    if WAYS[way].get("replace"):
        expected = list(itertools.product(range(4), repeat=2))
    else:
        pairs = np.sort(pairs, axis=1)
        expected = list(itertools.combinations(range(4), 2))
    counts = np.array([(pairs == pair).all(axis=1).sum() for pair in expected])
    assert counts.sum() == len(pairs)
    assert SHARE_OF_NOISE < stats.chisquare(counts).pvalue < 1 - SHARE_OF_NOISE


@pytest.mark.few(3)
@pytest.mark.parametrize(("size", "degree"), SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_every_edge_is_as_likely(way, size, degree):
    check_edges(way, size, degree, 30_000)


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WAYS)
def test_all_pairs_are_as_likely(way):
    check_pairs(way, 30_000)


@pytest.mark.system
@pytest.mark.parametrize(("size", "degree"), SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_every_edge_is_as_likely_in_a_million_draws(way, size, degree):
    check_edges(way, size, degree, 10**6)


@pytest.mark.system
@pytest.mark.parametrize("way", WAYS)
def test_all_pairs_are_as_likely_in_a_million_draws(way):
    check_pairs(way, 10**6)
