"""Dot-product attention over neighbors against dense float64: values, derivatives, transforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, dot_attention
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from tests.support.oracle import close, draw_array
from tests.support.oracle_attention import (
    check_values_and_gradients,
    dense_pair_attention,
    gradients,
    keep_factors,
    mixed_graph,
    tolerance,
)
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

KEY = jax.random.key(7)


def draw_operands(graph, heads, features, width, dtype="float32", seed=0, scale=1.0):
    """q, k, v and the biases of the edges and of the self-loops."""
    rng = np.random.default_rng(seed)
    nodes, wide = (graph.num_receivers, graph.num_senders), accumulation_dtype(dtype)
    q, k = ((scale * draw_array(rng, (n, heads, features), "float64")).astype(dtype) for n in nodes)
    v = draw_array(rng, (graph.num_senders, heads, width), dtype)
    return q, k, v, *(draw_array(rng, (n, heads), wide) for n in (graph.num_edges, nodes[0]))


def dense(graph, q, k, v, bias=None, key_scale=None, *, scale=None, derive=False, **options):
    """The gradient of `key_scale` comes after that of `k`."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    scale = 1 / np.sqrt(q.shape[2]) if scale is None else scale
    factors = np.ones(k.shape[:2]) if key_scale is None else np.asarray(key_scale, np.float64)
    scaled = k * factors[..., None]

    def scores(senders, receivers):
        return scale * np.einsum("ehf,ehf->eh", scaled[senders], q[receivers])

    def pull(senders, receivers, ds):
        dq, dk = np.zeros_like(q), np.zeros_like(k)
        np.add.at(dq, receivers, scale * ds[..., None] * scaled[senders])
        np.add.at(dk, senders, scale * ds[..., None] * q[receivers])
        dfactors = [] if key_scale is None else [np.sum(dk * k, axis=-1)]
        return dq, dk * factors[..., None], *dfactors

    return dense_pair_attention(graph, scores, v, bias, pull=pull if derive else None, **options)


@pytest.mark.parametrize(
    ("heads", "features", "width", "dtype", "loops", "rate"),
    [
        (3, 7, 1, "float32", True, 0.4),
        (2, 8, 64, "bfloat16", False, 0.4),
        (1, 300, 20, "float32", True, 0.0),
        (1, 64, 128, "float16", True, 0.0),
        (6, 8, 8, "float32", False, 0.4),
        (2, 1, 12, "float64", True, 0.4),
    ],
)
def test_values_and_gradients(heads, features, width, dtype, loops, rate):
    """Rows of no edge, of one, and of some that are taken in parts."""
    graph = mixed_graph()
    with jax.enable_x64(dtype == "float64"):
        operands = draw_operands(graph, heads, features, width, dtype)
        operands = operands if loops else operands[:4]
        keep = keep_factors(KEY, rate, graph, heads, dtype)

        def attention(q, k, v, bias, loop_bias=None):
            return dot_attention(
                graph,
                q,
                k,
                v,
                bias,
                dropout_rate=rate,
                dropout_rng=KEY,
                self_loops=loops,
                loop_bias=loop_bias,
                impl="kernel",
            )

        def expected(q, k, v, bias, loop_bias=None):
            return dense(graph, q, k, v, bias, loops=loop_bias, keep=keep, derive=True)

        check_values_and_gradients(attention, expected, operands, dtype)


jitted = jax.jit(dot_attention, static_argnames=("self_loops",))


@examples(8)
@given(graph=graphs(max_nodes=5), heads=st.sampled_from([1, 3]), loops=st.booleans())
def test_any_graph(graph, heads, loops):
    """Empty graphs, isolated nodes, repeated edges, self-loops, rectangular graphs."""
    q, k, v, _, _ = draw_operands(graph, heads, 2, 4)
    added = np.zeros((graph.num_receivers, heads)) if loops else None
    out = jitted(graph, q, k, v, self_loops=loops)
    close(out, dense(graph, q, k, v, loops=added), tolerance("float32"))


@pytest.mark.parametrize(
    ("heads", "features", "dtype", "loops"),
    [
        (3, 7, "float32", True),
        (1, 64, "float32", False),
        (2, 8, "bfloat16", True),
        (2, 12, "float64", False),
    ],
)
def test_keys_that_are_scaled_values(heads, features, dtype, loops):
    graph = mixed_graph()
    with jax.enable_x64(dtype == "float64"):
        q, _, v, bias, loop_bias = draw_operands(graph, heads, features, features, dtype)
        key_scale = draw_array(np.random.default_rng(1), (graph.num_senders, heads), bias.dtype)

        def attention(q, key_scale, v, bias, loop_bias):
            options = {"key_scale": key_scale, "self_loops": loops, "impl": "kernel"}
            options |= {"loop_bias": loop_bias} if loops else {}
            return dot_attention(graph, q, v, v, bias, **options)

        def expected(q, key_scale, v, bias, loop_bias):
            options = {"loops": loop_bias if loops else None, "derive": True}
            out, (dq, dk, dscale, dv, *more) = dense(graph, q, v, v, bias, key_scale, **options)
            return out, (dq, dscale, dk + dv, *more)

        operands = q, key_scale, v, bias, loop_bias
        if loops:
            check_values_and_gradients(attention, expected, operands, dtype)
        else:
            check_values_and_gradients(
                functools.partial(attention, loop_bias=None),
                functools.partial(expected, loop_bias=None),
                operands[:4],
                dtype,
            )


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(12, 60)


def test_derivatives_equal_finite_differences(x64):
    """To second order, with dropout held by its key, of a scale for each head and each key."""
    graph = skewed_graph(7, 25)
    operands = draw_operands(graph, 2, 3, 2, "float64")
    scale = jnp.asarray([0.5, 1.5])
    key_scale = draw_array(np.random.default_rng(1), (graph.num_senders, 2), "float64")

    def f(q, k, v, bias, loops, scale, key_scale):
        options = {"dropout_rate": 0.3, "dropout_rng": KEY, "self_loops": True, "loop_bias": loops}
        return dot_attention(graph, q, k, v, bias, scale=scale, key_scale=key_scale, **options)

    check_grads(jax.jit(f), (*operands, scale, key_scale), order=2, modes=["rev"], eps=1e-6)


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_large_scores_and_masks(impl):
    """Scores of 10^4 do not overflow; a row all of whose edges are masked is 0."""
    graph = mixed_graph()
    q, k, v, bias, _ = draw_operands(graph, 2, 8, 4, scale=100.0)
    receivers = np.asarray(graph.receivers)
    bias = bias.at[receivers == 9].set(-jnp.inf).at[::7].set(-jnp.inf)

    @jax.jit
    def run(q, k, v, bias):
        f = functools.partial(dot_attention, graph, scale=1.0, impl=impl)
        return f(q, k, v, bias), gradients(f, (q, k, v, bias))

    out, (dq, dk, dv, dbias) = run(q, k, v, bias)
    close(out, dense(graph, q, k, v, bias, scale=1.0), 5e-3)
    np.testing.assert_array_equal(out[9], 0)
    np.testing.assert_array_equal(dq[9], 0)
    np.testing.assert_array_equal(np.asarray(dbias)[np.isneginf(bias)], 0)
    assert all(np.all(np.isfinite(g)) for g in (dq, dk, dv, dbias))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_a_scale_for_each_head_is_not_rounded_into_rows_of_16_bits(graph, dtype, impl):
    q, k, v, _, _ = draw_operands(graph, 2, 8, 4, dtype)
    q, k = 300 * q, k / 3000  # the queries times the scale are beyond float16
    key_scale = jnp.arange(2.0 * graph.num_senders).reshape(-1, 2) / graph.num_senders
    attend = functools.partial(dot_attention, graph, q, k, v, impl=impl)

    for scales in (None, key_scale):
        each = gradients(lambda s, c=scales: attend(scale=s, key_scale=c), (jnp.full(2, 300.0),))
        out = attend(scale=jnp.full(2, 300.0), key_scale=scales)
        np.testing.assert_allclose(out, attend(scale=300.0, key_scale=scales), rtol=1e-2, atol=1e-3)
        assert np.isfinite(each[0]).all()


def test_vmap_is_one_call_on_more_heads(graph):
    q, k, v, bias, _ = draw_operands(graph, 2, 3, 4)
    k = jnp.stack([k, 2 * k, -k])
    key_scale = jnp.arange(2.0 * graph.num_senders).reshape(-1, 2) / graph.num_senders

    def f(impl, k, bias):
        options = {"key_scale": key_scale, "dropout_rate": 0.3, "dropout_rng": KEY}
        return dot_attention(graph, q, k, v, bias, impl=impl, **options)

    mapped = jax.jit(jax.vmap(functools.partial(f, "kernel"), (0, None)))
    assert mapped.lower(k, bias).as_text().count("@jaxgnn_pair") == 1
    together = mapped(k, bias)
    ours = jax.jit(lambda k, b: gradients(mapped, (k, b)))(k, bias)
    looped = jax.jit(lambda k, bias: jnp.stack([f("jax", k[i], bias) for i in range(3)]))
    close(together, looped(k, bias), 4e-6)
    for a, b in zip(ours, jax.jit(lambda *o: gradients(looped, o))(k, bias), strict=True):
        close(a, b, 1e-5)


def test_the_same_bits_and_nothing_of_edges_times_heads():
    graph = skewed_graph(300, 20_000)
    operands = draw_operands(graph, 3, 8, 8)[:3]

    @jax.jit
    def run(graph, *operands):
        f = functools.partial(dot_attention, graph, dropout_rate=0.5, dropout_rng=KEY)
        return f(*operands), gradients(f, operands)

    first = jax.tree.leaves(run(graph, *operands))
    for a, b in zip(first, jax.tree.leaves(run(graph, *operands)), strict=True):
        np.testing.assert_array_equal(a, b)
    text = run.lower(graph, *operands).as_text()
    assert text.count("@jaxgnn_pair_attention_gradients") == 2
    assert "20000x3" not in text and "60000" not in text


def test_bad_arguments():
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    x, s = jnp.ones((3, 2, 4)), jnp.ones((3, 2))
    f = functools.partial(dot_attention, graph)
    for call, error, message in (
        (lambda: dot_attention(x, x, x, x), TypeError, "graph: expected a jaxgnn.Graph"),
        (lambda: f(x[1:], x, x), ValueError, r"q: .* \(3, ...\).*got \(2, 2, 4\)"),
        (lambda: f(x, s, x), ValueError, r"k: .* \(3, heads, features\), got \(3, 2\)"),
        (lambda: f(x[..., :3], x, x), ValueError, r"q: .* \(3, 2, 4\), got \(3, 2, 3\)"),
        (lambda: f(x.astype("bfloat16"), x, x), TypeError, "q: .* float32, got bfloat16"),
        (lambda: f(x, x, x[:, :1]), ValueError, "v: expected the dtype and heads of k"),
        (lambda: f(x, x, x, s), ValueError, r"edge_bias: .* \(2, 2\), got \(3, 2\)"),
        (lambda: f(x, x, x, loop_bias=s), ValueError, "loop_bias: expected self_loops=True"),
        (lambda: f(x, x, x, self_loops="keep"), TypeError, "self_loops: expected True or False"),
        (lambda: f(x, x, x, scale=jnp.ones(3)), ValueError, r"scale: .*\(2,\), got \(3,\)"),
        (
            lambda: f(x, x, x, scale=-np.inf),
            ValueError,
            "scale: expected a finite number, got -inf",
        ),
        (lambda: f(x, x, x, scale=np.nan), ValueError, "scale: expected a finite number, got nan"),
        (lambda: f(x, x, x, key_scale=x), ValueError, r"key_scale: .* \(3, 2\), got \(3, 2, 4\)"),
        (lambda: f(x, x, x, dropout_rate=0.5), ValueError, "dropout_rng: expected"),
        (lambda: f(x, x, x, impl="cuda"), ValueError, "impl: expected None, 'kernel'"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("place", range(12))
def test_operands_that_do_not_fit_are_an_error(place):
    """Below the public operation: the target itself reads nothing out of bounds."""
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    x = jnp.ones((3, 8))
    operands = [
        graph.row_offsets,
        graph.senders,
        graph.row_chunks.table,
        jnp.zeros(3, jnp.int32),
        x,
        x,
        x,
    ]
    operands += [jnp.ones((0, 0)), jnp.ones((3, 2)), jnp.ones((2, 2)), jnp.ones((3, 2))]
    operands += [jnp.ones((3, 2), "uint32")]
    results = [((3, 8), jnp.float32), ((3, 2), jnp.float32), ((1, 12), jnp.float32)]
    if place == 7:
        operands[7] = jnp.ones((2, 3))  # of another width than the keys
    else:
        wrong = operands[place]
        operands[place] = wrong.astype(jnp.float32 if wrong.dtype != jnp.float32 else jnp.int32)
    attributes = {
        "score_parameter": 0.2,
        "heads": 2,
        "drop_below": 0,
        "self_loops": 1,
        "chunk_length": 8,
    }
    with pytest.raises(Exception, match="jaxgnn_pair_attention: "):
        out = ffi.call(
            "jaxgnn_pair_attention", operands, results, score=int(place == 7), **attributes
        )
        jax.block_until_ready(out)
