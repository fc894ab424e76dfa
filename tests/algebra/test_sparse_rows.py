"""Sparse rows (`CBSR`) in expressions: which operation runs, and that it is that of dense rows."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, maxk
from jaxgnn.algebra import (
    aggregate,
    concat,
    dot,
    edge_values,
    evaluate,
    explain,
    gather,
    leaky_relu,
    linear,
    scatter,
    segment_normalize,
)
from tests.support.arrays import normal
from tests.support.message_operands import HEADS, NUM_EDGES, RECEIVERS, SENDERS
from tests.support.oracle import close

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

WIDTH, K = 8, 3
X, H, Y = normal(SENDERS, WIDTH), normal(SENDERS, HEADS, WIDTH), normal(RECEIVERS, WIDTH)
P, Q, W = normal(SENDERS, HEADS), normal(RECEIVERS, HEADS), normal(NUM_EDGES)
NARROW, WIDE, ENDS = normal(WIDTH, 2), normal(WIDTH, 9), normal(2 * WIDTH, 2)
MADE_DENSE = "on the nodes: the dense form of u"


def attention(graph, x, h):
    p, q = scatter(graph, P, Q)
    return segment_normalize(leaky_relu(p + q)) * h


def of_dots(graph, x, h):
    scores = dot(scatter(graph, v=Y), scatter(graph, X)) + edge_values(graph, W)
    return segment_normalize(scores) * x


def scored_by_the_rows(graph, x, h):
    scores = linear(concat(scatter(graph, v=Y), x), ENDS[:, :1])
    return segment_normalize(leaky_relu(scores)) * x


def normalized(graph, x, h):
    p, q = scatter(graph, P[:, 0], Q[:, 0])
    return p * q * (0.5 * x)


# The reduction, what is planned, and the expression of sparse rows `x` and of heads, `h`.
CASES = {
    "rows": ("sum", "maxk_spmm(sum) of u", lambda graph, x, h: x),
    "weighted": (
        "mean",
        "maxk_spmm(mean) of u weighted by e",
        lambda graph, x, h: edge_values(graph, W) * x,
    ),
    "normalized": ("sum", "v * [maxk_spmm(sum) of (u * (0.5 * u))]", normalized),
    "terms": (
        "sum",
        "[maxk_spmm(sum) of u] - [on the nodes: v]",
        lambda graph, x, h: x - scatter(graph, v=Y),
    ),
    "linear": ("sum", "linear of [maxk_spmm(sum) of u]", lambda graph, x, h: linear(x, NARROW)),
    "attention": ("sum", "gat_attention of u", attention),
    "mean of attention": ("mean", "[gat_attention of u] / degree", attention),
    "dots": ("sum", "dot_attention of u", of_dots),
    "scores": ("sum", "gat_attention of u", scored_by_the_rows),
    # No operation takes these rows sparse.
    "maximum": ("max", "spmm(max) of u", lambda graph, x, h: x),
    "heads": ("sum", "spmm(sum) of u", lambda graph, x, h: h),
    "entries": ("sum", "spmm(sum) of (u * u)", lambda graph, x, h: x * scatter(graph, X)),
    "wide": (
        "sum",
        "linear of [spmm(sum) of (u * u)]",
        lambda graph, x, h: linear(x * scatter(graph, X), WIDE),
    ),
    "ends": (
        "max",
        "edge_conv(max) of (linear(v) + linear(u))",
        lambda graph, x, h: linear(concat(scatter(graph, v=Y), x), ENDS),
    ),
}
SPARSE = ("rows", "weighted", "normalized", "terms", "linear", "attention", "mean of attention")
SPARSE += ("dots",)


def message(name, graph, x, h, sparse):
    rows = [maxk(array, K) for array in (x, h)]
    ends = (scatter(graph, r if sparse else r.to_dense()) for r in rows)
    return CASES[name][2](graph, *ends)


@pytest.fixture(scope="module")
def results(graph):
    """Of each case the result, and where rows stay sparse its gradients; of sparse rows and of the
    same dense ones."""

    def run(x, h, graph, sparse):
        out = {}
        for name, (reduce, _, _) in CASES.items():

            def of(x, h, name=name, reduce=reduce):
                return gather(message(name, graph, x, h, sparse), reduce)

            if name in SPARSE:
                y, pullback = jax.vjp(of, x, h)
                out[name] = y, *pullback(jnp.cos(y))
            else:
                out[name] = (of(x, h),)
        return out

    return [jax.jit(run, static_argnums=3)(X, H, graph, sparse) for sparse in (True, False)]


@pytest.mark.parametrize("name", CASES)
def test_sparse_rows_give_what_dense_ones_do(name, graph, results):
    reduce, planned, _ = CASES[name]
    text, *notes = explain(message(name, graph, X, H, True), reduce).splitlines()
    assert text == planned
    assert (f"  {MADE_DENSE}" in notes) == (name not in SPARSE)
    for ours, expected in zip(*(result[name] for result in results), strict=True):
        close(ours, expected)


def test_no_dense_form_of_rows_that_stay_sparse(graph):
    def targets(name):
        def call(x, h, graph):
            return gather(message(name, graph, x, h, True), CASES[name][0])

        return re.findall(r"@(jaxgnn_\w+)\(", jax.jit(call).lower(X, H, graph).as_text())

    assert targets("normalized") == ["jaxgnn_maxk", "jaxgnn_maxk_spmm"]
    if jax.default_backend() != "gpu":  # which takes the dense kernel for so large a share
        assert targets("attention") == ["jaxgnn_maxk", "jaxgnn_sparse_attention"]
    assert "jaxgnn_cbsr_scatter" in targets("heads")


def test_other_operators(graph):
    """On the edges as written, `evaluate`, `aggregate`, and sums in 16 bits."""

    @jax.jit
    def run(graph):
        rows = maxk(X, K)
        sparse, dense = scatter(graph, rows), scatter(graph, rows.to_dense())
        plain = gather(sparse, fuse=False), aggregate(graph, rows)
        half = scatter(graph, maxk(X.astype(jnp.bfloat16), K))
        half = gather(3 * (half + scatter(graph, v=Y.astype(jnp.bfloat16))))
        edges = [evaluate(linear(x, NARROW)) for x in (sparse, dense)]
        return gather(dense), plain, half, 3 * gather(dense + scatter(graph, v=Y)), edges

    total, plain, half, expected, edges = run(graph)
    for out in plain:
        close(out, total)
    close(*edges)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(half, np.float32), expected, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("senders", [0, 2])
def test_scaled_rows_without_edges(senders):
    lonely = Graph.from_edges([], [], num_senders=senders, num_receivers=3)

    def run(x, scale):
        return gather(scatter(lonely, maxk(x, 2)) * scatter(lonely, scale))

    y, pullback = jax.vjp(run, jnp.ones((senders, 3)), jnp.full(senders, jnp.inf))
    for out in (y, *pullback(y)):
        np.testing.assert_array_equal(out, np.zeros(out.shape))


def test_errors(graph):
    rows = maxk(X[:4], K)
    with pytest.raises(ValueError, match=r"u: expected the shape \(9, ...\).* got \(4, 8\)"):
        scatter(graph, rows)
    with pytest.raises(TypeError, match=r"v: expected an array, got CBSR, whose to_dense\(\) is"):
        scatter(graph, v=maxk(Y, K))
