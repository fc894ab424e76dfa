"""The algebra of message passing: which operation runs, and that it is the same as on the edges."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn.algebra import (
    apply_edge,
    apply_vertex,
    concat,
    dot,
    edge_values,
    explain,
    gather,
    leaky_relu,
    linear,
    scatter,
    segment_normalize,
)
from jaxgnn.nn import GATConv
from tests.support.message_cases import (
    CASES,
    gat_as_written,
    gat_heads_as_written,
    gatv2_of_one_head,
    monet,
)
from tests.support.message_operands import (
    HEADS,
    NUM_EDGES,
    RECEIVERS,
    WIDTH,
    dense,
    operands,
    reduced,
    symbolic,
)
from tests.support.oracle import close, draw_array, edges
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


@pytest.fixture(scope="module")
def results(graph):
    """Of each case the results by reduction, the first on the edges, and its gradients fused."""

    def run(arrays, graph):
        outputs, plain, gradients = {}, {}, {}
        for name, (reduces, _, expression, _) in CASES.items():

            def out(arrays, reduce, expression=expression, **options):
                return gather(expression(symbolic(graph, arrays)), reduce, **options)

            first, pullback = jax.vjp(lambda arrays: out(arrays, reduces[0]), arrays)  # noqa: B023
            outputs[name] = [first, *(out(arrays, reduce) for reduce in reduces[1:])]
            plain[name] = out(arrays, reduces[0], fuse=False, impl="jax")
            gradients[name] = pullback(jnp.cos(first))[0]
        return outputs, plain, gradients

    return jax.jit(run)(operands(), graph)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_what_its_messages_add_up_to(name, graph, results):
    reduces, planned, expression, messages = CASES[name]
    outputs, plain, gradients = (result[name] for result in results)
    on_edges = messages(dense(graph, operands()))
    for reduce, out in zip(reduces, outputs, strict=True):
        close(out, reduced(graph, on_edges, reduce))
        text = explain(expression(symbolic(graph, operands())), reduce)
        assert text.splitlines()[0] == planned.format(reduce)
    close(plain, reduced(graph, on_edges, reduces[0]))

    def loss(arrays):
        return np.sin(reduced(graph, messages(dense(graph, arrays)), reduces[0])).sum()

    rng, exact = np.random.default_rng(4), operands()
    for operand, gradient in gradients.items():
        step = 1e-6 * rng.standard_normal(gradient.shape)
        moved = [exact | {operand: np.asarray(exact[operand], float) + s * step} for s in (1, -1)]
        slope = (loss(moved[0]) - loss(moved[1])) / 2e-6
        along = np.sum(np.asarray(gradient, float) * step) / 1e-6
        assert along == pytest.approx(slope, rel=1e-5, abs=1e-5), operand


def arrays_of_the_edges(graph, text):
    return re.findall(rf"tensor<{graph.num_edges}x[\dx]*f32>", text)


def test_fused_layers_run_as_one_call_and_form_nothing_on_the_edges(graph):
    """Forward and backward; the same layers as they were written do form it."""
    arrays = {name: array for name, array in operands().items() if name not in "wzb"}

    def layers(arrays, graph, fuse):
        s = symbolic(graph, arrays)
        scores = leaky_relu(s.p + s.q)
        theta = linear(concat(s.y, s.x - s.y), s.narrow)
        written = [gat_as_written(s), gat_heads_as_written(s), gatv2_of_one_head(s), monet(s)]
        messages = [segment_normalize(scores) * s.h, *written]
        return *(gather(m, fuse=fuse) for m in messages), gather(theta, "max", fuse=fuse)

    def loss(arrays, graph, fuse):
        return sum(jnp.sum(out**2) for out in layers(arrays, graph, fuse))

    forward = jax.jit(layers, static_argnums=2).lower(arrays, graph, True).as_text()
    assert re.findall(r"@(jaxgnn_\w+)\(", forward) == [
        *3 * ["jaxgnn_gat_attention"],
        "jaxgnn_pair_attention",
        "jaxgnn_gaussian_spmm",
        "jaxgnn_spmm",
    ]
    gradient = jax.jit(jax.grad(loss), static_argnums=2)
    backward = {fuse: gradient.lower(arrays, graph, fuse).as_text() for fuse in (True, False)}
    assert not arrays_of_the_edges(graph, forward) + arrays_of_the_edges(graph, backward[True])
    assert arrays_of_the_edges(graph, backward[False])


class Attention(nnx.Module):
    """GATConv's equation with edge features, in the algebra."""

    def __init__(self, of: GATConv):
        self.of = of

    def __call__(self, graph, x, z):
        conv: Any = self.of  # whose modules may be None
        shape = (conv.heads, conv.out_features)
        h = apply_vertex(conv.linear, x).reshape(-1, *shape)
        u, v = (
            jnp.sum(h * vector[...][None], axis=-1)
            for vector in (conv.attention_senders, conv.attention_receivers)
        )
        own = conv.linear_edges.kernel[...].reshape(-1, *shape) * conv.attention_edges[...][None]
        own = linear(edge_values(graph, z), own.sum(axis=-1))
        source, target = scatter(graph, u, v)
        weights = segment_normalize(leaky_relu(source + target + own, conv.negative_slope))
        out = gather(weights * scatter(graph, h))
        return out.reshape(x.shape[0], -1) + conv.bias[...][None]


def test_an_attention_layer_of_ones_own_is_the_librarys():
    graph = skewed_graph(12, 70)
    rng = np.random.default_rng(2)
    x, z = draw_array(rng, (12, 5), "float32"), draw_array(rng, (70, 3), "float32")
    conv = GATConv(5, 4, heads=3, edge_dim=3, add_self_loops=False, rngs=nnx.Rngs(0))

    @nnx.jit
    def run(model, conv):
        def loss(model, x):
            out = model(graph, x, z)
            return jnp.sum(jnp.sin(out)), out

        return [nnx.grad(loss, argnums=(0, 1), has_aux=True)(m, x) for m in (model, conv)]

    (ours, out), (theirs, expected) = run(Attention(conv), conv)
    close(out, expected)
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        close(a, b, 1e-5)


def test_masked_scores_have_no_weight_fused_or_not(graph):
    x, b = operands()["x"], operands()["b"][:, 0]
    receivers = edges(graph)[1]
    mask = jnp.asarray(np.where((receivers < 2) | (np.arange(NUM_EDGES) % 3 == 0), -np.inf, 0))
    weights = segment_normalize(edge_values(graph, b + mask.astype(jnp.float32)))
    assert explain(weights * scatter(graph, x)).startswith("gat_attention of u\n")
    message = weights * scatter(graph, x)
    fused, plain = jax.jit(lambda: [gather(message, fuse=fuse) for fuse in (True, False)])()
    close(fused, plain)
    np.testing.assert_array_equal(fused[:2], 0)


def test_receivers_masked_in_a_softmax_stay_masked(graph):
    """Their terms shift all scores of a row, and are left out of divided exponentials alone."""
    s = symbolic(graph, operands())
    mask = scatter(graph, v=jnp.where(jnp.arange(RECEIVERS) < 2, -jnp.inf, 0.0))
    scores = leaky_relu(s.p + s.q) + concat(*(apply_edge(lambda v: v[:, None], mask),) * HEADS)
    out = jax.jit(lambda: gather(segment_normalize(scores) * s.h))()
    np.testing.assert_array_equal(out[:2], 0)
    assert np.any(np.asarray(out[2:]) != 0)


def test_why_two_projections_are_no_gatv2(graph):
    s = symbolic(graph, operands())
    kernel = jnp.concatenate([s.wide, s.wide])
    scores = dot(leaky_relu(linear(concat(s.x, s.y), kernel)), s.column[:, 0])
    text = explain(segment_normalize(scores) * linear(s.x, kernel[:WIDTH])).splitlines()
    assert text[0].startswith("spmm(sum) of linear(u) weighted by softmax(")
    assert text[-1] == (
        "  no gatv2_attention: its keys and values are one array, linear(u) and linear(u) are two"
    )


def test_weights_of_another_dtype_leave_that_of_the_features(graph):
    x, w = operands()["x"].astype(jnp.bfloat16), operands()["w"]
    narrow = edge_values(graph, w.astype(jnp.bfloat16))
    share = scatter(graph, v=operands()["q"][:, 0])
    # The weights, of two dtypes, are multiplied with each other where the first is fused.
    message = share * (scatter(graph, x) * edge_values(graph, w) * narrow)
    assert message.dtype == jnp.bfloat16
    assert explain(message).startswith("v * [spmm(sum) of u weighted by (e * e)")
    fused, plain = jax.jit(lambda: [gather(message, fuse=fuse) for fuse in (True, False)])()
    assert fused.dtype == plain.dtype == jnp.bfloat16
    close(fused, plain, 2**-6)


def test_functions_of_one_s_own_are_told_by_what_they_compute(graph):
    """And those that only look alike stay what they are."""
    s = symbolic(graph, operands())
    column = linear(concat(s.y, s.x), s.ends)
    weights, score = segment_normalize(column), dot(s.x, s.y)
    slope = jnp.float32(0.2)

    def attention(function, edges=column):
        return explain(segment_normalize(apply_edge(function, edges)) * s.x).splitlines()[0]

    for function in (
        jax.nn.leaky_relu,
        functools.partial(jax.nn.leaky_relu, negative_slope=0.3),
        jax.jit(lambda e: jnp.where(e > 0, e, 0.2 * e)),
        lambda e: jax.nn.leaky_relu(jnp.squeeze(e, -1)),
        lambda e: e[:, 0],
        lambda e: e.reshape(-1),
    ):
        assert attention(function) == "gat_attention of u"
    for function in (
        lambda e: jax.nn.leaky_relu(e, -0.2),  # -inf would no longer mask
        lambda e: jnp.where(e > 0, 0.2 * e, e),
        lambda e: jnp.where(e > 0.5, e, 0.2 * e),
        lambda e: jnp.where(e > 0, e, slope * e),  # an array by closure
        lambda e: jnp.abs(e),
        lambda e: jnp.stack([e[:, 0], e[:, 0]], 1)[:, 0],
    ):
        assert attention(function).startswith("spmm(sum) of u weighted by softmax(")
    for function in (jnp.exp, lambda e: jnp.exp(jax.nn.leaky_relu(e[:, 0], 0.1))):
        shares = segment_normalize(apply_edge(function, column), "sum")
        assert explain(shares * s.x).startswith("gat_attention of u")
    head = {
        "gat_attention of u": lambda a, x: x * a,
        "reference": lambda a, x: a * x + x,
    }
    for planned, function in head.items():
        assert explain(apply_edge(function, weights, s.x)).startswith(planned)
    assert "dot_attention of u" in explain(
        apply_edge(lambda a, x: a[:, None] * x, segment_normalize(score), s.x)
    )
    one = dot(leaky_relu(linear(s.x, s.wide) + linear(s.y, s.wide)), s.column[:, 0])
    for scores in (one, apply_edge(lambda e: e.squeeze(-1), linear(leaky_relu(
        linear(s.x, s.wide) + linear(s.y, s.wide)), s.column))):  # fmt: skip
        text = explain(segment_normalize(scores) * linear(s.x, s.wide)).splitlines()
        assert text == [
            "gatv2_attention of linear(u)",
            "  on the nodes: linear(u), linear(v)",
            "  in backward the kernel recomputes: scores, softmax",
        ]
    # Weights of the last axis are none of the first, however many there are of both.
    square = apply_edge(lambda x: x[:, :, None] * jnp.ones_like(x)[:, None], s.x)
    for axis, planned in ((1, "reference: <lambda>(v, <lambda>(u))"), (2, "sum over kernels of")):
        message = apply_edge(
            lambda w, x, axis=axis: (jnp.expand_dims(w, axis) * x).sum(1), s.y, square
        )
        assert explain(message).startswith(planned)


@pytest.mark.parametrize(
    "function",
    [
        lambda w, x: jnp.sum(w[:, :, None] * x, axis=1).astype(jnp.int32).astype(x.dtype),
        lambda w, x: jnp.sum((w[:, :, None] * x).astype(jnp.int32).astype(x.dtype), axis=1),
        lambda w, x: jnp.sum((w[:, :, None] * x).astype(jnp.bfloat16).astype(x.dtype), axis=1),
        lambda w, x: jnp.sum(w[:, :, None] * jnp.broadcast_to(x, (*x.shape[:2], 5)), axis=1),
    ],
)
def test_a_function_keeps_what_it_rounds_and_broadcasts(function, graph):
    """It would else be told to be `weighted_sum`."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(graph.num_senders, 3)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(graph.num_senders, 3, 1)) * 9, jnp.float32)
    out = gather(apply_edge(function, scatter(graph, w), scatter(graph, x)))
    expected = gather(scatter(graph, function(w, x)))
    assert out.shape == expected.shape
    close(out, expected, 1e-5)
