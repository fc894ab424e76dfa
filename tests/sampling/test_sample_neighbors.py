"""`sample_neighbors`: which edges, in which shapes, and what models make of the blocks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import nn
from jaxgnn.graph import squared
from tests.support.oracle_blocks import check_blocks

pytestmark = pytest.mark.few(1)

MODES = {"tree": {}, "replace": {"replace": True}, "unique": {"deduplicate": True}}


def random_graph(nodes=60, edges=400, seed=0, loops=True):
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, nodes, edges), rng.integers(0, max(nodes - 5, 1), edges)
    keep = senders != receivers if not loops else slice(None)
    return jaxgnn.Graph.from_edges(senders[keep], receivers[keep], num_nodes=nodes)


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", MODES)
def test_the_kernel_the_reference_and_jit_take_the_same(mode):
    graph = random_graph()
    seeds = np.array([3, -1, 3, 7])

    def sample(graph, impl):
        return jaxgnn.sample_neighbors(
            graph, seeds, [4, 3], jax.random.key(0), impl=impl, **MODES[mode]
        )

    jitted = jax.jit(sample, static_argnums=1)
    expected = jitted(graph, "jax")
    for blocks in (sample(graph, None), jitted(graph, None)):
        jax.tree.map(np.testing.assert_array_equal, blocks, expected)


@pytest.mark.parametrize("mode", MODES)
def test_padding_seeds_change_nothing(mode):
    graph, key = random_graph(), jax.random.key(0)
    few = jaxgnn.sample_neighbors(graph, np.array([3, 7]), [4], key, **MODES[mode])
    more = jaxgnn.sample_neighbors(graph, np.array([3, 7, -1, -1]), [4], key, **MODES[mode])
    edges = few.edges[few.edge_mask]
    np.testing.assert_array_equal(more.edges[: len(edges)], edges)
    assert more.edge_mask.sum() == len(edges)
    # Traced, numbers of no node are padding.
    traced = jax.jit(lambda seeds: jaxgnn.sample_neighbors(graph, seeds, [4], key, **MODES[mode]))(
        jnp.array([3, 7, 60, -(2**31)])
    )
    jax.tree.map(np.testing.assert_array_equal, traced, more)


def test_a_node_draws_the_same_in_every_place_if_it_is_the_id():
    graph, key = random_graph(edges=900), jax.random.key(0)
    blocks = jaxgnn.sample_neighbors(graph, np.array([3, 9, 3]), [4], key, deduplicate=True)
    rows = np.asarray(blocks.edges)[:12].reshape(3, 4)
    np.testing.assert_array_equal(rows[0], rows[2])
    tree = np.asarray(jaxgnn.sample_neighbors(graph, np.array([3, 9, 3]), [4], key).edges)
    assert (tree[:4] != tree[8:12]).any()


def test_hops_draw_apart():
    # A cycle in which each node has 50 edges from itself: both hops draw from the same row.
    graph = jaxgnn.Graph.from_edges(np.zeros(50, int), np.zeros(50, int), num_nodes=1)
    blocks = jaxgnn.sample_neighbors(graph, np.array([0]), [5, 5], jax.random.key(0))
    edges = np.asarray(blocks.edges).reshape(6, 5)
    assert len(np.unique(edges, axis=0)) == 6


MODELS = ["GraphSAGE", "GAT", "EdgeConvNet"]


@pytest.mark.parametrize("mode", ["tree", "unique"])
@pytest.mark.parametrize("name", MODELS)
def test_models_on_all_neighbors(name, mode):
    """With all edges of each node, blocks give what the whole graph gives."""
    graph = random_graph(loops=False)
    x = jax.random.normal(jax.random.key(0), (graph.num_nodes, 5))
    seeds, size = np.array([3, 59, 3, 7, -1]), int(graph.in_degrees.max())
    blocks = jaxgnn.sample_neighbors(graph, seeds, [size] * 2, jax.random.key(0), **MODES[mode])
    model = getattr(nn, name)(
        5, 8, 3, num_layers=2, norm="batch", residual=True, jumping="cat", rngs=nnx.Rngs(0)
    )
    model.eval()

    @jax.jit
    def of_blocks(graph, blocks, x):
        return model(blocks, blocks.take(x))[:4]

    @jax.jit
    def of_graph(graph, blocks, x):
        return model(graph, x)[seeds[:4]]

    def results(function):
        out, pullback = jax.vjp(lambda x: function(graph, blocks, x), x)
        return out, *pullback(2 * out)

    for actual, expected in zip(results(of_blocks), results(of_graph), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert of_blocks(graph, blocks, x).shape == (4, 3)


def loops_apart(layer):
    """How many self-loops have another edge of their row between them and the next one."""
    receivers = np.asarray(layer.receivers)
    loops = np.flatnonzero(np.asarray(layer.senders) == receivers)
    return np.sum((np.diff(receivers[loops]) == 0) & (np.diff(loops) > 1))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mode", "weighted"),
    [*itertools.product(MODES, [False, True]), ("loops", True), ("loops, replace", True)],
)
def test_gcn_is_that_of_the_square_graph(mode, weighted):
    graph, sizes = random_graph(), [3, 2]
    more = {"deduplicate": True, "replace": "replace" in mode}
    options = MODES.get(mode, more)
    if "loops" in mode:  # three or four of the six edges of each node
        senders = (np.arange(60)[:, None] + [0, 0, 1, 0, 2, 60]) % 62 % 60
        graph = jaxgnn.Graph.from_edges(senders.ravel(), np.repeat(np.arange(60), 6), num_nodes=60)
        sizes = [5, 4]
    blocks = jaxgnn.sample_neighbors(
        graph, np.array([3, 59, 7]), sizes, jax.random.key(0), **options
    )
    assert ("loops" in mode) == bool(loops_apart(blocks.graphs[0]))
    x = blocks.take(jax.random.normal(jax.random.key(0), (graph.num_nodes, 5)))
    weights = None
    if weighted:
        weights = blocks.take_edges(jax.random.uniform(jax.random.key(1), (graph.num_edges,)))
    model = nn.GCN(5, 4, 2, num_layers=2, rngs=nnx.Rngs(0))
    out, convolve = x, nnx.jit(lambda conv, *given: conv(*given))
    for i, (conv, layer) in enumerate(zip(model.convs, blocks.graphs, strict=True)):
        own = None if weights is None else np.asarray(weights)[: layer.num_edges]
        # The layer's graph built anew, on the host, from its edges.
        edges = np.asarray(layer.senders), np.asarray(layer.receivers)
        new, data = jaxgnn.Graph.from_edges(
            *edges,
            num_nodes=layer.num_senders,
            edge_data=np.ones(len(edges[0])) if own is None else own,
        )
        np.testing.assert_array_equal(squared(layer).self_loops, new.self_loops)
        out = convolve(conv, new, out, None if own is None else jnp.asarray(data))
        out = out[: layer.num_receivers]
        out = jax.nn.relu(out) if i == 0 else out
    np.testing.assert_allclose(convolve(model, blocks, x, weights), out[:3], rtol=1e-5, atol=1e-5)


def test_batch_norm_leaves_padding_out():
    graph = random_graph()
    model = nn.GraphSAGE(5, 8, 3, num_layers=2, norm="batch", rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (graph.num_nodes, 5))
    outs = []
    for seeds in (np.array([3, 7, 9]), np.array([3, 7, 9, -1, -1, -1])):
        blocks = jaxgnn.sample_neighbors(graph, seeds, [9, 9], jax.random.key(0))
        outs.append(model(blocks, blocks.take(x))[:3])
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-4, atol=1e-5)


def test_capacity():
    graph = random_graph()
    seeds, key = np.array([3, 7, 9]), jax.random.key(0)
    whole = jaxgnn.sample_neighbors(graph, seeds, [4, 4], key, deduplicate=True)
    sizes = [int(np.sum(np.asarray(whole.nodes)[4:16] >= 0)), 30]

    def sample(capacity):
        return jaxgnn.sample_neighbors(
            graph, seeds, [4, 4], key, deduplicate=True, capacity=capacity
        )

    exact = sample(sizes)
    check_blocks(graph, exact, seeds, [4, 4], unique=True)
    assert not exact.overflow
    np.testing.assert_array_equal(
        np.sort(exact.edges[exact.edge_mask]), np.sort(whole.edges[whole.edge_mask])
    )
    small = [sizes[0] - 1, 30]
    with pytest.raises(ValueError, match="capacity: expected room"):
        sample(small)
    assert jax.jit(lambda: sample(small).overflow)()


def test_vmap_and_scan_over_keys():
    graph = random_graph()
    keys = jax.random.split(jax.random.key(0), 3)

    def sample(key):
        return jaxgnn.sample_neighbors(graph, np.array([3, 7]), [4, 2], key).edges

    one = jax.jit(sample)
    expected = np.stack([one(key) for key in keys])
    np.testing.assert_array_equal(jax.vmap(sample)(keys), expected)
    _, scanned = jax.lax.scan(lambda carry, key: (carry, sample(key)), None, keys)
    np.testing.assert_array_equal(scanned, expected)


def test_more_neighbors_than_a_chunk():
    graph = jaxgnn.Graph.from_edges(np.zeros(5000, int), np.zeros(5000, int), num_nodes=2)
    blocks = jaxgnn.sample_neighbors(graph, np.array([0, 1]), [3000], jax.random.key(0))
    out = jaxgnn.spmm(blocks.graphs[0], blocks.node_mask.astype(jnp.float32)[:, None])
    np.testing.assert_array_equal(out[:, 0], [3000, 0, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_neighbors": [4, -1]}, r"num_neighbors\[1\]: expected"),
        ({"num_neighbors": []}, "num_neighbors: expected a number for each hop"),
        ({"num_neighbors": 4}, "num_neighbors: expected a number for each hop"),
        ({"seeds": np.array([60])}, "seeds: expected nodes below 60"),
        ({"seeds": np.array([0.5])}, "seeds: expected integers"),
        ({"seeds": [[1], [1, 2]]}, "seeds: expected integers"),
        ({"key": None}, "key: expected a JAX key"),
        ({"replace": 1}, "replace: expected True or False"),
        ({"capacity": [4]}, "capacity: expected None without deduplicate"),
        ({"capacity": [4, 4], "deduplicate": True}, "capacity: expected one for each of 1 hops"),
        ({"num_neighbors": [4096] * 3}, "num_neighbors: expected fewer than 2"),
        ({"axis_name": "d"}, "axis_name: expected an axis of a jax.shard_map .*, got 'd'"),
        ({"axis_name": ["d"], "deduplicate": True}, "axis_name: expected an axis"),
        ({"graph": "rectangular"}, "graph: expected a square graph"),
    ],
)
def test_errors(change, message):
    arguments = {
        "graph": random_graph(),
        "seeds": np.array([3]),
        "num_neighbors": [4],
        "key": jax.random.key(0),
        **change,
    }
    if change.get("graph") == "rectangular":
        arguments["graph"] = jaxgnn.Graph.from_edges([0], [0], num_senders=3, num_receivers=60)
    with pytest.raises((TypeError, ValueError), match=message):
        jaxgnn.sample_neighbors(**arguments)


def test_models_name_what_does_not_fit():
    graph = random_graph()
    blocks = jaxgnn.sample_neighbors(graph, np.array([3]), [4], jax.random.key(0))
    model = nn.GCN(5, 4, 2, num_layers=2, rngs=nnx.Rngs(0))
    x = jnp.ones((blocks.nodes.shape[0], 5))
    with pytest.raises(ValueError, match="expected blocks of 2 layers"):
        model(blocks, x)
    model = nn.GCN(5, 4, 2, num_layers=1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"weights: expected the shape \(4, ...\)"):
        model(blocks, x, jnp.ones(graph.num_edges))


def test_blocks_name_what_has_too_few_rows():
    """Zeros in place of rows that are not there would look like padding."""
    blocks = jaxgnn.sample_neighbors(random_graph(), np.array([3]), [4], jax.random.key(0))
    highest = int(blocks.nodes.max())
    for take in (blocks.take, jax.jit(blocks.take)):
        assert take(jnp.ones(highest + 1)).sum() == blocks.node_mask.sum()
        with pytest.raises(ValueError, match="values: expected a row for each node"):
            take(jnp.ones(highest))
    with pytest.raises(ValueError, match=r"a row for each edge.*Graph\.sort_edge_data"):
        blocks.take_edges(jnp.ones(int(blocks.edges.max())))
    with pytest.raises(TypeError, match="values: expected an array of numbers"):
        blocks.take(None)
