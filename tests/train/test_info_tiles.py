"""The rows of `jaxgnn info` about tiles: of one graph, of a set's union, of a model's width."""

import dataclasses

import numpy as np
import pytest
from rich.table import Table

from jaxgnn import Graph, build_info, tiles
from jaxgnn.data import GraphSet, PlainGraph
from jaxgnn.train import TrainConfig
from jaxgnn_cli.info_tiles import add_tiles, union

pytestmark = pytest.mark.skipif(not build_info().cpu, reason="the host's module makes tiles")
NODES = 384


def complete(nodes: int = NODES) -> PlainGraph:
    ends = np.indices((nodes, nodes)).reshape(2, -1)
    return PlainGraph("complete", Graph.from_edges(*ends, num_nodes=nodes))


def rows_of(dataset, config: TrainConfig | None = None) -> dict[str, str]:
    table = Table()
    table.add_column()
    table.add_column()
    add_tiles(table, dataset, config)
    names, texts = (list(column.cells) for column in table.columns)
    return dict(zip(map(str, names), map(str, texts), strict=True))


def test_a_set_is_its_union():
    senders, receivers = np.array([[0, 1, 3, 3, 0], [1, 2, 0, 1, 2]], np.int32)
    nodes, edges = np.array([0, 3, 3, 7]), np.array([0, 2, 2, 5])
    small = GraphSet("small", nodes, edges, senders, receivers)
    graph = union(small)
    assert graph.num_nodes == 7
    pairs = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    assert sorted(pairs) == [(0, 1), (1, 2), (3, 5), (6, 3), (6, 4)]
    rows = rows_of(small)
    u = f"{graph.with_tiles().tiles.edges_per_column:.2f}"
    assert rows["edges a column of 64 rows of the graphs' union"].startswith(u)
    assert "tiles cannot" in rows["aggregating 256 float32, H200 (estimate)"]
    assert "aggregating 256 float32, backward, H200 (estimate)" in rows  # directed
    empty = np.zeros(0, np.int32)
    assert not rows_of(GraphSet("none", np.zeros(1, int), np.zeros(1, int), empty, empty))


def test_operations_and_directions():
    complete_rows = rows_of(complete())
    assert sum("H200" in name for name in complete_rows) == 4  # dtypes, with weights or without
    assert not any("backward" in name or "train" in name for name in complete_rows)
    directed = PlainGraph("cycle", Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3))
    assert sum("backward" in name for name in rows_of(directed)) == 4


def test_a_model_has_its_width_and_says_whether_it_trains_over_tiles():
    data = complete()
    config = TrainConfig(dataset="complete", hidden=1024, epochs=5000)
    rows = rows_of(data, config)
    guess = tiles.estimate(data.graph.with_tiles(), 1024)
    text = rows["aggregating 1024 float32, H200 (estimate)"]
    assert text.endswith(" calls") and ": tiles; with_tiles, " in text
    assert guess.engine == "tiles"
    assert "aggregating 1024 float32, weighted, H200 (estimate)" in rows
    training = "tiles in jaxgnn train, on a GPU"
    assert rows[training].startswith("yes: ")
    assert rows_of(data, dataclasses.replace(config, epochs=1))[training].startswith("no: they")
    half = dataclasses.replace(config, dtype="bfloat16", model="gat")
    rows = rows_of(data, half)
    assert rows[training] == "no: not with these options"
    assert [name for name in rows if "H200" in name] == [
        "aggregating 1024 bfloat16, H200 (estimate)"
    ]


def test_attention_by_cosines_has_its_own_estimate():
    config = TrainConfig(dataset="complete", model="agnn", hidden=64, dtype="bfloat16", epochs=5000)
    rows, training = rows_of(complete(1200), config), "tiles in jaxgnn train, on a GPU"
    (name,) = (name for name in rows if "(estimate)" in name)
    assert name == "attention by cosines, forward, 64 bfloat16, H100 (estimate)"
    assert ": tiles; with_tiles, " in rows[name]
    assert rows[training].startswith("yes: ")
    assert rows[training].endswith("% of the attention's forward passes saved (estimate)")
    # In float32 it runs by rows alone.
    wide = rows_of(complete(), dataclasses.replace(config, dtype="float32"))
    assert wide[training] == "no: not with these options"
