"""The selection after a bias and dropout: against plain JAX bit for bit, derivatives, batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn import maxk
from jaxgnn._core.platform import kernels_available
from tests.support.devices import two_devices
from tests.support.oracle import brute_force_maxk, draw_array
from tests.support.strategies import rows_with_ties

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")
# Vectors of 16 bytes and scalar loads, candidates and not, one warp a row and several.
SHAPES = [(1, 1), (7, 3), (64, 32), (256, 32), (255, 40), (300, 17), (520, 16), (1000, 8)]
WIDE = [(128, 128), (256, 5), (512, 60), (1024, 30), (1024, 900), (2000, 130), (4093, 7)]
RATES = (0.0, 0.5, 0.9)
KEY = jax.random.key(7)

jitted_maxk = jax.jit(maxk, static_argnames=("k", "dropout_rate", "active", "packed", "impl"))


@functools.cache
def kept_entries(rows: int, width: int, rate: float) -> np.ndarray:
    """Dropout's mask by `KEY`, whose words are 0 and 7: Philox4x32-10 in NumPy."""
    low = np.uint64(2**32 - 1)
    row, block = np.meshgrid(np.arange(rows), np.arange(-(-width // 4)), indexing="ij")
    c = [row.astype(np.uint64), np.zeros_like(row, np.uint64), block.astype(np.uint64)]
    c.append(np.zeros_like(c[0]))
    key = [0, 7]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        k0, k1 = map(np.uint64, key)
        high = np.uint64(32)
        c = [(p1 >> high) ^ c[1] ^ k0, p1 & low, (p0 >> high) ^ c[3] ^ k1, p0 & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, axis=-1).reshape(rows, -1)[:, :width] >= round(rate * 2**32)


def transformed(x, bias, rate) -> np.ndarray:
    """What is selected from, in NumPy: in float32 (or float64), rounded once."""
    x = np.asarray(x)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        z = x.astype(wide)
        if bias is not None:
            z = z + np.asarray(bias).astype(wide)
        if rate > 0:
            scale = wide(2**32 / (2**32 - round(rate * 2**32)))
            kept = kept_entries(int(np.prod(x.shape[:-1])), x.shape[-1], rate)
            z = np.where(kept.reshape(x.shape), z * scale, wide(0))
        return z.astype(x.dtype)


def assert_bits(actual, expected):
    """The same bits, but for those of NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    numbers = ~np.isnan(expected)
    bits = np.dtype(f"uint{8 * expected.dtype.itemsize}")
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual[numbers].view(bits), expected[numbers].view(bits))


def assert_selects(x, k, bias, rate, impl):
    cbsr = jitted_maxk(x, k, bias=bias, dropout_rate=rate, dropout_rng=KEY, impl=impl)
    z = transformed(x, bias, rate)
    expected = brute_force_maxk(z, k)
    np.testing.assert_array_equal(cbsr.indices, expected)
    assert_bits(cbsr.values, np.take_along_axis(z, expected, axis=-1))


@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    rate=st.sampled_from(RATES),
    case=st.sampled_from([*((*shape, "kernel") for shape in SHAPES), (7, 3, "jax")]),
)
def test_equals_brute_force(data, dtype, rate, case):
    width, k, impl = case
    with jax.enable_x64(dtype == "float64"):
        x = data.draw(rows_with_ties(3, width, dtype))
        bias = None
        if data.draw(st.booleans()):
            bias_dtype = data.draw(st.sampled_from([dtype, "float32"]))
            bias = data.draw(rows_with_ties(1, width, bias_dtype))[0]
        assert_selects(x, k, bias, rate, impl)


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize(("width", "k"), WIDE)
def test_sanitized_selection(width, k, dtype):
    """Many rows, and those that no normal distribution describes."""
    x = np.array(draw_array(np.random.default_rng(width), (50, width), dtype))
    x[3], x[4, ::2] = 1, 0
    x[6, 0], x[7, -1], x[8, 1], x[9, :2] = np.inf, -np.inf, np.nan, -0.0
    bias = draw_array(np.random.default_rng(k), width, "float32")
    for rate in (0.5, 0.9):
        assert_selects(x, k, bias, rate, None)
    assert_selects(x, k, bias, 0.0, None)


def test_dropped_entries_are_zeros_whatever_they_were():
    for impl in ("kernel", "jax"):
        for value in (np.nan, np.inf, -np.inf, -0.0, -1.0):
            x = jnp.full((4, 64), value, jnp.float32)
            cbsr = maxk(x, 64, dropout_rate=0.5, dropout_rng=KEY, impl=impl)
            kept = kept_entries(4, 64, 0.5)
            assert_bits(cbsr.values, np.where(kept, np.float32(2 * value), np.float32(0)))
            assert 0.3 < kept.mean() < 0.7
    # Zeros among the largest: the lower columns first.
    below = maxk(jnp.full((4, 64), -1.0), 5, dropout_rate=0.9, dropout_rng=KEY)
    zeros = ~kept_entries(4, 64, 0.9)
    np.testing.assert_array_equal(below.indices, [np.flatnonzero(row)[:5] for row in zeros])
    assert not np.asarray(below.values).any()


def test_statistics_of_the_mask():
    x = jnp.ones((2000, 256))
    for rate in (0.1, 0.5, 0.9):
        z = jitted_maxk(x, 256, dropout_rate=rate, dropout_rng=jax.random.key(1)).values
        kept = np.asarray(z) > 0
        deviation = np.sqrt(rate * (1 - rate) / kept.size)
        assert abs(kept.mean() - (1 - rate)) < 4 * deviation
        np.testing.assert_allclose(np.asarray(z)[kept], 1 / (1 - rate), rtol=1e-6)
        assert np.abs(kept.mean(axis=0) - (1 - rate)).max() < 5 * deviation * np.sqrt(256)
        assert np.abs(kept.mean(axis=1) - (1 - rate)).max() < 5 * deviation * np.sqrt(2000)
        other = np.asarray(jitted_maxk(x, 256, dropout_rate=rate, dropout_rng=KEY).values) > 0
        agreement = np.mean(kept == other)
        assert abs(agreement - (rate**2 + (1 - rate) ** 2)) < 0.01


def test_without_bias_and_dropout_it_is_the_plain_selection():
    x = draw_array(np.random.default_rng(0), (5, 40), "float32")
    text = (
        jax.jit(lambda x: maxk(x, 8, dropout_rate=0, dropout_rng=KEY, impl="kernel"))
        .lower(x)
        .as_text()
    )
    assert "@jaxgnn_maxk(" in text and "transformed" not in text
    assert_selects(x, 8, None, 0.0, "kernel")


def test_leading_axes_active_and_packed():
    x = draw_array(np.random.default_rng(1), (2, 3, 64), "float32")
    bias = draw_array(np.random.default_rng(2), 64, "float32")
    options = {"bias": bias, "dropout_rate": 0.5, "dropout_rng": KEY}
    cbsr = maxk(x, 9, **options)
    flat = maxk(x.reshape(6, 64), 9, **options)
    np.testing.assert_array_equal(cbsr.values.reshape(6, 9), flat.values)
    np.testing.assert_array_equal(cbsr.indices.reshape(6, 9), flat.indices)
    z = jnp.asarray(transformed(x, bias, 0.5))
    for how in ({"active": 4}, {"packed": True}):
        ours, reference = maxk(x, 9, **options, **how), maxk(z, 9, **how)
        np.testing.assert_array_equal(ours.values, reference.values)
        assert ours.packed == reference.packed
    assert maxk(jnp.zeros((0, 64)), 9, **options).shape == (0, 64)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_derivatives_equal_finite_differences(rate):
    with jax.enable_x64():
        rng = np.random.default_rng(5)
        # Far enough apart that no small step changes which are the largest.
        x = jnp.asarray(rng.permuted(np.tile(np.arange(-3, 9) / 4 + 0.1, (5, 1)), axis=1))
        bias = jnp.asarray(rng.integers(-2, 3, 12) / 64)

        @jax.jit
        def f(x, bias):
            values = maxk(x, 8, bias=bias, dropout_rate=rate, dropout_rng=KEY).values
            return jnp.sin(values) * jnp.arange(1.0, 9)[None, :]

        check_grads(f, (x, bias), order=2, modes=["rev"], eps=1e-6)


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_gradients_equal_those_of_plain_jax(dtype):
    x = draw_array(np.random.default_rng(6), (20, 72), dtype)
    bias = draw_array(np.random.default_rng(7), 72, "float32")
    weights = draw_array(np.random.default_rng(8), (20, 72), "float32")
    factors = np.where(kept_entries(20, 72, 0.5), np.float32(2), np.float32(0))

    def fused(x, bias, impl):
        return maxk(x, 20, bias=bias, dropout_rate=0.5, dropout_rng=KEY, impl=impl)

    def apart(x, bias, impl):
        z = (x.astype(jnp.float32) + bias[None, :]) * factors
        return maxk(z.astype(x.dtype), 20, impl=impl)

    def gradients(select, impl):
        def loss(x, bias):
            dense = select(x, bias, impl).to_dense(impl=impl)
            return jnp.sum(jnp.sin(dense.astype(jnp.float32)) * weights)

        return jax.jit(jax.grad(loss, (0, 1)))(x, bias)

    expected = gradients(apart, "jax")
    unit = float(jnp.finfo(dtype).eps)
    for impl in ("kernel", "jax") if dtype == "float32" else ("kernel",):
        ours = gradients(fused, impl)
        assert ours[0].dtype == x.dtype and ours[1].dtype == jnp.float32
        for a, b in zip(ours, expected, strict=True):
            a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
            np.testing.assert_allclose(a, b, rtol=4 * unit, atol=20 * unit)


def test_vmap_gives_each_example_what_it_gets_alone():
    rng = np.random.default_rng(9)
    x = draw_array(rng, (3, 5, 64), "float32")
    bias = draw_array(rng, (3, 64), "float32")
    keys = jax.random.split(jax.random.key(3), 3)

    @jax.jit
    def f(x, bias, key):
        def select(x, bias):
            cbsr = maxk(x, 20, bias=bias, dropout_rate=0.5, dropout_rng=key, impl="kernel")
            return cbsr.values, cbsr.indices

        values, pullback, indices = jax.vjp(select, x, bias, has_aux=True)
        return values, indices, pullback(jnp.cos(values))

    for axes in [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)]:
        operands = [
            array if axis == 0 else array[0]
            for array, axis in zip((x, bias, keys), axes, strict=True)
        ]
        lowered = jax.jit(jax.vmap(f, axes)).lower(*operands)
        assert lowered.as_text().count("@jaxgnn_maxk_transformed(") == 1
        results = lowered.compile()(*operands)
        for i in range(3):
            each = (a[i] if axis == 0 else a for a, axis in zip(operands, axes, strict=True))
            for ours, alone in zip(
                jax.tree.leaves(results), jax.tree.leaves(f(*each)), strict=True
            ):
                np.testing.assert_allclose(ours[i], alone, rtol=1e-6, atol=1e-6)


def test_nested_vmap_over_different_operands():
    rng = np.random.default_rng(10)
    x = draw_array(rng, (3, 5, 64), "float32")
    bias = draw_array(rng, (2, 64), "float32")
    keys = jax.random.split(jax.random.key(3), 2)

    def f(x, bias, key):
        return maxk(x, 20, bias=bias, dropout_rate=0.5, dropout_rng=key, impl="kernel").indices

    jitted = jax.jit(f)
    inner_x = jax.vmap(jax.vmap(f, (0, None, None)), (None, 0, 0))(x, bias, keys)
    inner_bias = jax.vmap(jax.vmap(f, (None, 0, 0)), (0, None, None))(x, bias, keys)
    for i in range(3):
        for j in range(2):
            alone = jitted(x[i], bias[j], keys[j])
            np.testing.assert_array_equal(inner_x[j, i], alone)
            np.testing.assert_array_equal(inner_bias[i, j], alone)


def test_scan_over_keys():
    x = draw_array(np.random.default_rng(11), (4, 64), "float32")
    keys = jnp.stack([KEY] * 3)
    factors = np.where(kept_entries(4, 64, 0.5), np.float32(2), np.float32(0))

    def loss(x):
        def step(carry, key):
            return maxk(carry, 30, dropout_rate=0.5, dropout_rng=key).to_dense() + x, None

        return jnp.sum(jax.lax.scan(step, x, keys)[0] ** 2)

    def unrolled(x):
        carry = x
        for _ in range(3):
            carry = maxk(carry * factors, 30).to_dense() + x
        return jnp.sum(carry**2)

    ours, expected = (jax.jit(jax.grad(f))(x) for f in (loss, unrolled))
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_shard_map_over_rows():
    """Rows and keys are sharded, the bias replicated: its gradient is a sum."""
    mesh = two_devices()
    x = draw_array(np.random.default_rng(12), (8, 32), "float32")
    bias = draw_array(np.random.default_rng(13), 32, "float32")

    def dense(x, bias, key):
        return maxk(x, 10, bias=bias, dropout_rate=0.5, dropout_rng=key).to_dense()

    def shard(x, bias, key):
        return dense(x, bias, jax.random.fold_in(key, jax.lax.axis_index("d")))

    sharded = jax.shard_map(
        shard, mesh=mesh, in_specs=(P("d"), P(), P()), out_specs=P("d"), check_vma=True
    )

    def single(x, bias, key):
        halves = [dense(x[4 * i : 4 * i + 4], bias, jax.random.fold_in(key, i)) for i in range(2)]
        return jnp.concatenate(halves)

    def results(f):
        def loss(x, bias):
            out = f(x, bias, KEY)
            return jnp.sum(jnp.sin(out)), out

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, bias)

    for ours, expected in zip(
        jax.tree.leaves(results(sharded)), jax.tree.leaves(results(single)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


X = jnp.ones((3, 4))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"dropout_rate": 1.0, "dropout_rng": KEY},
            ValueError,
            "dropout_rate: expected .* less than 1",
        ),
        (
            {"dropout_rate": -0.1, "dropout_rng": KEY},
            ValueError,
            "dropout_rate: expected .* from 0",
        ),
        (
            {"dropout_rate": "half", "dropout_rng": KEY},
            TypeError,
            "dropout_rate: expected a number",
        ),
        (
            {"dropout_rate": 0.5},
            ValueError,
            "dropout_rng: expected a JAX key with dropout_rate=0.5",
        ),
        (
            {"dropout_rate": 0.5, "dropout_rng": 3},
            TypeError,
            "dropout_rng: expected a JAX key, got int",
        ),
        (
            {"dropout_rate": 0.5, "dropout_rng": X},
            TypeError,
            "dropout_rng: expected a JAX key, got an array",
        ),
        ({"bias": jnp.ones(3)}, ValueError, r"bias: expected the shape \(4,\), got \(3,\)"),
        ({"bias": jnp.ones((1, 4))}, ValueError, r"bias: expected the shape \(4,\), got \(1, 4\)"),
        ({"bias": jnp.ones(4, int)}, TypeError, "bias: expected float32.*got int32"),
        ({"bias": "x"}, TypeError, "bias: expected an array, got str"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        maxk(X, 2, **options)


def test_raw_and_other_keys():
    x = draw_array(np.random.default_rng(14), (3, 40), "float32")
    typed, raw = (
        maxk(x, 9, dropout_rate=0.5, dropout_rng=key) for key in (KEY, jax.random.PRNGKey(7))
    )
    np.testing.assert_array_equal(typed.indices, raw.indices)
    longer = maxk(x, 9, dropout_rate=0.5, dropout_rng=jax.random.key(7, impl="rbg"))
    assert longer.indices.shape == (3, 9)


def test_the_target_is_built():
    assert kernels_available("jaxgnn_maxk_transformed")
