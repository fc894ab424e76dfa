"""The operations under shard_map, on two devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxgnn import (
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
from tests.support.arrays import normal
from tests.support.devices import two_devices

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

NODES, EDGES = 12, 60


def shares(x):
    return jnp.sum(x, axis=-1)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_shard_map_over_features(graph, reduce):
    """Features are sharded, the graph and the weights replicated: their gradient is a sum."""
    mesh, x, weights = two_devices(), normal(NODES, 8), normal(EDGES, seed=1)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P(None, "d"), P()),
        out_specs=P(None, "d"),
        check_vma=True,
    )
    def sharded(graph, x, weights):
        return spmm(graph, x, weights, reduce=reduce)

    def loss(f, x, weights):
        return jnp.sum(jnp.sin(f(graph, x, weights)))

    def single(graph, x, weights):
        return spmm(graph, x, weights, reduce=reduce)

    np.testing.assert_allclose(
        jax.jit(sharded)(graph, x, weights), single(graph, x, weights), rtol=1e-6
    )
    ours = jax.jit(jax.grad(functools.partial(loss, sharded), (0, 1)))(x, weights)
    theirs = jax.grad(functools.partial(loss, single), (0, 1))(x, weights)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_shard_map_over_features_under_gaussians(graph):
    """The features are sharded, the graph, the Gaussians and the coordinates replicated."""
    mesh, x = two_devices(), normal(NODES, 3, 8)
    parameters = [normal(*shape, seed=i) for i, shape in enumerate([(3, 2), (3, 2), (NODES, 2)])]

    def single(x, mu, inv_sigma, places):
        pair = places, places
        return gaussian_spmm(graph, x, mu, inv_sigma, pair, reduce="mean", activation="tanh")

    sharded = jax.shard_map(
        single,
        mesh=mesh,
        in_specs=(P(None, None, "d"), P(), P(), P()),
        out_specs=P(None, "d"),
        check_vma=True,
    )

    def with_gradients(f, *operands):
        out, pullback = jax.vjp(f, *operands)
        return out, *pullback(jnp.sin(out))

    ours, theirs = (
        jax.jit(functools.partial(with_gradients, f))(x, *parameters) for f in (sharded, single)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_shard_map_over_graphs():
    """Each device has a graph of its own; a replicated operand's gradient is summed."""
    mesh = two_devices()
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    x = normal(6, 4)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=True
    )
    def sharded(stacked, x):
        graph = jax.tree.map(lambda leaf: leaf[0], stacked)
        scores = segment_softmax(graph, sddmm(graph, x, x))
        edges = gather_edges(graph, x, x, "add") * scores[:, None]
        return (spmm(graph, x, scores) + segment_reduce(graph, edges, "max"))[None]

    def single(graphs, x):
        outs = []
        for graph in graphs:
            scores = segment_softmax(graph, sddmm(graph, x, x, impl="jax"), impl="jax")
            edges = gather_edges(graph, x, x, "add", impl="jax") * scores[:, None]
            reduced = segment_reduce(graph, edges, "max", impl="jax")
            outs.append(spmm(graph, x, scores, impl="jax") + reduced)
        return jnp.stack(outs)

    def loss(f, graphs, x):
        return jnp.sum(jnp.sin(f(graphs, x)))

    np.testing.assert_allclose(jax.jit(sharded)(stacked, x), jax.jit(single)(graphs, x), rtol=1e-5)
    ours = jax.jit(jax.grad(functools.partial(loss, sharded), 1))(stacked, x)
    theirs = jax.jit(jax.grad(functools.partial(loss, single), 1))(graphs, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_shard_map_over_sparse_rows(reduce):
    """Each device has a graph of its own; the features and the weights are replicated."""
    mesh = two_devices()
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    x, weights = normal(6, 9), normal(6, seed=1)

    def layer(graph, x, weights, impl=None):
        rows = maxk(x, 4, impl=impl)
        return maxk_spmm(graph, rows, weights, reduce=reduce, impl=impl) + rows.to_dense(impl=impl)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("d"), P(), P()), out_specs=P("d"), check_vma=True
    )
    def sharded(stacked, x, weights):
        graph = jax.tree.map(lambda leaf: leaf[0], stacked)
        return layer(graph, x, weights)[None]

    def single(graphs, x, weights):
        return jnp.stack([layer(graph, x, weights, "jax") for graph in graphs])

    def loss(f, graphs, x, weights):
        return jnp.sum(jnp.sin(f(graphs, x, weights)))

    ours, theirs = jax.jit(sharded)(stacked, x, weights), jax.jit(single)(graphs, x, weights)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    ours = jax.jit(jax.grad(functools.partial(loss, sharded), (1, 2)))(stacked, x, weights)
    theirs = jax.jit(jax.grad(functools.partial(loss, single), (1, 2)))(graphs, x, weights)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_shard_map_over_attention():
    """Each device has a graph of its own; the rows and GATv2's vector are replicated."""
    mesh = two_devices()
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    operands = normal(6, 2, 3), normal(6, 2, 3, seed=1), normal(2, 3, seed=2)

    def layer(graph, x, y, vector, impl=None):
        out = gatv2_attention(graph, x, y, vector, self_loops=True, impl=impl)
        out = out + dot_attention(graph, x, y, x, impl=impl)
        return out + cosine_attention(graph, x, vector[0, 0], impl=impl)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("d"), P(), P(), P()),
        out_specs=P("d"),
        check_vma=True,
    )
    def sharded(stacked, *operands):
        return layer(jax.tree.map(lambda leaf: leaf[0], stacked), *operands)[None]

    def single(graphs, *operands):
        return jnp.stack([layer(graph, *operands, "jax") for graph in graphs])

    def loss(f, graphs, *operands):
        return jnp.sum(jnp.sin(f(graphs, *operands)))

    def run(f, graphs):
        return jax.jit(jax.value_and_grad(functools.partial(loss, f), (1, 2, 3)))(graphs, *operands)

    ours, theirs = run(sharded, stacked), run(single, graphs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("as_argument", [False, True], ids=["constant", "argument"])
@pytest.mark.parametrize("impl", [None, "jax"])
def test_shard_map_over_a_graph_without_edges(impl, as_argument):
    """Arrays without elements, of which jaxlib 0.11 must not see the graph's own."""
    mesh = two_devices()
    graph, x = Graph.from_edges([], [], num_nodes=3), normal(3, 2, 4)

    def layer(graph, x):
        outs = [spmm(graph, x, reduce=reduce, impl=impl) for reduce in ("sum", "mean", "max")]
        outs.append(spmm(graph, x, jnp.zeros(0), transpose=True, impl=impl))
        outs += [edge_conv(graph, x, x, reduce=r, impl=impl) for r in ("max", "mean", "sum")]
        scores = segment_softmax(graph, sddmm(graph, x, x, impl=impl), impl=impl)
        messages = gather_edges(graph, x, impl=impl) * scores[..., None]
        outs.append(segment_reduce(graph, messages, impl=impl))
        shares = jnp.sum(x, axis=-1)
        outs += [
            gat_attention(graph, x, shares, shares, self_loops=True, impl=impl),
            gatv2_attention(graph, x, x, x[0], self_loops=True, impl=impl),
            dot_attention(graph, x, x, x, self_loops=True, impl=impl),
            cosine_attention(graph, x, self_loops=True, impl=impl),
        ]
        return outs

    def with_gradients(graph, x):
        def loss(x):
            outs = layer(graph, x)
            return sum(jnp.sum(out**2) for out in outs), outs

        return jax.grad(loss, has_aux=True)(x)

    specs = P(None, "d")
    if as_argument:
        sharded = jax.shard_map(
            with_gradients, mesh=mesh, in_specs=(P(), specs), out_specs=specs, check_vma=True
        )
    else:
        closed = jax.shard_map(
            functools.partial(with_gradients, graph),
            mesh=mesh,
            in_specs=specs,
            out_specs=specs,
            check_vma=True,
        )
        sharded = lambda _, x: closed(x)  # noqa: E731
    gradient, outs = jax.jit(sharded)(graph, x)
    for out in outs[:-4]:
        np.testing.assert_array_equal(out, np.zeros_like(x))
    for out in outs[-4:]:  # the self-loops alone
        np.testing.assert_allclose(out, x, rtol=1e-6)
    np.testing.assert_allclose(gradient, 8 * x, rtol=1e-5)


def test_shard_map_carries_a_graph_without_edges():
    """What comes of no edges varies as what comes of some: a carry keeps its type."""
    mesh, x = two_devices(), normal(3, 2, 4)
    graph, ones = Graph.from_edges([], [], num_nodes=3), jnp.ones((1, 1))
    functions = (
        lambda x: spmm(graph, x),
        lambda x: segment_reduce(graph, gather_edges(graph, x), "max"),
        lambda x: maxk_spmm(graph, maxk(x[:, 0], 2))[:, None],
        lambda x: gaussian_spmm(graph, x[:, 0], ones, ones, jnp.zeros((0, 1))),
        lambda x: gat_attention(graph, x, shares(x), shares(x)),
        lambda x: gatv2_attention(graph, x, x, x[0]),
        lambda x: gatv2_attention(graph, x, x, x[0], edge=jnp.zeros((0, 1, 4))),
        lambda x: dot_attention(graph, x, x, x),
        lambda x: cosine_attention(graph, x),
    )

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=P(None, "d"), out_specs=P(None, "d"), check_vma=True
    )
    def sharded(x):
        return [jax.lax.scan(lambda x, _, f=f: (f(x), None), x, length=2)[0] for f in functions]

    for out in jax.jit(sharded)(x):
        np.testing.assert_array_equal(out, np.zeros_like(x))


ATTENTIONS = {
    "gat": lambda graph, x, **options: gat_attention(
        graph, x, jnp.sum(x, axis=-1), jnp.sum(x, axis=-1), **options
    ),
    "gatv2": lambda graph, x, **options: gatv2_attention(graph, x, x, x[0], **options),
    "gatv2 with edges": lambda graph, x, **options: gatv2_attention(
        graph, x, x, x[0], edge=jnp.ones((graph.num_edges, *x.shape[1:])), **options
    ),
    "dot": lambda graph, x, **options: dot_attention(graph, x, x, x, **options),
    "cosine": lambda graph, x, **options: cosine_attention(graph, x, **options),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("impl", [None, "jax"])
def test_shard_map_over_self_loops(impl, name):
    """Of all rows, the composition of operations on edges, which second derivatives have too."""
    mesh, attention = two_devices(), functools.partial(ATTENTIONS[name], self_loops=True)
    graph, x = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], num_nodes=3), normal(3, 2, 4)

    def second(x, impl=impl):
        def first(x):
            return jax.grad(lambda x: jnp.sum(attention(graph, x, impl=impl) ** 2))(x)

        return attention(graph, x, impl=impl), jax.grad(lambda x: jnp.sum(first(x) ** 2))(x)

    sharded = jax.shard_map(
        second, mesh=mesh, in_specs=P(None, "d"), out_specs=P(None, "d"), check_vma=True
    )
    single = jax.jit(functools.partial(second, impl="jax"))
    halves = [single(x[:, half]) for half in (slice(1), slice(1, 2))]
    expected = [jnp.concatenate(parts, axis=1) for parts in zip(*halves, strict=True)]
    for a, b in zip(jax.jit(sharded)(x), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["stride", "random", "dropedge"])
def test_shard_map_over_features_of_samples(graph, strategy):
    """Every device draws the same sample, from the replicated key."""
    mesh, x, weights = two_devices(), normal(NODES, 8), normal(EDGES, seed=1)
    size = {"sample_rate": 0.5} if strategy == "dropedge" else {"sample_size": 2}
    key = jax.random.PRNGKey(3)

    def single(graph, x, weights, key):
        return sampled_spmm(
            graph, x, weights, strategy=strategy, key=key, normalize="rescale", **size
        )

    sharded = jax.shard_map(
        single,
        mesh=mesh,
        in_specs=(P(), P(None, "d"), P(), P()),
        out_specs=P(None, "d"),
        check_vma=True,
    )

    def loss(f, x, weights):
        return jnp.sum(jnp.sin(f(graph, x, weights, key)))

    np.testing.assert_allclose(
        jax.jit(sharded)(graph, x, weights, key), single(graph, x, weights, key), rtol=1e-6
    )
    ours = jax.jit(jax.grad(functools.partial(loss, sharded), (0, 1)))(x, weights)
    theirs = jax.grad(functools.partial(loss, single), (0, 1))(x, weights)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_shard_map_over_rows_of_samples(graph):
    """Receivers are sharded: each device aggregates its own, and sums the gradients."""
    mesh, x = two_devices(), normal(NODES, 4)
    rows = jnp.array([3, 0, 3, 7, 1, 11])

    def single(graph, x, rows):
        return sampled_spmm(graph, x, sample_size=2, rows=rows, normalize="mean")

    sharded = jax.shard_map(
        single, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P("d"), check_vma=True
    )
    np.testing.assert_allclose(jax.jit(sharded)(graph, x, rows), single(graph, x, rows), rtol=1e-6)

    def loss(f, x):
        return jnp.sum(jnp.sin(f(graph, x, rows)))

    ours = jax.jit(jax.grad(functools.partial(loss, sharded)))(x)
    theirs = jax.grad(functools.partial(loss, single))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
