"""Decoders of links and learned features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn.nn import DotDecoder, MLPDecoder, NodeEmbedding
from tests.support.arrays import normal


def test_decoders_score_pairs_and_differentiate():
    x, other = normal(7, 4), normal(5, 4, seed=1)
    senders, receivers = jnp.array([0, 6, 2, 0]), jnp.array([1, 6, 4, 1])
    decoder = MLPDecoder(4, 8, num_layers=3, rngs=nnx.Rngs(0))

    @nnx.jit
    def scores(decoder, x, other):
        gradient = jax.grad(lambda x: DotDecoder()(x, senders, receivers).sum())(x)
        narrow = DotDecoder()(x.astype(jnp.bfloat16), senders, receivers)
        return (
            DotDecoder()(x, senders, receivers),
            decoder((x, other), senders, receivers[:].at[1].set(3)),
            gradient,
            narrow,
            DotDecoder()(x, jnp.array([7, -1]), jnp.array([0, 0])),
        )

    dot, mlp, gradient, narrow, outside = scores(decoder, x, other)
    rows = np.asarray(x, np.float64)
    np.testing.assert_allclose(dot, (rows[senders] * rows[receivers]).sum(1), rtol=1e-5)
    expected = np.zeros_like(rows)
    np.add.at(expected, senders, rows[receivers])
    np.add.at(expected, receivers, rows[senders])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    ends = x[senders] * other[jnp.array([1, 3, 4, 1])]
    np.testing.assert_allclose(mlp, decoder.mlp(ends)[:, 0], rtol=1e-5)
    assert narrow.dtype == jnp.bfloat16 and np.isnan(outside).all()
    with pytest.raises(ValueError, match="senders, receivers: expected two vectors of one length"):
        DotDecoder()(x, senders, receivers[:2])
    with pytest.raises(ValueError, match=r"x: expected rows \(nodes, features\)"):
        decoder((x, other[:, :2]), senders, receivers)


def test_an_embedding_is_a_row_a_node():
    embedding = NodeEmbedding(300, 16, rngs=nnx.Rngs(0))
    table = embedding()
    assert table.shape == (300, 16) and table.dtype == jnp.float32
    np.testing.assert_array_equal(embedding(jnp.array([3, 299])), table[jnp.array([3, 299])])
    assert 0.9 < float(jnp.linalg.norm(table, axis=1).mean()) < 1.1
    narrow = NodeEmbedding(3, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert narrow().dtype == narrow(jnp.array([1])).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="num_nodes"):
        NodeEmbedding(0, 4, rngs=nnx.Rngs(0))
