"""Dot-product attention over compressed balanced sparse rows, against that on dense rows."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn import CBSR, Graph, dot_attention, maxk
from jaxgnn.ops._attention import sparse_pair_rule, sparse_rule
from jaxgnn.ops._attention.dot_attention import dot_attention_with_weights
from tests.support.arrays import normal
from tests.support.devices import two_devices
from tests.support.oracle import close, draw_array
from tests.support.oracle_attention import (
    KEY,
    accumulation_dtype,
    gradients,
    mixed_graph,
    tolerance,
)
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

SMALL = Graph.from_edges([0, 1, 2, 3, 0], [0, 0, 0, 1, 1], num_nodes=4)


def draw_operands(graph, heads, features, width, k, dtype="float32", seed=0, scale=1.0):
    """Queries, keys, the `k` largest entries of each head's values, and the other terms of the
    scores by name."""
    rng = np.random.default_rng(seed)
    receivers, senders = graph.num_receivers, graph.num_senders
    wide = accumulation_dtype(dtype)
    q, keys = (
        (scale * draw_array(rng, (n, heads, features), wide)).astype(dtype)
        for n in (receivers, senders)
    )
    v = maxk(draw_array(rng, (senders, heads, width), dtype), k)
    shapes = {
        "edge_bias": (graph.num_edges, heads),
        "loop_bias": (receivers, heads),
        "key_scale": (senders, heads),
        "scale": (heads,),
    }
    return q, keys, v, {name: draw_array(rng, shape, wide) for name, shape in shapes.items()}


@functools.partial(jax.jit, static_argnames=("impl", "rate", "dense"))
def run(graph, q, keys, v, terms, *, impl=None, rate=0.0, dense=False):
    """The result and the gradients of queries, keys, values and the given terms; with `dense`, of
    the dense rows, whose gradient is gathered at the kept positions."""
    names = sorted(terms)

    def f(q, keys, values, *given):
        rows = dataclasses.replace(v, values=values)
        options = dict(zip(names, given, strict=True))
        return dot_attention(
            graph,
            q,
            keys,
            rows.to_dense(impl="jax") if dense else rows,
            self_loops="loop_bias" in options,
            dropout_rate=rate,
            dropout_rng=KEY,
            impl=impl,
            **options,
        )

    operands = q, keys, v.values, *(terms[name] for name in names)
    return f(*operands), gradients(f, operands)


def check(graph, operands, dtype="float32", **options):
    """The kernels against the dense operation in the accumulation dtype."""
    q, keys, v, terms = operands
    out, ours = run(graph, *operands, impl="kernel", **options)
    assert out.dtype == v.dtype and out.shape == (graph.num_receivers, *v.shape[1:])
    wide = accumulation_dtype(dtype)
    widened = q.astype(wide), keys.astype(wide), v.astype(wide), terms
    expected, theirs = run(graph, *widened, impl="jax", dense=True, **options)
    close(out, expected, 2 * tolerance(dtype))
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(b).max(initial=0) > 0
        close(a, b, 20 * tolerance(dtype))


def only(operands, *names):
    """The operands with these terms alone."""
    *rows, terms = operands
    return *rows, {name: terms[name] for name in names}


jitted = jax.jit(dot_attention, static_argnames=("self_loops",))


@examples(10)
@given(
    graph=graphs(max_nodes=6),
    heads=st.sampled_from([1, 3]),
    shape=st.sampled_from([(2, 4, 1), (3, 20, 6), (1, 5, 5)]),
    loops=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_graph(graph, heads, shape, loops, seed):
    """Empty graphs, isolated nodes, repeated edges, self-loops, rectangular graphs."""
    q, keys, v, terms = draw_operands(graph, heads, *shape, seed=seed)
    options = {"self_loops": loops, "loop_bias": terms["loop_bias"] if loops else None}
    out = jitted(graph, q, keys, v, terms["edge_bias"], **options)
    expected = jitted(graph, q, keys, v.to_dense(), terms["edge_bias"], **options)
    close(out, expected, 2 * tolerance("float32"))


@pytest.mark.parametrize(
    ("heads", "features", "width", "k", "dtype", "names", "rate"),
    [
        (3, 7, 40, 5, "float32", ("edge_bias", "loop_bias", "key_scale", "scale"), 0.4),
        (4, 16, 64, 4, "float32", (), 0.0),
        (2, 8, 300, 12, "bfloat16", ("edge_bias", "loop_bias"), 0.4),
        (1, 64, 16, 16, "float16", ("key_scale",), 0.0),
        (2, 1, 8, 2, "float64", ("edge_bias", "loop_bias", "key_scale", "scale"), 0.4),
        (5, 12, 7, 3, "bfloat16", ("scale",), 0.0),
        (40, 2, 2, 1, "float32", ("loop_bias", "key_scale"), 0.4),
        (1, 300, 1500, 32, "float32", ("loop_bias",), 0.0),
    ],
    ids=str,
)
def test_values_and_gradients(heads, features, width, k, dtype, names, rate):
    """Rows of 0, 1 and 600 edges at either end; more and fewer terms of the scores."""
    with jax.enable_x64(dtype == "float64"):
        graph = mixed_graph()
        operands = draw_operands(graph, heads, features, width, k, dtype)
        check(graph, only(operands, *names), dtype, rate=rate)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_sanitized_with_everything(rate):
    graph = mixed_graph()
    check(graph, draw_operands(graph, 3, 9, 40, 4), rate=rate)


@pytest.mark.system
def test_dropout_drops_the_edges_of_the_dense_operation():
    """Weights of the same edges and self-loops are 0."""
    graph = skewed_graph(30, 300)
    q, keys, v, _ = draw_operands(graph, 2, 3, 9, 9)
    options = {"self_loops": True, "dropout_rate": 0.5, "dropout_rng": KEY}
    sparse, ours, our_loops = dot_attention_with_weights(graph, q, keys, v, **options)
    dense, theirs, their_loops = dot_attention_with_weights(graph, q, keys, v.to_dense(), **options)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(our_loops, their_loops)
    assert 0.3 < np.mean(np.asarray(ours) == 0) < 0.7
    close(sparse, dense, 1e-6)
    close(dot_attention(graph, q, keys, v, impl="kernel", **options), dense, 1e-5)


def test_where_a_gpu_takes_dense_rows():
    """Where rows are aligned: always forward, backward of many kept features. And of float64."""
    takes = sparse_rule.takes_dense_rows
    assert takes(4, 64, "float32", sparse_pair_rule.FORWARD_SHARE)
    assert takes(5, 64, "bfloat16", sparse_pair_rule.BACKWARD_SHARE_16_BITS)
    assert not takes(4, 64, "bfloat16", sparse_pair_rule.BACKWARD_SHARE_16_BITS)
    assert not takes(8, 67, "float32", 0.0)
    assert takes(8, 67, "float64", 1.0)


@pytest.mark.system
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernels_on_dense_rows_give_the_same(monkeypatch, dtype):
    """As a GPU takes them, here on any platform."""
    with jax.enable_x64(dtype == "float64"):
        graph = mixed_graph()
        operands = draw_operands(graph, 2, 8, 16, 6, dtype)
        out, ours = run(graph, *operands, impl="kernel", rate=0.4)
        monkeypatch.setattr(sparse_rule, "on_cuda", lambda kernel, *, otherwise: kernel)
        function = functools.partial(run.__wrapped__, impl="kernel", rate=0.4)
        lowered = jax.jit(function).lower(graph, *operands)
        text = lowered.as_text()
        assert "jaxgnn_pair_attention_gradients" in text and "jaxgnn_sparse" not in text
        dense, theirs = lowered.compile()(graph, *operands)
        close(dense, out, 2 * tolerance(dtype))
        for a, b in zip(theirs, ours, strict=True):
            close(a, b, 20 * tolerance(dtype))


# Memory.


def test_nothing_of_edges_times_heads_is_stored():
    """The residuals are the operands, the result and the log-sums; values stay sparse."""
    graph = Graph.from_edges(
        *np.random.default_rng(0).integers(30, size=(2, 200)), num_senders=37, num_receivers=30
    )
    q, keys, v, terms = draw_operands(graph, 4, 6, 50, 3)

    def f(q, keys, values, key_scale):
        rows = dataclasses.replace(v, values=values)
        return dot_attention(graph, q, keys, rows, key_scale=key_scale, impl="kernel")

    operands = q, keys, v.values, terms["key_scale"]
    _, pullback = jax.vjp(f, *operands)
    kept = {leaf.shape for leaf in jax.tree.leaves(pullback)}
    assert (30, 4, 50) in kept and (37, 4, 3) in kept
    assert not any(np.prod(shape) == 200 * 4 for shape in kept)
    text = jax.jit(lambda *o: gradients(f, o)).lower(*operands).as_text()
    assert "jaxgnn_sparse_attention_gradients" in text
    assert not re.search(r"tensor<37x4x50x|tensor<148x50x|tensor<37x200x", text)


def test_two_runs_give_the_same_bits():
    graph = skewed_graph(300, 20_000)
    operands = draw_operands(graph, 4, 8, 64, 8)
    first = jax.tree.leaves(run(graph, *operands, rate=0.5))
    again = jax.tree.leaves(run(graph, *operands, rate=0.5))
    jax.tree.map(np.testing.assert_array_equal, first, again)


# Masks and numbers that are not finite.


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_a_bias_of_minus_infinity_masks(impl):
    """An edge, all edges of a receiver, and an added self-loop."""
    q, keys, v, terms = draw_operands(SMALL, 2, 3, 5, 3)
    bias = terms["edge_bias"].at[1].set(-jnp.inf).at[3:].set(-jnp.inf)
    out, (dq, dk, dv, dbias) = run(SMALL, q, keys, v, {"edge_bias": bias}, impl=impl)
    dense = dot_attention(SMALL, q, keys, v.to_dense(), bias)
    close(out, dense, 1e-6)
    assert np.any(np.asarray(dbias[0]))
    for zero in (out[1:], dq[1:], dk[1], dk[3], dv[1], dv[3], dbias[1], dbias[3:]):
        np.testing.assert_array_equal(zero, 0)
    assert all(np.all(np.isfinite(g)) for g in (dq, dk, dv, dbias))

    loops = terms["loop_bias"].at[2].set(-jnp.inf)
    both = {"edge_bias": bias, "loop_bias": loops}
    out, ours = run(SMALL, q, keys, v, both, impl=impl)
    expected, theirs = run(SMALL, q, keys, v, both, impl="jax", dense=True)
    np.testing.assert_array_equal(out[2], 0)
    close(out, expected, 1e-6)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_stays_visible(impl, place):
    """In the rows that it belongs to."""
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5)
    *rows, terms = draw_operands(graph, 1, 3, 4, 2)
    if place == 2:
        values = rows[2].values.at[0].set(np.nan)
        rows[2] = dataclasses.replace(rows[2], values=values)
    else:
        rows[place] = rows[place].at[0].set(np.nan)
    out, gradient = run(graph, *rows, {"edge_bias": terms["edge_bias"]}, impl=impl)
    assert np.isnan(out[0]).any() and np.isfinite(out[1:]).all()
    assert np.isnan(gradient[0][0]).any()
    for gradient_of, untouched in zip(gradient, (1, 2, 2, 2), strict=True):
        assert np.isfinite(np.asarray(gradient_of[untouched:])).all()


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_large_scores_do_not_overflow(impl):
    graph = skewed_graph(30, 600)
    operands = only(draw_operands(graph, 2, 8, 8, 3, scale=100.0))
    out, gradient = run(graph, *operands, impl=impl)
    expected, _ = run(graph, *operands, impl="jax", dense=True)
    close(out, expected, 5e-3)
    assert all(np.all(np.isfinite(g)) for g in gradient)


# Transformations.


def test_second_derivatives(x64):
    """Of everything, with dropout held by its key."""
    graph = skewed_graph(7, 25)
    q, keys, v, terms = draw_operands(graph, 2, 3, 5, 2, "float64")
    names = sorted(terms)

    def f(q, keys, values, *given):
        rows = dataclasses.replace(v, values=values)
        options = dict(zip(names, given, strict=True))
        options |= {"dropout_rate": 0.3, "dropout_rng": KEY, "self_loops": True}
        return dot_attention(graph, q, keys, rows, impl="kernel", **options)

    operands = q, keys, v.values, *(terms[name] for name in names)
    check_grads(jax.jit(f), operands, order=2, modes=["rev"], eps=1e-6)


@pytest.mark.system
def test_forward_mode():
    graph = skewed_graph(7, 25)
    q, keys, v, _ = draw_operands(graph, 2, 3, 5, 2)

    def f(impl, q, keys, values):
        rows = dataclasses.replace(v, values=values)
        return dot_attention(graph, q, keys, rows, impl=impl)

    primals = q, keys, v.values
    tangents = jax.tree.map(jnp.cos, primals)
    ours = jax.jvp(functools.partial(f, "kernel"), primals, tangents)
    theirs = jax.jvp(functools.partial(f, "jax"), primals, tangents)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-5)


def test_vmap_is_one_call_on_more_heads():
    graph = skewed_graph(12, 60)
    many = [draw_operands(graph, 2, 3, 6, 3, seed=seed)[:3] for seed in range(3)]
    q, keys, v = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)

    @functools.partial(jax.jit, static_argnames="impl")
    def f(q, keys, values, indices, impl=None):
        def loss(q, keys, values):
            rows = CBSR(values, indices, 6)
            out = dot_attention(graph, q, keys, rows, dropout_rate=0.3, dropout_rng=KEY, impl=impl)
            return jnp.sum(jnp.sin(out))

        return jax.value_and_grad(loss, (0, 1, 2))(q, keys, values)

    mapped = jax.vmap(functools.partial(f, impl="kernel"))
    arrays = (q, keys, v.values, v.indices)
    text = jax.jit(mapped).lower(*arrays).as_text()
    assert len(re.findall(r"@jaxgnn_sparse", text)) == 2
    ours = mapped(*arrays)
    for i, (q, keys, v) in enumerate(many):
        theirs = f(q, keys, v.values, v.indices, impl="jax")
        jax.tree.map(lambda a, b, i=i: close(a[i], b, 1e-5), ours, theirs)


@pytest.mark.system
def test_vmap_of_graphs_and_of_queries_alone():
    stack = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stack)
    q, keys, v, _ = draw_operands(stack[0], 2, 3, 5, 2)

    def f(graph, q):
        return gradients(lambda q, keys: dot_attention(graph, q, keys, v), (q, keys))

    together = jax.jit(jax.vmap(f, (0, None)))(stacked, q)
    for i, graph in enumerate(stack):
        for a, b in zip(together, f(graph, q), strict=True):
            close(a[i], b, 1e-5)
    together = jax.vmap(functools.partial(f, stack[0]))(jnp.stack([q, 2 * q]))
    for a, b in zip(together, f(stack[0], 2 * q), strict=True):
        close(a[1], b, 1e-5)


def test_shard_map():
    """Each device has a graph of its own; queries, keys and values are replicated."""
    mesh = two_devices()
    each = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    q, keys, v, terms = draw_operands(each[0], 2, 3, 5, 2)

    def f(graph, q, keys, values, key_scale):
        rows = dataclasses.replace(v, values=values)
        return dot_attention(graph, q, keys, rows, key_scale=key_scale, self_loops=True)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("d"), *[P()] * 4), out_specs=P("d"))
    def sharded(stacked, *operands):
        return f(jax.tree.map(lambda leaf: leaf[0], stacked), *operands)[None]

    operands = q, keys, v.values, terms["key_scale"]
    out = jax.jit(sharded)(stacked, *operands)
    ours = jax.jit(lambda *o: gradients(lambda *o: sharded(stacked, *o), o))(*operands)
    expected = jnp.stack([f(graph, *operands) for graph in each])
    theirs = gradients(lambda *o: jnp.stack([f(graph, *o) for graph in each]), operands)
    close(out, expected, 1e-6)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-5)


# Arguments.


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("self_loops", [False, True])
def test_without_edges_heads_or_features(impl, self_loops):
    graph = Graph.from_edges([], [], num_nodes=3)
    q, keys, v, _ = draw_operands(graph, 2, 4, 5, 2)
    f = functools.partial(dot_attention, graph, self_loops=self_loops, impl=impl)
    close(f(q, keys, v), v.to_dense() if self_loops else jnp.zeros((3, 2, 5)), 1e-6)
    none = CBSR(jnp.zeros((3, 0, 2)), jnp.zeros((3, 0, 2), jnp.uint8), 5)
    assert f(q[:, :0], keys[:, :0], none).shape == (3, 0, 5)
    mean = dot_attention(SMALL, *[jnp.zeros((4, 2, 0))] * 2, maxk(normal(4, 2, 5), 2), impl=impl)
    assert mean.shape == (4, 2, 5)


def test_bad_arguments():
    graph = skewed_graph(10, 50)
    q, keys, v, terms = draw_operands(graph, 2, 4, 6, 2)
    f = functools.partial(dot_attention, graph, q, keys)

    def changed(**fields):
        return dataclasses.replace(v, **fields)

    for call, error, message in (
        (
            lambda: f(changed(values=v.values[:, 0], indices=v.indices[:, 0])),
            ValueError,
            r"v: expected the shape \(10, heads, features\), got \(10, 6\)",
        ),
        (
            lambda: f(changed(values=v.values[:9], indices=v.indices[:9])),
            ValueError,
            r"v: expected the shape \(10, heads, features\), got \(9, 2, 6\)",
        ),
        (
            lambda: f(changed(values=v.values[:, :1], indices=v.indices[:, :1])),
            ValueError,
            "v: expected the dtype and heads of k, float32 and 2, got float32 and 1",
        ),
        (lambda: f(v.astype("bfloat16")), ValueError, "v: expected the dtype and heads of k"),
        (lambda: f(changed(indices=v.indices.astype(int))), TypeError, "v.indices: expected uint8"),
        (lambda: f(changed(indices=v.indices[..., :1])), ValueError, "v: expected values and ind"),
        (lambda: dot_attention(graph, q, v, v), TypeError, "k: expected an array, got CBSR"),
        (lambda: dot_attention(graph, v, keys, v), TypeError, "q: expected an array, got CBSR"),
        (lambda: f(v, terms["edge_bias"][:, :1]), ValueError, "edge_bias: expected"),
        (lambda: f(v, loop_bias=q[..., 0]), ValueError, "loop_bias: expected self_loops=True"),
    ):
        with pytest.raises(error, match=message):
            call()
