"""Forward mode, linear transposes and Hessians against the JAX reference's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import config
from tests.support.arrays import normal

pytestmark = pytest.mark.few(1)

NODES, EDGES = 8, 30


X, W = (NODES, 2, 5), (EDGES, 2)
MU = normal(2, 3, seed=3)
# A function of the graph and one operand of that shape.
OPERATIONS = {
    "spmm sum": (X, lambda g, x: jaxgnn.spmm(g, x, normal(*W))),
    "spmm mean": (X, lambda g, x: jaxgnn.spmm(g, x, normal(*W), reduce="mean")),
    "spmm max": (X, lambda g, x: jaxgnn.spmm(g, x, normal(*W), reduce="max")),
    "spmm min": (X, lambda g, x: jaxgnn.spmm(g, x, reduce="min", transpose=True)),
    "spmm weights": (W, lambda g, w: jaxgnn.spmm(g, normal(*X), w, reduce="mean")),
    "spmm max weights": (W, lambda g, w: jaxgnn.spmm(g, normal(*X), w, reduce="max")),
    "spmm both": (X, lambda g, x: jaxgnn.spmm(g, x, x[g.senders, :, 0])),
    "sddmm": (X, lambda g, x: jaxgnn.sddmm(g, x, jnp.cos(x))),
    "gather_edges": (X, lambda g, x: jaxgnn.gather_edges(g, x, x[::-1], "mul")),
    "segment_reduce": (W, lambda g, w: jaxgnn.segment_reduce(g, w, "mean", by="senders")),
    "segment_reduce max": (W, lambda g, w: jaxgnn.segment_reduce(g, w, "max")),
    "segment_softmax": (W, lambda g, w: jaxgnn.segment_softmax(g, w)),
    "edge_conv": (X, lambda g, x: jaxgnn.edge_conv(g, x, x)),
    "maxk": (X, lambda g, x: jaxgnn.maxk(x, 2).to_dense()),
    "maxk bias": (X[2:], lambda g, b: jaxgnn.maxk(normal(*X), 2, bias=b).values),
    "maxk_spmm": (X, lambda g, x: jaxgnn.maxk_spmm(g, jaxgnn.maxk(x[:, 0], 2), x[g.senders, 1, 0])),
    "gat_attention": (X, lambda g, x: jaxgnn.gat_attention(g, x, x[:, :, 0], x[:, :, 1])),
    "gatv2_attention": (X, lambda g, x: jaxgnn.gatv2_attention(g, x, x * 2, x[0])),
    "dot_attention": (X, lambda g, x: jaxgnn.dot_attention(g, x, x * 2, x + 1)),
    "cosine_attention": (X, lambda g, x: jaxgnn.cosine_attention(g, x, 1.5, self_loops=True)),
    "gaussian_spmm": (X, lambda g, x: jaxgnn.gaussian_spmm(g, x, MU, MU, x[g.senders, 0, :3])),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_both_modes_agree_with_the_reference(graph, name):
    shape, function = OPERATIONS[name]
    x, tangent = normal(*shape), normal(*shape, seed=1)

    def f(x):
        return function(graph, x)

    def scalar(x):
        return jnp.sum(jnp.sin(f(x)))

    # One program each: op by op, a Hessian compiles a hundred. The tangents run both ways.
    with config.use(impl="jax"):
        jacobian = jax.jit(jax.jacrev(f))(x)
        hessian = jax.jit(jax.jacfwd(jax.grad(scalar)))(x)
    close = dict(rtol=2e-3, atol=3e-4)
    expected = np.tensordot(jacobian, tangent, x.ndim)
    np.testing.assert_allclose(jax.jvp(f, (x,), (tangent,))[1], expected, **close)
    np.testing.assert_allclose(jax.linearize(f, x)[1](tangent), expected, **close)

    @jax.jit
    def both_modes(x):
        return jax.jacfwd(f)(x), jax.hessian(scalar)(x), jax.jacrev(jax.grad(scalar))(x)

    of_f, *of_scalar = both_modes(x)
    np.testing.assert_allclose(of_f, jacobian, **close)
    for second in of_scalar:
        np.testing.assert_allclose(second, hessian, **close)


def test_a_linear_map_s_forward_mode_is_its_own_kernel(graph):
    """No gather of every edge's features: the tangent goes through the same custom call."""
    x = normal(NODES, 64)
    text = jax.jit(jax.linearize(lambda x: jaxgnn.spmm(graph, x), x)[1]).lower(x).as_text()
    assert text.count("jaxgnn_spmm") == 1 and f"{EDGES}x64" not in text


def test_linear_transpose(graph):
    x, y = normal(NODES, 4), normal(NODES, 4, seed=1)
    pushforward = jax.linearize(lambda x: jaxgnn.spmm(graph, x, reduce="mean"), x)[1]
    (transposed,) = jax.linear_transpose(pushforward, x)(y)
    np.testing.assert_allclose(jnp.vdot(pushforward(x), y), jnp.vdot(x, transposed), rtol=1e-5)


LINEAR = {
    **{name: OPERATIONS[name] for name in ("spmm sum", "spmm weights", "segment_reduce")},
    "sddmm": (X, lambda g, x: jaxgnn.sddmm(g, normal(*X), x)),
    "gather_edges": (X, lambda g, x: jaxgnn.gather_edges(g, x)),
    "maxk_spmm": (W, lambda g, w: jaxgnn.maxk_spmm(g, jaxgnn.maxk(normal(*X)[:, 0], 2), w[:, 0])),
    "sampled_spmm": (X, lambda g, x: jaxgnn.sampled_spmm(g, x, sample_size=2)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_transpose_of_an_operation(graph, name):
    shape, function = LINEAR[name]
    f, x = functools.partial(function, graph), normal(*shape)
    y, pullback = jax.vjp(f, x)
    cotangent = normal(*y.shape, seed=1)
    transposed = jax.linear_transpose(f, x)
    np.testing.assert_array_equal(transposed(cotangent)[0], pullback(cotangent)[0])
    (again,) = jax.linear_transpose(lambda ct: transposed(ct)[0], y)(x)
    np.testing.assert_allclose(again, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["spmm max", "spmm both"])
def test_linear_transpose_of_what_is_not_linear_raises(graph, name):
    shape, function = OPERATIONS[name]
    f, x = functools.partial(function, graph), normal(*shape)
    with pytest.raises(NotImplementedError, match="linear"):
        jax.linear_transpose(f, x)(f(x))


def test_gradients_of_a_linear_solver(graph):
    """JAX transposes the linear system, as for implicit layers."""

    def loss(b, weights):
        def system(x):
            return x - 0.1 * jaxgnn.spmm(graph, x, weights, reduce="mean")

        return jnp.sum(jax.scipy.sparse.linalg.bicgstab(system, b)[0] ** 2)

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    operands = normal(NODES, 3), normal(EDGES)
    found = gradient(*operands)
    with config.use(impl="jax"):
        expected = gradient(*operands)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_forward_over_reverse_in_a_loop(graph):
    """A Hessian-vector product, as second-order optimizers and implicit layers take it."""
    x, tangent = normal(NODES, 6), normal(NODES, 6, seed=1)

    def loss(x):
        for _ in range(3):
            x = jnp.tanh(jaxgnn.spmm(graph, x, reduce="mean"))
        return jnp.sum(x**2)

    product = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (tangent,))[1])(x)
    with config.use(impl="jax"):
        expected = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (tangent,))[1])(x)
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-5)
