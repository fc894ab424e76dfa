"""`sample_neighbors` with weights and by LABOR: which edges, with which probabilities."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from scipy import stats

import jaxgnn
from jaxgnn.ops._sampling.race import fixed_log2, race_times
from jaxgnn.train import NeighborLoader

pytestmark = pytest.mark.few(1)

RNG = np.random.default_rng(0)
SEEDS = np.array([3, -1, 3, 39, 60])
METHODS = ("labor", "weights", "replace", "alias")


def graph_of(nodes=200, receivers=40, edges=6000, seed=0):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, edges), rng.integers(0, receivers, edges)
    return jaxgnn.Graph.from_edges(*ends, num_nodes=nodes)


GRAPH = graph_of()
# Of very different sizes, the smallest and largest of float32 among them, 40 % of them 0.
WEIGHTS = np.exp(RNG.normal(scale=3, size=GRAPH.num_edges)).astype(np.float32)
WEIGHTS[RNG.random(WEIGHTS.size) < 0.4] = 0
WEIGHTS[:4] = 1e-45, 3e38, 1e-38, 0
OPTIONS = {
    "labor": {"method": "labor"},
    "weights": {"weights": WEIGHTS},
    "replace": {"weights": WEIGHTS, "replace": True},
    "alias": {"weights": jaxgnn.draw_weights(GRAPH, WEIGHTS, replace=True), "replace": True},
}


def edges_of(blocks):
    edges = np.asarray(blocks.edges)
    return edges[edges >= 0]


def star(weights):
    """One node with an edge of each weight."""
    d = len(weights)
    return jaxgnn.Graph.from_edges(np.arange(d), np.zeros(d, int), num_nodes=d)


def accepts(counts, law):
    """Chi-squared of counts of outcomes against their probabilities."""
    expected = counts.sum() * np.asarray(law)
    assert not counts[expected == 0].any()
    counts, expected = counts[expected > 0], expected[expected > 0]
    return stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.few(1)
@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_the_kernel_and_the_reference_take_the_same(method, deduplicate):
    def sample(graph, key, impl):
        # 70 neighbors: more than the reference reads at once.
        return jaxgnn.sample_neighbors(
            graph, SEEDS, [9, 70], key, impl=impl, deduplicate=deduplicate, **OPTIONS[method]
        )

    expected = jax.jit(sample, static_argnums=2)(GRAPH, jax.random.key(0), "jax")
    actual = sample(GRAPH, jax.random.key(0), None)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    taken = edges_of(expected)
    assert len(taken) > 30
    if method != "labor":
        assert (WEIGHTS[taken] > 0).all()
    if method in ("labor", "weights"):  # no edge twice at a place
        receivers = np.asarray(expected.graphs[0].receivers)[np.asarray(expected.edge_mask)]
        pairs = np.stack([receivers, taken])
        assert np.unique(pairs, axis=1).shape == pairs.shape


@pytest.mark.parametrize("replace", [False, True])
def test_a_place_takes_as_many_edges_as_have_a_weight(replace):
    sizes = [0, 1, 3, 8]  # positive weights of each row of 8
    weights = np.zeros((4, 8), np.float32)
    for row, count in zip(weights, sizes, strict=True):
        row[RNG.choice(8, count, replace=False)] = 0.5
    ends = np.tile(np.arange(8), 4), np.repeat(np.arange(4), 8)
    graph, data = jaxgnn.Graph.from_edges(*ends, num_nodes=8, edge_data=weights.reshape(-1))
    seeds = np.array([0, 1, 2, 3, 7, -1])
    blocks = jaxgnn.sample_neighbors(
        graph, seeds, [3], jax.random.key(0), weights=data, replace=replace
    )
    expected = [3 if replace and count else min(count, 3) for count in sizes]
    np.testing.assert_array_equal(blocks.graphs[0].in_degrees[:6], [*expected, 0, 0])
    assert (np.asarray(data)[edges_of(blocks)] > 0).all()


WEIGHTS_OF_ROW = np.array([1, 0, 7, 2.5, 0.25, 3], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_draws_with_replacement_are_proportional(dtype):
    # Traced, as in a step.
    blocks = jax.jit(
        lambda weights: jaxgnn.sample_neighbors(
            star(WEIGHTS_OF_ROW),
            jnp.zeros(333_334, jnp.int32),
            [3],
            jax.random.key(1),
            weights=weights,
            replace=True,
        )
    )(jnp.asarray(WEIGHTS_OF_ROW, dtype))
    counts = np.bincount(edges_of(blocks), minlength=6)
    assert accepts(counts, WEIGHTS_OF_ROW / WEIGHTS_OF_ROW.sum())


@pytest.mark.parametrize("scale", [1e-36, 1.0, 1e37])
def test_draws_without_replacement_are_sequential(scale):
    """Each subset has the probability of drawing its edges one after the other, in any order."""
    weights = WEIGHTS_OF_ROW * np.float32(scale)
    seeds = jnp.zeros(333_334, jnp.int32)
    blocks = jaxgnn.sample_neighbors(star(weights), seeds, [3], jax.random.key(2), weights=weights)
    drawn = np.asarray(blocks.edges).reshape(-1, 3)
    assert (np.diff(drawn, axis=1) > 0).all()
    subsets = list(itertools.combinations(range(6), 3))

    def probability(subset):
        total = 0.0
        for order in itertools.permutations(subset):
            left, product = WEIGHTS_OF_ROW.astype(float).sum(), 1.0
            for edge in order:
                product *= WEIGHTS_OF_ROW[edge] / left
                left -= WEIGHTS_OF_ROW[edge]
            total += product
        return total

    law = [probability(subset) for subset in subsets]
    assert np.isclose(sum(law), 1)
    counts = np.array([(drawn == subset).all(1).sum() for subset in subsets])
    assert accepts(counts, law)


def test_the_logarithms():
    ones = np.array([1, 2**32 - 1], np.uint64)
    words = np.concatenate(
        [RNG.integers(1, 2**32, 5000, dtype=np.uint64), 2 ** np.arange(32), ones]
    )
    logs = np.asarray(fixed_log2(jnp.asarray(words, jnp.uint32))) / 2**23
    np.testing.assert_allclose(logs, np.log2(words.astype(float)), rtol=0, atol=2**-22)
    words = np.concatenate([words, 2**32 - words, [0]]).astype(np.uint32)
    order = np.asarray(race_times(jnp.asarray(words), jnp.zeros(words.size, jnp.int32)))
    times = (order ^ np.uint32(2**31)).view(np.int32) / 2**23
    v = (words | np.uint32(1)) / 2**32  # the distance of u from 1
    np.testing.assert_allclose(times, np.log2(-np.log1p(-v) / np.log(2)), rtol=0, atol=2**-22)


def test_labor_draws_subsets_alike():
    pairs = list(itertools.combinations(range(5), 2))
    graph = star(np.ones(5))

    @jax.jit
    @jax.vmap
    def sample(key):
        return jaxgnn.sample_neighbors(graph, np.array([0]), [2], key, method="labor").edges

    drawn = np.asarray(sample(jax.random.split(jax.random.key(0), 2000)))
    counts = np.array([(drawn == pair).all(1).sum() for pair in pairs])
    assert accepts(counts, np.full(10, 0.1))
    alone = jaxgnn.sample_neighbors(
        graph, np.array([0]), [2], jax.random.split(jax.random.key(0), 2000)[7], method="labor"
    )
    np.testing.assert_array_equal(drawn[7], alone.edges)


def test_labor_shares_senders():
    # Receivers 0 and 1 have the same 30 neighbors, each twice: of equal words the first edge.
    neighbors = np.tile(np.arange(2, 32), 2)
    ends = np.tile(neighbors, 2), np.repeat([0, 1], 60)
    graph = jaxgnn.Graph.from_edges(*ends, num_nodes=32)
    blocks = jaxgnn.sample_neighbors(
        graph, np.array([0, 1]), [7], jax.random.key(0), method="labor"
    )
    edges = np.asarray(blocks.edges).reshape(2, 7)
    np.testing.assert_array_equal(edges[1], edges[0] + 60)
    assert len(set(np.asarray(graph.senders)[edges[0]])) == 4


@pytest.mark.system
def test_labor_needs_fewer_nodes():
    graph = graph_of(2000, 2000, 60_000)
    counts = {}
    for method in ("uniform", "labor"):
        blocks = jaxgnn.sample_neighbors(
            *(graph, np.arange(300), [5, 5], jax.random.key(0)), method=method, deduplicate=True
        )
        counts[method] = int(blocks.node_mask.sum())
        assert (np.asarray(blocks.graphs[1].in_degrees)[:300] == 5).all()
    # 1,911 and 1,053 here.
    assert counts["labor"] < 0.65 * counts["uniform"]


@pytest.mark.parametrize("method", METHODS)
def test_the_loader_draws_the_same(method):
    loader = NeighborLoader(
        *(GRAPH, None, None, [4, 3]), input_nodes=np.arange(40), batch_size=16, **OPTIONS[method]
    )
    batches = list(loader)
    _, edges = loader.scan(lambda state, batch: (state, batch.blocks.edges), 0, 3)
    if method != "labor":
        assert (WEIGHTS[edges_of(batches[0].blocks)] > 0).all()
    loader.state = {"epoch": 1, "position": 0}
    for batch, scanned in zip(loader, edges, strict=True):
        np.testing.assert_array_equal(batch.blocks.edges, scanned)


@pytest.mark.system
@pytest.mark.parametrize("method", METHODS)
def test_the_reference_on_seeds_of_a_mesh(method):
    """Where the seeds alone vary over the mesh, loops carry what varies from the beginning on."""
    mesh = jax.make_mesh((1,), ("seeds",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    options = {name: value for name, value in OPTIONS[method].items() if name != "weights"}
    weights = jax.tree.map(jnp.asarray, OPTIONS[method].get("weights"))

    def sample(graph, weights, seeds):
        key = jax.random.key(0)
        return jaxgnn.sample_neighbors(
            graph, seeds, [4], key, weights=weights, impl="jax", **options
        ).edges

    specs = P(), P(), P("seeds")
    sharded = jax.shard_map(sample, mesh=mesh, in_specs=specs, out_specs=P("seeds"))
    arguments = GRAPH, weights, jnp.arange(8)
    np.testing.assert_array_equal(jax.jit(sharded)(*arguments), sample(*arguments))


def test_vmap_over_weights():
    weights = jnp.stack([WEIGHTS, WEIGHTS[::-1]])

    def sample(weights):
        return jaxgnn.sample_neighbors(
            GRAPH, np.arange(8), [4], jax.random.key(0), weights=weights
        ).edges

    expected = [sample(row) for row in weights]
    np.testing.assert_array_equal(jax.vmap(sample)(weights), np.stack(expected))


def test_a_graph_without_edges():
    graph = jaxgnn.Graph.from_edges([], [], num_nodes=3)
    for options in ({"method": "labor"}, {"weights": []}, {"weights": [], "replace": True}):
        blocks = jaxgnn.sample_neighbors(graph, np.array([1]), [2], jax.random.key(0), **options)
        assert not blocks.edge_mask.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ladies"}, "method: expected one of 'uniform', 'labor'"),
        ({"method": "labor", "replace": True}, "method: expected 'uniform' with replace=True"),
        ({"method": "labor", "weights": np.ones(6)}, "method: expected 'uniform' with weights"),
        ({"weights": np.ones(5)}, r"weights: expected the shape \(6,\), got \(5,\)"),
        ({"weights": np.ones((6, 1))}, r"weights: expected the shape \(6,\)"),
        ({"weights": np.ones(6, int)}, "weights: expected float32"),
        ({"weights": [1, 1, -0.5, 1, 1, 1.0]}, "weights: expected finite.*at least 0, got -0.5"),
        ({"weights": [1, 1, np.nan, 1, 1, 1.0]}, "weights: expected finite.*got nan"),
        ({"weights": [1, 1, np.inf, 1, 1, 1.0]}, "weights: expected finite.*got inf"),
    ],
)
def test_errors(options, message):
    arguments = star(np.ones(6)), np.array([0]), [2]
    with pytest.raises((TypeError, ValueError), match=message):
        jaxgnn.sample_neighbors(*arguments, jax.random.key(0), **options)
    with pytest.raises((TypeError, ValueError), match=message):
        NeighborLoader(arguments[0], None, None, [2], **options)


def test_traced_weights_that_are_none_count_as_zero():
    weights = jnp.array([1, np.nan, -1, 2, -np.inf, 1, np.inf])
    blocks = jax.jit(
        lambda weights: jaxgnn.sample_neighbors(
            star(weights), np.array([0]), [7], jax.random.key(0), weights=weights
        )
    )(weights)
    np.testing.assert_array_equal(edges_of(blocks), [0, 3, 5])


@pytest.mark.few(2)
@pytest.mark.parametrize("scale", [2.0**1000, 2.0**-1000])
@pytest.mark.parametrize("method", ["weights", "replace", "alias"])
def test_weights_of_float64_count_by_their_ratios(method, scale):
    """Beyond float32's range the same edges are drawn; a row in the range is there as well."""
    ends = np.arange(10), np.repeat([0, 1], 5)
    graph = jaxgnn.Graph.from_edges(*ends, num_nodes=10)
    small = np.tile(WEIGHTS_OF_ROW[1:], 2).astype(np.float64)
    large = small * np.repeat([scale, 1.0], 5)
    large[0] = 0
    small[0] = 0
    seeds = np.tile([0, 1], 50)

    def sample(weights):
        if method == "alias":
            weights = jaxgnn.draw_weights(graph, weights, replace=True)
        return jaxgnn.sample_neighbors(
            *(graph, seeds, [3], jax.random.key(0)), weights=weights, replace=method != "weights"
        ).edges

    np.testing.assert_array_equal(sample(large), sample(small))


def test_a_weight_that_is_too_small_for_its_row_is_still_a_weight():
    weights = np.array([1e300, 1e-300, 0.0])
    blocks = jaxgnn.sample_neighbors(
        star(weights), np.array([0]), [3], jax.random.key(0), weights=weights
    )
    np.testing.assert_array_equal(edges_of(blocks), [0, 1])
    with pytest.raises(ValueError, match="weights: expected numbers in float32's range, got 1e"):
        jax.jit(
            lambda graph: jaxgnn.sample_neighbors(
                graph, np.array([0]), [3], jax.random.key(0), weights=weights
            )
        )(star(weights))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["labor", "weights", "alias"])
def test_sanitized(method):
    """One program: rows of a warp, of a block, and longer than the words that a block keeps."""
    degrees = [0, 3, 40, 513, 4_097, 9_000, 512, 1, 700]
    receivers = np.repeat(np.arange(9), degrees)
    rng = np.random.default_rng(0)
    graph = jaxgnn.Graph.from_edges(rng.integers(0, 9, receivers.size), receivers, num_nodes=9)
    weights = jnp.asarray(rng.random(graph.num_edges), jnp.float32)
    options = {
        "labor": {"method": "labor"},
        "weights": {"weights": weights},
        "alias": {"weights": jaxgnn.draw_weights(graph, weights, replace=True), "replace": True},
    }[method]

    @functools.partial(jax.jit, static_argnames="impl")
    def draw(graph, seeds, impl=None):
        key = jax.random.key(0)
        with jaxgnn.config.use(impl=impl):
            return jaxgnn.sample_neighbors(graph, seeds, [5], key, **options).edges

    found = draw(graph, jnp.arange(9))
    np.testing.assert_array_equal(found, draw(graph, jnp.arange(9), impl="jax"))
