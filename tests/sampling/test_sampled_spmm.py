"""Sampled aggregation against float64 sums over the oracle's edges, and its derivatives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxgnn import Graph, sage_embedding, sample_neighbors, sampled_edges, sampled_spmm, spmm
from jaxgnn.ops._sampling.rows import sampled_rows
from jaxgnn.ops._sampling.sample import arguments
from tests.support.oracle import assert_close, draw_array
from tests.support.oracle_sampling import Sampling, brute_force_sampled_spmm, taken_edges
from tests.support.strategies import dense_adjacency, examples, graphs, skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

KEY = jax.random.key(11)
HUB = 40_000
SAMPLINGS = {
    "bucket": Sampling("bucket", 3),
    "fastrand": Sampling("fastrand", 3),
    "stride": Sampling("stride", 3),
    "stride with a key": Sampling("stride", 3, key=KEY),
    "random": Sampling("random", 3, key=KEY),
    "replace": Sampling("random", 3, key=KEY, replace=True),
    "rate": Sampling("stride", None, 0.4),
    "dropedge": Sampling("dropedge", None, 0.4, KEY),
}
OF_ROWS = [name for name, sampling in SAMPLINGS.items() if sampling.sample_size]
NORMALIZE = (None, "mean", "rescale", "gcn")
DTYPES = ("float32", "bfloat16", "float16")
jitted = jax.jit(
    sampled_spmm,
    static_argnames=("sample_size", "sample_rate", "strategy", "replace", "normalize", "impl"),
)


@given(
    graph=graphs(max_edges=80),
    name=st.sampled_from(list(SAMPLINGS)),
    width=st.integers(1, 70),
    heads=st.sampled_from([None, (), (2,)]),
    dtype=st.sampled_from(DTYPES),
    normalize=st.sampled_from(NORMALIZE),
    impl=st.sampled_from(["kernel", "kernel", "jax"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_brute_force(graph, name, width, heads, dtype, normalize, impl, seed):
    if normalize == "gcn" and not graph.is_square:
        normalize = "rescale"
    rng = np.random.default_rng(seed)
    x = draw_array(rng, (graph.num_senders, *(heads or ()), width), dtype)
    weights = None if heads is None else draw_array(rng, (graph.num_edges, *heads), "float32")
    sampling = SAMPLINGS[name]
    out = jitted(graph, x, weights, normalize=normalize, impl=impl, **sampling.arguments())
    assert out.dtype == x.dtype
    assert_close(out, *brute_force_sampled_spmm(graph, x, weights, sampling, normalize=normalize))


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_rows_of_many_degrees(name, dtype):
    """Sizes on each side of the mean degrees at which the CUDA kernels change their mapping, rows
    long enough to be cut into chunks, and hubs among the senders."""
    with jax.enable_x64(dtype == "float64"):
        graph = skewed_graph(60, 30_000, seed=3)
        rng = np.random.default_rng(0)
        for size, width in ((4, 40), (40, 8), (1500, 100)):
            sampling = SAMPLINGS[name]
            if sampling.sample_size:
                sampling = sampling._replace(sample_size=size)
            x = draw_array(rng, (60, width), dtype)
            out = jitted(graph, x, **sampling.arguments())
            assert_close(out, *brute_force_sampled_spmm(graph, x, None, sampling))


@pytest.mark.few(2)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows(name, normalize, impl):
    graph = skewed_graph(20, 150)
    rng = np.random.default_rng(1)
    x, weights = draw_array(rng, (20, 6), "float32"), draw_array(rng, (150,), "float32")
    rows = np.array([0, 5, 0, -1, 19, 5, 5], np.int32)
    out = jitted(
        graph,
        x,
        weights,
        rows=rows,
        normalize=normalize,
        impl=impl,
        **SAMPLINGS[name].arguments(),
    )
    expected = brute_force_sampled_spmm(graph, x, weights, SAMPLINGS[name], rows, normalize)
    assert_close(out, *expected)
    assert not out[3].any()


@examples(4)
@given(
    graph=graphs(max_edges=60),
    name=st.sampled_from(list(SAMPLINGS)),
    normalize=st.sampled_from([None, "mean", "rescale"]),
    weighted=st.booleans(),
    with_rows=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_equal_those_of_the_reference(graph, name, normalize, weighted, with_rows, seed):
    rng = np.random.default_rng(seed)
    x = draw_array(rng, (graph.num_senders, 2, 3), "float32")
    weights = draw_array(rng, (graph.num_edges, 2), "float32") if weighted else None
    options = SAMPLINGS[name].arguments()
    if with_rows and name in OF_ROWS and graph.num_receivers:
        options["rows"] = rng.integers(-1, graph.num_receivers, 9)

    def gradients(impl):
        def loss(x, weights):
            out = sampled_spmm(graph, x, weights, normalize=normalize, impl=impl, **options)
            return jnp.sum(jnp.sin(out))

        return jax.jit(jax.grad(loss, (0, 1) if weighted else (0,)))(x, weights)

    for a, b in zip(gradients("kernel"), gradients("jax"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_gradients_on_symmetric_graphs(name, weighted):
    """Kernels find the transpose's edges by the graph's own permutation; edges are repeated."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(15, size=(2, 90))
    senders, receivers = np.append(a, b), np.append(b, a)
    graph = Graph.from_edges(senders, receivers, num_nodes=15)
    assert graph.symmetric
    x = draw_array(rng, (15, 5), "float32")
    weights = draw_array(rng, (180,), "float32") if weighted else None

    def gradient(impl):
        def loss(x):
            out = sampled_spmm(graph, x, weights, impl=impl, **SAMPLINGS[name].arguments())
            return jnp.sum(jnp.sin(out))

        return jax.jit(jax.grad(loss))(x)

    np.testing.assert_allclose(gradient("kernel"), gradient("jax"), atol=1e-5, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("with_rows", [False, True])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_derivatives_equal_those_of_the_masked_matrix(name, with_rows):
    """First and second ones, in both modes: of a dense matrix that has the taken edges."""
    if with_rows and name not in OF_ROWS:
        pytest.skip("rates have no rows")
    sampling = SAMPLINGS[name]
    with jax.enable_x64():
        graph = skewed_graph(7, 40)
        rows = [3, 0, 0, -1, 6] if with_rows else None
        taken = taken_edges(graph, sampling, rows)
        times = np.zeros((len(taken), graph.num_edges))
        for place, edges in enumerate(taken):
            np.add.at(times[place], edges, 1)
        senders = np.zeros((graph.num_edges, 7))
        senders[np.arange(graph.num_edges), np.asarray(graph.senders)] = 1
        count = jnp.asarray(np.maximum(times.sum(1, keepdims=True), 1))
        rng = np.random.default_rng(0)
        x, weights = draw_array(rng, (7, 3), "float64"), draw_array(rng, (40,), "float64")

        def sampled(x, weights):
            options = {**sampling.arguments(), "rows": rows, "normalize": "mean"}
            return sampled_spmm(graph, x, weights, **options)

        def dense(x, weights):
            return (jnp.asarray(times) * weights[None]) @ (jnp.asarray(senders) @ x) / count

        def norm(f):
            def loss(x, weights):
                return jnp.sum(jnp.sin(f(x, weights)))

            def of_gradients(x, weights):
                return sum(jnp.sum(jnp.sin(g) ** 2) for g in jax.grad(loss, (0, 1))(x, weights))

            return loss, of_gradients

        for ours, expected in zip(norm(sampled), norm(dense), strict=True):
            gradients = (jax.jit(jax.grad(f, (0, 1)))(x, weights) for f in (ours, expected))
            for a, b in zip(*gradients, strict=True):
                assert float(jnp.abs(b).max()) > 0
                np.testing.assert_allclose(a, b, atol=1e-12, rtol=1e-9)
        check_grads(sampled, (x, weights), order=2, modes=("fwd", "rev"), rtol=1e-5)


@pytest.mark.parametrize("strategy", ["fastrand", "random"])
def test_edges_taken_repeatedly_count_repeatedly(strategy):
    """577 divides the degree: FastRand takes 2 edges 4 times each; draws with replacement."""
    degree = 1154
    graph = Graph.from_edges(np.arange(degree), np.zeros(degree, int), num_nodes=degree)
    options = {"sample_size": 8, "strategy": strategy}
    if strategy == "random":
        options |= {"key": KEY, "replace": True, "sample_size": 4000}
    edges, _ = sampled_edges(graph, **options)
    expected = np.bincount(np.asarray(graph.senders)[np.asarray(edges[0])], minlength=degree)
    assert expected.max() > 1
    # A row may take more edges than it has: its chunks, which a GPU takes, cover them.
    size, key, replace = (options.get(name) for name in ("sample_size", "key", "replace"))
    rows = sampled_rows(*arguments(graph, size, None, strategy, key, bool(replace), None))
    length, longest = rows.chunks.length, int(rows.offsets[1])
    chunks = int(jnp.sum(rows.chunks.table[:, 0] == 0))
    assert longest <= length or chunks == -(-longest // length)

    def total(x, weights):
        return sampled_spmm(graph, x, weights, **options)[0].sum()

    ones = jnp.ones(degree)
    by_x, by_weights = jax.jit(jax.grad(total, (0, 1)))(ones[:, None], ones)
    np.testing.assert_array_equal(by_x[:, 0], expected)
    np.testing.assert_array_equal(by_weights, expected)


@pytest.mark.few(3)
@pytest.mark.parametrize("normalize", [None, "mean", "rescale"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_hub(name, normalize):
    """Rows of 40,000 edges: the sums, and the gradients for senders and weights."""
    degrees = [0, HUB, 1, 577, HUB]
    rng = np.random.default_rng(0)
    receivers = np.repeat(np.arange(len(degrees)), degrees)
    senders = rng.integers(300, size=receivers.size)
    graph = Graph.from_edges(senders, receivers, num_senders=300, num_receivers=len(degrees))
    x, y = draw_array(rng, (300, 2), "float32"), draw_array(rng, (len(degrees), 2), "float32")
    weights = draw_array(rng, (graph.num_edges,), "float32")
    sampling = SAMPLINGS[name]
    if sampling.sample_size:
        sampling = sampling._replace(sample_size=1000)

    @jax.jit
    def out_and_gradients(graph, x, weights):
        options = {**sampling.arguments(), "normalize": normalize}
        out, pullback = jax.vjp(lambda x, w: sampled_spmm(graph, x, w, **options), x, weights)
        return out, *pullback(y)

    # By the lists of edges, which `test_sampled_edges.py` compares with an oracle.
    edges, counts = map(np.asarray, sampled_edges(graph, **sampling.arguments()))
    place, number = np.nonzero(edges >= 0)
    taken = edges[place, number]
    assert (np.bincount(place, minlength=len(degrees)) == counts).all() and counts[1] >= 1000
    divisors = {None: np.ones(5), "mean": counts, "rescale": counts / np.maximum(degrees, 1)}
    factors = 1 / divisors[normalize][place]
    dense = np.asarray(x, np.float64), np.asarray(y, np.float64), np.asarray(weights, np.float64)
    expected = [np.zeros_like(part) for part in (dense[1], dense[0], dense[2])]
    sender = np.asarray(graph.senders)[taken]
    scaled = (factors * dense[2][taken])[:, None]
    np.add.at(expected[0], place, scaled * dense[0][sender])
    np.add.at(expected[1], sender, scaled * dense[1][place])
    np.add.at(expected[2], taken, factors * (dense[0][sender] * dense[1][place]).sum(1))
    for found, right in zip(out_and_gradients(graph, x, weights), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.system
def test_offsets_of_64_bits(x64):
    """The product and its gradient, neighborhoods, and the embedding."""
    graph = skewed_graph(20, 200)
    wide = {name: getattr(graph, name) for name in ("row_offsets", "transpose_row_offsets")}
    wide = {name: offsets.astype("int64") for name, offsets in wide.items()}
    rng = np.random.default_rng(0)
    x, weights = draw_array(rng, (20, 6), "float32"), jnp.abs(draw_array(rng, (200,), "float32"))
    sizes = {"Wf1": (6, 3), "Wa1": (6, 4), "Wf2": (7, 2), "Wa2": (7, 2)}
    params = {name: draw_array(rng, shape, "float32") for name, shape in sizes.items()}

    @jax.jit
    def everything(graph, x, weights):
        def loss(x, weights):
            out = sampled_spmm(graph, x, weights, **SAMPLINGS["random"].arguments())
            out = out + sampled_spmm(graph, x, sample_size=3, normalize="rescale")
            z = sage_embedding(graph, x, params, KEY, num_children=3)
            return jnp.sin(out).sum() + jnp.sin(z).sum()

        drawn = sample_neighbors(graph, np.array([3, 7, -1]), [4, 3], KEY, weights=weights)
        alike = sample_neighbors(graph, np.array([3, 7]), [4, 3], KEY, deduplicate=True)
        return jax.value_and_grad(loss, (0, 1))(x, weights), drawn.edges, alike.nodes

    results = (
        everything(graph, x, weights),
        everything(dataclasses.replace(graph, **wide), x, weights),
    )
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_sample_of_all_edges_is_the_product():
    graph = skewed_graph(30, 400)
    x = draw_array(np.random.default_rng(0), (30, 5), "float32")
    for options in ({"sample_size": 400}, {"sample_rate": 1.0}):
        for strategy in ("bucket", "fastrand", "stride", "random", "dropedge"):
            if strategy == "random" and "sample_rate" in options:
                continue
            if strategy == "dropedge" and "sample_size" in options:
                continue
            key = KEY if strategy in ("random", "dropedge") else None
            out = jitted(graph, x, strategy=strategy, key=key, **options)
            np.testing.assert_allclose(out, spmm(graph, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["stride with a key", "random", "replace", "dropedge"])
def test_rescaled_sums_are_unbiased(name):
    graph = skewed_graph(6, 60)
    x = draw_array(np.random.default_rng(0), (6, 2), "float32")
    options = SAMPLINGS[name]._replace(key=None).arguments()
    options.pop("key")

    def one(key):
        return sampled_spmm(graph, x, normalize="rescale", key=key, **options)

    draws = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(KEY, 4000))
    deviation = np.std(np.asarray(draws), 0) / np.sqrt(4000) + 1e-6
    # A row of which dropedge keeps nothing is 0: its mean is (1 - 0.6^d) of the sum.
    share = 1.0
    if name == "dropedge":
        share = 1 - 0.6 ** np.diff(np.asarray(graph.row_offsets))[:, None]
    expected = share * (dense_adjacency(graph) @ np.asarray(x))
    assert (np.abs(np.mean(np.asarray(draws), 0) - expected) < 5 * deviation).all()


def test_the_result_does_not_depend_on_what_is_not_taken():
    graph = skewed_graph(50, 1000)
    edges, _ = sampled_edges(graph, sample_size=2)
    read = np.unique(np.asarray(graph.senders)[np.asarray(edges)[np.asarray(edges) >= 0]])
    assert len(read) < 50
    x = np.full((50, 4), np.nan, np.float32)
    x[read] = 1
    assert np.isfinite(sampled_spmm(graph, x, sample_size=2)).all()


def test_the_backward_pass_stores_nothing_of_the_sample():
    """Residuals of `jax.grad` are what the operands are."""
    graph = skewed_graph(200, 9000)
    x = draw_array(np.random.default_rng(0), (200, 16), "float32")

    def f(x):
        return sampled_spmm(graph, x, sample_size=16, strategy="random", key=KEY)

    _, pullback = jax.vjp(f, x)
    known = sum(leaf.size for leaf in jax.tree.leaves(graph))
    assert sum(leaf.size for leaf in jax.tree.leaves(pullback)) <= known + 2 + x.size


@pytest.mark.parametrize("normalize", [None, "mean"])
@pytest.mark.parametrize("size", [1, 256, 257])
def test_first_edges_are_read_in_place(size, normalize):
    """Up to the length of a chunk, whatever the row's length; beyond it a list of them is made."""
    degrees = [0, 700, 255, 256, 257, 1, 0] + 20 * [2]
    rng = np.random.default_rng(size)
    receivers = np.repeat(np.arange(len(degrees)), degrees)
    senders = rng.integers(90, size=receivers.size)
    graph = Graph.from_edges(senders, receivers, num_senders=90, num_receivers=len(degrees))
    assert graph.row_chunks.length == 256
    sampling = Sampling("bucket", size)
    for width, weighted in ((5, False), (40, True)):
        x = draw_array(rng, (90, width), "float32")
        weights = draw_array(rng, (graph.num_edges,), "float32") if weighted else None
        arguments = {**sampling.arguments(), "normalize": normalize}
        lowered = jax.jit(lambda g, x, w: sampled_spmm(g, x, w, **arguments)).lower(  # noqa: B023
            graph, x, weights
        )
        assert ("jaxgnn_sample_edges" in lowered.as_text()) == (size > 256)
        expected = brute_force_sampled_spmm(graph, x, weights, sampling, normalize=normalize)
        assert_close(lowered.compile()(graph, x, weights), *expected)


def test_under_jit_the_graph_is_an_operand():
    graph = skewed_graph(12, 60)
    text = (
        jax.jit(lambda graph, x: sampled_spmm(graph, x, sample_size=2))
        .lower(graph, draw_array(np.random.default_rng(0), (12, 4), "float32"))
        .as_text()
    )
    assert "jaxgnn_sample_edges" in text and "jaxgnn_spmm" in text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"normalize": "sum"}, ValueError, "normalize: .*'sum'"),
        ({"x": np.ones((2, 3), np.float32)}, ValueError, r"x: expected the shape \(4, ...\)"),
        ({"x": np.ones((4, 3), np.int32)}, TypeError, "x: expected float32"),
        ({"x": np.ones((4, 3), object)}, TypeError, "x: expected an array of numbers, got object"),
        ({"strategy": np.ones(4)}, ValueError, "strategy: expected one of"),
        ({"weights": np.ones(3, np.float32)}, ValueError, "weights: .*sort_edge_data"),
        ({"graph": None}, TypeError, "graph: expected a jaxgnn.Graph"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 0, 1], num_nodes=4)
    given = {"graph": graph, "x": np.ones((4, 3), np.float32), "sample_size": 2, **arguments}
    with pytest.raises(error, match=message):
        sampled_spmm(**given)


def test_gcn_needs_a_square_graph():
    graph = Graph.from_edges([0, 1], [0, 0], num_senders=2, num_receivers=1)
    with pytest.raises(ValueError, match="normalize: 'gcn' expected a square graph"):
        sampled_spmm(graph, np.ones((2, 3), np.float32), sample_size=1, normalize="gcn")


def test_graphs_without_edges_or_rows():
    x = np.ones((3, 4), np.float32)
    graph = Graph.from_edges([], [], num_nodes=3)
    assert not sampled_spmm(graph, x, sample_size=2).any()
    graph = Graph.from_edges([0], [1], num_nodes=3)
    assert sampled_spmm(graph, x, sample_size=2, rows=[]).shape == (0, 4)
    assert sampled_spmm(graph, x[:, :0], sample_size=2).shape == (3, 0)
    with pytest.raises(ValueError, match="impl"):
        sampled_spmm(graph, x, sample_size=2, rows=[], impl="bogus")
