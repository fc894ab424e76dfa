"""Inference layer by layer, in batches of nodes, against the whole graph at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.nn import (
    AGNN,
    GAT,
    GCN,
    GIN,
    EdgeConvNet,
    GATv2,
    GraphSAGE,
    MaxK,
    MoNet,
    SAGEEmbedding,
    Transformer,
)
from jaxgnn.train import HostFeatures, layerwise_inference
from jaxgnn.train.steps.layerwise import NodeBatches, outputs_by_layer

NODES, WIDTH = 61, 5

MODELS = {
    "gcn": (GCN, {"norm": "batch", "jumping": "max", "dtype": jnp.float16}),
    "gcn of weights": (GCN, {"weights": True, "improved": True, "residual": True}),
    "gcn of maxk": (GCN, {"activation": MaxK(3), "input_layer": True}),
    "sage": (GraphSAGE, {"norm": "batch", "dropout": 0.5, "aggr": "max"}),
    "sage of maxk": (GraphSAGE, {"activation": MaxK(3), "jumping": "cat", "aggr": "sum"}),
    "sage_embedding": (SAGEEmbedding, {}),
    "gin": (GIN, {"norm": "layer", "residual": True, "jumping": "cat", "num_layers": 3}),
    "gat": (GAT, {"heads": 2, "edge_dim": 3, "weights": 3}),
    "gatv2": (GATv2, {"heads": 2, "residual": True}),
    "agnn": (AGNN, {}),
    "transformer": (Transformer, {"heads": 2, "dtype": jnp.bfloat16}),
    "edgeconv": (EdgeConvNet, {}),
    "monet": (MoNet, {}),
    "gcn of dropedge": (GCN, {"sample_rate": 0.5, "strategy": "dropedge"}),
}


def a_graph() -> Graph:
    """With a hub, repeated edges, self-loops, and nodes without edges."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NODES, (2, 300))
    receivers = np.where(receivers % 7 == 3, receivers - 1, receivers)
    hub, loops = np.arange(50), np.array([4, 4, 9])
    return Graph.from_edges(
        np.concatenate([senders, hub, loops]),
        np.concatenate([receivers, np.full(50, 17), loops]),
        num_nodes=NODES,
    )


GRAPH = a_graph()
X = np.random.default_rng(1).standard_normal((NODES, WIDTH)).astype(np.float32)


def of_edges(width: int | None) -> jax.Array:
    rest = () if width is True else (width,)
    return jnp.asarray(np.random.default_rng(2).random((GRAPH.num_edges, *rest)), jnp.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_model_on_the_whole_graph(name):
    kind, options = MODELS[name]
    options = {"num_layers": 2, **options}
    weights = of_edges(options.pop("weights")) if "weights" in options else None
    model = kind(WIDTH, 8, 3, rngs=nnx.Rngs(0), **options)
    for norm in model.norms or []:
        if isinstance(norm, nnx.BatchNorm):  # running statistics that change something
            norm.mean[...], norm.var[...] = norm.mean[...] + 0.3, norm.var[...] * 0.4
    found = layerwise_inference(model, GRAPH, X, weights, batch_size=16)
    if name in ("sage", "gatv2"):
        host = layerwise_inference(model, GRAPH, HostFeatures(X.copy()), weights, batch_size=16)
        # Two programs, which a GPU's products may round apart.
        limit = 0 if jax.default_backend() == "cpu" else 1e-6
        np.testing.assert_allclose(host, found, rtol=0, atol=limit)
    model.eval()
    wanted = jax.jit(lambda model, *given: model(*given))(model, GRAPH, X, weights)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    scale = float(jnp.max(jnp.abs(wanted))) * float(jnp.finfo(wanted.dtype).eps)
    assert scale > 0
    found, wanted = (np.asarray(rows, np.float32) for rows in (found, wanted))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * scale)


def test_batches_cover_the_nodes_and_hubs_do_not_widen_them():
    batches = NodeBatches.of(GRAPH, 16)
    degrees = np.asarray(GRAPH.in_degrees)
    assert batches.nodes == 16
    assert batches.count * batches.nodes >= NODES
    assert degrees.max() <= batches.edges <= 1.25 * 16 * GRAPH.num_edges / NODES + 1
    assert batches.senders < NODES
    # A hub's row alone exceeds what a batch has otherwise.
    star = Graph.from_edges(np.arange(100), np.full(100, 50), num_nodes=100)
    assert NodeBatches.of(star, 10).edges == 100
    empty = Graph.from_edges(np.zeros(0, int), np.zeros(0, int), num_nodes=7)
    assert NodeBatches.of(empty, 3) == (3, 0, 0, 3)


def test_memory_is_a_layer_and_a_batch():
    """Whatever the number of layers; and what only the gradient needs is dropped."""
    nodes, hidden, layers, batch = 4096, 128, 6, 256
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(0, nodes, (2, 2 * nodes)), num_nodes=nodes)
    model = GraphSAGE(WIDTH, hidden, hidden, num_layers=layers, jumping="max", rngs=nnx.Rngs(0))
    model.eval()
    batches = NodeBatches.of(graph, batch)

    def outputs(model, graph, x):
        return outputs_by_layer(model, batches, graph, x)

    x = jnp.zeros((nodes, WIDTH))
    program = jax.jit(outputs).lower(model, graph, x).compile()
    assert "sort(" not in program.as_text()
    row = 4 * hidden
    # Input, output and maximum of all nodes; of a batch its places' rows and what is made of them.
    places = batches.nodes + batches.senders + 2
    bound = 3 * (nodes + batch) * row + 4 * places * row
    assert program.memory_analysis().temp_size_in_bytes < bound < layers * nodes * row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": nnx.Linear(2, 3, rngs=nnx.Rngs(0))}, "model: expected one of jaxgnn.nn's"),
        ({"features": X[:, :4]}, r"features: expected the shape \(61, ..., 5\), got \(61, 4\)"),
        ({"weights": np.ones(3)}, r"weights: expected the shape \(\d+, ...\), got \(3,\)"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"sample_size": 4}, "model: expected one that aggregates all edges, got a sample_size"),
        ({"sample_rate": 0.5}, "model: expected one that aggregates all edges, got a sample_rate"),
    ],
)
def test_errors(change, message):
    given = {"graph": GRAPH, "features": X, **change}
    sample = {name: given.pop(name, None) for name in ("sample_size", "sample_rate")}
    model = GCN(WIDTH, 4, 3, num_layers=1, **sample, rngs=nnx.Rngs(0))
    with pytest.raises((TypeError, ValueError), match=message):
        layerwise_inference(given.pop("model", model), **given)
    with pytest.raises(TypeError, match="graph: expected a graph that is not traced"):
        jax.eval_shape(lambda graph: layerwise_inference(model, graph, X), GRAPH)
