"""`sample_neighbors`, by every way to draw: counts, edges, places and padding, on any graph."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import jaxgnn
from tests.support.oracle_blocks import check_blocks
from tests.support.strategies import examples

SEEDS = 5
METHODS = ("uniform", "replace", "labor", "weights", "weights, replace", "alias", "function")


def last_edges(graph, nodes, size, key):
    """A custom function: the last edges of each row, backwards."""
    del key
    node, number = jnp.maximum(nodes, 0), jnp.arange(size)
    degrees = jnp.where(nodes >= 0, graph.in_degrees[node], 0)[:, None]
    edges = graph.row_offsets[node + 1][:, None] - 1 - number
    return jnp.where(number < degrees, edges, -1)


@functools.partial(jax.jit, static_argnames=("sizes", "name", "unique", "impl"))
def sample(graph, seeds, key, weights, *, sizes, name, unique, impl):
    options = {"labor": {"method": "labor"}, "function": {"method": last_edges}}.get(name, {})
    replace = name in ("replace", "weights, replace", "alias")
    return jaxgnn.sample_neighbors(
        *(graph, seeds, sizes, key),
        **options,
        weights=weights,
        replace=replace,
        deduplicate=unique,
        impl=impl,
    )


@st.composite
def weighted_graphs(draw):
    """Few shapes, as each is compiled: no edges, one node of loops, isolated and repeated ones."""
    nodes, edges = draw(st.sampled_from([(1, 0), (1, 3), (30, 120)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    receivers = rng.integers(0, draw(st.integers(1, nodes)), edges)
    graph = jaxgnn.Graph.from_edges(rng.integers(0, nodes, edges), receivers, num_nodes=nodes)
    weights = rng.exponential(size=edges).astype(np.float32)
    weights[rng.random(edges) < draw(st.sampled_from([0, 0.4, 1]))] = 0
    return graph, weights


@pytest.mark.few(1)
@pytest.mark.parametrize("name", METHODS)
@examples(6)
@given(
    graph_and_weights=weighted_graphs(),
    sizes=st.sampled_from([(6, 2), (2, 1, 3)]),
    seeds=st.lists(st.integers(-1, 29), min_size=SEEDS, max_size=SEEDS) | st.just([]),
    unique=st.booleans(),
    impl=st.sampled_from([None, "jax"]),
    key=st.integers(0, 2**31),
)
def test_any_graph(name, graph_and_weights, sizes, seeds, unique, impl, key):
    graph, weights = graph_and_weights
    seeds = np.minimum(seeds, graph.num_nodes - 1).astype(np.int32)
    given_weights, available = None, None
    if name in ("weights", "weights, replace", "alias"):
        positive = np.asarray(graph.receivers)[weights > 0]
        available = np.bincount(positive, minlength=graph.num_nodes)
        given_weights = weights
        if name == "alias":
            given_weights = jaxgnn.draw_weights(graph, weights, replace=True)
    arguments = graph, jnp.asarray(seeds), jax.random.key(key), given_weights
    blocks = sample(*arguments, sizes=sizes, name=name, unique=unique, impl=impl)
    assert not blocks.overflow
    check_blocks(
        *(graph, blocks, seeds, sizes),
        unique=unique,
        replace="replace" in name or name == "alias",
        available=available,
    )
    edges = np.asarray(blocks.edges)
    if available is not None:
        assert (weights[edges[edges >= 0]] > 0).all()
    # Rows of features are those of the places' nodes, 0 for padding.
    x = np.arange(1, graph.num_nodes + 1, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(blocks.take(x)[:, 0], np.asarray(blocks.nodes) + 1)
