"""Gradients where scores are so large that rounding a log-sum loses the logarithm of the number of
edges: those of finite masks, and of a shift that all of a row's edges share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, dot_attention, gat_attention, gatv2_attention, maxk

SHIFTS = np.float32([-1e9, 1e6])  # of each head
HEADS, WIDTH = SHIFTS.size, 8


def attend(name, graph, v, bias):
    """An attention whose scores are the bias."""
    receivers, senders = graph.num_receivers, graph.num_senders
    if name.startswith("sparse"):
        v = maxk(v, WIDTH // 4)
    if name == "sparse windows gat":
        graph = graph.with_windows()
    nothing = jnp.zeros((senders, HEADS))
    if name.endswith("gat"):
        return gat_attention(graph, v, nothing, nothing[:receivers], bias, negative_slope=1.0)
    zeros = jnp.zeros((senders, HEADS, WIDTH))
    if name.endswith("dot"):
        return dot_attention(graph, zeros[:receivers], zeros, v, bias)
    return gatv2_attention(graph, v, zeros[:receivers], jnp.zeros((HEADS, WIDTH)), bias)


@pytest.mark.few(2)
@pytest.mark.parametrize("degree", [50, 3000])  # a row in one piece, and in chunks
@pytest.mark.parametrize(
    "name", ["gat", "dot", "gatv2", "sparse gat", "sparse windows gat", "sparse dot"]
)
def test_large_scores_keep_their_weights(name, degree):
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(np.tile(np.arange(degree), 4), np.repeat(np.arange(4), degree))
    bias = SHIFTS + rng.integers(-1, 2, (4 * degree, HEADS)).astype(np.float32)
    bias[degree:] -= SHIFTS  # the other receivers' are small
    v = rng.standard_normal((degree, HEADS, WIDTH)).astype(np.float32)
    cotangent = rng.standard_normal((degree, HEADS, WIDTH)).astype(np.float32)

    def loss(v, bias):
        out = attend(name, graph, v, bias)
        return jnp.sum(out * cotangent), out

    (_, out), (dv, dbias) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(v, bias)
    kept = np.asarray(jax.jit(lambda v: maxk(v, WIDTH // 4).to_dense())(v))
    averaged = np.float64(kept if name.startswith("sparse") else v)
    of_v = np.zeros(v.shape)
    for receiver in range(4):
        edges = slice(receiver * degree, (receiver + 1) * degree)
        scores = np.float64(bias[edges])
        weights = np.exp(scores - scores.max(0))
        weights /= weights.sum(0)
        own = cotangent[receiver].astype(np.float64)
        expected = np.einsum("eh,ehf->hf", weights, averaged)
        np.testing.assert_allclose(out[receiver], expected, atol=2e-5)
        of_v += weights[:, :, None] * own
        dots = np.einsum("hf,ehf->eh", own, averaged)
        of_bias = weights * (dots - np.sum(own * expected, 1))
        np.testing.assert_allclose(dbias[edges], of_bias, rtol=2e-4, atol=1e-6)
    if name.startswith("sparse"):
        of_v *= kept != 0
    np.testing.assert_allclose(dv, of_v, rtol=2e-4, atol=2e-7)
