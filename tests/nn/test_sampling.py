"""Convolutions and models over a sample of each node's edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, nn, sample_neighbors, sampled_edges, sampled_spmm
from tests.support.arrays import normal
from tests.support.oracle import close, edges
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.few(1)

NODES, EDGES = 30, 600
KEY = jax.random.key(3)
CONVS = {
    "sage": lambda **o: nn.SAGEConv(6, 4, **o),
    "gcn": lambda **o: nn.GCNConv(6, 4, **o),
    "gin": lambda **o: nn.GINConv(nn.MLP([6, 4, 4], rngs=nnx.Rngs(1)), **o),
    "monet": lambda **o: nn.MoNet(6, 8, 4, num_layers=1, **o),
}
MODELS = {"sage": nn.GraphSAGE, "gcn": nn.GCN, "gin": nn.GIN, "monet": nn.MoNet}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return skewed_graph(NODES, EDGES)


def make(name, **options):
    return CONVS[name](rngs=nnx.Rngs(params=0, sampling=1), **options)


@pytest.mark.parametrize("name", CONVS)
def test_a_sample_of_all_edges_is_the_convolution(graph, name):
    x, weights = normal(NODES, 6), jnp.abs(normal(EDGES))
    for w in (None,) if name == "monet" else (None, weights):
        expected = make(name)(graph, x, w)
        conv = make(name, sample_size=EDGES)
        np.testing.assert_allclose(conv(graph, x, w), expected, rtol=2e-5, atol=2e-5)
        given = make(name)(graph, x, w, sample_size=EDGES, strategy="random", key=KEY)
        np.testing.assert_allclose(given, expected, rtol=2e-5, atol=2e-5)


def test_sage_is_the_mean_over_the_sample(graph):
    x, conv = normal(NODES, 6), make("sage", sample_size=3, strategy="bucket")
    mean = sampled_spmm(graph, x, sample_size=3, strategy="bucket", normalize="mean")
    expected = conv.linear_neighbors(mean) + conv.linear_root(x)
    np.testing.assert_allclose(conv(graph, x), expected, rtol=1e-5, atol=1e-5)


def test_gcn_is_the_sum_under_the_full_graphs_weights(graph):
    x = normal(NODES, 6)
    conv = make("gcn", sample_size=3, strategy="bucket", add_self_loops=False, use_bias=False)
    options = {"sample_size": 3, "strategy": "bucket", "normalize": "gcn"}
    expected = conv.linear(sampled_spmm(graph, x, **options))
    # A sender without edges of its own has the factor 0 in GCN, and 1 in `normalize="gcn"`.
    assert (np.asarray(graph.in_degrees) > 0).all()
    np.testing.assert_allclose(conv(graph, x), expected, rtol=1e-5, atol=1e-5)


def sample_factors(graph, aggr, sample):
    """What each edge's term is multiplied by: 0 if `sampled_edges` does not list it."""
    taken, counts = map(np.asarray, sampled_edges(graph, **sample))
    factor = np.zeros(graph.num_edges, np.float32)
    np.add.at(factor, taken[taken >= 0], 1.0)
    rescaled = np.asarray(graph.in_degrees) if aggr == "sum" else 1.0
    return factor * (rescaled / np.maximum(counts, 1))[edges(graph)[1]].astype(np.float32)


def masked_gmm(conv, graph, x, pseudo, activation, factor):
    """`GMMConv` with the term of each edge times its factor."""
    senders, receivers = edges(graph)
    if isinstance(pseudo, tuple):
        pseudo = pseudo[0][receivers] + pseudo[1][senders]
    places = jnp.tanh(pseudo) if activation else pseudo
    pairs = (1, 1) if not conv.separate_gaussians else conv.mu.shape[:2]
    mu, sigma = (p[...].reshape(*pairs, 3, 2) for p in (conv.mu, conv.sigma))
    distances = (places[:, None, None, None] - mu) ** 2 / (1e-15 + sigma**2)
    weights = jnp.exp(-0.5 * jnp.sum(distances, axis=-1)) * factor[:, None, None, None]
    weights = jnp.broadcast_to(weights, (graph.num_edges, 6, conv.out_features, 3))
    kernel = conv.linear.kernel[...]
    if conv.separate_gaussians:
        kernel = kernel.reshape(6, conv.out_features, 3)
    else:
        kernel = jnp.moveaxis(kernel.reshape(6, 3, conv.out_features), 1, 2)
    messages = jnp.einsum("eiok,ei,iok->eo", weights, x[senders], kernel)
    out = jax.ops.segment_sum(messages, receivers, graph.num_receivers)
    return out + conv.linear_root(x) + conv.bias[...]


GAUSSIANS = {
    "narrowing": (4, {}, False),
    "widening": (7, {"aggr": "sum"}, True),
    "narrowing-sum": (4, {"aggr": "sum"}, True),
    "widening-mean": (7, {}, False),
    "separate": (2, {"separate_gaussians": True}, True),
}


@pytest.mark.system
@pytest.mark.parametrize("name", GAUSSIANS)
@jax.default_matmul_precision("highest")
def test_gmm_is_the_dense_formula_over_the_sampled_edges(graph, name):
    """Results, gradients and second derivatives."""
    out_features, options, of_ends = GAUSSIANS[name]
    conv = nn.GMMConv(6, out_features, 2, 3, rngs=nnx.Rngs(0), **options)
    pseudo = normal(EDGES, 2, seed=1)
    if of_ends:
        pseudo = normal(NODES, 2, seed=1), normal(NODES, 2, seed=2)
    activation = "tanh" if of_ends else None
    sample = {"sample_size": 3, "strategy": "random", "key": KEY}

    def layer(conv, x, pseudo):
        return conv(graph, x, pseudo, activation=activation, **sample)

    factor = sample_factors(graph, conv.aggr, sample)
    assert (factor == 0).any() and (factor != 0).any()

    def masked(conv, x, pseudo):
        return masked_gmm(conv, graph, x, pseudo, activation, factor)

    x, cotangent = normal(NODES, 6), normal(NODES, out_features, seed=4)
    graphdef, state = nnx.split(conv)
    results = []
    for function in (layer, masked):

        def loss(arguments, function=function):
            state, x, pseudo = arguments
            return jnp.sum(jnp.sin(function(nnx.merge(graphdef, state), x, pseudo)) * cotangent)

        def derivatives(arguments, loss=loss):
            tangents = jax.tree.map(jnp.ones_like, arguments)
            return jax.jvp(jax.grad(loss), (arguments,), (tangents,))

        arguments = (state, x, pseudo)
        results.append((function(conv, x, pseudo), *jax.jit(derivatives)(arguments)))
    for actual, expected in zip(*map(jax.tree.leaves, results), strict=True):
        close(actual, expected, 1e-4)  # the second derivative of a sine multiplies rounding errors


def test_gmm_samples_blocks_further_axes_and_16_bits(graph):
    options = {"sample_size": 3, "strategy": "bucket"}
    conv = nn.GMMConv(6, 4, 2, 3, **options, rngs=nnx.Rngs(0))
    x, pseudo = normal(NODES, 2, 6), normal(EDGES, 2, seed=1)
    expected = jnp.stack([conv(graph, x[:, i], pseudo) for i in range(2)], axis=1)
    close(conv(graph, x, pseudo), expected)
    half = nn.GMMConv(6, 4, 2, 3, **options, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))(graph, x, pseudo)
    assert half.dtype == jnp.bfloat16
    close(half, expected, 0.03)
    # A rectangular graph whose last receivers have no edges.
    ends = np.asarray(graph.senders), edges(graph)[1] // 2
    block = Graph.from_edges(*ends, num_senders=NODES, num_receivers=20)
    out = conv(block, (x, None), pseudo)
    assert out.shape == (20, 2, 4) and not out[15:].any() and np.isfinite(out).all()


def test_gmm_without_edges_is_the_root():
    graph = Graph.from_edges([], [], num_nodes=4)
    conv, x = nn.GMMConv(6, 4, 2, 3, sample_size=3, rngs=nnx.Rngs(0)), normal(4, 6)
    np.testing.assert_allclose(conv(graph, x, jnp.zeros((0, 2))), conv.linear_root(x), rtol=1e-6)


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("strategy", ["stride", "random"])
def test_training_draws_anew_and_stride_does_not_after_eval(graph, name, strategy):
    x, conv = normal(NODES, 6), make(name, sample_size=3, strategy=strategy)
    call = nnx.jit(lambda conv, graph, x: conv(graph, x))
    assert not np.array_equal(call(conv, graph, x), call(conv, graph, x))
    same_key = [conv(graph, x, key=KEY) for _ in range(2)]
    np.testing.assert_array_equal(*same_key)
    conv.eval()
    equal = np.array_equal(call(conv, graph, x), call(conv, graph, x))
    assert equal == (strategy == "stride")


@pytest.mark.parametrize("name", CONVS)
def test_dropedge_drops_in_training_alone(graph, name):
    x = normal(NODES, 6)
    conv = make(name, sample_rate=0.5, strategy="dropedge")
    assert not np.array_equal(conv(graph, x), conv(graph, x))
    given = {"sample_rate": 0.5, "strategy": "dropedge", "key": KEY}
    expected = make(name)(graph, x, **given)
    np.testing.assert_allclose(conv(graph, x, key=KEY), expected, rtol=1e-6)
    conv.eval()
    np.testing.assert_array_equal(conv(graph, x), make(name)(graph, x))
    np.testing.assert_array_equal(conv(graph, x, key=KEY), conv(graph, x))
    np.testing.assert_allclose(conv(graph, x, **given), expected, rtol=1e-6)


def test_a_models_dropedge_is_that_of_its_layers(graph):
    x, rngs = normal(NODES, 6), {"params": 0, "sampling": 1}
    options = {"sample_rate": 0.5, "strategy": "dropedge"}
    model = nn.GIN(6, 8, 3, num_layers=2, rngs=nnx.Rngs(**rngs), **options)
    full = nn.GIN(6, 8, 3, num_layers=2, rngs=nnx.Rngs(**rngs))
    expected = full(graph, x, key=KEY, **options)
    np.testing.assert_allclose(model(graph, x, key=KEY), expected, rtol=1e-6)
    model.eval()
    np.testing.assert_array_equal(model(graph, x), full(graph, x))


@pytest.mark.system
@pytest.mark.parametrize("name", MODELS)
def test_models_have_a_size_for_each_layer(graph, name):
    x, rngs = normal(NODES, 6), nnx.Rngs(params=0, sampling=1)
    model = MODELS[name](
        6,
        8,
        3,
        num_layers=2,
        sample_size=[4, None],
        strategy="random",
        rngs=nnx.Rngs(params=0, sampling=1),
    )
    assert [conv.sample.sample_size for conv in model.convs] == [4, None]
    full = MODELS[name](6, 8, 3, num_layers=2, rngs=rngs)
    sampled = full(graph, x, sample_size=[4, None], strategy="random", key=KEY)
    np.testing.assert_allclose(model(graph, x, key=KEY), sampled, rtol=1e-6)
    assert not np.allclose(sampled, full(graph, x), atol=1e-3)
    everything = full(graph, x, sample_size=EDGES)
    np.testing.assert_allclose(everything, full(graph, x), rtol=2e-5, atol=2e-5)

    def loss(model, key):
        return jnp.sum(model(graph, x, key=key) ** 2)

    gradients = jax.tree.leaves(nnx.grad(loss)(model, KEY))
    assert all(np.isfinite(g).all() for g in gradients) and any(g.any() for g in gradients)


@pytest.mark.system
@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_models_sample_the_edges_of_blocks(graph, name):
    """Blocks are a sample; of their edges a layer takes a part, when it is made or called."""
    blocks = sample_neighbors(graph, np.array([3, 7, -1]), [9, 4], KEY)
    x = blocks.take(normal(NODES, 6))
    make_model = functools.partial(MODELS[name], 6, 8, 3, num_layers=2)
    full = make_model(rngs=nnx.Rngs(0))
    part = {"sample_size": [3, 9], "strategy": "bucket"}
    model = make_model(rngs=nnx.Rngs(0), **part)
    found = model(blocks, x)
    np.testing.assert_allclose(full(blocks, x, **part), found, rtol=1e-6)
    everything = full(blocks, x)
    assert found.shape == everything.shape and np.isfinite(found[:2]).all()
    assert not np.allclose(found[:2], everything[:2], atol=1e-3)
    np.testing.assert_allclose(full(blocks, x, sample_size=9), everything, rtol=2e-5, atol=2e-5)
    if name == "sage":
        # The mean over the first three edges of each row of the first layer's graph.
        first = blocks.graphs[0]
        taken = np.asarray(sampled_edges(first, sample_size=3, strategy="bucket")[0]).reshape(-1)
        ends = (np.asarray(end)[taken[taken >= 0]] for end in (first.senders, first.receivers))
        cut = Graph.from_edges(
            *ends, num_senders=first.num_senders, num_receivers=first.num_receivers
        )
        hidden = jax.nn.relu(full.convs[0](cut, (x, x[: cut.num_receivers])))
        second = blocks.graphs[1]
        out = full.convs[1](second, (hidden, hidden[: second.num_receivers]))
        np.testing.assert_allclose(found[:2], out[:2], rtol=1e-5, atol=1e-5)


def test_sparse_rows_are_sampled_in_their_dense_form(graph):
    model = nn.GraphSAGE(
        6,
        8,
        3,
        num_layers=2,
        activation=nn.MaxK(2),
        sample_size=EDGES,
        rngs=nnx.Rngs(params=0, sampling=1),
    )
    full = nn.GraphSAGE(
        6, 8, 3, num_layers=2, activation=nn.MaxK(2), rngs=nnx.Rngs(params=0, sampling=1)
    )
    x = normal(NODES, 6)
    np.testing.assert_allclose(model(graph, x), full(graph, x), rtol=2e-5, atol=2e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["bucket", "stride", "random"])
@pytest.mark.parametrize("normalize", [True, False])
def test_appnp_draws_afresh_in_each_step(graph, strategy, normalize):
    x, key = normal(NODES, 3), None if strategy == "bucket" else KEY
    options = {"sample_size": 4, "strategy": strategy}
    z, how = x, {"normalize": "gcn" if normalize else "rescale"}
    for step in range(3):
        folded = None if key is None else jax.random.fold_in(key, step)
        z = 0.9 * sampled_spmm(graph, z, key=folded, **options, **how) + 0.1 * x
    conv = nn.APPNP(3, 0.1, add_self_loops=False, normalize=normalize)
    np.testing.assert_allclose(conv(graph, x, key=key, **options), z, rtol=1e-4, atol=1e-5)
    if key is not None:
        made = nn.APPNP(3, 0.1, normalize=normalize, rngs=nnx.Rngs(sampling=1), **options)
        call = nnx.jit(lambda conv, graph, x: conv(graph, x))
        assert not np.allclose(call(made, graph, x), call(made, graph, x))


def test_appnp_over_all_edges_of_a_sample(graph):
    x = normal(NODES, 3)
    expected = nn.APPNP(2, 0.1)(graph, x)
    sampled = nn.APPNP(2, 0.1, sample_size=EDGES)(graph, x)
    np.testing.assert_allclose(sampled, expected, rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match=r"rngs: expected nnx\.Rngs with strategy='random'"):
        nn.APPNP(2, 0.1, sample_size=2, strategy="random")


def test_a_module_without_a_sample_has_no_state_for_it():
    for name in CONVS:
        plain, bucket = make(name), make(name, sample_size=3, strategy="bucket")
        for conv in (plain, bucket):
            assert not jax.tree.leaves(nnx.state(conv, nnx.RngState))
        assert jax.tree.leaves(nnx.state(make(name, sample_size=3), nnx.RngState))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"sample_size": 0}, ValueError),
        ({"sample_size": "all"}, TypeError),
        ({"sample_rate": 0}, ValueError),
        ({"sample_rate": 1.5}, ValueError),
        ({"sample_size": 2, "strategy": "first"}, ValueError),
        ({"sample_size": 2, "sample_rate": 0.5, "strategy": "dropedge"}, ValueError),
    ],
)
def test_modules_raise_what_the_operation_raises(graph, options, error):
    x = normal(NODES, 6)
    with pytest.raises(error) as of_the_operation:
        sampled_spmm(graph, x, key=KEY, **options)
    for call in (lambda: make("sage", **options), lambda: make("sage")(graph, x, **options)):
        with pytest.raises(error) as of_the_module:
            call()
        assert str(of_the_module.value) == str(of_the_operation.value)


def test_a_rate_of_1_is_all_edges(graph):
    x = normal(NODES, 6)
    out = make("sage", sample_rate=1)(graph, x)
    np.testing.assert_allclose(out, make("sage")(graph, x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, x: make("sage", strategy="dropedge"), ValueError, "sample_rate: "),
        (lambda g, x: make("sage", sample_size=2, aggr="max"), ValueError, "aggr='max'"),
        (
            lambda g, x: nn.GINConv(jnp.sin, sample_size=2, strategy="random"),
            ValueError,
            "rngs: expected nnx.Rngs",
        ),
        (lambda g, x: make("gcn")(g, x, strategy="stride"), ValueError, "strategy: .*sample_size"),
        (lambda g, x: make("gcn")(g, x, key=KEY), ValueError, "key: .*sample_size"),
        (
            lambda g, x: make("sage", aggr="max")(g, x, sample_size=2),
            ValueError,
            "aggr='max'",
        ),
        (
            lambda g, x: nn.GMMConv(6, 4, 2, 3, sample_size=2, aggr="max", rngs=nnx.Rngs(0)),
            ValueError,
            "aggr: expected one of 'mean', 'sum'",
        ),
        (
            lambda g, x: nn.GMMConv(6, 4, 2, 3, sample_size=2, rngs=nnx.Rngs(0))(g, x, x[:, :2]),
            ValueError,
            r"pseudo: expected the shape \(600, 2\), got \(30, 2\)",
        ),
        (
            lambda g, x: make("monet", sample_size=2)(g, x, normal(EDGES)),
            ValueError,
            "weights: MoNet has none",
        ),
        (lambda g, x: make("monet")(g, x, key=KEY), ValueError, "key: .*sample_size"),
        (
            lambda g, x: make("gin")(g, x, sample_size=2, strategy="random"),
            ValueError,
            "key: expected a JAX key",
        ),
        (
            lambda g, x: nn.GCN(
                6, 8, 3, num_layers=2, sample_size=[1], rngs=nnx.Rngs(params=0, sampling=1)
            ),
            ValueError,
            "sample_size: expected one for each of 2 layers, got 1",
        ),
        (
            lambda g, x: nn.GCN(6, 8, 3, num_layers=2, rngs=nnx.Rngs(params=0, sampling=1))(
                g, x, key=KEY
            ),
            ValueError,
            "key: expected None without a sample_size",
        ),
        (
            lambda g, x: nn.GIN(
                6, 8, 3, num_layers=2, edge_dim=2, strategy="nonsense", rngs=nnx.Rngs(0)
            ),
            ValueError,
            "strategy: expected one of .*, got 'nonsense'",
        ),
        (
            lambda g, x: nn.GIN(
                6, 8, 3, num_layers=2, edge_dim=2, strategy="bucket", rngs=nnx.Rngs(0)
            ),
            ValueError,
            "strategy: expected 'stride', the default, with edge_dim, got 'bucket'",
        ),
    ],
)
def test_errors_name_the_argument(graph, call, error, message):
    with pytest.raises(error, match=message):
        call(graph, normal(NODES, 6))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (5, TypeError, "key: expected a JAX key, got int"),
        ([1, 2], TypeError, "key: expected a JAX key, got list"),
        (jax.random.split(KEY, 2), ValueError, r"key: expected one key, got the shape \(2,\)"),
    ],
)
@pytest.mark.parametrize("name", ["gcn", "model", "appnp", "dropedge after eval"])
def test_errors_of_keys(graph, name, key, error, message):
    if name == "model":
        module = nn.GCN(6, 8, 3, num_layers=2, sample_size=3, rngs=nnx.Rngs(params=0, sampling=1))
    elif name == "appnp":
        module = nn.APPNP(2, 0.1, sample_size=3)
    elif name == "gcn":
        module = make("gcn", sample_size=3)
    else:
        module = make("gcn", sample_rate=0.5, strategy="dropedge")
        module.eval()
    with pytest.raises(error, match=message):
        module(graph, normal(NODES, 6), key=key)
