"""Windows of receivers: their structure, and MaxK's products over them.

On a CPU the products ignore windows, row schedules and the choice of algorithm; on a GPU these are
the tests of the kernels that heed them, and what differs there alone is marked `gpu`.
"""

import dataclasses
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import (
    Graph,
    config,
    dot_attention,
    gat_attention,
    gatv2_attention,
    gaussian_spmm,
    maxk,
    maxk_spmm,
    spmm,
)
from jaxgnn._core import ffi
from jaxgnn.ops._maxk import kernels
from tests.support.oracle import draw_array, edges
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = pytest.mark.few(2)


@pytest.fixture(autouse=True)
def windows_wherever_they_are():
    """Also where another engine is estimated to be faster on a GPU."""
    with config.use(maxk_engine="windows"):
        yield


def bits_of(mask: np.ndarray) -> list[int]:
    return [r for r in range(64) if mask[r // 32] >> (r % 32) & 1]


def decoded(graph: Graph) -> np.ndarray:
    """The edges (receiver, sender) that the windows list, sorted."""
    assert graph.windows is not None
    rows, parts, senders, masks = (
        np.asarray(getattr(graph.windows, name)) for name in ("rows", "parts", "senders", "masks")
    )
    begins, ends = parts[:, 1], parts[:, 2]
    np.testing.assert_array_equal(begins[1:], ends[:-1])  # the parts have each entry once
    window = np.repeat(parts[:, 0], ends - begins)
    bits = np.unpackbits(masks.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    assert bits.any(axis=1).all() and not bits[:, rows.shape[1] :].any()
    entry, bit = np.nonzero(bits)
    found = np.stack([rows[window[entry], bit], senders[entry]], axis=1)
    return found[np.lexsort(found.T[::-1])].astype(np.int64)


def listed(graph: Graph) -> np.ndarray:
    senders, receivers = edges(graph)
    return np.array(sorted(zip(receivers, senders, strict=True)), np.int64).reshape(-1, 2)


def assert_edges_of_slots(graph: Graph) -> None:
    """That each entry's slots hold its edges, by receiver, and every edge has a slot."""
    windows = graph.windows
    assert windows is not None and windows.edges is not None and windows.slots is not None
    source, target = edges(graph)
    rows, parts, entry_senders, masks, edge_of, slots = (
        np.asarray(getattr(windows, name))
        for name in ("rows", "parts", "senders", "masks", "edges", "slots")
    )
    np.testing.assert_array_equal(np.sort(edge_of), np.arange(graph.num_edges))
    for window, begin, end, _ in parts:
        for e in range(begin, end):
            receivers = [rows[window, r] for r in bits_of(masks[e])]
            first = (int(slots[window, len(receivers)]) + len(receivers) * e) % 2**32
            found = edge_of[first : first + len(receivers)]
            np.testing.assert_array_equal(target[found], receivers)
            np.testing.assert_array_equal(source[found], entry_senders[e])


@given(graphs(), st.sampled_from([1, 256, 260, 384, 512, 1000, 1024]))
def test_windows_list_every_edge_once(graph, width):
    windowed = graph.with_windows(weighted=True, width=width)
    receivers = windowed.windows.receivers
    assert windowed.windows.rows.shape[0] == -(-graph.num_receivers // receivers)
    assert receivers == (64 if width <= 256 else 16384 // width)
    assert windowed.windows.width >= width
    np.testing.assert_array_equal(decoded(windowed), listed(graph))
    rows = np.asarray(windowed.windows.rows).ravel()
    np.testing.assert_array_equal(np.sort(rows[rows >= 0]), np.arange(graph.num_receivers))
    assert_edges_of_slots(windowed)
    assert windowed.validate() is windowed
    assert graph.with_windows().windows.edges is None


@pytest.mark.parametrize(("more_senders", "most"), [(0, 1280), (1, 3500)])
def test_receivers_of_a_community_share_windows(more_senders, most):
    """Also in a rectangular graph, where senders and receivers are different nodes."""
    rng = np.random.default_rng(0)
    community = rng.permutation(np.arange(1280) % 20)  # of 64 nodes each
    receivers = rng.integers(1280, size=40_000)
    members = np.argsort(community, kind="stable").reshape(20, 64)
    senders = members[community[receivers], rng.integers(64, size=40_000)]
    senders, receivers = np.unique(np.stack([senders, receivers]), axis=1)
    graph = Graph.from_edges(
        senders, receivers, num_senders=1280 + more_senders, num_receivers=1280
    ).with_windows()
    # Of 31,678 edges; 64 entries for each community, if it has a window of its own.
    assert graph.windows.senders.shape[0] <= most
    np.testing.assert_array_equal(decoded(graph), listed(graph))


@pytest.fixture(scope="module")
def hub_graph() -> Graph:
    """Windows in several parts: a receiver of 9,000 edges, and repeated ones."""
    rng = np.random.default_rng(0)
    senders = rng.integers(6000, size=60_000)
    receivers = rng.integers(300, size=60_000)
    receivers[:9000] = 7
    return Graph.from_edges(senders, receivers, num_nodes=6000).with_windows(weighted=True)


@pytest.mark.parametrize("width", [256, 512])
def test_long_windows_are_cut(hub_graph, width):
    graph = hub_graph.with_windows(weighted=True, width=width)
    parts = np.asarray(graph.windows.parts)
    places = parts[:, 3]
    assert graph.windows.num_partials == (places >= 0).sum() > 1
    np.testing.assert_array_equal(np.sort(places[places >= 0]), np.arange((places >= 0).sum()))
    np.testing.assert_array_equal(decoded(graph), listed(graph))
    assert_edges_of_slots(graph)


@pytest.mark.parametrize(
    ("width", "error"), [(0, ValueError), (1025, ValueError), ("4", TypeError)]
)
def test_widths_of_windows_are_checked(width, error):
    with pytest.raises(error, match="width: expected an integer"):
        skewed_graph(20, 60).with_windows(width=width)


def test_bits_beyond_the_receivers_of_a_window_are_found(hub_graph):
    windows = hub_graph.with_windows(width=1024).windows
    lie = dataclasses.replace(windows, masks=windows.masks.at[3, 0].set(1 << 16))
    with pytest.raises(ValueError, match=r"windows\.masks: expected bits of a window's receivers"):
        dataclasses.replace(hub_graph, windows=lie).validate()


def test_new_graphs_drop_the_windows():
    graph = skewed_graph(20, 60).with_windows()
    assert graph.drop_edge_permutation().windows is not None
    assert graph.transpose().windows is None


def test_tracing_is_an_error():
    graph = skewed_graph(20, 60)
    with pytest.raises(ValueError, match=r"with_windows: call it outside jax\.jit"):
        jax.jit(lambda g: g.with_windows())(graph)


@functools.partial(jax.jit, static_argnames=("k", "reduce", "packed"))
def products(graph, x, cotangent, k, reduce="sum", packed=False):
    """`maxk_spmm` and the gradient for x."""

    def product(x):
        return maxk_spmm(graph, maxk(x, k, packed=packed), reduce=reduce)

    out, vjp = jax.vjp(product, x)
    return out, vjp(cotangent)[0]


reference_maxk = jax.jit(functools.partial(maxk, impl="jax"), static_argnames="k")


def expected_products(graph, x, cotangent, k, reduce="sum"):
    """The same in float64, from the definition; each with the size of its terms."""
    source, target = edges(graph)
    shape = (graph.num_receivers, graph.num_senders)
    # SciPy's products are many times as fast as `np.add.at`.
    adjacency = scipy.sparse.csr_array((np.ones(len(source)), (target, source)), shape=shape)
    cbsr = reference_maxk(x, k=k)
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, np.asarray(cbsr.indices, np.int64), True, axis=1)
    x, cotangent = np.asarray(x, np.float64), np.asarray(cotangent, np.float64)
    degree = np.maximum(np.bincount(target, minlength=graph.num_receivers), 1)[:, None]

    def both(x, cotangent):
        out = adjacency @ np.where(kept, x, 0)
        if reduce == "mean":
            out, cotangent = out / degree, cotangent / degree
        return out, np.where(kept, adjacency.T @ cotangent, 0)

    return tuple(zip(both(x, cotangent), both(np.abs(x), np.abs(cotangent)), strict=True))


def row_error(result, expected) -> float:
    """The largest error, relative to the size of the terms in its row."""
    expected, size = expected
    result = np.asarray(result, np.float64)
    assert result.shape == expected.shape and np.isfinite(result).all()
    if not result.size:
        return 0.0
    scale = np.maximum(size.max(axis=1, keepdims=True), 1e-300)
    return float((np.abs(result - expected) / scale).max())


# Of the gradient: fast and deterministic, which are one algorithm on the CPU.
both_algorithms = pytest.mark.parametrize(
    "deterministic",
    [False, pytest.param(True, marks=pytest.mark.gpu)],
    ids=["fast", "deterministic"],
)
TOLERANCE = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 1.5e-3}


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
    assert not kernels._use_windows(hub_graph.windows, 512, "float32", columns, None)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.warns(UserWarning, match=r"up to 256 columns, got 512.*with_windows\(width=512"):
        assert not kernels._use_windows(hub_graph.windows, 512, "float32", columns, None)
    with pytest.warns(UserWarning, match=r"up to 256 columns, got 2048, .* windows$"):
        assert not kernels._use_windows(hub_graph.windows, 2048, "float32", columns, None)
    windows = hub_graph.with_windows(width=512).windows
    for width in (64, 256, 512):
        assert kernels._use_windows(windows, width, "float32", columns, None)


@pytest.fixture(scope="module")
def small_hubs() -> dict[int, Graph]:
    """Small enough for a sanitizer; one window has several parts."""
    rng = np.random.default_rng(1)
    senders = rng.integers(700, size=9000)
    receivers = rng.integers(90, size=9000)
    receivers[:4200] = 7
    graph = Graph.from_edges(senders, receivers, num_nodes=700)
    return {width: graph.with_windows(weighted=True, width=width) for width in (384, 1024)}


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


@functools.partial(jax.jit, static_argnames=("k", "reduce", "packed"))
def weighted_products(graph, x, weights, cotangent, k, reduce="sum", packed=False):
    """`maxk_spmm` with weights, and the gradients for x and for them."""

    def product(x, weights):
        return maxk_spmm(graph, maxk(x, k, packed=packed), weights, reduce=reduce)

    out, vjp = jax.vjp(product, x, weights)
    return out, *vjp(cotangent)


def expected_weighted(graph, x, weights, cotangent, k, reduce="sum"):
    """The same in float64, from the definition; each with the size of its terms."""
    source, target = edges(graph)
    shape = (graph.num_receivers, graph.num_senders)
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, np.asarray(reference_maxk(x, k=k).indices, np.int64), True, axis=1)
    degree = np.maximum(np.bincount(target, minlength=shape[0]), 1)[:, None]
    x, weights, cotangent = (np.asarray(a, np.float64) for a in (x, weights, cotangent))

    def all_three(x, weights, cotangent):
        adjacency = scipy.sparse.csr_array((weights, (target, source)), shape=shape)
        x = np.where(kept, x, 0)
        over = cotangent / degree if reduce == "mean" else cotangent
        out = adjacency @ x / (degree if reduce == "mean" else 1)
        return out, np.where(kept, adjacency.T @ over, 0), (x[source] * over[target]).sum(axis=1)

    exact = all_three(x, weights, cotangent)
    return tuple(zip(exact, all_three(*map(np.abs, (x, weights, cotangent))), strict=True))


def draw_weights(rng, kind: str, count: int) -> np.ndarray:
    """Weights of a kind. Those of several magnitudes are strewn over all rows."""
    uniform, normal = rng.random(count), rng.standard_normal(count)
    return {
        "ones": np.ones(count),
        "uniform": uniform,
        "normal": normal,
        "half zero": normal * (uniform < 0.5),
        "zero": np.zeros(count),
        "decades": 10.0 ** (-4 * uniform),
        "clusters": uniform * rng.choice([1e10, 1.0, 1e-10], count),
        "many decades": 10.0 ** (40 * uniform - 20),
        "1e30": 1e30 * normal,
        "1e-30": 1e-30 * normal,
        "both": uniform * rng.choice([1e30, 1e-30], count),
    }[kind].astype(np.float32)


KINDS = ("ones", "uniform", "normal", "half zero", "zero", "decades", "clusters", "many decades")
KINDS += ("1e30", "1e-30", "both")
# Weights whose rows, or some of them, are added in floating point.
FLOATING = ("clusters", "many decades", "1e30", "1e-30", "both")
# Over windows, and by rows.
WEIGHTED = [
    ("float32", 8, "sum", False, True),
    ("float32", 32, "mean", False, True),
    ("float32", 6, "sum", False, True),
    ("float32", 100, "sum", True, True),
    ("float32", 16, "sum", True, True),
    ("float32", 256, "sum", False, True),
    ("bfloat16", 32, "mean", False, True),
    ("bfloat16", 8, "sum", False, True),
    ("float16", 6, "sum", False, True),
    ("float32", 32, "mean", False, False),
    ("float32", 6, "sum", False, False),
    ("bfloat16", 100, "sum", False, False),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "k", "reduce", "packed", "windows"), WEIGHTED)
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
def test_weighted_products_of_hubs(hub_graph, dtype, k, reduce, packed, windows, alike):
    """Weights of every kind: relative to the terms of a row, and of sums of positive terms each
    element by itself."""
    graph = hub_graph if windows else dataclasses.replace(hub_graph, windows=None)
    rng = np.random.default_rng(k)
    x, cotangent = (np.abs(rng.standard_normal((6000, 256))) for _ in range(2))
    if not alike:
        x *= 10.0 ** -rng.uniform(0, 2, size=(6000, 1))
    x, cotangent = jnp.asarray(x, dtype), jnp.asarray(cotangent, dtype)
    for kind in KINDS:
        if dtype == "float16" and kind in ("clusters", "1e30", "both", "many decades"):
            continue  # beyond float16
        weights = draw_weights(rng, kind, hub_graph.num_edges)
        operands = (graph, x, jnp.asarray(weights), cotangent, k, reduce, packed)
        out, dx, dw = weighted_products(*operands)
        expected = expected_weighted(hub_graph, x, weights, cotangent, k, reduce)
        tolerance = 2**-16 if packed else TOLERANCE[dtype]
        if dtype == "float32" and kind in FLOATING and not packed:
            tolerance = 1e-5  # thousands of edges one after the other
        if dtype == "float16" and kind == "1e-30":
            tolerance = np.inf  # all are 0
        assert out.dtype == dx.dtype == x.dtype and dw.dtype == jnp.float32
        assert row_error(out, expected[0]) < tolerance, kind
        assert row_error(dx, expected[1]) < tolerance, kind
        assert row_error(dw[None], tuple(a[None] for a in expected[2])) < tolerance, kind
        if dtype == "float32" and not packed and kind in ("uniform", "decades", "clusters"):
            error = np.abs(np.asarray(out, np.float64) - expected[0][0])
            error = error / np.maximum(expected[0][0], 1e-300)
            assert error.max() < 2e-5, kind
        if kind == "uniform":
            again = weighted_products(*operands)
            np.testing.assert_array_equal(np.asarray(out), np.asarray(again[0]))


@pytest.mark.parametrize("k", [8, pytest.param(6, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_stay_visible(hub_graph, value, k):
    """In their receiver's row alone, at the columns that the sender keeps; there as a float sum."""
    rng = np.random.default_rng(8)
    x = jnp.asarray(1 + rng.random((6000, 256)), jnp.float32)
    weights = rng.random(hub_graph.num_edges).astype(np.float32)
    source, target = edges(hub_graph)
    edge = int(np.flatnonzero(target == 5)[3])
    weights[edge] = value
    out, dx, _ = weighted_products(hub_graph, x, jnp.asarray(weights), x, k)
    kept = np.asarray(reference_maxk(x, k=k).indices, np.int64)[source[edge]]
    bad = ~np.isfinite(np.asarray(out))
    assert sorted(zip(*np.nonzero(bad), strict=True)) == [(5, c) for c in kept]
    bad = ~np.isfinite(np.asarray(dx))
    assert sorted(zip(*np.nonzero(bad), strict=True)) == [(source[edge], c) for c in kept]
    weights[edge] = 0.5
    expected, _, _ = expected_weighted(hub_graph, x, weights, x, k)
    finite = np.isfinite(np.asarray(out))
    assert row_error(np.where(finite, np.asarray(out), expected[0]), expected) < 2e-6


@pytest.mark.gpu  # on the CPU tests/maxk/test_maxk_spmm.py has them
def test_weighted_second_derivatives_and_vmap(hub_graph):
    rng = np.random.default_rng(9)
    x = jnp.asarray(rng.standard_normal((2, 6000, 16)), jnp.float32)
    weights = jnp.asarray(rng.standard_normal((2, hub_graph.num_edges)), jnp.float32)

    def second(x, weights, impl):
        def loss(x, weights):
            return jnp.sum(jnp.sin(maxk_spmm(hub_graph, maxk(x, 4), weights, impl=impl)))

        def squares(x, weights):
            return sum(jnp.sum(g**2) for g in jax.grad(loss, (0, 1))(x, weights))

        return jax.grad(squares, (0, 1))(x, weights)

    with config.use(maxk_accumulation="auto"):
        ours = jax.jit(jax.vmap(lambda x, w: second(x, w, "kernel")))(x, weights)
    reference = jax.jit(jax.vmap(lambda x, w: second(x, w, "jax")))(x, weights)
    for a, b in zip(ours, reference, strict=True):
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * scale)


@pytest.mark.gpu
def test_weighted_sums_without_edges_of_windows_are_those_of_rows(hub_graph):
    """Windows that list no edges, and sums in floating point alone."""
    rng = np.random.default_rng(10)
    x = jnp.asarray(rng.standard_normal((6000, 64)), jnp.float32)
    weights = jnp.asarray(rng.standard_normal(hub_graph.num_edges), jnp.float32)
    plain = dataclasses.replace(
        hub_graph, windows=dataclasses.replace(hub_graph.windows, edges=None, slots=None)
    )
    rows = dataclasses.replace(hub_graph, windows=None)
    expected = expected_weighted(hub_graph, x, weights, x, 8)[0]
    for graph in (hub_graph, plain, rows):
        assert row_error(weighted_products(graph, x, weights, x, 8)[0], expected) < 2e-6
    with config.use(maxk_accumulation="float"):
        assert row_error(weighted_products(hub_graph, x, weights, x, 8)[0], expected) < 2e-6


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


@given(graphs())
def test_row_orders_hold_every_row_once(graph):
    ordered = graph.with_row_schedule()
    for order, rows in (
        (ordered.row_schedule, graph.num_receivers),
        (ordered.transpose_row_schedule, graph.num_senders),
    ):
        assert order.dtype == jnp.int32
        np.testing.assert_array_equal(np.sort(order), np.arange(rows))


def test_rows_that_share_senders_come_together():
    """Eight communities whose members are strewn over the numbers."""
    rng = np.random.default_rng(0)
    members = rng.permutation(400).reshape(8, 50)
    senders = rng.permuted(np.repeat(members, 30, axis=1), axis=1).ravel()
    receivers = np.repeat(members, 30, axis=1).ravel()
    graph = Graph.from_edges(senders, receivers, num_nodes=400)
    adjacency = graph.to_scipy().T.tocsr()

    def mean_distinct(order: np.ndarray) -> float:
        blocks = [order[i : i + 64] for i in range(0, 384, 64)]
        return float(np.mean([np.unique(adjacency[block].indices).size for block in blocks]))

    order = np.asarray(graph.with_row_schedule().row_schedule)
    assert mean_distinct(order) < 0.5 * mean_distinct(np.arange(400))


def test_short_rows_come_by_falling_length():
    graph = skewed_graph(300, 1500)
    ordered = graph.with_row_schedule()
    for order, degrees in (
        (ordered.row_schedule, graph.in_degrees),
        (ordered.transpose_row_schedule, graph.out_degrees),
    ):
        found = list(zip(-np.asarray(degrees)[order], np.asarray(order), strict=True))
        assert found == sorted(found)


def test_rows_of_some_length_come_by_steps_of_it():
    """Two steps to a factor of two, and within each as the rows that share senders come."""
    graph = skewed_graph(300, 9000)
    ordered = graph.with_row_schedule()
    for order, degrees in (
        (ordered.row_schedule, graph.in_degrees),
        (ordered.transpose_row_schedule, graph.out_degrees),
    ):
        np.testing.assert_array_equal(np.sort(order), np.arange(300))
        steps = np.floor(2 * np.log2(np.maximum(np.asarray(degrees)[order], 1)))
        assert np.all(np.diff(steps) <= 0) and len(set(steps)) > 3


@pytest.mark.gpu  # the CPU's kernels heed no row schedule
@pytest.mark.parametrize("edges_a_row", [3, 40, 300], ids=["tiny", "short", "long"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_order_of_rows_changes_no_bit(edges_a_row, dtype):
    graph = skewed_graph(300, 300 * edges_a_row)
    ordered = graph.with_row_schedule()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((graph.num_senders, 2, 40)), dtype)
    weights = jnp.asarray(rng.standard_normal((graph.num_edges, 2)), jnp.float32)

    @functools.partial(jax.jit, static_argnames="reduce")
    def both(graph, weights, reduce):
        out, pull = jax.vjp(lambda x: spmm(graph, x, weights, reduce=reduce), x)
        return out, pull(out)

    for reduce in ("sum", "mean", "max"):
        for values in (None, weights):
            for ours, plain in zip(
                both(ordered, values, reduce), both(graph, values, reduce), strict=True
            ):
                np.testing.assert_array_equal(ours, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("edges_a_row", [3, 40, 80], ids=["tiny", "short", "long"])
def test_order_of_rows_changes_no_bit_of_attention(edges_a_row):
    """But those of the Gaussians' parameters, which are sums over all rows."""
    graph = skewed_graph(300, 300 * edges_a_row)
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    q, k = draw(graph.num_receivers, 2, 8), draw(graph.num_senders, 2, 8)
    operations = {
        "dot": (dot_attention, (q, k, 2 * k)),
        "gatv2": (gatv2_attention, (k, q, draw(2, 8))),
        "gat": (gat_attention, (k, k[..., 0], q[..., 0])),
        "gaussian": (gaussian_spmm, (k, draw(2, 2), draw(2, 2), (q[:, 0, :2], k[:, 0, :2]))),
    }

    @functools.partial(jax.jit, static_argnums=0)
    def both(name, graph):
        f, operands = operations[name]
        out, pull = jax.vjp(lambda *operands: f(graph, *operands), *operands)
        return out, pull(out)

    ordered = graph.with_row_schedule()
    for name in operations:
        ours, plain = (jax.tree.leaves(both(name, g)) for g in (ordered, graph))
        for a, b in zip(ours, plain, strict=True):
            if b.shape[0] == 2:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
            else:
                np.testing.assert_array_equal(a, b)


def test_transpose_keeps_the_orders():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(
        rng.integers(20, size=60), rng.integers(9, size=60), num_senders=20, num_receivers=9
    ).with_row_schedule()
    other = graph.transpose()
    np.testing.assert_array_equal(other.row_schedule, graph.transpose_row_schedule)
    np.testing.assert_array_equal(other.transpose_row_schedule, graph.row_schedule)


def test_order_outside_jit_alone():
    with pytest.raises(ValueError, match=r"with_row_schedule: call it outside jax\.jit"):
        jax.jit(lambda g: g.with_row_schedule())(skewed_graph(20, 60))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's RLIMIT_AS")
@pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
def test_out_of_memory_is_a_memory_error():
    """In the threads that build the windows too: what they need is four bytes a sender."""
    program = """
import resource
import numpy as np
from jaxgnn._core import ffi

receivers, senders, gigabyte = 4096, 250_000_000, 1 << 30
offsets = np.arange(receivers + 1, dtype=np.int32)
columns = np.arange(receivers, dtype=np.int32)
ffi.cpu_module.build_windows(offsets, columns, receivers)
with open("/proc/self/statm") as statm:
    taken = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + gigabyte // 2, resource.RLIM_INFINITY))
try:
    ffi.cpu_module.build_windows(offsets, columns, senders)
except MemoryError:
    print("MemoryError")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "MemoryError\n"), done.stderr
