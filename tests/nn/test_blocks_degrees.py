"""`GCNConv` on blocks that have their nodes' degrees in the graph that they were sampled from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, sample_neighbors
from jaxgnn.nn import GCN, GCNConv, GraphSAGE, MaxK
from jaxgnn.train import NeighborLoader

pytestmark = pytest.mark.usefixtures("strict")

NODES = 40
SEEDS = np.array([3, 17, 38, 39, 3, 0])
KEY = jax.random.key(0)


def mixed_graph() -> Graph:
    """With self-loops, of one node two, repeated edges, and nodes without edges (38 and 39)."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(38, size=(2, 150))
    more = [5, 5, 6, 7, 7]
    return Graph.from_edges(
        np.append(senders, [5, 5, 6, 1, 1]), np.append(receivers, more), num_nodes=NODES
    )


def features(width: int = 6, dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(1), (NODES, width)).astype(dtype)


@pytest.mark.system
@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"residual": True, "norm": "layer"}, {"activation": MaxK(4)}]
)
def test_all_neighbors_give_what_the_graph_gives(deduplicate, options):
    """Of two layers, with all gradients."""
    graph, x = mixed_graph(), features()
    model = GCN(6, 8, 3, num_layers=2, **options, rngs=nnx.Rngs(0))
    blocks = sample_neighbors(graph, SEEDS, [64, 64], KEY, deduplicate=deduplicate)
    blocks = blocks.with_degrees(graph)

    def of_graph(model):
        out = model(graph, x)[SEEDS]
        return jnp.sum(jnp.sin(out)), out

    def of_blocks(model):
        out = model(blocks, blocks.rows(x))
        return jnp.sum(jnp.sin(out)), out

    (_, expected), of_model = nnx.value_and_grad(of_graph, has_aux=True)(model)
    (_, out), gradients = nnx.value_and_grad(of_blocks, has_aux=True)(model)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradients, of_model
    )
    # By the degrees in the sample it is another model.
    without = model(dataclasses.replace(blocks, degrees=None), blocks.take(x))
    assert np.max(np.abs(without - expected)) > 1e-2


@pytest.mark.parametrize("replace", [False, True])
def test_the_mean_over_samples_is_the_layer_of_the_graph(replace):
    graph, x = mixed_graph(), features(2)
    conv = GCNConv(2, 2, rngs=nnx.Rngs(0))
    expected = conv(graph, x)[SEEDS]

    @jax.jit
    @jax.vmap
    def outputs(key):
        blocks = sample_neighbors(graph, SEEDS, [2], key, replace=replace).with_degrees(graph)
        model = GCN(2, 2, 2, num_layers=1, rngs=nnx.Rngs(0))
        model.convs[0] = conv
        return model(blocks, blocks.take(x))

    found = outputs(jax.random.split(KEY, 4000))
    error = 5 * jnp.std(found, axis=0) / np.sqrt(4000) + 1e-6
    # Self-loops are drawn like other edges: of their number here the estimate is a ratio.
    near = np.abs(np.mean(found, axis=0) - expected) <= error
    assert near.all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype):
    graph, x = mixed_graph(), features(dtype=dtype)
    conv = GCNConv(6, 4, dtype=dtype, rngs=nnx.Rngs(0))
    blocks = sample_neighbors(graph, SEEDS, [64], KEY).with_degrees(graph)
    model = GCN(6, 8, 4, num_layers=1, dtype=dtype, rngs=nnx.Rngs(0))
    model.convs[0] = conv
    out = model(blocks, blocks.take(x))
    assert out.dtype == x.dtype
    expected = conv(graph, x)[SEEDS].astype(jnp.float32)
    np.testing.assert_allclose(out.astype(jnp.float32), expected, rtol=0.02, atol=0.02)


def test_own_self_loops():
    """Without the one of each node they are edges, all of them here."""
    graph, x = mixed_graph(), features()
    conv = GCNConv(6, 4, add_self_loops=False, rngs=nnx.Rngs(0))
    degrees = graph.in_degrees - graph.self_loops
    out, expected = conv(graph, x, degrees=degrees), conv(graph, x)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.system
def test_who_takes_degrees():
    """Blocks have them on demand, a loader's unless told; weights and other layers leave them."""
    graph, x = mixed_graph(), features()
    plain = sample_neighbors(graph, SEEDS, [3, 3], KEY)
    assert plain.degrees is None
    blocks = plain.with_degrees(graph)
    others = np.asarray(graph.in_degrees - graph.self_loops)
    nodes = np.asarray(plain.nodes)
    np.testing.assert_array_equal(blocks.degrees, np.where(nodes < 0, 0, others[nodes]))
    sage = GraphSAGE(6, 8, 3, num_layers=2, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(sage(blocks, blocks.take(x)), sage(plain, plain.take(x)))
    gcn = GCN(6, 8, 3, num_layers=2, rngs=nnx.Rngs(0))
    weights = plain.take_edges(jnp.ones(graph.num_edges))
    np.testing.assert_array_equal(
        gcn(blocks, blocks.take(x), weights), gcn(plain, plain.take(x), weights)
    )
    for options, has in (({}, True), ({"degrees": False}, False)):
        loader = NeighborLoader(graph, x, None, [3, 3], batch_size=8, **options)
        assert all((batch.blocks.degrees is not None) is has for batch in loader)


def test_bad_arguments():
    graph, x = mixed_graph(), features()
    degrees = graph.in_degrees
    conv = GCNConv(6, 4, rngs=nnx.Rngs(0))
    plain = GCNConv(6, 4, normalize=False, rngs=nnx.Rngs(0))
    for wrong, call in (
        ("neither weights", lambda: conv(graph, x, jnp.ones(graph.num_edges), degrees=degrees)),
        ("nor scale", lambda: conv(graph, x, scale=jnp.ones(NODES), degrees=degrees)),
        ("expected normalize", lambda: plain(graph, x, degrees=degrees)),
        ("degrees: expected the shape", lambda: conv(graph, x, degrees=degrees[1:])),
    ):
        with pytest.raises(ValueError, match=wrong):
            call()
    blocks = sample_neighbors(graph, SEEDS, [3], KEY)
    with pytest.raises(ValueError, match="square graph"):
        blocks.with_degrees(Graph.from_edges([0], [0], num_senders=2, num_receivers=1))
    for with_degrees in (blocks.with_degrees, jax.jit(blocks.with_degrees)):
        with pytest.raises(ValueError, match="graph of the blocks' nodes"):
            with_degrees(Graph.from_edges([0], [0], num_nodes=2))
    with pytest.raises(TypeError, match="graph"):
        blocks.with_degrees(None)
    with pytest.raises(TypeError, match="degrees"):
        NeighborLoader(graph, x, None, [3], degrees=1)
