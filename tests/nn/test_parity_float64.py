"""Options and arguments that PyG's layers take, in float64: values and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")

from jaxgnn import Graph  # noqa: E402
from jaxgnn.nn import GATConv, GATv2Conv, GMMConv, SAGEConv, TransformerConv  # noqa: E402
from tests.support.oracle import close  # noqa: E402
from tests.support.pyg_parity import Edges, assert_parity  # noqa: E402

pytestmark = pytest.mark.few(1)

TOLERANCE = 1e-11
KEY_BIAS = r"linear_key\.bias"
SENDERS, RECEIVERS = 20, 14


@pytest.fixture(autouse=True)
def wide(x64):
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def square() -> Edges:
    """With self-loops, repeated edges and isolated nodes."""
    senders, receivers = np.random.default_rng(3).integers(12, size=(2, 70))
    return Edges.of(senders, receivers, RECEIVERS)


def rectangular() -> Edges:
    rng = np.random.default_rng(4)
    senders, receivers = rng.integers(SENDERS, size=90), rng.integers(RECEIVERS - 2, size=90)
    graph = Graph.from_edges(senders, receivers, num_senders=SENDERS, num_receivers=RECEIVERS)
    return Edges(senders, receivers, SENDERS, RECEIVERS, graph)


def parity(theirs, ours, edges, x, *arguments, own=None, bias=True, **options):
    """`own` replaces options that are other ones here."""
    named = {"use_bias": bias, **options, **(own or {})}
    reference = theirs(*arguments, bias=bias, **options)
    if getattr(reference, "bias", None) is not None and isinstance(reference.bias, torch.Tensor):
        torch.nn.init.normal_(reference.bias)
    module = ours(*arguments, param_dtype=jnp.float64, rngs=nnx.Rngs(0), **named)

    def check(*more, **how):
        return assert_parity(reference, module, edges, x, *more, tolerance=TOLERANCE, **how)

    return check


@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_sage_without_features_of_the_receivers(aggr):
    x = (normal(SENDERS, 6), None)

    def forward(reference, x, index, weights):
        return reference(x, index, size=(SENDERS, RECEIVERS))

    parity(pyg.nn.SAGEConv, SAGEConv, rectangular(), x, (6, 4), 5, aggr=aggr)(forward=forward)


def test_gmm_without_features_of_the_receivers():
    edges, x = rectangular(), (normal(SENDERS, 6), None)

    def forward(reference, x, index, weights):
        return reference(x, index, weights, size=(SENDERS, RECEIVERS))

    check = parity(pyg.nn.GMMConv, GMMConv, edges, x, (6, 4), 5, dim=2, kernel_size=3)
    check(normal(90, 2), forward=forward)


@pytest.mark.parametrize("width", [6, (6, 4)])
def test_gat_without_features_of_the_receivers(width):
    edges, x = rectangular(), (normal(SENDERS, 6), None)

    def forward(reference, x, index, weights):
        return reference(x, index, size=(SENDERS, RECEIVERS))

    options = {"heads": 2, "residual": True, "add_self_loops": False}
    parity(pyg.nn.GATConv, GATConv, edges, x, width, 5, **options)(forward=forward)


def test_gmm_on_no_nodes():
    conv = GMMConv(3, 4, 2, 2, separate_gaussians=True, rngs=nnx.Rngs(0))
    for x in (jnp.zeros((0, 3)), jnp.zeros((0, 5, 3))):
        out = conv(Graph.from_edges([], [], num_nodes=0), x, jnp.zeros((0, 2)))
        assert out.shape == (*x.shape[:-1], 4)
    reference = pyg.nn.GMMConv(3, 4, 2, 2, separate_gaussians=True)
    index = torch.zeros((2, 0), dtype=torch.int64)
    assert reference(torch.zeros(0, 3), index, torch.zeros(0, 2)).shape == (0, 4)
    block = Graph.from_edges([], [], num_senders=0, num_receivers=2)
    pair = jnp.zeros((0, 3)), jnp.ones((2, 3))
    assert conv(block, pair, jnp.zeros((0, 2))).shape == (2, 4)


def test_transformer_needs_the_features_that_it_was_made_for():
    edges, x = square(), normal(RECEIVERS, 6)
    reference = pyg.nn.TransformerConv(6, 4, edge_dim=2)
    with pytest.raises(AssertionError):
        reference(torch.from_numpy(x), edges.index)
    conv = TransformerConv(6, 4, edge_dim=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"edge_attr: TransformerConv with edge_dim=2 expected"):
        conv(edges.graph, x)
    check = parity(pyg.nn.TransformerConv, TransformerConv, edges, x, 6, 4, edge_dim=2, heads=2)
    check(normal(70, 2), vanishing=KEY_BIAS)


@pytest.mark.parametrize("slope", [-0.3, -2.0, 0.0, 1.5])
@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
def test_any_negative_slope(layer, slope):
    theirs, ours = getattr(pyg.nn, layer), {"GATConv": GATConv, "GATv2Conv": GATv2Conv}[layer]
    x = normal(RECEIVERS, 6)
    for options in ({}, {"edge_dim": 2}):
        attributes = [normal(70, 2)] if options else []
        check = parity(theirs, ours, square(), x, 6, 4, heads=3, negative_slope=slope, **options)
        check(*attributes)


FILLS = {
    "mul": "mul",
    "row": normal(2),
    "row_of_two_axes": normal(1, 2),
    "rows": normal(RECEIVERS, 2),
    "number": normal(),
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
def test_fill_values(layer, fill):
    theirs, ours = getattr(pyg.nn, layer), {"GATConv": GATConv, "GATv2Conv": GATv2Conv}[layer]
    value = FILLS[fill]
    there = value if isinstance(value, str) else torch.as_tensor(value)
    attributes = normal(70, 2, seed=1)
    attributes[::7, 0] = 0  # of a product the derivative holds at 0 too
    check = parity(
        theirs, ours, square(), normal(RECEIVERS, 6), 6, 4, heads=3, edge_dim=2, fill_value=there,
        own={"fill_value": np.asarray(value) if not isinstance(value, str) else value},
    )  # fmt: skip
    check(attributes)


def test_fill_values_of_edges_with_one_feature():
    for fill in (normal(RECEIVERS), normal(1), "mul"):
        there = fill if isinstance(fill, str) else torch.as_tensor(fill)
        check = parity(
            pyg.nn.GATConv, GATConv, square(), normal(RECEIVERS, 6), 6, 4, edge_dim=1,
            fill_value=there, own={"fill_value": fill},
        )  # fmt: skip
        check(normal(70, seed=1))


def test_fill_values_are_checked_and_go_through_jit():
    graph, x, attributes = square().graph, normal(RECEIVERS, 6), jnp.ones((70, 2))
    for fill, message in (
        (np.ones(3), r"fill_value: expected the shape \(2,\) or \(14, 2\), got \(3,\)"),
        (np.ones((5, 2)), r"fill_value: expected the shape .* got \(5, 2\)"),
    ):
        conv = GATConv(6, 4, edge_dim=2, fill_value=fill, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match=message):
            conv(graph, x, attributes)
    with pytest.raises(ValueError, match=r"fill_value: expected one row or one a node"):
        GATConv(6, 4, edge_dim=2, fill_value=np.ones((1, 1, 2)), rngs=nnx.Rngs(0))
    conv = GATConv(6, 4, edge_dim=2, fill_value=[0.5, 2.0], rngs=nnx.Rngs(0))
    apply = nnx.jit(lambda conv, graph, x, e: conv(graph, x, e))
    close(apply(conv, graph, x, attributes), conv(graph, x, attributes), 1e-5)
    assert not jax.tree.leaves(nnx.state(conv, nnx.Param).get("fill_value", ()))
    empty_graph = Graph.from_edges([], [], num_nodes=3)
    conv = GATConv(6, 4, edge_dim=2, fill_value="mul", rngs=nnx.Rngs(0))
    assert conv(empty_graph, x[:3], jnp.ones((0, 2))).shape == (3, 4)
