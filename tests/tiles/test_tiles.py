"""Tiles: the layout against its definition in float64, orders, files, `spmm` over them."""

import dataclasses
import functools
import hashlib
import itertools
import os
import re
import struct
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, batch, config, sddmm, spmm, tiles, transform
from jaxgnn._core import device, platform
from jaxgnn.data import DataError, load
from jaxgnn.data.benchmark_graphs import benchmark_communities
from jaxgnn.graph import _tile_rule, _tiles
from jaxgnn.graph._tiles import append_rows, lay_out
from jaxgnn.nn import GCNConv, GINConv, SAGEConv
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


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU takes the tiles")
def test_spmm_by_rows_on_a_cpu():
    """The same bits as by rows: outputs, gradients, second derivatives, `vmap`, means, weights."""
    graph = skewed_graph(70, 900).with_tiles(min_edges=2)
    x = jnp.asarray(RNG.standard_normal((70, 5)), jnp.float32)
    weights = jnp.asarray(RNG.standard_normal(graph.num_edges), jnp.float32)

    @jax.jit
    def run(graph, x, weights):
        def both(f):
            return [f(impl) for impl in ("rows", "tiles")]

        def loss(x, impl):
            return jnp.sum(spmm(graph, jnp.sin(x), reduce="mean", impl=impl) ** 3)

        def derivatives(impl):
            return jax.jvp(jax.grad(lambda x: loss(x, impl)), (x,), (x,))

        def weighted(impl):
            def loss(x, weights):
                scores = sddmm(graph, jnp.sin(x), x, impl=impl)
                return jnp.sum(spmm(graph, x, weights + scores, impl=impl) ** 2)

            return jax.value_and_grad(loss, (0, 1))(x, weights)

        many = jnp.stack([x, 2 * x])
        return (
            both(weighted),
            both(lambda impl: spmm(graph, x, transpose=True, impl=impl)),
            both(lambda impl: jax.vmap(lambda x: spmm(graph, x, impl=impl))(many)),
            both(derivatives),
        )

    results = run(graph, x, weights)
    for one, other in results:
        jax.tree.map(np.testing.assert_array_equal, one, other)
    expected = dense_adjacency(graph).T @ np.asarray(x, np.float64)
    np.testing.assert_allclose(results[1][1], expected, rtol=1e-4, atol=1e-4)
    got = spmm(graph, x, impl="tiles", reduce="max")  # no tiles: also by rows
    np.testing.assert_array_equal(got, spmm(graph, x, reduce="max"))
    bare = dataclasses.replace(graph.transpose().drop_edge_permutation(), tiles=None)
    with pytest.raises(ValueError, match=r"impl: 'tiles' needs .* Graph\.with_tiles"):
        spmm(bare, x, impl="tiles")
    with pytest.raises(ValueError, match=r"impl: expected one of None, .*'tiles', got 'tile'"):
        spmm(graph, x, impl="tile")
    for half in (bare, bare.transpose()):  # its derivatives sum over both
        with pytest.raises(ValueError, match=r"impl: 'tiles' needs .* Graph\.with_tiles"):
            sddmm(half, x, x, impl="tiles")
    with pytest.raises(ValueError, match=r"impl: expected one of None, .*'tiles', got 'tile'"):
        sddmm(graph, x, x, impl="tile")  # pyright: ignore[reportArgumentType]


def test_what_a_gpu_is_given(monkeypatch):
    """Tiles forward and backward; rows for a maximum. Without `impl` the estimate decides."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    both = {2: 5.0, 4: 5.0}  # tiles are worth a launch
    rates = _tile_rule.Rates({2: 14.0, 4: 14.0}, 0, 0, 100, both, both, 0.2, 4e6)
    monkeypatch.setattr(_tile_rule, "_RATES", dict.fromkeys(_tile_rule._RATES, rates))
    graph = skewed_graph(130, 3_000).with_tiles(min_edges=3)
    x = jnp.ones((130, 2, 9), jnp.bfloat16)

    def calls(
        *arguments,
        f=spmm,
        gradient=True,
        x=x,
        graph=graph,
        names=("tiles_spmm", "spmm"),
        **options,
    ):
        def loss(x, graph):
            return jnp.sum(f(graph, x, *arguments, **options).astype(jnp.float32) ** 2)

        function = jax.jit(jax.grad(loss) if gradient else loss)
        text = function.trace(x, graph).lower(lowering_platforms=("cuda",)).as_text()
        return [text.count(f"custom_call @jaxgnn_{name}(") for name in names]

    assert calls(impl="tiles", reduce="mean") == [2, 0]
    assert calls(gradient=False) == calls(impl="rows", gradient=False) == [0, 1]
    assert calls(impl="tiles", reduce="max", gradient=False) == [0, 1]

    def many(graph, x, **options):
        return jax.vmap(lambda x: spmm(graph, x, **options))(jnp.stack([x, x, x]))

    assert calls(impl="tiles", f=many, gradient=False) == [1, 0]
    # A batch is a wider row: of 8 rows tiles are worth a launch, of one they are not.
    dense = skewed_graph(130, 30_000).with_tiles()
    x = jnp.ones((dense.num_senders, 256))
    assert calls(x=x, graph=dense) == [0, 2]
    wide = jnp.ones((dense.num_senders, 4096))
    assert calls(x=wide, graph=dense) == calls(x=wide, graph=dense, reduce="mean") == [2, 0]
    assert calls(x=wide, graph=dense, impl="kernel", transpose=True) == [2, 0]
    assert calls(x=wide, graph=dense, impl="rows") == [0, 2]
    # Weights; their gradient, dot products by rows; and those of dot products, weighted sums.
    names = ("tiles_weighted_spmm", "spmm", "sddmm")
    ones = jnp.ones(30_000)
    assert calls(ones, x=wide, graph=dense, names=names) == [2, 0, 0]
    assert calls(ones, x=x, graph=dense, names=names) == [0, 2, 0]

    def by_weights(graph, x, **options):
        weights = jnp.broadcast_to(jnp.sum(x[:1, :1], axis=1), graph.num_edges)
        return spmm(graph, x, weights, **options)

    assert calls(f=by_weights, x=wide, graph=dense, names=names) == [2, 0, 1]
    assert calls(f=by_weights, x=x, graph=dense, names=names, impl="tiles") == [2, 0, 1]
    assert calls(f=by_weights, x=x, graph=dense, names=names, impl="rows") == [0, 2, 1]

    def scores(graph, x, **options):
        return sddmm(graph, x, x, **options)

    assert calls(f=scores, x=wide, graph=dense, names=names) == [2, 0, 1]
    assert calls(f=scores, x=x, graph=dense, names=names) == [0, 2, 1]
    assert calls(f=scores, x=x, graph=dense, names=names, impl="tiles") == [2, 0, 1]
    assert calls(f=scores, x=wide, graph=dense, names=names, impl="rows") == [0, 2, 1]
    heads, by_head = jnp.ones((dense.num_senders, 3, 6), jnp.bfloat16), jnp.ones((30_000, 3))
    options = {"x": heads, "graph": dense, "names": names, "impl": "tiles"}
    assert calls(by_head, **options) == [2, 0, 0]

    def weights_of_each(graph, x, **options):
        return jax.vmap(lambda w: spmm(graph, x[:, 0], w, **options))(by_head.T)

    assert calls(f=weights_of_each, **options) == [2, 0, 0]
    assert calls(
        f=lambda graph, x: jax.vmap(lambda x: spmm(graph, x))(jnp.stack([x] * 16)),
        x=x,
        graph=dense,
        gradient=False,
    ) == [1, 0]
    # GCN's weights are products of two nodes' numbers: the nodes are scaled, the mask stays.
    free = dict.fromkeys(_tile_rule._RATES, rates._replace(launch=0))
    monkeypatch.setattr(_tile_rule, "_RATES", free)
    for conv in (
        GCNConv(256, 256, rngs=nnx.Rngs(0)),
        SAGEConv(256, 256, rngs=nnx.Rngs(0)),
        GINConv(jnp.sin),
    ):
        assert calls(x=x, graph=dense, f=lambda graph, x, conv=conv: conv(graph, x)) == [2, 0]


def test_precision(monkeypatch):
    """All products without weights have it, forward and backward; a CPU and rows have none."""
    graph = skewed_graph(70, 900).with_tiles(min_edges=2)
    x = jnp.asarray(RNG.standard_normal((70, 5)), jnp.float32)
    weights = jnp.asarray(RNG.standard_normal(graph.num_edges), jnp.float32)

    def loss(x, weights, impl, precision):
        def sums(x, *weights, **options):
            return spmm(graph, x, *weights, impl=impl, precision=precision, **options)

        many = jax.vmap(lambda x: sums(x, reduce="mean"))(jnp.stack([x, jnp.sin(x)]))
        scores = sddmm(graph, x, many[1], impl=impl)
        return jnp.sum(sums(many[0]) ** 2) + jnp.sum(sums(x, weights + scores) ** 2)

    def run(impl, precision):
        return jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=(2, 3)).trace(
            x, weights, impl, precision
        )

    if jax.default_backend() == "cpu":
        plain, allowed = (
            run("tiles", precision).lower().compile()(x, weights)
            for precision in (None, "tensorfloat32")
        )
        jax.tree.map(np.testing.assert_array_equal, plain, allowed)
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    attribute = re.compile(r"@jaxgnn_tiles_spmm\(.*tensorfloat32 = (\d) :")
    for impl, precision, expected in (
        ("tiles", None, ["0"] * 4),
        ("tiles", "tensorfloat32", ["1"] * 4),
        ("rows", "tensorfloat32", []),
    ):
        text = run(impl, precision).lower(lowering_platforms=("cuda",)).as_text()
        assert attribute.findall(text) == expected
    match = "precision: expected one of None, 'tensorfloat32', got "
    for wrong in ("tf32", "highest", jax.lax.Precision.HIGH, 19):
        with pytest.raises(ValueError, match=match + re.escape(repr(wrong))):
            spmm(graph, x, precision=wrong)


def test_estimate():
    """The stated terms, and the engine that follows from what a graph shares."""
    shared = Graph.from_edges(np.tile(np.arange(512), 512), np.repeat(np.arange(512), 512))
    apart = Graph.from_edges(np.arange(512), np.arange(512)).with_tiles()
    tiled = shared.with_tiles()
    edges, entries = 512 * 512, 8 * 512
    for operation, (dtype, width) in itertools.product(
        ("spmm", "weighted_spmm"), (("bfloat16", 256), ("float32", 256), ("float16", 1))
    ):
        r = _tile_rule._RATES[operation]
        size = 4 if dtype == "float32" else 2
        slices = -(-width * size // 128)
        guess = tiles.estimate(tiled, width, dtype, operation=operation)
        rows = edges * (slices * r.edge_slice[size] + r.edge) + 512 * slices * r.row_slice
        assert guess.rows == pytest.approx(rows * 1e-12)
        over = slices * (512 * r.rest_row_slice + entries * r.entry_slice[size]) + r.launch
        over += 2 * 8 * 64 * width * 4 * r.scratch_byte
        if operation == "weighted_spmm":
            over += edges * slices * r.tile_edge_slice[size]
        assert guess.tiles == pytest.approx(over * 1e-12)
        assert guess == tiles.estimate(tiled, width, dtype, operation=operation, transpose=True)
    half, whole = (tiles.estimate(apart, width).rows for width in (16, 17))  # rows of one edge
    assert whole - half == pytest.approx(
        512 * 0.4 * _tile_rule._SPMM.edge_slice[4] * 1e-12, rel=1e-2
    )
    guess = tiles.estimate(tiled, 1024)
    assert guess.engine == "tiles"
    for dtype, engine in (("float32", "tiles"), ("bfloat16", "rows")):
        weighted = tiles.estimate(tiled, 4096, dtype, operation="weighted_spmm")
        assert weighted.engine == engine
    assert guess.calls_until_paid(100 * (guess.rows - guess.tiles) + 1e-12) == 101
    for guess in (tiles.estimate(tiled, 256, "float64"), tiles.estimate(apart, 256)):
        assert guess.engine == "rows" and guess.tiles == float("inf")
        assert guess.calls_until_paid(1.0) is None
    with pytest.raises(ValueError, match=r"graph: expected one with tiles, .*Graph\.with_tiles"):
        tiles.estimate(shared, 256)
    with pytest.raises(TypeError, match="graph: expected a jaxgnn"):
        tiles.estimate(None, 256)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"width: expected an integer from 1 to .*, got 0"):
        tiles.estimate(tiled, 0)
    with pytest.raises(TypeError, match="width: expected an integer, got float"):
        tiles.estimate(tiled, 8.0)  # pyright: ignore[reportArgumentType]
    for dtype in ("int8", bool, "float8_e4m3fn", jnp.int32, "complex64", "fp32", None):
        with pytest.raises(TypeError, match=r"dtype: expected float32, .* or float64, got"):
            tiles.estimate(tiled, 8, dtype)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="transpose: expected True or False, got 1"):
        tiles.estimate(tiled, 8, transpose=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"operation: expected one of 'spmm', .*, got 'gemm'"):
        tiles.estimate(tiled, 8, operation="gemm")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"operation: expected one of 'spmm', .*, got array"):
        tiles.estimate(tiled, 8, operation=np.arange(3))  # pyright: ignore[reportArgumentType]


def test_files(tmp_path):
    path = tmp_path / "graph.tiles"
    directed = skewed_graph(200, 2_000)
    symmetric = skewed_graph(90, 700, undirected=True)
    for graph in (directed, symmetric, Graph.from_edges([], [], num_nodes=0)):
        tiled = graph.with_tiles(min_edges=3, order="labels")
        tiles.save(tiled, path)
        loaded = tiles.load(graph, path)
        assert jax.tree.structure(loaded) == jax.tree.structure(tiled)
        jax.tree.map(np.testing.assert_array_equal, loaded, tiled)
        assert (loaded.tiles is loaded.transpose_tiles) == graph.symmetric
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="expected tiles to save"):
        tiles.save(directed, path)
    with pytest.raises(TypeError, match="graph: expected a jaxgnn"):
        tiles.load(None, path)  # pyright: ignore[reportArgumentType]
    tiles.save(directed.with_tiles(), path)
    with pytest.raises(DataError, match="another graph of this size: its edges differ"):
        tiles.load(skewed_graph(200, 2_000, seed=1), path)
    with pytest.raises(
        DataError, match=r"another graph: .* are \[200, 200, 2000\], this one's \[90"
    ):
        tiles.load(symmetric, path)
    as_bytes = os.fsencode(tmp_path / "bytes")
    tiles.save(directed.with_tiles(), as_bytes)
    assert tiles.load(directed, as_bytes).tiles is not None
    for call in (tiles.load, tiles.save):
        with pytest.raises(TypeError, match="path: expected a path, got float"):
            call(directed.with_tiles(), 3.5)
        for wrong in ("a\0b", b"a\0b"):
            with pytest.raises(ValueError, match=r"path: expected no null .*, got b?'a\\x00b'"):
                call(directed.with_tiles(), wrong)
    (tmp_path / "bytes").unlink()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(DataError, match="No such file"):
        tiles.load(directed, tmp_path / "none")
    with pytest.raises(DataError, match="regular file, got a directory"):
        tiles.load(directed, tmp_path)


def test_hostile_files(tmp_path):
    """Any change is refused, also with a checksum that fits it."""
    path = tmp_path / "graph.tiles"
    graph = skewed_graph(60, 700)
    tiles.save(graph.with_tiles(order="numbered"), path)
    whole = path.read_bytes()

    def refused(data: bytes, message: str = ": ") -> None:
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            tiles.load(graph, path)

    for size in (0, 7, 100, len(whole) - 1):
        refused(whole[:size], "expected")
    refused(whole + b"\0", f"expected {len(whole)} bytes, got")
    for place in range(0, len(whole), 3):
        refused(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    def signed(place: int, form: str, value: int) -> bytes:
        data = bytearray(whole[:-32])
        struct.pack_into(form, data, place, value)
        return bytes(data) + hashlib.sha256(data).digest()

    refused(signed(8, "<I", 2), "expected version 1, got 2")
    refused(signed(12, "<I", 0), "out of range")
    refused(signed(16, "<H", 4), "out of range")
    refused(signed(20, "<I", 1), "out of range")  # one side for a graph that has two
    refused(signed(24, "<Q", 1 << 60), "another graph")
    for row in (-1, 60, 0):
        refused(signed(84, "<i", row), "each row from 0 to 59 once")
    path.write_bytes(whole)
    assert tiles.load(graph, path).tiles is not None


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
