"""`MaxK` as an activation: against a dense model with masks, and under the transformations."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.nn import (
    GCN,
    GIN,
    GNN,
    MLP,
    MODELS,
    AGNNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphSAGE,
    MaxK,
    NodeMLP,
    SAGEConv,
    TransformerConv,
    annealed_k,
)
from jaxgnn.ops import CBSR, maxk

pytestmark = pytest.mark.few(1)

NODES, EDGES, WIDTH, HIDDEN, CLASSES, K = 30, 90, 6, 12, 3, 4
NAMES = ["gcn", "sage", "gin"]


def example(seed=0):
    """A graph without self-loops (repeated edges and isolated nodes it has), features, weights."""
    rng = np.random.default_rng(seed)
    senders = rng.integers(NODES - 2, size=EDGES)
    receivers = (senders + rng.integers(1, NODES - 2, size=EDGES)) % (NODES - 2)
    graph = Graph.from_edges(senders, receivers, num_nodes=NODES)
    return graph, rng.normal(size=(NODES, WIDTH)), rng.uniform(0.5, 2, EDGES)


def make(name, layers=4, hidden=HIDDEN, k=K, **options):
    options = {"activation": MaxK(k), "rngs": nnx.Rngs(0), **options}
    return MODELS[name](WIDTH, hidden, CLASSES, num_layers=layers, **options)


def single(example):
    return example[0], jnp.asarray(example[1], jnp.float32), jnp.asarray(example[2], jnp.float32)


def close(actual, expected, tolerance):
    def leaf(a, b):
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tolerance * scale)

    jax.tree.map(leaf, actual, expected)


# The dense model: matrices, masks, and JAX's own derivatives of them.


def masked(x, k):
    """The `k` largest entries of each row by a stable sort."""
    order = jnp.argsort(-x, axis=1, stable=True)[:, :k]
    mask = jnp.zeros_like(x).at[jnp.arange(len(x))[:, None], order].set(1)
    return x * mask


def dense_convolution(name, p, graph, x, weights):
    matrix = jnp.zeros((NODES, NODES), x.dtype).at[graph.receivers, graph.senders].add(weights)
    if name == "gcn":
        matrix += jnp.eye(NODES)
        scale = matrix.sum(axis=1) ** -0.5
        matrix = scale[:, None] * matrix * scale[None, :]
        return matrix @ x @ p["linear"]["kernel"] + p["linear"]["bias"]
    if name == "sage":
        degree = jnp.maximum(jnp.diff(graph.row_offsets), 1)[:, None]
        neighbors, root = p["linear_neighbors"], p["linear_root"]
        mean = matrix @ x / degree
        return mean @ neighbors["kernel"] + neighbors["bias"] + x @ root["kernel"]
    x = matrix @ x + x
    first, last = (p["nn"]["linears"][i] for i in range(2))
    return jax.nn.relu(x @ first["kernel"] + first["bias"]) @ last["kernel"] + last["bias"]


def dense_model(name, layers, options, p, graph, x, weights):
    activation = functools.partial(masked, k=K)
    if options.get("input_layer"):
        x = activation(x @ p["linear_in"]["kernel"] + p["linear_in"]["bias"])
    outputs = []
    for i in range(layers):
        before = x
        x = dense_convolution(name, p["convs"][i], graph, x, weights)
        if options.get("residual"):
            skip = p.get("skips", {}).get(i)
            x = x + (before if skip is None else before @ skip["kernel"])
        if i < layers - 1 or "jumping" in options:
            if "norm" in options:
                mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
                x = (x - mean) / jnp.sqrt(variance + 1e-5)
                x = x * p["norms"][i]["scale"] + p["norms"][i]["bias"]
            x = activation(x)
            outputs.append(x)
    if "jumping" not in options:
        return x
    joined = {
        "last": lambda: outputs[-1],
        "cat": lambda: jnp.concatenate(outputs, axis=1),
        "max": lambda: jnp.stack(outputs).max(axis=0),
    }[options["jumping"]]()
    return joined @ p["linear"]["kernel"] + p["linear"]["bias"]


def loss(outputs):
    return jnp.sum(outputs * jnp.cos(outputs))


def assert_equals_the_dense_model(name, dtype, tolerance, layers=4, unweighted=False, **options):
    graph, x, weights = example()
    weights = np.ones(EDGES) if unweighted else weights
    types = {"dtype": dtype, "param_dtype": dtype}
    graphdef, state = nnx.split(make(name, layers, **types, **options), nnx.Param, ...)[:2]

    def sparse(state, x, weights):
        model = nnx.merge(graphdef, state, nnx.State({}))
        out = model(graph, x, None if unweighted else weights)
        return loss(out), out

    def dense(p, x, weights):
        out = dense_model(name, layers, options, p, graph, x, weights)
        return loss(out), out

    arguments = state, jnp.asarray(x, dtype), jnp.asarray(weights, dtype)
    gradients, out = jax.jit(jax.grad(sparse, argnums=(0, 1, 2), has_aux=True))(*arguments)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), nnx.to_pure_dict(state))
        dense_gradient = jax.jit(jax.grad(dense, argnums=(0, 1, 2), has_aux=True))
        expected, value = dense_gradient(wide, x, weights)
    assert out.dtype == dtype
    close(out, value, tolerance)
    close(nnx.to_pure_dict(gradients[0]), expected[0], tolerance)
    close(gradients[1], expected[1], tolerance)
    if not unweighted:
        close(gradients[2], expected[2], tolerance)
        assert np.any(expected[2])


@pytest.mark.parametrize("name", NAMES)
def test_four_layers_equal_the_dense_float64_model(name):
    """Values; gradients of parameters, features and edge weights."""
    assert_equals_the_dense_model(name, jnp.float32, 3e-5)
    assert_equals_the_dense_model(name, jnp.float32, 3e-5, unweighted=True)


@pytest.mark.parametrize("name", NAMES)
def test_in_float64(name, x64):
    assert_equals_the_dense_model(name, jnp.float64, 1e-11)


@pytest.mark.parametrize(
    "options",
    [
        {"input_layer": True, "residual": True},
        {"norm": "layer", "jumping": "last"},
        {"jumping": "cat", "input_layer": True, "residual": True},
        {"jumping": "max"},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_options_equal_the_dense_float64_model(name, options, x64):
    assert_equals_the_dense_model(name, jnp.float64, 1e-10, layers=3, **options)


# What runs: sparse rows into every convolution of hidden rows.


class Recorder(nnx.Module):
    """A layer that notes what it is given."""

    accepts_sparse = True

    def __init__(self, before, after, *, log, **types):
        self.conv = SAGEConv(before, after, **types)
        self.log = log

    def __call__(self, graph, x, weights):
        self.log(x)
        return self.conv(graph, x, weights)


@pytest.mark.parametrize("input_layer", [False, True])
def test_every_convolution_of_hidden_rows_gets_sparse_ones(input_layer):
    graph, x, _ = single(example())
    seen = []
    model = GNN(
        WIDTH, HIDDEN, CLASSES, num_layers=4, conv=Recorder, log=seen.append, activation=MaxK(K),
        input_layer=input_layer, rngs=nnx.Rngs(0),
    )  # fmt: skip
    model(graph, x)
    kinds = [isinstance(rows, CBSR) for rows in seen]
    assert kinds == [input_layer, True, True, True]
    assert all(rows.values.shape == (NODES, K) and rows.width == HIDDEN for rows in seen[1:])


@pytest.mark.parametrize("conv", [GATConv, GATv2Conv, TransformerConv, AGNNConv])
def test_convolutions_of_attention_make_sparse_rows_dense(conv):
    graph, x, _ = single(example())
    rows = maxk(x, 2)
    layer = conv() if conv is AGNNConv else conv(WIDTH, CLASSES, rngs=nnx.Rngs(0))
    lowered = jax.jit(lambda rows: layer(graph, rows)).lower(rows).as_text()
    assert "@jaxgnn_cbsr_scatter" in lowered and "@jaxgnn_maxk_spmm" not in lowered
    np.testing.assert_array_equal(layer(graph, rows), layer(graph, rows.to_dense()))


@pytest.mark.parametrize("name", NAMES)
def test_no_dense_aggregation_of_hidden_rows(name, monkeypatch):
    graph, x, weights = single(example())
    model = make(name, input_layer=True, jumping="last")
    from jaxgnn.nn import _features

    def refuse(*arguments, **options):
        raise AssertionError("a dense aggregation")

    expected = model(graph, x, weights)
    monkeypatch.setattr(_features, "spmm", refuse)
    close(model(graph, x, weights), expected, 0)


def test_a_layer_that_knows_no_sparse_rows_gets_dense_ones():
    class Plain(nnx.Module):
        def __init__(self, before, after, **types):
            self.conv = GCNConv(before, after, **types)

        def __call__(self, graph, x, weights):
            assert isinstance(x, jax.Array)
            return self.conv(graph, x, weights)

    graph, x, weights = single(example())
    options = {"activation": MaxK(K)}
    plain = GNN(WIDTH, HIDDEN, CLASSES, num_layers=3, conv=Plain, rngs=nnx.Rngs(0), **options)
    close(plain(graph, x, weights), make("gcn", 3)(graph, x, weights), 1e-6)


@pytest.mark.parametrize("aggr", ["max", "min"])
def test_extrema_take_the_dense_form(aggr):
    graph, _, weights = single(example())
    conv = SAGEConv(HIDDEN, CLASSES, aggr=aggr, rngs=nnx.Rngs(0))
    rows = maxk(jnp.asarray(np.random.default_rng(1).normal(size=(NODES, HIDDEN)), "f"), K)
    close(conv(graph, rows, weights), conv(graph, rows.to_dense(), weights), 0)


CONVS = {
    "gcn": lambda a, b, **o: GCNConv(a, b, rngs=nnx.Rngs(0), **o),
    "sage": lambda a, b, **o: SAGEConv(a, b, rngs=nnx.Rngs(0), **o),
    "sage_sum": lambda a, b, **o: SAGEConv(a, b, aggr="sum", rngs=nnx.Rngs(0), **o),
    "sage_project": lambda a, b, **o: SAGEConv(a, b, project=True, rngs=nnx.Rngs(0), **o),
    "gin": lambda a, b, **o: GINConv(
        MLP([a, b, b], rngs=nnx.Rngs(0), **o), eps=0.5, train_eps=True, **o
    ),
}


@pytest.mark.parametrize("out_features", [3, 20])
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_take_sparse_rows(name, out_features):
    """On a graph with self-loops, with and without weights; both widths."""
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(NODES, size=(2, 200)), num_nodes=NODES)
    weights = jnp.asarray(rng.uniform(0.5, 2, 200), jnp.float32)
    rows = maxk(jnp.asarray(rng.normal(size=(NODES, HIDDEN)), jnp.float32), K)
    conv = CONVS[name](HIDDEN, out_features)

    @nnx.jit(static_argnames="dense")
    def values_and_gradients(conv, values, weights, dense):
        def call(values, weights):
            sparse = dataclasses.replace(rows, values=values)
            out = conv(graph, sparse.to_dense() if dense else sparse, weights)
            return loss(out), out

        return call(values, None)[1], jax.grad(call, (0, 1), has_aux=True)(values, weights)

    ours, through_dense = (
        values_and_gradients(conv, rows.values, weights, dense=dense) for dense in (False, True)
    )
    close(ours, through_dense, 1e-5)


def test_rectangular_graphs_take_a_sparse_half():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(
        rng.integers(20, size=80), rng.integers(9, size=80), num_senders=20, num_receivers=9
    )
    senders = maxk(jnp.asarray(rng.normal(size=(20, HIDDEN)), jnp.float32), K)
    receivers = jnp.asarray(rng.normal(size=(9, HIDDEN)), jnp.float32)
    for conv in (CONVS["sage"](HIDDEN, 3), CONVS["gin"](HIDDEN, 3), CONVS["gin"](HIDDEN, 20)):
        for other in (receivers, maxk(receivers, 2)):
            dense = other if isinstance(other, jax.Array) else other.to_dense()
            expected = conv(graph, (senders.to_dense(), dense))
            close(conv(graph, (senders, other)), expected, 1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", NAMES)
def test_low_precision(name, dtype):
    """The sparse path rounds where the dense one does: the same rows, the same sums."""
    graph, x, weights = single(example())
    model = make(name, dtype=dtype, residual=True)
    dense = make(name, dtype=dtype, residual=True, activation=lambda x: MaxK(K)(x))
    if name == "gin":
        dense = make(
            name, dtype=dtype, residual=True, activation=lambda x: MaxK(K)(x),
            mlp_activation=jax.nn.relu,
        )  # fmt: skip
    call = nnx.jit(lambda model: model(graph, x, weights))
    out = call(model)
    assert out.dtype == dtype
    close(out.astype("f"), call(dense).astype("f"), 16 * float(jnp.finfo(dtype).eps))


def test_further_axes_of_the_features_take_the_dense_form():
    graph, x, _ = single(example())
    call = nnx.jit(lambda model, x: model(graph, x))
    for name in MODELS:
        model = make(name, 2)
        batch = jnp.stack([x, 2 * x, x - 1], axis=1)
        expected = np.stack([call(model, batch[:, i]) for i in range(3)], axis=1)
        close(call(model, batch), expected, 1e-5)


# Dropout, norm, transformations.


def test_dropout_acts_on_the_kept_entries():
    nodes, width = 3000, 20
    graph = Graph.from_edges([], [], num_nodes=nodes)
    model = NodeMLP(
        width, width, width, num_layers=2, dropout=0.25, activation=MaxK(5), rngs=nnx.Rngs(0)
    )
    for conv in model.convs:
        conv.linear.kernel[...] = jnp.eye(width)
        conv.linear.bias[...] = jnp.zeros(width)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(nodes, width)), jnp.float32)
    out = np.asarray(model(graph, x))
    model.eval()
    kept = np.asarray(model(graph, x))
    assert np.all((kept != 0).sum(axis=1) == 5)
    alive = out != 0
    assert not np.any(alive & (kept == 0))
    np.testing.assert_allclose(out[alive], kept[alive] / 0.75, rtol=1e-6)
    # 15,000 entries: the standard error of the share is 0.0035.
    assert abs(alive.sum() / (kept != 0).sum() - 0.75) < 0.015


@pytest.mark.parametrize("name", NAMES)
def test_training_mode_and_batch_norm(name):
    graph, x, weights = single(example())
    model = make(name, 2, dropout=0.5, norm="batch", input_layer=True)

    @nnx.jit
    def gradient(model, graph, x, weights):
        return nnx.grad(lambda model: loss(model(graph, x, weights)))(model)

    first, second = (gradient(model, graph, x, weights) for _ in range(2))
    leaves = list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    assert any(not np.allclose(a, b) for a, b in leaves)
    assert all(np.all(np.isfinite(a)) for a, _ in leaves)
    assert np.any(np.asarray(model.norms[0].mean[...]))


@pytest.mark.parametrize("name", NAMES)
def test_transformations_agree(name):
    graph, x, weights = single(example())
    graphdef, state = nnx.split(make(name, 2, input_layer=True))

    def value(state, x, weights):
        return loss(nnx.merge(graphdef, state)(graph, x, weights))

    gradient = jax.jit(jax.grad(value, argnums=(0, 1, 2)))
    expected = gradient(state, x, weights)
    close(jax.jit(jax.grad(jax.checkpoint(value), (0, 1, 2)))(state, x, weights), expected, 1e-5)
    pair = [jnp.stack([x, x + 1]), jnp.stack([weights, 2 * weights])]
    batched = jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0)))(state, *pair)
    close(jax.tree.map(lambda leaf: leaf[0], batched), expected, 1e-5)
    shifted = gradient(state, x + 1, 2 * weights)
    close(jax.tree.map(lambda leaf: leaf[1], batched), shifted, 1e-5)


@pytest.mark.system
def test_vmap_over_an_ensemble():
    graph, x, weights = single(example())

    @nnx.vmap(in_axes=0, out_axes=0)
    def create(key):
        return GraphSAGE(
            WIDTH, HIDDEN, CLASSES, num_layers=2, activation=MaxK(2), rngs=nnx.Rngs(key)
        )

    graphdef, states = nnx.split(create(jax.random.split(jax.random.key(0), 3)))

    def value(state):
        return loss(nnx.merge(graphdef, state)(graph, x, weights))

    step = jax.jit(jax.value_and_grad(value))
    together = jax.jit(jax.vmap(jax.value_and_grad(value)))(states)
    for i in range(3):
        alone = step(jax.tree.map(lambda leaf, i=i: leaf[i], states))
        close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone, 1e-5)


def test_linen():
    graph, x, weights = single(example())
    options = {"activation": MaxK(K), "dropout": 0.5, "input_layer": True}
    linen = nnx.bridge.to_linen(GCN, WIDTH, HIDDEN, CLASSES, num_layers=2, **options)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = linen.init(keys, graph, x, weights)

    @jax.jit
    def train(variables, key):
        return linen.apply(variables, graph, x, weights, rngs={"dropout": key})

    out = train(variables, jax.random.key(2))
    assert out.shape == (NODES, CLASSES)
    assert not np.allclose(out, train(variables, jax.random.key(3)))
    model = make("gcn", 2, input_layer=True)
    nnx.update(model, variables["params"])
    plain = nnx.bridge.to_linen(
        GCN, WIDTH, HIDDEN, CLASSES, num_layers=2, activation=MaxK(K), input_layer=True
    )
    close(plain.apply(variables, graph, x, weights), model(graph, x, weights), 1e-6)


# The activation itself.


def test_any_perceptron_takes_it():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7, WIDTH)), jnp.float32)
    widths = [WIDTH, HIDDEN, HIDDEN, CLASSES]
    net = MLP(widths, activation=MaxK(K), norm="layer", rngs=nnx.Rngs(0))

    @nnx.jit
    def both(net, x):
        out = x
        for i, layer in enumerate(net.linears):
            if i:
                rows = net.norms[i - 1](out).reshape(-1, out.shape[-1])
                out = masked(rows, K).reshape(out.shape)
            out = layer(out)
        return net(x), out

    close(*both(net, x), 1e-6)


def test_gin_keeps_relu_in_its_perceptrons_unless_told_otherwise():
    model = make("gin")
    assert all(conv.nn.activation is jax.nn.relu for conv in model.convs)
    model = make("gin", mlp_activation=jax.nn.elu)
    assert all(conv.nn.activation is jax.nn.elu for conv in model.convs)
    model = make("gin", activation=jax.nn.silu)
    assert all(conv.nn.activation is jax.nn.silu for conv in model.convs)


@pytest.mark.parametrize(
    ("create", "error", "message"),
    [
        (lambda r: MaxK(0), ValueError, "k: expected at least 1, got 0"),
        (lambda r: MaxK(2.5), TypeError, "k: expected a number of entries to keep, got 2.5"),
        (lambda r: MaxK(True), TypeError, "k: expected a number"),
        (lambda r: MaxK(9)(jnp.ones((3, 8))), ValueError, "k: .* got 9"),
        (lambda r: MaxK(2, dropout=1.0, rngs=r), ValueError, "dropout: .* to less than 1, got 1.0"),
        (lambda r: MaxK(2, dropout=0.5), ValueError, "rngs: expected nnx.Rngs with dropout=0.5"),
        (
            lambda r: GCN(6, 12, 3, num_layers=2, activation=MaxK(13), rngs=r),
            ValueError,
            "activation: expected MaxK's k to be at most the width 12 .* got 13",
        ),
        (
            lambda r: GIN(
                6, 12, 3, num_layers=2, activation=MaxK(8), mlp_activation=MaxK(4), rngs=r
            ),
            ValueError,
            "at most the width 3 .* got 4",
        ),
        (lambda r: MLP([6, 3, 12], activation=MaxK(4), rngs=r), ValueError, "width 3 .* got 4"),
        (lambda r: annealed_k(0, 4, 8, 10), ValueError, "narrow: expected at most wide, 4, got 8"),
        (lambda r: annealed_k(0, 4, 2, 0), ValueError, "steps: expected at least 1, got 0"),
        (lambda r: annealed_k(0, 4, 2.0, 3), TypeError, "narrow: .* got 2.0"),
    ],
)
def test_bad_arguments_are_named(create, error, message):
    with pytest.raises(error, match=message):
        create(nnx.Rngs(0))


def test_bad_sparse_rows_are_named():
    graph, x, _ = single(example())
    model = make("sage")
    with pytest.raises(ValueError, match=r"x: expected the shape \(30, ..., 6\).*got \(29, 6\)"):
        model(graph, maxk(x[1:], 2))
    with pytest.raises(ValueError, match="x: expected sparse rows without further axes"):
        model.convs[1](graph, maxk(jnp.ones((NODES, 2, HIDDEN)), 2))


# The schedule.


def test_the_schedule_is_linear_and_ends():
    values = [int(annealed_k(step, 64, 16, 100)) for step in range(130)]
    assert values[0] == 64 and values[100:] == [16] * 30
    assert all(a >= b for a, b in itertools.pairwise(values))
    expected = 64 - 48 * np.minimum(np.arange(130) / 100, 1)
    assert np.all(np.abs(np.array(values) - expected) <= 0.5)
    assert int(jax.jit(lambda t: annealed_k(t, 8, 2, 10))(5)) == 5


def test_annealed_k_equals_a_narrower_maxk_without_compiling_again():
    graph, x, weights = single(example())
    annealed = make("gcn", 2, activation=MaxK(8, anneal=True), input_layer=True)
    traces = []

    @nnx.jit
    def gradient(model, graph, x, weights):
        traces.append(1)
        return nnx.value_and_grad(lambda model: loss(model(graph, x, weights)))(model)

    for k in (8, 5, 1):
        annealed.activation.active[...] = jnp.asarray(k, jnp.int32)
        value, gradients = gradient(annealed, graph, x, weights)
        fixed = make("gcn", 2, activation=MaxK(k), input_layer=True)
        value_and_gradient = nnx.value_and_grad(lambda model: loss(model(graph, x, weights)))
        expected = nnx.jit(value_and_gradient)(fixed)
        close(value, expected[0], 1e-5)
        close(jax.tree.leaves(gradients), jax.tree.leaves(expected[1]), 1e-5)
    assert len(traces) == 1


def test_an_annealed_model_trains_with_one_trace():
    import optax

    graph, x, _ = single(example())
    labels = jnp.asarray(np.random.default_rng(0).integers(CLASSES, size=NODES))
    model = make("sage", 2, activation=MaxK(8, anneal=True))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
    traces, losses = [], []

    @nnx.jit
    def step(model, optimizer, graph, x, labels, number):
        traces.append(1)
        model.activation.active[...] = annealed_k(number, 8, 2, 30)

        def mean_loss(model):
            logits = model(graph, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = nnx.value_and_grad(mean_loss)(model)
        optimizer.update(model, gradients)
        return value

    for number in range(40):
        losses.append(float(step(model, optimizer, graph, x, labels, jnp.asarray(number))))
    assert len(traces) == 1 and int(model.activation.active[...]) == 2
    assert losses[-1] < 0.7 * losses[0]


def test_annealing_is_state_and_no_parameter():
    model = make("gcn", activation=MaxK(8, anneal=True))
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    assert [int(leaf) for leaf in jax.tree.leaves(rest)] == [8]
    assert not jax.tree.leaves(nnx.split(make("gcn"), nnx.Param, ...)[2])
    graph, x, weights = single(example())
    out = jax.jit(lambda p, r: nnx.merge(graphdef, p, r)(graph, x, weights))(params, rest)
    close(out, make("gcn", activation=MaxK(8))(graph, x, weights), 1e-6)


def test_own_dropout_comes_before_the_selection_and_follows_train_and_eval():
    x = jax.random.normal(jax.random.key(0), (40, 24))
    bias = jnp.linspace(-1, 1, 24)
    activation = MaxK(5, dropout=0.5, rngs=nnx.Rngs(3))
    key = MaxK(5, dropout=0.5, rngs=nnx.Rngs(3)).dropout.rngs()
    expected = maxk(x, 5, bias=bias, dropout_rate=0.5, dropout_rng=key).to_dense()
    np.testing.assert_array_equal(activation(x, bias), expected)
    assert not np.array_equal(activation(x, bias), expected)  # another mask
    activation.eval()
    np.testing.assert_array_equal(activation(x), maxk(x, 5).to_dense())
    activation.train()
    assert not np.array_equal(activation(x), maxk(x, 5).to_dense())


def test_a_model_trains_with_its_activations_dropout():
    graph, x, weights = single(example())
    model = make("sage", 2, activation=MaxK(K, dropout=0.3, rngs=nnx.Rngs(1)), input_layer=True)

    @nnx.jit
    def step(model):
        return nnx.value_and_grad(lambda model: jnp.sum(model(graph, x, weights) ** 2))(model)

    (first, gradient), (second, _) = step(model), step(model)
    assert first != second
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    model.eval()
    np.testing.assert_array_equal(model(graph, x, weights), model(graph, x, weights))
