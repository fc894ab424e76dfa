"""Tiles: the layout against its definition in float64, orders, arguments that are refused."""

import dataclasses
import functools
import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, batch, config, spmm, tiles, transform
from jaxgnn._core import device
from jaxgnn.data import load
from jaxgnn.data.generated.benchmark_graphs import benchmark_communities
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts.tiles import append_rows, lay_out
from tests.support import oracle_tiles
from tests.support.strategies import dense_adjacency, examples, graphs, skewed_graph

pytestmark = pytest.mark.few(1)

RNG = np.random.default_rng(0)


def communities(num_nodes: int, size: int, degree: int) -> tuple[Graph, np.ndarray]:
    """A graph of shuffled communities whose edges mostly stay inside, and the community of each."""
    community = RNG.permutation(np.arange(num_nodes) // size)
    members = np.argsort(community, kind="stable")
    receivers = np.repeat(np.arange(num_nodes), degree)
    inside = members[community[receivers] * size + RNG.integers(size, size=receivers.size)]
    anywhere = RNG.integers(num_nodes, size=receivers.size)
    senders = np.where(RNG.random(receivers.size) < 0.9, inside, anywhere)
    return Graph.from_edges(senders, receivers, num_nodes=num_nodes), community


def check(graph: Graph) -> Graph:
    """Both directions, with and without weights, against the dense matrix; and the bytes."""
    graph.validate()
    weights = RNG.standard_normal(graph.num_edges)
    sides = (
        (graph.tiles, graph.row_offsets, False),
        (graph.transpose_tiles, graph.transpose_row_offsets, True),
    )
    for side, offsets, transpose in sides:
        for w in (None, weights):
            matrix = dense_adjacency(graph, w)
            matrix = matrix.T if transpose else matrix
            x = RNG.standard_normal((matrix.shape[1], 3))
            in_order = w[np.asarray(graph.transpose_permutation)] if w is not None else None
            got = oracle_tiles.spmm(side, offsets, x, in_order if transpose else w)
            # In units of the sum of the terms' magnitudes: one by one, 3,000 terms round as often.
            terms = dense_adjacency(graph, np.abs(w) if w is not None else None)
            magnitude = (terms.T if transpose else terms) @ np.abs(x)
            assert (np.abs(got - matrix @ x) <= 1e-12 * magnitude).all()
        chunks = side.rest_chunks.table.size * 4
        nodes = 8 * side.rows.size + 4 * (side.num_windows + 4)
        numbers = sum(leaf.nbytes for leaf in jax.tree.leaves(side)) - chunks - nodes
        assert numbers <= (25 if side.min_edges == 1 else 16) * graph.num_edges
        for first, end, _, _ in np.asarray(side.parts):
            assert (np.diff(side.columns[16 * first : 16 * end]) >= 0).all()
        degrees = oracle_tiles.masks_of(side).sum(axis=1)
        assert (degrees[degrees > 0] >= side.min_edges).all()
        assert (degrees > 0).sum() == side.num_entries
    return graph


@pytest.mark.system
@given(graphs(max_nodes=12, max_edges=60), st.sampled_from([1, 2, 4]))
@examples(30)
def test_layout_of_small_graphs(graph, min_edges):
    """Empty graphs, repeated edges, self-loops, rectangular graphs."""
    check(graph.with_tiles(min_edges=min_edges))


@given(graphs(max_nodes=70, max_edges=300), st.integers(1, 130))
@examples(15)
def test_rows_without_edges_are_appended(graph, more):
    """As if the layout had been made of them."""
    tiles = graph.with_tiles(order="numbered", min_edges=1).tiles
    offsets = np.pad(graph.row_offsets, (0, more), mode="edge")
    expected = lay_out(offsets, graph.senders, graph.num_senders, "numbered", None, 1)
    found = append_rows(tiles, more)
    for name, values in vars(expected).items():
        if name != "rest_chunks":  # by the mean degree
            np.testing.assert_array_equal(getattr(found, name), values)
    np.testing.assert_array_equal(found.rest_chunks.table, tiles.rest_chunks.table)


@pytest.mark.parametrize("order", ["numbered", "groups"])
def test_layout_of_larger_graphs(order):
    """Windows in parts, short and empty windows, hubs whose rest is cut into chunks."""
    hubs = skewed_graph(331, 30_000)
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(0, 40, 9_000), rng.integers(0, 129, 9_000)
    wide = Graph.from_edges(senders + 7_000, receivers, num_senders=7_100, num_receivers=400)
    many = Graph.from_edges(
        np.tile(np.arange(7_000), 5),
        np.repeat(np.arange(5), 7_000),
        num_senders=7_000,
        num_receivers=64,
    )  # 438 batches
    for graph in (hubs, wide, many):
        for min_edges in (1, 5):
            check(graph.with_tiles(order=order, min_edges=min_edges))
    assert many.with_tiles(order=order).tiles.parts.shape[0] == 2
    lonely = Graph.from_edges([0] * 3_000, np.arange(3_000) % 3, num_nodes=100)
    tiled = check(lonely.with_tiles(order=order, min_edges=1))
    assert tiled.tiles.num_batches == 0 and tiled.tiles.rest_chunks.table.shape[0] > 3
    assert 0 < hubs.with_tiles(order=order).tiles.tile_share < 1


def test_orders():
    """`auto` takes the order with the most edges a column, for each direction."""
    graph, community = communities(1_280, 64, 30)
    orders = ("numbered", "groups", "rcm", "labels")
    u = {o: graph.with_tiles(order=o).tiles.edges_per_column for o in orders}
    auto = graph.with_tiles().tiles
    assert auto.edges_per_column == max(u.values()) == u["groups"] > 1.5 * u["numbered"]
    assert auto.order == "groups" and auto.min_edges == 4
    assert repr(auto).startswith("Tiles(20 windows, order 'groups', ")
    # Labels go from receivers to senders and back.
    sides = {"num_senders": 1_280, "num_receivers": 1_281}
    wide = Graph.from_edges(graph.senders, graph.receivers, **sides)
    found = {o: wide.with_tiles(order=o).tiles for o in ("auto", "labels", "groups")}
    np.testing.assert_array_equal(found["labels"].rows, found["groups"].rows)
    assert found["auto"].order == "groups" and found["auto"].edges_per_column > u["numbered"]
    # The generator's communities, as numbered.
    place = np.argsort(np.argsort(community, kind="stable"))
    ends = place[np.asarray(graph.senders)], place[np.asarray(graph.receivers)]
    planted = Graph.from_edges(*ends, num_nodes=1_280).with_tiles().tiles
    assert planted.order == "numbered" and planted.edges_per_column >= auto.edges_per_column
    # A grid whose nodes are shuffled: its bandwidth falls.
    shuffled = RNG.permutation(900).reshape(30, 30)
    pairs = (shuffled[1:], shuffled[:-1]), (shuffled[:, 1:], shuffled[:, :-1])
    ends = [np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1)]
    grid = Graph.from_edges(*ends, num_nodes=900, undirected=True)
    rcm = check(grid.with_tiles(order="rcm", min_edges=2))
    assert rcm.tiles is rcm.transpose_tiles
    numbered = grid.with_tiles(order="numbered").tiles.edges_per_column
    assert rcm.tiles.edges_per_column > 1.5 > numbered
    assert grid.with_tiles().tiles.edges_per_column >= rcm.tiles.edges_per_column


def test_groups_find_the_planted_communities():
    """At least 93 % of the edges a column that the generator's communities give."""
    module = _tiles.host_module("with_tiles")
    for name, scale in (("arxiv", 0.2), ("artist", 0.3), ("com_amazon", 0.05), ("reddit", 0.01)):
        csr, community = benchmark_communities(name, scale)
        offsets = csr.row_offsets.astype(np.int32)
        planted = np.lexsort((-csr.degrees, community)).astype(np.int32)
        groups = module.order_by_communities(offsets, csr.senders)
        assert np.array_equal(np.sort(groups), np.arange(csr.num_nodes))
        n = csr.num_nodes
        counts = [
            module.count_window_columns(offsets, csr.senders, rows.astype(np.int32), n)
            for rows in (np.arange(n), planted, groups)
        ]
        assert counts[2] < counts[0], name
        assert counts[2] <= counts[1] / 0.93, name
    # An incomplete window and rows without edges are the last ones.
    lonely = Graph.from_edges(np.arange(0, 100, 2), np.arange(0, 100, 2), num_nodes=150)
    groups = module.order_by_communities(np.asarray(lonely.row_offsets), np.asarray(lonely.senders))
    assert sorted(groups[:50]) == list(range(0, 100, 2))


def test_published_sets(data_directory):
    """Edges a column in 64 rows; SciPy's releases break ties of RCM differently."""
    for name, order, expected in (("cora", "groups", 2.1), ("proteins_full", "rcm", 3.25)):
        if name == "cora" and (data_directory / "cora").is_dir():
            graph = load(data_directory / "cora").graph
        elif (path := data_directory / name / "PROTEINS_full_A.txt").is_file():
            edges = np.loadtxt(path, np.int32, delimiter=",") - 1
            graph = Graph.from_edges(edges[:, 1], edges[:, 0], num_nodes=43_471)
        else:
            pytest.skip(f"no {data_directory / name}")
        found = graph.with_tiles(order=order).tiles.edges_per_column
        assert found == pytest.approx(expected, abs=0.06), name


@pytest.mark.system
def test_pytree():
    graph = skewed_graph(130, 3_000).with_tiles(min_edges=3)
    assert graph.tiles is not graph.transpose_tiles
    bare = dataclasses.replace(graph, tiles=None, transpose_tiles=None)
    sides = (graph.tiles, graph.transpose_tiles)
    assert graph.nbytes == bare.nbytes + sum(x.nbytes for x in jax.tree.leaves(sides))
    assert repr(graph) == repr(bare)
    edges = jax.jit(lambda g: g.transpose().tiles.edges)(graph)
    np.testing.assert_array_equal(edges, graph.transpose_tiles.edges)
    check(graph.transpose())
    for other in (batch.disjoint_union([graph, graph]).graph, transform.add_self_loops(graph)[0]):
        assert other.tiles is None and other.transpose_tiles is None
    for name in (*_tiles._LAID_OUT, "rows"):
        if name in ("masks", "parts"):
            continue
        array = getattr(graph.tiles, name)
        wrong = 10**6 if array.dtype == jnp.int32 else 255
        lie = dataclasses.replace(graph.tiles, **{name: array.at[1].set(wrong)})
        with pytest.raises(ValueError, match=f"graph: tiles.{name}: expected"):
            dataclasses.replace(graph, tiles=lie).validate()
    for name in ("columns", "stage_offsets", "edges"):
        array = getattr(graph.tiles, name)
        lie = dataclasses.replace(graph.tiles, **{name: array.at[0].set(-1)})
        lie = dataclasses.replace(graph, tiles=lie)
        match = f"tiles' {name.replace('_', ' ')}"
        with config.use(check_graphs=True), pytest.raises(ValueError, match=match):
            spmm(lie, np.ones((130, 2), np.float32), impl="tiles")


def test_bad_arguments():
    graph = skewed_graph(20, 50)
    with pytest.raises(ValueError, match=r"order: expected one of 'auto', .*, got 'best'"):
        graph.with_tiles(order="best")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"order: expected one of 'auto', .*, got array"):
        graph.with_tiles(order=np.arange(2))  # pyright: ignore[reportArgumentType]
    for value in (0, 65):
        with pytest.raises(ValueError, match="min_edges: expected an integer from 1 to 64, got"):
            graph.with_tiles(min_edges=value)
    for value in (True, 2.5):
        with pytest.raises(TypeError, match="min_edges: expected an integer, got"):
            graph.with_tiles(min_edges=value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'rcm' numbers the nodes of square graphs"):
        Graph.from_edges([0], [0], num_senders=2, num_receivers=1).with_tiles(order="rcm")
    with pytest.raises(TypeError, match="with_tiles: call it outside"):
        jax.jit(lambda graph: graph.with_tiles().tiles.rows)(graph)
    module = _tiles.host_module("with_tiles")
    offsets, columns, rows = (np.array(v, np.int32) for v in ([0, 1, 1], [0], [0, 1]))
    for order in ([0, 0], [0, 2], [-1, 0], [0]):
        with pytest.raises(ValueError, match="inconsistent"):
            module.lay_out_tiles(offsets, columns, np.array(order, np.int32), 1, 1)
    with pytest.raises(ValueError, match="inconsistent"):
        module.count_window_columns(offsets[:2], columns, rows, 1)


@pytest.mark.parametrize("transpose", [False, True], ids=["forward", "transpose"])
def test_altered_graphs(tmp_path, monkeypatch, transpose):
    """Preprocessing reads no edge outside of the graph: it names what is wrong."""
    graph = skewed_graph(70, 900)
    tiles.save(graph.with_tiles(order="numbered"), tmp_path / "tiles")
    offsets, columns = "row_offsets", "senders"
    if transpose:
        offsets, columns = "transpose_row_offsets", "transpose_receivers"
    changes = [(columns, 3, 10**6), (columns, 899, 70), (columns, 0, -1)]
    changes += [(offsets, 0, 1), (offsets, 5, -4), (offsets, 5, 899), (offsets, 70, 901)]
    runs = [functools.partial(Graph.with_tiles, order=order) for order in get_args(_tiles.Order)]
    runs += [Graph.with_row_schedule, lambda graph: tiles.load(graph, tmp_path / "tiles")]
    runs += [functools.partial(tiles.translate, transpose=transpose)]
    on_device = functools.partial(Graph.with_tiles, order="numbered", on_device=True)
    device_runs = [on_device, runs[-1]]
    if not transpose:
        runs += [Graph.with_windows, transform.reorder, transform.gcn_norm]
    for name, place, value in changes:
        wrong = getattr(graph, name).at[place].set(value)
        altered = dataclasses.replace(graph, **{name: wrong})
        for run in runs:
            with pytest.raises(ValueError, match=f"graph: {name}: expected"):
                run(altered)
        with monkeypatch.context() as patch:  # what a GPU runs
            patch.setattr(device, "on_gpu", lambda array: True)
            for run in device_runs:
                with pytest.raises(ValueError, match=f"graph: {name}: expected"):
                    run(altered)
    # Offsets whose differences wrap round, and too few of them.
    wraps = getattr(graph, offsets).at[1:3].set(jnp.array([2**31 - 1, -2], jnp.int32))
    for on_gpu, wrong in itertools.product((False, True), (wraps, getattr(graph, offsets)[:-1])):
        monkeypatch.setattr(device, "on_gpu", lambda array, on_gpu=on_gpu: on_gpu)
        with pytest.raises(ValueError, match=f"graph: {offsets}: expected"):
            dataclasses.replace(graph, **{offsets: wrong}).with_tiles(on_device=on_gpu)


def test_the_module_refuses_what_is_unsafe():
    module = _tiles.host_module("with_tiles")

    def refused(what: str, offsets: list[int], columns: list[int]) -> None:
        pair = np.array(offsets, np.int32), np.array(columns, np.int32)
        rows = np.arange(2, dtype=np.int32)
        for run in (
            lambda: module.translate(*pair, 16, 8),
            lambda: module.lay_out_tiles(*pair, rows, 2, 1),
            lambda: module.count_window_columns(*pair, rows, 2),
            lambda: module.order_by_communities(*pair),
            lambda: module.order_rows(*pair, 2),
            lambda: module.build_windows(*pair, 2),
            lambda: module.gcn_normalize(*pair, np.ones(0, np.float32)),
        ):
            with pytest.raises(ValueError, match=f"{what}: expected numbers"):
                run()

    for offsets in ([0, 2, 1], [0, -1, 1], [1, 1, 1], [0, 0, 0]):
        refused("row_offsets", offsets, [0])
    refused("columns", [0, 1, 2], [0, -1])
    with pytest.raises(ValueError, match="columns: expected numbers"):
        module.lay_out_tiles(*(np.array(v, np.int32) for v in ([0, 1], [1], [0])), 1, 1)
