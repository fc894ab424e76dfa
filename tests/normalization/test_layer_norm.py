"""Layer normalization by the kernels: against float64, Flax and finite differences."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn._core.platform import kernels_available
from jaxgnn.nn import LayerNorm
from jaxgnn.ops._normalization.layer_norm import by_jax, layer_norm
from tests.support.devices import two_devices
from tests.support.norms import assert_maps_over_examples, assert_modules_agree, assert_near
from tests.support.oracle import draw_array

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")
SHAPES = [(1, 1), (5, 7), (3, 64), (700, 33), (1100, 256), (4, 5000)]
EPSILON = 1e-5


def operands(shape, dtype):
    rng = np.random.default_rng(shape[-1])
    wide = "float64" if dtype == "float64" else "float32"
    scale, bias = (draw_array(rng, shape[-1], wide) for _ in range(2))
    return draw_array(rng, shape, dtype), scale, bias


def in_float64(x, scale, bias):
    x, scale, bias = (np.asarray(a, np.float64) for a in (x, scale, bias))
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + EPSILON) * scale + bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_formula_in_float64(shape, dtype):
    with jax.enable_x64(dtype == "float64"):
        x, scale, bias = operands(shape, dtype)
        out = jax.jit(functools.partial(layer_norm, EPSILON))(x, scale, bias)
        assert out.dtype == x.dtype
        assert_near(out, in_float64(x, scale, bias), float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_equal_those_of_jax(shape, dtype):
    with jax.enable_x64(dtype == "float64"):
        x, scale, bias = operands(shape, dtype)

        @functools.partial(jax.jit, static_argnums=0)
        def gradients(norm, *arguments):
            out, pullback = jax.vjp(functools.partial(norm, EPSILON), *arguments)
            return pullback(jnp.cos(out))

        found, expected = (gradients(norm, x, scale, bias) for norm in (layer_norm, by_jax))
        assert [a.dtype for a in found] == [x.dtype, scale.dtype, bias.dtype]
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, 4 * float(jnp.finfo(dtype).eps))


def test_derivatives_equal_finite_differences():
    with jax.enable_x64():
        x, scale, bias = operands((4, 9), "float64")

        @jax.jit
        def f(x, scale, bias):
            return jnp.sin(layer_norm(EPSILON, x, scale, bias)) * jnp.arange(1.0, 10)[None, :]

        check_grads(f, (x, scale, bias), order=2, modes=["fwd", "rev"], eps=1e-6)


def test_rows_that_are_constant_far_from_zero_or_not_finite():
    x, scale, bias = operands((6, 40), "float32")
    x = np.array(x)
    x[0], x[1, 3], x[2, 0] = 3, np.nan, np.inf
    x[3:] += 8192
    out = np.asarray(layer_norm(EPSILON, jnp.asarray(x), scale, bias))
    np.testing.assert_array_equal(out[0], bias)
    assert np.isnan(out[1:3]).all()
    # Four units of the mean, of 2^-10: by E[x^2] - E[x]^2 a variance of 1 would be lost.
    np.testing.assert_allclose(out[3:], in_float64(x[3:], scale, bias), atol=4 * 2**-10)
    assert layer_norm(EPSILON, jnp.zeros((0, 40)), scale, bias).shape == (0, 40)


def test_vmap_over_rows_and_parameters():
    x, scale, bias = operands((3, 5, 16), "float32")
    norm = functools.partial(layer_norm, EPSILON)
    assert_maps_over_examples(norm, x, scale, bias, rtol=1e-5)


def test_rows_over_devices():
    """By `shard_map` each device's kernel; partitioned by XLA, JAX, and nothing is gathered."""
    mesh = two_devices()
    x, scale, bias = operands((8, 16), "float32")

    def results(norm, x):
        def loss(x, scale, bias):
            out = norm(x, scale, bias)
            return jnp.sum(jnp.sin(out)), out

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, scale, bias)

    norm = functools.partial(layer_norm, EPSILON)
    by_devices = jax.shard_map(norm, mesh=mesh, in_specs=(P("d"), P(), P()), out_specs=P("d"))
    split = jax.device_put(x, NamedSharding(mesh, P("d")))
    for found in (results(by_devices, x), results(norm, split)):
        for one, other in zip(
            jax.tree.leaves(found), jax.tree.leaves(results(norm, x)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert "all-gather" not in jax.jit(norm).lower(split, scale, bias).compile().as_text()


@pytest.mark.parametrize("own", [None, "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"use_scale": False}])
def test_the_module_is_flax_s(options, own):
    x = draw_array(np.random.default_rng(0), (3, 4, 24), "float32")
    options = {"dtype": own and jnp.dtype(own), "use_fast_variance": False, **options}
    modules = [kind(24, **options, rngs=nnx.Rngs(0)) for kind in (LayerNorm, nnx.LayerNorm)]
    assert_modules_agree(*modules, x, units=2)


@pytest.mark.parametrize("shape", [(2, 4), (3, 1), (0,), ()])
def test_errors_name_the_width_of_the_rows(shape):
    got = re.escape(str(shape))
    for options in ({}, {"use_bias": False}):
        norm = LayerNorm(3, **options, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match=rf"x: expected the shape \(..., 3\), got {got}"):
            norm(jnp.zeros(shape))


def test_masks_and_other_axes_are_flax_s():
    x = draw_array(np.random.default_rng(0), (4, 6), "float32")
    ours, theirs = (kind(6, rngs=nnx.Rngs(0)) for kind in (LayerNorm, nnx.LayerNorm))
    mask = jnp.arange(6)[None, :] < 4
    with jax.numpy_rank_promotion("allow"):
        np.testing.assert_array_equal(ours(x, mask=mask), theirs(x, mask=mask))
        of_columns = [
            kind(4, reduction_axes=0, feature_axes=0, rngs=nnx.Rngs(0))(x)
            for kind in (LayerNorm, nnx.LayerNorm)
        ]
    np.testing.assert_array_equal(*of_columns)


def test_the_targets_are_built():
    if jax.default_backend() == "cpu":
        assert kernels_available("jaxgnn_layer_norm", "jaxgnn_layer_norm_gradient")
