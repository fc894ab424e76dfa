"""Edge values: gather_edges, segment_reduce, segment_softmax, readout, csr_row_ids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, gather_edges, readout, sddmm, segment_reduce, segment_softmax, spmm
from jaxgnn._core.row_ids import csr_row_ids
from tests.support.oracle import assert_close, brute_force_spmm, draw_array, edges
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

seeds = st.integers(0, 2**32 - 1)
impls = st.sampled_from(["kernel", "kernel", "jax"])
dtypes = st.sampled_from(["float32", "bfloat16", "float16"])

# One compilation a shape, where a call that is not jitted compiles each of its parts.
jitted_gather = jax.jit(gather_edges, static_argnames=("op", "impl"))
jitted_reduce = jax.jit(segment_reduce, static_argnames=("reduce", "by", "impl"))
jitted_softmax = jax.jit(segment_softmax, static_argnames="impl")
jitted_readout = jax.jit(readout, static_argnames=("reduce", "impl"))
jitted_expand = jax.jit(csr_row_ids, static_argnums=1, static_argnames="impl")


def as_neighbors(graph: Graph, by: str) -> Graph:
    """The rectangular graph from the edges (as senders) to the nodes at one of their ends."""
    senders, receivers = edges(graph)
    ends, count = (
        (senders, graph.num_senders) if by == "senders" else (receivers, graph.num_receivers)
    )
    places = np.arange(graph.num_edges)
    return Graph.from_edges(places, ends, num_senders=graph.num_edges, num_receivers=count)


@given(
    graph=graphs(),
    shape=st.sampled_from([(), (5,), (2, 3)]),
    reduce=st.sampled_from(["sum", "mean", "max", "min"]),
    by=st.sampled_from(["receivers", "senders"]),
    dtype=dtypes,
    impl=impls,
    seed=seeds,
)
def test_segment_reduce(graph, shape, reduce, by, dtype, impl, seed):
    data = draw_array(np.random.default_rng(seed), (graph.num_edges, *shape), dtype)
    out = jitted_reduce(graph, data, reduce, by=by, impl=impl)
    assert out.dtype == data.dtype
    assert_close(out, *brute_force_spmm(as_neighbors(graph, by), data, None, reduce, False))


@given(graph=graphs(), op=st.sampled_from(["add", "sub", "mul", "concat"]), impl=impls, seed=seeds)
def test_gather_edges(graph, op, impl, seed):
    rng = np.random.default_rng(seed)
    u = draw_array(rng, (graph.num_senders, 2, 3), "float32")
    v = draw_array(rng, (graph.num_receivers, 2, 3), "float32")
    senders, receivers = edges(graph)
    left, right = np.asarray(u)[senders], np.asarray(v)[receivers]
    expected = {
        "add": left + right,
        "sub": left - right,
        "mul": left * right,
        "concat": np.concatenate([left, right], axis=-1),
    }[op]
    np.testing.assert_array_equal(jitted_gather(graph, u, v, op, impl=impl), expected)
    np.testing.assert_array_equal(jitted_gather(graph, u, impl=impl), left)
    np.testing.assert_array_equal(jitted_gather(graph, receivers=v, impl=impl), right)


@examples(15)
@given(graph=graphs(), heads=st.sampled_from([(), (3,)]), dtype=dtypes, impl=impls, seed=seeds)
def test_segment_softmax(graph, heads, dtype, impl, seed):
    rng = np.random.default_rng(seed)
    logits = 8 * np.asarray(draw_array(rng, (graph.num_edges, *heads), dtype))
    out = jitted_softmax(graph, logits, impl=impl)
    assert out.dtype == logits.dtype
    scores, (_, receivers) = np.asarray(logits, np.float64), edges(graph)
    expected = np.zeros_like(scores)
    for i in range(graph.num_receivers):
        of_row = receivers == i
        exponents = np.exp(scores[of_row] - scores[of_row].max(0, initial=-np.inf))
        expected[of_row] = exponents / exponents.sum(0)
    np.testing.assert_allclose(
        np.asarray(out, np.float64), expected, rtol=4 * float(jnp.finfo(dtype).eps), atol=1e-6
    )


def test_softmax_of_large_scores_does_not_overflow():
    graph = Graph.from_edges([0, 1], [0, 0], num_nodes=2)
    np.testing.assert_allclose(segment_softmax(graph, jnp.asarray([1e4, 1e4])), [0.5, 0.5])


def test_long_rows_are_split():
    graph = skewed_graph(60, 18_000)
    assert graph.row_chunks.table.max() > 0 and graph.transpose_row_chunks.table.max() > 0
    data = draw_array(np.random.default_rng(0), (18_000, 9), "float32")
    for by in ("receivers", "senders"):
        for reduce in ("sum", "mean", "max", "min"):
            expected = brute_force_spmm(as_neighbors(graph, by), data, None, reduce, False)
            assert_close(segment_reduce(graph, data, reduce, by=by), *expected)


def test_derivatives_of_first_and_second_order():
    with jax.enable_x64():
        graph = skewed_graph(6, 25)
        rng = np.random.default_rng(1)
        data = draw_array(rng, (25, 2), "float64")
        x = draw_array(rng, (6, 2), "float64")
        for reduce in ("sum", "mean", "max", "min"):
            for by in ("receivers", "senders"):

                def reduced(data, reduce=reduce, by=by):
                    return segment_reduce(graph, data, reduce, by=by) ** 2

                check_grads(reduced, (data,), order=2, modes=["rev"])
        check_grads(lambda s: segment_softmax(graph, s) ** 2, (data,), order=2, modes=["rev"])
        for op in ("add", "sub", "mul", "concat"):

            def gathered(u, v, op=op):
                return gather_edges(graph, u, v, op) ** 2

            check_grads(gathered, (x, x + 1), order=2, modes=["rev"])


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize(
    "operation",
    [
        lambda graph, x, impl: spmm(graph, x, impl=impl),
        lambda graph, x, impl: spmm(graph, x, reduce="max", impl=impl),
        lambda graph, x, impl: gather_edges(graph, x, impl=impl),
        lambda graph, x, impl: sddmm(graph, jnp.ones((600, 1), x.dtype), x, impl=impl),
    ],
    ids=["sum", "max", "gather_edges", "sddmm"],
)
def test_gradients_of_16_bits_are_sums_in_float32(operation, impl):
    """A sum of ones in bfloat16 would end at 256."""
    graph = Graph.from_edges(np.zeros(600, int), np.arange(600), num_senders=1, num_receivers=600)
    x = jnp.ones((1, 1), jnp.bfloat16)
    y, transpose = jax.vjp(lambda x: operation(graph, x, impl), x)
    assert transpose(jnp.ones_like(y))[0] == 600


def test_ties_share_the_gradient():
    graph = Graph.from_edges([0, 1, 2], [0, 0, 0], num_nodes=3)
    data = jnp.asarray([2.0, 2.0, 1.0])
    gradient = jax.grad(lambda d: segment_reduce(graph, d, "max").sum())(data)
    np.testing.assert_array_equal(gradient, [0.5, 0.5, 0.0])


@given(
    sizes=st.lists(st.integers(0, 5), max_size=6),
    reduce=st.sampled_from(["sum", "mean", "max"]),
    impl=impls,
    seed=seeds,
)
def test_readout(sizes, reduce, impl, seed):
    nodes, graph_of = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    membership = Graph.from_edges(
        np.arange(nodes), graph_of, num_senders=nodes, num_receivers=len(sizes)
    )
    x = draw_array(np.random.default_rng(seed), (nodes, 4), "float32")
    out = np.asarray(jitted_readout(membership, x, reduce, impl=impl))
    for g, size in enumerate(sizes):
        rows = np.asarray(x)[graph_of == g]
        expected = getattr(rows, reduce)(0) if size else np.zeros(4)
        np.testing.assert_allclose(out[g], expected, rtol=1e-5, atol=1e-6)


@given(graph=graphs(), impl=impls)
def test_expand_rows(graph, impl):
    rows = jitted_expand(graph.row_offsets, graph.num_edges, impl=impl)
    np.testing.assert_array_equal(rows, edges(graph)[1])


@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_expand_rows_takes_other_integers(impl):
    offsets = [0, 2, 2, 3]
    for kind in ("int16", "uint32", "uint64"):
        rows = csr_row_ids(np.array(offsets, kind), 3, impl=impl)
        np.testing.assert_array_equal(rows, [0, 0, 2])
    np.testing.assert_array_equal(csr_row_ids(offsets, 3, impl=impl), [0, 0, 2])
    with jax.enable_x64():
        for kind in ("uint32", "uint64"):
            rows = jitted_expand(np.array(offsets, kind), 3, impl=impl)
            np.testing.assert_array_equal(rows, [0, 0, 2])


@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize(
    ("offsets", "num_edges", "error", "message"),
    [
        (np.array([0.0, 3]), 3, TypeError, "row_offsets: expected integers, got float"),
        ("ab", 3, TypeError, "row_offsets: expected an array of numbers, got str"),
        (None, 3, TypeError, "row_offsets: expected an array of numbers, got NoneType"),
        (np.array([[0, 3]]), 3, ValueError, r"row_offsets: expected the shape \(rows \+ 1,\), got"),
        (np.zeros(0, int), 3, ValueError, r"row_offsets: expected the shape \(rows \+ 1,\), got"),
        (np.array([0, 3]), -1, ValueError, "num_edges: expected an integer from 0 to"),
        (np.array([0, 3]), 1.0, TypeError, "num_edges: expected an integer, got float"),
    ],
)
def test_expand_rows_refuses(offsets, num_edges, error, message, impl):
    with pytest.raises(error, match=message):
        csr_row_ids(offsets, num_edges, impl=impl)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, x: gather_edges(g, x, x), ValueError, "op='copy': expected exactly one"),
        (lambda g, x: gather_edges(g, x, op="add"), ValueError, "op='add': expected both"),
        (lambda g, x: gather_edges(g, x, x[:, :1], "mul"), ValueError, "receivers: expected the f"),
        (lambda g, x: gather_edges(g, x[:2]), ValueError, r"senders: expected the shape \(3"),
        (lambda g, x: gather_edges(g, x, op="div"), ValueError, "op: expected one of"),
        (lambda g, x: segment_reduce(g, x), ValueError, r"data: expected the shape \(2, ...\)"),
        (lambda g, x: segment_reduce(g, x[:2], by="nodes"), ValueError, "by: expected one of"),
        (lambda g, x: segment_softmax(g, x), ValueError, "logits: expected the shape"),
        (lambda g, x: readout(g, x, "median"), ValueError, "reduce: expected one of"),
        (lambda g, x: readout(x, x), TypeError, "membership: expected a jaxgnn.Graph"),
        (lambda g, x: spmm(g, x, impl="fast"), ValueError, "impl: expected"),
    ],
)
def test_bad_arguments(call, error, message):
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    with pytest.raises(error, match=message):
        call(graph, jnp.ones((3, 4)))
