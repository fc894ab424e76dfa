"""Attention over neighbours against dense float64: values, derivatives, dropout, transforms."""

import dataclasses
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from oracle import draw_array, edges
from strategies import examples, graphs, skewed_graph

from jaxgnn import Graph, _ffi, gat_attention
from jaxgnn.ops import _dropout

pytestmark = pytest.mark.usefixtures("strict")

DTYPES = ("float32", "bfloat16", "float16")
KEY = jax.random.key(7)
seeds = st.integers(0, 2**32 - 1)


def draw_operands(graph, heads, width, dtype="float32", seed=0, scale=1.0):
    """v, both scores and the biases of the edges and of the self-loops."""
    rng = np.random.default_rng(seed)
    accumulator = _ffi.accumulation_dtype(dtype)

    def scores(rows):
        return jax.device_put(scale * np.asarray(draw_array(rng, (rows, heads), accumulator)))

    v = draw_array(rng, (graph.num_senders, heads, width), dtype)
    nodes = graph.num_senders, graph.num_receivers
    return v, *map(scores, (*nodes, graph.num_edges, graph.num_receivers))


def dense_attention(graph, v, src, dst, bias=None, *, slope=0.2, loops=None, keep=1.0):
    """By rows, in float64; `loops`, if given, are the biases of the added self-loops; `keep` are
    dropout's factors, those of the self-loops after those of the edges."""
    senders, receivers = edges(graph)
    v, src, dst = (np.asarray(a, np.float64) for a in (v, src, dst))
    bias = np.zeros((graph.num_edges, src.shape[1])) if bias is None else np.asarray(bias, float)
    number = np.arange(graph.num_edges)
    if loops is not None:
        nodes = np.arange(min(graph.num_senders, graph.num_receivers))
        kept = senders != receivers
        number = np.append(number[kept], graph.num_edges + nodes)
        bias = np.append(bias[kept], np.asarray(loops, float)[nodes], axis=0)
        senders, receivers = np.append(senders[kept], nodes), np.append(receivers[kept], nodes)
    keep = np.broadcast_to(keep, (number.max(initial=0) + 1, src.shape[1]))
    out = np.zeros((graph.num_receivers, *v.shape[1:]))
    scores = src[senders] + dst[receivers] + bias
    below = np.where(np.isneginf(scores), 0, scores)
    scores = np.where((scores > 0) | np.isneginf(scores), scores, slope * below)
    for row in np.unique(receivers):
        own = receivers == row
        largest = scores[own].max(axis=0)
        weights = np.exp(scores[own] - np.where(np.isneginf(largest), 0, largest))
        total = weights.sum(axis=0)
        weights = weights / np.where(total == 0, 1, total) * keep[number[own]]
        out[row] = np.einsum("eh,ehf->hf", weights, v[senders[own]])
    return out


def tolerance(dtype):
    return {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-9, "float64": 1e-13}[dtype]


def close(actual, expected, limit):
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=limit * scale)


# One compilation a shape, where a call that is not jitted compiles each of its parts.
jitted = jax.jit(gat_attention, static_argnames=("negative_slope", "self_loops", "impl"))


@examples(20)
@given(
    graph=graphs(max_nodes=6),
    heads=st.sampled_from([1, 2, 3, 8]),
    width=st.sampled_from([1, 4, 20, 48]),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    loops=st.booleans(),
    slope=st.sampled_from([0.0, 0.2, 1.5]),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=seeds,
)
def test_equals_brute_force(graph, heads, width, dtype, biased, loops, slope, impl, seed):
    """Empty graphs, isolated nodes, repeated edges, self-loops, rectangular graphs."""
    v, src, dst, bias, loop_bias = draw_operands(graph, heads, width, dtype, seed)
    bias = bias if biased else None
    loop_bias = loop_bias if biased and loops else None
    out = jitted(
        graph,
        v,
        src,
        dst,
        bias,
        negative_slope=slope,
        self_loops=loops,
        loop_bias=loop_bias,
        impl=impl,
    )
    assert out.dtype == v.dtype
    added = np.zeros((graph.num_receivers, heads)) if loop_bias is None else loop_bias
    expected = dense_attention(
        graph, v, src, dst, bias, slope=slope, loops=added if loops else None
    )
    close(out, expected, tolerance(dtype))


def gradients(f, operands, seed=3):
    """Those of a random linear functional."""

    def loss(*operands):
        out = f(*operands)
        direction = draw_array(np.random.default_rng(seed), out.shape, "float32")
        return jnp.sum(direction.astype(out.dtype) * out)

    return jax.grad(loss, range(len(operands)))(*operands)


@st.composite
def graphs_of_one_size(draw, nodes=9, count=30):
    """For one compilation: loops, repeats, isolated nodes; square or taken for two sets."""
    highest = draw(st.sampled_from([1, 4, nodes - 1]))
    ends = st.lists(st.integers(0, highest), min_size=count, max_size=count)
    return Graph.from_edges(np.array(draw(ends)), np.array(draw(ends)), num_nodes=nodes)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def values_and_gradients(impl, loops, rate, graph, operands):
    def f(v, src, dst, bias, loop_bias):
        options = {"self_loops": True, "loop_bias": loop_bias} if loops else {}
        return gat_attention(
            graph, v, src, dst, bias, dropout_rate=rate, key=KEY, impl=impl, **options
        )

    return f(*operands), gradients(f, operands)


@pytest.mark.parametrize(
    ("heads", "width", "loops", "rate"),
    [(3, 4, True, 0.4), (20, 1, False, 0.4), (2, 150, True, 0.0)],
)
@examples(8)
@given(graph=graphs_of_one_size(), seed=seeds)
def test_gradients_equal_those_of_the_reference(heads, width, loops, rate, graph, seed):
    operands = draw_operands(graph, heads, width, seed=seed)
    ours, theirs = (
        values_and_gradients(impl, loops, rate, graph, operands) for impl in ("kernel", "jax")
    )
    # Of sums of `width` products that may cancel.
    jax.tree.map(lambda a, b: close(a, b, max(5e-6, 2e-6 * width**0.5)), ours, theirs)


@pytest.mark.parametrize(("heads", "width"), [(1, 300), (3, 48), (8, 8), (70, 1), (5, 7)], ids=str)
def test_shapes(heads, width):
    """However the features are cut into slices, with all biases."""
    graph = skewed_graph(40, 700, seed=heads)
    operands = draw_operands(graph, heads, width)
    ours, theirs = (
        values_and_gradients(impl, True, 0.0, graph, operands) for impl in ("kernel", "jax")
    )
    jax.tree.map(lambda a, b: close(a, b, 5e-6), ours, theirs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def unbiased(impl, loops, rate, graph, operands):
    """The values and the gradients, without biases."""
    f = functools.partial(
        gat_attention, graph, self_loops=loops, dropout_rate=rate, key=KEY, impl=impl
    )
    return f(*operands), gradients(f, operands)


@pytest.mark.parametrize(
    ("heads", "width", "dtype", "loops", "rate"),
    [
        (2, 64, "float32", True, 0.0),
        (2, 64, "bfloat16", False, 0.4),
        (1, 96, "bfloat16", True, 0.0),
        (1, 300, "float32", False, 0.4),
        (3, 64, "float16", True, 0.4),
        (4, 5, "float32", True, 0.4),
        (8, 8, "float16", False, 0.0),
        (1, 1, "float32", True, 0.0),
        (2, 32, "float64", True, 0.4),
    ],
)
def test_long_rows(heads, width, dtype, loops, rate):
    """Without biases, rows of 0 and 1 edges among long ones."""
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(40, 4000, seed=heads)
        senders, receivers = edges(graph)
        kept = (receivers != 5) & ((receivers != 6) | (np.cumsum(receivers == 6) == 1))
        graph = Graph.from_edges(senders[kept], receivers[kept], num_nodes=40)
        assert set(np.asarray(graph.in_degrees)[[5, 6]]) <= {0, 1} and graph.num_edges > 40 * 32
        operands = draw_operands(graph, heads, width, dtype)[:3]
        out, ours = unbiased("kernel", loops, rate, graph, operands)
        wide = tuple(a.astype(_ffi.accumulation_dtype(dtype)) for a in operands)
        expected, theirs = unbiased("jax", loops, rate, graph, wide)
        close(out, expected, 2 * tolerance(dtype))
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, 20 * tolerance(dtype))


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 20), ("bfloat16", 96), ("float16", 64), ("float64", 12)]
)
def test_a_row_of_40000_edges(dtype, width):
    """Its parts' softmaxes are joined; other rows are short."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        ends = rng.integers(500, size=(2, 44_000))
        ends[1, :40_000] = 3
        ends[0, 42_000:] = 5
        graph = Graph.from_edges(*ends, num_nodes=500)
        assert graph.splits[:, 1].max() > 5 and graph.transpose_splits[:, 1].max() > 0
        operands = draw_operands(graph, 2, width, dtype, scale=3.0)
        out, ours = values_and_gradients("kernel", True, 0.0, graph, operands)
        close(out, dense_attention(graph, *operands[:4], loops=operands[4]), tolerance(dtype))
        wide = tuple(a.astype(_ffi.accumulation_dtype(dtype)) for a in operands)
        theirs = values_and_gradients("jax", True, 0.0, graph, wide)[1]
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, 20 * tolerance(dtype))
        ours, theirs = (
            unbiased(impl, False, 0.0, graph, o[:3])[1]
            for impl, o in (("kernel", operands), ("jax", wide))
        )
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, 20 * tolerance(dtype))


def test_derivatives_equal_finite_differences(x64):
    """To second order, with dropout held by its key."""
    graph = skewed_graph(7, 25)
    operands = draw_operands(graph, 2, 3, "float64")
    f = functools.partial(gat_attention, graph, dropout_rate=0.3, key=KEY, self_loops=True)
    check_grads(
        jax.jit(lambda v, src, dst, bias, loops: f(v, src, dst, bias, loop_bias=loops)),
        operands,
        order=2,
        modes=["rev"],
        eps=1e-6,
    )


def test_second_derivatives_equal_those_of_the_reference(x64):
    graph = Graph.from_edges([0, 1, 1, 2, 3, 3, 3], [1, 1, 0, 0, 3, 3, 4], num_nodes=6)
    operands = draw_operands(graph, 2, 3, "float64")[:4]

    def second(impl):
        def loss(*operands):
            return jnp.sum(jnp.sin(gat_attention(graph, *operands, self_loops=True, impl=impl)))

        def norm(*operands):
            return sum(jnp.sum(jnp.sin(g) ** 2) for g in jax.grad(loss, range(4))(*operands))

        return jax.jit(jax.grad(norm, range(4)))(*operands)

    for a, b in zip(second("kernel"), second("jax"), strict=True):
        assert float(jnp.abs(b).max()) > 0
        close(a, b, 1e-12)


def test_two_runs_give_the_same_bits():
    graph = skewed_graph(300, 20_000)
    operands = draw_operands(graph, 4, 16)

    @jax.jit
    def run(graph, *operands):
        f = functools.partial(gat_attention, graph, dropout_rate=0.5, key=KEY)
        return f(*operands), gradients(f, operands)

    first = jax.tree.leaves(run(graph, *operands[:4]))
    for _ in range(4):
        for a, b in zip(first, jax.tree.leaves(run(graph, *operands[:4])), strict=True):
            np.testing.assert_array_equal(a, b)


def test_64_bit_offsets_and_indices(x64):
    """Of graphs of 2^31 edges and more; dropout counts by both halves of an edge's number."""
    graph = skewed_graph(30, 600)
    operands = draw_operands(graph, 2, 3)
    longer = {
        name: getattr(graph, name).astype(jnp.int64)
        for name in ("row_offsets", "senders", "transpose_row_offsets", "transpose_receivers")
    }
    longer["transpose_permutation"] = graph.transpose_permutation.astype(jnp.int64)
    wide = dataclasses.replace(graph, **longer)
    ours, theirs = (values_and_gradients("kernel", True, 0.4, g, operands) for g in (graph, wide))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    words = _dropout.key_words(KEY)
    both = _dropout.dropout_words(words, 2**32 - 2, 4, 1)
    np.testing.assert_array_equal(both[:2], _dropout.dropout_words(words, 2**32 - 2, 2, 1))
    counter = [jnp.full((), c, jnp.uint32) for c in (1, 1, 0, 0)]
    assert both[3, 0] == _dropout.philox4x32(counter, words)[0]


# Masks and numbers that are not finite.


@functools.partial(jax.jit, static_argnames=("slope", "impl"))
def biased(graph, operands, slope, impl):
    """The values and the gradients, with biases of the edges."""
    f = functools.partial(gat_attention, graph, negative_slope=slope, impl=impl)
    return f(*operands), gradients(f, operands)


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_a_bias_of_minus_infinity_masks(impl, slope):
    graph = Graph.from_edges([0, 1, 2, 3, 0], [0, 0, 0, 1, 1], num_nodes=4)
    v, src, dst, bias, _ = draw_operands(graph, 2, 3)
    masked = bias.at[1].set(-jnp.inf).at[3:].set(-jnp.inf)
    out, (dv, dsrc, ddst, dbias) = biased(graph, (v, src, dst, masked), slope, impl)
    close(out, dense_attention(graph, v, src, dst, masked, slope=slope), 1e-6)
    np.testing.assert_array_equal(out[1:], 0)
    assert np.any(np.asarray(dbias[0]))
    for zero in (dv[3], dsrc[3], ddst[1], dbias[1], dbias[3:], dv[1], dsrc[1]):
        np.testing.assert_array_equal(zero, 0)
    assert all(np.all(np.isfinite(g)) for g in (dv, dsrc, ddst, dbias))


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("place", ["v", "src", "dst", "bias"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_visible(impl, place, value):
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5)
    names = ("v", "src", "dst", "bias")
    operands = dict(zip(names, draw_operands(graph, 1, 3)[:4], strict=True))
    operands[place] = operands[place].at[0].set(value)
    out, gradient = biased(graph, tuple(operands.values()), 0.2, impl)
    assert not np.isfinite(out[0]).any() and np.isfinite(out[1:]).all()
    assert np.isnan(np.asarray(gradient[1][0])).any()


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_large_scores_do_not_overflow(impl):
    graph = skewed_graph(30, 600)
    v, src, dst, bias, _ = draw_operands(graph, 2, 3, scale=1e4)
    out, gradient = biased(graph, (v, src, dst, bias), 0.2, impl)
    close(out, dense_attention(graph, v, src, dst, bias), 2e-3)
    assert all(np.all(np.isfinite(g)) for g in gradient)


# Dropout.


def test_the_generator_gives_the_published_words():
    """The known answers of the authors' own library."""
    for word, key, expected in (
        (0, 0, ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]),
        (2**32 - 1, 2**32 - 1, ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]),
    ):
        counter = [jnp.full((), word, jnp.uint32)] * 4
        drawn = _dropout.philox4x32(counter, jnp.full(2, key, jnp.uint32))
        assert [f"{int(w):08x}" for w in drawn] == expected


@pytest.mark.parametrize(("heads", "loops"), [(1, False), (9, False), (3, True)])
def test_kernel_and_reference_draw_the_same_mask(heads, loops):
    """One edge for each receiver and no softmax to speak of: the result is the mask."""
    graph = Graph.from_edges(np.arange(1, 400), np.arange(399), num_senders=400, num_receivers=399)
    v = jnp.ones((400, heads, 1))
    src, dst = jnp.zeros((400, heads)), jnp.zeros((399, heads))
    loop_bias = jnp.full((399, heads), 1e4) if loops else None  # then the loop is all there is

    @functools.partial(jax.jit, static_argnums=0)
    def mask(impl):
        return gat_attention(
            graph,
            v,
            src,
            dst,
            dropout_rate=0.3,
            key=KEY,
            self_loops=loops,
            loop_bias=loop_bias,
            impl=impl,
        )

    drawn = np.asarray(mask("kernel"))[:, :, 0]
    np.testing.assert_array_equal(drawn, mask("jax")[:, :, 0])
    words = _dropout.dropout_words(_dropout.key_words(KEY), 399 if loops else 0, 399, heads)
    np.testing.assert_array_equal(drawn > 0, words >= np.uint32(round(0.3 * 2**32)))
    np.testing.assert_allclose(np.unique(drawn), [0, 1 / 0.7], rtol=1e-6)
    # 0.7 of 399 heads, within five standard deviations.
    assert abs((drawn > 0).mean() - 0.7) < 5 * np.sqrt(0.21 / drawn.size)


def test_heads_edges_and_keys_are_independent():
    words = [
        _dropout.dropout_words(_dropout.key_words(jax.random.key(k)), 0, 5000, 8) for k in (0, 1)
    ]
    bits = np.concatenate([np.asarray(w >= np.uint32(2**31), float) for w in words], axis=1)
    correlation = np.corrcoef(np.concatenate([bits[:-1], bits[1:]], axis=1), rowvar=False)
    off_diagonal = correlation[~np.eye(32, dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(5000)
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


def test_dropout_keeps_the_mean_and_follows_the_key():
    graph = skewed_graph(40, 800)
    operands = draw_operands(graph, 2, 3)[:4]
    f = jax.jit(lambda key: gat_attention(graph, *operands, dropout_rate=0.5, key=key))
    outs = jax.vmap(f)(jax.random.split(KEY, 400))
    expected = gat_attention(graph, *operands)
    error = np.asarray(outs.mean(axis=0) - expected) / (np.asarray(outs.std(axis=0)) / 20 + 1e-9)
    assert np.abs(error).max() < 5.5
    np.testing.assert_array_equal(f(jax.random.key(3)), f(jax.random.key(3)))
    np.testing.assert_array_equal(f(jax.random.key(3)), f(jax.random.PRNGKey(3)))
    assert not np.array_equal(f(jax.random.key(3)), f(jax.random.key(4)))
    f(jax.random.key(3, impl="rbg"))  # a key of four words


def test_dropout_equals_brute_force():
    graph = skewed_graph(40, 800)
    v, src, dst, bias, loops = draw_operands(graph, 3, 5)
    keep = _dropout.keep_factors(
        _dropout.key_words(KEY), 0, 840, 3, _dropout.threshold(0.6), "float32"
    )
    out = gat_attention(
        graph,
        v,
        src,
        dst,
        bias,
        dropout_rate=0.6,
        key=KEY,
        self_loops=True,
        loop_bias=loops,
    )
    expected = dense_attention(graph, v, src, dst, bias, loops=loops, keep=np.asarray(keep))
    close(out, expected, 1e-6)


# Transforms.


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(12, 60)


def custom_calls(f, *arguments):
    """How many of our custom calls the compiled function makes."""
    return len(re.findall(r"@jaxgnn_gat", jax.jit(f).lower(*arguments).as_text()))


@pytest.mark.parametrize(
    "in_axes",
    [(0, None, None, None, None), (None, 0, 1, 0, None), (2, 1, 0, None, 0)],
    ids=str,
)
def test_vmap_is_one_call_on_more_heads(graph, in_axes):
    batch = 3
    operands = (*draw_operands(graph, 2, 4)[:4], jax.random.key_data(KEY))
    rng = np.random.default_rng(5)

    def batched(array, axis):
        if axis is None:
            return array
        if array.dtype == jnp.uint32:
            return jax.random.key_data(jax.random.split(KEY, batch))
        shape = (*array.shape[:axis], batch, *array.shape[axis:])
        return draw_array(rng, shape, "float32")

    operands = tuple(batched(a, axis) for a, axis in zip(operands, in_axes, strict=True))

    @functools.partial(jax.jit, static_argnums=0)
    def f(impl, *operands):
        return jnp.sin(
            gat_attention(graph, *operands[:4], dropout_rate=0.4, key=operands[4], impl=impl)
        )

    def looped(*operands):
        def one(array, axis, i):
            return array if axis is None else jnp.take(array, i, axis)

        examples = [
            [one(a, axis, i) for a, axis in zip(operands, in_axes, strict=True)]
            for i in range(batch)
        ]
        return jnp.stack([f("jax", *example) for example in examples])

    mapped = jax.vmap(functools.partial(f, "kernel"), in_axes)
    assert custom_calls(mapped, *operands) == 1
    np.testing.assert_allclose(mapped(*operands), looped(*operands), rtol=1e-5, atol=1e-6)
    floats, key = operands[:4], operands[4]

    def all_gradients(mapped):
        return gradients(lambda *floats: mapped(*floats, key), floats)

    assert custom_calls(lambda *floats: gradients(lambda *f: mapped(*f, key), floats), *floats) == 3
    for a, b in zip(all_gradients(mapped), all_gradients(looped), strict=True):
        close(a, b, 5e-6)


def test_vmap_over_graphs_and_of_gradients():
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    v, src, dst, _, _ = draw_operands(graphs[0], 2, 3)

    @jax.jit
    def gradient(graph, v):
        return gradients(
            lambda *o: gat_attention(graph, *o, dropout_rate=0.2, key=KEY), (v, src, dst)
        )

    together = jax.vmap(gradient, (0, None))(stacked, v)
    for i, graph in enumerate(graphs):
        for a, b in zip(together, gradient(graph, v), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


def test_scan_and_checkpoint(graph):
    v, src, dst, bias, _ = draw_operands(graph, 2, 3)

    def layer(v, key, impl):
        out = gat_attention(
            graph, v, src, dst, bias, dropout_rate=0.3, key=key, self_loops=True, impl=impl
        )
        return jnp.tanh(out)

    keys = jax.random.split(KEY, 3)

    def scanned(v):
        def step(v, key):
            return jax.checkpoint(functools.partial(layer, impl=None))(v, key), None

        return jnp.sum(jax.lax.scan(step, v, keys)[0] ** 2)

    def unrolled(v):
        for i in range(3):
            v = layer(v, keys[i], "jax")
        return jnp.sum(v**2)

    value, gradient = jax.jit(jax.value_and_grad(scanned))(v)
    expected_value, expected = jax.jit(jax.value_and_grad(unrolled))(v)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    close(gradient, expected, 1e-5)


def test_shard_map():
    """Each device has a graph of its own; features, scores and key are replicated."""
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    operands = draw_operands(graphs[0], 2, 3)[:3]
    words = jax.random.key_data(KEY)

    def f(graph, words, *operands):
        return gat_attention(graph, *operands, dropout_rate=0.3, key=words, self_loops=True)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("d"), P(), P(), P(), P()),
        out_specs=P("d"),
        check_vma=True,
    )
    def sharded(stacked, words, *operands):
        graph = jax.tree.map(lambda leaf: leaf[0], stacked)
        return f(graph, words, *operands)[None]

    def single(words, *operands):
        return jnp.stack([f(graph, words, *operands) for graph in graphs])

    def loss(f, *operands):
        return jnp.sum(jnp.sin(f(*operands)))

    ours = jax.jit(jax.value_and_grad(lambda *o: loss(sharded, stacked, words, *o), range(3)))
    theirs = jax.value_and_grad(lambda *o: loss(single, words, *o), range(3))
    for a, b in zip(
        jax.tree.leaves(ours(*operands)), jax.tree.leaves(theirs(*operands)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_nothing_of_edges_times_heads_is_made():
    graph = skewed_graph(50, 3000)
    v, src, dst, _, _ = draw_operands(graph, 4, 8)

    def run(graph, v, src, dst):
        return gradients(
            lambda *o: gat_attention(graph, *o, dropout_rate=0.5, key=KEY), (v, src, dst)
        )

    text = jax.jit(run).lower(graph, v, src, dst).as_text()
    assert "jaxgnn_gat_attention_senders" in text
    for wide in ("3000x4", "3000x1x4", "12000"):
        assert wide not in text


# Arguments.


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_arrays_without_elements(impl):
    for senders, receivers, heads, width in (
        (3, 0, 2, 4),
        (3, 2, 0, 4),
        (3, 2, 2, 0),
        (0, 2, 1, 1),
    ):
        empty = Graph.from_edges([], [], num_senders=senders, num_receivers=receivers)
        operands = draw_operands(empty, heads, width)
        for loops in (False, True):
            out = gat_attention(empty, *operands[:4], self_loops=loops, impl=impl)
            assert out.shape == (receivers, heads, width)
    empty = Graph.from_edges([], [], num_nodes=3)
    v, src, dst, _, _ = draw_operands(empty, 2, 4)
    np.testing.assert_array_equal(gat_attention(empty, v, src, dst, impl=impl), 0)
    np.testing.assert_allclose(gat_attention(empty, v, src, dst, self_loops=True, impl=impl), v)


def bad_calls():
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    v, s, b = jnp.ones((3, 2, 4)), jnp.ones((3, 2)), jnp.ones((2, 2))
    f = functools.partial(gat_attention, graph)
    return {
        "graph": (lambda: gat_attention(v, v, s, s), TypeError, "graph: expected a jaxgnn.Graph"),
        "rows": (lambda: f(v[1:], s, s), ValueError, r"v: .* \(3, ...\).*got \(2, 2, 4\)"),
        "axes": (lambda: f(s, s, s), ValueError, r"v: .* \(3, heads, features\), got \(3, 2\)"),
        "integers": (lambda: f(v.astype(int), s, s), TypeError, "v: expected float32.*int32"),
        "source": (lambda: f(v, b, s), ValueError, r"score_src: .* \(3, 2\), got \(2, 2\)"),
        "target": (lambda: f(v, s, v), ValueError, r"score_dst: .* \(3, 2\), got \(3, 2, 4\)"),
        "bias": (lambda: f(v, s, s, s), ValueError, r"edge_bias: .* \(2, 2\), got \(3, 2\)"),
        "loop": (
            lambda: f(v, s, s, loop_bias=s),
            ValueError,
            "loop_bias: expected self_loops=True",
        ),
        "slope": (
            lambda: f(v, s, s, negative_slope=-0.1),
            ValueError,
            "negative_slope: expected a finite number from 0, got -0.1",
        ),
        "traced": (lambda: f(v, s, s, negative_slope=s), TypeError, "negative_slope: .* number"),
        "rate": (lambda: f(v, s, s, dropout_rate=1), ValueError, "dropout_rate: .* less than 1"),
        "no key": (lambda: f(v, s, s, dropout_rate=0.5), ValueError, "key: expected a JAX key"),
        "seed": (lambda: f(v, s, s, dropout_rate=0.5, key=3), TypeError, "key: .* got int"),
        "keys": (
            lambda: f(v, s, s, dropout_rate=0.5, key=jax.random.split(KEY)),
            ValueError,
            r"key: expected one key, got the shape \(2,\)",
        ),
        "impl": (lambda: f(v, s, s, impl="cuda"), ValueError, "impl: expected None, 'kernel'"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_arguments(name):
    call, error, message = bad_calls()[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("place", range(9))
def test_operands_that_do_not_fit_are_an_error(place):
    """Below the public operation: the target itself reads nothing out of bounds."""
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    s = jnp.ones((3, 2))
    streams = jnp.ones((3, 2), jnp.uint32)
    operands = [graph.row_offsets, graph.senders, graph.splits, jnp.ones((3, 8)), s, s]
    operands += [jnp.ones((2, 2)), s, streams]
    results = [((3, 8), jnp.float32), ((3, 2), jnp.float32), ((1, 12), jnp.float32)]
    results += [((6,), jnp.float32)]
    attributes = {"negative_slope": 0.2, "drop_below": 0, "self_loops": 1, "split_length": 8}

    def call():
        out = _ffi.call("jaxgnn_gat_attention", operands, results, **attributes)
        return jax.block_until_ready(out)

    call()
    wrong = operands[place]
    operands[place] = wrong.astype(jnp.float32 if wrong.dtype != jnp.float32 else jnp.int32)
    with pytest.raises(Exception, match="jaxgnn_gat_attention: "):
        call()


def test_the_generator_s_header_is_free_of_platforms():
    text = (Path(__file__).parents[1] / "common" / "philox.h").read_text()
    assert re.findall(r"#include (\S+)", text) == ["<cstdint>"]
