"""Which edges are taken: kernels and reference against a loop in Python, and their statistics."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, sampled_edges
from jaxgnn.ops._sampling.sample import arguments
from jaxgnn.ops._sampling.sampled_edges import list_edges
from tests.support.oracle_sampling import Sampling, philox, taken_edges
from tests.support.strategies import examples, graphs

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]

KEY = jax.random.key(7)
SIZED = {
    "bucket": Sampling("bucket"),
    "fastrand": Sampling("fastrand"),
    "stride": Sampling("stride"),
    "stride with a key": Sampling("stride", key=KEY),
    "random": Sampling("random", key=KEY),
    "replace": Sampling("random", key=KEY, replace=True),
}
RATED = {
    **{name: SIZED[name] for name in ("bucket", "fastrand", "stride", "stride with a key")},
    "dropedge": Sampling("dropedge", key=KEY),
}
jitted = jax.jit(
    sampled_edges,
    static_argnames=("sample_size", "sample_rate", "strategy", "replace", "impl"),
)


def graph_of_degrees(degrees, num_senders: int = 50, seed: int = 0) -> Graph:
    receivers = np.repeat(np.arange(len(degrees)), degrees)
    senders = np.random.default_rng(seed).integers(num_senders, size=receivers.size)
    return Graph.from_edges(senders, receivers, num_senders=num_senders, num_receivers=len(degrees))


def assert_takes(graph, sampling, edges, counts, rows=None, ids=None):
    expected = taken_edges(graph, sampling, rows, ids)
    assert counts.tolist() == [len(taken) for taken in expected]
    padded = np.full(edges.shape, -1)
    for place, taken in enumerate(expected):
        padded[place, : len(taken)] = taken
    np.testing.assert_array_equal(edges, padded)


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [1, 2, 16, 100])
@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_sizes_take_the_edges_of_the_table(impl, name, size):
    degrees = [0, 1, size - 1, size, size + 1, 2 * size, 576, 577, 578, 1154, 1155, 0]
    graph = graph_of_degrees(degrees)
    sampling = SIZED[name]._replace(sample_size=size)
    edges, counts = jitted(graph, impl=impl, **sampling.arguments())
    assert edges.shape == (len(degrees), size) and edges.dtype == counts.dtype == jnp.int32
    assert_takes(graph, sampling, edges, counts)


@pytest.mark.few(2)
@pytest.mark.parametrize("rate", [0.1, 0.5, 1 / 3, 1.0])
@pytest.mark.parametrize("name", RATED)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_rates_take_the_edges_of_the_table(impl, name, rate):
    graph = graph_of_degrees([0, 1, 2, 3, 9, 10, 11, 577, 1154, 2000, 0, 100])
    sampling = RATED[name]._replace(sample_rate=rate)
    edges, counts = sampled_edges(graph, impl=impl, **sampling.arguments())
    assert_takes(graph, sampling, edges, counts)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_rows_are_places_of_their_own(impl, name):
    graph = graph_of_degrees([5, 0, 40, 7, 33])
    rows = [2, 2, 4, -1, 0, 1, 2]
    sampling = SIZED[name]._replace(sample_size=8)
    edges, counts = sampled_edges(graph, rows=rows, impl=impl, **sampling.arguments())
    assert_takes(graph, sampling, edges, counts, rows)
    if sampling.key is not None:
        assert edges[0].tolist() != edges[1].tolist()
    # Under jit a row out of range is padding.
    traced = jitted(
        graph, rows=jnp.array([2, 2, 4, 99, 0, 1, 2]), impl=impl, **sampling.arguments()
    )
    np.testing.assert_array_equal(traced[0], edges)


@functools.partial(jax.jit, static_argnames=("sampling", "impl"))
def drawn_by_id(graph, rows, ids, *, sampling, impl):
    sample, places = arguments(
        graph, sampling.sample_size, None, sampling.strategy, KEY, sampling.replace, rows
    )
    return list_edges(sample, places._replace(ids=ids), impl)


@pytest.mark.parametrize("name", ["stride with a key", "random", "random, 40", "replace"])
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_places_draw_by_their_ids(impl, name):
    """Nothing but the id decides what a place draws: with its id it moves anywhere."""
    graph = graph_of_degrees([5, 0, 90, 7, 45])
    sampling = SIZED[name.split(",")[0]]._replace(sample_size=40 if "40" in name else 4)
    rows = np.array([2, 2, 4, -1, 0, 1, 2, 3] * 5, np.int32)
    numbers = np.arange(rows.size, dtype=np.uint32)
    ids = np.where(numbers % 3 == 0, numbers + 2**31, 7 * numbers).astype(np.uint32)
    ids[[1, 6]] = 2**32 - 1
    draw = functools.partial(drawn_by_id, sampling=sampling._replace(key=None), impl=impl)
    edges, counts = draw(graph, rows, ids)
    assert_takes(graph, sampling, edges, counts, rows, ids)
    np.testing.assert_array_equal(edges[1], edges[6])
    assert edges[0].tolist() != edges[1].tolist()
    np.testing.assert_array_equal(draw(graph, rows, numbers)[0], draw(graph, rows, None)[0])
    moved = np.random.default_rng(0).permutation(rows.size)
    np.testing.assert_array_equal(draw(graph, rows[moved], ids[moved])[0], edges[moved])


@given(
    graph=graphs(max_edges=120),
    name=st.sampled_from(list(SIZED)),
    size=st.integers(1, 20),
    impl=st.sampled_from(["kernel", "jax"]),
)
def test_any_graph(graph, name, size, impl):
    sampling = SIZED[name]._replace(sample_size=size)
    edges, counts = jitted(graph, impl=impl, **sampling.arguments())
    assert_takes(graph, sampling, edges, counts)


@pytest.mark.few(1)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
@pytest.mark.parametrize("name", ["random", "stride with a key"])
def test_long_rows(impl, name):
    """Tables of random edges in every size, and chains of collisions where d is little above S."""
    graph = graph_of_degrees([40_000, 300, 257, 4097, 5000])
    for size in (33, 256) if impl == "jax" else (33, 64, 256, 1000, 4096):
        sampling = SIZED[name]._replace(sample_size=size)
        edges, counts = sampled_edges(graph, impl=impl, **sampling.arguments())
        assert_takes(graph, sampling, edges, counts)


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", [None, 0.9])
def test_every_small_size(rate):
    """A GPU gives a row 4, 8, 16 or 32 lanes, and beyond that a warp and a table."""
    rows = np.random.default_rng(0).integers(-1, 9, size=70)
    for size in range(1, 34):
        # Chains of collisions are likeliest where d is little above S.
        graph = graph_of_degrees([0, 1, size, size + 1, size + 2, size + 5, 2 * size, 400, 9000])
        sampling = SIZED["random"]._replace(sample_size=size, sample_rate=rate)
        edges, counts = jitted(graph, rows=rows, **sampling.arguments())
        assert_takes(graph, sampling, edges, counts, rows.tolist())


def test_both_limits_bound_a_row():
    graph = graph_of_degrees([3, 10, 100])
    for name in ("stride", "random"):
        sampling = SIZED[name]._replace(sample_size=4, sample_rate=0.3)
        edges, counts = sampled_edges(graph, **sampling.arguments())
        assert counts.tolist() == [1, 3, 4]
        assert_takes(graph, sampling, edges, counts)


@pytest.mark.system
def test_offsets_of_64_bits(x64):
    graph = graph_of_degrees([5, 700, 0, 31])
    wide = dataclasses.replace(graph, row_offsets=graph.row_offsets.astype("int64"))
    for name in SIZED:
        sampling = SIZED[name]._replace(sample_size=9)
        for impl in ("kernel", "jax"):
            edges, counts = sampled_edges(wide, impl=impl, **sampling.arguments())
            assert edges.dtype == jnp.int64
            assert_takes(graph, sampling, edges, counts)


def test_philox_of_the_oracle():
    """A known answer: `kat_vectors` of Random123."""
    word = 0xFFFFFFFF
    assert philox((word,) * 4, (word,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize(("size", "degree"), [(1, 2), (3, 7), (10, 11), (15, 577)])
@pytest.mark.parametrize("name", ["random", "stride with a key", "replace"])
def test_every_edge_is_as_likely(name, size, degree):
    """10^6 draws: chi-squared over the edges of a row, the first and the last among them."""
    rows = -(-(10**6) // size)
    graph = graph_of_degrees([degree], num_senders=2)
    sampling = SIZED[name]._replace(sample_size=size)
    edges, _ = jitted(graph, rows=jnp.zeros(rows, jnp.int32), **sampling.arguments())
    counts = np.bincount(np.asarray(edges).reshape(-1), minlength=degree)
    assert counts.sum() == rows * size and counts.size == degree
    expected = rows * size / degree
    # Without replacement a row's counts are correlated: their variance is (1 - S / d) of this.
    share = 1.0 if sampling.replace else (degree - size) / (degree - 1)
    statistic = np.sum((counts - expected) ** 2) / (expected * share)
    assert 1e-6 < scipy.stats.chi2.sf(statistic, degree - 1) < 1 - 1e-6
    # The ends of a row alone, which an error by one in a bound would miss or prefer.
    deviation = np.sqrt(expected * (1 - (1 if sampling.replace else size) / degree))
    assert (np.abs(counts[[0, -1]] - expected) < 5 * deviation).all()


def test_all_pairs_are_as_likely():
    """Of 2 of 4 edges there are six pairs; `stride` has them all, but not alike."""
    rows = 500_000
    graph = graph_of_degrees([4], num_senders=2)
    sampling = SIZED["random"]._replace(sample_size=2)
    edges, _ = jitted(graph, rows=jnp.zeros(rows, jnp.int32), **sampling.arguments())
    pairs = np.sort(np.asarray(edges), axis=1) @ [4, 1]
    counts = np.unique(pairs, return_counts=True)[1]
    assert counts.size == 6
    assert 1e-6 < scipy.stats.chisquare(counts).pvalue < 1 - 1e-6


def test_dropedge_keeps_the_share():
    graph = graph_of_degrees([200_000], num_senders=2)
    for rate in (0.1, 0.5, 0.9):
        _, counts = sampled_edges(graph, sample_rate=rate, strategy="dropedge", key=KEY)
        deviation = np.sqrt(200_000 * rate * (1 - rate))
        assert abs(int(counts[0]) - 200_000 * rate) < 5 * deviation


def test_another_key_takes_other_edges():
    graph = graph_of_degrees([100] * 10)
    for sampling in (SIZED["random"], SIZED["stride with a key"], SIZED["replace"]):
        take = functools.partial(jitted, graph, **sampling._replace(sample_size=5).arguments())
        options = sampling._replace(sample_size=5, key=jax.random.key(8)).arguments()
        assert not np.array_equal(take()[0], jitted(graph, **options)[0])
        np.testing.assert_array_equal(take()[0], take()[0])


def test_key_data_and_longer_keys():
    graph = graph_of_degrees([100] * 3)
    typed = sampled_edges(graph, sample_size=5, strategy="random", key=jax.random.key(3))[0]
    raw = sampled_edges(graph, sample_size=5, strategy="random", key=jax.random.PRNGKey(3))[0]
    np.testing.assert_array_equal(typed, raw)
    longer = jax.random.key(3, impl="rbg")
    assert sampled_edges(graph, sample_size=5, strategy="random", key=longer)[0].shape == (3, 5)


@examples(10)
@given(count=st.integers(1, 5))
def test_vmap_over_keys(count):
    graph = graph_of_degrees([20, 0, 9])
    keys = jax.random.split(KEY, count)

    def take(key):
        return sampled_edges(graph, sample_size=4, strategy="random", key=key)[0]

    np.testing.assert_array_equal(jax.vmap(take)(keys), jnp.stack([take(key) for key in keys]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "sample_size: expected it or sample_rate"),
        ({"sample_size": 0}, ValueError, "sample_size: .* from 1 to 4096, got 0"),
        ({"sample_size": -1}, ValueError, "sample_size: .* got -1"),
        ({"sample_size": 4097}, ValueError, "sample_size: .* got 4097"),
        ({"sample_size": 2.0}, TypeError, "sample_size: expected an integer, got float"),
        ({"sample_rate": 0.0}, ValueError, "sample_rate: .* above 0"),
        ({"sample_rate": 1.5}, ValueError, "sample_rate: .* at most 1, got 1.5"),
        ({"sample_rate": float("nan")}, ValueError, "sample_rate"),
        ({"sample_rate": "all"}, TypeError, "sample_rate: expected a number"),
        ({"sample_size": 2, "strategy": "uniform"}, ValueError, "strategy: .*'uniform'"),
        ({"sample_size": 2, "strategy": "random"}, ValueError, "key: expected a JAX key"),
        ({"sample_size": 2, "strategy": "random", "key": 3}, TypeError, "key: expected a JAX key"),
        ({"sample_rate": 0.5, "strategy": "dropedge"}, ValueError, "key: expected a JAX key"),
        ({"sample_size": 2, "strategy": "bucket", "key": KEY}, ValueError, "key: expected None"),
        ({"sample_size": 2, "strategy": "dropedge", "key": KEY}, ValueError, "sample_rate"),
        (
            {"sample_rate": 0.5, "strategy": "random", "key": KEY, "replace": True},
            ValueError,
            "sample_rate: expected None with replace=True",
        ),
        ({"sample_size": 2, "replace": True}, ValueError, "replace: .* strategy='stride'"),
        ({"sample_size": 2, "replace": 1}, TypeError, "replace: expected True or False"),
        ({"sample_size": 2, "rows": [3]}, ValueError, "rows: .* below 3, .*got 3"),
        ({"sample_size": 2, "rows": [-2]}, ValueError, "rows: .* got -2"),
        ({"sample_size": 2, "rows": [0.5]}, TypeError, "rows: expected integers"),
        ({"sample_size": 2, "rows": [[0]]}, ValueError, r"rows: expected the shape \(rows,\)"),
        ({"sample_size": 4096, "rows": np.zeros(2**19, int)}, ValueError, r"sample_size: .* 2\^31"),
        ({"sample_size": 2, "impl": "fast"}, ValueError, "impl"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        sampled_edges(graph_of_degrees([4, 0, 2]), **arguments)


def test_rates_need_a_size_under_jit():
    graph = graph_of_degrees([4, 2])
    with pytest.raises(ValueError, match=r"sample_rate: expected a graph .*, or sample_size as"):
        jitted(graph, sample_rate=0.5)
    with pytest.raises(ValueError, match=r"sample_rate: expected a graph .*in-degree\n"):
        jitted(graph, sample_rate=0.5, strategy="dropedge", key=KEY)
    edges, _ = jax.jit(lambda: sampled_edges(graph, sample_rate=0.5))()
    assert edges.shape == (2, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("impl", ["kernel", "jax"])
def test_a_rate_alone_bounds_the_list(impl):
    graph = graph_of_degrees([100, 3, 0, 40])
    for name, width in [("stride", 5), ("random", 5), ("dropedge", 100)]:
        sampling = RATED.get(name, SIZED["random"])._replace(sample_rate=0.05)
        edges, counts = sampled_edges(graph, impl=impl, **sampling.arguments())
        assert edges.shape == (4, width)
        assert_takes(graph, sampling, edges, counts)
        if name != "dropedge":
            rows = [0, 0, 3, -1]
            edges, counts = sampled_edges(graph, rows=rows, impl=impl, **sampling.arguments())
            assert edges.shape == (4, width)
            assert_takes(graph, sampling, edges, counts, rows)


def test_rates_of_a_hub():
    degrees = np.ones(60_000, int)
    degrees[7] = 40_003
    graph = graph_of_degrees(degrees)
    edges, counts = sampled_edges(graph, sample_rate=0.001)
    assert edges.shape == (60_000, 41) and counts[7] == 41
    draw = {"strategy": "random", "key": KEY}
    for options, reason in [(draw, "random"), ({"rows": [7]}, "rows")]:
        with pytest.raises(ValueError, match=rf"sample_rate: .* 4096 .*{reason}.* takes 4801 of"):
            sampled_edges(graph, sample_rate=0.12, **options)
    with pytest.raises(ValueError, match=r"sample_rate: expected fewer than 2\^31 entries"):
        sampled_edges(graph, sample_rate=1.0)


def test_graphs_without_edges_or_rows():
    for graph in (Graph.from_edges([], [], num_nodes=3), Graph.from_edges([], [], num_nodes=0)):
        edges, counts = sampled_edges(graph, sample_size=2)
        assert edges.shape == (graph.num_nodes, 2) and not counts.any() and (edges == -1).all()
    edges, counts = sampled_edges(graph_of_degrees([4, 2]), sample_size=2, rows=[])
    assert edges.shape == (0, 2) and counts.shape == (0,)
