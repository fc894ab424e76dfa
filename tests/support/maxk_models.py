"""Small models with `MaxK`, and what their tests share."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn import Graph
from jaxgnn.nn import MODELS, MaxK

NODES, EDGES, WIDTH, HIDDEN, CLASSES, K = 30, 90, 6, 12, 3, 4
NAMES = ["gcn", "sage", "gin"]


def example(seed=0):
    """A graph without self-loops (repeated edges and isolated nodes it has), features, weights."""
    rng = np.random.default_rng(seed)
    senders = rng.integers(NODES - 2, size=EDGES)
    receivers = (senders + rng.integers(1, NODES - 2, size=EDGES)) % (NODES - 2)
    graph = Graph.from_edges(senders, receivers, num_nodes=NODES)
    return graph, rng.normal(size=(NODES, WIDTH)), rng.uniform(0.5, 2, EDGES)


def make(name, layers=4, hidden=HIDDEN, k=K, **options):
    options = {"activation": MaxK(k), "rngs": nnx.Rngs(0), **options}
    return MODELS[name](WIDTH, hidden, CLASSES, num_layers=layers, **options)


def single(example):
    return example[0], jnp.asarray(example[1], jnp.float32), jnp.asarray(example[2], jnp.float32)


def close(actual, expected, tolerance):
    def leaf(a, b):
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tolerance * scale)

    jax.tree.map(leaf, actual, expected)


def masked(x, k):
    """The `k` largest entries of each row by a stable sort."""
    order = jnp.argsort(-x, axis=1, stable=True)[:, :k]
    mask = jnp.zeros_like(x).at[jnp.arange(len(x))[:, None], order].set(1)
    return x * mask


def loss(outputs):
    return jnp.sum(outputs * jnp.cos(outputs))
