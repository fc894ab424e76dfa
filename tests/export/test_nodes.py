"""Exported models of nodes are the models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, export
from jaxgnn.data import DataError
from jaxgnn.nn import GCN, MLPDecoder
from jaxgnn.train import TrainConfig, build_model
from tests.support.exports import COUNTS, EDGES, FEATURES, NODES, PLATFORM, a_graph, a_model

pytest.importorskip("flatbuffers")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gat", "heads": 2},
        {"model": "gcn", "activation": "maxk", "k": 4, "norm": "batch", "dtype": "bfloat16"},
    ],
    ids=lambda settings: settings["model"],
)
def test_exported_models_are_the_models(settings, tmp_path):
    model = a_model(**settings)
    dtype = settings.get("dtype", "float32")
    model_of = jax.jit(lambda graph, x: model(graph, x))
    graphs = [a_graph(), a_graph(30, 1200), Graph.from_edges(np.zeros(0, int), np.zeros(0, int))]
    for portable in (False, True):
        directory = tmp_path / str(portable)
        manifest = export.save(model, directory, dtype=dtype, portable=portable, **COUNTS)
        assert bool(manifest.kernels[PLATFORM]) != portable
        loaded = export.load(directory)
        assert (loaded.manifest.num_classes, loaded.manifest.portable) == (3, portable)
        for graph in graphs:
            x = np.random.default_rng(1).normal(size=(graph.num_nodes, FEATURES))
            found = loaded(graph, x.astype(np.float32))
            assert found.shape == (graph.num_nodes, 3)
            if graph.num_nodes:
                expected = model_of(graph, jnp.asarray(x, dtype)).astype(jnp.float32)
                limit = 1e-2 if dtype == "bfloat16" else 1e-5 if portable else 1e-6
                np.testing.assert_allclose(
                    found.astype(jnp.float32), expected, atol=limit, rtol=limit
                )


@pytest.mark.system
def test_programs_of_models_in_training_mode_are_in_inference_mode(tmp_path):
    """Neither dropout nor the statistics of a batch; the model stays as it is."""
    graph, x = a_graph(), np.random.default_rng(1).normal(size=(NODES, FEATURES))
    model = build_model(TrainConfig(hidden=8, norm="batch"), FEATURES, 8, nnx.Rngs(0))
    decoder = MLPDecoder(8, 8, dropout=0.5, rngs=nnx.Rngs(1))
    export.save(model, tmp_path, decoder=decoder, **COUNTS)
    assert not (model.dropout.deterministic or decoder.mlp.dropout.deterministic)
    model.eval(), decoder.eval()
    loaded, ends = export.load_links(tmp_path), np.arange(NODES)
    nodes = loaded.encode(graph, x)
    np.testing.assert_allclose(nodes, model(graph, jnp.asarray(x, "float32")), rtol=1e-5, atol=1e-5)
    expected = decoder(jnp.asarray(nodes), ends, ends[::-1])
    np.testing.assert_allclose(
        loaded.score(nodes, ends, ends[::-1]), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.system
@pytest.mark.parametrize("portable", [False, True])
def test_graph_norm_leaves_the_padding_out(tmp_path, portable):
    model = GCN(FEATURES, 8, 3, num_layers=2, norm="graph", rngs=nnx.Rngs(0))
    manifest = export.save(model, tmp_path, portable=portable, edge_weights=True, **COUNTS)
    assert ("graph_ids" in manifest.arrays) == portable
    loaded = export.load(tmp_path)
    for graph in (a_graph(), a_graph(30, 1200), Graph.from_edges([], [], num_nodes=2)):
        x = np.random.default_rng(1).normal(size=(graph.num_nodes, FEATURES)).astype(np.float32)
        weights = np.linspace(0, 1, graph.num_edges, dtype=np.float32)
        expected = model(graph, jnp.asarray(x), jnp.asarray(weights))
        np.testing.assert_allclose(loaded(graph, x, weights), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(DataError, match="graph: expected at most 40 nodes and 1,500 edges, got 41"):
        loaded(a_graph(NODES + 1), np.zeros((NODES + 1, FEATURES)), weights=np.zeros(EDGES))


def test_numbers_and_dtypes_of_numpy(tmp_path):
    options = {name: np.int64(COUNTS[name]) for name in ("num_nodes", "num_edges", "num_features")}
    options |= {
        "dtype": jnp.float16,
        "portable": np.True_,
        "class_names": np.array(["a", "b", "c"]),
    }
    export.save(a_model(model="sage"), tmp_path, **(COUNTS | options))
    found = export.load(tmp_path).manifest
    assert (found.num_nodes, found.dtype, found.portable) == (NODES, "float16", True)
    assert found.class_names == ("a", "b", "c")
