"""Convolutions and models over a sample of each node's edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, nn, sampled_spmm
from tests.support.arrays import normal
from tests.support.strategies import skewed_graph

NODES, EDGES = 30, 600
KEY = jax.random.key(3)
CONVS = {
    "sage": lambda **o: nn.SAGEConv(6, 4, **o),
    "gcn": lambda **o: nn.GCNConv(6, 4, **o),
    "gin": lambda **o: nn.GINConv(nn.MLP([6, 4, 4], rngs=nnx.Rngs(1)), **o),
}
MODELS = {"sage": nn.GraphSAGE, "gcn": nn.GCN, "gin": nn.GIN}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return skewed_graph(NODES, EDGES)


def make(name, **options):
    return CONVS[name](rngs=nnx.Rngs(params=0, sampling=1), **options)


@pytest.mark.parametrize("name", CONVS)
def test_a_sample_of_all_edges_is_the_convolution(graph, name):
    x, weights = normal(NODES, 6), jnp.abs(normal(EDGES))
    for w in (None, weights):
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
        ({"sample_rate": 0.5, "strategy": "random"}, ValueError),
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
    ],
)
def test_errors_name_the_argument(graph, call, error, message):
    with pytest.raises(error, match=message):
        call(graph, normal(NODES, 6))
