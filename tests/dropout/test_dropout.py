"""Dropout of rows against the mask times the values: values, derivatives, transforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads

from jaxgnn import config, maxk
from jaxgnn._core.platform import kernels_available
from jaxgnn.ops._core import dropout_mask
from jaxgnn.ops._dropout import mask
from jaxgnn.ops._dropout.dropout import dropout
from tests.support.arrays import normal
from tests.support.devices import two_devices

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

KEY = jax.random.key(7)
DTYPES = ("float32", "bfloat16", "float16", "float64")
SHAPES = [(7, 3), (65, 40), (4, 5, 33), (2, 0), (0, 4), (100,), ()]
needs_kernel = pytest.mark.skipif(
    not kernels_available(mask.TARGET), reason="needs the kernel of this platform"
)


def kept(shape, rate, key=KEY):
    drop_below, words = dropout_mask.arguments(rate, key)
    width = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1]))
    return np.asarray(mask.kept_by_jax(drop_below, rows, width, words)).reshape(shape)


def expected(x, rate, key=KEY):
    """Scaled in the accumulation dtype, rounded once; not a product with 0, which leaves NaN."""
    dtype = x.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    scaled = (np.asarray(x).astype(wide) * wide(1 / (1 - round(rate * 2**32) / 2**32))).astype(
        dtype
    )
    return np.where(kept(x.shape, rate, key), scaled, np.zeros((), dtype))


@pytest.mark.parametrize("impl", [None, "jax"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape, dtype, impl):
    rate = 0.3
    with jax.enable_x64(dtype == "float64"), config.use(impl=impl):
        x, ct = normal(*shape, dtype=dtype), normal(*shape, seed=1, dtype=dtype)
        for call in (dropout, jax.jit(dropout, static_argnums=1)):
            out, pullback = jax.vjp(lambda x, call=call: call(x, rate, KEY), x)
            assert out.dtype == x.dtype
            np.testing.assert_array_equal(out, expected(x, rate))
            np.testing.assert_array_equal(pullback(ct)[0], expected(ct, rate))


def test_what_is_dropped_is_zero_whatever_it_was():
    x = jnp.full((8, 9), jnp.nan).at[::2].set(-1.0)
    out = np.asarray(dropout(x, 0.5, KEY))
    assert not np.any(out[~kept(x.shape, 0.5)]) and not np.signbit(out[~kept(x.shape, 0.5)]).any()
    assert np.isnan(out[1::2][kept(x.shape, 0.5)[1::2]]).all()


def test_maxk_s_own_dropout_is_this_and_the_selection():
    x = normal(20, 40)
    ours = maxk(dropout(x, 0.4, KEY), 8).to_dense()
    np.testing.assert_array_equal(ours, maxk(x, 8, dropout_rate=0.4, dropout_rng=KEY).to_dense())


def test_derivatives_of_every_order():
    x = normal(6, 9)
    check_grads(
        lambda x: jnp.sin(dropout(x, 0.3, KEY)), (x,), order=3, modes=("fwd", "rev"), rtol=0.02
    )


def test_a_rate_of_zero_is_the_identity_and_needs_no_key():
    x = normal(3, 4)
    assert dropout(x, 0.0, None) is x


def test_errors_name_the_argument():
    x = normal(3, 4)
    with pytest.raises(ValueError, match="dropout_rate: expected a finite number from 0"):
        dropout(x, 1.5, KEY)
    with pytest.raises(ValueError, match="dropout_rng: expected a JAX key"):
        dropout(x, 0.5, None)
    with pytest.raises(TypeError, match="x: expected a floating dtype, got int32"):
        dropout(jnp.arange(3), 0.5, KEY)


def test_vmap_over_keys_draws_for_each_and_over_rows_alone_for_all():
    x, keys = normal(3, 5, 34), jax.random.split(KEY, 3)
    one = functools.partial(dropout, rate=0.5)
    each = jax.jit(jax.vmap(lambda x, key: one(x, rng=key)))(x, keys)
    shared = jax.vmap(lambda x: one(x, rng=KEY))(x)
    several = jax.vmap(lambda key: one(x[0], rng=key))(keys)
    for i, key in enumerate(keys):
        np.testing.assert_array_equal(each[i], expected(x[i], 0.5, key))
        np.testing.assert_array_equal(shared[i], expected(x[i], 0.5))
        np.testing.assert_array_equal(several[i], expected(x[0], 0.5, key))
    gradients = jax.vmap(jax.grad(lambda x, key: jnp.sum(one(x, rng=key) ** 2)))(x, keys)
    np.testing.assert_allclose(gradients, 2 * 2 * each, rtol=1e-6)


@pytest.mark.parametrize("remat", [False, True], ids=["", "checkpoint"])
def test_scan_over_layers(remat):
    x, keys = normal(5, 33), jax.random.split(KEY, 4)

    def layer(x, key):
        return dropout(jnp.sin(x), 0.25, key), None

    def loss(x):
        body = jax.checkpoint(layer) if remat else layer
        return jnp.sum(jax.lax.scan(body, x, keys)[0] ** 2)

    def unrolled(x):
        for key in keys:
            x = jnp.where(kept(x.shape, 0.25, key), jnp.sin(x) * (4 / 3), 0.0)
        return jnp.sum(x**2)

    for ours, theirs in zip(*(jax.value_and_grad(f)(x) for f in (loss, unrolled)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@needs_kernel
def test_a_step_draws_once_and_keeps_no_mask_of_the_values():
    """XLA makes one of the draws of forward and backward pass."""
    x = normal(64, 96)
    step = jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(dropout(jnp.sin(x), 0.5, KEY)))))
    lowered = step.lower(x)
    assert lowered.as_text().count(f"@{mask.TARGET}(") == 2
    assert lowered.compile().as_text().count(f'"{mask.TARGET}"') == 1
    residuals = jax.eval_shape(lambda x: jax.vjp(lambda x: dropout(x, 0.5, KEY), x)[1], x)
    assert sum(leaf.size for leaf in jax.tree.leaves(residuals)) <= 2  # the key


def test_shard_map_over_rows():
    """Each device draws for its own rows, by the key that it gets."""
    mesh, x, keys = two_devices(), normal(8, 33), jax.random.split(KEY, 2)
    rows = PartitionSpec("d")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(rows, rows), out_specs=rows)
    def sharded(x, keys):
        return dropout(x, 0.5, keys[0])

    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(sharded(x, keys)))))(x)
    parts = [expected(x[4 * i : 4 * i + 4], 0.5, key) for i, key in enumerate(keys)]
    np.testing.assert_array_equal(jax.jit(sharded)(x, keys), np.concatenate(parts))
    kept_parts = np.concatenate([kept((4, 33), 0.5, key) for key in keys])
    np.testing.assert_allclose(gradient, np.where(kept_parts, 2 * np.cos(2 * x), 0), rtol=1e-5)


def test_rows_that_xla_partitions_are_drawn_where_they_lie():
    mesh = two_devices()
    rows = NamedSharding(mesh, PartitionSpec("d"))
    x = jax.device_put(jnp.ones((4096, 64)), rows)
    step = jax.jit(jax.value_and_grad(lambda x, key: jnp.sum(dropout(x, 0.25, key) ** 2)))
    compiled = step.lower(x, KEY).compile()
    text = compiled.as_text()
    assert mask.TARGET not in text and "all-gather" not in text
    gradient = compiled(x, KEY)[1]
    assert gradient.sharding.is_equivalent_to(rows, 2)
    np.testing.assert_allclose(np.unique(gradient), [0, 32 / 9], rtol=1e-6)
    deviation = np.sqrt(0.25 * 0.75 / x.size)
    assert abs(np.mean(np.asarray(gradient) > 0) - 0.75) < 5 * deviation


def test_rows_on_several_devices_are_drawn_there_without_jit():
    rows = NamedSharding(two_devices(), PartitionSpec("d"))
    out = dropout(jax.device_put(jnp.ones((64, 40)), rows), 0.5, KEY)
    assert out.sharding.is_equivalent_to(rows, 2) and set(np.unique(out)) == {0.0, 2.0}
