"""Which training runs get tiles, on a GPU that is not there."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxgnn import Graph
from jaxgnn._core import device
from jaxgnn.data import Metadata, NodeDataset, Split
from jaxgnn.graph._layouts import device_tiles
from jaxgnn.ops._attention import cosine_tiles
from jaxgnn.train import TrainConfig
from jaxgnn.train.problems.links import LinkData, LinkProblem
from jaxgnn.train.problems.node_problem import make_task, prepared
from jaxgnn.train.steps import tiling

NODES = 384
PAYS = TrainConfig(dataset="one", hidden=1024, epochs=5000)
ATTENTION = dataclasses.replace(PAYS, model="agnn", hidden=64, dtype="bfloat16")


def dense(nodes: int = NODES) -> Graph:
    """All pairs: a column of a window has 64 edges."""
    ends = np.indices((nodes, nodes)).reshape(2, -1)
    return Graph.from_edges(*ends, num_nodes=nodes)


def apart() -> Graph:
    """Long rows that share little: only tiles show it."""
    senders = np.random.default_rng(0).integers(0, 16_000, 1_600_000)
    return Graph.from_edges(senders, np.arange(senders.size) % 16_000, num_nodes=16_000)


def sparse() -> Graph:
    """Few edges a node."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 100_000, (2, 300_000))
    return Graph.from_edges(senders, receivers, num_nodes=100_000, undirected=True)


def dataset(graph: Graph) -> NodeDataset:
    nodes = np.arange(graph.num_nodes)
    split = Split(nodes % 2 == 0, nodes % 4 == 1, nodes % 4 == 3)
    features = np.ones((graph.num_nodes, 3), np.float32)
    labels = (nodes % 2).astype(np.int32)
    return NodeDataset("one", graph, features, labels, 2, {"one": split}, Metadata())


def test_a_gpu_trains_over_tiles(monkeypatch):
    graph = dense()
    data = dataset(graph)
    split = data.split(0)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert make_task(PAYS, data, split, training=True).graph is graph
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    trained = make_task(PAYS, data, split, training=True).graph
    assert trained.tiles is not None and trained.row_schedule is not None
    # A trained model is called a few times.
    assert make_task(PAYS, data, split).graph.tiles is None
    assert prepared(graph, PAYS).tiles is None
    links = LinkProblem(PAYS, LinkData("one", sparse(), None), lambda graph, _: graph)
    assert links.task.graph.tiles is None


def test_devices_that_share_columns_train_over_tiles(monkeypatch):
    """By features each has the whole graph, with a row for each place."""
    graph = dense(NODES + 1)
    data = dataset(graph)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    narrow = dataclasses.replace(PAYS, hidden=PAYS.hidden // 2)
    for shard in ("features", "auto"):
        config = dataclasses.replace(PAYS, devices="2", shard=shard)
        own = make_task(config, data, data.split(0), training=True).graph.graph
        assert own.num_senders == own.tiles.rows.shape[0] == NODES + 2
        each = tiling.estimate(own.tiles, config)
        assert each == tiling.estimate(own.tiles, narrow) != tiling.estimate(own.tiles, PAYS)
    assert tiling.can_pay(graph, config) == tiling.can_pay(graph, narrow)


def test_links_train_over_tiles(monkeypatch):
    rng = np.random.default_rng(0)
    senders, receivers = np.nonzero(rng.random((NODES, NODES)) < 0.5)
    graph = Graph.from_edges(senders, receivers, num_nodes=NODES, undirected=True, deduplicate=True)
    config = dataclasses.replace(PAYS, task="link", features="embedding")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for disjoint in (0.0, 0.3):
        config = dataclasses.replace(config, disjoint_train=disjoint)
        task = LinkProblem(config, LinkData("one", graph, None), lambda graph, _: graph).task
        assert task.graph.tiles is not None and task.scored_graph.tiles is not None
        assert (task.graph is task.scored_graph) == (disjoint == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "gat"},
        {"model": "mlp"},
        {"activation": "maxk"},
        {"num_neighbors": "5,5"},
        {"sample_size": 4},
        {"devices": "2", "shard": "rows"},
        {"devices": "8", "shard": "both"},
        {"dtype": "float64"},
        {"epochs": 1},  # not repaid
        {"hidden": 1},
    ],
    ids=str,
)
def test_what_runs_without_tiles(options):
    graph = dense()
    assert tiling.can_pay(graph, PAYS)
    assert not tiling.can_pay(graph, dataclasses.replace(PAYS, **options))


def test_tiles_are_kept_where_they_gain(monkeypatch):
    """Graphs that could share columns, of which one does; both directions count."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    wide = dense().with_tiles()
    assert tiling.gain(wide, PAYS) > 0.05
    for model in ("gcn", "sage", "gin"):
        assert tiling.can_pay(wide, dataclasses.replace(PAYS, model=model))
    assert not tiling.can_pay(sparse(), PAYS)  # 3 edges a row: the rows' own costs bind
    assert not tiling.can_pay(Graph.from_edges([], [], num_nodes=9), PAYS)
    graph = apart()
    assert tiling.can_pay(graph, PAYS) and tiling.tiled(graph, PAYS) is graph
    # Made by the host: a GPU would compile programs for one call.
    monkeypatch.setattr(device, "on_gpu", lambda array: isinstance(array, jax.Array))
    monkeypatch.setattr(device_tiles, "lay_out", None)
    assert tiling.tiled(dense(), PAYS).tiles is not None


def test_attention_by_cosines_has_tiles_for_its_forward_passes(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    nodes = 1200
    graph = dense(nodes)
    tiles = tiling.tiled(graph, ATTENTION).tiles
    assert tiles is not None
    guess = tiling.estimate(tiles, ATTENTION)
    taken = cosine_tiles.picoseconds(nodes, nodes**2, 1, 64, tiles)
    assert guess.rows == pytest.approx(1e-12 * min(taken["rows"], taken["walk"]))
    assert guess.tiles == pytest.approx(1e-12 * taken["tiles"])
    # Of the forward passes alone, whatever the transpose's tiles are.
    expected = pytest.approx(1 - guess.tiles / guess.rows)
    assert tiling.gain(graph.with_tiles(), ATTENTION) == expected
    assert not tiling.can_pay(dense(), ATTENTION)  # a launch takes longer than the rows
    long_rows = apart()
    assert tiling.can_pay(long_rows, ATTENTION)
    assert tiling.tiled(long_rows, ATTENTION) is long_rows


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"hidden": 60},
        {"hidden": 72},
        {"activation": "maxk"},
        {"num_neighbors": "5,5"},
        {"devices": "all"},
        {"epochs": 1},  # not repaid
    ],
    ids=str,
)
def test_what_attention_runs_without_tiles(options):
    graph = dense(1200)
    assert tiling.can_pay(graph, ATTENTION)
    assert tiling.can_pay(graph, dataclasses.replace(ATTENTION, dtype="float16"))
    assert not tiling.can_pay(graph, dataclasses.replace(ATTENTION, **options))
