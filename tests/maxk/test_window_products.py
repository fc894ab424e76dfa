"""MaxK's products over windows.

On a CPU they ignore windows and the choice of algorithm; on a GPU these are the tests of the
kernels that heed them, and what differs there alone is marked `gpu`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, config, maxk, maxk_spmm
from jaxgnn.ops._maxk import product_operands
from tests.support.oracle import draw_array, edges
from tests.support.strategies import examples, graphs
from tests.support.window_products import (
    TOLERANCE,
    both_algorithms,
    draw_weights,
    expected_products,
    expected_weighted,
    products,
    row_error,
    weighted_products,
)

pytestmark = [pytest.mark.few(1), pytest.mark.usefixtures("windows_engine")]


@examples(20)
@given(
    graph=graphs(),
    width=st.sampled_from([4, 8, 36, 64, 128, 256, 384, 512, 1024]),
    share=st.floats(0, 1),
    dtype=st.sampled_from(list(TOLERANCE)),
    reduce=st.sampled_from(["sum", "mean"]),
    deterministic=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_match_float64(graph, width, share, dtype, reduce, deterministic, seed):
    rng = np.random.default_rng(seed)
    k = 1 + int(share * (width - 1))
    x = draw_array(rng, (graph.num_senders, width), dtype)
    cotangent = draw_array(rng, (graph.num_receivers, width), dtype)
    with config.use(deterministic=deterministic):
        out, dx = products(graph.with_windows(width=width), x, cotangent, k, reduce)
    expected_out, expected_dx = expected_products(graph, x, cotangent, k, reduce)
    assert row_error(out, expected_out) < TOLERANCE[dtype]
    assert row_error(dx, expected_dx) < TOLERANCE[dtype]


# One of each mapping to lanes, which are more on a GPU.
KEPT = [pytest.param(k, id=f"k-{k}") for k in (1, 6, 32, 100, 256)]
KEPT += [pytest.param(k, id=f"k-{k}", marks=pytest.mark.gpu) for k in (2, 8, 16, 64, 192)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k", KEPT)
@both_algorithms
def test_hubs_and_parts(hub_graph, deterministic, k, dtype):
    rng = np.random.default_rng(k)
    x, cotangent = (draw_array(rng, (6000, 256), dtype) for _ in range(2))
    expected_out, expected_dx = expected_products(hub_graph, x, cotangent, k)
    with config.use(deterministic=deterministic):
        out, dx = products(hub_graph, x, cotangent, k)
    assert row_error(out, expected_out) < TOLERANCE[dtype]
    assert row_error(dx, expected_dx) < TOLERANCE[dtype]


@pytest.fixture(scope="module")
def wide_hubs(hub_graph) -> dict[int, Graph]:
    """The same with windows for rows of each width."""
    return {w: hub_graph.with_windows(weighted=True, width=w) for w in (384, 512, 1024)}


# One of each mapping to lanes; the last rows are narrower than their windows serve.
WIDE = [pytest.param(384, 384, 48, id="384-k-48"), pytest.param(1024, 1024, 30, id="1024-k-30")]
WIDE += [
    pytest.param(windows, width, k, id=f"{width}-k-{k}", marks=pytest.mark.gpu)
    for windows, width, k in [
        (512, 512, 64),
        (512, 512, 8),
        (1024, 1024, 16),
        (1024, 1024, 128),
        (1024, 768, 3),
        (512, 300, 300),
        (512, 256, 32),
        (1024, 64, 16),
        (1024, 4, 2),
    ]
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("windows", "width", "k"), WIDE)
@both_algorithms
def test_wide_rows_of_hubs(wide_hubs, deterministic, windows, width, k, dtype):
    graph = wide_hubs[windows]
    rng = np.random.default_rng(k)
    x, cotangent = (draw_array(rng, (6000, width), dtype) for _ in range(2))
    expected_out, expected_dx = expected_products(graph, x, cotangent, k)
    with config.use(deterministic=deterministic):
        out, dx = products(graph, x, cotangent, k)
    assert row_error(out, expected_out) < TOLERANCE[dtype]
    assert row_error(dx, expected_dx) < TOLERANCE[dtype]


@pytest.mark.gpu  # the CPU's kernels heed no windows
@pytest.mark.parametrize("width", [384, 512, 1024])
@pytest.mark.parametrize("weighted", [False, True])
def test_wide_rows_take_the_kernels_over_windows(wide_hubs, width, weighted):
    graph = wide_hubs[width]
    x = jnp.ones((6000, width))
    weights = jnp.ones(graph.num_edges) if weighted else None
    call = jax.jit(lambda x: jnp.sum(maxk_spmm(graph, maxk(x, 32), weights)))
    program = jax.jit(jax.grad(call)).lower(x).as_text()
    suffix = "_weighted" * weighted
    assert f"jaxgnn_maxk_sspmm_windows{suffix}(" in program.replace('"', "")
    assert f"jaxgnn_maxk_spmm_windows{suffix}(" in call.lower(x).as_text().replace('"', "")


def test_rows_that_windows_do_not_serve_warn_on_a_gpu(hub_graph, monkeypatch):
    columns = jnp.zeros((6000, 8), jnp.uint16)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert not product_operands.use_windows(hub_graph.windows, 512, "float32", columns, None)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.warns(UserWarning, match=r"up to 256 columns, got 512.*with_windows\(width=512"):
        assert not product_operands.use_windows(hub_graph.windows, 512, "float32", columns, None)
    with pytest.warns(UserWarning, match=r"up to 256 columns, got 2048, .* windows$"):
        assert not product_operands.use_windows(hub_graph.windows, 2048, "float32", columns, None)
    windows = hub_graph.with_windows(width=512).windows
    for width in (64, 256, 512):
        assert product_operands.use_windows(windows, width, "float32", columns, None)


@pytest.fixture(scope="module")
def small_hubs() -> dict[int, Graph]:
    """Small enough for a sanitizer; one window has several parts."""
    rng = np.random.default_rng(1)
    senders = rng.integers(700, size=9000)
    receivers = rng.integers(90, size=9000)
    receivers[:4200] = 7
    graph = Graph.from_edges(senders, receivers, num_nodes=700)
    return {width: graph.with_windows(weighted=True, width=width) for width in (256, 384, 1024)}


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
@pytest.mark.parametrize("packed", [False, True], ids=["exact", "packed"])
@pytest.mark.parametrize("width", [384, 1024])
def test_sanitized_wide_rows(small_hubs, width, packed, alike):
    """Forward and backward, with weights and without; deterministic too."""
    graph = small_hubs[width]
    rng = np.random.default_rng(width)
    x, cotangent = rng.standard_normal((2, 700, width))
    if not alike:
        x *= 10.0 ** -rng.uniform(0, 3, size=(700, 1))
    x, cotangent = (jnp.asarray(a, jnp.float32) for a in (x, cotangent))
    weights = jnp.asarray(draw_weights(rng, "decades", graph.num_edges))
    tolerance = 2**-13 if packed else TOLERANCE["float32"]
    expected = expected_products(graph, x, cotangent, 12)
    for deterministic in (False, True):
        with config.use(deterministic=deterministic):
            found = products(graph, x, cotangent, 12, packed=packed)
        for result, wanted in zip(found, expected, strict=True):
            assert row_error(result, wanted) < tolerance
    out, dx, _ = weighted_products(graph, x, weights, cotangent, 12, "mean", packed)
    expected = expected_weighted(graph, x, weights, cotangent, 12, "mean")
    assert row_error(out, expected[0]) < tolerance
    assert row_error(dx, expected[1]) < tolerance


@pytest.mark.parametrize("decades", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sanitized_means(small_hubs, dtype, decades):
    """Of CBSR rows that are alike, that differ, and of which some are small for a row."""
    graph = small_hubs[256]
    rng = np.random.default_rng(decades)
    x, cotangent = rng.standard_normal((2, 700, 256))
    x *= 10.0 ** -rng.uniform(0, decades, size=(700, 1))
    x, cotangent = (jnp.asarray(a, dtype) for a in (x, cotangent))
    expected = expected_products(graph, x, cotangent, 32, "mean")
    for result, wanted in zip(products(graph, x, cotangent, 32, "mean"), expected, strict=True):
        assert row_error(result, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("decades", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sanitized_parts_of_short_rows(dtype, decades):
    """A window of several parts whose rows have one bound each for all of them."""
    rng = np.random.default_rng(decades)
    receivers, senders = np.nonzero(rng.random((64, 900)) < 0.6)
    graph = Graph.from_edges(senders, receivers, num_senders=900, num_receivers=64)
    graph = graph.with_windows()
    assert graph.windows.num_partials > 1
    assert np.diff(np.asarray(graph.row_offsets)).max() < 4096
    x = rng.standard_normal((900, 256)) * 10.0 ** -rng.uniform(0, decades, size=(900, 1))
    x, cotangent = jnp.asarray(x, dtype), jnp.asarray(rng.standard_normal((64, 256)), dtype)
    expected = expected_products(graph, x, cotangent, 32)
    for result, wanted in zip(products(graph, x, cotangent, 32), expected, strict=True):
        assert row_error(result, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1e-8, 1.0, 1e8, 1e25, 1e33])
@both_algorithms
def test_extreme_scales(hub_graph, deterministic, scale):
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.standard_normal((6000, 64)) * scale, jnp.float32)
    cotangent = jnp.asarray(rng.standard_normal((6000, 64)) * scale, jnp.float32)
    expected_out, expected_dx = expected_products(hub_graph, x, cotangent, 8)
    with config.use(deterministic=deterministic):
        out, dx = products(hub_graph, x, cotangent, 8)
    assert row_error(out, expected_out) < 2e-6
    assert row_error(dx, expected_dx) < 2e-6


@pytest.mark.parametrize("windows", [False, True])
def test_tiny_rows_beside_others(windows):
    """Rows whose sums are bounded by less than 6.3e-30, the least with a finite scale."""
    rng = np.random.default_rng(4)
    receivers = np.repeat(np.arange(128), 4)
    senders = rng.integers(0, 32, 512) + 32 * (receivers >= 64)
    graph = Graph.from_edges(senders, receivers, num_nodes=128)
    graph = graph.with_windows() if windows else graph
    x = rng.standard_normal((128, 64)) * np.where(np.arange(128) < 32, 1e-31, 1e-10)[:, None]
    x = jnp.asarray(x, jnp.float32)
    (expected, _) = expected_products(graph, x, x, 8)
    out, _ = products(graph, x, x, 8)
    assert row_error(out, expected) < 2e-6


@both_algorithms
def test_mixed_magnitudes(hub_graph, deterministic):
    """Rows of very different size lose nothing to one another's scale."""
    rng = np.random.default_rng(4)
    scale = 10.0 ** rng.integers(-6, 7, size=(6000, 1))
    x = jnp.asarray(np.abs(rng.standard_normal((6000, 64))) * scale, jnp.float32)
    zeros = jnp.zeros((6000, 64))
    out, _ = products(hub_graph, x, zeros, 16)
    expected, _ = expected_products(hub_graph, x, zeros, 16)
    error = np.abs(np.asarray(out, np.float64) - expected[0]) / np.maximum(expected[0], 1e-300)
    assert error.max() < 1e-5  # of each element: all terms are positive
    expected = expected_products(hub_graph, x, x, 16)[1][0]
    with config.use(deterministic=deterministic):
        _, dx = products(hub_graph, x, x, 16)
    error = np.abs(np.asarray(dx, np.float64) - expected) / np.maximum(expected, 1e-300)
    assert error.max() < 1e-5


@pytest.mark.parametrize("decades", [1, 2, 4])
@pytest.mark.parametrize(
    "windows",
    [True, pytest.param(False, marks=pytest.mark.gpu)],  # on the CPU windows change nothing
    ids=["windows", "rows"],
)
def test_unlike_rows_keep_their_digits(hub_graph, windows, decades):
    """Rows of unlike scales, as degrees make them: each element is compared, all are positive."""
    rng = np.random.default_rng(decades)
    scale = 10.0 ** -rng.uniform(0, decades, size=(6000, 1))
    x = jnp.asarray(np.abs(rng.standard_normal((6000, 256))) * scale, jnp.float32)
    graph = hub_graph if windows else dataclasses.replace(hub_graph, windows=None)
    for k in (8, 32, 128):
        expected = expected_products(hub_graph, x, jnp.zeros((6000, 256)), k)[0][0]
        out, _ = products(graph, x, jnp.zeros((6000, 256)), k)
        error = np.abs(np.asarray(out, np.float64) - expected) / np.maximum(expected, 1e-300)
        # Of some 200 terms: 16 * 200 / 2^32 of a small row, whose values may be a tenth of it.
        assert error.max() < 1e-5


@pytest.mark.parametrize("k", [4, 8, 30, 32, 100])
def test_packed_rows(hub_graph, k):
    rng = np.random.default_rng(k)
    x = jnp.asarray(rng.standard_normal((6000, 256)), jnp.float32)
    cotangent = jnp.asarray(rng.standard_normal((6000, 256)), jnp.float32)
    out, dx = products(hub_graph, x, cotangent, k, packed=True)
    expected_out, expected_dx = expected_products(hub_graph, x, cotangent, k)
    assert row_error(dx, expected_dx) < TOLERANCE["float32"]
    assert 1e-7 < row_error(out, expected_out) < 2**-16
    cbsr = maxk(x, k, packed=True)
    again = maxk_spmm(hub_graph, dataclasses.replace(cbsr, packed=False))
    np.testing.assert_allclose(out, again, rtol=0, atol=2e-6 * float(jnp.abs(again).max()))


@pytest.mark.few(1)
@pytest.mark.parametrize(("width", "k"), [(384, 8), (1024, 30), (1024, 128)])
def test_packed_wide_rows(wide_hubs, width, k):
    """13 bits of mantissa, and a column of 10 bits."""
    graph = wide_hubs[width]
    rng = np.random.default_rng(k)
    x = jnp.asarray(rng.standard_normal((6000, width)), jnp.float32)
    cotangent = jnp.asarray(rng.standard_normal((6000, width)), jnp.float32)
    out, dx = products(graph, x, cotangent, k, packed=True)
    expected_out, expected_dx = expected_products(graph, x, cotangent, k)
    assert row_error(dx, expected_dx) < TOLERANCE["float32"]
    assert 1e-6 < row_error(out, expected_out) < 2**-14
    cbsr = maxk(x, k, packed=True)
    again = maxk_spmm(graph, dataclasses.replace(cbsr, packed=False))
    np.testing.assert_allclose(out, again, rtol=0, atol=2e-6 * float(jnp.abs(again).max()))


@pytest.mark.parametrize(("value", "k"), [(np.nan, 64), (np.inf, 64), (-np.inf, 64), (np.inf, 61)])
@both_algorithms
def test_what_is_not_finite_stays_visible(hub_graph, deterministic, value, k):
    x = np.ones((6000, 64), np.float32)
    sender = int(hub_graph.senders[0])
    x[sender, 5] = value
    out, _ = products(hub_graph, jnp.asarray(x), jnp.zeros((6000, 64)), k)
    source, target = edges(hub_graph)
    reached = np.unique(target[source == sender])
    bad = ~np.isfinite(np.asarray(out))
    np.testing.assert_array_equal(np.flatnonzero(bad.any(axis=1)), reached)
    assert bad[:, 5].sum() == bad.sum()
    with config.use(deterministic=deterministic):
        _, dx = products(hub_graph, jnp.ones((6000, 64)), jnp.asarray(x), k)
    assert not np.isfinite(np.asarray(dx)[source[target == sender], 5]).any()


def test_deterministic_runs_are_equal_bit_for_bit(hub_graph):
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.standard_normal((6000, 256)), jnp.float32)
    with config.use(deterministic=True):
        first = products(hub_graph, x, x, 32)
        for _ in range(5):
            for a, b in zip(first, products(hub_graph, x, x, 32), strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.gpu  # the CPU's kernel adds in floating point alone
def test_fixed_point_is_as_good_as_float(hub_graph):
    rng = np.random.default_rng(6)
    x = jnp.asarray(rng.standard_normal((6000, 256)), jnp.float32)
    for k in (4, 32, 128):
        expected, _ = expected_products(hub_graph, x, x, k)
        with config.use(maxk_accumulation="float"):
            in_float = row_error(products(hub_graph, x, x, k)[0], expected)
        assert row_error(products(hub_graph, x, x, k)[0], expected) <= 2 * in_float


def test_vmap_and_second_order(hub_graph):
    rng = np.random.default_rng(7)
    x = jnp.asarray(rng.standard_normal((2, 6000, 8)), jnp.float32)

    def loss(x):
        return jnp.sum(maxk_spmm(hub_graph, maxk(x, 4)) ** 2)

    both = jax.vmap(jax.grad(loss))(x)
    for i in range(2):
        np.testing.assert_allclose(both[i], jax.grad(loss)(x[i]), rtol=1e-3, atol=1e-2)
    second = jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(x[0])
    assert np.isfinite(np.asarray(second)).all() and np.abs(np.asarray(second)).max() > 0


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "k"), [(132, 8), (516, 4)])
def test_a_window_of_many_parts(width, k):
    """Of more than a warp's lanes: the blocks of all of them add their results."""
    rng = np.random.default_rng(0)
    nodes = 140_000
    graph = Graph.from_edges(
        np.arange(nodes), np.arange(nodes) % 16, num_senders=nodes, num_receivers=16
    ).with_windows(width=width)
    parts = np.asarray(graph.windows.parts)
    assert graph.windows.num_partials == parts.shape[0] > 32
    x = rng.standard_normal((nodes, width)).astype(np.float32)
    cotangent = rng.standard_normal((16, width)).astype(np.float32)
    for reduce in ("sum", "mean"):
        expected = expected_products(graph, x, cotangent, k, reduce)
        found = products(graph, x, cotangent, k, reduce)
        for result, of_result in zip(found, expected, strict=True):
            assert row_error(result, of_result) < TOLERANCE["float32"]
