"""The selection of the k largest, bit for bit, its derivative, and the rows that it leaves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import CBSR, maxk
from tests.support.oracle import brute_force_maxk, draw_array
from tests.support.strategies import rows_with_ties

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")
IMPL = ("kernel", "jax")
# A few shapes, so that most examples find their program compiled.
SHAPES = [(1, 1), (5, 1), (5, 5), (31, 7), (64, 32), (65, 64), (100, 32), (256, 32), (300, 17)]
WIDE = [(256, 256), (257, 1), (257, 256), (511, 63), (1000, 100), (4096, 1), (4096, 1024)]


# One compilation a shape, where a call that is not jitted compiles each of its parts.
jitted_maxk = jax.jit(maxk, static_argnames=("k", "active", "packed", "impl"))


def bits(array) -> np.ndarray:
    """Comparable with NaN and the sign of zero."""
    return np.ascontiguousarray(array).view(np.uint8)


def assert_selects(x, k, impl):
    cbsr = jitted_maxk(x, k, impl=impl)
    expected = brute_force_maxk(x, k)
    assert cbsr.width == x.shape[-1] and cbsr.dtype == x.dtype
    assert cbsr.indices.dtype == (np.uint8 if cbsr.width <= 256 else np.uint16)
    np.testing.assert_array_equal(cbsr.indices, expected)
    np.testing.assert_array_equal(
        bits(cbsr.values), bits(np.take_along_axis(np.asarray(x), expected, axis=-1))
    )


@given(
    data=st.data(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    rows=st.sampled_from([0, 1, 3]),
    impl=st.sampled_from(IMPL),
)
def test_equals_brute_force(data, shape, dtype, rows, impl):
    width, k = shape
    with jax.enable_x64(dtype == "float64"):
        x = data.draw(rows_with_ties(rows, width, dtype))
        assert_selects(x, k, impl)


@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_rows_equal_brute_force(dtype):
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(0)
        for width, k in WIDE:
            distinct = draw_array(rng, (9, width), dtype)
            tied = np.round(np.asarray(distinct, float)).astype(distinct.dtype)
            assert_selects(np.concatenate([distinct, tied]), k, "kernel")


@pytest.mark.parametrize("width", [2, 8, 15, 33, 63, 129, 255])
def test_every_k(width):
    x = draw_array(np.random.default_rng(width), (40, width), "float32")
    for k in sorted({1, 2, width // 3 + 1, width // 2, width - 1, width}):
        assert_selects(x, k, "kernel")


@pytest.mark.parametrize("impl", IMPL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype, impl):
    """NaN of either sign first, then infinity; zeros are equal; ties to the lower column."""
    with jax.enable_x64(dtype == "float64"):
        nan, inf = jnp.nan, jnp.inf
        tiny = float(jnp.finfo(dtype).smallest_subnormal)
        rows = [
            ([nan, inf, -nan, -inf, 3.0, inf], [0, 1, 2]),
            ([-0.0, 0.0, -1.0, -0.0, 0.0, -inf], [0, 1, 3]),
            ([-inf] * 6, [0, 1, 2]),
            ([2.0, 1.0, 1.0, 1.0, 1.0, 2.0], [0, 1, 5]),
            ([nan] * 6, [0, 1, 2]),
            ([-tiny, tiny, 0.0, -0.0, -1.0, 2 * tiny], [1, 2, 5]),
        ]
        x = jnp.asarray(np.array([row for row, _ in rows]), dtype)
        cbsr = maxk(x, 3, impl=impl)
        np.testing.assert_array_equal(cbsr.indices, [kept for _, kept in rows])
        np.testing.assert_array_equal(
            bits(cbsr.values),
            bits(np.take_along_axis(np.asarray(x), np.asarray(cbsr.indices, int), axis=1)),
        )


@pytest.mark.parametrize("impl", IMPL)
def test_dense_form_and_back(impl):
    for dtype, width in [("float32", 20), ("bfloat16", 300), ("float16", 256)]:
        x = draw_array(np.random.default_rng(1), (7, width), dtype)
        cbsr = maxk(x, 9, impl=impl)
        dense = cbsr.to_dense(impl=impl)
        expected = np.zeros(x.shape, np.float64)
        kept = brute_force_maxk(x, 9)
        np.put_along_axis(expected, kept, np.take_along_axis(np.asarray(x, float), kept, 1), 1)
        assert dense.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(dense, np.float64), expected)
        whole = jitted_maxk(x, width, impl=impl)
        np.testing.assert_array_equal(whole.to_dense(impl=impl), x)


def test_leading_axes_and_the_parts():
    x = draw_array(np.random.default_rng(2), (2, 3, 10), "float32")
    cbsr = maxk(x, 4)
    assert cbsr.shape == (2, 3, 10) and cbsr.k == 4 and cbsr.num_rows == 6
    assert cbsr.values.shape == cbsr.indices.shape == (2, 3, 4)
    np.testing.assert_array_equal(cbsr.to_dense()[1], maxk(x[1], 4).to_dense())
    np.testing.assert_array_equal(maxk(x[0, 0], 4).to_dense(), cbsr.to_dense()[0, 0])
    half = cbsr.astype(jnp.bfloat16)
    assert half.dtype == jnp.bfloat16 and half.to_dense().dtype == jnp.bfloat16
    doubled = dataclasses.replace(cbsr, values=2 * cbsr.values)
    np.testing.assert_array_equal(doubled.to_dense(), 2 * cbsr.to_dense())
    leaves, tree = jax.tree.flatten(cbsr)
    assert len(leaves) == 2 and jax.tree.unflatten(tree, leaves).width == 10
    empty = maxk(jnp.zeros((0, 10)), 4)
    assert empty.shape == (0, 10) and empty.k == 4 and empty.to_dense().shape == (0, 10)


@pytest.mark.parametrize("impl", IMPL)
def test_the_gradient_lies_at_the_kept_positions(impl):
    x = draw_array(np.random.default_rng(3), (6, 40), "float32")
    direction = draw_array(np.random.default_rng(4), (6, 40), "float32")

    def loss(x):
        return jnp.sum(direction * jnp.sin(maxk(x, 5, impl=impl).to_dense(impl=impl)))

    expected = np.zeros((6, 40), np.float32)
    kept = brute_force_maxk(x, 5)
    slope = np.asarray(direction * jnp.cos(x))
    np.put_along_axis(expected, kept, np.take_along_axis(slope, kept, 1), 1)
    np.testing.assert_allclose(jax.grad(loss)(x), expected, rtol=1e-6)


def test_derivatives_equal_finite_differences():
    with jax.enable_x64():
        rng = np.random.default_rng(5)
        # Far enough apart that no small step changes which are the largest.
        x = jnp.asarray(rng.permuted(np.tile(np.arange(12) / 4, (5, 1)), axis=1))
        check_grads(lambda x: jnp.sin(maxk(x, 4).values), (x,), order=2, modes=["rev"], eps=1e-6)
        cbsr = maxk(x, 4)

        def dense(values):
            return jnp.sin(CBSR(values, cbsr.indices, cbsr.width).to_dense())

        check_grads(dense, (cbsr.values,), order=2, modes=["rev"], eps=1e-6)


@given(active=st.integers(1, 9), data=st.data(), dtype=st.sampled_from(DTYPES[:3]))
def test_active_keeps_the_largest_of_the_kept(active, data, dtype):
    x = data.draw(rows_with_ties(3, 12, dtype))
    cbsr = jitted_maxk(x, 9, active=active)
    np.testing.assert_array_equal(cbsr.indices, jitted_maxk(x, 9).indices)
    ours, expected = (np.asarray(c.to_dense(), float) for c in (cbsr, jitted_maxk(x, active)))
    np.testing.assert_array_equal(ours, expected)


def test_active_may_be_traced_and_stops_the_gradient():
    traces = []

    @jax.jit
    def f(x, active):
        traces.append(1)
        return jax.value_and_grad(lambda x: jnp.sum(maxk(x, 8, active=active).values ** 2))(x)

    x = draw_array(np.random.default_rng(6), (4, 20), "float32")
    for active in (8, 3, 1):
        _, gradient = f(x, jnp.int32(active))
        np.testing.assert_allclose(gradient, 2 * maxk(x, active).to_dense(), rtol=1e-6)
    assert len(traces) == 1
    # Out of range only when traced, where it cannot be told: clipped.
    np.testing.assert_array_equal(f(x, jnp.int32(99))[1], f(x, jnp.int32(8))[1])


def test_vmap_folds_into_rows():
    x = draw_array(np.random.default_rng(7), (3, 5, 30), "float32")

    def f(x):
        cbsr = maxk(x, 6, impl="kernel")
        return cbsr, cbsr.to_dense(impl="kernel")

    assert jax.jit(jax.vmap(f)).lower(x).as_text().count("@jaxgnn_") == 2
    cbsr, dense = jax.vmap(f, in_axes=1, out_axes=1)(x)
    expected, expected_dense = f(x)
    np.testing.assert_array_equal(cbsr.indices, expected.indices)
    np.testing.assert_array_equal(dense, expected_dense)
    gradient = jax.vmap(jax.grad(lambda x: jnp.sum(f(x)[1] ** 3)))(x)
    np.testing.assert_allclose(gradient, 3 * expected_dense**2, rtol=1e-6)


X = jnp.ones((3, 4))
GOOD = CBSR(X[:, :2], jnp.zeros((3, 2), jnp.uint8), 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: maxk(X, 0), ValueError, "k: expected an integer from 1 to 4, got 0"),
        (lambda: maxk(X, 5), ValueError, "k: expected an integer from 1 to 4, got 5"),
        (lambda: maxk(X, 2.0), TypeError, "k: expected an integer, got float"),
        (lambda: maxk(X, True), TypeError, "k: expected an integer, got bool"),
        (lambda: maxk(X.astype(int), 2), TypeError, "x: expected float32.*int32"),
        (lambda: maxk("x", 2), TypeError, "x: expected an array, got str"),
        (lambda: maxk(X[0, 0], 1), ValueError, "x: expected rows .* got a scalar"),
        (lambda: maxk(jnp.ones((1, 4097)), 2), ValueError, "at most 4096 entries, got 4097"),
        (lambda: maxk(jnp.ones((1, 0)), 1), ValueError, r"x: .* at least one .* \(1, 0\)"),
        (lambda: maxk(X, 2, packed="no"), TypeError, "packed: expected True or .* got 'no'"),
        (
            lambda: maxk(X, 2, dropout_rate=0.5, dropout_rng=jnp.zeros(3, jnp.uint32)),
            ValueError,
            "dropout_rng: expected the words of a JAX key, got 3 words",
        ),
        (
            lambda: dataclasses.replace(GOOD, width=4.5).to_dense(),
            TypeError,
            "self.width: expected an integer, got float",
        ),
        (lambda: maxk(X, 2, impl="cuda"), ValueError, "impl: expected None, 'kernel'"),
        (lambda: maxk(X, 2, active=3), ValueError, "active: expected an integer from 1 to 2"),
        (lambda: maxk(X, 2, active=1.5), TypeError, "active: expected an integer"),
        (
            lambda: dataclasses.replace(GOOD, width=300).to_dense(),
            TypeError,
            "indices: expected uint16 for the width 300, got uint8",
        ),
        (
            lambda: dataclasses.replace(GOOD, values=X).to_dense(),
            ValueError,
            r"values and indices of one shape \(..., k\), got \(3, 4\) and \(3, 2\)",
        ),
        (
            lambda: dataclasses.replace(GOOD, width=1).to_dense(),
            ValueError,
            "k = 2 and the width 1",
        ),
        (lambda: GOOD.astype(int).to_dense(), TypeError, "values: expected float32"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's kernel checks indices")
def test_the_cpu_kernel_refuses_an_index_beyond_the_width():
    cbsr = CBSR(jnp.ones((100, 2)), jnp.full((100, 2), 7, jnp.uint8).at[99, 1].set(9), 9)
    with pytest.raises(Exception, match="jaxgnn_cbsr_scatter: an index lies beyond the width"):
        jax.block_until_ready(cbsr.to_dense(impl="kernel"))


@pytest.mark.parametrize("width", [8, 300])
def test_packed_values_stay_finite(width):
    largest = np.finfo(np.float32).max
    x = jnp.full((2, width), jnp.array([[largest], [jnp.inf]]))
    found = maxk(x, 2, packed=True).values
    assert jnp.isfinite(found[0]).all() and jnp.isinf(found[1]).all()
    np.testing.assert_allclose(found[0], largest, rtol=2**-13)


def test_packed_rounds_the_values_and_passes_the_gradient():
    x = jax.random.normal(jax.random.key(0), (20, 60))
    exact, packed = maxk(x, 7), maxk(x, 7, packed=True)
    np.testing.assert_array_equal(packed.indices, exact.indices)
    bits = np.asarray(packed.values).view(np.uint32)
    assert not (bits & 0xFF).any() and (bits & 0x100).any()
    np.testing.assert_allclose(packed.values, exact.values, rtol=2**-16)
    weights = jnp.arange(140.0).reshape(20, 7)
    gradient = jax.grad(lambda x, packed: jnp.sum(maxk(x, 7, packed=packed).values * weights))
    np.testing.assert_array_equal(gradient(x, True), gradient(x, False))
    half = maxk(x.astype(jnp.bfloat16), 7, packed=True)
    np.testing.assert_array_equal(half.values, maxk(x.astype(jnp.bfloat16), 7).values)
    assert half.packed and not half.astype(jnp.float32).packed


@pytest.mark.parametrize(("width", "bits"), [(256, 15), (257, 13), (1024, 13)])
def test_packed_values_leave_bits_for_their_columns(width, bits):
    x = draw_array(np.random.default_rng(0), (5, width), "float32")
    packed, exact = maxk(x, 9, packed=True), maxk(x, 9)
    np.testing.assert_array_equal(packed.indices, exact.indices)
    words = np.asarray(packed.values).view(np.uint32)
    assert not (words & ((1 << (23 - bits)) - 1)).any() and (words >> (23 - bits) & 1).any()
    np.testing.assert_allclose(packed.values, exact.values, rtol=2.0 ** -(bits + 1))


@pytest.mark.parametrize(("width", "dtype"), [(1025, "float32"), (8, "float64")])
def test_packed_takes_neither_wide_rows_nor_64_bits(width, dtype, x64):
    assert maxk(jnp.zeros((2, 1024), "float32"), 3, packed=True).packed
    with pytest.raises(ValueError, match=r"packed: .* at most 1024 entries of 32 or 16 bits"):
        maxk(jnp.zeros((2, width), dtype), 3, packed=True)
