"""Edge convolution against sums on the edges in float64: values, derivatives, transforms."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn import Graph, edge_conv, gather_edges, segment_reduce
from tests.support import oracle
from tests.support.devices import two_devices
from tests.support.oracle import draw_array, edges
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

REDUCTIONS = ("max", "mean", "sum")
NODES, EDGES = 12, 60

RUN = jax.jit(edge_conv, static_argnames=("reduce", "impl"))


def draw(graph, *shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    counts = graph.num_senders, graph.num_receivers
    return tuple(draw_array(rng, (count, *shape), dtype) for count in counts)


def dense(graph, theta, phi, reduce):
    senders, receivers = edges(graph)
    messages = np.asarray(theta, np.float64)[senders] + np.asarray(phi, np.float64)[receivers]
    out = np.zeros((graph.num_receivers, *messages.shape[1:]))
    function = {"max": np.max, "mean": np.mean, "sum": np.sum}[reduce]
    for row in np.unique(receivers):
        out[row] = function(messages[receivers == row], axis=0)
    return out


def close(actual, expected, tolerance=2e-6):
    oracle.close(actual, expected, tolerance)


def on_edges(graph, theta, phi, reduce):
    """The same with the sums on the edges."""
    return segment_reduce(graph, gather_edges(graph, theta, phi, "add"), reduce)


@pytest.mark.parametrize("impl", [None, "jax"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_rectangular_graph(reduce, impl):
    """With receivers that have no edges, and repeated edges."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(9, size=20), rng.integers(5, size=20)
    graph = Graph.from_edges(senders, receivers, num_senders=9, num_receivers=7)
    theta, phi = draw(graph, 3)
    close(RUN(graph, theta, phi, reduce=reduce, impl=impl), dense(graph, theta, phi, reduce))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2**-7), ("float16", 2**-9)]
)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_long_rows_and_dtypes(reduce, dtype, tolerance):
    """Rows that the kernels split, and further feature axes."""
    graph = skewed_graph(NODES, 4000)
    theta, phi = draw(graph, 2, 5, dtype=dtype)
    out = RUN(graph, theta, phi, reduce=reduce)
    assert out.dtype == dtype and out.shape == (NODES, 2, 5)
    close(out, dense(graph, theta, phi, reduce), tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_many_terms_that_cancel(dtype):
    """The senders' terms alone are 37 times what float16 holds."""
    hub = Graph.from_edges(np.arange(1, 4001), np.zeros(4000, int), num_nodes=4001)
    theta = jnp.full((4001, 2), 600, dtype)
    phi = -theta + jnp.asarray([[0, 4]], dtype)
    np.testing.assert_array_equal(RUN(hub, theta, phi, reduce="sum")[0], [0, 16000])


def test_the_maximum_has_the_bits_of_the_sums_on_the_edges():
    graph = skewed_graph(NODES, EDGES)
    theta, phi = draw(graph, 7)
    ours = RUN(graph, theta, phi)
    np.testing.assert_array_equal(ours, on_edges(graph, theta, phi, "max"))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients(reduce, x64):
    """First and second order, with rows without edges."""
    graph = Graph.from_edges([0, 1, 2, 2, 3, 0], [0, 0, 1, 1, 1, 3], num_nodes=5)
    theta, phi = draw(graph, 2, dtype="float64")
    run = jax.jit(lambda theta, phi: jnp.sin(edge_conv(graph, theta, phi, reduce=reduce)))
    check_grads(run, (theta, phi), order=2, modes=["rev"])


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients_are_those_of_the_sums_on_the_edges(reduce):
    """With ties, at which the gradient is shared."""
    graph = skewed_graph(NODES, EDGES)
    theta, phi = (jnp.round(values) for values in draw(graph, 4))

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(f, graph, theta, phi):
        def loss(theta, phi):
            return jnp.sum(jnp.sin(f(graph, theta, phi, reduce=reduce)))

        return jax.grad(loss, (0, 1))(theta, phi)

    ours, theirs = (gradients(f, graph, theta, phi) for f in (edge_conv, on_edges))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nothing_of_the_edges_size_is_formed(reduce):
    """No array of a row for each edge, in either pass; and one call of a kernel forward."""
    graph = skewed_graph(NODES, 61)
    theta, phi = draw(graph, 37)

    def loss(theta, phi, graph):
        return jnp.sum(edge_conv(graph, theta, phi, reduce=reduce) ** 2)

    text = jax.jit(jax.grad(loss, (0, 1))).lower(theta, phi, graph).as_text()
    assert not re.search(r"tensor<61x\d", text) and "tensor<12x37xf32>" in text
    forward = functools.partial(edge_conv, reduce=reduce)
    assert jax.jit(forward).lower(graph, theta, phi).as_text().count("@jaxgnn_") == 1


def test_vmap_is_one_call():
    graph = skewed_graph(NODES, EDGES)
    pairs = [draw(graph, 4, seed=seed) for seed in range(3)]
    theta, phi = (jnp.stack(parts) for parts in zip(*pairs, strict=True))
    for axes, expected in (
        ((0, 0), [RUN(graph, t, p) for t, p in pairs]),
        ((0, None), [RUN(graph, t, phi[0]) for t, _ in pairs]),
        ((None, 0), [RUN(graph, theta[0], p) for _, p in pairs]),
    ):
        mapped = jax.jit(jax.vmap(edge_conv, (None, *axes)))
        operands = theta if axes[0] == 0 else theta[0], phi if axes[1] == 0 else phi[0]
        assert mapped.lower(graph, *operands).as_text().count("@jaxgnn_") == 1
        close(mapped(graph, *operands), jnp.stack(expected))


@pytest.mark.parametrize("replicated", ["theta", "phi"])
def test_shard_map(replicated):
    """Features are sharded; or one operand is replicated, whose gradient is a sum."""
    mesh = two_devices()
    graph = skewed_graph(NODES, EDGES)
    theta, phi = (jnp.stack(draw(graph, 4, seed=seed)) for seed in range(2))
    operands = (theta[0], phi) if replicated == "theta" else (theta, phi[0])
    specs = tuple(P("d") if operand.ndim == 3 else P() for operand in operands)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), *specs), out_specs=P("d"), check_vma=True
    )
    def sharded(graph, theta, phi):
        theta, phi = (a[0] if a.ndim == 3 else a for a in (theta, phi))
        return edge_conv(graph, theta, phi)[None]

    def single(graph, theta, phi):
        pairs = [[a[i] if a.ndim == 3 else a for a in (theta, phi)] for i in range(2)]
        return jnp.stack([edge_conv(graph, *pair, impl="jax") for pair in pairs])

    def loss(f, *operands):
        return jnp.sum(jnp.sin(f(graph, *operands)))

    results = [
        jax.jit(jax.value_and_grad(functools.partial(loss, f), (0, 1)))(*operands)
        for f in (sharded, single)
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, results), strict=True):
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_rows_without_edges_hide_their_term(reduce):
    """Whatever it is: padding may hold anything."""
    graph = Graph.from_edges([0, 1], [0, 0], num_nodes=3)
    theta = jnp.ones((3, 2))
    phi = jnp.asarray([[1.0, 2.0], [jnp.nan, jnp.inf], [-jnp.inf, 0.0]])
    out = np.asarray(RUN(graph, theta, phi, reduce=reduce))
    np.testing.assert_array_equal(out[1:], 0)
    np.testing.assert_array_equal(out[0], np.array([2.0, 3.0]) * (2 if reduce == "sum" else 1))


def test_without_edges_nodes_or_features():
    lonely = Graph.from_edges([], [], num_nodes=3)
    empty = Graph.from_edges([], [], num_nodes=0)
    for reduce in REDUCTIONS:
        run = functools.partial(edge_conv, reduce=reduce)
        np.testing.assert_array_equal(run(lonely, *draw(lonely, 2)), np.zeros((3, 2)))
        assert run(empty, *draw(empty, 2)).shape == (0, 2)
        assert run(lonely, *draw(lonely, 0)).shape == (3, 0)


def bad_calls():
    graph = skewed_graph(NODES, EDGES)
    theta, phi = draw(graph, 4)
    half = phi.astype(jnp.float16)
    return {
        "graph": ((theta, graph, phi), {}, TypeError, "graph: expected a jaxgnn.Graph"),
        "rows": ((graph, theta[1:], phi), {}, ValueError, r"theta: .*\(12, ...\).* got \(11, 4\)"),
        "phi": ((graph, theta, phi[1:]), {}, ValueError, r"phi: .*receiver, got \(11, 4\)"),
        "width": ((graph, theta, phi[:, 1:]), {}, ValueError, r"phi: .*\(4,\), got \(3,\)"),
        "dtype": ((graph, theta, half), {}, TypeError, "phi: .*float32, got float16"),
        "integers": ((graph, jnp.ones((12, 4), int), phi), {}, TypeError, "theta: .* got int32"),
        "reduce": ((graph, theta, phi), {"reduce": "min"}, ValueError, "reduce: .* got 'min'"),
        "impl": ((graph, theta, phi), {"impl": "cuda"}, ValueError, "impl"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_arguments(name):
    arguments, options, error, message = bad_calls()[name]
    with pytest.raises(error, match=message):
        edge_conv(*arguments, **options)
