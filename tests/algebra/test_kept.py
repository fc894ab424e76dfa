"""What the backward pass keeps and what it recomputes, of messages that no rule fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn.algebra import (
    EDGES,
    NODES,
    apply_edge,
    apply_vertex,
    dot,
    edge_values,
    explain,
    gather,
    linear,
    recompute_edges,
    scatter,
)
from tests.support.message_operands import NUM_EDGES, RECEIVERS, SENDERS, WIDTH, operands
from tests.support.oracle import close, draw_array

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


def residuals(function, *arguments):
    """Shapes of what backward keeps, integers aside."""
    pullback = jax.eval_shape(lambda *arguments: jax.vjp(function, *arguments)[1], *arguments)
    leaves = jax.tree.leaves(pullback)
    return [leaf.shape for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def test_what_no_rule_fits_keeps_nothing_on_the_edges(graph):
    x, z = (operands()[name] for name in "xz")

    def layer(x, recompute=True):
        u = scatter(graph, apply_vertex(jnp.tanh, x))
        message = apply_edge(jnp.exp, apply_edge(jnp.sin, u + edge_values(graph, z)))
        return gather(message, "max", recompute=recompute)

    on_edges = (NUM_EDGES, WIDTH)
    assert residuals(layer, x).count(on_edges) == 1  # z, which was given
    assert residuals(lambda x: layer(x, recompute=False), x).count(on_edges) > 1
    # Under a checkpoint of the user's own the names decide.
    names = jax.checkpoint_policies.save_only_these_names(EDGES, NODES)
    kept = {
        policy: residuals(jax.checkpoint(layer, policy=policy), x)
        for policy in (recompute_edges, names)
    }
    assert kept[recompute_edges].count(on_edges) == 1
    assert (SENDERS, WIDTH) in kept[recompute_edges]  # apply_vertex's, beside the argument
    assert kept[names].count(on_edges) > 1


def test_what_costs_much_to_recompute_is_kept(graph):
    """A product with a matrix is, elementwise functions of it are not."""
    wide, rng = 16, np.random.default_rng(5)
    rows = {"x": SENDERS, "y": RECEIVERS, "z": NUM_EDGES, "kernel": wide}
    arrays = {n: draw_array(rng, (size, wide), "float32") for n, size in rows.items()}
    mlp = nnx.Sequential(
        nnx.Linear(wide, wide, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(wide, wide, rngs=nnx.Rngs(1))
    )

    def projected(arrays):
        u, z = scatter(graph, arrays["x"]), edge_values(graph, arrays["z"])
        return apply_edge(jnp.tanh, linear(apply_edge(jnp.sin, u + z), arrays["kernel"]))

    def by_module(arrays):
        return apply_edge(jnp.sin, apply_edge(mlp, projected(arrays)))

    def by_dot(arrays):
        u, v = scatter(graph, arrays["x"], arrays["y"])
        return apply_edge(jnp.tanh, dot(u, v)) * edge_values(graph, arrays["z"])

    def kept(expression, **options):
        """Values on the edges, beside `z`."""
        shapes = residuals(lambda arrays: gather(expression(arrays), "max", **options), arrays)
        return sum(shape[:1] == (NUM_EDGES,) for shape in shapes) - 1

    size = 4 * NUM_EDGES * wide
    assert kept(projected) == 1
    assert [kept(projected, budget=budget) for budget in (0, size - 1, size)] == [0, 0, 1]
    assert kept(projected, budget=100 * size) > 1
    assert kept(projected, recompute=True) == 0
    assert kept(projected, recompute=False) > 1
    assert kept(by_module) == 3
    assert kept(by_dot) == 1
    text = explain(projected(arrays), "max").splitlines()
    assert text[1:] == [
        "  kept if a derivative needs it: linear(sin((u + e))), 2,624 bytes, 8 operations a byte"
    ]
    assert explain(projected(arrays), "max", budget=8).splitlines()[1:] == [
        "  within a budget of 8 bytes"
    ]

    @jax.jit
    def gradients(arrays):
        def of(**options):
            def loss(arrays):
                return jnp.sum(jnp.sin(gather(by_module(arrays), "max", **options)))

            return jax.grad(loss)(arrays)

        return of(), of(recompute=False)

    for ours, stored in zip(*map(jax.tree.leaves, gradients(arrays)), strict=True):
        close(ours, stored)


def test_transformations_of_what_no_rule_fits(graph):
    """A batch, and the gradient of a gradient; also of a learned module on the edges."""
    x, z = (operands()[name] for name in "xz")
    mlp = nnx.Linear(WIDTH, 3, rngs=nnx.Rngs(0))

    def layer(x, z, impl=None, recompute=True):
        messages = apply_edge(mlp, apply_edge(jnp.sin, scatter(graph, x) + edge_values(graph, z)))
        return gather(messages, recompute=recompute, impl=impl)

    def twice(x, **options):
        def loss(x):
            return jnp.sum(jnp.sin(layer(x, z, **options)))

        return jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(x)

    batch = jnp.stack([x, 2 * x])
    ours = jax.jit(lambda x: (jax.vmap(layer, (0, None))(batch, z), twice(x)))(x)
    plain = jax.jit(
        lambda x: (
            jnp.stack([layer(x, z, impl="jax", recompute=False) for x in batch]),
            twice(x, impl="jax", recompute=False),
        )
    )(x)
    for a, b in zip(ours, plain, strict=True):
        close(a, b, 1e-5)
