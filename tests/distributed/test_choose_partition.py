"""Which partition a graph is sharded by where none is given, or a method's name alone."""

import jax
import numpy as np
import pytest

from jaxgnn import Graph
from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import benchmark_graph
from jaxgnn.distributed import partition, shard
from jaxgnn.distributed._choose_partition import choose_owners, choose_partition
from jaxgnn.graph._layouts.tile_rule import estimate
from jaxgnn.train import TrainConfig
from jaxgnn.train.steps.sharded import shard_graph

pytestmark = [
    pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built"),
    pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices"),
]


def owners_of(sharded):
    """From the places of the nodes."""
    return np.asarray(sharded.place_of_node) // (sharded.num_senders // sharded.parts)


def test_the_better_of_stream_and_blocks():
    """By fewer rows to send where there are communities; blocks of a ring, and of no order."""
    arxiv = benchmark_graph("arxiv", 0.05).to_graph()
    found = choose_partition(arxiv, 8)
    np.testing.assert_array_equal(found.owner, partition(arxiv, 8).owner)
    ring = Graph.from_edges(np.arange(64), (np.arange(64) + 1) % 64)
    blocks = choose_partition(ring, 8)
    np.testing.assert_array_equal(blocks.owner, np.arange(64) // 8)

    mesh = jax.make_mesh((2,), ("x",), devices=jax.local_devices()[:2])
    of_two = choose_partition(arxiv, 2).owner
    config = TrainConfig(devices="2", shard="rows")
    for sharded in (shard(arxiv, mesh, rows="x"), shard_graph(arxiv, config)):
        np.testing.assert_array_equal(owners_of(sharded), of_two)
    assert (of_two != partition(arxiv, 2, method="block").owner).any()


def test_whole_windows_where_parts_need_most_rows_anyway():
    """Of a dense graph with windows, and not where the cut decides what is sent."""
    dense = benchmark_graph("reddit", 0.02).to_graph().with_windows()
    found = choose_partition(dense, 4)
    np.testing.assert_array_equal(found.owner, partition(dense, 4, method="windows").owner)
    assert (found.owner != choose_partition(dense.drop_edge_permutation(), 2).owner).any()
    sparse = benchmark_graph("arxiv", 0.05).to_graph()
    kept = choose_partition(sparse.with_windows(), 8).owner
    np.testing.assert_array_equal(kept, choose_partition(sparse, 8).owner)


def test_tiles_count_where_columns_are_shared():
    """By features an aggregation over them is predicted to be faster; parts by rows have none."""
    graph = benchmark_graph("reddit", 0.02).to_graph()
    tiled = graph.with_tiles()
    mesh = jax.make_mesh((2,), ("x",), devices=jax.local_devices()[:2])
    guess = estimate(tiled.tiles, 128, "float32")
    assert guess.engine == "tiles"
    by_rows, over_tiles = (shard(g, mesh, features="x") for g in (graph, tiled))
    share = over_tiles.costs[0].gathered / by_rows.costs[0].gathered
    assert share == pytest.approx(guess.tiles / guess.rows, abs=1e-4)
    assert over_tiles.graph.tiles is not None and by_rows.graph.tiles is None
    assert shard(tiled, mesh, rows="x").graph.tiles is None
    empty = Graph.from_edges([], [], num_nodes=0).with_tiles()
    assert shard(empty, mesh, features="x").costs[0].gathered == 0


def test_methods_by_name():
    arxiv = benchmark_graph("arxiv", 0.02).to_graph()
    mesh = jax.make_mesh((2,), ("x",), devices=jax.local_devices()[:2])
    for method in ("stream", "block"):
        owner = partition(arxiv, 2, method=method).owner
        sharded = shard(arxiv, mesh, rows="x", partition=method)
        np.testing.assert_array_equal(owners_of(sharded), owner)
    # All edges end at one node: no balance of edges can be met.
    star = Graph.from_edges(np.arange(1, 9), np.zeros(8, int), num_nodes=9)
    assert choose_owners("stream", star, 3).max() == 2
    assert choose_owners(None, star, 3).max() == 2
    np.testing.assert_array_equal(choose_owners(None, star, 12), choose_owners(None, star, 12))
    assert choose_owners(None, star, 12).max() < 12  # more parts than nodes
    with pytest.raises(ValueError, match="method: expected one of 'stream', 'metis', 'block'"):
        choose_owners("best", star, 2)
    with pytest.raises(TypeError, match="graph: expected one that is not traced"):
        jax.jit(lambda graph: shard(graph, mesh, rows="x").num_nodes)(star)


def test_more_parts_than_nodes():
    graph = Graph.from_edges([0], [1], num_nodes=2)
    np.testing.assert_array_equal(choose_owners("block", graph, 4), choose_owners(None, graph, 4))
    with pytest.raises(ValueError, match=r'partition: expected "block" for more devices, 4, than'):
        choose_owners("stream", graph, 4)
