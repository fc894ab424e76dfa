"""Rows of so many features that their slices exceed one axis of a CUDA grid (65,535)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, gaussian_spmm, spmm

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "gpu", reason="needs a GPU: grids are CUDA's"
)

SLICES = 65_536


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph.from_edges(np.array([0, 1, 2, 2]), np.array([1, 0, 0, 2]), num_nodes=3)


@pytest.mark.parametrize("missing", [0, 1])  # with one feature less, scalar loads
def test_spmm_of_short_rows(graph, missing):
    width = 128 * SLICES - missing  # a slice has 128 features, or 32
    x = (jnp.arange(width)[None] + 3 * jnp.arange(3)[:, None]).astype(jnp.float32) % 7
    expected = np.asarray(jnp.stack([x[1] + x[2], x[0], x[2]]))
    np.testing.assert_array_equal(spmm(graph, x), expected)


def test_spmm_of_long_rows():
    """A slice has 32 features."""
    senders = np.arange(600) % 2
    graph = Graph.from_edges(senders, np.repeat([0, 1], 300), num_nodes=2)
    x = jnp.ones((2, 32 * SLICES), jnp.float32).at[1].set(2.0)
    np.testing.assert_array_equal(spmm(graph, x), np.full(x.shape, 450.0))


def test_vmap_of_spmm(graph):
    x = jnp.ones((8192, 3, 1024), jnp.float32)
    out = jax.vmap(lambda x: spmm(graph, x))(x)
    np.testing.assert_array_equal(out[:, :, 0], np.tile([2.0, 1.0, 1.0], (8192, 1)))


@pytest.mark.parametrize("missing", [0, 1])
def test_gaussian_spmm(graph, missing):
    width = 32 * SLICES - missing  # a slice has 32 features
    pseudo = jnp.zeros((graph.num_edges, 1))
    mu, inv_sigma = jnp.zeros((2, 1)), jnp.ones((2, 1))
    of_each = gaussian_spmm(graph, jnp.ones((3, 2, width)), mu, inv_sigma, pseudo)
    np.testing.assert_allclose(of_each, np.tile([[4.0], [2.0], [2.0]], (1, width)))
    x = jnp.ones((3, width))
    # The gradient for x is a sum for each kernel.
    gradient = jax.grad(lambda x: gaussian_spmm(graph, x, mu, inv_sigma, pseudo).sum())(
        jnp.stack([x, x], axis=1)
    )
    np.testing.assert_allclose(gradient[:, 0], np.tile([[1.0], [1.0], [2.0]], (1, width)))
