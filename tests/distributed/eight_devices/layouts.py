"""How a graph is laid out: the choice, rounding, overlap, windows, errors and bytes."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType

from jaxgnn import (
    Graph,
    dot_attention,
    gat_attention,
    gather_edges,
    gaussian_spmm,
    maxk,
    maxk_spmm,
    sampled_spmm,
    segment_reduce,
    segment_softmax,
    spmm,
)
from jaxgnn.distributed import shard
from jaxgnn.nn import MLP, EdgeConv, GINConv, GINEConv, MaxK, SAGEConv
from tests.distributed.eight_devices.support import collectives, mesh, raises, random_graph
from tests.support.sharded_steps import all_to_all_bytes


def check_choice_and_rounding():
    """The layout that sends less; rows rounded on the wire alone."""
    ring = np.arange(64)
    graph = Graph.from_edges(ring, (ring + 1) % 64)
    by_rows = shard(graph, mesh(8))
    assert by_rows.layout == "rows" and by_rows.halo == 8 and by_rows.graph.row_schedule is None
    scheduled = shard(graph.with_row_schedule(), mesh(8), rows="x").graph
    assert scheduled.row_schedule.shape == (8, scheduled.num_receivers)
    three = shard(graph.with_row_schedule(), mesh(3), features="x").graph
    assert sorted(np.asarray(three.row_schedule)) == list(range(66))
    assert "; rows is taken, as it is faster" in by_rows.explain()
    dense = random_graph(64, 2000)[0]
    by_features = shard(dense, mesh(8))
    assert by_features.layout == "features"
    assert "; features is taken, as it is faster" in by_features.explain()
    forced = shard(dense, mesh(8), partition="block")
    assert forced.layout == "rows"
    assert "; rows is taken for the partition or the overlap that was given" in forced.explain()
    x = np.linspace(1, 2, 64, dtype=np.float32)[:, None]
    rounded = shard(graph, mesh(8), rows="x", exchange_dtype="bfloat16")
    got = np.asarray(rounded.gather(jax.jit(spmm)(rounded, rounded.scatter(x))))
    want = np.asarray(spmm(graph, x))
    travels = np.arange(64) % 8 == 0
    np.testing.assert_array_equal(got[~travels], want[~travels])
    np.testing.assert_array_equal(got[travels], want[travels].astype(jnp.bfloat16))


def check_overlap():
    """Where it is chosen, what it holds and what it refuses; its sums and means by hand, in all
    types; and that no product of owned edges waits for rows to arrive."""
    nodes, half = 120_000, 60_000
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, nodes, (2, 11 * nodes))
    senders[nodes:] = senders[nodes:] % half + receivers[nodes:] // half * half
    ends = senders, receivers  # a tenth of them between the halves
    graph = Graph.from_edges(*ends, num_nodes=nodes)
    chosen = shard(graph, mesh(2), rows="x")
    assert chosen.kinds is not None and chosen.graph is not None
    assert "overlap on: a part's edges are in two graphs, and all" in chosen.explain()
    assert chosen.without_joint_graph().graph is None
    off = shard(graph, mesh(2), rows="x", overlap=False)
    assert off.kinds is None and off.without_joint_graph() is off
    assert "overlap off: a part's edges are in one graph" in off.explain(256)
    (faster,), (slower,) = chosen.costs, off.costs
    assert faster.seconds(1024, 1024) < slower.seconds(1024, 1024)
    assert shard(graph.with_windows(), mesh(2), rows="x").kinds is None
    alone = shard(graph, mesh(2), rows="x", overlap=True)
    np.testing.assert_array_equal(alone.edge_of_place, off.edge_of_place)
    assert "two graphs, alone" in alone.explain()

    graph, rng = random_graph(61, 500)
    alone = shard(graph, mesh(4), rows="x", overlap=True)
    x = rng.standard_normal((61, 4)).astype(np.float32)
    values = rng.standard_normal((500, 2)).astype(np.float32)
    weights = graph.sort_edge_data(values)[:, 0]
    aggregate = jax.jit(spmm, static_argnames="reduce")
    summed = jax.jit(segment_reduce, static_argnums=2)

    def compare(got, want, dtype, tolerance):
        assert got.dtype == dtype
        got = np.asarray(alone.gather(got)).astype(np.float32)
        np.testing.assert_allclose(got, want, atol=tolerance * np.abs(want).max())

    for reduce in ("sum", "mean"):
        for dtype, tolerance in (("float32", 1e-6), ("bfloat16", 0.02), ("float16", 4e-3)):
            want = aggregate(graph, x, weights, reduce=reduce)
            placed = alone.scatter(x.astype(dtype)), alone.scatter_edges(values)[:, 0]
            compare(aggregate(alone, *placed, reduce=reduce), want, dtype, tolerance)
            want = summed(graph, graph.sort_edge_data(values), reduce)
            of_edges = alone.scatter_edges(values.astype(dtype))
            compare(summed(alone, of_edges, reduce), want, dtype, tolerance)
    # Means whose sums would overflow.
    big = alone.scatter(np.full((61, 1), 60000, np.float16))
    got = np.asarray(alone.gather(aggregate(alone, big, reduce="mean")))
    assert set(np.unique(got)) == {0, 60000}
    places = alone.scatter(x)
    raises("gather_edges expected all edges of a receiver", gather_edges, alone, places)
    raises("overlap=False", functools.partial(spmm, reduce="max"), alone, places)
    raises("got True", shard, graph, mesh(4), features="x", overlap=True)
    raises("overlap: expected True, False or None", shard, graph, mesh(4), overlap="yes")

    # Owned edges wait for no rows to arrive: of the packing, the owned and the halo's edges, and
    # of the packing and all edges.
    joint = shard(graph, mesh(4), rows="x", overlap=False)
    for sharded, expected in ((alone, [False, False, True]), (joint, [False, True])):
        text = jax.jit(spmm).lower(sharded, places).compile().as_text()
        assert sorted(waits_for_exchange(text)) == expected, text


def waits_for_exchange(text):
    """Of each call of the aggregation's kernel in a program, whether it needs rows that arrive."""
    after, found = set(), []
    for line in text[text.index("ENTRY") :].splitlines():
        if match := re.match(r"\s+(?:ROOT )?(%\S+) = .*? ([a-z-]+)\((.*)", line):
            name, operation, rest = match.groups()
            waits = any(operand in after for operand in re.findall(r"%[\w.-]+", rest))
            if waits or operation.startswith("all-to-all"):
                after.add(name)
            if '"jaxgnn_spmm"' in rest:
                found.append(waits)
    return found


def check_windows():
    """The parts' windows are padded to one shape, and hold each part's edges but no padding."""
    whole, _ = random_graph(300, 3000)
    stacked = shard(whole.with_windows(weighted=True), mesh(3), rows="x").graph
    for part in range(3):
        graph = jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[part], stacked)
        windows = graph.windows
        assert windows.slots.shape[0] == windows.rows.shape[0]
        np.testing.assert_array_equal(np.sort(windows.edges), np.arange(graph.num_edges))
        found = []
        for window, first, end, _ in windows.parts:
            bits = np.unpackbits(windows.masks[first:end].view(np.uint8), 1, bitorder="little")
            entry, row = np.nonzero(bits)
            ends = windows.rows[window][row], windows.senders[first:end][entry]
            found.append(np.stack(ends))
        receivers = np.repeat(np.arange(graph.num_receivers), np.diff(graph.row_offsets))
        edges = np.stack([receivers, graph.senders])[:, receivers < graph.num_receivers - 1]
        found = np.concatenate(found, axis=1)
        assert graph.num_receivers - 1 in windows.rows
        np.testing.assert_array_equal(*(a[:, np.lexsort(a)] for a in (found, edges)))


def check_dropout_and_bytes():
    """Each device drops other edges; what travels is what `explain` says, and of sparse rows k
    values and columns forward and k values back."""
    ring = np.arange(64)
    sharded = shard(Graph.from_edges(ring, (ring + 1) % 64), mesh(8), rows="x")
    v, score = (sharded.scatter(np.ones((64, *rest), np.float32)) for rest in ((1, 4), (1,)))
    options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}
    out = jax.jit(functools.partial(gat_attention, **options))(sharded, v, score, score)
    kept = np.asarray(sharded.gather(out))[:, 0, 0].reshape(8, 8)
    assert set(np.unique(kept)) == {0, 2} and len(np.unique(kept, axis=0)) == 8

    for layout in ({"rows": "x"}, {"features": "x"}, {"rows": "r", "features": "c"}):
        sharded = shard(random_graph(61, 500)[0], mesh(8, both=len(layout) == 2), **layout)
        x = sharded.scatter(np.ones((61, 32), np.float32))
        sent = all_to_all_bytes(jax.jit(spmm).lower(sharded, x).compile())
        assert f" {sent:,.0f} bytes" in sharded.explain(32), (sent, sharded.explain(32))

    sharded = shard(random_graph(61, 500)[0], mesh(8), rows="x")
    x = sharded.scatter(np.ones((61, 32), np.float32))

    def loss(x, graph):
        return jnp.sum(maxk_spmm(graph, MaxK(8).sparse(x, graph=graph)) ** 2)

    compiled = jax.jit(jax.grad(loss)).lower(x, sharded).compile()
    assert collectives(compiled) == {"all-to-all": 3}
    sent = 7 * sharded.pair_rows * 8
    assert all_to_all_bytes(compiled) == sent * (4 + 1 + 4)
    assert f"{sent * 5:,} bytes, their gradients {sent * 4:,}; " in sharded.explain(32, k=8)
    assert "together 0.141 of" in sharded.explain(256, k=32)


def check_errors():
    """What does not run says so."""
    graph, _ = random_graph(9, 30)
    by_rows, by_features = (shard(graph, mesh(2), **{name: "x"}) for name in ("rows", "features"))
    x, of_places = (each.scatter(np.ones((9, 4), np.float32)) for each in (by_features, by_rows))
    heads = x[:, :3, None]
    rngs = nnx.Rngs(0)
    inner = MLP([4, 4], rngs=rngs)
    weights = np.ones(by_features.num_edges, np.float32)
    rows_alone = "expected a graph sharded by rows, got one by features"
    raises("does not work on sharded", sampled_spmm, by_rows, of_places, sample_size=2)
    of_edges = np.ones((by_features.num_edges, 4), np.float32)
    raises(rows_alone, GINEConv(inner), by_features, x, of_edges)
    raises("does not work on sharded", SAGEConv(4, 4, sample_size=2, rngs=rngs), by_features, x)
    raises("does not work on sharded", shard, by_rows, mesh(2))
    raises("gather_edges " + rows_alone, gather_edges, by_features, x)
    raises("segment_softmax " + rows_alone, segment_softmax, by_features, weights)
    raises("maxk_spmm " + rows_alone, maxk_spmm, by_features, maxk(x, 2))
    raises("gaussian_spmm " + rows_alone, gaussian_spmm, by_features, x, x[:1], x[:1], (x, x))
    raises("heads that 2 devices divide", dot_attention, by_features, heads, heads, heads)
    raises("v: expected the shape", gat_attention, by_rows, heads[1:], x[:, :3], x[:, :3])
    inner = nnx.Sequential(nnx.BatchNorm(4, rngs=rngs))
    raises("BatchNorm", GINConv(inner), by_rows, of_places)
    inner = MLP([8, 4, 4], activation=MaxK(2), rngs=rngs)
    raises("no MaxK", EdgeConv(4, 4, mlp=inner, rngs=rngs), by_rows, of_places)
    raises("k: expected None", by_features.explain, 4, k=2)
    raises("features: expected an integer from 1", by_rows.explain, 0)
    raises("k: expected an integer from 1 to 4, got 5", by_rows.explain, 4, k=5)
    raises("mesh: expected a jax.sharding.Mesh, got NoneType", shard, graph, None)
    raises("partition: expected a method's name", shard, graph, mesh(2), partition=np.zeros(9))
    blocks = types.SimpleNamespace(parts=2, owner=np.arange(9) // 5)
    raises("the owners by partition=, or read a saved one by load_sharded", shard, blocks, mesh(2))
    raises("load_sharded(directory, mesh, rows=...) reads", shard, "parts", mesh(2))
    traced = jax.jit(functools.partial(shard, mesh=mesh(2), rows="x"))
    raises("graph: expected one that is not traced", traced, graph)
    raises("another axis", shard, graph, mesh(2), rows="x", features="x")
    raises("expected an axis", shard, graph, mesh(2), rows="y")
    with jax.set_mesh(mesh(2)):  # explicit axes
        for function in (by_rows.scatter, functools.partial(spmm, by_rows), by_rows.gather):
            raises("mesh: expected none set by jax.set_mesh", jax.jit(function), of_places)
        raises("explicit axes ('x',)", shard, graph, mesh(2))
    automatic = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=jax.devices()[:2])
    with jax.set_mesh(automatic):
        spmm(by_rows, by_rows.scatter(np.ones((9, 4), np.float32)))
    raises("as in rows='r', features='c'", shard, graph, mesh(8, both=True))
    owners = types.SimpleNamespace(parts=3, owner=np.zeros(9, np.int32))
    raises("partition: expected 2 parts", shard, graph, mesh(2), rows="x", partition=owners)
    owners = types.SimpleNamespace(parts=2, owner=np.full(9, 2, np.int32))
    raises("partition: expected owners", shard, graph, mesh(2), rows="x", partition=owners)
    raises("a row for each node", by_rows.scatter, np.ones((8, 4)))
    raises("x: expected an array of numbers, got <U1", by_rows.scatter, ["a"] * 9)
    raises("a row for each place", by_rows.gather, np.ones((9, 4)))
    raises("a row for each edge", by_rows.scatter_edges, np.ones(29))
    merged = shard(
        Graph.from_edges([0, 0], [1, 1], deduplicate=True, num_nodes=2), mesh(2), rows="x"
    )
    raises("merged edges", merged.scatter_edges, np.ones(3))
