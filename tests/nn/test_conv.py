"""Graph convolutions against dense float64 formulas: values, both orders, dtypes, bad input."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, spmm
from jaxgnn.graph.transform import gcn_norm
from jaxgnn.nn import (
    APPNP,
    GAT,
    MLP,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GMMConv,
    SAGEConv,
)
from tests.support.arrays import normal
from tests.support.strategies import dense_adjacency, examples

# Widths are 3, 6 or 12: each shape of initial values is a program to compile.
NODES, EDGES, WIDTH = 9, 24, 6

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


@st.composite
def weighted_graphs(draw):
    """Square graphs of one size (one compilation), with loops, repeats and isolated nodes."""
    highest = draw(st.sampled_from([2, 4, NODES - 1]))
    ends = st.lists(st.integers(0, highest), min_size=EDGES, max_size=EDGES)
    graph = Graph.from_edges(np.array(draw(ends)), np.array(draw(ends)), num_nodes=NODES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.uniform(0.1, 2, EDGES).astype(np.float32) if draw(st.booleans()) else None
    return graph, rng.normal(size=(NODES, WIDTH)).astype(np.float32), weights


def dense_gcn(graph, weights, fill):
    """The normalized matrix in float64, one self-loop a node."""
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    values = np.ones(graph.num_edges) if weights is None else np.asarray(weights, np.float64)
    matrix = dense_adjacency(graph, np.where(senders == receivers, 0, values))
    loops = np.full(graph.num_receivers, float(fill))
    for edge in np.flatnonzero(senders == receivers):
        loops[receivers[edge]] = values[edge]
    matrix += np.diag(loops)
    degree = matrix.sum(axis=1)
    scale = np.where(degree == 0, 0, 1 / np.sqrt(np.where(degree == 0, 1, degree)))
    return scale[:, None] * matrix * scale[None, :]


def parameters(layer):
    kernel = np.asarray(layer.kernel[...], np.float64)
    return kernel, 0 if layer.bias is None else np.asarray(layer.bias[...], np.float64)


def close(actual, expected, tolerance=2e-5):
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=tolerance * scale)


CALL = nnx.jit(lambda conv, graph, x, weights: conv(graph, x, weights))


@examples(25)
@given(weighted_graphs(), st.booleans(), st.sampled_from([3, 12]))
def test_gcn_is_the_dense_formula(drawn, improved, out_features):
    graph, x, weights = drawn
    conv = GCNConv(WIDTH, out_features, improved=improved, rngs=nnx.Rngs(0))
    conv.linear.bias[...] = jnp.arange(out_features, dtype=jnp.float32)
    kernel, bias = parameters(conv.linear)
    fill = 2 if improved and weights is not None else 1
    expected = dense_gcn(graph, weights, fill) @ x.astype(np.float64) @ kernel + bias
    close(CALL(conv, graph, x, weights), expected)


@examples(15)
@given(weighted_graphs())
def test_gcn_agrees_with_the_host_normalization(drawn):
    graph, x, weights = drawn
    conv = GCNConv(WIDTH, 3, use_bias=False, rngs=nnx.Rngs(1))
    normalized = gcn_norm(graph, weights)
    expected = spmm(normalized[0], jnp.asarray(x) @ conv.linear.kernel[...], normalized[1])
    close(CALL(conv, graph, x, weights), expected)


@examples(25)
@given(weighted_graphs(), st.sampled_from([3, 12]))
@pytest.mark.parametrize("aggr", ["mean", "sum", "max", "min"])
def test_sage_is_the_dense_formula(aggr, drawn, out_features):
    graph, x, weights = drawn
    conv = SAGEConv(WIDTH, out_features, aggr=aggr, rngs=nnx.Rngs(0))
    wide = x.astype(np.float64)
    values = np.ones(EDGES) if weights is None else weights.astype(np.float64)
    messages = values[:, None] * wide[np.asarray(graph.senders)]
    reduce = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}[aggr]
    receivers = np.asarray(graph.receivers)
    aggregated = np.zeros_like(wide)
    for node in np.unique(receivers):
        aggregated[node] = reduce(messages[receivers == node], axis=0)
    kernel, bias = parameters(conv.linear_neighbors)
    expected = aggregated @ kernel + bias + wide @ parameters(conv.linear_root)[0]
    close(CALL(conv, graph, x, weights), expected)


@examples(25)
@given(weighted_graphs(), st.sampled_from([3, 12]))
def test_gin_is_the_dense_formula(drawn, hidden):
    graph, x, weights = drawn
    conv = GINConv(MLP([WIDTH, hidden, 3], rngs=nnx.Rngs(0)), eps=0.25, train_eps=True)
    wide = x.astype(np.float64)
    out = 1.25 * wide + dense_adjacency(graph, weights) @ wide
    first, last = (parameters(layer) for layer in conv.nn.linears)
    expected = np.maximum(out @ first[0] + first[1], 0) @ last[0] + last[1]
    close(CALL(conv, graph, x, weights), expected)


def random_graph(num_senders=40, num_receivers=30, edges=150, seed=0, square=False):
    rng = np.random.default_rng(seed)
    counts = {"num_senders": num_senders, "num_receivers": num_receivers}
    if square:
        num_receivers = num_senders
        counts = {"num_nodes": num_senders}
    ends = rng.integers(num_senders, size=edges), rng.integers(num_receivers, size=edges)
    return Graph.from_edges(*ends, **counts)


CONVS = {
    "gcn": lambda a, b, **o: GCNConv(a, b, rngs=nnx.Rngs(2), **o),
    "sage_mean": lambda a, b, **o: SAGEConv(a, b, aggr="mean", rngs=nnx.Rngs(2), **o),
    "sage_sum": lambda a, b, **o: SAGEConv(a, b, aggr="sum", project=True, rngs=nnx.Rngs(2), **o),
    "gin": lambda a, b, **o: GINConv(
        MLP([a, b, 3], rngs=nnx.Rngs(2), **o), eps=0.5, train_eps=True, **o
    ),
}


@pytest.mark.parametrize("name", CONVS)
def test_the_narrower_rows_are_gathered(name):
    for widths in ((12, 6), (6, 12), (6, 6)):
        assert CONVS[name](*widths).transform_first == (widths[1] < widths[0])


@pytest.mark.parametrize("name", CONVS)
def test_both_orders_give_the_same_values_and_gradients(name):
    graph, x, weights = random_graph(square=True), normal(40, 12), normal(150, seed=1) ** 2
    conv = CONVS[name](12, 6)

    def run(first):
        conv.transform_first = first

        def loss(conv, x, weights):
            out = conv(graph, x, weights)
            return jnp.sum(out * jnp.sin(out)), out

        gradient = nnx.grad(loss, argnums=(0, 1, 2), has_aux=True)
        return nnx.jit(gradient)(conv, x, weights)

    jax.tree.map(lambda a, b: close(a, b, 1e-5), run(True), run(False))


@pytest.mark.parametrize("first", [True, False])
def test_rectangular_graphs(first):
    graph, weights = random_graph(), normal(150, seed=1)
    x = normal(40, 6), normal(30, 12, seed=2)
    matrix = dense_adjacency(graph, weights)
    conv = SAGEConv((6, 12), 3, aggr="sum", rngs=nnx.Rngs(0))
    conv.transform_first = first
    kernel, bias = parameters(conv.linear_neighbors)
    expected = matrix @ np.asarray(x[0]) @ kernel + bias + x[1] @ conv.linear_root.kernel[...]
    close(conv(graph, x, weights), expected)

    conv = SAGEConv((6, 12), 3, aggr="sum", root_weight=False, rngs=nnx.Rngs(0))
    kernel, bias = parameters(conv.linear_neighbors)
    close(conv(graph, (x[0], None), weights), matrix @ np.asarray(x[0]) @ kernel + bias)

    conv = GINConv(MLP([6, 3, 3], rngs=nnx.Rngs(0)))
    conv.transform_first = first
    receivers = normal(30, 6, seed=3)
    out = matrix @ np.asarray(x[0])
    close(conv(graph, (x[0], receivers), weights), conv.nn(jnp.asarray(out, "f") + receivers))
    close(conv(graph, (x[0], None), weights), conv.nn(jnp.asarray(out, "f")))


def test_features_may_have_further_axes():
    graph, x = random_graph(square=True), normal(40, 3, 6)
    for conv in (CONVS["gcn"](6, 3), CONVS["sage_mean"](6, 12), CONVS["gin"](6, 3)):
        expected = np.stack([CALL(conv, graph, x[:, i], None) for i in range(3)], axis=1)
        close(CALL(conv, graph, x, None), expected)


def test_gcn_options():
    graph, x, weights = random_graph(square=True), normal(40, 6), normal(150, seed=1) ** 2
    conv = GCNConv(6, 3, normalize=False, use_bias=False, rngs=nnx.Rngs(0))
    assert not conv.add_self_loops and conv.linear.bias is None
    close(conv(graph, x, weights), spmm(graph, x @ conv.linear.kernel[...], weights))
    conv = GCNConv(6, 3, add_self_loops=False, rngs=nnx.Rngs(0))
    for w in (None, weights):
        normalized = gcn_norm(graph, w, add_self_loops=False)
        expected = spmm(normalized[0], x @ conv.linear.kernel[...], normalized[1])
        close(conv(graph, x, w), expected)


def test_gcn_degree_zero_gives_zero_and_a_finite_gradient():
    graph = Graph.from_edges([1, 2, 0], [0, 0, 1], num_nodes=4)
    weights = jnp.asarray([1.0, -1.0, 2.0])  # node 0: degree 0 with edges; 2 and 3: without
    conv = GCNConv(2, 2, add_self_loops=False, rngs=nnx.Rngs(0))
    x = normal(4, 2)

    def loss(weights, x):
        out = conv(graph, x, weights)
        return jnp.sum(out**2), out

    gradients, out = jax.grad(loss, argnums=(0, 1), has_aux=True)(weights, x)
    assert not np.any(np.asarray(out))
    assert all(np.all(np.isfinite(g)) for g in gradients)


def test_gcn_weight_gradient_counts_only_the_loop_that_stays():
    """Three loops at node 0: the last of the user's list replaces the others."""
    graph = Graph.from_edges([0, 1, 0, 0], [0, 0, 0, 0], num_nodes=2)
    conv = GCNConv(2, 2, rngs=nnx.Rngs(0))
    x = normal(2, 2)

    @jax.jit
    def loss(user_weights):
        return 100 * jnp.sum(conv(graph, x, graph.sort_edge_data(user_weights)) ** 2)

    weights = jnp.asarray([5.0, 0.5, 7.0, 2.0])
    assert loss(weights) == loss(weights.at[jnp.asarray([0, 2])].set(-3.0))
    gradient = np.asarray(jax.grad(loss)(weights))
    assert gradient[0] == gradient[2] == 0
    step = jnp.asarray([0, 0, 0, 0.01])
    close(gradient[3], (loss(weights + step) - loss(weights - step)) / 0.02, 1e-3)
    assert abs(gradient[3]) > 1


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("edges", [0, 1])
def test_graphs_without_edges_or_nodes(name, edges):
    conv = CONVS[name](6, 3)
    graph = Graph.from_edges([2] * edges, [1] * edges, num_nodes=3)
    weights = jnp.ones(edges)
    out = conv(graph, normal(3, 6), weights)
    assert out.shape[0] == 3 and np.all(np.isfinite(out))
    close(out, conv(graph, normal(3, 6)))
    empty = conv(Graph.from_edges([], [], num_nodes=0), normal(0, 6))
    assert empty.shape == (0, out.shape[1])


@pytest.mark.parametrize(
    ("name", "widths", "dtype"),
    [
        ("gcn", (12, 6), jnp.bfloat16),
        ("gcn", (6, 12), jnp.float16),
        ("sage_mean", (6, 12), jnp.bfloat16),
        ("sage_sum", (12, 6), jnp.bfloat16),
        ("gin", (12, 6), jnp.bfloat16),
    ],
)
def test_low_precision(name, widths, dtype):
    graph, x, weights = random_graph(square=True), normal(40, widths[0]), normal(150, seed=1) ** 2
    narrow, wide = CONVS[name](*widths, dtype=dtype), CONVS[name](*widths)
    out = CALL(narrow, graph, x, weights)
    assert out.dtype == dtype
    assert jax.tree.leaves(nnx.state(narrow))[0].dtype == jnp.float32
    # The roundings of the input, the product and the sum; parameters are rounded too.
    close(out, CALL(wide, graph, x, weights), 8 * float(jnp.finfo(dtype).eps))


def test_gcn_normalizes_in_float32():
    """A degree of 1,001 has no bfloat16: rounded, the rows would not sum to 1."""
    star = np.arange(1001)
    graph = Graph.from_edges(np.repeat(star, 2), np.stack([star, 0 * star], 1).ravel())
    conv = GCNConv(1, 1, dtype=jnp.bfloat16, kernel_init=jax.nn.initializers.ones, rngs=nnx.Rngs(0))
    x = np.sqrt(np.asarray(dense_gcn_degree(graph)))[:, None]
    expected = dense_gcn(graph, None, 1) @ x
    out = np.asarray(conv(graph, jnp.asarray(x, jnp.float32)), np.float64)
    np.testing.assert_allclose(out, expected, rtol=2**-7)


def test_gcn_of_a_hub_is_in_float16_s_range():
    """Its neighbors' sum is not, before it is divided by the root of its degree."""
    hub = Graph.from_edges(np.arange(1, 5001), np.zeros(5000, int), num_nodes=5001)
    conv = GCNConv(1, 1, dtype=jnp.float16, kernel_init=jax.nn.initializers.ones, rngs=nnx.Rngs(0))
    x = jnp.full((5001, 1), 100, jnp.float16)
    expected = 100 * (5000 / np.sqrt(5001) + 1 / 5001)
    for weights in (None, jnp.ones(5000, jnp.float16)):
        out, gradient = jax.jit(
            jax.value_and_grad(lambda x, w: conv(hub, x, w)[0, 0].astype(jnp.float32))
        )(x, weights)
        np.testing.assert_allclose(out, expected, rtol=2**-9)
        np.testing.assert_allclose(gradient[1:], 1 / np.sqrt(5001), rtol=2**-9)


def dense_gcn_degree(graph):
    loops = np.asarray(graph.self_loops)
    return np.asarray(graph.in_degrees) + np.where(loops == 0, 1, 1 - loops)


def test_float64(x64):
    graph, x = random_graph(square=True), np.random.default_rng(0).normal(size=(40, 6))
    conv = GCNConv(6, 3, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    expected = dense_gcn(graph, None, 1) @ x @ np.asarray(conv.linear.kernel[...])
    out = conv(graph, jnp.asarray(x))
    assert out.dtype == jnp.float64
    np.testing.assert_allclose(np.asarray(out), expected, atol=1e-12)


def test_sage_normalizes_rows():
    graph, x = random_graph(square=True), normal(40, 6).at[7].set(0)
    conv = SAGEConv(6, 3, normalize=True, use_bias=False, rngs=nnx.Rngs(0))
    out = conv(graph, x)
    lengths = np.linalg.norm(np.asarray(out), axis=1)
    np.testing.assert_allclose(lengths[np.asarray(graph.in_degrees) > 0], 1, rtol=1e-5)
    lonely = Graph.from_edges([], [], num_nodes=40)
    assert not np.any(np.asarray(conv(lonely, jnp.zeros((40, 6)))))
    gradient = jax.grad(lambda x: jnp.sum(conv(lonely, x)))(jnp.zeros((40, 6)))
    assert np.all(np.isfinite(gradient))


def test_initial_values_are_pyg_s():
    """Bounds of the uniform distributions, reached by many draws; places of the biases."""
    rngs = nnx.Rngs(0)
    gcn = GCNConv(300, 100, rngs=rngs)
    bound = np.sqrt(6 / 400)
    kernel = np.abs(np.asarray(gcn.linear.kernel[...]))
    assert 0.99 * bound < kernel.max() <= bound and abs(kernel.mean() - bound / 2) < 1e-3
    assert not np.any(np.asarray(gcn.linear.bias[...]))
    sage = SAGEConv((300, 200), 1000, project=True, rngs=rngs)
    for layer, width in (
        (sage.linear_neighbors, 300),
        (sage.linear_root, 200),
        (sage.linear_project, 300),
    ):
        bound = 1 / np.sqrt(width)
        for value in jax.tree.leaves(nnx.state(layer)):
            value = np.abs(np.asarray(value))
            assert 0.98 * bound < value.max() <= bound
            assert abs(value.mean() - bound / 2) < 0.1 * bound
    assert sage.linear_root.bias is None and sage.linear_neighbors.bias is not None


def bad_calls():
    graph, rectangle = random_graph(square=True), random_graph()
    x, weights = jnp.ones((40, 6)), jnp.ones(150)
    gcn, sage = CONVS["gcn"](6, 3), CONVS["sage_mean"](6, 3)
    gin, rngs = CONVS["gin"](6, 3), nnx.Rngs(0)
    return {
        "no graph": (lambda: gcn(x, graph), TypeError, "graph: expected a jaxgnn.Graph"),
        "rectangular": (lambda: gcn(rectangle, x), ValueError, "GCNConv expected a square"),
        "pair": (
            lambda: gcn(graph, (x, x)),
            ValueError,
            "x: GCNConv expected one array, got a pair",
        ),
        "lists": (lambda: gcn(graph, [[1.0] * 6] * 40), ValueError, "x: .* got a list of 40; see"),
        "rows": (lambda: gcn(graph, x[1:]), ValueError, r"\(40, ..., 6\).*got \(39, 6\)"),
        "width": (lambda: sage(graph, x[:, 1:]), ValueError, r"got \(40, 5\)"),
        "vector": (lambda: gin(graph, x[:, 0]), ValueError, r"got \(40,\)"),
        "list": (lambda: gin(graph, "x"), TypeError, "x: expected an array, got str"),
        "weights": (lambda: gin(graph, x, weights[1:]), ValueError, "weights.*149"),
        "matrix": (lambda: gcn(graph, x, jnp.ones((150, 2))), ValueError, "weights"),
        "integers": (lambda: sage(graph, x, jnp.ones(150, int)), TypeError, "weights.*int32"),
        "categories": (lambda: gcn(graph, x.astype(int)), TypeError, "x: expected float32.*int32"),
        "senders": (
            lambda: sage(graph, (x.astype(int), None)),
            TypeError,
            r"x\[0\]: expected float32.*int32.*CategoryEmbedding",
        ),
        "one": (lambda: sage(rectangle, x), ValueError, "rectangular graph expected a pair"),
        "three": (lambda: gin(graph, (x, x, x)), ValueError, "got 3 entries"),
        "receivers": (lambda: sage(rectangle, (x, x)), ValueError, r"x\[1\].*\(30, ..., 6\)"),
        "two widths": (
            lambda: SAGEConv((6, 12), 3, rngs=rngs)(graph, x),
            ValueError,
            "two feature widths",
        ),
        "gin pair": (
            lambda: GINConv(jax.nn.relu)(rectangle, (x, jnp.ones((30, 5)))),
            ValueError,
            r"x\[1\]: expected the feature axes of x\[0\]",
        ),
        "axes": (  # as many as nodes: the roots would be broadcast along the wrong axis
            lambda: sage(graph, (jnp.ones((40, 40, 6)), x)),
            ValueError,
            r"x\[1\]: .* between the nodes and the features, \(40,\), got \(\)",
        ),
        "zero": (lambda: GCNConv(0, 4, rngs=rngs), ValueError, "in_features.*at least 1, got 0"),
        "float": (lambda: SAGEConv(6, 4.0, rngs=rngs), TypeError, "out_features.*4.0"),
        "triple": (lambda: SAGEConv((1, 2, 3), 4, rngs=rngs), ValueError, "in_features"),
        "aggr": (lambda: SAGEConv(6, 4, aggr="median", rngs=rngs), ValueError, "aggr.*'median'"),
        "loops": (
            lambda: GCNConv(6, 4, normalize=False, add_self_loops=True, rngs=rngs),
            ValueError,
            "add_self_loops",
        ),
        "nn": (lambda: GINConv(3), TypeError, "nn: expected a module or a function, got int"),
        "eps": (
            lambda: GINConv(jax.nn.relu, eps=jnp.ones(6), train_eps=True),
            TypeError,
            "eps: expected a number, got ArrayImpl",
        ),
        "eps array": (lambda: GINConv(jax.nn.relu, eps=np.asarray("a")), TypeError, "eps: .* str"),
        "eps complex": (lambda: GINConv(jax.nn.relu, eps=np.asarray(1j)), TypeError, "eps: .* com"),
        "eps nan": (
            lambda: GINConv(jax.nn.relu, eps=jnp.asarray(np.nan)),
            ValueError,
            "eps: expected a finite number, got nan",
        ),
        "eps trained": (
            lambda: GINConv(jax.nn.relu, eps=np.asarray(np.inf), train_eps=True),
            ValueError,
            "eps: expected a finite number, got inf",
        ),
        "eps traced": (
            lambda: jax.jit(lambda eps: GINConv(jax.nn.relu, eps=eps)(graph, x))(0.5),
            TypeError,
            "eps: expected a number, got .*Tracer",
        ),
        "train_eps": (
            lambda: GINConv(jax.nn.relu, train_eps=0.1),
            TypeError,
            "train_eps: expected True or False, got 0.1",
        ),
        "dtype": (lambda: GINConv(jax.nn.relu, dtype=int), TypeError, "dtype: .* got int64"),
        "param_dtype": (
            lambda: GINConv(jax.nn.relu, param_dtype=int),
            TypeError,
            "param_dtype: .* got int64",
        ),
        "mlp": (lambda: MLP([3], rngs=rngs), ValueError, "features: expected at least two"),
    }


def test_numbers_may_be_of_numpy():
    """Widths are often counts of an array's; modules hold them as Python's integers."""
    rngs, three = nnx.Rngs(0), np.int64(3)
    graph, x = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3), jnp.ones((3, 3))
    for module in (
        GCNConv(three, three, rngs=rngs),
        SAGEConv((three, np.int32(3)), three, rngs=rngs),
        GAT(three, np.int16(6), three, num_layers=np.uint8(2), heads=three, rngs=rngs),
    ):
        assert module(graph, x).shape == (3, 3)
    assert type(module.num_layers) is int


@pytest.mark.parametrize("eps", [0.5, np.asarray(0.5), jnp.asarray(0.5), jnp.bfloat16(0.5)])
def test_epsilon_may_be_an_array(eps):
    graph, x = Graph.from_edges([0, 1], [1, 0], num_nodes=2), jnp.eye(2)
    conv = GINConv(jax.nn.relu, eps=eps)
    np.testing.assert_array_equal(conv(graph, x), [[1.5, 1], [1, 1.5]])

    @jax.jit
    def of_traced(eps):
        return GINConv(jax.nn.relu, eps=eps, train_eps=True)(graph, x)

    np.testing.assert_array_equal(of_traced(jnp.asarray(eps)), [[1.5, 1], [1, 1.5]])


def test_bad_input_is_named():
    for case, (call, error, message) in bad_calls().items():
        try:
            call()
        except error as raised:
            assert re.search(message, str(raised)), f"{case}: {raised}"
        else:
            pytest.fail(f"{case}: nothing was raised")


def test_appnp_keeps_constants():
    """In bfloat16 its shares 0.1 and 0.9 would sum to 0.9985, and ten steps lose a percent."""
    ring = np.arange(NODES)
    graph = Graph.from_edges(ring, (ring + 1) % NODES, num_nodes=NODES)
    constants = jnp.broadcast_to(jnp.linspace(1, 2, 12, dtype=jnp.bfloat16), (NODES, 12))
    out = APPNP(10, 0.1, add_self_loops=False)(graph, constants)
    np.testing.assert_array_equal(out, constants)


BIASED = {
    "MLP": lambda **options: MLP((WIDTH, 3), **options),
    "GCNConv": lambda **options: GCNConv(WIDTH, 3, **options),
    "GATConv": lambda **options: GATConv(WIDTH, 3, **options),
    "GATv2Conv": lambda **options: GATv2Conv(WIDTH, 3, **options),
    "GMMConv": lambda **options: GMMConv(WIDTH, 3, dim=2, kernel_size=1, **options),
    "EdgeConv": lambda **options: EdgeConv(WIDTH, 3, **options),
}


@pytest.mark.parametrize("name", BIASED)
def test_gradients_of_biases_of_16_bits_are_sums_in_float32(name):
    """A sum of float16 that leaves its range, in the float32 of the parameters."""
    rows = 70
    layer = BIASED[name](dtype=jnp.float16, rngs=nnx.Rngs(0))
    operands = [Graph.from_edges(np.arange(rows), np.arange(rows), num_nodes=rows)]
    operands = [] if name == "MLP" else operands
    operands.append(jnp.zeros((rows, WIDTH), jnp.float16))
    if name == "GMMConv":
        operands.append(jnp.zeros((rows, 2), jnp.float16))
    definition, state = nnx.split(layer)
    out, transpose = jax.vjp(lambda state: nnx.merge(definition, state)(*operands), state)
    (gradients,) = transpose(jnp.full_like(out, 1001))
    biases = {path: leaf[...] for path, leaf in nnx.to_flat_state(gradients) if path[-1] == "bias"}
    bias = biases[min(biases, key=len)]  # the layer's own, not that of a projection before it
    assert bias.dtype == jnp.float32
    np.testing.assert_array_equal(bias, np.full(3, 1001.0 * rows))
