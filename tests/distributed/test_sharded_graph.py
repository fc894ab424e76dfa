"""Sharded graphs on eight simulated devices: the checks of `eight_devices`, in a child process."""

import functools
import os
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import (
    Graph,
    dot_attention,
    gat_attention,
    gather_edges,
    maxk,
    maxk_spmm,
    sddmm,
    segment_reduce,
    spmm,
)
from jaxgnn._core import ffi
from jaxgnn.distributed import shard
from jaxgnn.nn import MLP, GATConv, GATv2Conv, GCNConv, GINEConv, GraphSAGE
from tests.distributed.eight_devices.support import close, collectives, mesh, random_graph
from tests.support.paths import ROOT
from tests.support.processes import PACKAGES, run_python

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)

EIGHT_DEVICES = ("-m", "tests.distributed.eight_devices")
PATH = os.pathsep.join((PACKAGES, str(ROOT)))  # the installed jaxgnn first


def test_layouts_agree_with_one_device():
    done = run_python(*EIGHT_DEVICES, directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.few(2)
@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_edge_data_by_senders_with_overlap_alone(shape, reduce):
    graph, rng = random_graph(9, 30)
    sharded = shard(graph, mesh(2), rows="x", overlap=True)
    data = rng.standard_normal((30, *shape)).astype(np.float32)
    cotangent = rng.standard_normal((9, *shape)).astype(np.float32)

    @jax.jit
    def reduced(graph, data, cotangent):
        out, pullback = jax.vjp(lambda d: segment_reduce(graph, d, reduce, by="senders"), data)
        return out, *pullback(cotangent)

    want, of_data = reduced(graph, graph.sort_edge_data(data), cotangent)
    known = np.asarray(sharded.edge_mask)
    placed = np.array(sharded.scatter_edges(data))
    placed[~known] = 7  # counts nowhere
    got, of_placed = reduced(sharded, placed, sharded.scatter(cotangent))
    close(sharded.gather(got), want)
    close(of_placed[known], of_data[np.asarray(sharded.edge_of_place)[known]])
    halves, _ = reduced(
        sharded, *(a.astype(np.float16) for a in (placed, sharded.scatter(cotangent)))
    )
    assert halves.dtype == np.float16
    np.testing.assert_allclose(sharded.gather(halves), want, atol=0.05)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_errors_with_overlap_alone_name_what_users_call():
    graph, rng = random_graph(9, 30)
    sharded = shard(graph, mesh(2), rows="x", overlap=True)
    conv = GATConv(8, 8, heads=4, edge_dim=4, rngs=nnx.Rngs(0))
    features = sharded.scatter_edges(rng.standard_normal((30, 4)).astype(np.float32))
    with pytest.raises(ValueError, match="graph: attention with edge_dim expected all edges of a"):
        conv(sharded, sharded.scatter(np.ones((9, 8), np.float32)), features)
    with pytest.raises(ValueError, match="x: expected an array, got lists of different lengths"):
        sharded.scatter([[0], [1, 2]])


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("axes", [{"rows": "x"}, {"features": "x"}])
def test_donation_and_the_host(axes):
    graph, _ = random_graph(9, 30)
    sharded = shard(graph, mesh(2), **axes)
    x = np.ones((9, 4), np.float32)
    on_host = jax.device_get(sharded)
    np.testing.assert_array_equal(on_host.scatter(x), sharded.scatter(x))
    step = jax.jit(lambda graph, x: (graph, spmm(graph, x)), donate_argnums=0)
    kept, out = step(sharded, sharded.scatter(x))
    close(kept.gather(out), spmm(graph, x))


ROWS, OVERLAP, BOTH = ({"rows": 2}, False), ({"rows": 2}, True), ({"rows": 2, "features": 1}, False)
"""Axes of the mesh, with the devices on each; and whether the edges are in two graphs."""


def over_axes(graph, axes, overlap=False, owner=None):
    devices = jax.make_mesh(tuple(axes.values()), tuple(axes), devices=jax.devices()[:2])
    partition = None if owner is None else types.SimpleNamespace(parts=2, owner=owner)
    names = {name: name for name in axes}
    return shard(graph, devices, **names, partition=partition, overlap=overlap)


@pytest.mark.few(2)
@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    ("operation", "layout"),
    [
        *((spmm, layout) for layout in (ROWS, OVERLAP, BOTH)),
        *((functools.partial(spmm, reduce="mean"), layout) for layout in (ROWS, OVERLAP)),
        *((functools.partial(spmm, transpose=True), layout) for layout in (ROWS, OVERLAP, BOTH)),
        *((lambda g, x, w: maxk_spmm(g, maxk(x, 2), w), layout) for layout in (ROWS, OVERLAP)),
        (lambda g, x, w: gat_attention(g, x[:, None], x[:, :1], x[:, :1], w[:, None]), ROWS),
        (lambda g, x, w: segment_reduce(g, gather_edges(g, x) * w[:, None]), ROWS),
        (lambda g, x, w: segment_reduce(g, w, by="senders")[:, None] * x, ROWS),
        (lambda g, x, w: spmm(g, x, sddmm(g, x, x) * w), ROWS),
    ],
)
def test_weights_that_are_not_finite_at_padding(operation, layout):
    graph, rng = random_graph(9, 30)
    sharded = over_axes(graph, *layout, owner=(np.arange(9) > 5).astype(np.int32))
    assert not np.asarray(sharded.edge_mask).all()
    x = rng.standard_normal((9, 4)).astype(np.float32)
    lengths = rng.uniform(1, 2, 30).astype(np.float32)

    @jax.jit
    def run(graph, x, lengths, mask):
        def output(x, lengths):
            out = operation(graph, x, 1 / lengths)
            return jnp.where(mask.reshape(-1, *(1,) * (out.ndim - 1)), out, 0)

        out, pullback = jax.vjp(output, x, lengths)
        return out, *pullback(jnp.cos(out))

    want, dx, dlengths = run(graph, x, graph.sort_edge_data(lengths), np.ones(9, bool))
    placed = sharded.scatter(x), sharded.scatter_edges(lengths)
    got, of_places, of_edges = run(sharded, *placed, sharded.node_mask)
    close(sharded.gather(got), want)
    close(sharded.gather(of_places), dx)
    known = np.asarray(sharded.edge_mask)
    close(of_edges[known], dlengths[np.asarray(sharded.edge_of_place)[known]])


@pytest.mark.few(2)
@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    ("operation", "layout"),
    [
        *((spmm, layout) for layout in (ROWS, OVERLAP, BOTH)),
        *((functools.partial(spmm, reduce="mean"), layout) for layout in (ROWS, OVERLAP)),
        *((functools.partial(spmm, reduce="max"), layout) for layout in (ROWS, BOTH)),
        *((lambda g, x: maxk_spmm(g, maxk(x, 2)), layout) for layout in (ROWS, OVERLAP)),
        (lambda g, x: gat_attention(g, x[:, None], x[:, :1], x[:, :1]), ROWS),
    ],
)
def test_a_loss_that_counts_the_rows_of_padding(operation, layout, alike):
    """Padding edges end at a part's last row: nothing of it is in results or gradients."""
    graph, rng = random_graph(9, 30)
    if alike:  # as many edges, but of other kinds
        ends = [(0, 1), (1, 0), (0, 0), (4, 1), (5, 4), (0, 5), (1, 5), (2, 4)]
        graph = Graph.from_edges(*np.array(ends).T, num_nodes=9)
    sharded = over_axes(graph, *layout, owner=(np.arange(9) > 3).astype(np.int32))
    padding = ~np.asarray(sharded.node_mask)
    assert padding.any() and np.asarray(sharded.edge_mask).all() == alike
    x = rng.standard_normal((9, 4)).astype(np.float32)

    @jax.jit
    def run(graph, x):
        out, pullback = jax.vjp(functools.partial(operation, graph), x)
        return out, *pullback(jnp.cos(out))

    want, gradient = run(graph, x)
    placed = np.array(sharded.scatter(x))
    placed[padding] = 5
    got, of_places = run(sharded, placed)
    close(sharded.gather(got), want)
    close(sharded.gather(of_places), gradient)
    np.testing.assert_array_equal(np.asarray(got)[padding], 0)
    np.testing.assert_array_equal(np.asarray(of_places)[padding], 0)


@pytest.mark.few(1)
@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    ("make", "layout"),
    [
        *((functools.partial(GCNConv, 4, 3), layout) for layout in (ROWS, OVERLAP, BOTH)),
        (functools.partial(GATConv, 4, 3, edge_dim=1), ROWS),
        (functools.partial(GATv2Conv, 4, 3, edge_dim=1), ROWS),
        (lambda rngs: GINEConv(MLP([4, 3], rngs=rngs), edge_dim=1, rngs=rngs), ROWS),
    ],
)
def test_gradients_of_parameters_by_weights_not_finite_at_padding(make, layout):
    graph, rng = random_graph(9, 30)
    sharded = over_axes(graph, *layout, owner=(np.arange(9) > 5).astype(np.int32))
    x = rng.standard_normal((9, 4)).astype(np.float32)
    lengths = rng.uniform(1, 2, 30).astype(np.float32)

    @nnx.jit
    def gradient(conv, graph, x, lengths, mask):
        def loss(conv):
            return jnp.sum(conv(graph, x, 1 / lengths) ** 2, where=mask[:, None])

        return nnx.grad(loss)(conv)

    conv = make(rngs=nnx.Rngs(0))
    lengths = lengths if isinstance(conv, GCNConv) else lengths[:, None]
    want = gradient(conv, graph, x, graph.sort_edge_data(lengths), np.ones(9, bool))
    placed = sharded.scatter(x), sharded.scatter_edges(lengths), sharded.node_mask
    jax.tree.map(close, gradient(conv, sharded, *placed), want)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_weights_of_a_graph_without_edges_by_features():
    graph, _ = random_graph(5, 0)
    sharded = over_axes(graph, {"features": 2})
    weights = np.full(sharded.num_edges, np.inf, np.float32)
    x = np.ones((sharded.num_senders, 2), np.float32)
    gradient = jax.jit(jax.grad(lambda x, graph, weights: jnp.sum(spmm(graph, x, weights))))
    assert not gradient(x, sharded, weights).any()


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_errors_name_the_layout_and_what_users_call():
    graph, rng = random_graph(9, 30)
    by_features = over_axes(graph, {"features": 2})
    both = over_axes(graph, {"rows": 1, "features": 2})
    x = both.scatter(rng.standard_normal((9, 6)).astype(np.float32))
    conv = GATConv(6, 8, heads=2, rngs=nnx.Rngs(0))
    name = "graph: return_attention_weights expected a graph sharded by rows, got one by features"
    with pytest.raises(ValueError, match=name):
        conv(by_features, x, return_attention_weights=True)
    with pytest.raises(ValueError, match="by rows, got one by both: use rows alone, as in shard"):
        sddmm(both, x, x)
    heads = x.reshape(-1, 3, 2)
    with pytest.raises(ValueError, match="sharded by both, got 3: use rows alone, as in shard"):
        gat_attention(both, heads, x[:, :3], x[:, :3])


@pytest.mark.system
def test_all_shapes_and_models():
    done = run_python(*EIGHT_DEVICES, "--all", directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_models_on_one_to_three_devices():
    done = run_python(*EIGHT_DEVICES, "--few", directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_the_example_trains_alike_in_all_layouts():
    losses = []
    for layout in ("one", "rows", "features"):
        options = (
            f"--shape arxiv --scale 0.02 --features 16 --steps 2 --devices 3 --layout {layout}"
        )
        done = run_python(
            "examples/train_sharded.py", *options.split(), directory=ROOT, XLA_FLAGS=""
        )
        assert done.stdout.endswith("1 compiled\n")
        found = re.search(r"loss (\d+\.\d{6}) to (\d+\.\d{6})", done.stdout)
        assert found is not None
        losses.append([float(text) for text in found.groups()])
    assert losses[0][0] > losses[0][1]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("layout", ["rows", "features"])
def test_many_rows_are_a_multiple_of_128(layout):
    """XLA's GPU backend would else pad copies of them for a weight gradient."""
    graph, rng = random_graph(40_000, 60_000)
    sharded = shard(graph, mesh(2), **{layout: "x"})
    assert sharded.num_senders % 256 == 0 and sharded.num_senders >= graph.num_nodes
    x = rng.standard_normal((40_000, 4)).astype(np.float32)
    close(sharded.gather(jax.jit(spmm)(sharded, sharded.scatter(x))), spmm(graph, x))
    options = {"partition": "block"} if layout == "rows" else {}
    with pytest.raises(TypeError, match="in_graph_order: expected True or False, got 'no'"):
        sharded.scatter_edges(np.ones(60_000), in_graph_order="no")
    few = shard(random_graph(999, 10)[0], mesh(2), **{layout: "x"}, **options)
    assert 999 <= few.num_senders < 1024


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
@pytest.mark.parametrize("axes", [{"rows": "x"}, {"features": "x"}])
def test_first_and_last_linear_layers_run_on_a_device_s_own_rows(axes):
    """By the kernel of the weight gradient, whose operands no device gathers."""
    graph, rng = random_graph(900, 4000)
    model = GraphSAGE(20, 16, 5, num_layers=2, input_layer=True, jumping="last", rngs=nnx.Rngs(0))
    definition, state = nnx.split(model)
    sharded = shard(graph, mesh(2), **axes)
    x = rng.standard_normal((900, 20)).astype(np.float32)

    @jax.jit
    def gradients(state, graph, x, mask):
        def loss(state):
            return jnp.sum(jnp.sin(nnx.merge(definition, state)(graph, x)) * mask[:, None])

        return jax.grad(loss)(state)

    want = gradients(state, graph, x, np.ones(900, bool))
    arguments = state, sharded, sharded.scatter(x), sharded.node_mask
    jax.tree.map(close, gradients(*arguments), want)
    compiled = gradients.lower(*arguments).compile()
    assert compiled.as_text().count('"jaxgnn_weight_gradient"') == 2
    found = collectives(compiled)
    assert found.keys() == {"all-to-all", "all-reduce"} and found["all-reduce"] == 1


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_a_linear_layer_of_one_s_own_is_called():
    class Doubled(nnx.Linear):
        def __call__(self, x):
            return 2 * super().__call__(x)

    graph, rng = random_graph(9, 30)
    rngs = nnx.Rngs(0)
    model = GraphSAGE(4, 8, 3, num_layers=2, input_layer=True, jumping="last", rngs=rngs)
    model.linear_in, model.linear = Doubled(4, 8, rngs=rngs), Doubled(8, 3, rngs=rngs)
    sharded = shard(graph, mesh(2), rows="x")
    x = rng.standard_normal((9, 4)).astype(np.float32)
    close(sharded.gather(model(sharded, sharded.scatter(x))), model(graph, x))


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("operation", [gat_attention, dot_attention])
def test_places_of_padding_may_hold_anything(operation):
    graph, rng = random_graph(9, 30)
    sharded = over_axes(graph, *ROWS, owner=(np.arange(9) > 5).astype(np.int32))
    x = rng.standard_normal((9, 1, 4)).astype(np.float32)

    @jax.jit
    def gradient(graph, x, mask):
        scores = x[..., 0] if operation is gat_attention else x

        def loss(x):
            out = operation(graph, x, scores, scores)
            return jnp.sum(jnp.where(mask[:, None, None], jnp.sin(out), 0))

        return jax.grad(loss)(x)

    placed = np.array(sharded.scatter(x))
    placed[~np.asarray(sharded.node_mask)] = np.nan
    got = gradient(sharded, placed, sharded.node_mask)
    close(sharded.gather(got), gradient(graph, x, np.ones(9, bool)))


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(("dtype", "sent"), [("float16", None), ("float32", "float16")])
def test_a_part_that_sends_few_rows_in_16_bits(dtype, sent):
    """Its padding edges add up rows of the other part's, beyond what float16 holds."""
    rng, nodes = np.random.default_rng(0), 400
    receivers, ring = np.repeat(np.arange(200), 4), np.arange(nodes)
    senders = 200 + rng.integers(0, 150, receivers.size)  # from the second part to the first
    ends = np.concatenate([senders, ring, [0]]), np.concatenate([receivers, ring, [200]])
    graph = Graph.from_edges(*ends, num_nodes=nodes)
    partition = types.SimpleNamespace(parts=2, owner=(ring >= 200).astype(np.int32))
    sharded = shard(graph, mesh(2), rows="x", partition=partition, exchange_dtype=sent)
    assert sharded.sends is not None
    x = rng.uniform(0, 3000, (nodes, 1, 4)).astype(dtype)

    @jax.jit
    def gradient(graph, x, mask):
        def loss(x):
            out = gat_attention(graph, x, x[..., 0] / 1e4, x[..., 0] / 1e4)
            return jnp.sum(jnp.where(mask[:, None, None], out.astype(jnp.float32), 0))

        return jax.grad(loss)(x)

    got = sharded.gather(gradient(sharded, sharded.scatter(x), sharded.node_mask))
    want = np.asarray(gradient(graph, x, np.ones(nodes, bool)), np.float32)
    np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=0.02 * np.abs(want).max())
