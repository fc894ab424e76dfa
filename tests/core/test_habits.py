"""Arguments in the manner of PyG and Flax: taken where they fit, else an error says what to do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import Blocks, Graph, algebra, batch
from jaxgnn.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GNN,
    MLP,
    AGNNConv,
    AttentionReadout,
    DynamicEdgeConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GMMConv,
    GraphNorm,
    MaxK,
    SAGEConv,
    TransformerConv,
)

NODES, EDGES, WIDTH = 5, 8, 4


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(0)
    return Graph.from_edges(*rng.integers(NODES, size=(2, EDGES)), num_nodes=NODES)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape), jnp.float32)


def operations(graph, wrap):
    """Each of whose arrays went through `wrap`."""
    x = wrap(normal(NODES, WIDTH))
    heads = wrap(normal(NODES, 2, WIDTH))
    score = wrap(normal(NODES, 2))
    edges, weights = wrap(normal(EDGES, 2)), wrap(normal(EDGES))
    key, number = wrap(jax.random.key(0)), wrap(jnp.float32(0.5))
    source, target = algebra.scatter(graph, x, x)
    values = algebra.edge_values(graph, weights)
    return [
        jaxgnn.spmm(graph, x, weights),
        jaxgnn.sddmm(graph, x, x),
        jaxgnn.gather_edges(graph, x, x, "add"),
        jaxgnn.segment_reduce(graph, edges),
        jaxgnn.segment_softmax(graph, edges),
        jaxgnn.edge_conv(graph, x, x),
        jaxgnn.gat_attention(graph, heads, score, score, edges, dropout_rate=0.5, dropout_rng=key),
        jaxgnn.gatv2_attention(graph, heads, heads, wrap(normal(2, WIDTH)), edges),
        jaxgnn.dot_attention(graph, heads, heads, heads, scale=wrap(normal(2))),
        jaxgnn.cosine_attention(graph, heads, number),
        jaxgnn.gaussian_spmm(
            graph, heads, wrap(normal(2, 1)), wrap(normal(2, 1)), wrap(normal(EDGES, 1))
        ),
        jaxgnn.maxk(x, 2, bias=wrap(normal(WIDTH)), active=wrap(jnp.int32(1))).values,
        jaxgnn.maxk_spmm(graph, jaxgnn.maxk(x, 2), weights),
        jaxgnn.knn_graph(x, 2, batch=wrap(jnp.array([0, 0, 0, 1, 1])), loop=True).senders,
        jaxgnn.readout(batch.disjoint_union([graph]).membership, x),
        graph.sort_edge_data(weights),
        graph.unsort_edge_data(weights),
        jaxgnn.transform.gcn_norm(graph, weights)[1],
        batch.union_edge_data(batch.disjoint_union([graph]), [weights]),
        graph.to_scipy(weights).data,
        algebra.gather(algebra.linear(source, wrap(normal(WIDTH, 2)), wrap(normal(2))) * values),
        algebra.gather((number * source + target) / number - number),
    ]


def modules(graph, wrap):
    """The same of modules."""
    x = wrap(normal(NODES, WIDTH))
    edges, weights = wrap(normal(EDGES, 2)), wrap(normal(EDGES))
    options = {"rngs": nnx.Rngs(0)}
    mlp = MLP([2 * WIDTH, 3], **options)
    return [
        GCNConv(WIDTH, 3, **options)(graph, x, weights),
        SAGEConv(WIDTH, 3, **options)(graph, (x, x), weights),
        GINConv(MLP([WIDTH, 3], **options))(graph, x, weights),
        GATConv(WIDTH, 3, edge_dim=2, **options)(graph, x, edges),
        GATv2Conv(WIDTH, 3, edge_dim=2, **options)(graph, x, edges),
        TransformerConv(WIDTH, 3, edge_dim=2, **options)(graph, x, edges),
        AGNNConv()(graph, x),
        GMMConv(WIDTH, 3, 2, 2, **options)(graph, x, edges),
        EdgeConv(WIDTH, 3, mlp=mlp, **options)(graph, x),
        DynamicEdgeConv(WIDTH, 3, 2, **options)(x),
        GCN(WIDTH, 6, 3, num_layers=2, **options)(graph, x, weights),
        GAT(WIDTH, 6, 3, num_layers=2, activation=MaxK(2), **options)(graph, x),
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("calls", [operations, modules], ids=["operations", "modules"])
@pytest.mark.parametrize("wrap", [nnx.Param, np.asarray], ids=["nnx.Param", "numpy"])
def test_what_converts_to_an_array_is_one(graph, wrap, calls):
    def wrapped(array):
        key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        return array if key and wrap is np.asarray else wrap(array)

    expected = calls(graph, lambda array: array)
    for i, (found, plain) in enumerate(zip(calls(graph, wrapped), expected, strict=True)):
        np.testing.assert_array_equal(found, plain, err_msg=str(i))


def test_variables_are_differentiable(graph):
    gradient = jax.grad(lambda p: jaxgnn.spmm(graph, p).sum())(nnx.Param(normal(NODES, 2)))
    np.testing.assert_array_equal(
        gradient[...], jnp.broadcast_to(graph.out_degrees[:, None], (NODES, 2))
    )


def test_what_is_no_graph(graph):
    x, index = normal(NODES, 2), np.asarray(graph.edge_index)

    class Data:
        edge_index = index

    pair = Graph.from_edges(*index, num_nodes=NODES, edge_data=np.ones(EDGES, np.float32))
    blocks = jaxgnn.sample_neighbors(graph, np.arange(2), [2], jax.random.key(0))
    for wrong, hint in (
        (index, r"Graph\.from_edge_index\(edge_index\)"),
        (jnp.asarray(index), r"Graph\.from_edge_index\(edge_index\)"),
        (Data(), r"Graph\.from_edge_index\(data\.edge_index\)"),
        (pair, r"unpack the pair"),
        (x, "the graph comes first"),
        (nnx.Param(x), "the graph comes first"),
        (batch.disjoint_union([graph]), "its attribute graph is one"),
        (blocks, r"a convolution takes one of blocks\.graphs"),
    ):
        takers = [
            lambda g: jaxgnn.spmm(g, x),
            lambda g: GCNConv(2, 2, rngs=nnx.Rngs(0))(g, x),
            lambda g: SAGEConv(2, 2, rngs=nnx.Rngs(0))(g, x),
            lambda g: algebra.scatter(g, x),
            jaxgnn.transform.gcn_norm,
        ]
        if not isinstance(wrong, batch.GraphBatch | Blocks):  # which models take
            takers.append(lambda g: GCN(2, 2, 2, num_layers=1, rngs=nnx.Rngs(0))(g, x))
        for call in takers:
            with pytest.raises(TypeError, match=rf"graph: expected a jaxgnn\.Graph, got .*{hint}"):
                call(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rngs: GCN(2, 4, 2, 3, rngs=rngs), "GCN: expected in_features, .* got 4 arguments"),
        (lambda rngs: GCN(in_channels=2, rngs=rngs), "GCN: .*'in_channels': .* 'in_features'"),
        (lambda rngs: GIN(2, 4, 2, num_layers=2, jk="cat", rngs=rngs), "GIN: .*'jk': .*'jumping'"),
        (lambda rngs: GCNConv(2, 4, bias=False, rngs=rngs), "GCNConv: .*'bias': .* 'use_bias'"),
        (lambda rngs: APPNP(K=10), "APPNP: .*'K': PyG's name of 'num_steps'"),
        (lambda rngs: SAGEConv(2, 4), r"SAGEConv: expected rngs, such as nnx\.Rngs\(0\), got none"),
        (lambda rngs: GCN(2, 4, 2, num_layers=2), "GCN: expected rngs"),
    ],
)
def test_errors_of_layers_with_the_names_of_pyg(make, message):
    with pytest.raises(TypeError, match=message):
        make(nnx.Rngs(0))


@pytest.mark.parametrize("name", ["edge_attr", "edge_weight"])
def test_edge_data_of_an_edge_index_by_the_names_of_pyg(name):
    with pytest.raises(TypeError, match=f"from_edge_index: .* '{name}': .* 'edge_data'"):
        Graph.from_edge_index(np.zeros((2, 3), np.int32), **{name: np.ones(3, np.float32)})


def test_layers_of_one_s_own_have_their_own_names(graph):
    def conv(in_features, out_features, *, act, rngs, **_):
        assert act == "elu"
        return GCNConv(in_features, out_features, rngs=rngs)

    model = GNN(2, 4, 2, num_layers=2, conv=conv, act="elu", rngs=nnx.Rngs(0))
    assert model(graph, normal(NODES, 2)).shape == (NODES, 2)


def test_parts_of_batches_and_tensors_are_named(graph):
    union = batch.disjoint_union([graph])
    with pytest.raises(TypeError, match=r"membership: .* GraphBatch: its attribute membership"):
        jaxgnn.readout(union, normal(NODES, 2))

    class Tensor:
        def detach(self):
            return self

    with pytest.raises(TypeError, match=r"x: .* got Tensor of torch: jnp\.asarray\(x\)"):
        GCNConv(2, 2, rngs=nnx.Rngs(0))(graph, Tensor())
    with pytest.raises(TypeError, match=r"weights: .* of torch: jnp\.asarray\(weights\)"):
        jaxgnn.spmm(graph, normal(NODES, 2), Tensor())


def test_a_vector_of_the_graph_of_each_node_is_no_membership():
    x, vector = normal(3, 2), np.array([1, 0, 1])
    gate = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    for call in (
        lambda membership: jaxgnn.readout(membership, x),
        lambda membership: AttentionReadout(gate)(membership, x),
        lambda membership: GraphNorm(2)(x, membership),
    ):
        with pytest.raises(TypeError, match=r"membership: .* got ndarray: .*Graph\.from_edges\("):
            call(vector)
    membership = Graph.from_edges(np.arange(3), vector, num_senders=3, num_receivers=2)
    np.testing.assert_allclose(jaxgnn.readout(membership, x), [x[1], x[0] + x[2]])


def test_names_of_pyg(graph):
    x, weights, rngs = normal(NODES, 2), normal(EDGES), nnx.Rngs(0)
    with pytest.raises(ValueError, match=r"aggr: expected one of .*'sum'.*got 'add': PyG's 'add'"):
        SAGEConv(2, 2, aggr="add", rngs=rngs)
    with pytest.raises(ValueError, match=r"aggr: .* got 'add': PyG's 'add' is 'sum'"):
        GMMConv(2, 2, 1, 1, aggr="add", rngs=rngs)
    with pytest.raises(ValueError, match=r"reduce: .* got 'add': PyG's 'add' is 'sum'"):
        jaxgnn.spmm(graph, x, reduce="add")
    edges = re.escape("Graph.from_edges(..., edge_data=...)")
    for module in (GCNConv(2, 2, rngs=rngs), GCN(2, 2, 2, num_layers=1, rngs=rngs)):
        for name in ("edge_weight", "edge_attr"):
            with pytest.raises(
                TypeError, match=f"{name}.* edge data is its argument 'weights'.*{edges}"
            ):
                module(graph, x, **{name: weights})
        with pytest.raises(TypeError, match=r"'edge_index'; the graph is the first argument"):
            module(x=x, edge_index=graph.edge_index)
    with pytest.raises(TypeError, match="'weights'; edge data is its argument 'edge_attr'"):
        GATConv(2, 2, edge_dim=1, rngs=rngs)(graph, x, weights=weights)
    with pytest.raises(TypeError, match=r"DynamicEdgeConv: .* 'k'; it takes x, batch"):
        DynamicEdgeConv(2, 2, 2, rngs=rngs)(x, k=3)


def test_functions_of_jax_on_expressions(graph):
    edges = algebra.scatter(graph, normal(NODES, 2))
    for e in (
        edges,
        edges + 1,
        algebra.edge_values(graph, normal(EDGES)),
        algebra.segment_normalize(edges),
    ):
        for function in (jax.nn.sigmoid, jax.nn.relu, jnp.exp, jnp.sin, jnp.asarray):
            with pytest.raises(
                TypeError, match=r"apply_edge\(function, edges\).*evaluate\(edges\)"
            ):
                function(e)
    applied = algebra.evaluate(algebra.apply_edge(jax.nn.sigmoid, edges))
    np.testing.assert_array_equal(applied, jax.nn.sigmoid(algebra.evaluate(edges)))
