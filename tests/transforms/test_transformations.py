"""The operations under jit, vmap, scan, checkpoint and shard_map."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

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
    sddmm,
    segment_reduce,
    segment_softmax,
    spmm,
)
from jaxgnn._core.row_ids import csr_row_ids
from tests.support.oracle import draw_array
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

NODES, EDGES = 12, 60


@pytest.fixture(scope="module")
def graph():
    return skewed_graph(NODES, EDGES)


def draw(*shape, seed=0):
    return draw_array(np.random.default_rng(seed), shape, "float32")


def custom_calls(f, *arguments) -> int:
    """How many of our custom calls the compiled function makes."""
    return jax.jit(f).lower(*arguments).as_text().count("@jaxgnn_")


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize(
    "in_axes", [(0, None), (None, 0), (0, 0), (1, 1), (2, None)], ids=lambda axes: str(axes)
)
def test_vmap_is_one_call_on_a_wider_array(graph, reduce, in_axes):
    batch = 3

    def batched(shape, axis):
        return shape if axis is None else (*shape[:axis], batch, *shape[axis:])

    x = draw(*batched((NODES, 2, 4), in_axes[0]))
    weights = draw(*batched((EDGES, 2), in_axes[1]), seed=1)

    def f(graph, x, weights):
        return jnp.sin(spmm(graph, x, weights, reduce=reduce))

    mapped = jax.vmap(f, (None, *in_axes))
    assert custom_calls(mapped, graph, x, weights) == 1

    def one(array, axis, i):
        return array if axis is None else jnp.take(array, i, axis)

    expected = jnp.stack(
        [f(graph, one(x, in_axes[0], i), one(weights, in_axes[1], i)) for i in range(batch)]
    )
    np.testing.assert_allclose(mapped(graph, x, weights), expected, rtol=1e-6, atol=1e-6)

    def loss(f, x, weights):
        return jnp.sum(f(graph, x, weights) ** 2)

    def looped(graph, x, weights):
        return jnp.stack(
            [f(graph, one(x, in_axes[0], i), one(weights, in_axes[1], i)) for i in range(batch)]
        )

    ours = jax.grad(functools.partial(loss, mapped), (0, 1))(x, weights)
    theirs = jax.grad(functools.partial(loss, looped), (0, 1))(x, weights)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_vmap_of_gradients_and_nested_vmap(graph):
    x, weights = draw(2, 3, NODES, 4), draw(3, EDGES, seed=1)

    @jax.jit
    def gradient(x, weights):
        return jax.grad(lambda x, w: jnp.sum(spmm(graph, x, w) ** 2), (0, 1))(x, weights)

    inner = jax.vmap(gradient)
    nested = jax.vmap(inner, (0, None))(x, weights)
    for i in range(2):
        for j in range(3):
            for ours, expected in zip(nested, gradient(x[i, j], weights[j]), strict=True):
                np.testing.assert_allclose(ours[i, j], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batched", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_the_other_operations(graph, batched):
    a = draw(*((3,) if batched[0] == 0 else ()), NODES, 2, 5)
    b = draw(*((3,) if batched[1] == 0 else ()), NODES, 2, 5, seed=1)

    @jax.jit
    def f(a, b):
        scores = segment_softmax(graph, sddmm(graph, a, b))
        messages = gather_edges(graph, a, b, "mul") * scores[..., None]
        return segment_reduce(graph, messages, by="senders")

    expected = jnp.stack(
        [f(a[i] if batched[0] == 0 else a, b[i] if batched[1] == 0 else b) for i in range(3)]
    )
    np.testing.assert_allclose(jax.vmap(f, batched)(a, b), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0), (1, 1)], ids=lambda a: str(a))
def test_vmap_of_sparse_rows(graph, reduce, in_axes):
    """Positions differ by example: the products run one after the other."""
    batch = 3

    def batched(shape, axis):
        return shape if axis is None else (*shape[:axis], batch, *shape[axis:])

    x = draw(*batched((NODES, 10), in_axes[0]))
    weights = draw(*batched((EDGES,), in_axes[1]), seed=1)

    def f(x, weights):
        return jnp.sin(maxk_spmm(graph, maxk(x, 4), weights, reduce=reduce))

    def one(array, axis, i):
        return array if axis is None else jnp.take(array, i, axis)

    def looped(x, weights):
        return jnp.stack(
            [f(one(x, in_axes[0], i), one(weights, in_axes[1], i)) for i in range(batch)]
        )

    def with_gradients(g):
        def loss(x, weights):
            out = g(x, weights)
            return jnp.sum(out**2), out

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, weights)

    (ours, out), (theirs, expected) = map(with_gradients, (jax.vmap(f, in_axes), looped))
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_vmap_over_values_at_fixed_positions(graph):
    cbsr = maxk(draw(NODES, 10), 4)
    values = draw(3, NODES, 4, seed=1)

    def f(values):
        return maxk_spmm(graph, CBSR(values, cbsr.indices, 10))

    gradients = jax.vmap(jax.grad(lambda v: jnp.sum(f(v) ** 3)))(values)
    for i in range(3):
        np.testing.assert_allclose(jax.vmap(f)(values)[i], f(values[i]), rtol=1e-6)
        expected = jax.grad(lambda v: jnp.sum(f(v) ** 3))(values[i])
        np.testing.assert_allclose(gradients[i], expected, rtol=1e-5, atol=1e-5)


def test_vmap_over_graphs_of_one_shape():
    graphs = [
        Graph.from_edges(np.roll(np.arange(6), i), np.arange(6) // 2, num_nodes=6) for i in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    x = draw(3, 6, 4)
    expected = jnp.stack([spmm(g, x[i]) for i, g in enumerate(graphs)])
    np.testing.assert_allclose(jax.vmap(spmm)(stacked, x), expected, rtol=1e-6)


def shares(x):
    return jnp.sum(x, axis=-1)


def on_sparse_rows(graph, x, **options):
    return maxk_spmm(graph, maxk(x[:, 0], 2, **options), draw(EDGES))


def on_gaussians(graph, x, pseudo):
    return gaussian_spmm(graph, x, draw(2, 3), draw(2, 3, seed=1), pseudo)


def on_graphs(graph, x):
    offsets = graph.row_offsets + 0 * x[0, 0, 0].astype(jnp.int32)
    return spmm(dataclasses.replace(graph, row_offsets=offsets), x)


DROPOUT = {"dropout_rate": 0.5, "dropout_rng": np.array([1, 2], np.uint32)}
# Of rows [NODES, 2, 4]: each rule of `vmap` by what needs it.
ON_ROWS = {
    "spmm": spmm,
    "spmm max": lambda g, x: spmm(g, x, draw(EDGES), reduce="max"),
    "spmm weights": lambda g, x: spmm(g, draw(NODES, 4), draw(EDGES) * jnp.sum(x)),
    "spmm graphs": on_graphs,
    "sddmm": lambda g, x: sddmm(g, x, x),
    "gather_edges": gather_edges,
    "segment_reduce": lambda g, x: segment_reduce(g, gather_edges(g, x), "max"),
    "segment_softmax": lambda g, x: segment_softmax(g, gather_edges(g, shares(x))),
    "edge_conv": lambda g, x: edge_conv(g, x, x),
    "gat_attention": lambda g, x: gat_attention(
        g, x, shares(x), shares(x), self_loops=True, **DROPOUT
    ),
    "gatv2_attention": lambda g, x: gatv2_attention(g, x, x, x[0]),
    "dot_attention": lambda g, x: dot_attention(g, x, x, x),
    "cosine_attention": cosine_attention,
    "gaussian_spmm": lambda g, x: on_gaussians(g, x, (draw(NODES, 3), draw(NODES, 3, seed=1))),
    "gaussian_spmm places": lambda g, x: on_gaussians(g, x, (x[:, 0, 1:], x[:, 1, 1:])),
    "maxk": lambda _, x: maxk(x, 2).to_dense(),
    "maxk_spmm": on_sparse_rows,
    "maxk_spmm transformed": lambda g, x: on_sparse_rows(g, x, bias=x[0, 0], **DROPOUT),
}


@pytest.mark.parametrize("name", ON_ROWS)
def test_vmap_over_no_examples(graph, name):
    """Results and gradients without elements, of the shapes and dtypes that an example has."""
    f, x = functools.partial(ON_ROWS[name], graph), draw(NODES, 2, 4)

    def with_gradient(x):
        return f(x), jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)

    one = jax.eval_shape(with_gradient, x)
    for batch in ((0,), (0, 3), (3, 0)):
        mapped = with_gradient
        for _ in batch:
            mapped = jax.vmap(mapped)
        for array, example in zip(mapped(jnp.zeros((*batch, *x.shape))), one, strict=True):
            assert array.shape == (*batch, *example.shape)
            assert array.dtype == example.dtype


def test_the_graph_is_an_operand_and_the_kernel_is_called(graph):
    text = jax.jit(spmm).lower(graph, draw(NODES, 4)).as_text()
    assert "jaxgnn_spmm" in text
    assert "stablehlo.constant dense<[" not in text  # no array became part of the program


def test_scan_and_checkpoint(graph):
    x, weights = draw(NODES, 4), draw(EDGES, seed=1) / 8

    def step(x, _):
        return jax.checkpoint(lambda x: jnp.tanh(spmm(graph, x, weights, reduce="mean")))(x), None

    def scanned(x):
        return jnp.sum(jax.lax.scan(step, x, length=4)[0] ** 2)

    def unrolled(x):
        for _ in range(4):
            x = jnp.tanh(spmm(graph, x, weights, reduce="mean", impl="jax"))
        return jnp.sum(x**2)

    value, gradient = jax.jit(jax.value_and_grad(scanned))(x)
    expected_value, expected_gradient = jax.jit(jax.value_and_grad(unrolled))(x)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_scan_and_checkpoint_of_sparse_rows(graph):
    x, weights = draw(NODES, 10), draw(EDGES, seed=1) / 8

    def layer(x, impl):
        return x + maxk_spmm(graph, maxk(x, 4, impl=impl), weights, reduce="mean", impl=impl)

    def scanned(x):
        def step(x, _):
            return jax.checkpoint(lambda x: jnp.tanh(layer(x, None)))(x), None

        return jnp.sum(jax.lax.scan(step, x, length=3)[0] ** 2)

    def unrolled(x):
        for _ in range(3):
            x = jnp.tanh(layer(x, "jax"))
        return jnp.sum(x**2)

    value, gradient = jax.jit(jax.value_and_grad(scanned))(x)
    expected_value, expected_gradient = jax.jit(jax.value_and_grad(unrolled))(x)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def two_devices():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_shard_map_over_features(graph, reduce):
    """Features are sharded, the graph and the weights replicated: their gradient is a sum."""
    mesh, x, weights = two_devices(), draw(NODES, 8), draw(EDGES, seed=1)

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
    mesh, x = two_devices(), draw(NODES, 3, 8)
    parameters = [draw(*shape, seed=i) for i, shape in enumerate([(3, 2), (3, 2), (NODES, 2)])]

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
    x = draw(6, 4)

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
    x, weights = draw(6, 9), draw(6, seed=1)

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
    operands = draw(6, 2, 3), draw(6, 2, 3, seed=1), draw(2, 3, seed=2)

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
    graph, x = Graph.from_edges([], [], num_nodes=3), draw(3, 2, 4)

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
    mesh, x = two_devices(), draw(3, 2, 4)
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


def attentions(graph, x, impl=None):
    """All attentions with a self-loop for each node, GATv2's with terms of the edges, too."""
    shares, options = jnp.sum(x, axis=-1), {"self_loops": True, "impl": impl}
    edge = jnp.ones((graph.num_edges, *x.shape[1:]))
    return (
        gat_attention(graph, x, shares, shares, **options)
        + gatv2_attention(graph, x, x, x[0], **options)
        + gatv2_attention(graph, x, x, x[0], edge=edge, **options)
        + dot_attention(graph, x, x, x, **options)
        + cosine_attention(graph, x, **options)
    )


@pytest.mark.parametrize("impl", [None, "jax"])
def test_shard_map_over_self_loops(impl):
    """Of all rows, the composition of operations on edges, which second derivatives have too."""
    mesh = two_devices()
    graph, x = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], num_nodes=3), draw(3, 2, 4)

    def second(x, impl=impl):
        def first(x):
            return jax.grad(lambda x: jnp.sum(attentions(graph, x, impl) ** 2))(x)

        return attentions(graph, x, impl), jax.grad(lambda x: jnp.sum(first(x) ** 2))(x)

    sharded = jax.shard_map(
        second, mesh=mesh, in_specs=P(None, "d"), out_specs=P(None, "d"), check_vma=True
    )
    single = jax.jit(functools.partial(second, impl="jax"))
    halves = [single(x[:, half]) for half in (slice(1), slice(1, 2))]
    expected = [jnp.concatenate(parts, axis=1) for parts in zip(*halves, strict=True)]
    for a, b in zip(jax.jit(sharded)(x), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_graph_without_edges_takes_no_bad_impl():
    graph, x = Graph.from_edges([], [], num_nodes=3), draw(3, 4)
    calls = {
        "spmm": lambda: spmm(graph, x, impl="bogus"),
        "sddmm": lambda: sddmm(graph, x, x, impl="bogus"),
        "segment_reduce": lambda: segment_reduce(graph, draw(0, 4), impl="bogus"),
        "edge_conv": lambda: edge_conv(graph, x, x, impl="bogus"),
        "expand_rows": lambda: csr_row_ids(graph.row_offsets, 0, impl="bogus"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=r"impl: .* got 'bogus'"):
            call()
            pytest.fail(f"{name} took it")
