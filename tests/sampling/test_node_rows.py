"""Blocks' rows that are read where the nodes have them: the same results and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

import jaxgnn
from jaxgnn import nn
from jaxgnn.graph import NodeRows
from jaxgnn.ops._aggregation import kernels, reference
from jaxgnn.ops._core.rows import neighbors
from jaxgnn.ops._sampling.gather import aggregate_nodes
from jaxgnn.train import NeighborLoader

RNG = np.random.default_rng(0)
NODES = 30
GRAPH = jaxgnn.Graph.from_edges(
    RNG.integers(0, NODES, 160), RNG.integers(0, NODES - 4, 160), num_nodes=NODES
)
X = jnp.asarray(RNG.normal(size=(NODES, 5)), jnp.float32)
SEEDS = np.array([3, -1, 29, 7, 3])


def sampled(deduplicate=False):
    return jaxgnn.sample_neighbors(GRAPH, SEEDS, [4, 3], jax.random.key(0), deduplicate=deduplicate)


@pytest.mark.system
@pytest.mark.few(1)
@pytest.mark.parametrize("deduplicate", [False, True])
def test_models_take_them(deduplicate):
    """Where an aggregation comes first and where it does not, also with what changes the rows."""
    blocks = sampled(deduplicate)
    weights = blocks.take_edges(jnp.asarray(RNG.random(GRAPH.num_edges), jnp.float32))
    models = [
        nn.GraphSAGE(5, 8, 3, num_layers=2, rngs=nnx.Rngs(0)),
        nn.GraphSAGE(5, 4, 3, num_layers=2, aggr="max", residual=True, rngs=nnx.Rngs(0)),
        nn.GraphSAGE(5, 8, 3, num_layers=2, input_dropout=0.5, rngs=nnx.Rngs(0)),
        nn.GIN(5, 8, 3, num_layers=2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)),
        nn.GCN(5, 8, 3, num_layers=2, rngs=nnx.Rngs(0)),
        nn.GAT(5, 8, 3, num_layers=2, input_layer=True, rngs=nnx.Rngs(0)),
    ]
    for model in models:
        model.eval()
        given = None if isinstance(model, nn.GAT) else weights

        def loss(model, x, given=given):
            return jnp.sum(model(blocks, x, given)[jnp.array([0, 2, 3, 4])] ** 2)

        step = nnx.jit(nnx.value_and_grad(loss))
        expected, gradients = step(model, blocks.take(X))
        actual, same = step(model, blocks.rows(X))
        # In bfloat16 the two programs may round another number of times.
        half = isinstance(model, nn.GIN)
        np.testing.assert_allclose(actual, expected, rtol=2e-2 if half else 1e-5)
        rtol, atol = (5e-2, 2e-2) if half else (1e-4, 1e-5)
        for a, b in zip(*map(jax.tree.leaves, (same, gradients)), strict=True):
            np.testing.assert_allclose(a, b, rtol, atol)


@pytest.mark.system
@pytest.mark.few(1)
@pytest.mark.parametrize("mean", [False, True])
def test_derivatives(mean):
    blocks = sampled()
    graph, nodes = blocks.graphs[0], blocks.nodes
    weights = jnp.asarray(RNG.random(graph.num_edges), jnp.float32)

    def fused(x, weights):
        return aggregate_nodes(graph, NodeRows(x, nodes), weights, mean=mean)

    def plain(x, weights):
        reduce = "mean" if mean else "sum"
        return jaxgnn.spmm(graph, blocks.take(x), weights, reduce=reduce, impl="jax")

    np.testing.assert_allclose(fused(X, weights), plain(X, weights), rtol=1e-5, atol=1e-6)
    cotangent = jnp.asarray(RNG.normal(size=(graph.num_receivers, 5)), jnp.float32)
    used = blocks.node_mask[: graph.num_receivers, None]
    actual = jax.vjp(fused, X, weights)[1](cotangent)
    expected = jax.vjp(plain, X, weights)[1](cotangent * used)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        actual[1][blocks.edge_mask], expected[1][blocks.edge_mask], rtol=1e-4, atol=1e-5
    )
    check_grads(fused, (X, weights), order=2, modes=("fwd", "rev"), atol=0.05, rtol=0.05)
    stacked = jnp.stack([X, 2 * X])
    batched = jax.vmap(fused, (0, None))(stacked, weights)
    np.testing.assert_allclose(batched[1], 2 * fused(X, weights), rtol=1e-5, atol=1e-6)


def test_rows_of_one_edge_are_a_gather():
    """What a GPU runs for a tree's transpose is what the rows' reduction gives."""
    graph = sampled().graphs[0]
    rows = neighbors(graph, transpose=True)
    assert rows.chunks.longest == 1
    x = jnp.asarray(RNG.normal(size=(graph.num_receivers, 2, 3)), jnp.float32)
    weights = jnp.asarray(RNG.random((graph.num_edges, 2)), jnp.float32).at[-1].set(jnp.inf)
    for given in (None, weights):
        expected = kernels.reduce_rows(rows, x, given, "sum")
        np.testing.assert_array_equal(reference.gather_rows(rows, x, given), expected)


def test_an_array_is_made_of_them():
    rows = NodeRows(X, jnp.array([2, -1, 4]))
    expected = np.stack([X[2], np.zeros(5), X[4]])
    for array in (np.asarray(rows), jnp.asarray(rows), rows[:], jnp.add(rows, 0)):
        np.testing.assert_array_equal(array, expected)
    assert (rows.shape, rows.ndim, rows.dtype) == ((3, 5), 2, jnp.float32)
    assert repr(rows) == "NodeRows(shape=(3, 5), dtype=float32)"
    np.testing.assert_array_equal(rows.first(2), expected[:2])


def test_batches_share_the_features():
    loader = NeighborLoader(GRAPH, X, None, [3], batch_size=8)
    batch = next(iter(loader))
    assert batch.features.values.unsafe_buffer_pointer() == X.unsafe_buffer_pointer()
    empty = aggregate_nodes(
        jaxgnn.Graph.from_edges([], [], num_nodes=2), NodeRows(X, jnp.array([1, 2])), mean=True
    )
    np.testing.assert_array_equal(empty, np.zeros((2, 5)))


def test_they_work_as_the_array_that_they_make():
    rows = NodeRows(X, jnp.array([2, 2, 0, -1]))
    array = jnp.asarray(rows)
    assert (len(rows), rows.size, rows.shape) == (4, 20, array.shape)
    operations = [
        lambda x: x + 1 - x * 2,
        lambda x: 1 - x / 2 + 3 * x,
        lambda x: x @ jnp.ones((5, 2)),
        lambda x: jnp.ones((2, 4)) @ x,
        lambda x: -x,
        lambda x: x.astype(jnp.bfloat16),
        jnp.exp,
    ]
    for operation in operations:
        np.testing.assert_array_equal(operation(rows), operation(array))
    dropped = nn.Dropout(0.5, rngs=nnx.Rngs(0))(rows)
    np.testing.assert_array_equal(dropped, nn.Dropout(0.5, rngs=nnx.Rngs(0))(array))
    with pytest.raises(TypeError, match=r"NodeRows: expected jnp\.asarray"):
        jax.vmap(lambda rows: jnp.sum(jnp.asarray(rows)))(NodeRows(X[:4], rows.nodes))
