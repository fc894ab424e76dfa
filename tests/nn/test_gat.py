"""The attention layer against a dense float64 formula: options, dtypes, dropout, bad input."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.graph.transform import add_self_loops, remove_self_loops
from jaxgnn.nn import GAT, GATConv
from jaxgnn.nn.conv import gat
from jaxgnn.nn.conv._heads import loop_features
from tests.support.arrays import normal
from tests.support.oracle import close, edges
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

NODES, EDGES, WIDTH = 12, 60, 6


def make(in_features=WIDTH, out_features=4, *, heads=3, seed=0, **options):
    bias = jax.nn.initializers.normal(1.0)
    rngs = nnx.Rngs(params=seed, dropout=1)
    return GATConv(in_features, out_features, heads=heads, bias_init=bias, rngs=rngs, **options)


CALL = nnx.jit(lambda conv, graph, *arguments: conv(graph, *arguments))
CALL_WITH_WEIGHTS = nnx.jit(
    lambda conv, graph, *arguments: conv(graph, *arguments, return_attention_weights=True)
)


def wide(parameter):
    return np.asarray(parameter[...], np.float64)


def dense_gat(conv, graph, x, edge_attr=None):
    """The layer edge by edge in float64, on a graph that has its self-loops."""
    senders, receivers = edges(graph)
    heads, width = conv.heads, conv.out_features
    v = (np.asarray(x, np.float64) @ wide(conv.linear.kernel)).reshape(-1, heads, width)
    scores = np.einsum("nhf,hf->nh", v, wide(conv.attention_senders))[senders]
    scores = scores + np.einsum("nhf,hf->nh", v, wide(conv.attention_receivers))[receivers]
    if edge_attr is not None:
        z = np.asarray(edge_attr, np.float64) @ wide(conv.linear_edges.kernel)
        z = z.reshape(-1, heads, width)
        scores = scores + np.einsum("ehf,hf->eh", z, wide(conv.attention_edges))
    weights = np.exp(np.where(scores > 0, scores, conv.negative_slope * scores))
    total = np.zeros((graph.num_receivers, heads))
    np.add.at(total, receivers, weights)
    weights = weights / total[receivers]
    if conv.maxk is not None:
        v = np.where(v >= np.sort(v)[..., [-conv.maxk.k]], v, 0)
    out = np.zeros((graph.num_receivers, heads, width))
    np.add.at(out, receivers, weights[:, :, None] * v[senders])
    out = out.reshape(-1, heads * width) if conv.concat else out.mean(axis=1)
    if conv.linear_residual is not None:
        out = out + np.asarray(x, np.float64) @ wide(conv.linear_residual.kernel)
    return out if conv.bias is None else out + wide(conv.bias)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"concat": False},
        {"residual": True, "use_bias": False},
        {"negative_slope": 0.0},
        {"head_k": 2},
        {"head_k": 1, "out_features": 20},
    ],
    ids=str,
)
def test_is_the_dense_formula(options):
    """With self-loops that the call adds, in place of those that are there."""
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    conv = make(**options)
    looped = add_self_loops(remove_self_loops(graph)[0])[0]
    close(CALL(conv, graph, x), dense_gat(conv, looped, x))


def test_edges_as_they_are():
    """Without self-loops added, those of the graph count, and its repeats."""
    graph, x, attributes = skewed_graph(NODES, EDGES), normal(NODES, WIDTH), normal(EDGES, 2)
    conv = make(add_self_loops=False, edge_dim=2, use_bias=False)
    isolated = np.asarray(graph.in_degrees) == 0
    out = np.asarray(CALL(conv, graph, x, attributes))
    close(out[~isolated], dense_gat(conv, graph, x, attributes)[~isolated])
    np.testing.assert_array_equal(out[isolated], 0)


@pytest.mark.parametrize("fill", ["mean", "add", "min", "max", 0.5])
def test_the_features_of_added_self_loops(fill):
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(NODES, size=(2, EDGES))
    receivers = np.minimum(receivers, NODES - 3)  # some have none
    kept = senders != receivers
    attributes = rng.normal(size=(EDGES, 2))
    reduce = {"mean": np.mean, "add": np.sum, "min": np.min, "max": np.max}
    loops = np.zeros((NODES, 2))
    for node in range(NODES):
        own = attributes[(receivers == node) & kept]
        if fill == 0.5:
            loops[node] = 0.5
        elif len(own):
            loops[node] = reduce[fill](own, axis=0)
    nodes = np.arange(NODES)
    looped = Graph.from_edges(
        np.append(senders[kept], nodes), np.append(receivers[kept], nodes), num_nodes=NODES
    )
    both = looped.sort_edge_data(np.append(attributes[kept], loops, axis=0))
    graph = Graph.from_edges(senders, receivers, num_nodes=NODES)
    conv, x = make(edge_dim=2, fill_value=fill), normal(NODES, WIDTH)
    own = graph.sort_edge_data(jnp.asarray(attributes, jnp.float32))
    close(CALL(conv, graph, x, own), dense_gat(conv, looped, x, both))


def test_the_mean_of_many_edges_is_in_float16_s_range():
    """Their sum is not."""
    hub = Graph.from_edges(np.arange(1, 2001), np.zeros(2000, int), num_nodes=2001)
    attributes = jnp.full((2000, 1), 100, jnp.float16)
    loops = jax.jit(loop_features, static_argnums=2)(hub, attributes, "mean")
    assert loops.dtype == jnp.float16
    np.testing.assert_array_equal(loops[:, 0], [100] + [0] * 2000)


def test_rectangular_graphs():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(
        rng.integers(20, size=80), rng.integers(9, size=80), num_senders=20, num_receivers=10
    )
    x = normal(20, 6), normal(10, 5)
    conv = make((6, 5), residual=True)
    assert conv.linear is None and conv.linear_receivers.kernel.shape == (5, 12)
    out, weights = CALL_WITH_WEIGHTS(conv, graph, x)
    close(CALL(conv, graph, x), out)
    assert weights.edges.shape == (80, 3) and weights.loops.shape == (10, 3)
    loops = np.asarray(graph.senders) == np.asarray(graph.receivers)
    assert not np.any(np.asarray(weights.edges)[loops])
    # Without the receivers' features the scores are the senders' alone.
    alone = make(6)
    zero = CALL(alone, graph, (x[0], jnp.zeros((10, 6))))
    close(CALL(alone, graph, (x[0], None)), zero)


def test_attention_weights_are_those_of_the_average():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    conv = make(dropout=0.5)
    conv.eval()
    out, weights = conv(graph, x, return_attention_weights=True)
    close(conv(graph, x), out)
    total = np.asarray(weights.loops)
    np.add.at(total := total.copy(), np.asarray(graph.receivers), np.asarray(weights.edges))
    close(total, np.ones_like(total))
    assert make(add_self_loops=False)(graph, x, return_attention_weights=True)[1].loops is None


def test_features_may_have_further_axes():
    graph, x, attributes = skewed_graph(NODES, EDGES), normal(NODES, 2, 3, WIDTH), normal(EDGES)
    conv = make(edge_dim=1, residual=True)
    out, weights = CALL_WITH_WEIGHTS(conv, graph, x, attributes)
    close(CALL(conv, graph, x, attributes), out)
    assert weights.edges.shape == (EDGES, 2, 3, 3)
    for i, j in ((0, 0), (1, 2)):
        close(out[:, i, j], CALL(conv, graph, x[:, i, j], attributes))


@pytest.mark.parametrize("heads", [1, 3])
def test_scores_are_the_same_in_both_forms(heads, monkeypatch):
    """The CPU's and that of other platforms, with their gradients, bit widths and further axes."""
    vectors = nnx.Param(normal(heads, 5, seed=1))
    rows = normal(7, 2, heads, 5)

    def found(rows):
        return jax.value_and_grad(lambda r, v: (gat._dot(r, nnx.Param(v)) ** 2).sum(), (0, 1))(
            rows, vectors[...]
        )

    narrow = rows.astype(jnp.bfloat16)
    product, narrow_product = found(rows), gat._dot(narrow, vectors)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.tree.map(close, product, found(rows))
    assert narrow_product.dtype == jnp.float32
    close(narrow_product, gat._dot(narrow, vectors))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of the CPU's compiler")
def test_scores_hold_nothing_of_the_size_of_the_rows():
    """Neither the vectors, for each row, nor the terms of the sums."""
    rows, vectors = normal(4096, 4, 32), normal(4, 32)

    def total(rows, vectors):
        return (gat._dot(rows, nnx.Param(vectors)) ** 2).sum()

    program = jax.jit(jax.grad(total, (0, 1))).lower(rows, vectors).compile()
    assert program.memory_analysis().temp_size_in_bytes < rows.nbytes / 4


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision(dtype):
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    attributes = normal(EDGES, 2)
    options = {"edge_dim": 2, "residual": True}
    narrow, exact = make(dtype=dtype, **options), make(**options)
    out = CALL(narrow, graph, x, attributes)
    assert out.dtype == dtype
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(narrow, nnx.Param)))
    close(out, CALL(exact, graph, x, attributes), 16 * float(jnp.finfo(dtype).eps))


def test_float64(x64):
    graph, x = skewed_graph(NODES, EDGES), np.random.default_rng(0).normal(size=(NODES, WIDTH))
    conv = make(param_dtype=jnp.float64)
    looped = add_self_loops(remove_self_loops(graph)[0])[0]
    out = conv(graph, jnp.asarray(x))
    assert out.dtype == jnp.float64
    close(out, dense_gat(conv, looped, x), 1e-13)


def test_dropout_follows_train_and_eval():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    conv = make(dropout=0.6)
    run = nnx.jit(lambda conv, graph, x: conv(graph, x))
    plain = make()
    first, second = run(conv, graph, x), run(conv, graph, x)
    assert not np.allclose(first, second)
    conv.eval()
    close(run(conv, graph, x), run(plain, graph, x))
    assert jax.tree.leaves(nnx.state(conv, nnx.RngState))
    assert not jax.tree.leaves(nnx.state(plain, nnx.RngState))
    # The mean over many masks is the layer without dropout.
    conv.train()
    outs = np.stack([run(conv, graph, x) for _ in range(400)])
    error = (outs.mean(axis=0) - run(plain, graph, x)) / (outs.std(axis=0) / 20 + 1e-6)
    assert np.abs(error).max() < 5


def test_dropout_of_the_returned_weights_is_that_of_the_average():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    out, weights = CALL_WITH_WEIGHTS(make(dropout=0.5), graph, x)
    close(CALL(make(dropout=0.5), graph, x), out)  # the same streams
    assert 0.2 < (np.asarray(weights.loops) == 0).mean() < 0.8


def test_initial_values_are_pyg_s():
    conv = GATConv(300, 50, heads=8, edge_dim=100, rngs=nnx.Rngs(0))
    for value, bound in (
        (conv.linear.kernel, np.sqrt(6 / 700)),
        (conv.linear_edges.kernel, np.sqrt(6 / 500)),
        (conv.attention_senders, np.sqrt(6 / 58)),
        (conv.attention_edges, np.sqrt(6 / 58)),
    ):
        value = np.abs(np.asarray(value[...]))
        assert 0.98 * bound < value.max() <= bound
        assert abs(value.mean() - bound / 2) < 0.1 * bound
    assert not np.any(np.asarray(conv.bias[...]))


def test_graphs_without_edges_or_nodes():
    x = normal(3, WIDTH)
    lonely = Graph.from_edges([], [], num_nodes=3)
    conv = make(edge_dim=2)
    alone = np.asarray(x) @ wide(conv.linear.kernel) + wide(conv.bias)
    close(conv(lonely, x, jnp.zeros((0, 2))), alone)  # the self-loop's
    bare = make(add_self_loops=False)
    close(bare(lonely, x), np.broadcast_to(wide(bare.bias), (3, 12)))
    empty = Graph.from_edges([], [], num_nodes=0)
    assert conv(empty, normal(0, WIDTH)).shape == (0, 12)


def test_seeds_at_once():
    """vmap over parameters and dropout's streams: one call of each kernel."""
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)
    states = [nnx.split(make(dropout=0.5, seed=s)) for s in range(3)]
    graphdef = states[0][0]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state for _, state in states))

    def run(state, x):
        return nnx.merge(graphdef, state, copy=True)(graph, x)

    mapped = jax.jit(jax.vmap(run, (0, None)))
    assert mapped.lower(stacked, x).as_text().count("@jaxgnn_gat") == 1
    together = mapped(stacked, x)
    for i, (_, state) in enumerate(states):
        close(together[i], run(state, x))


def test_the_model():
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, WIDTH)

    def gat(*arguments, **options):
        """Without values, of which each shape would be compiled."""
        return nnx.eval_shape(lambda: GAT(WIDTH, *arguments, heads=4, rngs=nnx.Rngs(0), **options))

    model = gat(16, 3, num_layers=3, out_heads=2, dropout=0.5)
    assert [(c.heads, c.out_features, c.concat) for c in model.convs] == [
        (4, 4, True),
        (4, 4, True),
        (2, 3, False),
    ]
    assert all(conv.dropout.rate == 0.5 for conv in model.convs)
    assert nnx.eval_shape(CALL, model, graph, x).shape == (NODES, 3)
    joined = gat(16, 3, num_layers=2, jumping="cat", attention_dropout=0.1)
    assert joined.convs[1].concat and joined.convs[1].dropout.rate == 0.1
    assert gat(15, 3, num_layers=2, concat=False).convs[0].out_features == 15
    with pytest.raises(ValueError, match="hidden_features: expected a multiple of the 4 heads"):
        gat(15, 3, num_layers=2)


def test_features_kept_of_a_head():
    """Where it keeps all it is the layer without; further axes, weights, and the model's layers."""
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, 2, WIDTH)
    out, weights = CALL_WITH_WEIGHTS(make(head_k=4), graph, x)
    expected, theirs = CALL_WITH_WEIGHTS(make(), graph, x)
    close(out, expected, 1e-6)
    jax.tree.map(lambda a, b: close(a, b, 1e-6), weights, theirs)
    kept = CALL(make(head_k=2), graph, x)
    close(kept[:, 1], CALL(make(head_k=2), graph, x[:, 1]), 1e-6)
    model = GAT(WIDTH, 12, 2, num_layers=3, heads=3, head_k=3, rngs=nnx.Rngs(0))
    assert [conv.maxk is None for conv in model.convs] == [False, False, True]
    assert model(graph, x[:, 0]).shape == (NODES, 2)
    with pytest.raises(ValueError, match="head_k: expected an integer from 1 to 4, got 5"):
        make(head_k=5)
    with pytest.raises(TypeError, match="head_k: expected an integer, got float"):
        make(head_k=2.0)


def bad_calls():
    graph, x, rngs = skewed_graph(NODES, EDGES), normal(NODES, WIDTH), nnx.Rngs(0)
    conv, edged = make(), make(edge_dim=2)
    new = functools.partial(GATConv, WIDTH, 4, rngs=rngs)
    return {
        "graph": (lambda: conv(x, graph), TypeError, "graph: expected a jaxgnn.Graph"),
        "width": (lambda: conv(graph, x[:, 1:]), ValueError, r"x: .*\(12, ..., 6\)"),
        "unwanted": (lambda: conv(graph, x, jnp.ones(EDGES)), ValueError, "edge_attr: .*edge_dim"),
        "edges": (lambda: edged(graph, x, jnp.ones((3, 2))), ValueError, "edge_attr: .*60"),
        "columns": (
            lambda: edged(graph, x, jnp.ones((EDGES, 3))),
            ValueError,
            r"edge_attr: .*\(60, 2\), got \(60, 3\)",
        ),
        "weights": (
            lambda: conv(graph, x, return_attention_weights="yes"),
            TypeError,
            "return_attention_weights: expected True or False, got 'yes'",
        ),
        "heads": (lambda: new(heads=0), ValueError, "heads: expected at least 1, got 0"),
        "slope": (lambda: new(negative_slope=np.nan), ValueError, "negative_slope: .* got nan"),
        "dropout": (lambda: new(dropout=1.0), ValueError, "dropout: .* got 1.0"),
        "rate": (lambda: new(dropout="0.5"), TypeError, "dropout: expected a number, got str"),
        "fill": (lambda: new(fill_value="median"), ValueError, "fill_value: .* got 'median'"),
        "edge_dim": (lambda: new(edge_dim=0), ValueError, "edge_dim: expected at least 1, got 0"),
    }


def test_bad_arguments():
    for name, (call, error, message) in bad_calls().items():
        with pytest.raises(error) as raised:
            call()
        assert re.search(message, str(raised.value)), f"{name}: {raised.value}"
