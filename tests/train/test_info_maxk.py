"""Which engines of MaxK's aggregation `jaxgnn info` compares, and for which models."""

import dataclasses

import numpy as np
import pytest
from rich.table import Table

import jaxgnn
from jaxgnn.data import NodeDataset, Split
from jaxgnn.graph import Graph
from jaxgnn.train import TrainConfig, build, lower
from jaxgnn.train.problems.node_problem import make_task
from jaxgnn_cli.info_maxk import add_engines, aggregates_maxk, head_rows, rows

NODES = 50
MAXK = TrainConfig(hidden=16, activation="maxk", k=4)


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(NODES, size=(2, 200)), num_nodes=NODES)
    part = np.arange(NODES) % 4
    features = rng.standard_normal((NODES, 6)).astype(np.float32)
    labels = rng.integers(3, size=NODES).astype(np.int32)
    split = Split(part < 2, part == 2, part == 3)
    return NodeDataset("random", graph, features, labels, 3, {"one": split})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model": "gcn"}, True),
        ({"model": "gcn", "layers": 1}, False),  # its features are no output of MaxK
        ({"model": "gat"}, False),
        ({"model": "gcn", "num_neighbors": "2,2"}, False),
    ],
)
def test_a_step_that_aggregates_sparse_rows_of_the_whole_graph(dataset, options, expected):
    config = dataclasses.replace(MAXK, **options).check()
    task = make_task(config, dataset, dataset.split())
    program, state = build(config, task)
    assert aggregates_maxk(program, lower(program, state, task)[0]) is expected


@pytest.mark.skipif(not jaxgnn.build_info().cpu, reason="windows need the CPU module")
def test_an_annealed_step_moves_the_entries_that_it_begins_with(dataset):
    def rows(**options):
        table = Table()
        add_engines(table, dataset.graph, dataclasses.replace(MAXK, **options).check())
        return [list(column.cells) for column in table.columns]

    names, texts = rows(k=2, anneal_from=16)
    assert names == ["maxk_spmm, H200 (estimate)", "its gradient, H200 (estimate)"]
    assert texts == rows(k=16)[1] != rows(k=2)[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"model": "gin", "input_layer": True},
            "sparse sums in layers 1, 2 (GINConv); dense for a node's own row in layers 1, 2 "
            "(GINConv)",
        ),
        ({"model": "gat"}, "no sparse sums; dense for all of layer 2 (GATConv)"),
        ({"model": "gat", "layers": 1}, "no sparse sums"),
        (
            {"model": "sage", "residual": True, "layers": 3, "dropout": 0.0},
            "sparse sums in layers 2, 3 (SAGEConv); dense for a node's own row in layers 2, 3 "
            "(SAGEConv); dense around the layers",
        ),
        (
            {"model": "sage", "sample_size": 2},
            "no sparse sums; dense for all of layer 2 (SAGEConv)",
        ),
        (
            {"model": "gcn", "num_neighbors": "2,2"},
            "sparse sums in layer 2 (GCNConv); dense for a node's own row in layer 2 (GCNConv)",
        ),
    ],
)
def test_where_rows_stay_sparse_and_where_they_are_dense(dataset, options, expected):
    config = dataclasses.replace(MAXK, **options).check()
    task = make_task(config, dataset, dataset.split())
    assert rows(lower(*build(config, task), task)[0]) == expected


def test_rows_of_heads_are_sparse_where_their_kernels_are_taken():
    def text(**options):
        return head_rows(TrainConfig(hidden=64, heads=4, **options).check())

    assert (
        text(model="gat", head_k=1)
        == "1 of 16: sparse on a CPU; on a GPU sparse forward, sparse backward"
    )
    assert text(model="gat", head_k=2).endswith("on a GPU sparse forward, dense backward")
    assert text(model="gat", head_k=3).endswith("on a GPU dense forward, dense backward")
    assert text(model="transformer", head_k=1).endswith("on a GPU dense forward, dense backward")
    half = text(model="transformer", head_k=1, dtype="bfloat16")
    assert half.endswith("on a GPU dense forward, sparse backward")
    assert text(model="gat", head_k=1, dtype="float64").endswith("dense forward, dense backward")
