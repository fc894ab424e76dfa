"""The module `Dropout`, in the place of Flax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn._core.platform import kernels_available
from jaxgnn.distributed import shard
from jaxgnn.nn import MLP, Dropout
from jaxgnn.nn._dropout import drop
from jaxgnn.ops._dropout import mask
from jaxgnn.ops._dropout.dropout import dropout
from tests.support.arrays import normal
from tests.support.devices import two_devices


def test_it_drops_by_the_key_of_its_stream():
    x = normal(40, 33)
    ours, keys = Dropout(0.5, rngs=nnx.Rngs(dropout=3)), nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=3))
    for _ in range(2):
        np.testing.assert_array_equal(ours(x), dropout(x, 0.5, keys.rngs()))
    assert not np.array_equal(ours(x), ours(x))


@pytest.mark.parametrize("source", ["key", "rngs", "stream"])
def test_keys_of_a_call(source):
    x, module = normal(5, 6), Dropout(0.5)
    rngs = nnx.Rngs(dropout=3)
    key = nnx.Rngs(dropout=3).dropout()
    given = {"key": key, "rngs": rngs, "stream": rngs.dropout}[source]
    np.testing.assert_array_equal(module(x, rngs=given), dropout(x, 0.5, key))


def test_what_drops_nothing_gives_the_values_back():
    x = normal(5, 6)
    module = Dropout(0.5, rngs=nnx.Rngs(0))
    assert module(x, deterministic=True) is x
    module.eval()
    assert module(x) is x and not np.array_equal(module(x, deterministic=False), x)
    module.train()
    assert not np.array_equal(module(x), x)
    assert Dropout(0.0)(x) is x
    with pytest.raises(ValueError, match="no `rngs` argument"):
        Dropout(0.5)(x)
    for rate, error in ((1.5, ValueError), (-1, ValueError), ("0.5", TypeError)):
        with pytest.raises(error, match="rate: expected a"):
            Dropout(rate, rngs=nnx.Rngs(0))(x)  # pyright: ignore


def test_a_rate_of_one_leaves_zeros_and_no_nan():
    module = Dropout(1.0, rngs=nnx.Rngs(0))
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(module(x)))(jnp.full((3, 4), jnp.inf))
    assert value == 0 and not np.any(gradient)


def test_broadcast_axes_share_the_mask():
    out = Dropout(0.5, broadcast_dims=(0,), rngs=nnx.Rngs(0))(jnp.ones((4, 200)))
    np.testing.assert_array_equal(out, np.broadcast_to(out[:1], out.shape))
    assert set(np.unique(out)) == {0.0, 2.0}


def test_its_state_is_flax_s():
    states = [nnx.state(kind(0.5, rngs=nnx.Rngs(0))) for kind in (Dropout, nnx.Dropout)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    module = MLP([4, 8, 2], dropout=0.5, rngs=nnx.Rngs(0))
    assert isinstance(module.dropout, Dropout)


def test_layers_and_steps_have_masks_of_their_own():
    """Two modules of one generator, and two calls of one module: half of the values agree."""
    x, rngs = jnp.ones((200, 64)), nnx.Rngs(0)
    first, second = Dropout(0.5, rngs=rngs), Dropout(0.5, rngs=rngs)
    masks = [np.asarray(module(x)) > 0 for module in (first, second, first, second)]
    deviation = np.sqrt(0.25 / x.size)
    for i in range(4):
        for j in range(i):
            assert abs(np.mean(masks[i] == masks[j]) - 0.5) < 5 * deviation


def test_a_step_under_nnx_jit():
    module = Dropout(0.5, rngs=nnx.Rngs(0))
    x = normal(30, 40)

    @nnx.jit
    def step(module, x):
        return nnx.grad(lambda module, x: jnp.sum(module(x) ** 2), argnums=1)(module, x)

    first, again = step(module, x), step(module, x)
    assert not np.array_equal(first, again)
    kept = np.asarray(first) != 0
    np.testing.assert_allclose(np.asarray(first)[kept], 8 * np.asarray(x)[kept], rtol=1e-6)


def test_explicit_axes_go_to_jax_s_generator():
    mesh = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((8, 4)), jax.sharding.NamedSharding(mesh, jax.P("d")))
        out = jax.jit(lambda x, key: Dropout(0.5)(x, rngs=key))(x, jax.random.key(0))
    assert set(np.unique(out)) <= {0.0, 2.0}


@pytest.mark.parametrize("layout", ["rows", "features"])
def test_devices_of_a_sharded_graph_draw_for_their_own_rows(layout):
    """By the kernel. Each device has a mask of its own, and the gradients are of that mask."""
    nodes = np.arange(64)
    sharded = shard(Graph.from_edges(nodes, nodes), two_devices(), **{layout: "d"})
    x = sharded.scatter(np.ones((64, 40), np.float32))

    def run(x, key):
        return drop(Dropout(0.5, rngs=nnx.Rngs(dropout=key)), x, sharded)

    step = jax.jit(lambda x, key: jax.vjp(lambda x: run(x, key), x)[1](2 * x)[0])
    out, gradient = jax.jit(run)(x, jax.random.key(0)), step(x, jax.random.key(0))
    np.testing.assert_array_equal(gradient, 2 * out)
    assert out.sharding.is_equivalent_to(x.sharding, 2)
    kept = np.asarray(out).reshape(2, -1) > 0
    assert abs(kept.mean() - 0.5) < 5 * 0.5 / np.sqrt(kept.size)
    assert abs(np.mean(kept[0] == kept[1]) - 0.5) < 5 * 0.5 / np.sqrt(kept.shape[1])
    calls = step.lower(x, jax.random.key(0)).as_text().count(f"@{mask.TARGET}(")
    assert calls == (1 if kernels_available(mask.TARGET) else 0)
