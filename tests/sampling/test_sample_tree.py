"""Trees of neighbors by one call: what the reference draws, in the same places."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn.ops._core.philox import key_words
from jaxgnn.ops._sampling.hops import Hop, joined, layout_of_tree, level_of
from jaxgnn.ops._sampling.tree import hop_keys

pytestmark = pytest.mark.few(1)

RNG = np.random.default_rng(0)
DRAWS = ("distinct", "replace", "alias")


def random_graph(nodes, edges):
    """Half of the edges enter three nodes, none the last five."""
    receivers = RNG.integers(0, max(nodes - 5, 1), edges)
    receivers[: edges // 2] = RNG.integers(0, min(nodes, 3), edges // 2)
    return jaxgnn.Graph.from_edges(RNG.integers(0, nodes, edges), receivers, num_nodes=nodes)


@functools.partial(jax.jit, static_argnames=("sizes", "replace", "impl"))
def sample(graph, seeds, key, weights, sizes, replace, impl=None):
    return jaxgnn.sample_neighbors(
        graph, seeds, sizes, key, weights=weights, replace=replace, impl=impl
    )


def weights_of(graph, draws):
    """Of "alias": some edges have no weight, nor has a long row."""
    if draws != "alias":
        return None
    weights = RNG.exponential(size=graph.num_edges).astype(np.float32)
    weights[(RNG.random(weights.size) < 0.4) | (np.asarray(graph.receivers) == 1)] = 0
    return jaxgnn.draw_weights(graph, weights, replace=True)


def check(nodes, edges, num_seeds, sizes, draws, wide=False):
    graph, key = random_graph(nodes, edges), jax.random.key(num_seeds)
    weights = weights_of(graph, draws)
    seeds = jnp.asarray(RNG.integers(-1, nodes, num_seeds), jnp.int32)
    with jax.enable_x64(wide):
        if wide:
            graph = dataclasses.replace(graph, row_offsets=graph.row_offsets.astype("int64"))
        operands = graph, seeds, key, weights, tuple(sizes), draws != "distinct"
        if jax.default_backend() == "gpu":
            assert "jaxgnn_sample_tree" in sample.lower(*operands).as_text()
        jax.tree.map(
            np.testing.assert_array_equal, sample(*operands), sample(*operands, impl="jax")
        )


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("sizes", [[1], [15, 10, 5], [2, 32]])
def test_blocks_take_the_same(sizes, draws):
    check(60, 400, 5, sizes, draws)


@pytest.mark.gpu
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(
    ("num_seeds", "sizes", "wide"),
    [
        # Levels in one block of threads and in many, aligned and not; the states of blocks cleared
        # by the first hop, and before it; blocks that have to look back several windows.
        (1, [32, 17, 3], False),
        (1024, [15, 10, 5], False),
        (1100, [5, 3], True),
        (4096, [3, 2], False),
        (4097, [9, 4, 1], False),
        (70_000, [3, 2], True),
    ],
)
def test_many_blocks_of_threads(num_seeds, sizes, wide, draws):
    check(3000, 30_000, num_seeds, sizes, draws, wide)


@pytest.mark.gpu
def test_every_call_draws_the_same():
    """However the blocks of threads come to wait for one another."""
    graph = random_graph(3000, 30_000)
    seeds = jnp.arange(20_000, dtype=jnp.int32) % 3000
    operands = graph, seeds, jax.random.key(0), None, (5, 3), False
    first = sample(*operands)
    for _ in range(50):
        again = sample(*operands)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), first, again)))


@pytest.mark.parametrize("draws", ["distinct", "alias"])
def test_sanitized(draws):
    """A few blocks of threads in each hop."""
    check(60, 400, 200, [3, 5], draws)


@pytest.mark.parametrize(("num_seeds", "sizes"), [(3, [2]), (1024, [3, 2]), (1500, [1, 1, 2])])
def test_the_layout_is_that_of_the_levels(num_seeds, sizes):
    levels, hops = [level_of(jnp.zeros(num_seeds, jnp.int32), 0)], []
    for size in sizes:
        level = levels[-1]
        edges = jnp.zeros((level.count - level.padding) * size, jnp.int32)
        hops.append(Hop(jnp.zeros(level.count + 1, jnp.int32), edges, edges, size))
        levels.append(level_of(edges, level.first + level.count))
    assert joined(levels, hops)[0] == layout_of_tree(num_seeds, sizes)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_the_keys_of_hops_are_those_of_fold_in(impl):
    key = jax.random.key(7, impl=impl)
    with jax.default_prng_impl(impl):
        for given in (key, jax.random.key_data(key)):
            for hop, words in enumerate(hop_keys(given, 3)):
                expected = key_words(jax.random.fold_in(given, hop))
                np.testing.assert_array_equal(words, expected)
