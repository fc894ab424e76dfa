"""Models with `MaxK` against dense models: matrices, masks, and JAX's derivatives of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.support.maxk_models import EDGES, NAMES, NODES, K, close, example, loss, make, masked

pytestmark = pytest.mark.few(1)


def dense_convolution(name, p, graph, x, weights):
    matrix = jnp.zeros((NODES, NODES), x.dtype).at[graph.receivers, graph.senders].add(weights)
    if name == "gcn":
        matrix += jnp.eye(NODES)
        scale = matrix.sum(axis=1) ** -0.5
        matrix = scale[:, None] * matrix * scale[None, :]
        return matrix @ x @ p["linear"]["kernel"] + p["linear"]["bias"]
    if name == "sage":
        degree = jnp.maximum(jnp.diff(graph.row_offsets), 1)[:, None]
        neighbors, root = p["linear_neighbors"], p["linear_root"]
        mean = matrix @ x / degree
        return mean @ neighbors["kernel"] + neighbors["bias"] + x @ root["kernel"]
    x = matrix @ x + x
    first, last = (p["nn"]["linears"][i] for i in range(2))
    return jax.nn.relu(x @ first["kernel"] + first["bias"]) @ last["kernel"] + last["bias"]


def dense_model(name, layers, options, p, graph, x, weights):
    activation = functools.partial(masked, k=K)
    if options.get("input_layer"):
        x = activation(x @ p["linear_in"]["kernel"] + p["linear_in"]["bias"])
    outputs = []
    for i in range(layers):
        before = x
        x = dense_convolution(name, p["convs"][i], graph, x, weights)
        if options.get("residual"):
            skip = p.get("skips", {}).get(i)
            x = x + (before if skip is None else before @ skip["kernel"])
        if i < layers - 1 or "jumping" in options:
            if "norm" in options:
                mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
                x = (x - mean) / jnp.sqrt(variance + 1e-5)
                x = x * p["norms"][i]["scale"] + p["norms"][i]["bias"]
            x = activation(x)
            outputs.append(x)
    if "jumping" not in options:
        return x
    joined = {
        "last": lambda: outputs[-1],
        "cat": lambda: jnp.concatenate(outputs, axis=1),
        "max": lambda: jnp.stack(outputs).max(axis=0),
    }[options["jumping"]]()
    return joined @ p["linear"]["kernel"] + p["linear"]["bias"]


def assert_equals_the_dense_model(name, dtype, tolerance, layers=4, unweighted=False, **options):
    graph, x, weights = example()
    weights = np.ones(EDGES) if unweighted else weights
    types = {"dtype": dtype, "param_dtype": dtype}
    graphdef, state = nnx.split(make(name, layers, **types, **options), nnx.Param, ...)[:2]

    def sparse(state, x, weights):
        model = nnx.merge(graphdef, state, nnx.State({}))
        out = model(graph, x, None if unweighted else weights)
        return loss(out), out

    def dense(p, x, weights):
        out = dense_model(name, layers, options, p, graph, x, weights)
        return loss(out), out

    arguments = state, jnp.asarray(x, dtype), jnp.asarray(weights, dtype)
    gradients, out = jax.jit(jax.grad(sparse, argnums=(0, 1, 2), has_aux=True))(*arguments)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), nnx.to_pure_dict(state))
        dense_gradient = jax.jit(jax.grad(dense, argnums=(0, 1, 2), has_aux=True))
        expected, value = dense_gradient(wide, x, weights)
    assert out.dtype == dtype
    close(out, value, tolerance)
    close(nnx.to_pure_dict(gradients[0]), expected[0], tolerance)
    close(gradients[1], expected[1], tolerance)
    if not unweighted:
        close(gradients[2], expected[2], tolerance)
        assert np.any(expected[2])


@pytest.mark.parametrize("name", NAMES)
def test_four_layers_equal_the_dense_float64_model(name):
    """Values; gradients of parameters, features and edge weights."""
    assert_equals_the_dense_model(name, jnp.float32, 3e-5)
    assert_equals_the_dense_model(name, jnp.float32, 3e-5, unweighted=True)


@pytest.mark.parametrize("name", NAMES)
def test_in_float64(name, x64):
    assert_equals_the_dense_model(name, jnp.float64, 1e-11)


@pytest.mark.parametrize(
    "options",
    [
        {"input_layer": True, "residual": True},
        {"norm": "layer", "jumping": "last"},
        {"jumping": "cat", "input_layer": True, "residual": True},
        {"jumping": "max"},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_options_equal_the_dense_float64_model(name, options, x64):
    assert_equals_the_dense_model(name, jnp.float64, 1e-10, layers=3, **options)
