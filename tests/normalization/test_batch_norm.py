"""Batch normalization by the kernels: against float64, Flax and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn._core.platform import kernels_available
from jaxgnn.nn import BatchNorm
from jaxgnn.ops._normalization.batch_norm import Options, batch_norm, by_jax
from tests.support.devices import two_devices
from tests.support.norms import assert_maps_over_examples, assert_modules_agree, assert_near
from tests.support.oracle import draw_array

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")
SHAPES = [(1, 1), (5, 7), (3, 64), (700, 33), (1100, 256), (20, 3, 5)]
EPSILON = 1e-5


def options(dtype, axis_name=None):
    return Options(EPSILON, axis_name, jnp.dtype(dtype))


def operands(shape, dtype):
    """Rows of features that are far from 0, and half of them."""
    rng = np.random.default_rng(shape[-1])
    wide = "float64" if dtype == "float64" else "float32"
    scale, bias = (draw_array(rng, shape[-1], wide) for _ in range(2))
    x = (draw_array(rng, shape, "float32") + 3).astype(dtype)
    return x, scale, bias, jnp.asarray(np.arange(shape[0]) % 2 == 0)


def in_float64(x, scale, bias, mask):
    x, scale, bias = (np.asarray(a, np.float64) for a in (x, scale, bias))
    rows = x[slice(None) if mask is None else np.asarray(mask)].reshape(-1, x.shape[-1])
    mean, variance = rows.mean(axis=0), rows.var(axis=0)
    return (x - mean) / np.sqrt(variance + EPSILON) * scale + bias, mean, variance


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_formula_in_float64(shape, dtype, masked):
    with jax.enable_x64(dtype == "float64"):
        x, scale, bias, mask = operands(shape, dtype)
        given = (x, scale, bias, mask if masked else None)
        out, found, any_row = jax.jit(functools.partial(batch_norm, options(dtype)))(*given)
        assert any_row
        assert out.dtype == x.dtype and found.mean.dtype == scale.dtype
        expected, mean, variance = in_float64(*given)
        assert_near(found.mean, mean, 4 * float(jnp.finfo(scale.dtype).eps))
        assert_near(found.variance, variance, 4 * float(jnp.finfo(scale.dtype).eps))
        assert_near(out, expected, float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("result", ["float32", None])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_gradients_equal_those_of_jax(shape, dtype, masked, result):
    with jax.enable_x64(dtype == "float64"):
        x, scale, bias, mask = operands(shape, dtype)
        x = x.reshape(shape[0], -1)[:, : shape[-1]]
        mask = mask if masked else None

        def ours(*arguments):
            return batch_norm(options(result or dtype), *arguments, mask)[0]

        def equation(*arguments):
            return by_jax(options(result or dtype), (mask, None, None), *arguments)

        @functools.partial(jax.jit, static_argnums=0)
        def gradients(norm, *arguments):
            out, pullback = jax.vjp(norm, *arguments)
            return pullback(jnp.cos(out))

        found, expected = (gradients(norm, x, scale, bias) for norm in (ours, equation))
        assert [a.dtype for a in found] == [x.dtype, scale.dtype, bias.dtype]
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, 4 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("masked", [False, True])
def test_derivatives_equal_finite_differences(masked):
    with jax.enable_x64():
        x, scale, bias, mask = operands((6, 5), "float64")

        @jax.jit
        def f(x, scale, bias):
            out = batch_norm(options("float64"), x, scale, bias, mask if masked else None)[0]
            return jnp.sin(out) * jnp.arange(1.0, 6)[None, :]

        check_grads(f, (x, scale, bias), order=2, modes=["fwd", "rev"], eps=1e-6)


@pytest.mark.system
def test_rows_that_do_not_count_may_be_anything():
    x, scale, bias, mask = operands((600, 40), "float32")
    expected = batch_norm(options("float32"), x, scale, bias, mask)
    filled = jnp.where(mask[:, None], x, jnp.nan)
    found = jax.jit(functools.partial(batch_norm, options("float32")))(filled, scale, bias, mask)
    assert_near(found[0][::2], expected[0][::2], 1e-7)
    assert_near(found[1].variance, expected[1].variance, 1e-7)
    assert np.isnan(np.asarray(found[0][1::2])).all()

    @jax.jit
    def gradients(x, scale, bias):
        """Of a loss without these rows."""

        def loss(x, scale, bias):
            out = batch_norm(options("float32"), x, scale, bias, mask)[0]
            return jnp.sum(jnp.sin(jnp.where(mask[:, None], out, 0)))

        return jax.grad(loss, (0, 1, 2))(x, scale, bias)

    for one, other in zip(gradients(filled, scale, bias), gradients(x, scale, bias), strict=True):
        assert_near(one, other, 1e-6)


def test_vmap_over_rows_and_parameters():
    x, scale, bias, _ = operands((3, 50, 16), "float32")
    norm = lambda *a: batch_norm(options("float32"), *a, None)[0]  # noqa: E731
    assert_maps_over_examples(norm, x, scale, bias, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_rows_over_devices(masked):
    """By `shard_map` the statistics of all with each device's kernel; partitioned by XLA, JAX, and
    nothing is gathered."""
    mesh = two_devices()
    x, scale, bias, mask = operands((600, 16), "float32")
    mask = jnp.arange(600) < 200 if masked else None  # the second device has none

    def results(norm, x):
        def loss(x, scale, bias):
            out, found, _ = norm(x, scale, bias, mask)
            return jnp.sum(jnp.sin(out)), (out, found.mean, found.variance)

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, scale, bias)

    norm = functools.partial(batch_norm, options("float32"))
    by_devices = jax.shard_map(
        functools.partial(batch_norm, options("float32", "d")),
        mesh=mesh,
        in_specs=(P("d"), P(), P(), P("d") if masked else None),
        out_specs=(P("d"), P(), P()),
    )
    split = jax.device_put(x, NamedSharding(mesh, P("d")))
    expected = jax.tree.leaves(results(norm, x))
    for found in (results(by_devices, x), results(norm, split)):
        for one, other in zip(jax.tree.leaves(found), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    compiled = jax.jit(norm).lower(split, scale, bias, mask).compile().as_text()
    assert "all-gather" not in compiled


@pytest.mark.system
def test_examples_of_vmap_that_count_together():
    """As `nnx.BatchNorm` with the name of an axis."""
    x, scale, bias, _ = operands((30, 16), "float32")

    def gradients(norm, x):
        loss = lambda *a: jnp.sum(jnp.sin(norm(*a)))  # noqa: E731
        return norm(x, scale, bias), jax.grad(loss, (0, 1, 2))(x, scale, bias)

    def together(x, scale, bias):
        one = functools.partial(batch_norm, options("float32", "examples"), mask=None)
        mapped = jax.vmap(one, (0, None, None), axis_name="examples")
        out = mapped(x.reshape(3, 10, 16), scale, bias)[0]
        return out.reshape(30, 16)

    alone = lambda *a: batch_norm(options("float32"), *a, None)[0]  # noqa: E731
    found, expected = (jax.tree.leaves(gradients(norm, x)) for norm in (together, alone))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own", [None, "bfloat16"])
def test_the_module_is_flax_s(own):
    x = draw_array(np.random.default_rng(0), (30, 4, 24), "float32")
    modules = [
        kind(24, dtype=own and jnp.dtype(own), momentum=0.9, rngs=nnx.Rngs(0))
        for kind in (BatchNorm, functools.partial(nnx.BatchNorm, use_fast_variance=False))
    ]
    assert_modules_agree(*modules, x, units=4)
    for name in ("mean", "var"):
        one, other = (getattr(module, name)[...] for module in modules)
        np.testing.assert_allclose(one, other, atol=1e-4 if own else 1e-6)  # Flax rounds rows first


@pytest.mark.parametrize("own", [None, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.bool_])
def test_integers_are_promoted_in_training_too(dtype, own):
    x = jnp.arange(12).reshape(4, 3).astype(dtype)
    norm, of_floats = (BatchNorm(3, dtype=own) for _ in range(2))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = [norm(x), norm(x, True)]
        expected = [of_floats(x.astype(jnp.float32)), of_floats(x.astype(jnp.float32), True)]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype == (own or jnp.float32)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_dtype_of_a_result_is_flax_s(dtype, param_dtype):
    x = jnp.arange(12.0).reshape(4, 3).astype(dtype)
    norm, theirs = (
        of(3, param_dtype=param_dtype, rngs=nnx.Rngs(0)) for of in (BatchNorm, nnx.BatchNorm)
    )
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for average in (False, True):
            assert norm(x, average).dtype == theirs(x, average).dtype


def test_the_target_is_built():
    if jax.default_backend() == "cpu":
        assert kernels_available("jaxgnn_centered_sums")
