"""Exported models of whole graphs."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, batch, export, readout
from jaxgnn.data import DataError
from jaxgnn.train import GraphSetDescription, LoadedGraphRun, Progress, TrainConfig
from jaxgnn.train.problems.graph_model import build_graphs
from tests.support.exports import COUNTS, FEATURES, PLATFORM
from tests.train.test_graph_task import graph_set

pytest.importorskip("flatbuffers")


def rows_of(x: np.ndarray, count: int, size: int) -> np.ndarray:
    """The first rows, and zeros."""
    return np.pad(x[:count], ((0, size - count), (0, 0)))


@pytest.mark.few(1)
@pytest.mark.parametrize("inputs", ["edges", "degrees"])
def test_exported_graphs_are_the_models(tmp_path, inputs):
    """Of nodes' and edges' features, and of degrees; unions of any number of graphs, in one call
    and in several, and JAX alone. Two of the graphs have no node and one."""
    sets = graph_set("values" if inputs == "edges" else "class", edges=inputs == "edges")
    settings = {"model": "gin", "readout": "attention"}
    if inputs == "degrees":
        sets = dataclasses.replace(sets, features=None)
        settings = {"model": "sage", "norm": "graph", "readout": "max"}
    config = TrainConfig(task="graph", hidden=8, batch_size=16, **settings)
    description = GraphSetDescription.of(config, sets)
    assert description.inputs == ("features" if inputs == "edges" else "degrees")
    program, state = build_graphs(config, description, 1, sets.labels)
    model = nnx.merge(program.inference, state.params, state.rest)
    run = LoadedGraphRun(Path(), config, description, model, Progress())
    expected = run.logits(sets)
    nodes, edges = run.union_size(sets)
    graphs = [item.graph for item in sets]
    x, edge_features = sets.features, None
    if inputs == "edges":
        edge_features = np.concatenate([item.edge_features for item in sets])
    counts = {
        "num_graphs": 16,
        "num_nodes": nodes,
        "num_edges": edges,
        "num_features": 3 if inputs == "edges" else 0,
        "num_edge_features": description.num_edge_features,
        "platforms": [PLATFORM],
    }
    for portable in (False, True):
        directory = tmp_path / str(portable)
        written = export.save(run.exportable(), directory, portable=portable, **counts)
        assert bool(written.kernels[PLATFORM]) != portable and written.kind == "graphs"
        loaded = export.load_graphs(directory)
        limit = {"atol": 1e-5 if portable else 1e-6, "rtol": 1e-5 if portable else 1e-6}
        np.testing.assert_allclose(loaded(graphs, x, edge_features), expected, **limit)
        # A batch, which may have padding of its own.
        union = batch.pad(batch.disjoint_union(graphs[:5]), num_nodes=nodes - 1, num_graphs=7)
        real = sum(graph.num_nodes for graph in graphs[:5])
        rows = None if x is None else rows_of(x, real, nodes - 1)
        some = None if edge_features is None else edge_features[: union.graph.num_edges]
        for _ in range(2):
            found = loaded(union, rows, some)
            assert found.shape == (7, description.num_outputs)
            np.testing.assert_allclose(found[:5], expected[:5], **limit)
        assert loaded([], *(None if a is None else a[:0] for a in (x, edge_features))).size == 0
        for call in (loaded, run.predict):
            with pytest.raises(TypeError, match="a sequence of graphs, got one Graph"):
                call(graphs[0])

    names = json.loads((directory / "manifest.json").read_text())["arrays"]
    assert names == ["senders", "receivers", "graph_ids"]
    program = jax.export.deserialize(bytearray((directory / "program.bin").read_bytes()))
    union = batch.disjoint_union(graphs[:5])
    arrays = [
        np.append(a, np.full(size - a.size, last)).astype(np.int32)
        for a, size, last in (
            (union.graph.senders, edges, nodes - 1),
            (union.graph.receivers, edges, nodes - 1),
            (np.repeat(np.arange(5), [g.num_nodes for g in graphs[:5]]), nodes, 16),
        )
    ]
    rows = np.zeros((nodes, 0), np.float32) if x is None else rows_of(x, real, nodes)
    more = [] if edge_features is None else [rows_of(edge_features, union.graph.num_edges, edges)]
    found = program.call(dict(np.load(directory / "variables.npz")), arrays, rows, *more)
    np.testing.assert_allclose(found[:5], expected[:5], atol=1e-5, rtol=1e-5)

    large = Graph.from_edges(np.zeros(edges + 1, int), np.zeros(edges + 1, int))
    wide = Graph.from_edges(np.zeros(1, int), np.zeros(1, int), num_senders=2, num_receivers=1)
    of = np.zeros((1, 3), np.float32) if inputs == "edges" else None
    of_edges = np.zeros((edges + 1, 2)) if inputs == "edges" else None
    unfit = "expected None" if inputs == "degrees" else r"expected the shape \[0, 3\], got \[9, 3\]"
    many = batch.disjoint_union([Graph.from_edges([], [])] * 17)
    empty = (None, None) if of is None else (of[:0], of_edges[:0])
    for call, message in (
        (lambda: loaded([large], of, of_edges), f"and {edges:,} edges, got 1 and {edges + 1:,}"),
        (lambda: loaded([wide]), r"graphs\[0\]: expected a square graph, got"),
        (lambda: loaded([], np.zeros((9, 3))), unfit),
        (lambda: loaded(many, *empty), "graphs: expected at most 16, got 17"),
        (lambda: export.load(directory), "True: a model of graphs, for jaxgnn.export.load_graphs"),
    ):
        with pytest.raises(DataError, match=message):
            call()
    with pytest.raises(DataError, match="num_edge_features: expected num_graphs with it, got 2"):
        export.save(model, tmp_path / "o", **COUNTS, num_edge_features=2)


class Readout(nnx.Module):
    """The mean of each graph's nodes."""

    def __call__(self, union, x):
        return readout(union.membership, x, "mean")


def test_errors_of_many_graphs(tmp_path):
    export.save(Readout(), tmp_path, num_graphs=2, **COUNTS)
    loaded, graph = export.load_graphs(tmp_path), Graph.from_edges([0], [1])
    x = np.ones((4, FEATURES))
    np.testing.assert_allclose(loaded((graph for _ in range(2)), x), x[:2])
    for wrong, message in (
        ((3, x), "graphs: expected a GraphBatch or a sequence of graphs, got int"),
        ((None, x), "graphs: expected a GraphBatch or a sequence of graphs, got NoneType"),
        (([graph] * 2, x + 1j), "x: expected an array of real numbers, got complex128"),
        (([graph] * 2, x.astype(str)), "x: expected an array of real numbers, got <U"),
    ):
        with pytest.raises(TypeError, match=message):
            loaded(*wrong)
