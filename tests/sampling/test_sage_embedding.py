"""The embedding of two sampled hops against a loop in float64, and its derivatives."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxgnn import Graph, sage_embedding
from jaxgnn.train import HostFeatures
from tests.support.arrays import normal
from tests.support.devices import two_devices
from tests.support.oracle_embedding import brute_force_embedding

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

KEY = jax.random.key(5)
NODES, WIDTH = 24, 6
SIZES = {"num_children": 3, "num_leaves": 4}


@pytest.fixture(scope="module")
def graph():
    """With isolated nodes, self-loops, repeated edges, and rows shorter than a sample."""
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(NODES, size=90), rng.integers(16, size=90)
    return Graph.from_edges([*senders, 2, 2], [*receivers, 17, 17], num_nodes=NODES)


def matrices(widths=(5, 4, 3, 2), features=WIDTH, dtype="float32"):
    hidden = widths[0] + widths[1]
    rows = (features, features, hidden, hidden)
    names = ("Wf1", "Wa1", "Wf2", "Wa2")
    return {
        name: normal(n, width, seed=i, dtype=dtype)
        for i, (name, n, width) in enumerate(zip(names, rows, widths, strict=True))
    }


@pytest.mark.parametrize(
    ("aggr", "replace", "weighted"),
    [
        ("mean", True, False),
        ("mean", False, True),
        ("sum", True, True),
        ("sum", False, False),
        ("max", False, True),
    ],
)
def test_against_the_equation(graph, aggr, replace, weighted):
    x, params = normal(NODES, WIDTH, seed=9), matrices()
    weights = normal(graph.num_edges, seed=8) if weighted else None
    options = SIZES | {"aggr": aggr, "replace": replace, "weights": weights}
    out = jax.jit(lambda x, params: sage_embedding(graph, x, params, KEY, **options))(x, params)
    expected = brute_force_embedding(graph, x, params, KEY, **options)
    np.testing.assert_allclose(out, expected, atol=3e-6)
    assert np.abs(expected[17:]).max() > 0  # isolated nodes draw themselves


@pytest.mark.parametrize(("batch_size", "widths"), [(10, (5, 4, 3, 2)), (65536, (3, 9, 4, 4))])
def test_sources_and_batches(graph, batch_size, widths):
    """Few sources: products at the places; wide Wa1: after the aggregation."""
    x, params = normal(NODES, WIDTH, seed=9), matrices(widths)
    for sources in ([3, 3, -1, 20], [*range(NODES), 3, -1, 3]):
        options = SIZES | {"sources": sources}

        @jax.jit
        def embed(x, options=options):
            return sage_embedding(graph, x, params, KEY, batch_size=batch_size, **options)

        out = embed(x)
        expected = brute_force_embedding(graph, x, params, KEY, **options)
        np.testing.assert_allclose(out, expected, atol=3e-6)
        assert not out[sources.index(-1)].any() and out[0].any()
        lengths = np.linalg.norm(np.asarray(out, np.float64), axis=1)
        assert np.all((np.abs(lengths - 1) < 1e-6) | (lengths == 0))


@pytest.mark.system
@pytest.mark.parametrize(("aggr", "replace"), [("mean", True), ("max", False)])
def test_batches_draw_what_the_whole_does(graph, aggr, replace):
    """The result and, drawn again, the gradient; 7 divides no number of sources here."""
    x, params = normal(NODES, WIDTH, seed=9), matrices()
    sources = jnp.asarray([*range(NODES), 3, -1, 3], jnp.int32)
    options = SIZES | {"sources": sources, "aggr": aggr, "replace": replace}

    @functools.partial(jax.jit, static_argnames="batch_size")
    def embed(x, batch_size):
        embed = functools.partial(sage_embedding, batch_size=batch_size, **options)
        out, pull = jax.vjp(lambda x: embed(graph, x, params, KEY), x)
        return out, pull(jnp.sin(out))[0]

    whole = embed(x, 65536)
    assert np.abs(whole[0][3] - whole[0][NODES]).max() > 1e-3  # of one node, at two places
    for batch_size in (7, 1):
        for found, expected in zip(embed(x, batch_size), whole, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("aggr", "replace"), [("mean", True), ("max", False)])
def test_features_in_host_memory(graph, aggr, replace):
    """The same draws and rows; gradients of the matrices; only what is reduced is moved."""
    x, params = normal(NODES, WIDTH, seed=9), matrices()
    host = HostFeatures(np.array(x))
    weights = normal(graph.num_edges, seed=8) if aggr == "max" else None
    options = SIZES | {"aggr": aggr, "replace": replace, "weights": weights, "batch_size": 10}
    options |= {"sources": np.array([*range(NODES), 3, -1, 3])}

    def embed(params, features):
        out = sage_embedding(graph, features, params, KEY, **options)
        return jnp.sin(out).sum(), out

    run = jax.value_and_grad(embed, has_aux=True)
    (_, out), gradients = run(params, host)
    (_, expected), others = jax.jit(run)(params, x)
    np.testing.assert_allclose(out, expected, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, others)
    with pytest.raises(TypeError, match="features: expected an array where other arguments"):
        jax.jit(lambda key: sage_embedding(graph, host, params, key))(KEY)
    with pytest.raises(TypeError, match="features: expected HostFeatures outside of jit"):
        jax.tree.unflatten(*jax.tree.flatten(host)[::-1]).on_cpu()
    with pytest.raises(ValueError, match="features: expected 24 rows, one for each node, got 3"):
        sage_embedding(graph, HostFeatures(np.array(x[:3])), params, KEY)


def test_a_batch_is_compiled_once(graph):
    x, params = normal(NODES, WIDTH), matrices()

    def text(batch_size):
        call = functools.partial(sage_embedding, graph, batch_size=batch_size, **SIZES)
        return jax.jit(call).lower(x, params, KEY).as_text()

    targets = ("jaxgnn_sample_edges", "jaxgnn_drawn_rows")
    whole, parts = ([text(n).count(target) for target in targets] for n in (NODES, 5))
    assert whole == parts and sum(whole) > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(graph, dtype):
    x, params = normal(NODES, WIDTH, seed=9, dtype=dtype), matrices(dtype=dtype)
    out = jax.jit(functools.partial(sage_embedding, **SIZES))(graph, x, params, KEY)
    assert out.dtype == dtype
    expected = brute_force_embedding(graph, x, params, KEY, **SIZES)
    np.testing.assert_allclose(out.astype("float32"), expected, atol=0.03)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("scale", "options"),
    [
        (4e4, {}),  # beyond float16: the projections
        (300.0, {"aggr": "sum", "num_leaves": 400}),  # the leaves' sums
        (3e4, {"aggr": "sum", "replace": False, "sources": [3, 20, -1]}),
        (2e4, {"aggr": "mean", "weighted": True}),  # the products with the weights
        (2e4, {"aggr": "max", "weighted": True, "sources": [3, 20, -1]}),
    ],
)
def test_float16_is_in_range_where_its_operands_are(graph, scale, options):
    options = {**SIZES, **options}
    if options.pop("weighted", False):
        options["weights"] = 1e5 * jnp.abs(normal(graph.num_edges, seed=8))
    x = (scale * jnp.clip(jnp.abs(normal(NODES, WIDTH, seed=9)), 0.5, 1.5)).astype("float16")
    params = matrices(dtype="float16")
    expected = brute_force_embedding(graph, x, params, KEY, **options)
    out = jax.jit(lambda x: sage_embedding(graph, x, params, KEY, **options))(x)
    assert out.dtype == "float16"
    np.testing.assert_allclose(out.astype("float32"), expected, atol=0.01)
    host = sage_embedding(graph, HostFeatures(np.array(x)), params, KEY, **options)
    np.testing.assert_allclose(host.astype("float32"), expected, atol=0.01)


_CASES = {
    "mean": [([3, 20, -1], 4), (None, 16)],
    "sum": [(None, 16)],
    "max": [([3, 20, -1], 4)],
}


def doubles(graph, **options):
    """An embedding of features, matrices and weights, and these, in float64."""
    operands = (
        normal(NODES, WIDTH, seed=9, dtype="float64"),
        matrices(dtype="float64"),
        normal(graph.num_edges, seed=8, dtype="float64"),
    )

    def embed(x, params, weights):
        given = {**SIZES, **options, "weights": weights, "activation": jnp.tanh}
        return sage_embedding(graph, x, params, KEY, **given)

    return embed, operands


@pytest.mark.few(1)
@pytest.mark.parametrize("aggr", _CASES)
def test_derivatives(graph, aggr):
    """Both modes, and both branches of where products are made, by finite differences."""
    with jax.enable_x64(True):
        for sources, batch_size in _CASES[aggr]:
            embed, operands = doubles(graph, aggr=aggr, sources=sources, batch_size=batch_size)
            check_grads(jax.jit(embed), operands, 1, ("fwd", "rev"), rtol=1e-4)


@pytest.mark.system
@pytest.mark.parametrize("batch_size", [16, 4])
@pytest.mark.parametrize("aggr", _CASES)
def test_second_derivatives(graph, aggr, batch_size):
    """The gradient of a directional derivative, by differences of gradients."""
    with jax.enable_x64(True):
        sources = [3, 20, -1, 5, 5]  # two batches of 4
        embed, operands = doubles(graph, aggr=aggr, sources=sources, batch_size=batch_size)
        at, unravel = jax.flatten_util.ravel_pytree(operands)
        direction = normal(at.size, seed=1, dtype="float64")
        gradient = jax.grad(lambda at: jnp.sin(3 * embed(*unravel(at))).sum())
        slope = jax.grad(lambda at: gradient(at) @ direction)
        gradient, step = jax.jit(gradient), 1e-6
        ends = (gradient(at + side * step * direction) for side in (1, -1))
        expected = functools.reduce(jnp.subtract, ends) / (2 * step)
        found = jax.jit(slope)(at)
        assert all(jnp.abs(part).max() > 1e-3 for part in jax.tree.leaves(unravel(expected)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_vmap_over_keys_and_reference(graph):
    x, params, keys = normal(NODES, WIDTH), matrices(), jax.random.split(KEY, 2)
    embed = functools.partial(sage_embedding, graph, x, params, batch_size=10, **SIZES)
    embed = jax.jit(embed, static_argnames="impl")
    out = jax.vmap(embed)(keys)
    for found, key in zip(out, keys, strict=True):
        np.testing.assert_allclose(found, embed(key), atol=1e-6)
        np.testing.assert_allclose(found, embed(key, impl="jax"), atol=1e-5)
    assert float(jnp.abs(out[0] - out[1]).max()) > 0.1


def test_shard_map_over_sources(graph):
    """The recipe: each device folds its number into the key."""
    x, params, sources = normal(NODES, WIDTH), matrices(), jnp.arange(NODES)
    spec = {"mesh": two_devices(), "in_specs": (P(), P(), P(), P("d")), "out_specs": P("d")}

    @functools.partial(jax.shard_map, **spec)
    def sharded(graph, x, params, sources):
        key = jax.random.fold_in(KEY, jax.lax.axis_index("d"))
        return sage_embedding(graph, x, params, key, sources=sources, batch_size=8, **SIZES)

    def single(graph, x, params, sources):
        parts = [
            sage_embedding(
                graph, x, params, jax.random.fold_in(KEY, i), sources=part, batch_size=8, **SIZES
            )
            for i, part in enumerate(jnp.split(sources, 2))
        ]
        return jnp.concatenate(parts)

    def with_gradients(embed):
        def loss(x, params):
            out = embed(graph, x, params, sources)
            return jnp.sin(out).sum(), out

        (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(x, params)
        return out, gradients

    (found, slopes), (expected, others) = with_gradients(sharded), with_gradients(single)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), slopes, others)


def test_graphs_without_edges_nodes_or_signal():
    params, x = matrices(), normal(3, WIDTH)
    empty = Graph.from_edges([], [], num_nodes=3)
    for aggr in ("sum", "max"):
        expected = brute_force_embedding(empty, x, params, KEY, aggr=aggr, **SIZES)
        out = jax.jit(lambda x, a=aggr: sage_embedding(empty, x, params, KEY, aggr=a, **SIZES))(x)
        np.testing.assert_allclose(out, expected, atol=3e-6)
    embed = jax.jit(lambda x: sage_embedding(empty, x, params, KEY))
    assert not embed(0 * x).any()
    gradient = jax.jit(jax.grad(lambda x: embed(x).sum()))(0 * x)
    assert bool(jnp.isfinite(gradient).all())
    assert sage_embedding(empty, x, params, KEY, sources=[]).shape == (0, 5)
    nothing = Graph.from_edges([], [], num_nodes=0)
    assert sage_embedding(nothing, x[:0], params, KEY).shape == (0, 5)
    np.testing.assert_allclose(embed(x * 1e25), embed(x), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"aggr": "add"}, ValueError, "aggr: expected .*'add'"),
        ({"num_children": 0}, ValueError, "num_children: expected an integer from 1 to 4096"),
        ({"num_leaves": -1}, ValueError, "num_leaves: expected an integer from 1"),
        ({"batch_size": 0}, ValueError, "batch_size: expected"),
        ({"num_children": 4096, "num_leaves": 4096, "sources": [0] * 200}, ValueError, "2\\^31"),
        ({"sources": [NODES]}, ValueError, "sources: expected nodes below 24"),
        ({"replace": 1}, TypeError, "replace: expected True or False, got 1"),
        ({"activation": "relu"}, TypeError, "activation: expected a function, got 'relu'"),
        ({"key": 3}, TypeError, "key: expected a JAX key"),
        ({"features": np.ones((3, 2), np.float32)}, ValueError, "features: expected the shape"),
        ({"features": np.ones(NODES, np.float32)}, ValueError, "features: expected the shape"),
        ({"params": {"Wf1": np.ones((6, 2), np.float32)}}, ValueError, "got none of name Wa1"),
        ({"params": matrices(features=7)}, ValueError, "params.Wf1: expected the shape"),
        ({"weights": np.ones(3, np.float32)}, ValueError, "weights: .*sort_edge_data"),
    ],
)
def test_errors_name_the_argument(graph, arguments, error, message):
    given = {"graph": graph, "features": normal(NODES, WIDTH), "params": matrices(), "key": KEY}
    with pytest.raises(error, match=message):
        sage_embedding(**(given | arguments))
    rectangular = Graph.from_edges([0], [0], num_senders=NODES, num_receivers=2)
    with pytest.raises(ValueError, match="graph: expected a square graph"):
        sage_embedding(**(given | {"graph": rectangular}))
