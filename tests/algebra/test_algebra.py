"""The algebra of message passing: which operation runs, and that it is the same as on the edges."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, edge_conv
from jaxgnn.algebra import (
    EDGES,
    NODES,
    aggregate,
    apply_edge,
    apply_vertex,
    concat,
    dot,
    dropout,
    edge_values,
    evaluate,
    explain,
    gather,
    gaussian,
    leaky_relu,
    linear,
    recompute_edges,
    scatter,
    segment_normalize,
    weighted_sum,
)
from jaxgnn.nn import GATConv
from jaxgnn.ops._core import dropout_mask
from tests.support.oracle import close, draw_array, edges
from tests.support.paths import ROOT
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(2)]

SENDERS, RECEIVERS, NUM_EDGES, WIDTH, HEADS = 9, 7, 41, 4, 2
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def graph():
    """Rectangular, with repeated edges and a receiver without."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(SENDERS, size=NUM_EDGES), rng.integers(6, size=NUM_EDGES)
    return Graph.from_edges(senders, receivers, num_senders=SENDERS, num_receivers=RECEIVERS)


def operands():
    rng = np.random.default_rng(1)
    shapes = {
        "x": (SENDERS, WIDTH),
        "y": (RECEIVERS, WIDTH),
        "h": (SENDERS, HEADS, 3),
        "p": (SENDERS, HEADS),
        "q": (RECEIVERS, HEADS),
        "w": (NUM_EDGES,),
        "z": (NUM_EDGES, WIDTH),
        "b": (NUM_EDGES, HEADS),
        "narrow": (2 * WIDTH, 3),
        "wide": (WIDTH, 6),
        "bias": (3,),
        "r": (RECEIVERS, HEADS, 3),
        "ends": (2 * WIDTH, 1),
        "column": (6, 1),
        "one": (1,),
        "head_ends": (HEADS, 6),
        "att": (HEADS, 3),
        "mu": (HEADS, 3),
        "inv": (HEADS, 3),
        "centers": (3, WIDTH),
        "scales": (3, WIDTH),
    }
    return {name: draw_array(rng, shape, "float32") for name, shape in shapes.items()}


def symbolic(graph, arrays):
    """The operands as values on edges: of the senders, the receivers, the edges."""
    given = dict(arrays)
    ends = {"x": "u", "h": "u", "p": "u", "y": "v", "q": "v", "r": "v"}
    for name, array in arrays.items():
        if name in ends:
            given[name] = scatter(graph, **{ends[name]: array})
        elif name in "wzb":
            given[name] = edge_values(graph, array)
    return SimpleNamespace(**given)


def dense(graph, arrays):
    """The same in NumPy: a float64 row for each edge."""
    senders, receivers = edges(graph)
    given = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    given |= {name: given[name][senders] for name in "xhp"}
    given |= {name: given[name][receivers] for name in "yqr"}
    return SimpleNamespace(**given, receivers=receivers)


def reduced(graph, messages, reduce):
    out = np.zeros((graph.num_receivers, *messages.shape[1:]))
    receivers = edges(graph)[1]
    for row in np.unique(receivers):
        out[row] = getattr(np, reduce)(messages[receivers == row], axis=0)
    return out


def softmax(scores, receivers):
    out = np.exp(scores)
    for row in np.unique(receivers):
        out[receivers == row] /= out[receivers == row].sum(axis=0)
    return out


def leaky(x, slope=0.2):
    return np.where(x > 0, x, slope * x)


def gaussians(places, mu, inv):
    return np.exp(-0.5 * (((places[:, None] - mu) * inv) ** 2).sum(-1))


def attention(s, leave_out=False):
    scores = segment_normalize(leaky_relu(s.p - s.q + s.b, 0.1))
    return (dropout(scores, 0.4, KEY) if leave_out else scores) * s.h


def dense_attention(d):
    scores = d.p - d.q + d.b
    return softmax(leaky(scores, 0.1), d.receivers)[..., None] * d.h


def gat_as_written(s):
    """Velickovic et al., equation 3, of one head: the column's axis of 1 stays."""
    return segment_normalize(leaky_relu(linear(concat(s.y, s.x), s.ends, s.one))) * s.x


def gat_by_functions(s):
    """The same with the axis squeezed, the LeakyReLU and the message in functions of one's own."""
    scores = apply_edge(lambda e: jax.nn.leaky_relu(e, 0.2), linear(concat(s.y, s.x), s.ends))
    weights = apply_edge(lambda a: a[..., 0], dropout(segment_normalize(scores), 0.4, KEY))
    return apply_edge(lambda a, x: a[:, None] * x, weights, s.x)


def dense_gat_by_functions(d):
    scores = leaky(np.concatenate([d.y, d.x], 1) @ d.ends)
    return mask()[:, :1] * softmax(scores, d.receivers) * d.x


def gat_heads_as_written(s):
    return segment_normalize(leaky_relu(dot(concat(s.r, s.h), s.head_ends))) * s.h


def gatv2(s):
    scores = dot(leaky_relu(s.h + s.r), s.att)
    return dropout(segment_normalize(0.5 * scores + s.b), 0.4, KEY) * s.h


def dense_gatv2(d):
    scores = 0.5 * (leaky(d.h + d.r) * d.att).sum(-1) + d.b
    return mask()[..., None] * softmax(scores, d.receivers)[..., None] * d.h


def gatv2_of_one_head(s):
    """Keys and values are one projection, written twice."""
    ends = linear(s.x, s.wide) + linear(s.y, s.wide)
    weights = segment_normalize(linear(leaky_relu(ends), s.column, s.one))
    return weights * linear(s.x, s.wide)


def dense_gatv2_of_one_head(d):
    scores = leaky(d.x @ d.wide + d.y @ d.wide) @ d.column + d.one
    return softmax(scores, d.receivers) * (d.x @ d.wide)


def monet(s):
    places = apply_edge(jnp.tanh, linear(concat(s.y, s.x), s.narrow, s.bias))
    return weighted_sum(gaussian(places, s.mu, s.inv), s.h)


def dense_monet(d):
    places = np.tanh(np.concatenate([d.y, d.x], 1) @ d.narrow + d.bias)
    return (gaussians(places, d.mu, d.inv)[..., None] * d.h).sum(1)


def divided(weights, d, reduce):
    out = np.array(weights)
    for row in np.unique(d.receivers):
        out[d.receivers == row] /= getattr(np, reduce)(out[d.receivers == row], axis=0)
    return out


@functools.cache
def mask():
    def kept():
        words, drop_below = dropout_mask.key_words(KEY), dropout_mask.threshold(0.4)
        return dropout_mask.keep_factors(words, 0, NUM_EDGES, HEADS, drop_below, "float32")

    return np.asarray(jax.jit(kept)(), np.float64)


# Reductions, what is planned, the expression, and the messages in NumPy.
CASES = {
    "copy": (("sum", "min"), "spmm({}) of u", lambda s: s.x, lambda d: d.x),
    "weights": (
        ("mean", "max"),
        "spmm({}) of u weighted by e",
        lambda s: s.x * s.w,
        lambda d: d.x * d.w[:, None],
    ),
    "heads": (
        ("sum",),
        "spmm(sum) of (0.5 * u) weighted by e",
        lambda s: 0.5 * (s.b * s.h),
        lambda d: 0.5 * d.b[..., None] * d.h,
    ),
    "entries": (("sum",), "spmm(sum) of u weighted by e", lambda s: s.z * s.x, lambda d: d.z * d.x),
    "one end": (
        ("max",),
        "spmm(max) of tanh((2.0 * u))",
        lambda s: apply_edge(jnp.tanh, 2.0 * s.x),
        lambda d: np.tanh(2 * d.x),
    ),
    "difference": (
        ("sum", "mean", "max", "min"),
        "edge_conv({}) of (u - v)",
        lambda s: s.x - s.y,
        lambda d: d.x - d.y,
    ),
    "receivers": (("sum", "max"), "on the nodes: (-1 * v)", lambda s: -s.y, lambda d: -d.y),
    "edge_conv": (
        ("max",),
        "edge_conv(max) of (linear(v) + linear(u))",
        lambda s: linear(concat(s.y, s.x - s.y), s.narrow, s.bias),
        lambda d: np.concatenate([d.y, d.x - d.y], 1) @ d.narrow + d.bias,
    ),
    "postponed": (
        ("mean",),
        "linear of [edge_conv(mean) of (u - v)]",
        lambda s: linear(s.x - s.y, s.wide),
        lambda d: (d.x - d.y) @ d.wide,
    ),
    "gated": (
        ("sum",),
        "v * [spmm(sum) of u weighted by e]",
        lambda s: s.y * (s.w * s.x),
        lambda d: d.y * d.w[:, None] * d.x,
    ),
    "terms": (
        ("sum",),
        "[spmm(sum) of u weighted by e] - [on the nodes: v] + [segment_reduce(sum) of e]",
        lambda s: s.w * s.x - s.y + s.z,
        lambda d: d.w[:, None] * d.x - d.y + d.z,
    ),
    "attention": (("sum",), "gat_attention of u", attention, dense_attention),
    "dropout": (
        ("sum",),
        "gat_attention of u",
        lambda s: attention(s, leave_out=True),
        lambda d: mask()[..., None] * dense_attention(d),
    ),
    "dot attention": (
        ("sum",),
        "dot_attention of u",
        lambda s: segment_normalize(0.5 * dot(s.x, s.y) + s.w) * s.x,
        lambda d: softmax(0.5 * (d.x * d.y).sum(1) + d.w, d.receivers)[:, None] * d.x,
    ),
    "mean of an attention": (
        ("mean",),
        "[gat_attention of u] / degree",
        attention,
        dense_attention,
    ),
    "GAT as written": (
        ("sum",),
        "gat_attention of u",
        gat_as_written,
        lambda d: softmax(leaky(np.concatenate([d.y, d.x], 1) @ d.ends + d.one), d.receivers) * d.x,
    ),
    "GAT by functions": (
        ("sum",),
        "gat_attention of u",
        gat_by_functions,
        dense_gat_by_functions,
    ),
    "GAT's heads as written": (
        ("sum",),
        "gat_attention of u",
        gat_heads_as_written,
        lambda d: (
            softmax(leaky((np.concatenate([d.r, d.h], -1) * d.head_ends).sum(-1)), d.receivers)[
                ..., None
            ]
            * d.h
        ),
    ),
    "GATv2": (("sum",), "gatv2_attention of u", gatv2, dense_gatv2),
    "GATv2 of one head": (
        ("sum",),
        "gatv2_attention of linear(u)",
        gatv2_of_one_head,
        dense_gatv2_of_one_head,
    ),
    "MoNet": (
        ("sum", "mean"),
        "gaussian_spmm({}) of u under gaussian(tanh((linear(v) + linear(u))))",
        monet,
        dense_monet,
    ),
    "Gaussians of the edges": (
        ("mean",),
        "gaussian_spmm(mean) of <lambda>(u) under gaussian(e)",
        lambda s: gaussian(s.z, s.centers, s.scales) * apply_edge(lambda x: x[:, None], s.x),
        lambda d: gaussians(d.z, d.centers, d.scales)[..., None] * d.x[:, None],
    ),
    "weights by kernel": (
        ("sum",),
        "sum over kernels of [spmm(sum) of u weighted by e]",
        lambda s: apply_edge(lambda w, x: (w[..., None] * x).sum(1), s.b, s.h),
        lambda d: (d.b[..., None] * d.h).sum(1),
    ),
    "normalized by the mean": (
        ("sum",),
        "[spmm(sum) of u weighted by exp(e), recomputed in backward] / "
        "[segment_reduce(mean) of exp(e), recomputed in backward]",
        lambda s: segment_normalize(apply_edge(jnp.exp, s.w), "mean") * s.x,
        lambda d: divided(np.exp(d.w), d, "mean")[:, None] * d.x,
    ),
    "normalized by the minimum": (
        ("mean",),
        "[spmm(mean) of (exp(u) * u)] / [spmm(min) of exp(u)]",
        lambda s: segment_normalize(apply_edge(jnp.exp, s.p), "min") * s.h,
        lambda d: divided(np.exp(d.p), d, "min")[..., None] * d.h,
    ),
    "weights of an expression": (
        ("sum",),
        "spmm(sum) of u weighted by dot(u, v), recomputed in backward",
        lambda s: dot(s.x, s.y) * s.x,
        lambda d: (d.x * d.y).sum(1, keepdims=True) * d.x,
    ),
    "shares": (
        ("sum",),
        "segment_reduce(sum) of normalize by sum((2 + e)), recomputed in backward",
        lambda s: segment_normalize(2 + s.w, "sum"),
        lambda d: divided(2 + d.w, d, "sum"),
    ),
    "any function": (
        ("max",),
        "reference: relu((linear(u) + linear(e))) on the edges, segment_reduce(max), "
        "recomputed in backward",
        lambda s: apply_edge(jax.nn.relu, linear(concat(s.x, s.z), s.narrow)),
        lambda d: np.maximum(np.concatenate([d.x, d.z], 1) @ d.narrow, 0),
    ),
}


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


def residuals(function, *arguments):
    """Shapes of what backward keeps, integers aside."""
    pullback = jax.eval_shape(lambda *arguments: jax.vjp(function, *arguments)[1], *arguments)
    leaves = jax.tree.leaves(pullback)
    return [leaf.shape for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def test_what_no_rule_fits_keeps_nothing_on_the_edges(graph):
    x, z = (operands()[name] for name in "xz")

    def layer(x, recompute=True):
        u = scatter(graph, apply_vertex(jnp.tanh, x))
        message = apply_edge(jnp.exp, apply_edge(jnp.sin, u + edge_values(graph, z)))
        return gather(message, "max", recompute=recompute)

    on_edges = (NUM_EDGES, WIDTH)
    assert residuals(layer, x).count(on_edges) == 1  # z, which was given
    assert residuals(lambda x: layer(x, recompute=False), x).count(on_edges) > 1
    # Under a checkpoint of the user's own the names decide.
    names = jax.checkpoint_policies.save_only_these_names(EDGES, NODES)
    kept = {
        policy: residuals(jax.checkpoint(layer, policy=policy), x)
        for policy in (recompute_edges, names)
    }
    assert kept[recompute_edges].count(on_edges) == 1
    assert (SENDERS, WIDTH) in kept[recompute_edges]  # apply_vertex's, beside the argument
    assert kept[names].count(on_edges) > 1


def test_what_costs_much_to_recompute_is_kept(graph):
    """A product with a matrix is, elementwise functions of it are not."""
    wide, rng = 16, np.random.default_rng(5)
    rows = {"x": SENDERS, "y": RECEIVERS, "z": NUM_EDGES, "kernel": wide}
    arrays = {n: draw_array(rng, (size, wide), "float32") for n, size in rows.items()}
    mlp = nnx.Sequential(
        nnx.Linear(wide, wide, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(wide, wide, rngs=nnx.Rngs(1))
    )

    def projected(arrays):
        u, z = scatter(graph, arrays["x"]), edge_values(graph, arrays["z"])
        return apply_edge(jnp.tanh, linear(apply_edge(jnp.sin, u + z), arrays["kernel"]))

    def by_module(arrays):
        return apply_edge(jnp.sin, apply_edge(mlp, projected(arrays)))

    def by_dot(arrays):
        u, v = scatter(graph, arrays["x"], arrays["y"])
        return apply_edge(jnp.tanh, dot(u, v)) * edge_values(graph, arrays["z"])

    def kept(expression, **options):
        """Values on the edges, beside `z`."""
        shapes = residuals(lambda arrays: gather(expression(arrays), "max", **options), arrays)
        return sum(shape[:1] == (NUM_EDGES,) for shape in shapes) - 1

    size = 4 * NUM_EDGES * wide
    assert kept(projected) == 1
    assert [kept(projected, budget=budget) for budget in (0, size - 1, size)] == [0, 0, 1]
    assert kept(projected, budget=100 * size) > 1
    assert kept(projected, recompute=True) == 0
    assert kept(projected, recompute=False) > 1
    assert kept(by_module) == 3
    assert kept(by_dot) == 1
    text = explain(projected(arrays), "max").splitlines()
    assert text[1:] == [
        "  kept if a derivative needs it: linear(sin((u + e))), 2,624 bytes, 8 operations a byte"
    ]
    assert explain(projected(arrays), "max", budget=8).splitlines()[1:] == [
        "  within a budget of 8 bytes"
    ]

    @jax.jit
    def gradients(arrays):
        def of(**options):
            def loss(arrays):
                return jnp.sum(jnp.sin(gather(by_module(arrays), "max", **options)))

            return jax.grad(loss)(arrays)

        return of(), of(recompute=False)

    for ours, stored in zip(*map(jax.tree.leaves, gradients(arrays)), strict=True):
        close(ours, stored)


def test_transformations_of_what_no_rule_fits(graph):
    """A batch, and the gradient of a gradient; also of a learned module on the edges."""
    x, z = (operands()[name] for name in "xz")
    mlp = nnx.Linear(WIDTH, 3, rngs=nnx.Rngs(0))

    def layer(x, z, impl=None, recompute=True):
        messages = apply_edge(mlp, apply_edge(jnp.sin, scatter(graph, x) + edge_values(graph, z)))
        return gather(messages, recompute=recompute, impl=impl)

    def twice(x, **options):
        def loss(x):
            return jnp.sum(jnp.sin(layer(x, z, **options)))

        return jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(x)

    batch = jnp.stack([x, 2 * x])
    ours = jax.jit(lambda x: (jax.vmap(layer, (0, None))(batch, z), twice(x)))(x)
    plain = jax.jit(
        lambda x: (
            jnp.stack([layer(x, z, impl="jax", recompute=False) for x in batch]),
            twice(x, impl="jax", recompute=False),
        )
    )(x)
    for a, b in zip(ours, plain, strict=True):
        close(a, b, 1e-5)


class Attention(nnx.Module):
    """GATConv's equation with edge features, in the algebra."""

    def __init__(self, of: GATConv):
        self.of = of

    def __call__(self, graph, x, z):
        conv = self.of
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


def test_values_on_the_edges(graph):
    s = symbolic(graph, operands())
    d = dense(graph, operands())
    close(evaluate(dot(s.y, s.x)), (d.x * d.y).sum(1))
    lowered = jax.jit(lambda x, y: evaluate(dot(*scatter(graph, x, y)))).lower(
        *map(operands().get, "xy")
    )
    assert "@jaxgnn_sddmm" in lowered.as_text()
    close(
        evaluate(segment_normalize(s.b * s.b, "max"), recompute=False),
        d.b**2 / reduced(graph, d.b**2, "max")[d.receivers],
    )


def test_aggregate_is_the_three_in_one(graph):
    arrays = operands()
    x, y, w = (arrays[name] for name in "xyw")
    close(aggregate(graph, x, y, message=lambda u, v: u - v, reduce="max"), edge_conv(graph, x, -y))
    d = dense(graph, arrays)
    out = aggregate(graph, x, e=w, message=lambda u, e: e * u, fuse=False)
    close(out, reduced(graph, d.w[:, None] * d.x, "sum"))
    close(aggregate(graph, x), reduced(graph, d.x, "sum"))


def test_without_edges_or_nodes():
    for nodes in (3, 0):
        lonely = Graph.from_edges([], [], num_nodes=nodes)
        u, v = scatter(lonely, jnp.ones((nodes, 2)), jnp.ones((nodes, 2)))
        messages = (u, u - v, segment_normalize(u) * u, apply_edge(jnp.sin, u * v))
        for out in jax.jit(lambda messages=messages: [gather(message) for message in messages])():
            np.testing.assert_array_equal(out, np.zeros((nodes, 2)))


def bad_calls():
    graph, other = (skewed_graph(4, 9, seed=seed) for seed in range(2))
    x, z = jnp.ones((4, 3)), jnp.ones((9, 3))
    u, half = scatter(graph, x), edge_values(graph, z.astype(jnp.bfloat16))
    return {
        "graph": (lambda: scatter(x, x), TypeError, "graph: expected a jaxgnn.Graph"),
        "u": (lambda: scatter(graph, z), ValueError, r"u: .*\(4, ...\).* got \(9, 3\)"),
        "neither": (lambda: scatter(graph), ValueError, "u, v: .* got neither"),
        "values": (lambda: edge_values(graph, x), ValueError, r"values: .*\(9, ...\).*\(4, 3\)"),
        "two graphs": (lambda: u + scatter(other, x), ValueError, "one graph, got two"),
        "array": (lambda: u * z, TypeError, "got ArrayImpl: wrap an array .* edge_values"),
        "numpy": (lambda: np.ones((9, 3)) * u, TypeError, "got ndarray: wrap an array"),
        "no array": (lambda: np.asarray(u), TypeError, "applies a function"),
        "dtypes": (lambda: u + half, TypeError, "equal dtypes"),
        "reduce": (lambda: gather(u, "median"), ValueError, "reduce: .* got 'median'"),
        "impl": (lambda: explain(u, impl="cuda"), ValueError, "impl"),
        "recompute": (lambda: gather(u, recompute="all"), ValueError, "recompute: .* got 'all'"),
        "budget": (lambda: gather(u, budget=-1), ValueError, "budget: .* got -1"),
        "budget alone": (lambda: gather(u, recompute=True, budget=1), ValueError, "budget: .*True"),
        "vector": (lambda: dot(u, jnp.ones(4)), ValueError, r"dot: .*\(3,\) of a row, got \(4,\)"),
        "gaussian": (lambda: gaussian(u, x[:, :2], x[:, :2]), ValueError, r"mu: .*\(4, 2\)"),
        "inv_sigma": (lambda: gaussian(u, x, x[:3]), ValueError, r"inv_sigma: .*\(4, 3\)"),
        "kernels": (
            lambda: weighted_sum(u, edge_values(graph, z[:, :2])),
            ValueError,
            r"weighted_sum: .*\(3,\) and \(2,\)",
        ),
        "gather": (lambda: gather(x), TypeError, "edges: expected values on edges"),
        "method": (lambda: segment_normalize(u, "std"), ValueError, "method: .* got 'std'"),
        "kernel": (lambda: linear(u, x), ValueError, r"kernel: .*\(3, out_features\)"),
        "bias": (lambda: linear(u, jnp.ones((3, 2)), jnp.ones(3)), ValueError, r"bias: .*\(2,\)"),
        "concat": (lambda: concat(u, edge_values(graph, z[:, 0])), ValueError, "concat: .*last"),
        "dot": (lambda: dot(u, edge_values(graph, z[:, :2])), ValueError, "dot: expected equal"),
        "no function": (lambda: apply_edge(u, u), TypeError, "function: expected a function"),
        "rows": (lambda: apply_edge(lambda x: x[:3], u), ValueError, "apply_edge: expected a row"),
        "closure": (lambda: apply_edge(lambda x: x + z, u), TypeError, "any number of them|shapes"),
        "key": (lambda: dropout(u, 0.5), ValueError, "dropout_rng: expected a JAX key"),
        "aggregate": (lambda: aggregate(graph), ValueError, "u, v, e: expected at least one"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_calls(name):
    call, error, message = bad_calls()[name]
    with pytest.raises(error, match=message):
        call()


def test_the_snippets_of_the_documentation_run():
    text = (ROOT / "docs" / "algebra.md").read_text()
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(snippet, "docs/algebra.md", "exec"), names)
    assert names["y"].shape == (4, 8)
