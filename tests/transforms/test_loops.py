"""Second derivatives of loops: those of `jax.lax.scan` are those of its iterations one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn.nn import _activation
from jaxgnn.ops._sampling.unit_rows import unit_rows
from tests.support.arrays import normal
from tests.support.strategies import skewed_graph

NODES, EDGES, WIDTH = 9, 40, 4
KEY = jax.random.key(0)


# Of the graph and the state of the loop, `[NODES, WIDTH]`: another state.
STEPS = {
    "spmm": lambda graph, x: jaxgnn.spmm(graph, x, x[graph.receivers, 0]),
    "maximum": lambda graph, x: jaxgnn.spmm(graph, x, reduce="max"),
    "sddmm": lambda graph, x: jaxgnn.spmm(graph, x, jaxgnn.sddmm(graph, x, x)),
    "softmax": lambda graph, x: jaxgnn.spmm(
        graph, x, jaxgnn.segment_softmax(graph, x[graph.senders, 0])
    ),
    "maxima of edges": lambda graph, x: jaxgnn.segment_reduce(graph, x[graph.senders], "max"),
    "gat_attention": lambda graph, x: jaxgnn.gat_attention(graph, x[:, None], x[:, :1], x[:, 1:2])[
        :, 0
    ],
    "dot_attention": lambda graph, x: jaxgnn.dot_attention(
        graph, x[:, None], x[:, None], x[:, None]
    )[:, 0],
    "gaussian_spmm": lambda graph, x: jaxgnn.gaussian_spmm(
        graph, x[:, None], jnp.ones((1, 2)), jnp.ones((1, 2)), (x[:, :2], x[:, 2:])
    ),
    "maxk": lambda graph, x: jaxgnn.maxk_spmm(graph, jaxgnn.maxk(x, 2)),
    "sampled_spmm": lambda graph, x: jaxgnn.sampled_spmm(
        graph, x, sample_size=2, strategy="random", key=KEY
    ),
    "relu": lambda graph, x: x * _activation.relu(x - jax.lax.stop_gradient(x)),  # at 0
    "unit_rows": lambda graph, x: unit_rows(x * (jnp.arange(NODES) > 2)[:, None]),  # rows of 0
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", STEPS)
def test_second_derivatives_of_a_scan(name):
    graph = skewed_graph(NODES, EDGES)
    x, direction = normal(NODES, WIDTH), normal(NODES, WIDTH, seed=1)

    def step(graph, state):
        return state + 0.5 * jnp.sin(STEPS[name](graph, state))

    def scanned(graph, x):
        return jax.lax.scan(lambda state, _: (step(graph, state), None), x, None, length=2)[0]

    def unrolled(graph, x):
        return step(graph, step(graph, x))

    @functools.partial(jax.jit, static_argnums=0)
    def products(loop, graph, x):
        def gradient(x):
            return jax.grad(lambda x: jnp.sum(jnp.sin(loop(graph, x))))(x)

        forward = jax.jvp(gradient, (x,), (direction,))[1]
        return forward, jax.grad(lambda x: jnp.vdot(gradient(x), direction))(x)

    found, expected = products(scanned, graph, x), products(unrolled, graph, x)
    assert all(bool(jnp.abs(part).max() > 1e-3) for part in expected)
    for one in found:
        for other in expected:
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("axes", [(0, None), (0, 0)])
def test_vmap_of_a_scan(axes):
    """Examples of the state, and of the graph's weights, of which each has its own."""
    graph = skewed_graph(NODES, EDGES)
    x, weights = normal(3, NODES, WIDTH), normal(3, EDGES, seed=2)
    weights = weights if axes[1] == 0 else weights[0]

    def product(x, weights):
        def loss(x):
            def step(state, _):
                return jnp.tanh(jaxgnn.spmm(graph, state, weights)), None

            return jnp.sum(jax.lax.scan(step, x, None, length=2)[0] ** 2)

        return jax.jvp(jax.grad(loss), (x,), (x,))[1]

    found = jax.jit(jax.vmap(product, in_axes=axes))(x, weights)
    for i, one in enumerate(x):
        own = weights[i] if axes[1] == 0 else weights
        np.testing.assert_allclose(found[i], jax.jit(product)(one, own), rtol=1e-4, atol=1e-4)
