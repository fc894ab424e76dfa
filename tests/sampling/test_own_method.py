"""A custom function that chooses the edges: `method=`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn.train import NeighborLoader

RNG = np.random.default_rng(0)
NODES = 30
GRAPH = jaxgnn.Graph.from_edges(
    RNG.integers(0, NODES, 200), RNG.integers(0, NODES - 4, 200), num_nodes=NODES
)
KEY = jax.random.key(0)
SEEDS = np.array([3, -1, 12, 29, 3])
# Of each row, the edges with the largest times first.
TIMES = RNG.permutation(200)
LATEST_FIRST = np.lexsort((-TIMES, np.asarray(GRAPH.receivers)))


def most_recent(graph, nodes, size, key, *, latest_first):
    del key
    node, number = jnp.maximum(nodes, 0), jnp.arange(size)
    degrees = jnp.where(nodes >= 0, graph.in_degrees[node], 0)
    edges = latest_first.at[graph.row_offsets[node][:, None] + number].get(mode="clip")
    return jnp.where(number < degrees[:, None], edges, -1)


RECENT = jax.tree_util.Partial(most_recent, latest_first=jnp.asarray(LATEST_FIRST))


def uniform(graph, nodes, size, key):
    """With replacement, and about half of the places of a row empty."""
    node = jnp.maximum(nodes, 0)
    degrees = jnp.where(nodes >= 0, graph.in_degrees[node], 0)[:, None]
    shape = (nodes.shape[0], size)
    number = jax.random.randint(key, shape, 0, jnp.maximum(degrees, 1))
    there = (degrees > 0) & jax.random.bernoulli(jax.random.fold_in(key, 1), shape=shape)
    return jnp.where(there, graph.row_offsets[node][:, None] + number, -1)


def rows_of(blocks):
    """The edges of each place of the first layer, in order, without padding."""
    first, edges = blocks.graphs[0], np.asarray(blocks.edges)
    offsets = np.asarray(first.row_offsets)
    rows = [edges[a:b] for a, b in itertools.pairwise(offsets)]
    return [row[row >= 0].tolist() for row in rows]


@pytest.mark.system
@pytest.mark.parametrize("deduplicate", [False, True])
def test_the_most_recent_edges(deduplicate):
    options = {"method": RECENT, "deduplicate": deduplicate}
    blocks = jaxgnn.sample_neighbors(GRAPH, SEEDS, [4, 3], KEY, **options)
    senders, receivers = np.asarray(GRAPH.senders), np.asarray(GRAPH.receivers)

    def latest(node, size):
        own = np.flatnonzero(receivers == node)
        return own[np.argsort(-TIMES[own])][:size].tolist()

    nodes, rows = np.asarray(blocks.nodes), rows_of(blocks)
    first_hop = blocks.graphs[1].num_receivers
    for place, row in enumerate(rows):
        assert row == (latest(nodes[place], 4 if place < first_hop else 3))
    real = np.asarray(blocks.edge_mask)
    ends = np.asarray(blocks.graphs[0].senders), np.asarray(blocks.graphs[0].receivers)
    np.testing.assert_array_equal(nodes[ends[0][real]], senders[np.asarray(blocks.edges)[real]])
    np.testing.assert_array_equal(nodes[ends[1][real]], receivers[np.asarray(blocks.edges)[real]])
    assert (nodes[ends[0][~real]] == -1).all() and (nodes[ends[1][~real]] == -1).all()
    for layer in blocks.graphs:
        layer.validate()
    if deduplicate:
        added = nodes[len(SEEDS) :][nodes[len(SEEDS) :] >= 0]
        assert len(set(added)) == len(added)
    else:  # traced, the arrays of the function arguments of the program
        traced = jax.jit(
            lambda graph, method: jaxgnn.sample_neighbors(graph, SEEDS, [4, 3], KEY, method=method)
        )(GRAPH, RECENT)
        jax.tree.map(np.testing.assert_array_equal, traced, blocks)


def test_edges_anywhere_in_a_row_come_together():
    def hops(method):
        return rows_of(jaxgnn.sample_neighbors(GRAPH, SEEDS, [6], KEY, method=method))

    rows = hops(uniform)
    key = jax.random.fold_in(KEY, 0)
    given = np.asarray(uniform(GRAPH, jnp.append(jnp.asarray(SEEDS), -1), 6, key))
    assert (given[:, :-1] < given[:, 1:]).any()  # -1 before an edge
    assert [row[row >= 0].tolist() for row in given] == rows[: len(given)]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.int64])
def test_edges_of_other_dtypes(dtype):
    """No conversion makes an edge of the node out of a number that is none."""
    first = int(GRAPH.row_offsets[1])  # of node 1; 2^32 more is the same in 32 bits

    def sample(seeds, more):
        def of_node_1(graph, nodes, size, key):
            edges = np.full((nodes.shape[0], size), np.iinfo(dtype).max, dtype)
            edges[0] = first, first + more
            return edges

        return jaxgnn.sample_neighbors(GRAPH, seeds, [2], KEY, method=of_node_1)

    blocks = jax.jit(sample, static_argnums=1)(jnp.array([1]), 0)
    assert rows_of(blocks) == [[first, first], []]
    if dtype == np.int64:
        with pytest.raises(ValueError, match=f"method: expected .* node 1, got {first + 2**32}"):
            sample(np.array([1]), 2**32)


def test_traced_edges_of_other_nodes_count_as_none():
    begin, end = (int(offset) for offset in GRAPH.row_offsets[3:5])

    def others(graph, nodes, size, key):
        row = jnp.array([begin - 1, -7, begin, 2**31 - 1, end, end - 1], jnp.int32)
        return jnp.broadcast_to(row, (nodes.shape[0], size))

    def sample(seeds):
        return jaxgnn.sample_neighbors(GRAPH, seeds, [6], KEY, method=others)

    blocks = jax.jit(sample)(jnp.array([3, -1, 29, 99]))
    assert rows_of(blocks)[:4] == [[begin, end - 1], [], [], []]
    np.testing.assert_array_equal(blocks.nodes[:5], [3, -1, 29, -1, -1])
    with pytest.raises(
        ValueError,
        match=f"method: expected one of {begin} to {end - 1} or -1, of edges that enter node 3, "
        f"got {begin - 1}",
    ):
        sample(np.array([3]))
    with pytest.raises(ValueError, match="method: expected -1, of edges that enter node 29, got"):
        sample(np.array([29]))


@pytest.mark.system
def test_the_loader():
    options = {"input_nodes": np.arange(20), "batch_size": 8, "seed": 1}
    for method, more in ((uniform, {}), (RECENT, {"deduplicate": True, "capacity": [6, 6]})):
        loader = NeighborLoader(*(GRAPH, None, None, [4, 3]), **options, **more, method=method)
        seeds = []
        for batch in loader:
            seeds.append(np.asarray(batch.seeds))
            taken = np.asarray(batch.blocks.edges)
            ends = np.asarray(GRAPH.receivers)[taken[taken >= 0]]
            places = np.asarray(batch.blocks.graphs[0].receivers)[taken >= 0]
            np.testing.assert_array_equal(np.asarray(batch.blocks.nodes)[places], ends)
        assert set(np.concatenate(seeds)) == {-1, *range(20)}


BAD = {
    "shape": (lambda graph, nodes, size, key: nodes, r"edges of the shape \(2, 4\), .* got \(2,\)"),
    "dtype": (lambda graph, nodes, size, key: jnp.ones((2, size)), "integers, .* got float32"),
    "type": (lambda graph, nodes, size, key: None, "an array of edges, got NoneType"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_function_returns_is_checked(name):
    method, message = BAD[name]
    for sample in (
        lambda: jaxgnn.sample_neighbors(GRAPH, [3], [4], KEY, method=method),
        lambda: NeighborLoader(GRAPH, None, None, [4], batch_size=1, method=method),
    ):
        with pytest.raises((TypeError, ValueError), match=f"method: expected {message}"):
            sample()


def test_what_does_not_go_with_a_function():
    for options in ({"replace": True}, {"weights": np.ones(200, np.float32)}):
        with pytest.raises(ValueError, match="method: expected 'uniform' with"):
            jaxgnn.sample_neighbors(GRAPH, [3], [4], KEY, method=uniform, **options)
        with pytest.raises(ValueError, match="method: expected 'uniform' with"):
            NeighborLoader(GRAPH, None, None, [4], method=uniform, **options)
    empty = jaxgnn.Graph.from_edges([], [], num_nodes=3)
    assert not jaxgnn.sample_neighbors(empty, [1], [2], KEY, method=uniform).edge_mask.any()
