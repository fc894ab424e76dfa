"""Sums under Gaussian weights against dense float64: values, derivatives, transforms, bad input."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, gaussian_spmm
from jaxgnn._core.dtypes import accumulation_dtype
from tests.support.oracle import close, draw_array, edges
from tests.support.strategies import examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


def draw_operands(graph, kernels, width, dims, pair, dtype="float32", seed=0, each=False):
    """x, which has rows for each kernel or with `each` one for all, mu, inv_sigma and the
    coordinates: of the edges, or of both ends."""
    rng = np.random.default_rng(seed)
    accumulator = accumulation_dtype(dtype)

    def draw(*shape, scale=1.0):
        return jax.device_put(scale * np.asarray(draw_array(rng, shape, accumulator)))

    shape = (width,) if each else (kernels, width)
    x = draw_array(rng, (graph.num_senders, *shape), dtype)
    mu, inv_sigma = draw(kernels, dims), draw(kernels, dims)
    if pair:
        return x, mu, inv_sigma, (draw(graph.num_receivers, dims), draw(graph.num_senders, dims))
    return x, mu, inv_sigma, draw(graph.num_edges, dims)


def dense(graph, x, mu, inv_sigma, pseudo, cotangent=None, *, reduce="sum", activation=None):
    """The sums in float64, and with a cotangent the gradients of the operands, by the formulas of
    the documentation on arrays of the edges' and the kernels' size."""
    senders, receivers = edges(graph)
    x, mu, inv_sigma = (np.asarray(a, np.float64) for a in (x, mu, inv_sigma))
    pair = isinstance(pseudo, tuple)
    if pair:
        u, v = (np.asarray(a, np.float64) for a in pseudo)
        places = u[receivers] + v[senders]
    else:
        places = np.asarray(pseudo, np.float64)
    if activation == "tanh":
        places = np.tanh(places)
    distance = places[:, None, :] - mu
    weights = np.exp(-0.5 * np.sum((distance * inv_sigma) ** 2, axis=-1))
    degree = np.bincount(receivers, minlength=graph.num_receivers)[:, None]
    divisor = np.maximum(degree, 1) if reduce == "mean" else np.ones_like(degree)
    each = x.ndim == 2
    rows = x[senders][:, None] if each else x[senders]
    messages = weights[:, :, None] * rows
    if each:
        divisor = divisor[:, :, None]
    else:
        messages = messages.sum(axis=1)
    out = np.zeros((graph.num_receivers, *messages.shape[1:]))
    np.add.at(out, receivers, messages)
    if cotangent is None:
        return out / divisor
    dy = (np.asarray(cotangent, np.float64) / divisor)[receivers]
    dy = dy if each else dy[:, None]
    shares = weights[:, :, None] * dy
    dx = np.zeros_like(x)
    np.add.at(dx, senders, shares.sum(axis=1) if each else shares)
    g = np.sum(shares * rows, axis=-1, keepdims=True)
    dplaces = -np.sum(g * distance * inv_sigma**2, axis=1)
    if activation == "tanh":
        dplaces = dplaces * (1 - places**2)
    if pair:
        du, dv = np.zeros_like(u), np.zeros_like(v)
        np.add.at(du, receivers, dplaces)
        np.add.at(dv, senders, dplaces)
        dplaces = (du, dv)
    dmu = np.sum(g * distance * inv_sigma**2, axis=0)
    return out / divisor, (dx, dmu, -np.sum(g * distance**2 * inv_sigma, axis=0), dplaces)


def tolerance(dtype):
    return {"float32": 3e-6, "bfloat16": 2**-7, "float16": 2**-9, "float64": 1e-13}[dtype]


jitted = jax.jit(gaussian_spmm, static_argnames=("reduce", "activation", "impl"))


@examples(14)
@given(
    graph=graphs(max_nodes=6),
    kernels=st.sampled_from([1, 3, 8]),
    width=st.sampled_from([1, 7, 16]),
    dims=st.sampled_from([1, 2, 3]),
    pair=st.booleans(),
    each=st.booleans(),
    options=st.sampled_from([("sum", None), ("mean", "tanh"), ("sum", "tanh")]),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_brute_force(graph, kernels, width, dims, pair, each, options, impl, seed):
    """Empty graphs, isolated nodes, repeated edges, self-loops, rectangular graphs."""
    operands = draw_operands(graph, kernels, width, dims, pair, seed=seed, each=each)
    options = dict(zip(("reduce", "activation"), options, strict=True))
    out = jitted(graph, *operands, **options, impl=impl)
    assert out.dtype == operands[0].dtype
    close(out, dense(graph, *operands, **options), tolerance("float32"))


@functools.partial(jax.jit, static_argnames=("reduce", "activation", "impl"))
def with_gradients(graph, cotangent, *operands, **options):
    out, pullback = jax.vjp(functools.partial(gaussian_spmm, graph, **options), *operands)
    return out, pullback(cotangent)


def awkward_graph():
    """40 nodes, rows of 0 and 1 edges among split ones, loops and repeats."""
    senders, receivers = edges(skewed_graph(40, 4000))
    kept = (receivers != 5) & ((receivers != 6) | (np.cumsum(receivers == 6) == 1))
    graph = Graph.from_edges(senders[kept], receivers[kept], num_nodes=40)
    assert graph.in_degrees[5] == 0 and graph.row_chunks.table[:, 1].max() > 0
    return graph


CASES = [
    # kernels, width, dims, pair, dtype, reduce, activation; below with a row for all kernels
    (3, 16, 2, True, "float32", "mean", "tanh"),
    (3, 16, 2, False, "float32", "sum", None),
    (1, 7, 1, True, "float32", "sum", None),
    (8, 100, 3, True, "float32", "sum", "tanh"),
    (40, 1, 2, False, "float32", "mean", None),
    (2, 300, 5, True, "float32", "sum", "tanh"),
    (3, 64, 2, True, "bfloat16", "mean", "tanh"),
    (5, 12, 2, False, "float16", "sum", None),
    (4, 36, 16, True, "float64", "sum", "tanh"),
    (4, 12, 16, True, "float32", "sum", None),
    (3, 16, 2, True, "float32", "mean", "tanh", "each"),
    (8, 100, 3, False, "float32", "mean", None, "each"),
    (3, 64, 2, True, "bfloat16", "sum", "tanh", "each"),
    (5, 7, 3, True, "float64", "mean", "tanh", "each"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_values_and_gradients_of_long_rows(case):
    kernels, width, dims, pair, dtype, reduce, activation, *each = case
    with jax.enable_x64(dtype == "float64"):
        graph = awkward_graph()
        operands = draw_operands(graph, kernels, width, dims, pair, dtype, each=bool(each))
        rng = np.random.default_rng(1)
        shape = (kernels, width) if each else (width,)
        cotangent = draw_array(rng, (graph.num_receivers, *shape), dtype)
        options = {"reduce": reduce, "activation": activation}
        ours = with_gradients(graph, cotangent, *operands, **options, impl="kernel")
        expected = dense(graph, *operands, cotangent, **options)
        # Gradients are sums of thousands of terms that cancel.
        jax.tree.map(lambda a, b: close(a, b, 10 * tolerance(dtype)), ours, expected)
        again = with_gradients(graph, cotangent, *operands, **options, impl="kernel")
        jax.tree.map(np.testing.assert_array_equal, ours, again)


@pytest.mark.parametrize(
    ("pair", "width", "each"),
    [
        (False, 20, False),
        (True, 20, False),
        (True, 40, True),
        (True, 128, False),
        (True, 128, True),
    ],
)
def test_short_rows_of_a_rectangular_graph(pair, width, each):
    """Of widths that a GPU reads by 8, 16 and 32 lanes."""
    rng = np.random.default_rng(0)
    ends = rng.integers(30, size=90), rng.integers(50, size=90)
    graph = Graph.from_edges(*ends, num_senders=40, num_receivers=52)
    operands = draw_operands(graph, 3, width, 2, pair, each=each)
    cotangent = draw_array(rng, (52, 3, width) if each else (52, width), "float32")
    ours = with_gradients(graph, cotangent, *operands, activation="tanh")
    jax.tree.map(
        lambda a, b: close(a, b, 5e-6), ours, dense(graph, *operands, cotangent, activation="tanh")
    )


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("width", "kernels", "dtype"),
    [(20, 3, "float32"), (40, 3, "float32"), (128, 3, "float32"), (200, 5, "float32")]
    + [(width, 2, "bfloat16") for width in (8, 80, 136)],
)
def test_short_rows_of_each_length(width, kernels, dtype, each):
    """Rows of either end that end a tile of edges, are one longer, or are split; of widths that a
    GPU reads by 8, 16 and 32 lanes, and in two slices."""
    lengths = np.concatenate([[0, 1, 4, 5, 8, 9, 300, 17, 3, 0, 33, 16], np.arange(60) % 7])
    rows = np.repeat(np.arange(lengths.size), lengths)
    others = np.random.default_rng(0).integers(lengths.size, size=rows.size)
    for ends in ((others, rows), (rows, others)):
        graph = Graph.from_edges(*ends, num_nodes=lengths.size)
        operands = draw_operands(graph, kernels, width, 2, True, dtype, each=each)
        shape = (kernels, width) if each else (width,)
        cotangent = draw_array(np.random.default_rng(1), (lengths.size, *shape), dtype)
        options = {"reduce": "mean", "activation": "tanh"}
        expected = with_gradients(graph, cotangent, *operands, **options, impl="jax")
        for ours in (graph, graph.with_row_schedule()):
            actual = with_gradients(ours, cotangent, *operands, **options, impl="kernel")
            jax.tree.map(lambda a, b: close(a, b, 4 * tolerance(dtype)), actual, expected)


@pytest.mark.parametrize("pair", [False, True])
def test_nan_coordinates_stay_visible(pair):
    """The tangent of NaN is NaN, at the receivers of the edge alone."""
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 2])
    x, mu, inv_sigma, pseudo = draw_operands(graph, 2, 8, 2, pair)
    last = pseudo[1] if pair else pseudo
    last = last.at[1, 0].set(jnp.nan)  # of sender 1 or edge 1, which ends at node 0
    pseudo = (pseudo[0], last) if pair else last

    @jax.jit
    def run(x, mu, inv_sigma, pseudo):
        f = functools.partial(gaussian_spmm, graph, activation="tanh")
        out, pull = jax.vjp(f, x, mu, inv_sigma, pseudo)
        return out, pull(jnp.ones_like(out))

    out, (_, of_mu, of_sigma, _) = run(x, mu, inv_sigma, pseudo)
    assert jnp.isnan(out).any(1).tolist() == [True, False, False, False]
    assert jnp.isnan(of_mu[:, 0]).all() and jnp.isnan(of_sigma[:, 0]).all()


def test_64_bit_offsets_and_indices(x64):
    """Which a GPU may add up in another order."""
    graph = awkward_graph()
    names = ("row_offsets", "senders", "transpose_row_offsets", "transpose_receivers")
    longer = {
        name: getattr(graph, name).astype(jnp.int64) for name in (*names, "transpose_permutation")
    }
    wide = dataclasses.replace(graph, **longer)
    cotangent = draw_array(np.random.default_rng(1), (40, 8), "float32")
    for pair in (False, True):
        operands = draw_operands(graph, 2, 8, 2, pair)
        ours, theirs = (with_gradients(g, cotangent, *operands) for g in (graph, wide))
        jax.tree.map(lambda a, b: close(a, b, 3e-6), ours, theirs)


@pytest.mark.parametrize(("pair", "each"), [(False, False), (True, False), (True, True)])
def test_derivatives_equal_finite_differences(pair, each, x64):
    """To second order, for every operand."""
    graph = skewed_graph(7, 25)
    operands = draw_operands(graph, 2, 3, 2, pair, "float64", each=each)
    options = {"activation": "tanh" if pair else None, "reduce": "mean"}
    f = jax.jit(functools.partial(gaussian_spmm, graph, **options))
    check_grads(f, operands, order=2, modes=["rev"], eps=1e-6)


def test_second_derivatives_equal_those_of_the_reference(x64):
    graph = Graph.from_edges([0, 1, 1, 2, 3, 3, 3], [1, 1, 0, 0, 3, 3, 4], num_nodes=6)
    operands = draw_operands(graph, 2, 3, 2, True, "float64")

    def second(impl):
        def loss(*operands):
            return jnp.sum(jnp.sin(gaussian_spmm(graph, *operands, activation="tanh", impl=impl)))

        def norm(*operands):
            gradients = jax.grad(loss, range(4))(*operands)
            return sum(jnp.sum(jnp.sin(g) ** 2) for g in jax.tree.leaves(gradients))

        return jax.jit(jax.grad(norm, range(4)))(*operands)

    for a, b in zip(*map(jax.tree.leaves, (second("kernel"), second("jax"))), strict=True):
        assert float(jnp.abs(b).max()) > 0
        close(a, b, 1e-12)


@pytest.mark.parametrize(("batched", "each"), [("x", False), ("x", True), ("all", False)])
def test_vmap(batched, each):
    graph = skewed_graph(12, 60)
    examples = [draw_operands(graph, 3, 4, 2, True, seed=seed, each=each) for seed in range(3)]
    if batched == "x":
        examples = [(x, *examples[0][1:]) for x, *_ in examples]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *examples)
    axes = (0, 0, 0, 0)
    if batched == "x":
        stacked, axes = (stacked[0], *examples[0][1:]), (0, None, None, None)

    def step(*operands):
        def loss(*operands):
            out = gaussian_spmm(graph, *operands, activation="tanh")
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(loss, range(4), has_aux=True)(*operands)

    together = jax.jit(jax.vmap(step, axes))(*stacked)
    single = jax.jit(step)
    for i, operands in enumerate(examples):
        jax.tree.map(lambda a, b, i=i: close(a[i], b, 1e-5), together, single(*operands))
    text = jax.jit(jax.vmap(functools.partial(gaussian_spmm, graph), axes)).lower(*stacked)
    assert ("while" in text.as_text()) == (batched == "all")


@pytest.mark.parametrize("width", [8, 88])
def test_nothing_of_the_edges_and_kernels_is_stored(width):
    """Forward and backward; of a pair nothing of the edges at all, but for their coordinates'
    gradients where these are small beside x."""
    graph = skewed_graph(30, 977)
    x, mu, inv_sigma, pseudo = draw_operands(graph, 3, width, 2, True)

    def loss(*operands):
        return jnp.sum(gaussian_spmm(graph, *operands, activation="tanh", impl="kernel"))

    text = jax.jit(jax.grad(loss, range(4))).lower(x, mu, inv_sigma, pseudo).as_text()
    found = set(re.findall(r"tensor<([0-9x]*977[0-9x]*)x[a-z]", text))
    held = {"977x2", "977x1x2"} if width == 88 else set()
    assert found == held | {"977"}, found  # the graph's own arrays


ERRORS = [
    ({"x": np.zeros((4, 2, 3, 1), "f")}, ValueError, "(4, kernels, features) or (4, features)"),
    (
        {"x": np.zeros((4, 3), "f"), "mu": np.zeros((0, 2), "f")},
        ValueError,
        "mu: expected the shape (kernels, dims) with 1 to 16 dims, a row for each kernel, got (0,",
    ),
    ({"x": np.zeros((4, 3), "f"), "mu": np.zeros(2, "f")}, ValueError, "mu: expected the shape ("),
    ({"x": np.zeros((4, 2, 3), int)}, TypeError, "x: expected float32"),
    ({"mu": np.zeros((3, 2), "f")}, ValueError, "mu: expected the shape (2, dims)"),
    ({"mu": np.zeros((2, 17), "f")}, ValueError, "with 1 to 16 dims"),
    ({"inv_sigma": np.zeros((2, 1), "f")}, ValueError, "inv_sigma: expected the shape (2, 2)"),
    ({"pseudo": np.zeros((3, 2), "f")}, ValueError, "pseudo: expected the shape (5, 2)"),
    ({"pseudo": (np.zeros((4, 2), "f"),) * 3}, ValueError, "pseudo: expected an array or a pair"),
    (
        {"pseudo": (np.zeros((4, 2), "f"), np.zeros((3, 2), "f"))},
        ValueError,
        "pseudo[1]: expected the shape (4, 2)",
    ),
    ({"reduce": "max"}, ValueError, "reduce: expected one of 'sum', 'mean', got 'max'"),
    ({"activation": "relu"}, ValueError, "activation: expected one of None, 'tanh', got 'relu'"),
    ({"graph": None}, TypeError, "graph: expected a jaxgnn.Graph"),
]


@pytest.mark.parametrize(("change", "error", "message"), ERRORS, ids=lambda e: str(e)[:30])
def test_bad_input(change, error, message):
    graph = Graph.from_edges([0, 1, 2, 3, 0], [0, 0, 1, 2, 3], num_nodes=4)
    arguments = {
        "graph": graph,
        "x": np.zeros((4, 2, 3), "f"),
        "mu": np.zeros((2, 2), "f"),
        "inv_sigma": np.zeros((2, 2), "f"),
        "pseudo": np.zeros((5, 2), "f"),
    }
    with pytest.raises(error, match=re.escape(message)):
        gaussian_spmm(**(arguments | change))
