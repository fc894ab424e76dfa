"""Models under JAX's and Flax's transformations, their options, and the examples of the docs."""

import functools
import inspect
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxgnn import Graph, nn
from jaxgnn.graph import NodeRows
from jaxgnn.nn import GCN, GIN, GNN, MLP, MODELS, GCNConv, GraphSAGE, MaxK, NodeMLP
from tests.support.devices import two_devices
from tests.support.paths import ROOT

pytestmark = pytest.mark.few(1)

NODES, WIDTH, CLASSES = 30, 6, 3


def example(seed=0):
    rng = np.random.default_rng(seed)
    graph = Graph.from_edges(*rng.integers(NODES - 2, size=(2, 90)), num_nodes=NODES)
    x = jnp.asarray(rng.normal(size=(NODES, WIDTH)), jnp.float32)
    return graph, x, jnp.asarray(rng.uniform(0.5, 2, 90), jnp.float32)


def make(name, layers=2, hidden=12, **options):
    return MODELS[name](WIDTH, hidden, CLASSES, num_layers=layers, rngs=nnx.Rngs(0), **options)


def shapes(name, **options):
    """The model without values, of which each shape would be compiled."""
    return nnx.eval_shape(lambda: make(name, **options))


def close(actual, expected, atol=1e-5):
    def leaf(a, b):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=atol, rtol=1e-5)

    jax.tree.map(leaf, actual, expected)


def loss(model, graph, x, weights):
    return jnp.mean(model(graph, x, weights) ** 2)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_the_ways_to_compile_and_differentiate_agree(name):
    """nnx.jit and nnx.grad; split and merge under jax.jit; rematerialized; without jit."""
    graph, x, weights = example()
    model = make(name)
    graphdef, params = nnx.split(model)

    def pure(params, graph, x, weights):
        return loss(nnx.merge(graphdef, params), graph, x, weights)

    plain = jax.jit(jax.value_and_grad(pure))(params, graph, x, weights)
    nnx_way = nnx.jit(nnx.value_and_grad(loss))(model, graph, x, weights)
    remat = nnx.jit(nnx.value_and_grad(nnx.remat(loss)))(model, graph, x, weights)
    close(plain[0], loss(model, graph, x, weights))
    for other in (nnx_way, remat):
        close(jax.tree.leaves(plain), jax.tree.leaves(other))
    assert all(np.any(np.asarray(g)) for g in jax.tree.leaves(plain[1]))


def test_one_trace_serves_graphs_of_one_size():
    model, traces = make("gcn"), []

    @nnx.jit
    def run(model, graph, x):
        traces.append(graph.num_edges)
        return model(graph, x)

    outs = [run(model, *example(seed)[:2]) for seed in (0, 1)]
    assert len(traces) == 1
    assert not np.allclose(outs[0], outs[1])


@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_vmap_over_an_ensemble(name):
    graph, x, weights = example()

    @nnx.vmap(in_axes=0, out_axes=0)
    def create(key):
        return MODELS[name](WIDTH, 4, CLASSES, num_layers=2, rngs=nnx.Rngs(key))

    models = create(jax.random.split(jax.random.key(0), 3))
    graphdef, params = nnx.split(models)

    def value(params, graph, x, weights):
        return loss(nnx.merge(graphdef, params), graph, x, weights)

    step = jax.value_and_grad(value)
    batched = jax.jit(jax.vmap(step, in_axes=(0, None, None, None)))(params, graph, x, weights)
    single = jax.jit(step)
    for i in range(3):
        alone = single(jax.tree.map(lambda leaf, i=i: leaf[i], params), graph, x, weights)
        close(alone, jax.tree.map(lambda leaf, i=i: leaf[i], batched))
    assert len({float(value) for value in batched[0]}) == 3


def test_data_parallel_under_shard_map():
    """Two devices, a graph each, one set of parameters: the gradient is the sum of the two."""
    mesh = two_devices()
    # A hub that sends and receives 400 edges, so that its row is split; renamed in the second.
    ends = np.random.default_rng(0).integers(NODES, size=(2, 1200))
    ends[0, :400] = ends[1, 400:800] = 0
    graphs = [Graph.from_edges(*(ends + shift) % NODES, num_nodes=NODES) for shift in (0, 7)]
    rng = np.random.default_rng(1)
    examples = [
        (graph, rng.normal(size=(NODES, WIDTH)).astype("f"), rng.uniform(1, 2, 1200).astype("f"))
        for graph in graphs
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *examples)
    graphdef, params = nnx.split(make("sage"))

    def value(params, graph, x, weights):
        return loss(nnx.merge(graphdef, params), graph, x, weights)

    def local(params, batch):
        graph, x, weights = jax.tree.map(lambda leaf: leaf[0], batch)
        return jax.lax.psum(value(params, graph, x, weights), "d")

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=True)
    together = jax.jit(jax.value_and_grad(sharded))(params, stacked)
    single = jax.jit(jax.value_and_grad(value))
    alone = [single(params, *e) for e in examples]
    close(together, jax.tree.map(jnp.add, *alone))


def test_dropout_and_batch_statistics_follow_train_and_eval():
    graph, x, _ = example()
    model = make("gcn", dropout=0.5, input_dropout=0.2, norm="batch")

    @nnx.jit
    def run(model, graph, x):
        return model(graph, x)

    mean = np.asarray(model.norms[0].mean[...])
    first, second = run(model, graph, x), run(model, graph, x)
    assert not np.allclose(first, second)
    moved = np.asarray(model.norms[0].mean[...])
    assert not np.allclose(mean, moved)
    model.eval()
    close(run(model, graph, x), run(model, graph, x), 0)
    close(model.norms[0].mean[...], moved, 0)
    model.train()
    assert not np.allclose(run(model, graph, x), run(model, graph, x))


@pytest.mark.system
def test_recompute_changes_nothing_but_what_is_kept():
    graph, x, weights = example()
    options = {"layers": 3, "dropout": 0.5}
    pairs = (("gcn", {"norm": "batch"}), ("sage", {"norm": "layer", "activation": MaxK(4)}))

    @jax.jit
    def steps(graph, x, weights):
        results = []
        for name, more in pairs:
            for recompute in (False, True):
                model = make(name, recompute=recompute, **options, **more)
                graphdef, params, rest = nnx.split(model, nnx.Param, ...)

                def of(params, graphdef=graphdef, rest=rest):
                    model = nnx.merge(graphdef, params, rest, copy=True)
                    return loss(model, graph, x, weights), nnx.state(
                        model, nnx.BatchStat, nnx.RngCount
                    )

                (value, state), grads = jax.value_and_grad(of, has_aux=True)(params)
                results.append(jax.tree.leaves((value, state, grads)))
        return results

    traced = steps.trace(graph, x, weights)
    names = [eqn.primitive.name for eqn in traced.jaxpr.jaxpr.eqns]
    assert sum(name in ("checkpoint", "remat", "remat2") for name in names) == 4  # hidden layers
    plain, again, sparse, sparse_again = traced.lower().compile()(graph, x, weights)
    close(plain, again)
    close(sparse, sparse_again)
    assert len(plain) == len(again) > len(sparse)


def test_dropout_drops_the_share_that_it_should():
    graph, x = Graph.from_edges([], [], num_nodes=4000), jnp.ones((4000, 4))
    model = NodeMLP(4, 50, 50, num_layers=1, input_dropout=0.25, dropout=0.9, rngs=nnx.Rngs(0))
    model.convs[0].linear.kernel[...] = jnp.eye(4, 50)
    model.convs[0].linear.bias[...] = jnp.zeros(50)
    values = np.asarray(model(graph, x))[:, :4]
    np.testing.assert_allclose(np.unique(values), [0, 1 / 0.75], rtol=1e-6)
    # One layer has no hidden values to drop: the standard error of the mean is 0.005.
    assert abs(values.mean() - 1) < 0.02


def test_no_random_state_without_dropout():
    for name in MODELS:
        _, params, rest = nnx.split(shapes(name), nnx.Param, ...)
        assert jax.tree.leaves(params) and not jax.tree.leaves(rest)
        assert jax.tree.leaves(nnx.state(shapes(name, dropout=0.5), nnx.RngState))


def test_residual_adds_the_layer_s_input():
    graph, x, _ = example()
    plain, skip = make("gcn", layers=3), make("gcn", layers=3, residual=True)
    names = ["convs"]
    for name in names:
        nnx.update(getattr(skip, name), nnx.state(getattr(plain, name)))
    expected = x
    for i, conv in enumerate(skip.convs):
        before = expected
        expected = conv(graph, before)
        expected += before if i == 1 else before @ skip.skips[i].kernel[...]
        if i < 2:
            expected = jax.nn.relu(expected)
    close(skip(graph, x), expected)
    assert skip.skips[1] is None  # the widths agree: the input itself
    assert not np.allclose(plain(graph, x), expected)


@pytest.mark.parametrize(("jumping", "joined"), [("last", 12), ("max", 12), ("cat", 36)])
def test_jumping_joins_the_layers(jumping, joined):
    graph, x, _ = example()
    model = make("gcn", layers=3, jumping=jumping)
    assert model.linear.kernel.shape == (joined, CLASSES)
    hidden = []
    for conv in model.convs:
        x = jax.nn.relu(conv(graph, x))
        hidden.append(x)
    rows = {
        "last": lambda: hidden[-1],
        "max": lambda: jnp.max(jnp.stack(hidden), axis=0),
        "cat": lambda: jnp.concatenate(hidden, axis=-1),
    }[jumping]()
    close(model(example()[0], example()[1]), model.linear(rows))


def test_options_reach_the_layers():
    model = shapes("sage", aggr="max", project=True, normalize=True)
    assert all(c.aggr == "max" and c.normalize and c.linear_project for c in model.convs)
    model = make("gin", train_eps=True, eps=0.5, activation=jax.nn.elu, norm="layer")
    assert all(conv.eps[...] == 0.5 and conv.nn.activation is jax.nn.elu for conv in model.convs)
    assert all(len(conv.nn.norms) == 1 for conv in model.convs) and len(model.norms) == 1
    model = make("gcn", improved=True, dtype=jnp.bfloat16, use_bias=False)
    assert all(conv.improved and conv.linear.bias is None for conv in model.convs)
    graph, x, weights = example()
    for name in MODELS:
        options = {"norm": "layer", "residual": True, "jumping": "cat"}
        if name in ("gat", "gatv2", "transformer"):
            options["edge_dim"] = 1  # takes the weights as features of the edges
        model = shapes(name, dtype=jnp.bfloat16, **options)
        given = None if name in ("agnn", "edgeconv", "monet") else weights  # which have none
        out = nnx.eval_shape(lambda m, g, x, w: m(g, x, w), model, graph, x, given)
        assert out.dtype == jnp.bfloat16


def test_any_layer_makes_a_model():
    def conv(before, after, *, hops, **types):
        return Hops([GCNConv(before if i == 0 else after, after, **types) for i in range(hops)])

    class Hops(nnx.Module):
        def __init__(self, convs):
            self.convs = nnx.List(convs)

        def __call__(self, graph, x, weights):
            for conv in self.convs:
                x = conv(graph, x, weights)
            return x

    graph, x, weights = example()
    model = GNN(WIDTH, 12, CLASSES, num_layers=2, conv=conv, hops=2, rngs=nnx.Rngs(0))
    assert model(graph, x, weights).shape == (NODES, CLASSES)


def test_the_perceptron_ignores_the_graph():
    graph, x, weights = example()
    empty = Graph.from_edges([], [], num_nodes=NODES)
    model = make("mlp")
    close(model(graph, x, weights), model(empty, x), 0)


@pytest.mark.parametrize("name", MODELS)
def test_what_follows_the_widths_is_named(name):
    """In PyG's order, the number of layers third, these were three layers with two outputs."""
    with pytest.raises(TypeError, match="out_features, and all others by name, got 4"):
        MODELS[name](6, 16, 2, 3, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="num_layers"):
        MODELS[name](6, 16, 3, rngs=nnx.Rngs(0))


def new(model, rngs, num_layers=2, **options):
    return model(6, 12, 3, num_layers=num_layers, rngs=rngs, **options)


@pytest.mark.parametrize(
    ("create", "error", "message"),
    [
        (lambda r: new(GCN, r, num_layers=0), ValueError, "num_layers: expected at least 1, got 0"),
        (lambda r: new(GCN, r, num_layers=2.5), TypeError, "num_layers: .* got 2.5"),
        (lambda r: GCN(6, -8, 3, num_layers=2, rngs=r), ValueError, "hidden_features: .* got -8"),
        (lambda r: new(GCN, r, dropout=1.0), ValueError, "dropout: .* got 1.0"),
        (lambda r: new(GCN, r, norm="group"), ValueError, "norm: .* got 'group'"),
        (
            lambda r: GNN(6, 12, 3, num_layers=2, rngs=r),
            TypeError,
            "conv: expected what makes a layer, got None",
        ),
        (lambda r: new(GCN, r, jumping="lstm"), ValueError, "jumping: .* 'lstm'"),
        (
            lambda r: new(GCN, r, last_conv="x"),
            TypeError,
            "last_conv: expected what makes a layer, got str",
        ),
        (
            lambda r: new(GCN, r, jumping="cat", last_conv=GCNConv),
            ValueError,
            "last_conv: expected None with jumping='cat', got ",
        ),
        (
            lambda r: new(nn.AGNN, r, last_conv=GCNConv),
            ValueError,
            "last_conv: expected None with jumping='last', got ",
        ),
        (lambda r: new(nn.GAT, r, out_heads=0), ValueError, "^out_heads: .* at least 1, got 0"),
        (
            lambda r: new(nn.GATv2, r, jumping="cat", out_heads="x"),
            TypeError,
            "^out_heads: expected a number of heads, got 'x'",
        ),
        (
            lambda r: new(nn.Transformer, r, attention_dropout=2),
            ValueError,
            "^attention_dropout: .* got 2",
        ),
        (
            lambda r: new(nn.GAT, r, attention_dropout="x"),
            TypeError,
            "^attention_dropout: expected a number, got str",
        ),
        (lambda r: MLP(3, rngs=r), TypeError, "features: expected a width for each .* got int"),
        (lambda r: new(GraphSAGE, r, improved=True), TypeError, "improved"),
        (lambda r: MLP([6, 3], dropout=-1, rngs=r), ValueError, "dropout: .* got -1"),
        (lambda r: new(GCN, r, activation="relu"), TypeError, "activation: .* got 'relu'"),
        (lambda r: new(GCN, r, dtype="int32"), TypeError, "dtype: expected float32.* got int32"),
        (lambda r: new(GCN, 0), TypeError, "rngs: expected nnx.Rngs, got int"),
        (
            lambda r: MLP([6, 3], rngs=r)(jnp.ones((2, 6)), jnp.ones(2, bool)),
            TypeError,
            "positional argument",
        ),
        (lambda r: MLP([6, 3], rngs=r)(jnp.ones((2, 5))), ValueError, r"x: .* 6\), got \(2, 5\)"),
    ],
)
def test_bad_options_are_named(create, error, message):
    with pytest.raises(error, match=message):
        create(nnx.Rngs(0))


def test_a_last_convolution_makes_the_last_layer():
    model = make("gcn", last_conv=nn.SAGEConv)
    assert [type(conv) for conv in model.convs] == [GCNConv, nn.SAGEConv]


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
def test_bad_features_of_edges_are_a_model_s_weights(name):
    graph, x, weights = example()
    edged = make(name, edge_dim=2)
    with pytest.raises(TypeError, match=r"^weights: expected float32, .* got int32"):
        edged(graph, x, jnp.ones((90, 2), int))
    for call in (lambda: edged(graph, x, weights[1:]), lambda: edged(graph, x, jnp.ones((90, 3)))):
        with pytest.raises(ValueError, match="weights: expected the shape"):
            call()
    with pytest.raises(ValueError, match=r"^weights: .* without edge_dim expected None"):
        make(name)(graph, x, weights)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda r: GCNConv(6, 4, sample_size=2, rngs=r), "'sampling' with strategy='stride'"),
        (
            lambda r: nn.GINConv(jnp.sin, sample_size=2, strategy="random", rngs=r),
            "'sampling' with strategy='random'",
        ),
        (lambda r: nn.GATConv(6, 4, dropout=0.5, rngs=r), "'dropout' with dropout=0.5"),
        (lambda r: new(GCN, r, input_dropout=0.5), "'dropout' with input_dropout=0.5"),
        (lambda r: MLP([6, 3], dropout=0.5, rngs=r), "'dropout' with dropout=0.5"),
        (lambda r: MaxK(3, dropout=0.5, rngs=r), "'dropout' with dropout=0.5"),
    ],
)
def test_errors_name_a_missing_stream(create, message):
    with pytest.raises(ValueError, match=f"^rngs: expected the stream {message}, got only params"):
        create(nnx.Rngs(params=0))


SIZES: dict[type, tuple] = {
    nn.AGNNConv: (),
    nn.APPNP: (2, 0.1),
    nn.EdgeConv: (6, 4),
    nn.GATConv: (6, 4),
    nn.GATv2Conv: (6, 4),
    nn.GCNConv: (6, 4),
    nn.GINConv: (jax.nn.relu,),
    nn.GINEConv: (jax.nn.relu,),
    nn.GMMConv: (6, 4, 2, 3),
    nn.MLP: ([6, 4],),
    nn.MaxK: (4,),
    nn.PNAConv: (6, 4, ["mean"], ["identity"], np.array([1, 2])),
    nn.SAGEConv: (6, 4),
    nn.TransformerConv: (6, 4),
    **dict.fromkeys([nn.GAT, nn.GATv2, nn.Transformer], (6, 12, 3)),
    nn.GCN: (6, 12, 3),
}


def boolean_options():
    for module, sizes in SIZES.items():
        takes = dict(inspect.signature(module.__init__).parameters)
        options = {"rngs": nnx.Rngs(0)} if "rngs" in takes else {}
        if issubclass(module, GNN):
            takes |= inspect.signature(module._layer_options).parameters
            options["num_layers"] = 2
        for name, parameter in takes.items():
            if parameter.annotation in ("bool", "bool | None"):
                create = functools.partial(module, *sizes, **options, **{name: "false"})
                yield pytest.param(create, name, id=f"{module.__name__}-{name}")


@pytest.mark.parametrize(("create", "name"), boolean_options())
def test_bad_booleans_are_named(create, name):
    """A string or an array is true, whatever it says."""
    with pytest.raises(TypeError, match=f"^{name}: expected True or False, got 'false'"):
        create()


@pytest.mark.parametrize(
    ("module", "options"),
    [(nn.TransformerConv, {}), (nn.PNAConv, {}), (nn.GINEConv, {"edge_dim": 2, "in_features": 6})],
)
def test_biases_start_as_told(module, options):
    seven = jax.nn.initializers.constant(7)
    layer = module(*SIZES[module], bias_init=seven, rngs=nnx.Rngs(0), **options)
    state = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    biases = [leaf[...] for path, leaf in state if path[-1] == "bias"]
    assert biases and all((bias == 7).all() for bias in biases)


def test_bad_input_is_named():
    graph, x, _ = example()
    model = make("sage")
    with pytest.raises(ValueError, match=r"x: expected the shape \(30, ..., 6\)"):
        model(graph, x[:, 1:])
    with pytest.raises(ValueError, match="x: GraphSAGE expected one array, got a pair"):
        model(graph, (x, x))
    with pytest.raises(ValueError, match="graph: NodeMLP expected a square graph"):
        make("mlp")(Graph.from_edges([0], [0], num_senders=30, num_receivers=2), x)
    rows = NodeRows(x.astype(int), jnp.arange(NODES))
    for model in (make(name) for name in ("gcn", "sage", "gat", "mlp")):
        for whole in (x.astype(int), np.zeros(x.shape, bool), rows):
            with pytest.raises(TypeError, match=r"x: expected float32, .* got (int32|bool)"):
                model(graph, whole)


# Linen, and the documents.


def test_linen():
    """The bridge's variables are the NNX module's; dropout and statistics pass through."""
    graph, x, weights = example()
    linen = nnx.bridge.to_linen(GIN, WIDTH, 12, CLASSES, num_layers=2, dropout=0.5, norm="batch")
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = linen.init(rngs, graph, x, weights)

    @jax.jit
    def train(variables, key):
        return linen.apply(
            variables, graph, x, weights, rngs={"dropout": key}, mutable=["batch_stats"]
        )

    out, changed = train(variables, jax.random.key(2))
    assert out.shape == (NODES, CLASSES)
    assert not np.allclose(out, train(variables, jax.random.key(3))[0])
    before, after = variables["batch_stats"], changed["batch_stats"]
    assert not np.allclose(before["norms"][0]["mean"], after["norms"][0]["mean"])

    linen = nnx.bridge.to_linen(GCN, WIDTH, 12, CLASSES, num_layers=2)
    variables = linen.init(jax.random.key(0), graph, x, weights)
    model = make("gcn")
    nnx.update(model, variables["params"])
    close(linen.apply(variables, graph, x, weights), model(graph, x, weights))


@pytest.mark.system
def test_snippets_of_the_documentation_run():
    text = (ROOT / "docs" / "modules.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 5
    namespace = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/modules.md", "exec"), namespace)


@pytest.mark.system
def test_linen_example(capsys):
    runpy.run_path(str(ROOT / "examples" / "linen.py"), run_name="__main__")
    accuracy = float(re.search(r"accuracy ([\d.]+)", capsys.readouterr().out).group(1))
    assert accuracy > 0.85  # the features alone: 0.80
