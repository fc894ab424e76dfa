"""GATv2's attention over neighbors against dense float64: values, derivatives, transforms."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxgnn import Graph, gatv2_attention
from jaxgnn._core.dtypes import accumulation_dtype
from tests.support.oracle import close, draw_array
from tests.support.oracle_attention import (
    WITHOUT_ELEMENTS,
    check_values_and_gradients,
    dense_pair_attention,
    gradients,
    keep_factors,
    mixed_graph,
)
from tests.support.processes import run_python
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

KEY = jax.random.key(7)


def draw_operands(graph, heads, features, dtype="float32", seed=0, scale=1.0):
    """left, right, the vectors and the biases of the edges and of the self-loops."""
    rng = np.random.default_rng(seed)
    wide = accumulation_dtype(dtype)
    left = draw_array(rng, (graph.num_senders, heads, features), dtype)
    right = draw_array(rng, (graph.num_receivers, heads, features), dtype)
    att = jax.device_put(scale * rng.standard_normal((heads, features)).astype(wide))
    rows = graph.num_edges, graph.num_receivers
    return left, right, att, *(draw_array(rng, (n, heads), wide) for n in rows)


def dense(graph, left, right, att, bias=None, *, slope=0.2, edge=None, derive=False, **options):
    left, right, att = (np.asarray(a, np.float64) for a in (left, right, att))

    def rows_of(senders, receivers):
        rows = left[senders] + right[receivers]
        return rows if edge is None else rows + np.asarray(edge, np.float64)

    def scores(senders, receivers):
        rows = rows_of(senders, receivers)
        return np.einsum("ehf,hf->eh", np.where(rows > 0, rows, slope * rows), att)

    def pull(senders, receivers, ds):
        rows, ds = rows_of(senders, receivers), ds[..., None]
        drows = ds * att * np.where(rows > 0, 1, slope)
        dleft, dright = np.zeros_like(left), np.zeros_like(right)
        np.add.at(dleft, senders, drows)
        np.add.at(dright, receivers, drows)
        return dleft, dright, np.sum(ds * np.where(rows > 0, rows, slope * rows), axis=0)

    options["pull"] = pull if derive else None
    out = dense_pair_attention(graph, scores, left, bias, **options)
    if not derive:
        return out
    out, (dkeys, dright, datt, dvalues, *biases) = out
    return out, (dkeys + dvalues, dright, datt, *biases)


@pytest.mark.parametrize(
    ("heads", "features", "dtype", "loops", "rate", "slope"),
    [
        (3, 7, "float32", True, 0.4, 0.2),
        (2, 64, "float32", False, 0.4, 0.0),
        (1, 1030, "float32", True, 0.0, 0.2),
        (6, 8, "bfloat16", False, 0.4, 1.5),
        (2, 1, "float64", True, 0.4, 0.2),
    ],
)
def test_values_and_gradients(heads, features, dtype, loops, rate, slope):
    """Rows of no edge, of one, and of some that are taken in parts."""
    graph = mixed_graph()
    with jax.enable_x64(dtype == "float64"):
        operands = draw_operands(graph, heads, features, dtype, scale=0.5)
        operands = operands if loops else operands[:4]
        keep = keep_factors(KEY, rate, graph, heads, dtype)

        def attention(left, right, att, bias, loop_bias=None):
            return gatv2_attention(
                graph,
                left,
                right,
                att,
                bias,
                negative_slope=slope,
                dropout_rate=rate,
                dropout_rng=KEY,
                self_loops=loops,
                loop_bias=loop_bias,
                impl="kernel",
            )

        def expected(left, right, att, bias, loop_bias=None):
            options = {"slope": slope, "loops": loop_bias, "keep": keep, "derive": True}
            return dense(graph, left, right, att, bias, **options)

        check_values_and_gradients(attention, expected, operands, dtype)


def test_terms_of_the_edges():
    """Inside of the LeakyReLU, with those of the added self-loops."""
    graph = skewed_graph(12, 60)
    left, right, att, _, _ = draw_operands(graph, 2, 3)
    rng = np.random.default_rng(5)
    edge = draw_array(rng, (60, 2, 3), "float32")
    f = jax.jit(gatv2_attention, static_argnames=("self_loops",))
    out = f(graph, left, right, att, edge=edge)
    close(out, dense(graph, left, right, att, edge=edge), 4e-6)
    loop = draw_array(rng, (12, 2, 3), "float32")
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    kept, nodes = senders != receivers, np.arange(12)
    looped = Graph.from_edges(
        np.append(senders[kept], nodes), np.append(receivers[kept], nodes), num_nodes=12
    )
    both = looped.sort_edge_data(np.append(np.asarray(edge)[kept], loop, axis=0))
    out = f(graph, left, right, att, edge=edge, loop_edge=loop, self_loops=True)
    close(out, dense(looped, left, right, att, edge=both), 4e-6)


def test_derivatives_equal_finite_differences(x64):
    """To second order, with dropout held by its key."""
    graph = skewed_graph(7, 25)
    operands = draw_operands(graph, 2, 3, "float64")

    def f(left, right, att, bias, loops):
        options = {"dropout_rate": 0.3, "dropout_rng": KEY, "self_loops": True}
        return gatv2_attention(graph, left, right, att, bias, loop_bias=loops, **options)

    check_grads(jax.jit(f), operands, order=2, modes=["rev"], eps=1e-6)


def test_large_scores_do_not_overflow():
    graph = mixed_graph()
    operands = draw_operands(graph, 2, 8, scale=3e3)[:3]

    @jax.jit
    def run(*operands):
        f = functools.partial(gatv2_attention, graph)
        return f(*operands), gradients(f, operands)

    out, ours = run(*operands)
    close(out, dense(graph, *operands), 5e-3)
    assert all(np.all(np.isfinite(g)) for g in ours)


def test_vmap_is_one_call_on_more_heads():
    graph = skewed_graph(12, 60)
    left, right, att, _, _ = draw_operands(graph, 2, 3)
    att = jnp.stack([att, 2 * att, -att])

    def f(impl, right, att):
        return gatv2_attention(
            graph, left, right, att, dropout_rate=0.3, dropout_rng=KEY, impl=impl
        )

    mapped = jax.jit(jax.vmap(functools.partial(f, "kernel"), (None, 0)))
    assert mapped.lower(right, att).as_text().count("@jaxgnn_pair") == 1
    looped = jax.jit(lambda right, att: jnp.stack([f("jax", right, att[i]) for i in range(3)]))
    close(mapped(right, att), looped(right, att), 4e-6)
    ours = jax.jit(lambda *o: gradients(mapped, o))(right, att)
    for a, b in zip(ours, jax.jit(lambda *o: gradients(looped, o))(right, att), strict=True):
        close(a, b, 1e-5)


def test_the_same_bits_and_nothing_of_edges_times_heads():
    graph = skewed_graph(300, 20_000)
    operands = draw_operands(graph, 3, 8)[:3]

    @jax.jit
    def run(graph, *operands):
        f = functools.partial(gatv2_attention, graph, dropout_rate=0.5, dropout_rng=KEY)
        return f(*operands), gradients(f, operands)

    first = jax.tree.leaves(run(graph, *operands))
    for a, b in zip(first, jax.tree.leaves(run(graph, *operands)), strict=True):
        np.testing.assert_array_equal(a, b)
    text = run.lower(graph, *operands).as_text()
    assert text.count("@jaxgnn_pair_attention_gradients") == 2
    assert "20000x3" not in text and "60000" not in text


ON_SOME_CORES = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
import hashlib, jax
from jaxgnn import Graph, gatv2_attention

edges = jax.random.randint(jax.random.key(0), (2, 9000), 0, 3000)
graph = Graph.from_edges(*edges, num_nodes=3000)
left, right, att = (
    jax.random.normal(jax.random.key(1 + i), shape)
    for i, shape in enumerate([(3000, 8, 8), (3000, 8, 8), (8, 8)])
)
step = jax.jit(jax.value_and_grad(lambda *x: gatv2_attention(graph, *x).sum(), (0, 1, 2)))
for x in step(left, right, att)[1]:
    print(hashlib.sha256(x.tobytes()).hexdigest())
"""


@pytest.mark.system
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core"
)
def test_gradients_are_those_of_any_number_of_cores():
    """The vector's is a sum over all nodes, which XLA cuts by its threads."""
    as_users = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    one, two = (run_python("-c", ON_SOME_CORES, count, **as_users).stdout for count in "12")
    assert one == two and len(one.split()) == 3


def test_arrays_without_elements():
    for senders, receivers, heads, width in WITHOUT_ELEMENTS:
        empty = Graph.from_edges([], [], num_senders=senders, num_receivers=receivers)
        operands = draw_operands(empty, heads, width)[:3]
        for loops in (False, True):
            out = gatv2_attention(empty, *operands, self_loops=loops)
            assert out.shape == (receivers, heads, width)
    empty = Graph.from_edges([], [], num_nodes=3)
    left, right, att, _, _ = draw_operands(empty, 2, 4)
    np.testing.assert_array_equal(gatv2_attention(empty, left, right, att), 0)
    np.testing.assert_allclose(gatv2_attention(empty, left, right, att, self_loops=True), left)


def test_bad_arguments():
    graph = Graph.from_edges([0, 1], [2, 2], num_nodes=3)
    x, a, s = jnp.ones((3, 2, 4)), jnp.ones((2, 4)), jnp.ones((3, 2))
    f = functools.partial(gatv2_attention, graph)
    for call, error, message in (
        (lambda: gatv2_attention(x, x, x, a), TypeError, "graph: expected a jaxgnn.Graph"),
        (lambda: f(x[1:], x, a), ValueError, r"left: .* \(3, ...\).*got \(2, 2, 4\)"),
        (lambda: f(x, x[..., :3], a), ValueError, r"right: .* \(3, 2, 4\), got \(3, 2, 3\)"),
        (lambda: f(x, x, s), ValueError, r"att: .* \(2, 4\), got \(3, 2\)"),
        (lambda: f(x, x, a, edge=x), ValueError, r"edge: .* \(2, 2, 4\), got \(3, 2, 4\)"),
        (lambda: f(x, x, a, loop_edge=x), ValueError, "loop_edge: expected self_loops=True"),
        (lambda: f(x, x, a, self_loops="keep"), TypeError, "self_loops: expected True or False"),
        (lambda: f(x, x, a, negative_slope=-np.inf), ValueError, "negative_slope: .* got -inf"),
        (lambda: f(x, x, a, dropout_rate=1), ValueError, "dropout_rate: .* less than 1"),
    ):
        with pytest.raises(error, match=message):
            call()
