"""The convolutions against PyG on real graphs: values and all gradients in float32."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")

from torch_geometric.nn import MLP as TorchMLP  # noqa: E402
from torch_geometric.utils import scatter  # noqa: E402

from jaxgnn import Graph  # noqa: E402
from jaxgnn.data import load, read_matrix_market  # noqa: E402
from jaxgnn.nn import (  # noqa: E402
    MLP,
    AGNNConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GMMConv,
    SAGEConv,
    TransformerConv,
)
from tests.support.pyg_parity import Edges, assert_parity, copy_weights, empty, error  # noqa: E402

pytestmark = pytest.mark.few(1)

KEY_BIAS = r"linear_key\.bias"  # the same for all edges of a row: its derivative is 0
GRAPHS = ("cora", "amazon_photo", "p2p_gnutella31")


@functools.cache
def real_graph(path, name) -> tuple[Edges, np.ndarray]:
    """Cora with its own features; the others with 32 random ones.

    p2p_gnutella31 is directed, with 16,000 nodes that nobody sends to; amazon_photo has
    isolated nodes.
    """
    if name == "cora":
        cora = load(path / name)
        return Edges.of_graph(cora.graph), np.asarray(cora.features)
    if name == "amazon_photo":
        graph = load(path / name).graph
    else:
        graph = read_matrix_market(path / name / "p2p-Gnutella31.mtx.gz").to_graph()
    x = np.random.default_rng(0).normal(size=(graph.num_receivers, 32)).astype(np.float32)
    return Edges.of_graph(graph), x


@pytest.fixture(params=GRAPHS)
def real(request, data_directory):
    return real_graph(data_directory, request.param)


def random_weights(edges, seed=2):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 2, edges.senders.size).astype(np.float32)


def awkward() -> tuple[Edges, np.ndarray]:
    """Directed, with self-loops (some repeated), repeated edges and isolated nodes."""
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(30, size=(2, 200))
    senders[:40] = receivers[:40] = rng.integers(12, size=40)
    senders[100:120], receivers[100:120] = senders[120:140], receivers[120:140]
    return Edges.of(senders, receivers, 36), rng.normal(size=(36, 6)).astype(np.float32)


def overwritten_loops(edges) -> np.ndarray:
    """The self-loops that a later one of the same node replaces."""
    loops = np.flatnonzero(edges.senders == edges.receivers)
    last = {edges.senders[e]: e for e in loops}
    marked = np.zeros(edges.senders.size, bool)
    marked[[e for e in loops if last[edges.senders[e]] != e]] = True
    assert marked.any()
    return marked


def weighted_sage(conv, x, index, weights):
    """PyG's SAGEConv, whose messages take no weights, with weighted messages."""
    senders, receivers = x if isinstance(x, tuple) else (x, x)
    if conv.project:
        senders = conv.lin(senders).relu()
    out = scatter(
        weights[:, None] * senders[index[0]], index[1], 0, receivers.shape[0], reduce=conv.aggr
    )
    return conv.lin_l(out) + conv.lin_r(receivers)


def weighted_gin(conv, x, index, weights):
    out = scatter(weights[:, None] * x[index[0]], index[1], 0, x.shape[0], reduce="sum")
    return conv.nn((1 + conv.eps) * x + out)


def gcn_pair(a, b, *, bias=True, **options):
    ours = empty(lambda rngs: GCNConv(a, b, use_bias=bias, rngs=rngs, **options))
    reference = pyg.nn.GCNConv(a, b, bias=bias, **options)
    if bias:
        torch.nn.init.normal_(reference.bias)
    return reference, ours


def sage_pair(a, b, *, bias=True, **options):
    return (
        pyg.nn.SAGEConv(a, b, bias=bias, **options),
        empty(lambda rngs: SAGEConv(a, b, use_bias=bias, rngs=rngs, **options)),
    )


def gin_pair(widths, *, eps=0.3, train_eps=True):
    return (
        pyg.nn.GINConv(TorchMLP(widths, norm=None), eps=eps, train_eps=train_eps),
        empty(lambda rngs: GINConv(MLP(widths, rngs=rngs), eps=eps, train_eps=train_eps)),
    )


def gat_pair(a, b, *, bias=True, **options):
    reference = pyg.nn.GATConv(a, b, bias=bias, **options)
    if bias:
        torch.nn.init.normal_(reference.bias)
    return reference, empty(lambda rngs: GATConv(a, b, use_bias=bias, rngs=rngs, **options))


def gatv2_pair(a, b, *, bias=True, **options):
    reference = pyg.nn.GATv2Conv(a, b, bias=bias, **options)
    if bias:
        torch.nn.init.normal_(reference.bias)
    return reference, empty(lambda rngs: GATv2Conv(a, b, use_bias=bias, rngs=rngs, **options))


def agnn_pair(beta=1.5, **options):
    reference = pyg.nn.AGNNConv(**options)
    if options.get("requires_grad", True):
        torch.nn.init.constant_(reference.beta, beta)
    else:
        del reference.beta  # a part of the state, which ours has not
        reference.beta = 1.0
    return reference, AGNNConv(**options)


def transformer_pair(a, b, *, bias=True, root_weight=True, **options):
    reference = pyg.nn.TransformerConv(a, b, bias=bias, root_weight=root_weight, **options)
    if not root_weight:
        reference.lin_skip = torch.nn.Identity()  # it is there, and unused
    options |= {"use_bias": bias, "root_weight": root_weight}
    return reference, empty(lambda rngs: TransformerConv(a, b, rngs=rngs, **options))


def edge_pair(a, b, *, aggr="max", bias=True):
    return (
        pyg.nn.EdgeConv(torch.nn.Linear(2 * a, b, bias=bias), aggr=aggr),
        EdgeConv(a, b, aggr=aggr, use_bias=bias, rngs=nnx.Rngs(0)),
    )


def edge_mlp_pair(a, hidden, b, *, aggr="max"):
    widths, rngs = [2 * a, hidden, b], nnx.Rngs(0)
    return (
        pyg.nn.EdgeConv(TorchMLP(widths, norm=None, act="tanh"), aggr=aggr),
        EdgeConv(a, b, aggr=aggr, mlp=MLP(widths, activation=jnp.tanh, rngs=rngs), rngs=rngs),
    )


def gmm_pair(a, b, *, bias=True, **options):
    reference = pyg.nn.GMMConv(a, b, bias=bias, **options)
    if bias:
        torch.nn.init.normal_(reference.bias)
    with torch.no_grad():  # no Gaussian so narrow that float32 is far from any coordinate
        reference.sigma.copy_(reference.sigma.sign() * (0.4 + reference.sigma.abs()))
    options = {name: "sum" if value == "add" else value for name, value in options.items()}
    return reference, empty(lambda rngs: GMMConv(a, b, use_bias=bias, rngs=rngs, **options))


def edge_features(edges, width, seed=7):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(edges.senders.size, width)).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_gcn(real, weighted):
    edges, x = real
    assert_parity(*gcn_pair(x.shape[1], 16), edges, x, random_weights(edges) if weighted else None)


@pytest.mark.parametrize("aggr", ["mean", "sum", "max"])
def test_sage(real, aggr):
    edges, x = real
    if aggr == "max":
        # Cora's features are zeros and ones: ties in plenty. PyTorch shares a maximum of 0 with
        # the zero that it starts from, so its gradient there is too small: lift them off 0.
        x = x + 1
    assert_parity(*sage_pair(x.shape[1], 16, aggr=aggr), edges, x)


def test_sage_with_weights(real):
    edges, x = real
    reference, ours = sage_pair(x.shape[1], 16)
    assert_parity(reference, ours, edges, x, random_weights(edges), forward=weighted_sage)


def test_gin(real):
    edges, x = real
    assert_parity(*gin_pair([x.shape[1], 16, 8]), edges, x)


def test_gat(real):
    edges, x = real
    assert_parity(*gat_pair(x.shape[1], 6, heads=4), edges, x)


def test_gat_with_edge_features(data_directory):
    edges, x = real_graph(data_directory, "cora")
    reference, ours = gat_pair(x.shape[1], 6, heads=3, edge_dim=5, residual=True)
    assert_parity(reference, ours, edges, x, edge_features(edges, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"concat": False},
        {"residual": True},
        {"residual": True, "concat": False, "bias": False},
        {"add_self_loops": False, "negative_slope": 0.5},
        {"edge_dim": 2, "fill_value": 0.5},
        {"edge_dim": 2, "fill_value": "mean"},
        {"edge_dim": 2, "fill_value": "add"},
        {"edge_dim": 2, "fill_value": "max"},
        {"edge_dim": 1, "fill_value": "min", "add_self_loops": True},
        {"edge_dim": 3, "add_self_loops": False},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_gat_on_an_awkward_graph(options):
    edges, x = awkward()
    attributes = edge_features(edges, options["edge_dim"]) if "edge_dim" in options else None
    assert_parity(*gat_pair(6, 4, heads=3, **options), edges, x, attributes)


def test_gmm(real):
    edges, x = real
    coordinates = edge_features(edges, 2)
    assert_parity(*gmm_pair(x.shape[1], 6, dim=2, kernel_size=3), edges, x, coordinates)


def test_attentions_with_scores_of_pairs(data_directory):
    edges, x = real_graph(data_directory, "cora")
    assert_parity(*gatv2_pair(x.shape[1], 6, heads=3), edges, x)
    assert_parity(*agnn_pair(), edges, x)
    pair = transformer_pair(x.shape[1], 6, heads=3)
    assert_parity(*pair, edges, x, vanishing=KEY_BIAS)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 5, "aggr": "add"},
        {"kernel_size": 3, "separate_gaussians": True},
        {"kernel_size": 1, "separate_gaussians": True, "aggr": "add", "bias": False},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_gmm_on_an_awkward_graph(options):
    edges, x = awkward()
    assert_parity(*gmm_pair(6, 4, dim=3, **options), edges, x, edge_features(edges, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"concat": False, "residual": True, "bias": False},
        {"share_weights": True, "add_self_loops": False, "negative_slope": 0.5},
        {"edge_dim": 2, "fill_value": "mean", "residual": True},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_gatv2_on_an_awkward_graph(options):
    edges, x = awkward()
    attributes = edge_features(edges, options["edge_dim"]) if "edge_dim" in options else None
    assert_parity(*gatv2_pair(6, 4, heads=3, **options), edges, x, attributes)


@pytest.mark.parametrize(
    "options",
    [
        {"concat": False, "beta": True},
        {"root_weight": False, "bias": False},
        {"edge_dim": 2, "beta": True},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_transformer_on_an_awkward_graph(options):
    edges, x = awkward()
    attributes = edge_features(edges, options["edge_dim"]) if "edge_dim" in options else None
    pair = transformer_pair(6, 4, heads=3, **options)
    assert_parity(*pair, edges, x, attributes, vanishing=KEY_BIAS)


def test_agnn_options():
    edges, x = awkward()
    assert_parity(*agnn_pair(add_self_loops=False), edges, x)
    assert_parity(*agnn_pair(requires_grad=False), edges, x)


@pytest.mark.parametrize("aggr", ["max", "mean"])
def test_edge_conv(real, aggr):
    edges, x = real
    assert_parity(*edge_pair(x.shape[1], 16, aggr=aggr), edges, x)


@pytest.mark.parametrize("aggr", ["max", "mean", "sum"])
def test_edge_conv_on_an_awkward_graph(aggr):
    edges, x = awkward()
    assert_parity(*edge_pair(6, 5, aggr=aggr, bias=aggr != "mean"), edges, x)
    assert_parity(*edge_mlp_pair(6, 7, 4, aggr=aggr), edges, x, lin="mlp")


def test_aggregation_first(data_directory):
    edges, x = real_graph(data_directory, "amazon_photo")
    for reference, ours in (gcn_pair(32, 40), sage_pair(32, 40), gin_pair([32, 40, 8])):
        assert not ours.transform_first
        assert_parity(reference, ours, edges, x)


@pytest.mark.parametrize("width", [3, 9])
@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_on_an_awkward_graph(weighted, improved, width):
    edges, x = awkward()
    # PyG gives a self-loop that another one replaced the gradient of the one that stayed;
    # its derivative is 0 (see test_nn_conv.py).
    assert_parity(
        *gcn_pair(6, width, improved=improved, bias=not improved),
        edges,
        x,
        random_weights(edges) if weighted else None,
        skip_weights=overwritten_loops(edges),
    )


@pytest.mark.parametrize(
    "options", [{"add_self_loops": False}, {"normalize": False}], ids=lambda o: next(iter(o))
)
def test_gcn_options(options):
    edges, x = awkward()
    for weights in (None, random_weights(edges)):
        assert_parity(*gcn_pair(6, 4, **options), edges, x, weights)


@pytest.mark.parametrize("aggr", ["mean", "sum", "max", "min"])
def test_sage_on_an_awkward_graph(aggr):
    edges, x = awkward()
    assert_parity(*sage_pair(6, 4, aggr=aggr), edges, x)
    reference, ours = sage_pair(6, 9, aggr=aggr)
    assert_parity(reference, ours, edges, x, random_weights(edges), forward=weighted_sage)


@pytest.mark.parametrize(
    "options",
    [{"project": True}, {"root_weight": False}, {"normalize": True}, {"bias": False}],
    ids=lambda o: next(iter(o)),
)
def test_sage_options(options):
    edges, x = awkward()
    assert_parity(*sage_pair(6, 4, **options), edges, x, lin="linear_project")


def test_gin_on_an_awkward_graph():
    edges, x = awkward()
    assert_parity(*gin_pair([6, 4, 3]), edges, x)
    assert_parity(*gin_pair([6, 8, 3], train_eps=False), edges, x)
    assert_parity(*gin_pair([6, 4, 3]), edges, x, random_weights(edges), forward=weighted_gin)


def test_rectangular_graphs():
    rng = np.random.default_rng(5)
    senders, receivers = rng.integers(20, size=90), rng.integers(8, size=90)
    graph = Graph.from_edges(senders, receivers, num_senders=20, num_receivers=10)
    edges = Edges(senders, receivers, 20, 10, graph)
    wide, narrow = (rng.normal(size=(20, 6)), rng.normal(size=(10, 4)))
    x = wide.astype(np.float32), narrow.astype(np.float32)
    for aggr in ("mean", "max"):
        assert_parity(*sage_pair((6, 4), 5, aggr=aggr), edges, x)
    assert_parity(*gin_pair([6, 4, 3]), edges, (x[0], x[0][:10]))
    for options in ({}, {"add_self_loops": False, "residual": True}, {"edge_dim": 2}):
        attributes = edge_features(edges, 2) if "edge_dim" in options else None
        assert_parity(*gat_pair((6, 4), 5, heads=2, **options), edges, x, attributes)
    assert_parity(*gat_pair(6, 5, heads=2), edges, (x[0], x[0][:10]))
    assert_parity(*gmm_pair((6, 4), 5, dim=2, kernel_size=3), edges, x, edge_features(edges, 2))
    assert_parity(*gatv2_pair((6, 4), 5, heads=2, residual=True), edges, x)
    assert_parity(*transformer_pair((6, 4), 5, heads=2), edges, x, vanishing=KEY_BIAS)
    assert_parity(*edge_pair(6, 5), edges, (x[0], x[0][:10]))
    assert_parity(*edge_mlp_pair(6, 7, 4), edges, (x[0], x[0][:10]), lin="mlp")


def test_bfloat16_follows_pyg():
    """In bfloat16 ours is no further from PyG's float32 than PyG's own bfloat16 is (times 1.5)."""
    edges, x = awkward()
    for make in (gcn_pair, sage_pair):
        reference, _ = make(6, 4)
        exact = reference(torch.from_numpy(x), edges.index).detach().numpy()
        ours = make(6, 4)[1]
        copy_weights(reference, ours)
        narrow = empty(lambda rngs: type(ours)(6, 4, dtype=jnp.bfloat16, rngs=rngs))  # noqa: B023
        nnx.update(narrow, nnx.state(ours))
        out = narrow(edges.graph, jnp.asarray(x))
        theirs = reference.bfloat16()(torch.from_numpy(x).bfloat16(), edges.index)
        bound = 1.5 * error(theirs.detach().float().numpy(), exact)
        assert error(out, exact) <= bound
