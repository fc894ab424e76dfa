"""Exported models of links: an encoder and a decoder."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import export
from jaxgnn.data import DataError
from jaxgnn.nn import DotDecoder
from jaxgnn.train import LinkDescription, LoadedLinkRun, Progress, TrainConfig
from jaxgnn.train.problems.links import build_links
from tests.support.exports import (
    COUNTS,
    EDGES,
    FEATURES,
    NODES,
    a_graph,
    a_model,
    edited,
    other_program,
    replaced,
)

pytest.importorskip("flatbuffers")


@pytest.mark.system
@pytest.mark.parametrize("portable", [False, True])
def test_exported_links_are_the_models(tmp_path, portable):
    """Features and a perceptron; smaller graphs, any number of pairs, and JAX alone."""
    config = TrainConfig(task="link", hidden=8, model="gat", heads=2, decoder="mlp")
    program, state = build_links(config, 1, FEATURES)
    model = nnx.merge(program.inference, state.params, state.rest)
    description = LinkDescription("a", NODES, EDGES, FEATURES, False)
    run = LoadedLinkRun(Path(), config, description, model, Progress())
    directory = tmp_path / "model"
    written = export.save(
        run.exportable(), directory, decoder=model.decoder, portable=portable, **COUNTS
    )
    assert written.links and written.num_classes == 8
    loaded = export.load_links(directory)
    rng = np.random.default_rng(0)
    for graph, count in ((a_graph(), 7), (a_graph(30, 1200), 1), (a_graph(30, 1200), 0)):
        x = rng.normal(size=(graph.num_nodes, FEATURES)).astype(np.float32)
        pairs = rng.integers(0, graph.num_nodes, (2, count))
        nodes = run.encode(graph, x)
        np.testing.assert_allclose(loaded.encode(graph, x), nodes, atol=1e-5)
        expected = run.logits(nodes, *pairs)
        np.testing.assert_allclose(loaded(graph, x, *pairs), expected, atol=1e-5)
        np.testing.assert_allclose(expected, run.logits(nodes, *pairs[::-1]), atol=1e-6)
    decoder = jax.export.deserialize(bytearray((directory / "decoder.bin").read_bytes()))
    weights = dict(np.load(directory / "decoder.npz"))
    ends = np.array([[3, 4], [5, 6]], np.int32)
    np.testing.assert_allclose(
        decoder.call(weights, nodes, *ends), run.logits(nodes, *ends), atol=1e-5
    )
    for call, message in (
        (lambda: loaded.encode(graph), "x: expected 5 features a node, got None"),
        (lambda: run.encode(graph, None), "features: expected node features, got a graph without"),
        (lambda: loaded.score(nodes, [0], [30]), "receivers: expected 0 to 29, got 30 to 30"),
        (lambda: run.logits(nodes, [-1], [0]), "senders: expected 0 to 29, got -1 to -1"),
        (lambda: loaded.score(nodes, [0, 1], [0]), "expected one length, got 2 and 1"),
        (lambda: loaded.score(nodes, [0.5], [0]), "senders: expected integers with 1 axis"),
        (lambda: export.load(directory), "model: a model of links, for jaxgnn.export.load_links"),
    ):
        with pytest.raises(DataError, match=message):
            call()
    if portable:
        return
    # Another decoder, with checksums that fit.
    sizes = jax.export.symbolic_shape("n, p")
    ids = jax.ShapeDtypeStruct(sizes[1:], jnp.int32)
    rows = jax.ShapeDtypeStruct((sizes[0], 8), jnp.float32)
    shapes = {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in weights.items()}
    narrow = jax.ShapeDtypeStruct((sizes[0], 7), jnp.float32)
    other = {
        "the decoder's arguments are not its weights": (lambda x, i, j: x[i, 0], rows, ids, ids),
        "does not score pairs": (lambda w, x, i, j: x[i], shapes, rows, ids, ids),
        "score pairs of any number": (lambda w, x, i, j: x[i, 0], shapes, narrow, ids, ids),
    }
    for number, (message, arguments) in enumerate(other.items()):
        copy = replaced(directory, tmp_path / str(number), "decoder.bin", other_program(*arguments))
        with pytest.raises(DataError, match=message):
            export.load_links(copy)
    copy = edited(directory, tmp_path / "node", links=False)
    with pytest.raises(DataError, match=r"sha256: expected those of program.bin and variables"):
        export.load(copy)


def test_errors_of_pairs_and_their_nodes(tmp_path):
    export.save(a_model(model="mlp"), tmp_path, decoder=DotDecoder(), **COUNTS)
    loaded = export.load_links(tmp_path)
    nodes = loaded.encode(a_graph(), np.ones((NODES, FEATURES)))
    assert loaded.score(nodes, [], []).shape == (0,)
    np.testing.assert_array_equal(
        loaded.score(np.asarray(nodes, np.float64).tolist(), [0], [1]),
        loaded.score(nodes, [0], [1]),
    )
    for wrong, message in (
        ((None, [0], [1]), "nodes: expected an array of real numbers, got None"),
        ((nodes + 1j, [0], [1]), "nodes: expected an array of real numbers, got complex64"),
        ((nodes[:, 1:], [0], [1]), r"nodes: expected the shape \[nodes, 3\], got \[40, 2\]"),
        ((nodes[0], [0], [1]), r"nodes: expected the shape \[nodes, 3\], got \[3\]"),
        ((nodes, [[0], [1, 2]], [1]), "senders: expected an array of integers, got list"),
        ((nodes, [0], [[]]), r"receivers: expected integers with 1 axis, got int32\(1, 0\)"),
    ):
        with pytest.raises((TypeError, DataError), match=message):
            loaded.score(*wrong)
