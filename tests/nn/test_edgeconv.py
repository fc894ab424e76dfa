"""The edge convolutions against a float64 formula on the edges."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, knn_graph
from jaxgnn.nn import MLP, DynamicEdgeConv, EdgeConv
from tests.support import oracle
from tests.support.arrays import normal
from tests.support.oracle import edges
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

NODES, EDGES, WIDTH, OUT = 12, 60, 3, 5
REDUCE = {"max": np.max, "mean": np.mean, "sum": np.sum}


def make(in_features=WIDTH, out_features=OUT, **options):
    return EdgeConv(in_features, out_features, rngs=nnx.Rngs(0), **options)


def perceptron(hidden=7, **options):
    return MLP([2 * WIDTH, hidden, OUT], activation=jnp.tanh, rngs=nnx.Rngs(1), **options)


CALL = nnx.jit(lambda conv, *arguments: conv(*arguments))


def on_edges(graph, x, function, aggr):
    """The layer edge by edge; `function` is of the rows [x_i, x_j - x_i] in float64."""
    senders, receivers = edges(graph)
    source, target = x if isinstance(x, tuple) else (x, x)
    own, others = np.asarray(target, np.float64)[receivers], np.asarray(source, float)[senders]
    messages = function(np.concatenate([own, others - own], axis=-1))
    out = np.zeros((graph.num_receivers, *messages.shape[1:]))
    for row in np.unique(receivers):
        out[row] = REDUCE[aggr](messages[receivers == row], axis=0)
    return out


def linear_map(layer):
    kernel = np.asarray(layer.kernel[...], np.float64)
    bias = 0.0 if layer.bias is None else np.asarray(layer.bias[...], np.float64)
    return lambda rows: rows @ kernel + bias


def close(actual, expected, tolerance=2e-6):
    oracle.close(actual, expected, tolerance)


@pytest.mark.parametrize("aggr", REDUCE)
def test_a_product_is_the_formula_on_the_edges(aggr):
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    conv = make(aggr=aggr, use_bias=aggr != "mean")
    assert conv.linear.kernel.shape == (2 * WIDTH, OUT)
    close(CALL(conv, graph, x), on_edges(graph, x, linear_map(conv.linear), aggr))


@pytest.mark.parametrize("aggr", ["max", "sum"])
@pytest.mark.parametrize("kind", ["mlp", "linear", "one layer"])
def test_modules_on_the_edges(kind, aggr):
    """An MLP, whose first layer is hoisted to the nodes; any module; an MLP of one layer."""
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    if kind == "mlp":
        module = perceptron()
        first, second = map(linear_map, module.linears)
        function = lambda rows: second(np.tanh(first(rows)))  # noqa: E731
    elif kind == "linear":
        module = nnx.Linear(2 * WIDTH, OUT, rngs=nnx.Rngs(1))
        function = linear_map(module)
    else:
        module = MLP([2 * WIDTH, OUT], rngs=nnx.Rngs(1))
        function = linear_map(module.linears[0])
    conv = make(aggr=aggr, mlp=module)
    assert conv.linear is None
    close(CALL(conv, graph, x), on_edges(graph, x, function, aggr))


def test_pairs_and_further_axes():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(
        rng.integers(9, size=30), rng.integers(6, size=30), num_senders=9, num_receivers=7
    )
    pair = normal(9, 2, WIDTH), normal(7, 2, WIDTH, seed=1)
    for conv in (make(), make(mlp=perceptron())):
        out = CALL(conv, graph, pair)
        assert out.shape == (7, 2, OUT)
        close(out[:, 1], CALL(conv, graph, (pair[0][:, 1], pair[1][:, 1])))
    expected = on_edges(graph, pair, linear_map(make().linear), "max")
    close(CALL(make(), graph, pair), expected)


def shapes_kept(conv, graph, x):
    """The shapes of what is kept between the passes."""
    graphdef, params, rest = nnx.split(conv, nnx.Param, ...)

    def run(params, x):
        return nnx.merge(graphdef, params, rest, copy=True)(graph, x)

    _, pullback = jax.eval_shape(lambda *operands: jax.vjp(run, *operands), params, x)
    return [leaf.shape for leaf in jax.tree.leaves(pullback)]


@pytest.mark.parametrize("kind", ["linear_map", "mlp", "linear"])
def test_nothing_of_the_edges_size_is_kept(kind):
    graph, x = skewed_graph(NODES, 61), normal(NODES, WIDTH)
    mlp = {"mlp": perceptron, "linear": lambda: nnx.Linear(2 * WIDTH, OUT, rngs=nnx.Rngs(1))}
    conv = make(mlp=mlp[kind]() if kind in mlp else None)
    wide = [shape for shape in shapes_kept(conv, graph, x) if len(shape) > 1]
    assert wide and not any(shape[0] == 61 for shape in wide)
    if kind == "linear_map":  # nor is it formed
        gradient = jax.grad(lambda x: jnp.sum(conv(graph, x) ** 2))
        text = jax.jit(lambda x, graph: gradient(x)).lower(x, graph).as_text()
        assert not re.search(r"tensor<61x\d+x?\w*f32>", text)


def test_batch_statistics_and_dropout_pass_through_the_recomputation():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    module = MLP([2 * WIDTH, 7, OUT], norm="batch", dropout=0.5, rngs=nnx.Rngs(1))
    conv = make(mlp=module)

    @nnx.jit
    def step(conv, graph, x):
        return nnx.value_and_grad(lambda conv: jnp.sum(conv(graph, x) ** 2))(conv)

    before = np.asarray(module.norms[0].mean[...])
    first, gradient = step(conv, graph, x)
    assert not np.allclose(before, module.norms[0].mean[...])
    assert step(conv, graph, x)[0] != first  # another mask
    assert all(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(gradient.mlp.linears[1]))
    conv.eval()
    assert step(conv, graph, x)[0] == step(conv, graph, x)[0]


def modules():
    """What may be the module on the edges, in the state in which it sets nothing."""
    first, second = (nnx.Linear(*w, rngs=nnx.Rngs(1)) for w in ((2 * WIDTH, 7), (7, OUT)))
    return {
        "mlp": perceptron(),
        "statistics": perceptron(norm="batch", dropout=0.5),
        "sequential": nnx.Sequential(first, jnp.tanh, second),
    }


@pytest.mark.system
@pytest.mark.parametrize("kind", ["mlp", "statistics", "sequential"])
def test_modules_under_transformations_of_jax(kind):
    """Which close over the module, or merge it where they are: it is whole after each."""
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    conv = make(mlp=modules()[kind])
    conv.eval()
    before = jax.tree.leaves(nnx.state(conv))
    expected = CALL(conv, graph, x)
    graphdef, state = nnx.split(conv)

    def loss(x, conv=conv):
        return jnp.sum(conv(graph, x) ** 2)

    def merged(x, state=state):
        return loss(x, nnx.merge(graphdef, state))

    gradient = nnx.grad(loss)(x)
    for of in (loss, merged):
        close(jax.jit(jax.grad(of))(x), gradient, 1e-5)
    close(jax.grad(loss)(x), gradient, 1e-5)
    close(jax.jit(lambda x: conv(graph, x))(x), expected)
    close(jax.vmap(lambda x: conv(graph, x))(x[None])[0], expected)
    close(jax.lax.map(lambda x: conv(graph, x), x[None])[0], expected)
    close(conv(graph, x), expected)
    after = jax.tree.leaves(nnx.state(conv))
    assert all(jnp.all(a == b) for a, b in zip(after, before, strict=True))


def test_variables_advance_once_a_call():
    """The running statistics and the counts of random streams, with and without `nnx.jit`."""
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    convs = [make(mlp=perceptron(norm="batch", dropout=0.5)) for _ in range(2)]
    outs = [(CALL if i else EdgeConv.__call__)(conv, graph, x) for i, conv in enumerate(convs)]
    close(*outs)
    for conv in convs:
        assert conv.mlp.dropout.rngs.count[...] == 1
        nnx.grad(lambda conv: jnp.sum(conv(graph, x) ** 2))(conv)
        assert conv.mlp.dropout.rngs.count[...] == 2
    close(*(conv.mlp.norms[0].var[...] for conv in convs))
    assert not np.allclose(convs[0].mlp.norms[0].var[...], 1)


def test_low_precision():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    narrow, exact = make(dtype=jnp.bfloat16), make()
    out = CALL(narrow, graph, x)
    assert out.dtype == jnp.bfloat16 and narrow.linear.kernel.dtype == jnp.float32
    close(out, CALL(exact, graph, x), 16 * float(jnp.finfo(jnp.bfloat16).eps))


def test_initial_values_are_pytorch_s():
    conv = make(50, 400)
    for value in (conv.linear.kernel, conv.linear.bias):
        value = np.abs(np.asarray(value[...]))
        assert 0.98 * 0.1 < value.max() <= 0.1  # 1 / sqrt(2 * 50)


def test_dynamic_is_the_convolution_on_the_nearest_neighbors():
    x = normal(30, WIDTH)
    conv = DynamicEdgeConv(WIDTH, OUT, 4, rngs=nnx.Rngs(0))
    graph = jax.jit(lambda x: knn_graph(x, 4, loop=True))(x)
    assert np.asarray(graph.self_loops).all()  # each point is its own neighbor
    close(CALL(conv, x), CALL(conv.conv, graph, x))


@pytest.mark.parametrize("kind", ["linear_map", "mlp"])
def test_dynamic_clouds(kind):
    """Of one size and of any, with fewer points than neighbors: each is as it is alone."""
    mlp = perceptron() if kind == "mlp" else None
    conv = DynamicEdgeConv(WIDTH, OUT, 4, aggr="sum", mlp=mlp, rngs=nnx.Rngs(0))
    x = normal(16, WIDTH)
    close(CALL(conv, x.reshape(2, 8, WIDTH))[1], CALL(conv, x[8:]))
    out = CALL(conv, x, np.repeat(np.arange(3), [2, 6, 8]))
    close(out[8:], CALL(conv, x[8:]))
    close(out[:2], CALL(conv, x[:2]))


def test_without_edges_or_nodes():
    for conv in (make(), make(mlp=perceptron())):
        out = conv(Graph.from_edges([], [], num_nodes=3), normal(3, WIDTH))
        np.testing.assert_array_equal(out, np.zeros((3, OUT)))
        assert conv(Graph.from_edges([], [], num_nodes=0), normal(0, WIDTH)).shape == (0, OUT)


def bad_calls():
    graph, x, rngs = skewed_graph(NODES, EDGES), normal(NODES, WIDTH), nnx.Rngs(0)
    conv, dynamic = make(), DynamicEdgeConv(WIDTH, OUT, 4, rngs=rngs)
    new = functools.partial(EdgeConv, WIDTH, OUT, rngs=rngs)
    pair = normal(NODES, 2, WIDTH), x
    return {
        "graph": (lambda: conv(x, graph), TypeError, "graph: expected a jaxgnn.Graph"),
        "width": (lambda: conv(graph, x[:, 1:]), ValueError, r"x: .*\(12, ..., 3\)"),
        "half": (lambda: conv(graph, (x, None)), ValueError, r"x: EdgeConv expected x\[1\]"),
        "axes": (lambda: conv(graph, pair), ValueError, r"x\[1\]: .*\(2,\), got \(\)"),
        "weights": (lambda: conv(graph, x, jnp.ones(EDGES)), ValueError, "weights: EdgeConv"),
        "aggr": (lambda: new(aggr="min"), ValueError, "aggr: .* got 'min'"),
        "mlp": (lambda: new(mlp=jnp.tanh), TypeError, "mlp: expected an nnx.Module, got"),
        "mlp widths": (
            lambda: new(mlp=MLP([3, OUT], rngs=rngs)),
            ValueError,
            r"mlp: .*= 6 to out_features = 5, got the widths \(3, 5\)",
        ),
        "mlp in": (
            lambda: new(mlp=nnx.Linear(5, OUT, rngs=rngs)),
            ValueError,
            "mlp: expected one from 2 \\* in_features = 6, got one from 5",
        ),
        "sequence": (
            lambda: new(mlp=nnx.Sequential(nnx.Linear(4, OUT, rngs=rngs), jnp.tanh)),
            ValueError,
            "mlp: expected one from 2 \\* in_features = 6, got one from 4",
        ),
        "mlp out": (
            lambda: new(mlp=nnx.Linear(6, 4, rngs=rngs))(graph, x),
            ValueError,
            "mlp: expected one to out_features = 5, got 4",
        ),
        "integers": (
            lambda: dynamic(x.astype(jnp.int32)),
            TypeError,
            "x: expected float32, .* got int32",
        ),
        "k": (lambda: DynamicEdgeConv(3, 5, 0, rngs=rngs), ValueError, "k: expected at least 1"),
        "points": (lambda: dynamic(x[:, 1:]), ValueError, r"x: .*num_points, 3.*got \(12, 2\)"),
        "list": (lambda: dynamic([[1.0]]), TypeError, "x: expected an array, got list"),
    }


def test_bad_arguments():
    for name, (call, error, message) in bad_calls().items():
        with pytest.raises(error) as raised:
            call()
        assert re.search(message, str(raised.value)), f"{name}: {raised.value}"
