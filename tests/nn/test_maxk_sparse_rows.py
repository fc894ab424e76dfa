"""Models with `MaxK`: sparse rows go into every convolution of hidden rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.nn import (
    GNN,
    MLP,
    MODELS,
    AGNNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    MaxK,
    SAGEConv,
    TransformerConv,
)
from jaxgnn.ops import CBSR, maxk
from tests.support.maxk_models import (
    CLASSES,
    HIDDEN,
    NAMES,
    NODES,
    WIDTH,
    K,
    close,
    example,
    loss,
    make,
    single,
)

pytestmark = pytest.mark.few(1)


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


@pytest.mark.system
def test_further_axes_of_the_features_take_the_dense_form():
    graph, x, _ = single(example())
    call = nnx.jit(lambda model, x: model(graph, x))
    for name in MODELS:
        model = make(name, 2)
        batch = jnp.stack([x, 2 * x, x - 1], axis=1)
        expected = np.stack([call(model, batch[:, i]) for i in range(3)], axis=1)
        close(call(model, batch), expected, 1e-5)


def test_bad_sparse_rows_are_named():
    graph, x, _ = single(example())
    model = make("sage")
    with pytest.raises(ValueError, match=r"x: expected the shape \(30, ..., 6\).*got \(29, 6\)"):
        model(graph, maxk(x[1:], 2))
    with pytest.raises(ValueError, match="x: expected sparse rows without further axes"):
        model.convs[1](graph, maxk(jnp.ones((NODES, 2, HIDDEN)), 2))
