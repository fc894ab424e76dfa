"""Models with `MaxK` under dropout, norms and transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.nn import GCN, GraphSAGE, MaxK, NodeMLP
from tests.support.maxk_models import (
    CLASSES,
    HIDDEN,
    NAMES,
    NODES,
    WIDTH,
    K,
    close,
    example,
    loss,
    make,
    single,
)

pytestmark = pytest.mark.few(1)


def test_dropout_acts_on_the_kept_entries():
    nodes, width = 3000, 20
    graph = Graph.from_edges([], [], num_nodes=nodes)
    model = NodeMLP(
        width, width, width, num_layers=2, dropout=0.25, activation=MaxK(5), rngs=nnx.Rngs(0)
    )
    for conv in model.convs:
        conv.linear.kernel[...] = jnp.eye(width)
        conv.linear.bias[...] = jnp.zeros(width)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(nodes, width)), jnp.float32)
    out = np.asarray(model(graph, x))
    model.eval()
    kept = np.asarray(model(graph, x))
    assert np.all((kept != 0).sum(axis=1) == 5)
    alive = out != 0
    assert not np.any(alive & (kept == 0))
    np.testing.assert_allclose(out[alive], kept[alive] / 0.75, rtol=1e-6)
    # 15,000 entries: the standard error of the share is 0.0035.
    assert abs(alive.sum() / (kept != 0).sum() - 0.75) < 0.015


@pytest.mark.parametrize("name", NAMES)
def test_training_mode_and_batch_norm(name):
    graph, x, weights = single(example())
    model = make(name, 2, dropout=0.5, norm="batch", input_layer=True)

    @nnx.jit
    def gradient(model, graph, x, weights):
        return nnx.grad(lambda model: loss(model(graph, x, weights)))(model)

    first, second = (gradient(model, graph, x, weights) for _ in range(2))
    leaves = list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    assert any(not np.allclose(a, b) for a, b in leaves)
    assert all(np.all(np.isfinite(a)) for a, _ in leaves)
    assert np.any(np.asarray(model.norms[0].mean[...]))


@pytest.mark.parametrize("name", NAMES)
def test_transformations_agree(name):
    graph, x, weights = single(example())
    graphdef, state = nnx.split(make(name, 2, input_layer=True))

    def value(state, x, weights):
        return loss(nnx.merge(graphdef, state)(graph, x, weights))

    gradient = jax.jit(jax.grad(value, argnums=(0, 1, 2)))
    expected = gradient(state, x, weights)
    close(jax.jit(jax.grad(jax.checkpoint(value), (0, 1, 2)))(state, x, weights), expected, 1e-5)
    pair = [jnp.stack([x, x + 1]), jnp.stack([weights, 2 * weights])]
    batched = jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0)))(state, *pair)
    close(jax.tree.map(lambda leaf: leaf[0], batched), expected, 1e-5)
    shifted = gradient(state, x + 1, 2 * weights)
    close(jax.tree.map(lambda leaf: leaf[1], batched), shifted, 1e-5)


@pytest.mark.system
def test_vmap_over_an_ensemble():
    graph, x, weights = single(example())

    @nnx.vmap(in_axes=0, out_axes=0)
    def create(key):
        return GraphSAGE(
            WIDTH, HIDDEN, CLASSES, num_layers=2, activation=MaxK(2), rngs=nnx.Rngs(key)
        )

    graphdef, states = nnx.split(create(jax.random.split(jax.random.key(0), 3)))

    def value(state):
        return loss(nnx.merge(graphdef, state)(graph, x, weights))

    step = jax.jit(jax.value_and_grad(value))
    together = jax.jit(jax.vmap(jax.value_and_grad(value)))(states)
    for i in range(3):
        alone = step(jax.tree.map(lambda leaf, i=i: leaf[i], states))
        close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone, 1e-5)


def test_linen():
    graph, x, weights = single(example())
    options = {"activation": MaxK(K), "dropout": 0.5, "input_layer": True}
    linen = nnx.bridge.to_linen(GCN, WIDTH, HIDDEN, CLASSES, num_layers=2, **options)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = linen.init(keys, graph, x, weights)

    @jax.jit
    def train(variables, key):
        return linen.apply(variables, graph, x, weights, rngs={"dropout": key})

    out = train(variables, jax.random.key(2))
    assert out.shape == (NODES, CLASSES)
    assert not np.allclose(out, train(variables, jax.random.key(3)))
    model = make("gcn", 2, input_layer=True)
    nnx.update(model, variables["params"])
    plain = nnx.bridge.to_linen(
        GCN, WIDTH, HIDDEN, CLASSES, num_layers=2, activation=MaxK(K), input_layer=True
    )
    close(plain.apply(variables, graph, x, weights), model(graph, x, weights), 1e-6)
