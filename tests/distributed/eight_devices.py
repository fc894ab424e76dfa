"""Checks on eight simulated devices, in a process of their own: sharded graphs against whole ones.

python -m tests.distributed.eight_devices          # some; --all: all
python -m tests.distributed.eight_devices --gpu    # on all GPUs of this host, two at least
"""

import os
import sys

os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        os.environ.get("XLA_FLAGS", "").replace("--xla_force_host_platform_device_count=2", ""),
    ]
)
os.environ["JAX_PLATFORMS"] = "cuda,cpu" if "--gpu" in sys.argv else "cpu"

import dataclasses
import functools
import json
import re
import tempfile
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import (
    CBSR,
    Graph,
    cosine_attention,
    dot_attention,
    edge_conv,
    gat_attention,
    gather_edges,
    gatv2_attention,
    gaussian_spmm,
    maxk,
    maxk_spmm,
    sampled_spmm,
    sddmm,
    segment_reduce,
    segment_softmax,
    spmm,
)
from jaxgnn.data import partition_arrays
from jaxgnn.distributed import partition, shard
from jaxgnn.nn import (
    AGNN,
    APPNP,
    GAT,
    GCN,
    GIN,
    GNN,
    MLP,
    EdgeConv,
    EdgeConvNet,
    GATv2,
    GINConv,
    GINEConv,
    GraphSAGE,
    MaxK,
    MoNet,
    PNAConv,
    SAGEConv,
    Transformer,
)
from jaxgnn.ops._attention.gat_attention import gat_attention_with_weights
from jaxgnn.train import ConfigError, TrainConfig, plan, run
from tests.support.paths import ROOT
from tests.support.sharded_steps import all_to_all_bytes, sent_in_a_step
from tests.support.training import toy

jax.config.update("jax_default_matmul_precision", "highest")
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def mesh(parts, both=False):
    """One axis; or two, with two devices on the second one."""
    shape, names = ((parts // 2, 2), ("r", "c")) if both else ((parts,), ("x",))
    return jax.make_mesh(shape, names, devices=jax.devices()[:parts])


def collectives(compiled):
    text = compiled.as_text()
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def random_graph(nodes, edges, seed=0):
    """Directed, with duplicates, self-loops and nodes without edges."""
    rng = np.random.default_rng(seed)
    busy = max(nodes - 2, 1)
    senders, receivers = rng.integers(0, busy, (2, edges))
    senders[: edges // 4] = receivers[: edges // 4]
    if edges:
        senders[-edges // 4 :], receivers[-edges // 4 :] = senders[0], receivers[-1]
    return Graph.from_edges(senders, receivers, num_nodes=nodes), rng


def partitions(nodes, parts, rng):
    """The default; owners at random; and all nodes on the last part: others are empty."""
    yield None
    yield types.SimpleNamespace(parts=parts, owner=rng.integers(0, parts, nodes, np.int32))
    yield types.SimpleNamespace(parts=parts, owner=np.full(nodes, parts - 1, np.int32))


def with_both(sharded, graph, parts, layout):
    """Edges in two graphs and in one, as by default where overlap is predicted to be faster."""
    whole = shard(graph, mesh(parts, both="features" in layout), **layout | {"overlap": False})
    assert (sharded.graph is None) == (sharded.kinds is not None) == (sharded.pair_rows > 0)
    return dataclasses.replace(sharded, graph=whole.graph)


def check_operation(nodes, edges, parts):
    graph, rng = random_graph(nodes, edges)
    x = rng.standard_normal((nodes, 5)).astype(np.float32)
    user_weights = rng.standard_normal(edges).astype(np.float32)
    weights = graph.sort_edge_data(user_weights)
    cotangent = rng.standard_normal((nodes, 5)).astype(np.float32)

    def both(graph, x, weights, cotangent):
        def outputs(x, weights):
            return [
                spmm(graph, x),
                spmm(graph, x, weights, reduce="mean"),
                spmm(graph, x, weights),
                spmm(graph, x, reduce="max"),
            ]

        out, pullback = jax.vjp(outputs, x, weights)
        (alone,) = jax.vjp(lambda x: spmm(graph, x, weights), x)[1](cotangent)
        return out, alone, pullback([cotangent] * len(out))

    both = jax.jit(both)
    want, alone, (dx, dw) = both(graph, x, weights, cotangent)
    layouts = [{"features": "x"}] + [
        {"rows": "x", "partition": p, "overlap": overlap}
        for p in partitions(nodes, parts, rng)
        for overlap in (False, True)
    ]
    for layout in layouts:
        sharded = shard(graph, mesh(parts), **layout)
        if layout.get("overlap"):  # for the extremum
            sharded = with_both(sharded, graph, parts, layout)
        placed = sharded.scatter(x), sharded.scatter_edges(user_weights)
        out, salone, (sdx, sdw) = both(sharded, *placed, sharded.scatter(cotangent))
        compare = np.testing.assert_array_equal if "features" in layout else close
        for got, expected in zip(out, want, strict=True):
            assert not np.asarray(got)[~np.asarray(sharded.node_mask)].any(), "padding leaked"
            compare(sharded.gather(got), expected)
        compare(sharded.gather(salone), alone)
        close(sharded.gather(sdx), dx)
        known = np.asarray(sharded.edge_of_place) >= 0
        close(np.asarray(sdw)[known], np.asarray(dw)[np.asarray(sharded.edge_of_place)[known]])
        assert (not known.all()) or sdw.shape == dw.shape
        explained = sharded.explain(5)
        assert f"layout {sharded.layout} over {parts}" in explained and "padding" in explained


def attend(graph, nodes, edges, att, beta):
    """Operations of an edge's two ends, and all their gradients."""

    def outputs(nodes, edges, att, beta):
        q, k, v = nodes
        p, r = q[..., 0], k[..., 1]
        columns = jnp.broadcast_to(jnp.asarray([1, 4, 6], jnp.uint8), (*v.shape[:2], 3))
        out = [
            gat_attention(graph, CBSR(v[..., :3], columns, 8), p, r, edges[..., 0]),
            gat_attention(graph, v, p, r, edges[..., 0], self_loops=True, loop_bias=r),
            gatv2_attention(graph, k, q, att, edges[..., 0], edge=edges),
            dot_attention(graph, q, k, v, key_scale=p, self_loops=True),
            cosine_attention(graph, v, beta, self_loops=True),
            edge_conv(graph, k, q),
            edge_conv(graph, v, q, reduce="sum"),
        ]
        if getattr(graph, "features", None) is None:
            mu, inv_sigma = att.reshape(-1, 2)[:4], att.reshape(-1, 2)[-4:]
            pseudo = edges[:, 0, :2], (q[:, 0, :2], k[:, 0, 2:])
            score = sddmm(graph, q, k)
            _, by_edge, by_loop = gat_attention_with_weights(graph, v, p, r, self_loops=True)
            out += [
                segment_reduce(graph, by_edge[:, :, None] * edges),
                by_loop,
                gaussian_spmm(graph, v[:, 0], mu, inv_sigma, pseudo[0], reduce="mean"),
                gaussian_spmm(graph, v[:, 0], mu, inv_sigma, pseudo[1], activation="tanh"),
                segment_reduce(graph, segment_softmax(graph, score)[:, :, None] * edges),
                segment_reduce(graph, gather_edges(graph, k, q, "mul"), "max"),
            ]
        return out

    out, pullback = jax.vjp(outputs, nodes, edges, att, beta)
    ones = [jnp.ones_like(y) if y.shape[0] == nodes[0].shape[0] else None for y in out]
    mask = getattr(graph, "node_mask", None)
    if mask is not None:  # rows of padding have no gradient
        ones = [jnp.where(mask.reshape(-1, *[1] * (y.ndim - 1)), y, 0) for y in ones]
    return out, pullback(ones)


attend = jax.jit(attend)


def check_attention(nodes, edges, parts):
    graph, rng = random_graph(nodes, edges)
    normal = rng.standard_normal
    rows = [normal((nodes, parts, 4)).astype(np.float32) for _ in range(3)]
    features = normal((edges, parts, 4)).astype(np.float32)
    att = normal((parts, 4)).astype(np.float32)
    beta = np.float32(1.5)
    arguments = rows, graph.sort_edge_data(features), att, beta
    want, (drows, dfeatures, *dothers) = attend(graph, *arguments)
    layouts = [{"features": "x"}] + [
        {"rows": "x", "partition": p} for p in partitions(nodes, parts, rng)
    ]
    for layout in layouts:
        sharded = shard(graph, mesh(parts), **layout)
        placed = [sharded.scatter(x) for x in rows], sharded.scatter_edges(features)
        got, (srows, sfeatures, *sothers) = attend(sharded, *placed, att, beta)
        known = np.asarray(sharded.edge_of_place) >= 0
        sfeatures = np.asarray(sfeatures)[known]
        if "rows" in layout:
            close(sfeatures, np.asarray(dfeatures)[np.asarray(sharded.edge_of_place)[known]])
            for got_row, row in zip(srows, drows, strict=True):
                close(sharded.gather(got_row), row)
            jax.tree.map(close, sothers, dothers)
        for y, expected in zip(got, want, strict=False):
            close(sharded.gather(y), expected)


def close(got, want, exact=None):
    """Within 1e-5 of one device's, and twice its own error where `exact` is in float64.

    A column of batch normalisation whose variance is small multiplies the rounding of both.
    """
    got, want = np.asarray(got), np.asarray(want)
    scale = max(float(np.abs(want).max(initial=0)), 1)
    error = 0.0
    if exact is not None:
        error = float(np.abs(want - np.asarray(exact)).max(initial=0))
        assert error <= 1e-3 * scale, f"one device is off by {error} of {scale}"
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * scale + 2 * error)


def in_float64(step, *arguments):
    """What the step gives in float64, which the CPU alone computes."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        wide = jax.tree.map(
            lambda leaf: np.asarray(leaf, np.float64 if leaf.dtype == np.float32 else None),
            arguments,
        )
        return jax.device_get(step(*wide))


def make_step(definition, nodes):
    @jax.jit
    def step(parameters, state, graph, x, weights, target, mask):
        def loss(parameters, x):
            model = nnx.merge(definition, parameters, state, copy=True)
            error = jnp.where(mask[:, None], model(graph, x, weights) - target, 0)
            return jnp.sum(error**2) / nodes, nnx.state(model, nnx.BatchStat)

        (value, statistics), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(
            parameters, x
        )
        gradients, dx = gradients
        moved = jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients)
        return (value, gradients, statistics), dx, moved

    return step


def failures_of(
    make,
    layouts,
    exchanges,
    edges_width=None,
    overlap=False,
    **options,
):
    """Of a model's step of training in each layout, against one device's, and its collectives.

    `exchanges`: the `all_to_all` of a layer's aggregation, forward and backward together, by rows
    and by features.
    `edges_width`: of the features of the edges; 0 for weights.
    `overlap`: as of `shard`; `None`: edges in two graphs and in one.
    """
    nodes, edges, parts = 61, 500, jax.device_count()
    graph, rng = random_graph(nodes, edges, 1)
    x = rng.standard_normal((nodes, 6)).astype(np.float32)
    shape = (edges, edges_width) if edges_width else (edges,)
    user_weights = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    target = rng.standard_normal((nodes, 3)).astype(np.float32)
    if "activation" in options:
        options["activation"] = MaxK(options["activation"])
    model = make(6, 16, 3, num_layers=2, rngs=nnx.Rngs(0), **options)
    definition, parameters, state = nnx.split(model, nnx.Param, ...)
    step = make_step(definition, nodes)
    weighted = edges_width is not None
    weights = graph.sort_edge_data(user_weights) if weighted else None
    arguments = (parameters, state, graph, x, weights, target, np.ones(nodes, bool))
    want = step(*arguments)
    # On GPUs kernels and layouts add in orders of their own, so that both have errors.
    exact = [in_float64(step, *arguments)] if jax.default_backend() == "gpu" else []

    def check(layout):
        axes = {"rows": "r", "features": "c"} if layout == "both" else {layout: "x"}
        if "rows" in axes:
            axes["overlap"] = overlap is not False
        sharded = shard(graph, mesh(parts, both=layout == "both"), **axes)
        if overlap is None and "rows" in axes:
            sharded = with_both(sharded, graph, parts, axes)
        data = [
            sharded.scatter(x),
            sharded.scatter_edges(user_weights) if weighted else None,
            sharded.scatter(target),
            sharded.node_mask,
        ]
        moved, placed = sharded.replicate((parameters, state))
        before = step._cache_size()
        compiled = step.lower(moved, placed, sharded, *data).compile()
        got = step(moved, placed, sharded, *data)
        jax.tree.map(close, got[0], want[0], *(each[0] for each in exact))
        close(sharded.gather(got[1]), want[1], *(each[1] for each in exact))
        step(got[2], placed, sharded, *data)
        assert step._cache_size() == before + 1, "a second compilation"
        found = collectives(compiled)
        assert set(found) <= {"all-to-all", "all-reduce"}, (make, layout, found)
        meant = sum(exchanges) if layout == "both" else exchanges[layout == "features"]
        assert found["all-to-all"] in 2 * np.atleast_1d(meant), (make, layout, found)

    for layout in layouts:
        try:
            check(layout)
        except AssertionError as error:
            error.add_note(f"{make.__name__} by {layout}, overlap {overlap}, {options}")
            yield error


def check_models(models):
    """Every model in every layout; the failures together, each with its model and layout."""
    failures = [
        error
        for make, layouts, exchanges, options in models
        for error in failures_of(make, layouts, exchanges, **options)
    ]
    if failures:
        raise ExceptionGroup("models that differ from one device's", failures)


def check_errors():
    """What does not run says so."""
    graph, _ = random_graph(9, 30)
    by_rows, by_features = (shard(graph, mesh(2), **{name: "x"}) for name in ("rows", "features"))
    x = by_rows.scatter(np.ones((9, 4), np.float32))
    heads = x[:, :3, None]
    rngs = nnx.Rngs(0)
    inner = MLP([4, 4], rngs=rngs)
    weights = np.ones(by_features.num_edges, np.float32)
    rows_alone = "expected a graph sharded by rows, got one by features"
    raises("does not work on sharded", sampled_spmm, by_rows, x, sample_size=2)
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
    raises("transpose: expected False", spmm, by_rows, x, transpose=True)
    inner = nnx.Sequential(nnx.BatchNorm(4, rngs=rngs))
    raises("BatchNorm", GINConv(inner), by_rows, x)
    inner = MLP([8, 4, 4], activation=MaxK(2), rngs=rngs)
    raises("no MaxK", EdgeConv(4, 4, mlp=inner, rngs=rngs), by_rows, x)
    raises("k: expected None", by_features.explain, 4, k=2)
    raises("another axis", shard, graph, mesh(2), rows="x", features="x")
    raises("expected an axis", shard, graph, mesh(2), rows="y")
    raises("expected an axis", shard, graph, mesh(8, both=True))
    owners = types.SimpleNamespace(parts=3, owner=np.zeros(9, np.int32))
    raises("partition: expected 2 parts", shard, graph, mesh(2), rows="x", partition=owners)
    owners = types.SimpleNamespace(parts=2, owner=np.full(9, 2, np.int32))
    raises("partition: expected owners", shard, graph, mesh(2), rows="x", partition=owners)
    raises("a row for each node", by_rows.scatter, np.ones((8, 4)))
    raises("a row for each place", by_rows.gather, np.ones((9, 4)))
    raises("a row for each edge", by_rows.scatter_edges, np.ones(29))
    merged = shard(
        Graph.from_edges([0, 0], [1, 1], deduplicate=True, num_nodes=2), mesh(2), rows="x"
    )
    raises("merged edges", merged.scatter_edges, np.ones(3))


def raises(text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")


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
    assert shard(random_graph(64, 2000)[0], mesh(8)).layout == "features"
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


def check_plan():
    """The layout of both axes sends what `jaxgnn plan` says."""
    dataset = toy()
    for model in ("sage", "gat", "gatv2", "transformer"):
        config = TrainConfig(model=model, hidden=8, heads=4 if model != "sage" else 1, layers=2)
        _, found = plan(config, [8], dataset=dataset, layouts=["both"], limit=1 << 30)
        assert (found.layout, found.column_devices, found.reason) == ("both", 4, "")
        assert found.exchange_bytes - found.reduce_bytes == sent_in_a_step(config, dataset, found)


def check_run():
    """`jaxgnn train --shard both`: by rows of a folder's parts, of which two devices share columns;
    continued on another number of devices."""
    dataset = toy()
    split = partition(dataset.graph, 4, edge_balance=2)
    arrays, data = partition_arrays(dataset)
    with tempfile.TemporaryDirectory() as folder:
        split.save(f"{folder}/parts", dataset.graph, arrays, data=data)
        three = partition(dataset.graph, 3, edge_balance=2)
        three.save(f"{folder}/three", dataset.graph, arrays, data=data)
        config = TrainConfig(
            f"{folder}/parts", model="sage", hidden=8, patience=0, dropout=0.0, features="raw"
        )
        one, two = (
            dataclasses.replace(config, run_directory=f"{folder}/{name}") for name in ("one", "two")
        )
        run(dataclasses.replace(one, epochs=4))
        found = run(dataclasses.replace(two, epochs=2, devices="4", shard="both"))
        assert (found["devices"], found["shard"]) == (4, "both")
        more = {"resume": two.run_directory, "epochs": 4, "devices": "8", "shard": "both"}
        assert run(dataclasses.replace(two, **more))["devices"] == 8
        rows = []
        for each in (one, two):
            with open(f"{each.run_directory}/metrics.jsonl") as file:
                rows.append([json.loads(line) for line in file])
        for name in ("loss", "val_loss"):
            got, want = ([row[name] for row in each] for each in reversed(rows))
            np.testing.assert_allclose(got, want, rtol=1e-5)
        for options, text in (
            ({"devices": "3"}, "--shard: expected rows or features over 3 devices, got both"),
            ({"devices": "4", "dataset": f"{folder}/three"}, "--shard: both .* 3 parts, got 2"),
            ({"devices": "4", "model": "agnn"}, "--devices: .* heads that 2 devices divide"),
        ):
            with pytest.raises(ConfigError, match=text):
                run(dataclasses.replace(config, epochs=1, shard="both", **options))


def check_page():
    """The page's snippet."""
    text = (ROOT / "docs" / "distributed.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(compile(snippet, "docs/distributed.md", "exec"), names)
    assert names["outputs"].shape == (100, 4) and np.isfinite(names["outputs"]).all()


def _edge_mlp(before, after, *, rngs, **types_):
    inner = MLP([2 * before, 8, after], norm="batch", rngs=rngs, **types_)
    return EdgeConv(before, after, aggr="mean", mlp=inner, rngs=rngs)


def _pna(before, after, **options):
    of_degrees = {"scalers": ["identity", "linear"], "degree_histogram": np.array([1, 5, 9])}
    return PNAConv(before, after, aggregators=["mean", "max", "std"], **of_degrees, **options)


def _appnp(before, after, **options):
    del before, after, options
    return APPNP(2, 0.1)


MODELS = (
    (GraphSAGE, ("rows", "features", "both"), (2, 4), {"norm": "batch"}),
    (GCN, ("rows", "features"), (2, 4), {"edges_width": 0, "norm": "batch"}),
    (GIN, ("rows", "features"), (2, 4), {"norm": "batch"}),
    (GAT, ("rows",), (2, 0), {"heads": 4, "edges_width": 3, "edge_dim": 3}),
    (GAT, ("features", "both"), (2, 10), {"heads": 8, "edges_width": 3, "edge_dim": 3}),
    (GATv2, ("rows", "features"), (2, 6), {"heads": 8}),
    (GATv2, ("rows", "features"), (2, 8), {"heads": 8, "edges_width": 3, "edge_dim": 3}),
    (Transformer, ("rows", "features"), (2, 8), {"heads": 8}),
    (Transformer, ("rows",), (2, 0), {"heads": 4, "edges_width": 3, "edge_dim": 3}),
    (AGNN, ("rows",), (2, 0), {}),
    (MoNet, ("rows",), (2, 0), {}),
    (EdgeConvNet, ("rows", "features", "both"), (2, 4), {}),
    # The backward pass computes values on edges again: XLA may keep the rows that it exchanged.
    (GNN, ("rows",), ((2, 3), 0), {"conv": _edge_mlp}),
    (GNN, ("rows",), (6, 0), {"conv": _pna}),
    (GIN, ("rows",), ((2, 3), 0), {"norm": "batch", "edges_width": 3, "edge_dim": 3}),
    (GNN, ("rows", "features"), (2, 4), {"conv": _appnp, "input_layer": True, "jumping": "last"}),
    (GraphSAGE, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "residual": True}),
    (GCN, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "edges_width": 0}),
    (GIN, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "norm": "batch"}),
    (GAT, ("rows",), (2, 0), {"activation": 4, "heads": 2, "jumping": "cat"}),
)
"""Models, their layouts, the exchanges of a layer by rows and by features, and options; an integer
is the k of MaxK."""

OVERLAPPED = (
    (GraphSAGE, ("rows", "both"), (2, 4), {"norm": "batch", "overlap": True}),
    (GraphSAGE, ("rows",), (2, 0), {"edges_width": 0, "overlap": True}),
    (GCN, ("rows", "both"), (2, 4), {"edges_width": 0, "overlap": True}),
    (GIN, ("rows",), (2, 0), {"norm": "batch", "overlap": True}),
    (
        GNN,
        ("rows",),
        (2, 0),
        {"conv": _appnp, "input_layer": True, "jumping": "last", "overlap": True},
    ),
    (GraphSAGE, ("rows",), (3, 0), {"activation": 4, "input_layer": True, "overlap": True}),
    (
        GCN,
        ("rows",),
        (3, 0),
        {"activation": 4, "input_layer": True, "edges_width": 0, "overlap": True},
    ),
    (GAT, ("rows",), (2, 0), {"heads": 4, "edges_width": 3, "edge_dim": 3, "overlap": None}),
    (GNN, ("rows",), (6, 0), {"conv": _pna, "overlap": None}),
)
"""The same with edges in two graphs: alone, and beside one of all edges."""


SOME = (
    (GraphSAGE, ("rows",), (2, 4), {"norm": "batch", "overlap": True}),
    (GraphSAGE, ("both",), (2, 4), {}),
    (
        GCN,
        ("rows",),
        (3, 0),
        {"norm": "batch", "activation": 4, "input_layer": True, "edges_width": 0},
    ),
    (GAT, ("rows",), (2, 4), {"heads": 4, "edges_width": 3, "edge_dim": 3}),
)
"""What runs by default."""


def main(arguments):
    if "--gpu" in arguments:
        devices = jax.device_count()
        assert jax.default_backend() == "gpu" and devices > 1, jax.devices()
        for shape in ((40, 200, devices), (9, 30, devices)):
            check_operation(*shape)
            check_attention(*shape)
        # Two axes need four devices.
        check_models(
            (make, [layout for layout in layouts if layout != "both" or devices >= 4], *rest)
            for make, layouts, *rest in (*MODELS, *OVERLAPPED)
        )
        print(f"all hold on {devices} {jax.devices()[0].device_kind}")
        return
    check_choice_and_rounding()
    check_dropout_and_bytes()
    check_overlap()
    check_windows()
    check_errors()
    check_page()
    check_run()
    if "--all" in arguments:
        for shape in ((40, 200, 3), (23, 100, 2), (12, 40, 1), (9, 0, 8), (9, 30, 8)):
            check_operation(*shape)
            check_attention(*shape)
        check_models((*MODELS, *OVERLAPPED))
        check_plan()
    else:
        check_operation(9, 30, 8)
        check_models(SOME)
    print("all hold")


if __name__ == "__main__":
    main(sys.argv[1:])
