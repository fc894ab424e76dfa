"""Additive attention over compressed balanced sparse rows, against the operation on dense rows."""

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

from jaxgnn import CBSR, Graph, gat_attention, maxk
from jaxgnn._core import platform
from jaxgnn.ops._attention import sparse_rule
from jaxgnn.ops._attention.gat_attention import gat_attention_with_weights
from tests.support.devices import two_devices
from tests.support.oracle import close
from tests.support.oracle_attention import (
    KEY,
    check_sparse_values,
    dense_attention,
    draw_operands,
    gat_tolerance,
    gradients,
    mixed_graph,
)
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

DTYPES = ("float32", "bfloat16", "float16", "float64")


def sparse_operands(graph, heads, width, k, dtype="float32", seed=0, scale=1.0):
    """Operands with the `k` largest entries of each row and head."""
    v, *others = draw_operands(graph, heads, width, dtype, seed, scale)
    return maxk(v, k), *others


@functools.partial(jax.jit, static_argnames=("impl", "loops", "rate", "biased", "dense"))
def run(graph, operands, *, impl=None, loops=False, rate=0.0, biased=True, dense=False):
    """The result and the gradients of the values, the scores and the biases; of the dense rows
    with `dense`, whose gradient is gathered at the kept positions."""
    cbsr, src, dst, bias, loop_bias = operands
    floats = (cbsr.values, src, dst)
    if biased:
        floats = (*floats, bias, loop_bias) if loops else (*floats, bias)

    def f(values, src, dst, bias=None, loop_bias=None):
        v = dataclasses.replace(cbsr, values=values)
        return gat_attention(
            graph,
            v.to_dense(impl="jax") if dense else v,
            src,
            dst,
            bias,
            self_loops=loops,
            loop_bias=loop_bias,
            dropout_rate=rate,
            dropout_rng=KEY,
            impl=impl,
        )

    return f(*floats), gradients(f, floats)


check = functools.partial(check_sparse_values, run)


@examples(20)
@given(
    graph=graphs(max_nodes=6),
    heads=st.sampled_from([1, 2, 3, 8]),
    width=st.sampled_from([1, 4, 20, 48]),
    kept=st.sampled_from([0.0, 0.3, 1.0]),
    dtype=st.sampled_from(DTYPES[:3]),
    loops=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_brute_force(graph, heads, width, kept, dtype, loops, seed):
    """Empty graphs, isolated nodes, repeated edges, self-loops, rectangular graphs."""
    k = max(1, round(kept * width))
    v, src, dst, bias, loop_bias = sparse_operands(graph, heads, width, k, dtype, seed)
    options = {"self_loops": loops, "loop_bias": loop_bias if loops else None}
    out = jax.jit(functools.partial(gat_attention, **options))(graph, v, src, dst, bias)
    expected = dense_attention(
        graph, v.to_dense(), src, dst, bias, loops=loop_bias if loops else None
    )
    assert out.dtype == v.dtype
    close(out, expected, gat_tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "width", "k"),
    [(4, 64, 8), (1, 16, 1), (3, 40, 40), (8, 8, 4), (2, 300, 12), (5, 7, 3), (70, 2, 1)],
    ids=str,
)
def test_shapes(heads, width, k, dtype):
    """Rows of 0, 1 and 600 edges at either end, with all biases, self-loops and dropout."""
    with jax.enable_x64(dtype == "float64"):
        graph = mixed_graph()
        operands = sparse_operands(graph, heads, width, k, dtype)
        check(graph, operands, dtype, loops=True, rate=0.4)


@pytest.mark.parametrize("k", [2, 5, 16, 33, 64])
def test_sanitized_without_biases(k):
    graph = mixed_graph()
    check(graph, sparse_operands(graph, 4, 64, k), biased=False, loops=k % 2 == 0)


@pytest.mark.parametrize(
    ("heads", "width", "k", "dtype"),
    [
        (3, 40, 8, "bfloat16"),
        (2, 100, 5, "float32"),
        (1, 300, 64, "float32"),
        (1, 1100, 3, "float16"),
    ],
    ids=str,
)
def test_sanitized_with_everything(heads, width, k, dtype):
    """Each mapping of lanes, with biases, self-loops and dropout."""
    graph = mixed_graph()
    check(graph, sparse_operands(graph, heads, width, k, dtype), dtype, loops=True, rate=0.4)


@pytest.mark.parametrize(("width", "k"), [(128, 16), (256, 8), (1500, 32), (4096, 64)], ids=str)
def test_wide_rows(width, k):
    graph = skewed_graph(20, 300)
    check(graph, sparse_operands(graph, 3, width, k), loops=True)


def test_a_row_of_40000_edges():
    """Its chunks' softmaxes are joined; at the other end, too, one node has many edges."""
    rng = np.random.default_rng(0)
    ends = rng.integers(500, size=(2, 44_000))
    ends[1, :40_000] = 3
    ends[0, 38_000:] = 5
    graph = Graph.from_edges(*ends, num_nodes=500)
    assert graph.row_chunks.table[:, 1].max() > 5
    assert graph.transpose_row_chunks.table[:, 1].max() > 1
    # Of a sum of 40,000 terms that cancel.
    operands = sparse_operands(graph, 2, 20, 6)
    out, ours = run(graph, operands, impl="kernel")
    expected, theirs = run(graph, operands, impl="jax", dense=True)
    close(out, expected, 1e-5)
    # On a GPU a sender's sums are in fixed point, 29 bits of the largest that they could be.
    tolerance = 1e-4 if jax.default_backend() == "cpu" else 5e-2
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, tolerance)


def test_senders_of_unlike_magnitude():
    """Each sender's gradients have digits of their own."""
    graph = skewed_graph(60, 2000)
    cbsr, *others = sparse_operands(graph, 2, 32, 8)
    factors = 10.0 ** np.linspace(-6, 6, 60).astype(np.float32)
    cbsr = dataclasses.replace(cbsr, values=cbsr.values * factors[:, None, None])
    out, ours = run(graph, (cbsr, *others), impl="kernel")
    expected, theirs = run(graph, (cbsr, *others), impl="jax", dense=True)
    close(out, expected, 4e-6)
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        a, b = np.asarray(a), np.asarray(b)
        for row in range(60):
            close(a[row], b[row], 1e-4)


def test_no_dense_values():
    """The compiled program has no array of the dense values' shape."""
    graph = skewed_graph(30, 200)
    operands = sparse_operands(graph, 4, 50, 3)
    text = run.lower(graph, operands, impl="kernel").as_text()
    assert "jaxgnn_sparse_attention_gradients" in text
    receivers = re.compile(r"tensor<30x4x50x|tensor<120x50x")
    # The result and its cotangent have it, as there are as many receivers: another count is none.
    rectangular = Graph.from_edges(
        np.asarray(graph.senders), np.asarray(graph.receivers), num_senders=37, num_receivers=30
    )
    operands = sparse_operands(rectangular, 4, 50, 3)
    text = run.lower(rectangular, operands, impl="kernel").as_text()
    assert receivers.search(text)
    assert not re.search(r"tensor<37x4x50x|tensor<148x50x|tensor<37x200x", text)


def test_float64_runs_kernels_on_either_platform(monkeypatch):
    """A CPU's on the sparse rows; a GPU's on dense ones, as its sparse ones do not add in it."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    called = {}
    with jax.enable_x64(True):
        graph = skewed_graph(12, 60)
        traced = run.trace(graph, sparse_operands(graph, 2, 7, 3, "float64"))
        for name in ("cpu", "cuda"):
            text = traced.lower(lowering_platforms=(name,)).as_text()
            called[name] = set(re.findall(r"@(jaxgnn_\w*attention\w*)", text))
    assert called["cpu"] == {"jaxgnn_sparse_attention", "jaxgnn_sparse_attention_gradients"}
    assert called["cuda"] == {
        "jaxgnn_gat_attention",
        "jaxgnn_gat_attention_senders",
        "jaxgnn_gat_attention_receivers",
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernels_on_dense_rows_give_the_same(monkeypatch, dtype):
    """As a GPU takes them, here on any platform."""
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(30, 400)
        operands = sparse_operands(graph, 2, 8, 6, dtype)
        options = {"impl": "kernel", "loops": True, "rate": 0.4}
        out, ours = run(graph, operands, **options)
        monkeypatch.setattr(sparse_rule, "on_cuda", lambda kernel, *, otherwise: kernel)
        lowered = jax.jit(functools.partial(run.__wrapped__, **options)).lower(graph, operands)
        text = lowered.as_text()
        assert "jaxgnn_gat_attention_senders" in text and "jaxgnn_sparse" not in text
        dense, theirs = lowered.compile()(graph, operands)
        close(dense, out, 2 * gat_tolerance(dtype))
        for a, b in zip(theirs, ours, strict=True):
            close(a, b, 20 * gat_tolerance(dtype))


def test_two_runs_give_the_same_bits():
    graph = skewed_graph(300, 20_000)
    operands = sparse_operands(graph, 4, 64, 8)
    first = jax.tree.leaves(run(graph, operands, rate=0.5, loops=True))
    for _ in range(4):
        again = jax.tree.leaves(run(graph, operands, rate=0.5, loops=True))
        jax.tree.map(np.testing.assert_array_equal, first, again)


def test_64_bit_offsets_and_indices(x64):
    graph = skewed_graph(30, 600)
    names = ("row_offsets", "senders", "transpose_row_offsets", "transpose_receivers")
    names = (*names, "transpose_permutation")
    longer = {name: getattr(graph, name).astype(jnp.int64) for name in names}
    operands = sparse_operands(graph, 2, 9, 3)
    ours, theirs = (
        run(g, operands, impl="kernel", rate=0.4, loops=True)
        for g in (graph, dataclasses.replace(graph, **longer))
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


# Masks and numbers that are not finite.


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_a_bias_of_minus_infinity_masks(impl):
    graph = Graph.from_edges([0, 1, 2, 3, 0], [0, 0, 0, 1, 1], num_nodes=4)
    cbsr, src, dst, bias, loop_bias = sparse_operands(graph, 2, 5, 3)
    masked = bias.at[1].set(-jnp.inf).at[3:].set(-jnp.inf)
    operands = (cbsr, src, dst, masked, loop_bias)
    out, (dv, dsrc, ddst, dbias) = run(graph, operands, impl=impl)
    close(out, dense_attention(graph, cbsr.to_dense(), src, dst, masked), 1e-6)
    assert np.any(np.asarray(dbias[0]))
    for zero in (dv[3], dsrc[3], ddst[1], dbias[1], dbias[3:], dv[1], dsrc[1]):
        np.testing.assert_array_equal(zero, 0)
    assert all(np.all(np.isfinite(g)) for g in (dv, dsrc, ddst, dbias))


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_visible(impl, place, value):
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5)
    operands = list(sparse_operands(graph, 1, 4, 2))
    if place == 0:
        values = operands[0].values.at[0].set(value)
        operands[0] = dataclasses.replace(operands[0], values=values)
    else:
        operands[place] = operands[place].at[0].set(value)
    out, gradient = run(graph, tuple(operands), impl=impl)
    assert not np.isfinite(out[0]).all() and np.isfinite(out[1:]).all()
    assert np.isnan(np.asarray(gradient[1][0])).any()
    assert np.isfinite(np.asarray(gradient[0][2:])).all()


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_large_scores_do_not_overflow(impl):
    graph = skewed_graph(30, 600)
    cbsr, *scores = sparse_operands(graph, 2, 8, 3, scale=1e4)
    out, gradient = run(graph, (cbsr, *scores), impl=impl)
    close(out, dense_attention(graph, cbsr.to_dense(), *scores[:3]), 2e-3)
    assert all(np.all(np.isfinite(g)) for g in gradient)


# Transformations.


@pytest.mark.system
def test_second_derivatives():
    with jax.enable_x64(True):
        graph = skewed_graph(8, 30)
        cbsr, src, dst, bias, _ = sparse_operands(graph, 2, 5, 2, "float64")

        def f(values, src, dst, bias):
            v = dataclasses.replace(cbsr, values=values)
            return gat_attention(graph, v, src, dst, bias, impl="kernel")

        check_grads(f, (cbsr.values, src, dst, bias), order=2, atol=1e-6, rtol=1e-6)


def test_vmap_is_one_call_on_more_heads():
    graph = skewed_graph(12, 60)
    many = [sparse_operands(graph, 2, 6, 3, seed=seed)[:3] for seed in range(3)]
    cbsr, src, dst = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)

    @functools.partial(jax.jit, static_argnames="impl")
    def f(values, indices, src, dst, impl=None):
        def loss(values, src, dst):
            v = CBSR(values, indices, 6)
            return jnp.sum(jnp.sin(gat_attention(graph, v, src, dst, impl=impl)))

        return jax.value_and_grad(loss, (0, 1, 2))(values, src, dst)

    mapped = jax.vmap(functools.partial(f, impl="kernel"))
    arrays = (cbsr.values, cbsr.indices, src, dst)
    text = jax.jit(mapped).lower(*arrays).as_text()
    assert len(re.findall(r"@jaxgnn_sparse", text)) == 2
    ours = mapped(*arrays)
    for i, (v, src, dst) in enumerate(many):
        theirs = f(v.values, v.indices, src, dst, impl="jax")
        jax.tree.map(lambda a, b, i=i: close(a[i], b, 1e-5), ours, theirs)


def test_shard_map():
    """Each device has a graph of its own; features and scores are replicated."""
    mesh = two_devices()
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    cbsr, src, dst, *_ = sparse_operands(graphs[0], 2, 5, 2)

    def f(graph, values, src, dst):
        v = dataclasses.replace(cbsr, values=values)
        return gat_attention(graph, v, src, dst, self_loops=True)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("d"), P(), P(), P()), out_specs=P("d"))
    def sharded(stacked, values, src, dst):
        return f(jax.tree.map(lambda leaf: leaf[0], stacked), values, src, dst)[None]

    operands = (cbsr.values, src, dst)
    out = jax.jit(sharded)(stacked, *operands)
    ours = jax.jit(lambda *o: gradients(lambda *o: sharded(stacked, *o), o))(*operands)
    expected = jnp.stack([f(graph, *operands) for graph in graphs])
    theirs = gradients(lambda *o: jnp.stack([f(graph, *o) for graph in graphs]), operands)
    close(out, expected, 1e-6)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-5)


def test_weights():
    graph = skewed_graph(10, 50)
    cbsr, src, dst, bias, _ = sparse_operands(graph, 2, 6, 2)
    out, weights, _ = gat_attention_with_weights(graph, cbsr, src, dst, bias)
    close(out, gat_attention(graph, cbsr, src, dst, bias), 1e-6)
    sums = np.zeros((10, 2))
    np.add.at(sums, np.asarray(graph.receivers), np.asarray(weights))
    close(sums, (np.asarray(graph.in_degrees) > 0)[:, None] * np.ones((1, 2)), 1e-6)


# Arguments.


@pytest.mark.parametrize("self_loops", [False, True])
def test_without_edges_or_heads(self_loops):
    graph = Graph.from_edges([], [], num_nodes=3)
    cbsr, src, dst, *_ = sparse_operands(graph, 2, 5, 2)
    out = gat_attention(graph, cbsr, src, dst, self_loops=self_loops)
    close(out, cbsr.to_dense() if self_loops else jnp.zeros((3, 2, 5)), 1e-6)
    none = CBSR(jnp.zeros((3, 0, 2)), jnp.zeros((3, 0, 2), jnp.uint8), 5)
    assert gat_attention(graph, none, src[:, :0], dst[:, :0]).shape == (3, 0, 5)


def test_errors():
    graph = skewed_graph(10, 50)
    cbsr, src, dst, *_ = sparse_operands(graph, 2, 6, 2)
    flat = dataclasses.replace(cbsr, values=cbsr.values[:, 0], indices=cbsr.indices[:, 0])
    with pytest.raises(ValueError, match=r"v: expected the shape \(10, heads, features\), got"):
        gat_attention(graph, flat, src, dst)
    short = dataclasses.replace(cbsr, values=cbsr.values[:9], indices=cbsr.indices[:9])
    with pytest.raises(ValueError, match=r"v: expected the shape \(10, heads, features\), got"):
        gat_attention(graph, short, src, dst)
    with pytest.raises(TypeError, match=r"v.indices: expected uint8"):
        wide = dataclasses.replace(cbsr, indices=cbsr.indices.astype(jnp.int32))
        gat_attention(graph, wide, src, dst)
    with pytest.raises(ValueError, match="score_src"):
        gat_attention(graph, cbsr, src[:, :1], dst)
