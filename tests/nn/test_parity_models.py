"""GCN, GraphSAGE, GIN, GAT and the perceptron against PyG's, layer by layer the same weights."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")

from jaxgnn.data import load, read_matrix_market  # noqa: E402
from jaxgnn.nn import GAT, GCN, GIN, MLP, GraphSAGE  # noqa: E402
from tests.support.pyg_parity import Edges, assert_parity, copy_weights, empty, error  # noqa: E402

pytestmark = pytest.mark.few(1)

MODELS = {
    "gcn": (pyg.nn.GCN, GCN),
    "sage": (pyg.nn.GraphSAGE, GraphSAGE),
    "gin": (pyg.nn.GIN, GIN),
    "gat": (pyg.nn.GAT, GAT),
}


@functools.cache
def real_graph(path, name, width=16):
    if name == "p2p_gnutella31":
        graph = read_matrix_market(path / name / "p2p-Gnutella31.mtx.gz").to_graph()
    else:
        graph = load(path / name).graph
    x = np.random.default_rng(0).normal(size=(graph.num_receivers, width)).astype(np.float32)
    return Edges.of_graph(graph), x


@pytest.fixture
def cora(data_directory):
    return real_graph(data_directory, "cora")


def pair(name, layers=2, *, jumping=None, norm=None, width=16, **options):
    theirs, ours = MODELS[name]
    options_there = dict(options)
    if norm == "layer":
        options_there["norm_kwargs"] = {"mode": "node"}
    reference = theirs(width, 12, layers, 7, jk=jumping, norm=norm, **options_there)
    options |= {"jumping": jumping, "norm": norm}
    return reference, empty(
        lambda rngs: ours(width, 12, 7, num_layers=layers, rngs=rngs, **options)
    )


@pytest.mark.parametrize("graph", ["cora", "amazon_photo", "p2p_gnutella31"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, graph, data_directory):
    edges, x = real_graph(data_directory, graph)
    weights = None
    if name == "gcn":  # the one that takes weights in PyG's models
        rng = np.random.default_rng(1)
        weights = rng.uniform(0.2, 2, edges.senders.size).astype(np.float32)
    assert_parity(*pair(name), edges, x, weights)


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 1},
        {"layers": 3, "jumping": "cat"},
        {"jumping": "max", "norm": "layer"},
        {"jumping": "last"},
        {"layers": 3, "norm": "batch"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_options(options, cora):
    edges, x = cora
    name = "gin" if options.get("norm") == "batch" else "sage"
    vanishing = None
    if options.get("norm") == "batch":
        # Followed by batch statistics: the perceptrons' first biases, and the outer layers' last.
        vanishing = r"linears\.0\.bias|convs\.[01]\.nn\.linears\.1\.bias"
    assert_parity(*pair(name, **options), edges, x, vanishing=vanishing)


@pytest.mark.parametrize("options", [{"jumping": "cat"}, {"concat": False, "layers": 3}], ids=str)
def test_gat_options(options, cora):
    edges, x = cora
    assert_parity(*pair("gat", heads=4, **options), edges, x)


def test_batch_statistics_in_evaluation(cora):
    """After steps in training mode the running statistics agree, and so does evaluation."""
    edges, x = cora
    reference, module = pair("gcn", norm="batch")
    copy_weights(reference, module)
    for scale in (1, 3):
        reference(torch.from_numpy(scale * x), edges.index)
        module(edges.graph, scale * jnp.asarray(x))
    nodes = x.shape[0]
    statistics = nnx.state(module.norms[0], nnx.BatchStat)
    theirs = reference.norms[0].module
    assert error(statistics["mean"][...], theirs.running_mean) <= 1e-5
    # PyTorch keeps the unbiased variance, Flax the biased one: the start value 1 is 0.81 of it.
    unbiased = (np.asarray(statistics["var"][...]) - 0.81) * nodes / (nodes - 1) + 0.81
    assert error(unbiased, theirs.running_var) <= 1e-5
    reference.eval(), module.eval()
    expected = reference(torch.from_numpy(x), edges.index).detach()
    assert error(module(edges.graph, jnp.asarray(x)), expected) <= 2 / nodes


@pytest.mark.parametrize("norm", [None, "batch"])
def test_mlp(norm):
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    reference = pyg.nn.MLP([6, 9, 4, 3], norm=norm and "batch_norm")
    module = empty(lambda rngs: MLP([6, 9, 4, 3], norm=norm, rngs=rngs))
    copy_weights(reference, module)
    assert error(module(jnp.asarray(x)), reference(torch.from_numpy(x)).detach()) <= 1e-5
