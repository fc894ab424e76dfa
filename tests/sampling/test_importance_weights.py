"""`importance_weights`: the published formulas, and walks step by step in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxgnn
from tests.support.oracle_sampling import draw

KEY = jax.random.key(3)


@pytest.mark.parametrize("loops", [False, True])
def test_degree_and_fastgcn(loops):
    rng = np.random.default_rng(1)
    dense = (rng.random((12, 12)) < 0.3).astype(int)  # from column to row
    dense[7] = dense[:, 5] = 0
    np.fill_diagonal(dense, 0)
    if loops:
        dense[3, 3] = 1
    receivers, senders = np.nonzero(dense)
    graph = jaxgnn.Graph.from_edges(senders, receivers, num_nodes=12)
    np.testing.assert_array_equal(
        jaxgnn.importance_weights(graph, "degree"), dense.sum(1)[np.asarray(graph.senders)]
    )
    full = dense.astype(float)
    np.fill_diagonal(full, 1)
    scale = 1 / np.sqrt(full.sum(1))
    norms = ((scale[:, None] * full * scale) ** 2).sum(0)
    weights = jax.jit(lambda graph: jaxgnn.importance_weights(graph, "fastgcn"))(graph)
    np.testing.assert_allclose(weights, (norms / norms.sum())[np.asarray(graph.senders)], rtol=1e-5)
    blocks = jaxgnn.sample_neighbors(
        graph, np.arange(12), [2], jax.random.key(0), weights=weights, replace=True
    )
    assert blocks.edge_mask.sum() == 2 * (dense.sum(1) > 0).sum()


def graph_of_walks():
    """(graph, how many edges go to each node from each): a node without neighbors, one without
    receivers, a self-loop, repeated edges."""
    rng = np.random.default_rng(1)
    dense = (rng.random((12, 12)) < 0.3).astype(int)
    dense[7] = dense[:, 5] = 0
    dense[3, 3], dense[2, 4] = 1, 3
    receivers, senders = np.nonzero(dense)
    times = dense[receivers, senders]
    ends = np.repeat(senders, times), np.repeat(receivers, times)
    return jaxgnn.Graph.from_edges(*ends, num_nodes=12), dense


def walked(graph, num_walks, walk_length, restart):
    """The weights, one walk after the other."""
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    visits = np.zeros((graph.num_nodes, graph.num_nodes), int)
    folded = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(np.arange(num_walks * walk_length))
    keys = [tuple(words) for words in np.asarray(jax.random.key_data(folded)).tolist()]
    for walk in range(num_walks):
        for node in range(graph.num_nodes):
            at = node
            for step in range(walk_length):
                key = keys[walk * walk_length + step]
                degree = int(offsets[at + 1] - offsets[at])
                ends = step > 0 and draw(key, node, 1, 2**32) < restart * 2**32
                if ends or degree == 0:
                    break
                at = senders[offsets[at] + draw(key, node, 0, degree)]
                visits[node, at] += 1
    weights = []
    for node in range(graph.num_nodes):
        row = senders[offsets[node] : offsets[node + 1]].tolist()
        total = sum(visits[node, sender] for sender in set(row))
        for sender in row:
            share = (int(visits[node, sender]) << 24) // max(int(total), 1) // row.count(sender)
            weights.append(max(share, visits[node, sender] > 0) / 2**24)
    return np.array(weights, np.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_walks_step_by_step(impl):
    graph, _ = graph_of_walks()
    weights = jaxgnn.importance_weights(
        graph, "walks", key=KEY, num_walks=4, walk_length=3, restart=0.25, impl=impl
    )
    assert weights.dtype == jnp.float32
    expected = walked(graph, 4, 3, 0.25)
    assert (expected == 0).sum() > 5 and len(set(expected)) > 8
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.system
def test_walks_have_the_law_of_their_chain():
    """Expected visits after L steps: the sum of (1 - restart)^(t - 1) P^t."""
    graph, dense = graph_of_walks()
    options = {"num_walks": 20_000, "walk_length": 3, "restart": 0.5}
    weights = jaxgnn.importance_weights(graph, "walks", key=KEY, **options)
    chain = dense / np.maximum(dense.sum(1, keepdims=True), 1)
    visits = chain + chain @ chain / 2 + chain @ chain @ chain / 4
    visits = np.where(dense > 0, visits, 0)
    visits = visits / np.maximum(visits.sum(1, keepdims=True), 1e-9)
    receivers, senders = np.asarray(graph.receivers), np.asarray(graph.senders)
    expected = visits[receivers, senders] / dense[receivers, senders]
    # A share of 20,000 visits or more, at most three of which are of one walk: 5 deviations.
    np.testing.assert_allclose(weights, expected, rtol=0, atol=5 * np.sqrt(3 * 0.25 / 20_000))
    sums = jax.ops.segment_sum(weights, graph.receivers, 12)
    np.testing.assert_allclose(sums, dense.sum(1) > 0, rtol=0, atol=1e-5)
    # One step: all edges alike, which are less alike after three.
    alike = jaxgnn.importance_weights(
        graph, "walks", key=KEY, num_walks=20_000, walk_length=1, restart=0.0
    )
    difference = np.abs(alike - 1 / dense.sum(1)[receivers])
    assert difference.max() < 5 * np.sqrt(0.25 / 20_000) < np.abs(alike - expected).max()


@pytest.mark.system
def test_walks_under_transformations(x64):
    graph, _ = graph_of_walks()

    def walks(graph, key):
        return jaxgnn.importance_weights(graph, "walks", key=key, num_walks=2, walk_length=2)

    keys = jax.random.split(KEY, 2)
    expected = np.stack([walks(graph, key) for key in keys])
    assert (expected[0] != expected[1]).any()
    np.testing.assert_array_equal(jax.jit(jax.vmap(walks, (None, 0)))(graph, keys), expected)
    mesh = jax.make_mesh((1,), ("keys",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    sharded = jax.shard_map(
        lambda graph, keys: walks(graph, keys[0])[None],
        mesh=mesh,
        in_specs=(P(), P("keys")),
        out_specs=P("keys"),
    )
    np.testing.assert_array_equal(jax.jit(sharded)(graph, keys[:1]), expected[:1])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("pinsage", {}, "kind: expected one of 'degree', 'fastgcn', 'walks', got 'pinsage'"),
        ("walks", {}, "key: expected a JAX key with kind='walks', got None"),
        ("walks", {"key": 3}, "key: expected a JAX key, got int"),
        ("walks", {"key": KEY, "num_walks": 0}, "num_walks: expected an integer from 1 .* got 0"),
        ("walks", {"key": KEY, "walk_length": 2.0}, "walk_length: expected an integer, got float"),
        (
            "walks",
            {"key": KEY, "restart": 1.0},
            "restart: expected .* to less than 1, got 1",
        ),
        ("walks", {"key": KEY, "restart": np.nan}, "restart: expected a finite number"),
        ("walks", {"key": KEY, "num_walks": 2**23}, r"num_walks: expected at most 2\^24 steps"),
        ("degree", {"key": KEY}, "key: expected None with kind='degree', which draws nothing"),
        ("fastgcn", {"num_walks": 5}, "num_walks: expected None with kind='fastgcn', got 5"),
        ("degree", {"walk_length": 2}, "walk_length: expected None with kind='degree', got 2"),
        ("degree", {"restart": 0.5}, "restart: expected None with kind='degree', got 0.5"),
        ("degree", {"impl": "fast"}, "impl: expected"),
    ],
)
def test_errors(kind, options, message):
    graph, _ = graph_of_walks()
    with pytest.raises((TypeError, ValueError), match=message):
        jaxgnn.importance_weights(graph, kind, **options)


def test_graphs_that_do_not_fit():
    rectangular = jaxgnn.Graph.from_edges([0], [0], num_senders=3, num_receivers=2)
    with pytest.raises(ValueError, match="graph: expected a square graph"):
        jaxgnn.importance_weights(rectangular, "degree")
    with pytest.raises(TypeError, match="graph: expected"):
        jaxgnn.importance_weights(np.eye(3), "degree")  # pyright: ignore[reportArgumentType]
    empty = jaxgnn.Graph.from_edges([], [], num_nodes=3)
    assert jaxgnn.importance_weights(empty, "fastgcn").shape == (0,)
    assert jaxgnn.importance_weights(empty, "walks", key=KEY).shape == (0,)
