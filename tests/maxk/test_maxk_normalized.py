"""The selection from normalized rows: against NumPy and the operations apart, derivatives,
batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn import maxk
from jaxgnn.ops._core import dropout_mask
from tests.support.devices import two_devices
from tests.support.oracle import draw_array

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")
# Vectors of 16 bytes and scalar loads, candidates and not, one warp a row and several.
SHAPES = [(1, 1), (7, 3), (64, 32), (256, 32), (255, 40), (300, 17), (520, 16), (4093, 7)]
KEY = jax.random.key(7)
EPSILON = 1e-5


def operands(rows: int, width: int, dtype: str):
    rng = np.random.default_rng(width)
    x = draw_array(rng, (rows, width), dtype)
    scale = draw_array(rng, width, "float64" if dtype == "float64" else "float32")
    return x, scale, draw_array(rng, width, scale.dtype.name)


def apart(x, scale, bias, rate=0.0):
    """What is selected from, by JAX, in the accumulation dtype."""
    wide = x.astype(scale.dtype)
    centered = wide - wide.mean(axis=1, keepdims=True)
    variance = jnp.square(centered).mean(axis=1, keepdims=True)
    z = centered / jnp.sqrt(variance + EPSILON) * scale[None, :] + bias[None, :]
    if rate == 0:
        return z
    below, words = dropout_mask.arguments(rate, KEY)
    return z * dropout_mask.keep_factors(words, 0, *x.shape, below, z.dtype)


def spaced(rows: int, width: int, dtype: str = "float32"):
    """Rows, a scale and a bias whose entries stay apart, in an order that no rounding changes."""
    rng = np.random.default_rng(rows)
    numbers = np.linspace(-2, 3, width) ** 3 / 4 + np.arange(width) / 2
    x = rng.permuted(np.tile(numbers, (rows, 1)), axis=1) * rng.uniform(1, 2, (rows, 1))
    wide = "float64" if dtype == "float64" else "float32"
    scale, bias = np.full(width, 1.25), np.zeros(width)
    return jnp.asarray(x, dtype), jnp.asarray(scale, wide), jnp.asarray(bias, wide)


@functools.partial(jax.jit, static_argnames=("k", "rate", "impl", "packed"))
def selected(x, scale, bias, k, *, rate=0.0, key=KEY, impl="kernel", **options):
    return maxk(
        x,
        k,
        norm_epsilon=EPSILON,
        norm_scale=scale,
        bias=bias,
        dropout_rate=rate,
        dropout_rng=key,
        impl=impl,
        **options,
    )


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "k"), SHAPES)
def test_keeps_the_largest_normalized_entries(width, k, dtype, rate):
    if dtype == "float64" and jax.default_backend() != "cpu":
        pytest.skip("kernels of float64 are the CPU's")
    with jax.enable_x64(dtype == "float64"):
        x, scale, bias = operands(9, width, dtype)
        z = np.asarray(apart(x, scale, bias, rate), np.float64)
        unit = float(jnp.finfo(dtype).eps)
        # The sums of a row are in another order: an error of the row's largest.
        tolerance = 8 * (unit if unit < 1e-3 else unit / 8) * np.abs(z).max(axis=1, keepdims=True)
        for impl in ("kernel", "jax"):
            cbsr = selected(x, scale, bias, k, rate=rate, impl=impl)
            assert cbsr.values.dtype == x.dtype
            columns = np.asarray(cbsr.indices, np.int64)
            assert (np.diff(columns, axis=1) > 0).all()
            kept = np.take_along_axis(z, columns, axis=1)
            assert (np.abs(np.asarray(cbsr.values, np.float64) - kept) <= tolerance).all()
            others = np.array(z)
            np.put_along_axis(others, columns, -np.inf, axis=1)
            assert (others.max(axis=1) <= kept.min(axis=1) + 2 * tolerance[:, 0]).all()


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_sanitized_rows_of_every_kind(dtype):
    """Constant rows give the bias, and what is not finite makes its row NaN and no other."""
    x, scale, bias = operands(60, 256, dtype)
    x = np.array(x)
    x[3], x[4], x[5, 7], x[6, 0], x[7, -1] = 1, 0, np.nan, np.inf, -np.inf
    cbsr = selected(jnp.asarray(x), scale, bias, 32)
    values = np.asarray(cbsr.values, np.float32)
    for row in (3, 4):
        expected = np.sort(np.asarray(bias.astype(dtype), np.float32))[-32:]
        np.testing.assert_array_equal(np.sort(values[row]), expected)
    assert np.isnan(values[5:8]).all()
    np.testing.assert_array_equal(cbsr.indices[5:8], np.tile(np.arange(32), (3, 1)))
    assert np.isfinite(np.delete(values, [5, 6, 7], axis=0)).all()


def test_rows_far_from_zero_keep_their_digits():
    x, scale, bias = spaced(40, 64)
    ours = selected(x + 8192, scale, bias, 16)
    expected = selected(x, scale, bias, 16)
    np.testing.assert_array_equal(ours.indices, expected.indices)
    np.testing.assert_allclose(ours.values, expected.values, atol=2e-4)  # x + 8192 has rounded


def test_scale_and_bias_may_be_left_out():
    x, scale, bias = spaced(5, 40)
    ours = maxk(x, 8, norm_epsilon=EPSILON)
    expected = selected(x, jnp.ones_like(scale), jnp.zeros_like(bias), 8)
    np.testing.assert_array_equal(ours.indices, expected.indices)
    np.testing.assert_array_equal(ours.values, expected.values)
    plain = maxk(apart(x, jnp.ones_like(scale), bias), 8)
    np.testing.assert_array_equal(ours.indices, plain.indices)
    np.testing.assert_allclose(ours.values, plain.values, rtol=1e-5, atol=1e-6)


def test_leading_axes_active_packed_and_no_rows():
    x, scale, bias = spaced(6, 64)
    flat = selected(x, scale, bias, 9, rate=0.5)
    cbsr = maxk(
        x.reshape(2, 3, 64),
        9,
        norm_epsilon=EPSILON,
        norm_scale=scale,
        bias=bias,
        dropout_rate=0.5,
        dropout_rng=KEY,
        impl="kernel",
    )
    np.testing.assert_array_equal(cbsr.values.reshape(6, 9), flat.values)
    np.testing.assert_array_equal(cbsr.indices.reshape(6, 9), flat.indices)
    active = selected(x, scale, bias, 9, active=4)
    assert (np.asarray(active.values) != 0).sum(axis=1).max() <= 4
    assert selected(x, scale, bias, 9, packed=True).packed
    assert selected(x[:0], scale, bias, 9).shape == (0, 64)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_derivatives_equal_finite_differences(rate):
    with jax.enable_x64():
        x, scale, bias = spaced(4, 12, "float64")

        @jax.jit
        def f(x, scale, bias):
            values = selected(x, scale, bias, 8, rate=rate, impl=None).values
            return jnp.sin(values) * jnp.arange(1.0, 9)[None, :]

        check_grads(f, (x, scale, bias), order=2, modes=["fwd", "rev"], eps=1e-6)


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_gradients_equal_those_of_layer_norm(dtype):
    x, scale, bias = spaced(20, 72, dtype)
    weights = draw_array(np.random.default_rng(8), (20, 72), "float32")
    norm = nnx.LayerNorm(
        72, epsilon=EPSILON, use_fast_variance=False, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0)
    )

    def fused(x, scale, bias, impl):
        return selected(x, scale, bias, 20, impl=impl)

    def by_module(x, scale, bias, impl):
        del impl
        module = nnx.clone(norm)  # of this trace, so that it may be changed
        module.scale[...], module.bias[...] = scale, bias
        return maxk(module(x), 20, impl="jax")

    def gradients(select, impl):
        def loss(x, scale, bias):
            dense = select(x, scale, bias, impl).to_dense(impl="jax")
            return jnp.sum(jnp.sin(dense.astype(jnp.float32)) * weights)

        return jax.grad(loss, (0, 1, 2))(x, scale, bias)

    with jax.numpy_dtype_promotion("standard"):  # Flax's module relies on it
        expected = gradients(by_module, None)
    unit = float(jnp.finfo(dtype).eps)
    for impl in ("kernel", "jax"):
        ours = gradients(fused, impl)
        assert [a.dtype for a in ours] == [x.dtype, jnp.float32, jnp.float32]
        for a, b in zip(ours, expected, strict=True):
            a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
            np.testing.assert_allclose(a, b, rtol=8 * unit, atol=60 * unit)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize(("width", "k"), SHAPES)
def test_sanitized_gradients_equal_those_of_jax(width, k, dtype, rate):
    x, scale, bias = operands(2100, width, dtype) if width == 64 else operands(50, width, dtype)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(impl, x, scale, bias):
        values, pullback = jax.vjp(
            lambda *a: selected(*a, k, rate=rate, impl=impl).values, x, scale, bias
        )
        return values, pullback(jnp.cos(values))

    (values, ours), (others, expected) = (gradients(i, x, scale, bias) for i in ("kernel", "jax"))
    unit = float(jnp.finfo(dtype).eps)
    same = np.isclose(np.float32(values), np.float32(others), rtol=64 * unit, atol=64 * unit)
    rows = same.all(axis=1)  # a tie that rounding decides has other columns
    assert rows.mean() > 0.8
    for a, b in zip((ours[0][rows], *ours[1:]), (expected[0][rows], *expected[1:]), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        if a.ndim == 1 and not rows.all():
            continue
        np.testing.assert_allclose(a, b, rtol=64 * unit, atol=64 * unit * np.abs(b).max(initial=1))


def test_vmap_gives_each_example_what_it_gets_alone():
    rng = np.random.default_rng(9)
    x = spaced(15, 64)[0].reshape(3, 5, 64)
    scale = jnp.asarray(rng.uniform(1, 1.001, (3, 64)), jnp.float32)
    bias = jnp.asarray(rng.uniform(0, 0.001, (3, 64)), jnp.float32)
    keys = jax.random.split(jax.random.key(3), 3)

    @jax.jit
    def f(x, scale, bias, key):
        def select(x, scale, bias):
            cbsr = selected(x, scale, bias, 20, rate=0.5, key=key)
            return cbsr.values, cbsr.indices

        values, pullback, indices = jax.vjp(select, x, scale, bias, has_aux=True)
        return values, indices, pullback(jnp.cos(values))

    all_axes = [tuple(0 if i == j else None for i in range(4)) for j in range(4)]
    for axes in [*all_axes, (0, 0, 0, 0)]:
        arguments = [
            array if axis == 0 else array[0]
            for array, axis in zip((x, scale, bias, keys), axes, strict=True)
        ]
        lowered = jax.jit(jax.vmap(f, axes)).lower(*arguments)
        assert lowered.as_text().count("@jaxgnn_maxk_normalized(") == 1
        results = lowered.compile()(*arguments)
        for i in range(3):
            each = (a[i] if axis == 0 else a for a, axis in zip(arguments, axes, strict=True))
            for ours, alone in zip(
                jax.tree.leaves(results), jax.tree.leaves(f(*each)), strict=True
            ):
                np.testing.assert_allclose(ours[i], alone, rtol=2e-5, atol=2e-6)


def test_shard_map_over_rows():
    """Rows are sharded, scale and bias replicated: their gradients are sums."""
    mesh = two_devices()
    x, scale, bias = spaced(8, 32)

    def dense(x, scale, bias):
        return maxk(x, 10, norm_epsilon=EPSILON, norm_scale=scale, bias=bias).to_dense()

    in_specs = (P("d"), P(), P())
    sharded = jax.shard_map(dense, mesh=mesh, in_specs=in_specs, out_specs=P("d"), check_vma=True)

    def results(f):
        def loss(*arguments):
            out = f(*arguments)
            return jnp.sum(jnp.sin(out)), out

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, scale, bias)

    for ours, expected in zip(
        jax.tree.leaves(results(sharded)), jax.tree.leaves(results(dense)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def test_no_normalized_row_is_kept_for_the_backward_pass():
    x, scale, bias = spaced(50, 64)
    _, pullback = jax.vjp(lambda *a: selected(*a, 16).values, x, scale, bias)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if leaf.size >= x.size]
    assert len(kept) == 1
    np.testing.assert_array_equal(kept[0], x)


X = jnp.ones((3, 4))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"norm_epsilon": -1.0}, ValueError, "norm_epsilon: expected .* from 0"),
        ({"norm_epsilon": "small"}, TypeError, "norm_epsilon: expected a number, got str"),
        ({"norm_epsilon": np.nan}, ValueError, "norm_epsilon: expected a finite number"),
        (
            {"norm_scale": jnp.ones(4)},
            ValueError,
            "norm_scale: expected None without norm_epsilon, got an array",
        ),
        (
            {"norm_epsilon": 1e-5, "norm_scale": jnp.ones(3)},
            ValueError,
            r"norm_scale: expected the shape \(4,\), got \(3,\)",
        ),
        (
            {"norm_epsilon": 1e-5, "norm_scale": jnp.ones(4, jnp.int32)},
            TypeError,
            "norm_scale: expected float32.*got int32",
        ),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        maxk(X, 2, **options)
