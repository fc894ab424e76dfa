"""The layers of attention with scores of pairs: weights, dtypes, dropout, models, bad input.

Values and gradients are held against PyG's in test_parity_convs.py.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import maxk
from jaxgnn.nn import AGNN, AGNNConv, GATv2Conv, Transformer, TransformerConv
from tests.support.arrays import normal
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

NODES, EDGES, WIDTH = 12, 60, 6


CALL = nnx.jit(lambda conv, graph, *arguments: conv(graph, *arguments))
CALL_WITH_WEIGHTS = nnx.jit(
    lambda conv, graph, *arguments: conv(graph, *arguments, return_attention_weights=True)
)


@pytest.mark.system
@pytest.mark.parametrize("layer", [GATv2Conv, TransformerConv])
def test_the_weights_are_those_of_the_average(layer):
    """With features of the edges, further axes, and dropout that two calls draw alike."""
    graph, x, attributes = skewed_graph(NODES, EDGES), normal(NODES, 2, WIDTH), normal(EDGES, 2)

    def make(**options):
        return layer(WIDTH, 4, heads=3, rngs=nnx.Rngs(params=0, dropout=1), **options)

    out, weights = CALL_WITH_WEIGHTS(make(dropout=0.5, edge_dim=2), graph, x, attributes)
    np.testing.assert_allclose(
        CALL(make(dropout=0.5, edge_dim=2), graph, x, attributes), out, rtol=1e-5, atol=1e-5
    )
    assert weights.edges.shape == (EDGES, 2, 3)
    assert 0.2 < (np.asarray(weights.edges) == 0).mean() < 0.8
    conv = make(edge_dim=2)
    total = np.zeros((NODES, 2, 3), np.float32)
    weights = CALL_WITH_WEIGHTS(conv, graph, x, attributes)[1]
    np.add.at(total, np.asarray(graph.receivers), np.asarray(weights.edges))
    total = total if weights.loops is None else total + np.asarray(weights.loops)
    expected = np.ones_like(total)
    if weights.loops is None:
        expected[np.asarray(graph.in_degrees) == 0] = 0
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    one = CALL(conv, graph, x[:, 1], attributes)
    np.testing.assert_allclose(CALL(conv, graph, x, attributes)[:, 1], one, rtol=1e-5, atol=1e-5)


def test_values_kept_of_a_head():
    """The dense layer with the other values set to 0; further axes, edge features, weights, the
    model's layers."""
    graph, x, attributes = skewed_graph(NODES, EDGES), normal(NODES, 2, WIDTH), normal(EDGES, 2)

    def make(**options):
        return TransformerConv(WIDTH, 4, heads=3, beta=True, rngs=nnx.Rngs(0), **options)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    for edge_dim, *given in ((None,), (2, attributes)):
        out, weights = CALL_WITH_WEIGHTS(make(edge_dim=edge_dim, head_k=4), graph, x, *given)
        expected, theirs = CALL_WITH_WEIGHTS(make(edge_dim=edge_dim), graph, x, *given)
        close(out, expected)
        close(weights.edges, theirs.edges)
        two = make(edge_dim=edge_dim, head_k=2)
        kept = CALL(two, graph, x, *given)
        assert np.abs(kept - out).max() > 1e-2
        close(kept[:, 1], CALL(two, graph, x[:, 1], *given))
        close(kept, CALL_WITH_WEIGHTS(two, graph, x, *given)[0])

    conv = make(head_k=2)
    value = conv.linear_value(x[:, 1]).reshape(NODES, 3, 4)
    rows = maxk(value, 2).to_dense().reshape(NODES, 12)
    plain = make()
    plain.linear_value = lambda _: rows
    close(conv(graph, x[:, 1]), plain(graph, x[:, 1]))

    model = Transformer(WIDTH, 12, 2, num_layers=3, heads=3, head_k=3, rngs=nnx.Rngs(0))
    assert [conv.maxk is None for conv in model.convs] == [False, False, True]
    assert model(graph, x[:, 0]).shape == (NODES, 2)
    with pytest.raises(ValueError, match="head_k: expected an integer from 1 to 4, got 5"):
        make(head_k=5)
    with pytest.raises(TypeError, match="head_k: expected an integer, got float"):
        make(head_k=2.0)


def test_low_precision():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    for make in (
        lambda **types: GATv2Conv(WIDTH, 4, heads=2, residual=True, rngs=nnx.Rngs(0), **types),
        lambda **types: TransformerConv(WIDTH, 4, heads=2, beta=True, rngs=nnx.Rngs(0), **types),
        lambda **types: AGNNConv(**types),
    ):
        out, exact = CALL(make(dtype=jnp.bfloat16), graph, x), CALL(make(), graph, x)
        assert out.dtype == jnp.bfloat16
        scale = float(jnp.abs(exact).max())
        np.testing.assert_allclose(out.astype("f"), exact, rtol=0, atol=2**-4 * scale)


@pytest.mark.parametrize("layer", [GATv2Conv, TransformerConv])
def test_an_axis_of_the_features_may_be_empty(layer):
    graph, edge_attr = skewed_graph(NODES, EDGES), normal(EDGES, 2)
    conv = layer(WIDTH, 4, heads=2, edge_dim=2, rngs=nnx.Rngs(0))
    assert CALL(conv, graph, jnp.zeros((NODES, 0, WIDTH)), edge_attr).shape == (NODES, 0, 8)


def test_the_models():
    agnn = nnx.eval_shape(lambda: AGNN(WIDTH, 16, 3, num_layers=4, rngs=nnx.Rngs(0)))
    assert len(agnn.convs) == 4 and agnn.linear_in.kernel.shape == (WIDTH, 16)
    assert agnn.linear.kernel.shape == (16, 3)
    model = nnx.eval_shape(
        lambda: Transformer(
            WIDTH, 16, 3, num_layers=2, heads=4, dropout=0.5, beta=True, rngs=nnx.Rngs(0)
        )
    )
    assert [(c.heads, c.out_features, c.concat) for c in model.convs] == [
        (4, 4, True),
        (4, 3, False),
    ]
    assert all(conv.dropout.rate == 0.5 and conv.linear_beta for conv in model.convs)


def test_nothing_follows_a_propagation_but_a_normalization_and_its_activation():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)

    @nnx.jit
    def by_hand(model, graph, x):
        x = jnp.tanh(model.linear_in(x))
        for i, conv in enumerate(model.convs):
            x = conv(graph, x)
            if model.norms is not None:
                x = jnp.tanh(model.norms[i](x))
        return model.linear(x)

    for norm in (None, "layer"):
        model = AGNN(WIDTH, 8, 3, num_layers=2, activation=jnp.tanh, norm=norm, rngs=nnx.Rngs(0))
        close = {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(CALL(model, graph, x), by_hand(model, graph, x), **close)


def test_bad_arguments():
    graph, x, rngs = skewed_graph(NODES, EDGES), normal(NODES, WIDTH), nnx.Rngs(0)
    v2, transformer = GATv2Conv(WIDTH, 4, rngs=rngs), TransformerConv(WIDTH, 4, rngs=rngs)
    for call, error, message in (
        (lambda: v2(x, graph), TypeError, "graph: expected a jaxgnn.Graph"),
        *(
            (lambda conv=conv: conv(graph, x, return_attention_weights=1), TypeError, "got 1")
            for conv in (v2, transformer)
        ),
        (lambda: v2(graph, (x, None)), ValueError, r"x: GATv2Conv expected x\[1\], got None"),
        (lambda: v2(graph, x, normal(EDGES)), ValueError, "GATv2Conv without .* edge_dim=1 for w"),
        (lambda: transformer(graph, (x, None)), ValueError, r"x: TransformerConv expected x\[1\]"),
        (lambda: transformer(graph, x[:, 1:]), ValueError, r"x: .*\(12, ..., 6\)"),
        (lambda: AGNNConv()(graph, x, normal(EDGES)), ValueError, "weights: AGNNConv has none"),
        (lambda: AGNNConv()(graph, x.astype(int)), TypeError, "x: expected float32, .* got int32"),
        (lambda: AGNNConv(requires_grad=2), TypeError, "requires_grad: expected True or False"),
        (lambda: AGNNConv(dtype=int), TypeError, "dtype: expected float32, .* got int64"),
        (lambda: AGNNConv(param_dtype=int), TypeError, "param_dtype: .* got int64"),
        (
            lambda: GATv2Conv((6, 5), 4, share_weights=True, rngs=rngs),
            ValueError,
            "in_features: share_weights=True expected one width",
        ),
        (lambda: GATv2Conv(6, 4, fill_value="median", rngs=rngs), ValueError, "fill_value: "),
        (lambda: TransformerConv(6, 4, heads=0, rngs=rngs), ValueError, "heads: .* got 0"),
    ):
        with pytest.raises(error, match=message):
            call()
