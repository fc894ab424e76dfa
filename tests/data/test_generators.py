"""The random graphs: exact counts, the distributions they promise, and determinism."""

import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from jaxgnn import data
from jaxgnn.data import CSR, DataError
from jaxgnn.data.generated import generators


def assert_simple(csr: CSR, undirected: bool) -> None:
    """No self-loops, no duplicates, rows ascending, and symmetric where promised."""
    assert csr.row_offsets.dtype == np.int64 and csr.senders.dtype == np.int32
    assert csr.row_offsets[0] == 0 and csr.row_offsets[-1] == csr.num_edges
    n = csr.num_nodes
    assert not csr.num_edges or 0 <= csr.senders.min() <= csr.senders.max() < n
    keys = csr.receivers.astype(np.int64) * n + csr.senders
    assert (np.diff(keys) > 0).all()
    assert (csr.senders != csr.receivers).all()
    if undirected:
        reverse = np.sort(csr.senders.astype(np.int64) * n + csr.receivers)
        assert np.array_equal(reverse, keys)


def intra_share(csr: CSR, communities: np.ndarray) -> float:
    return float((communities[csr.senders] == communities[csr.receivers]).mean())


def checksum(csr: CSR) -> int:
    return zlib.crc32(csr.senders.astype("<i4"), zlib.crc32(csr.row_offsets.astype("<i8")))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4), st.booleans(), st.integers(0, 2**64 - 1)
)
def test_block_model_of_certain_edges(sizes, undirected, seed):
    # Probabilities of 0 and 1 leave nothing to chance.
    k = len(sizes)
    p = np.random.default_rng(seed).integers(0, 2, (k, k)).astype(float)
    p = np.maximum(p, p.T) if undirected else p
    csr, blocks = data.stochastic_block_model(sizes, p, undirected=undirected, seed=seed)
    dense = p[blocks[:, None], blocks[None, :]] > 0
    np.fill_diagonal(dense, False)
    assert np.array_equal(csr.to_scipy().T.toarray() > 0, dense)
    assert_simple(csr, undirected)


@pytest.mark.parametrize("undirected", (False, True))
def test_block_model_densities(undirected):
    sizes = np.array([300, 700, 500])
    p = np.array([[0.1, 0.01, 0.002], [0.01, 0.03, 0.3], [0.002, 0.3, 0.9]])
    if not undirected:
        p[0, 2], p[2, 0] = 0.5, 0.001
    csr, blocks = data.stochastic_block_model(sizes, p, undirected=undirected, seed=3)
    assert_simple(csr, undirected)
    counts = np.zeros((3, 3))
    np.add.at(counts, (blocks[csr.receivers], blocks[csr.senders]), 1)
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    # Undirected edges count twice within a block, once each way between two.
    doubled = np.where(np.eye(3) > 0, 2, 1) if undirected else np.ones((3, 3))
    deviation = np.sqrt(pairs / doubled * p * (1 - p)) * doubled
    assert (np.abs(counts - pairs * p) < 5 * deviation).all()


def test_block_model_rows_are_independent():
    csr, _ = data.stochastic_block_model([2000], [[0.05]], undirected=False, seed=1)
    # In- and out-degrees are both binomial.
    expected = 1999 * 0.05 * 0.95
    for degrees in (csr.degrees, np.bincount(csr.senders, minlength=2000)):
        assert abs(degrees.var() / expected - 1) < 0.2


@given(st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1))
def test_rmat_counts(scale, undirected, shuffle, seed):
    n = 2**scale
    factor = (n - 1) / 8
    csr = data.rmat(scale, factor, undirected=undirected, shuffle=shuffle, seed=seed)
    expected = round(factor * n)
    assert csr.num_edges == (expected // 2 * 2 if undirected else expected)
    assert csr.num_nodes == n
    assert_simple(csr, undirected)


def test_rmat_quadrants():
    # Sparse enough that duplicates hardly matter.
    csr = data.rmat(20, 0.05, a=0.5, b=0.1, c=0.15, shuffle=False, seed=2)
    for bit in (19, 10):
        quadrant = (csr.senders >> bit & 1) * 2 + (csr.receivers >> bit & 1)
        shares = np.bincount(quadrant, minlength=4) / csr.num_edges
        np.testing.assert_allclose(shares, [0.5, 0.1, 0.15, 0.25], atol=0.02)


def test_rmat_shuffle_renumbers():
    plain = data.rmat(14, 8, shuffle=False, seed=5)
    shuffled = data.rmat(14, 8, seed=5)
    order = generators.permutation(2**14, seed=5)
    assert np.array_equal(np.sort(order), np.arange(2**14))
    # Duplicates are found under either numbering; only which surplus edges are dropped differs.
    ours = set(zip(order[plain.receivers], order[plain.senders], strict=True))
    theirs = set(zip(shuffled.receivers, shuffled.senders, strict=True))
    assert len(ours & theirs) > 0.95 * len(ours)
    assert np.argmax(plain.degrees) == 0


def test_chung_lu_degrees():
    weights = np.repeat([1, 2, 5, 0], [2000, 1000, 400, 100])
    csr, communities = data.chung_lu(weights, 60_000, undirected=False, seed=1)
    assert_simple(csr, False)
    assert csr.num_edges == 60_000 and not communities.any()
    for degrees in (csr.degrees, np.bincount(csr.senders, minlength=3500)):
        for weight in (0, 1, 2, 5):
            mean = degrees[weights == weight].mean()
            assert mean == pytest.approx(weight * 60_000 / weights.sum(), rel=0.05)


@pytest.mark.parametrize("shuffle", (False, True))
def test_chung_lu_communities(shuffle):
    sizes = np.array([500, 0, 1500, 2000])
    csr, communities = data.chung_lu(
        np.ones(4000, int), 40_000, community_sizes=sizes, intra_share=0.6, shuffle=shuffle
    )
    assert_simple(csr, True)
    assert np.array_equal(np.bincount(communities, minlength=4), sizes)
    assert (np.diff(communities) >= 0).all() != shuffle
    # The others fall into the same community by chance.
    by_chance = ((sizes / 4000) ** 2).sum()
    assert intra_share(csr, communities) == pytest.approx(0.6 + 0.4 * by_chance, abs=0.01)


def test_chung_lu_takes_numbers_of_every_size():
    weights = np.array([2**40, 1, 2**40, 0, 2**39])
    csr, _ = data.chung_lu(weights, 6, seed=1)
    assert set(csr.senders.tolist()) == {0, 2, 4}


def test_chains():
    csr, chain = data.chains([50, 1, 0, 300, 20], 1400, seed=2)
    assert_simple(csr, True)
    assert csr.num_edges == 1400 and csr.num_nodes == 371
    assert intra_share(csr, chain) == 1
    assert (np.abs(csr.senders - csr.receivers) <= 40).mean() > 0.9


@pytest.mark.parametrize("threads", (1, 2, 5))
def test_generators_are_deterministic(threads):
    """The graphs of these arguments, pinned: a change of them changes everybody's results."""
    weights = data.power_law_weights(3000, exponent=0.5, low_exponent=0.5, max_to_mean=30)
    sizes = np.array([1000, 500, 1500])
    p = np.full((3, 3), 0.01)
    graphs = {
        "block model": data.stochastic_block_model(sizes, p, seed=1, num_threads=threads)[0],
        "rmat": data.rmat(11, 12, seed=1, num_threads=threads),
        "chung_lu": data.chung_lu(
            weights, 50_000, community_sizes=sizes, intra_share=0.5, seed=1, num_threads=threads
        )[0],
        "chains": data.chains(sizes, 20_000, seed=1, num_threads=threads)[0],
    }
    assert {name: checksum(csr) for name, csr in graphs.items()} == {
        "block model": 1331636862,
        "rmat": 2523989693,
        "chung_lu": 3578373365,
        "chains": 3109896721,
    }


def test_seeds_differ():
    graphs = [data.rmat(8, 4, seed=seed) for seed in (0, 1, 2**64 - 1)]
    assert len({checksum(csr) for csr in graphs}) == 3


# Of a generator of the same definition, at a twentieth of the size: median, 90th percentile and
# maximum of the degrees, share of edges within a community.
REFERENCE = {
    "reddit": (358, 1013.3, 7153, 0.3706),
    "proteins": (530, 1027.5, 3832, 0.3414),
    "products": (36, 98, 7801, 0.4877),
    "arxiv": (9, 26, 1320, 0.4080),
    "amazon0601": (6, 16, 651, 0.5459),
    "artist": (22, 66.6, 704, 0.2889),
    "dd": (5, 8, 13, 1.0),
}


def test_benchmark_graphs_of_given_degrees_and_of_roads():
    shape = data.benchmark_shapes()["pokec"]
    csr = data.benchmark_graph("pokec", 0.02)
    assert_simple(csr, True)
    assert csr.num_edges == int(shape.num_edges * 0.02) // 2 * 2
    shares = np.bincount(np.frexp(csr.degrees)[1], minlength=10) / csr.num_nodes
    expected = np.array([0, *shape.degree_shares]) / sum(shape.degree_shares)
    assert shares == pytest.approx(expected, abs=2e-3)

    degrees = np.random.default_rng(0).integers(1, 9, 20_000)
    degrees[0] += degrees.sum() % 2
    graphs = [data.configuration(degrees, seed=2, num_threads=threads) for threads in (1, 3)]
    assert np.array_equal(graphs[0].senders, graphs[1].senders)
    # But for the ends of the few loops and duplicates.
    assert (graphs[0].degrees != degrees).mean() < 5e-3
    with pytest.raises(DataError, match="degrees: expected an even sum, got 3"):
        data.configuration([1, 2])

    shape = data.benchmark_shapes()["europe_osm"]
    csr = data.benchmark_graph("europe_osm", 2e-3)
    assert_simple(csr, True)
    assert csr.num_edges == int(shape.num_edges * 2e-3) // 2 * 2
    shares = np.bincount(csr.degrees) / csr.num_nodes
    assert shares[2] > 0.7 and shares[0] < 1e-3 and csr.degrees.max() < 25
    near = np.abs(csr.senders - csr.receivers.astype(np.int64))
    assert (near == 1).mean() > 0.8 and near.max() <= 2**16
    with pytest.raises(DataError, match="junction_share: expected more than 0"):
        data.roads(100, 200, junction_share=0.0)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", REFERENCE)
def test_benchmark_graphs(name):
    shape = data.benchmark_shapes()[name]
    csr, communities = data.benchmark_communities(name, 0.05)
    assert_simple(csr, shape.undirected)
    assert csr.num_nodes == int(shape.num_nodes * 0.05)
    expected = int(shape.num_edges * 0.05)
    assert csr.num_edges == (expected // 2 * 2 if shape.undirected else expected)
    median, p90, maximum, intra = REFERENCE[name]
    assert np.median(csr.degrees) == pytest.approx(median, rel=0.02)
    assert np.quantile(csr.degrees, 0.9) == pytest.approx(p90, rel=0.02)
    # The largest of so few edges varies: 7 % between seeds.
    assert csr.degrees.max() == pytest.approx(maximum, rel=0.1)
    assert intra_share(csr, communities) == pytest.approx(intra, abs=0.01)


def test_benchmark_graphs_of_tc_gnn():
    """Table 4: exact counts, at a small scale; small graphs are connected, and apart."""
    shapes = {name: shape for name, shape in data.benchmark_shapes().items() if shape.features}
    assert len(shapes) == 14 and all(shape.classes > 1 for shape in shapes.values())
    for name, shape in shapes.items():
        n = max(64, int(shape.num_nodes * 0.02))
        csr, parts = data.benchmark_communities(name, 0.02)
        assert csr.num_nodes == n, name
        expected = min(int(shape.num_edges * 0.02), n * (n - 1) // 2)
        assert csr.num_edges == (expected // 2 * 2 if shape.undirected else expected), name
        assert_simple(csr, shape.undirected)
        graphs = shape.molecules or shape.chains
        if graphs:
            assert parts[-1] + 1 == round(graphs * n / shape.num_nodes)
            assert intra_share(csr, parts) == 1
        if shape.molecules:
            assert connected_components(csr.to_scipy())[0] == np.unique(parts).size
            assert csr.degrees.max() < 12
    pair = [data.molecules([3, 0, 9, 1, 9], 40, seed=seed)[0] for seed in (1, 1, 2)]
    assert_simple(pair[0], True)
    assert np.array_equal(pair[0].senders, pair[1].senders)
    assert not np.array_equal(pair[0].senders, pair[2].senders)
    assert data.molecules([7], 18)[0].num_edges == 18  # two rings over five nodes, one over six


def test_benchmark_graphs_of_maxk_gnn():
    """Published counts, and degrees of their kind: ddi's are alike, Flickr has hubs."""
    shapes = data.benchmark_shapes()
    published = {
        "flickr": (89_250, 899_756),
        "yelp": (716_847, 13_954_818),
        "ddi": (4_267, 2_135_822),
        "ppa": (576_289, 42_463_862),
        "arxiv": (169_343, 2_315_598),
        "amazon0601": (403_394, 3_387_388),
    }
    for name, counts in published.items():
        assert (shapes[name].num_nodes, shapes[name].num_edges) == counts
    for name in ("flickr", "yelp", "ddi", "ppa"):
        scale = 1.0 if name == "ddi" else 0.05
        csr = data.benchmark_graph(name, scale)
        assert_simple(csr, True)
        assert csr.num_edges == int(shapes[name].num_edges * scale) // 2 * 2
        hubs = csr.degrees.max() > 10 * csr.degrees.mean()
        assert hubs == (name != "ddi"), name


def test_benchmark_graph_is_two_arrays():
    row_offsets, senders = data.benchmark_graph("arxiv", 0.01, seed=3)
    assert row_offsets[-1] == senders.size == 23_154
    assert not np.array_equal(senders, data.benchmark_graph("arxiv", 0.01, seed=4).senders)
    # Tiny scales are dense: at most half of all pairs.
    assert data.benchmark_graph("reddit", 1e-4).num_edges == 64 * 63 // 4 * 2


@given(st.integers(2, 5000), st.floats(0.1, 1), st.floats(0, 1), st.floats(1.5, 100))
def test_power_law_weights(n, exponent, low_exponent, max_to_mean):
    weights = data.power_law_weights(
        n, exponent=exponent, low_exponent=low_exponent, max_to_mean=max_to_mean
    )
    assert weights.shape == (n,) and weights.min() >= 1
    assert (np.diff(weights) <= 0).all()


def test_power_law_weights_reach_the_maximum():
    weights = data.power_law_weights(100_000, exponent=0.55, low_exponent=0.9, max_to_mean=60)
    assert weights[0] / weights.mean() == pytest.approx(60, rel=1e-3)
    assert weights.mean() == pytest.approx(4096, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.stochastic_block_model([], np.zeros((0, 0))), "sizes: expected at least"),
        (lambda: data.stochastic_block_model([3, -1], np.zeros((2, 2))), "sizes: expected"),
        (lambda: data.stochastic_block_model([3], [[1.5]]), "p: expected 1 x 1 probabilities"),
        (lambda: data.stochastic_block_model([3], [[np.nan]]), "p: expected 1 x 1 probabilities"),
        (lambda: data.stochastic_block_model([3], [0.5]), "p: expected 1 x 1 probabilities"),
        (lambda: data.stochastic_block_model([1, 1], [[0, 1], [0, 0]]), "p: expected a symmetric"),
        (lambda: data.rmat(0, 1), "scale: expected 1 to 30, got 0"),
        (lambda: data.rmat(2.5, 1), "scale: expected an integer, got 2.5"),
        (lambda: data.rmat(5, 1, a=0.9, b=0.2), "a, b, c: expected probabilities"),
        (lambda: data.rmat(5, 1, a=-0.1), "a, b, c: expected probabilities"),
        (lambda: data.rmat(5, 16), "num_edges: expected at most half of all pairs"),
        (lambda: data.rmat(5, -1), "num_edges: expected 0 or more"),
        (lambda: data.rmat(5, 1, seed=-1), "seed: expected 0 to"),
        (lambda: data.rmat(10, 100, a=1, b=0, c=0), "num_edges: too many for this distribution"),
        (lambda: data.chung_lu([1.0, 2.0], 2), "weights: expected non-negative integers"),
        (lambda: data.chung_lu([1, -2], 2), "weights: expected non-negative integers"),
        (lambda: data.chung_lu([0, 0, 0], 2), "weights: expected a positive"),
        (lambda: data.chung_lu([1, 1, 1], 2, community_sizes=[2]), "community_sizes: .* sum 3"),
        (lambda: data.chung_lu([1, 1, 1], 2, intra_share=1.5), "intra_share: expected 0 to 1"),
        (lambda: data.chung_lu([1], 2), "num_nodes: expected 2"),
        (lambda: data.chains([], 2), "chain_sizes: expected at least one"),
        (lambda: data.molecules([-1], 2), "molecule_sizes: expected counts of nodes"),
        (lambda: data.molecules([7], 10), "num_edges: expected at least 12 .* got 10"),
        (lambda: data.molecules([7], 20), "num_edges: expected at most 18 .* got 20"),
        (lambda: data.benchmark_graph("ogbn"), "name: expected one of reddit, .* got 'ogbn'"),
        (lambda: data.benchmark_graph("reddit", 0), "scale: expected more than 0"),
        (lambda: data.benchmark_graph("reddit", "a"), "scale: expected a number, got str"),
        (lambda: data.benchmark_graph("reddit", 11), "scale: expected more than 0, .* got 11"),
        (lambda: data.benchmark_graph("reddit", 0.01, "s"), "seed: expected an integer, got 's'"),
        (lambda: data.benchmark_graph("reddit", 0.01, -1), "seed: expected 0 to"),
        (lambda: data.rmat(5, "a"), "edge_factor: expected a number, got str"),
        (lambda: data.rmat(5, np.nan), "edge_factor: expected a finite number, got nan"),
        (lambda: data.rmat(5, 1, a="x"), "a: expected a number, got str"),
        (lambda: data.rmat(5, 1, num_threads=-1), "num_threads: expected 0 or more, got -1"),
        (lambda: data.chung_lu([1, 1], "a"), "num_edges: expected a number, got str"),
        (lambda: data.chung_lu([1, 1], 2, intra_share="x"), "intra_share: expected a number"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize("name", ("sbm", "rmat", "chung_lu"))
def test_synthetic_datasets(name):
    dataset = data.load(name, seed=3, num_splits=2)
    assert dataset.name == name and list(dataset.splits) == ["seed3", "seed4"]
    n = dataset.num_nodes
    assert dataset.split().sizes == (n // 2, n // 4, n // 4)
    # Every class is there, and none is nearly all.
    shares = np.bincount(dataset.labels, minlength=dataset.num_classes) / n
    assert shares.min() > 0 and shares.max() < 0.5
    statistics = dataset.statistics()
    assert statistics["symmetric"] and statistics["self-loops"] == 0
    assert statistics["homophily"] > 1.2 * (shares**2).sum()
    again = data.load(name, seed=3, num_splits=2)
    assert np.array_equal(again.features, dataset.features)
    assert np.array_equal(again.graph.senders, dataset.graph.senders)
    other = data.load(name, seed=4, num_splits=2)
    assert not np.array_equal(other.features, dataset.features)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's RLIMIT_AS")
@pytest.mark.parametrize("megabytes, expected", [(4, "a graph"), (512, "MemoryError")])
def test_out_of_memory_is_a_memory_error(megabytes, expected):
    """Without room for another thread's stack a small graph is drawn on one; a large one is an
    error."""
    scale, edges = (8, 1000) if expected == "a graph" else (20, 1_000_000_000)
    program = f"""
import resource
from jaxgnn import data

data.rmat(8, 4, seed=1)
with open("/proc/self/statm") as statm:
    taken = int(statm.read().split()[0]) * resource.getpagesize()
limit = taken + {megabytes} * (1 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    data.rmat({scale}, {edges} / 2**{scale}, seed=1, num_threads=64)
    print("a graph")
except MemoryError:
    print("MemoryError")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected + "\n"), done.stderr
