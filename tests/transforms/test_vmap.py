"""The operations under vmap."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import (
    CBSR,
    Graph,
    cosine_attention,
    dot_attention,
    edge_conv,
    gat_attention,
    gather_edges,
    gatv2_attention,
    gaussian_spmm,
    maxk,
    maxk_spmm,
    sampled_spmm,
    sddmm,
    segment_reduce,
    segment_softmax,
    spmm,
)
from tests.support.arrays import normal

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

NODES, EDGES = 12, 60


def custom_calls(f, *arguments) -> int:
    """How many of our custom calls the compiled function makes."""
    return jax.jit(f).lower(*arguments).as_text().count("@jaxgnn_")


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize(
    "in_axes", [(0, None), (None, 0), (0, 0), (1, 1), (2, None)], ids=lambda axes: str(axes)
)
def test_vmap_is_one_call_on_a_wider_array(graph, reduce, in_axes):
    batch = 3

    def batched(shape, axis):
        return shape if axis is None else (*shape[:axis], batch, *shape[axis:])

    x = normal(*batched((NODES, 2, 4), in_axes[0]))
    weights = normal(*batched((EDGES, 2), in_axes[1]), seed=1)

    def f(graph, x, weights):
        return jnp.sin(spmm(graph, x, weights, reduce=reduce))

    mapped = jax.vmap(f, (None, *in_axes))
    assert custom_calls(mapped, graph, x, weights) == 1

    def one(array, axis, i):
        return array if axis is None else jnp.take(array, i, axis)

    expected = jnp.stack(
        [f(graph, one(x, in_axes[0], i), one(weights, in_axes[1], i)) for i in range(batch)]
    )
    np.testing.assert_allclose(mapped(graph, x, weights), expected, rtol=1e-6, atol=1e-6)

    def loss(f, x, weights):
        return jnp.sum(f(graph, x, weights) ** 2)

    def looped(graph, x, weights):
        return jnp.stack(
            [f(graph, one(x, in_axes[0], i), one(weights, in_axes[1], i)) for i in range(batch)]
        )

    ours = jax.grad(functools.partial(loss, mapped), (0, 1))(x, weights)
    theirs = jax.grad(functools.partial(loss, looped), (0, 1))(x, weights)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_vmap_of_gradients_and_nested_vmap(graph):
    x, weights = normal(2, 3, NODES, 4), normal(3, EDGES, seed=1)

    @jax.jit
    def gradient(x, weights):
        return jax.grad(lambda x, w: jnp.sum(spmm(graph, x, w) ** 2), (0, 1))(x, weights)

    inner = jax.vmap(gradient)
    nested = jax.vmap(inner, (0, None))(x, weights)
    for i in range(2):
        for j in range(3):
            for ours, expected in zip(nested, gradient(x[i, j], weights[j]), strict=True):
                np.testing.assert_allclose(ours[i, j], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batched", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_the_other_operations(graph, batched):
    a = normal(*((3,) if batched[0] == 0 else ()), NODES, 2, 5)
    b = normal(*((3,) if batched[1] == 0 else ()), NODES, 2, 5, seed=1)

    @jax.jit
    def f(a, b):
        scores = segment_softmax(graph, sddmm(graph, a, b))
        messages = gather_edges(graph, a, b, "mul") * scores[..., None]
        return segment_reduce(graph, messages, by="senders")

    expected = jnp.stack(
        [f(a[i] if batched[0] == 0 else a, b[i] if batched[1] == 0 else b) for i in range(3)]
    )
    np.testing.assert_allclose(jax.vmap(f, batched)(a, b), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0), (1, 1)], ids=lambda a: str(a))
def test_vmap_of_sparse_rows(graph, reduce, in_axes):
    """Positions differ by example: the products run one after the other."""
    batch = 3

    def batched(shape, axis):
        return shape if axis is None else (*shape[:axis], batch, *shape[axis:])

    x = normal(*batched((NODES, 10), in_axes[0]))
    weights = normal(*batched((EDGES,), in_axes[1]), seed=1)

    def f(x, weights):
        return jnp.sin(maxk_spmm(graph, maxk(x, 4), weights, reduce=reduce))

    def one(array, axis, i):
        return array if axis is None else jnp.take(array, i, axis)

    def looped(x, weights):
        return jnp.stack(
            [f(one(x, in_axes[0], i), one(weights, in_axes[1], i)) for i in range(batch)]
        )

    def with_gradients(g):
        def loss(x, weights):
            out = g(x, weights)
            return jnp.sum(out**2), out

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, weights)

    (ours, out), (theirs, expected) = map(with_gradients, (jax.vmap(f, in_axes), looped))
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_vmap_over_values_at_fixed_positions(graph):
    cbsr = maxk(normal(NODES, 10), 4)
    values = normal(3, NODES, 4, seed=1)

    def f(values):
        return maxk_spmm(graph, CBSR(values, cbsr.indices, 10))

    gradients = jax.vmap(jax.grad(lambda v: jnp.sum(f(v) ** 3)))(values)
    for i in range(3):
        np.testing.assert_allclose(jax.vmap(f)(values)[i], f(values[i]), rtol=1e-6)
        expected = jax.grad(lambda v: jnp.sum(f(v) ** 3))(values[i])
        np.testing.assert_allclose(gradients[i], expected, rtol=1e-5, atol=1e-5)


def test_vmap_over_graphs_of_one_shape():
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    x = normal(3, 6, 4)
    expected = jnp.stack([spmm(g, x[i]) for i, g in enumerate(graphs)])
    np.testing.assert_allclose(jax.vmap(spmm)(stacked, x), expected, rtol=1e-6)


def shares(x):
    return jnp.sum(x, axis=-1)


def on_sparse_rows(graph, x, **options):
    return maxk_spmm(graph, maxk(x[:, 0], 2, **options), normal(EDGES))


def on_gaussians(graph, x, pseudo):
    return gaussian_spmm(graph, x, normal(2, 3), normal(2, 3, seed=1), pseudo)


def on_graphs(graph, x):
    offsets = graph.row_offsets + 0 * x[0, 0, 0].astype(jnp.int32)
    return spmm(dataclasses.replace(graph, row_offsets=offsets), x)


DROPOUT = {"dropout_rate": 0.5, "dropout_rng": np.array([1, 2], np.uint32)}
# Of rows [NODES, 2, 4]: each rule of `vmap` by what needs it.
ON_ROWS = {
    "spmm": spmm,
    "spmm max": lambda g, x: spmm(g, x, normal(EDGES), reduce="max"),
    "spmm weights": lambda g, x: spmm(g, normal(NODES, 4), normal(EDGES) * jnp.sum(x)),
    "spmm graphs": on_graphs,
    "sddmm": lambda g, x: sddmm(g, x, x),
    "gather_edges": gather_edges,
    "segment_reduce": lambda g, x: segment_reduce(g, gather_edges(g, x), "max"),
    "segment_softmax": lambda g, x: segment_softmax(g, gather_edges(g, shares(x))),
    "edge_conv": lambda g, x: edge_conv(g, x, x),
    "gat_attention": lambda g, x: gat_attention(
        g, x, shares(x), shares(x), self_loops=True, **DROPOUT
    ),
    "gatv2_attention": lambda g, x: gatv2_attention(g, x, x, x[0]),
    "dot_attention": lambda g, x: dot_attention(g, x, x, x),
    "dot_attention of sparse rows": lambda g, x: dot_attention(g, x, x, maxk(x, 2)),
    "cosine_attention": cosine_attention,
    "gaussian_spmm": lambda g, x: on_gaussians(g, x, (normal(NODES, 3), normal(NODES, 3, seed=1))),
    "gaussian_spmm places": lambda g, x: on_gaussians(g, x, (x[:, 0, 1:], x[:, 1, 1:])),
    "maxk": lambda _, x: maxk(x, 2).to_dense(),
    "maxk_spmm": on_sparse_rows,
    "maxk_spmm transformed": lambda g, x: on_sparse_rows(g, x, bias=x[0, 0], **DROPOUT),
}


@pytest.mark.parametrize("name", ON_ROWS)
def test_vmap_over_no_examples(graph, name):
    """Results and gradients without elements, of the shapes and dtypes that an example has."""
    f, x = functools.partial(ON_ROWS[name], graph), normal(NODES, 2, 4)

    def with_gradient(x):
        return f(x), jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)

    one = jax.eval_shape(with_gradient, x)
    for batch in ((0,), (0, 3), (3, 0)):
        mapped = with_gradient
        for _ in batch:
            mapped = jax.vmap(mapped)
        for array, example in zip(mapped(jnp.zeros((*batch, *x.shape))), one, strict=True):
            assert array.shape == (*batch, *example.shape)
            assert array.dtype == example.dtype


@pytest.mark.few(1)
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)], ids=lambda axes: str(axes))
def test_vmap_of_samples(graph, in_axes):
    """One sample for all examples is drawn once; keys that differ one after the other."""
    x = normal(*((3,) if in_axes[0] == 0 else ()), NODES, 4)
    key = jax.random.key(0)
    keys = jax.random.split(key, 3) if in_axes[1] == 0 else key

    def f(x, key):
        def loss(x):
            out = sampled_spmm(graph, x, sample_size=2, strategy="random", key=key)
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(loss, has_aux=True)(x)

    for i in range(3):
        expected = f(x[i] if in_axes[0] == 0 else x, keys[i] if in_axes[1] == 0 else keys)
        mapped = jax.tree.map(lambda a, i=i: a[i], jax.vmap(f, in_axes)(x, keys))
        for a, b in zip(mapped, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if in_axes == (0, None):
        single = custom_calls(f, x[0], key)
        assert custom_calls(jax.vmap(f, in_axes), x, key) == single
