"""`NeighborLoader`: which seeds, the same by iteration and by scan, resumed, and training on it."""

import gc
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgnn
from jaxgnn.nn import GraphSAGE
from jaxgnn.train import NeighborLoader
from jaxgnn.train.loaders.neighbor_programs import batch_at

NODES = 40
OPTIONS = {"batch_size": 8, "input_nodes": np.arange(3, 30), "seed": 1}


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(0)
    return jaxgnn.Graph.from_edges(
        rng.integers(0, NODES, 300), rng.integers(0, NODES, 300), num_nodes=NODES
    )


def make(graph, **options):
    features = jnp.arange(NODES, dtype=jnp.float32)[:, None] + 1
    return NeighborLoader(graph, features, jnp.arange(NODES) + 1, [4, 3], **OPTIONS | options)


def seeds_of(batches):
    return np.concatenate([np.asarray(batch.seeds) for batch in batches])


def test_an_epoch_has_each_node_once(graph):
    loader = make(graph)
    assert len(loader) == 4
    programs = batch_at._cache_size()
    first, second = list(loader), list(loader)
    # The last, partial batch included; tests before may have had the same shapes.
    assert batch_at._cache_size() <= programs + 1
    for batches in (first, second):
        seeds = seeds_of(batches)
        assert (seeds[27:] == -1).all()
        np.testing.assert_array_equal(np.sort(seeds[:27]), np.arange(3, 30))
        assert len({batch.blocks.nodes.shape for batch in batches}) == 1
    assert (seeds_of(first) != seeds_of(second)).any()
    np.testing.assert_array_equal(seeds_of(make(graph, shuffle=False))[:27], np.arange(3, 30))
    assert seeds_of(make(graph, drop_last=True)).size == 24


def test_a_batch_has_the_data_of_its_nodes(graph):
    for batch in make(graph):
        nodes = np.asarray(batch.blocks.nodes)
        np.testing.assert_array_equal(batch.features[:, 0], nodes + 1)
        np.testing.assert_array_equal(batch.labels, np.asarray(batch.seeds) + 1)
        np.testing.assert_array_equal(nodes[:8], batch.seeds)
        np.testing.assert_array_equal(batch.mask, np.asarray(batch.seeds) >= 0)


def record(count, batch):
    return count + 1, (batch.seeds, jnp.sum(batch.blocks.edges * 31 % 1009))


def test_a_scan_sees_what_iteration_yields(graph):
    loader, scanned = make(graph), make(graph)
    batches = [*loader, *loader]
    count, (seeds, sums) = scanned.scan(record, jnp.int32(0), 3)
    more, (last_seeds, last_sums) = scanned.scan(record, count, 5)
    assert more == 8
    assert scanned.state == loader.state == {"epoch": 2, "position": 0}
    np.testing.assert_array_equal(np.concatenate([seeds, last_seeds]).ravel(), seeds_of(batches))
    expected = [int(record(0, batch)[1][1]) for batch in batches]
    np.testing.assert_array_equal(np.concatenate([sums, last_sums]), expected)
    assert len(set(expected)) == 8


def test_a_loader_goes_on_from_a_state(graph):
    loader = make(graph)
    batches = [*loader, *loader]
    resumed = make(graph)
    resumed.state = {"epoch": 1, "position": 2}
    rest = list(resumed)
    assert len(rest) == 2
    jax.tree.map(np.testing.assert_array_equal, rest, batches[6:])
    with pytest.raises(ValueError, match="position: expected"):
        resumed.state = {"epoch": 0, "position": 4}
    for state in ({"epoch": 1}, 3):
        with pytest.raises(ValueError, match="state: expected epoch and position, got"):
            resumed.state = state
    assert resumed.state == {"epoch": 2, "position": 0}


def test_sizes_may_be_arrays(graph):
    lists, arrays = (
        NeighborLoader(graph, None, None, sizes, deduplicate=True, capacity=capacity, batch_size=8)
        for sizes, capacity in [([4, 3], [30, 40]), (np.array([4, 3]), jnp.array([30, 40]))]
    )
    jax.tree.map(np.testing.assert_array_equal, next(iter(arrays)), next(iter(lists)))


def test_too_small_a_capacity_grows_and_drops_nothing(graph):
    whole = make(graph, deduplicate=True)
    expected = [np.asarray(batch.seeds) for batch in whole]
    sums = [int(np.sum(np.unique(batch.blocks.nodes))) for batch in make(graph, deduplicate=True)]
    small = make(graph, deduplicate=True, capacity=[2, 2])
    batches = list(small)
    np.testing.assert_array_equal(seeds_of(batches), np.concatenate(expected))
    assert [int(np.sum(np.unique(batch.blocks.nodes))) for batch in batches] == sums
    scanned = make(graph, deduplicate=True, capacity=[2, 2])
    count, (seeds, _) = scanned.scan(record, jnp.int32(0), 4)
    assert count == 4
    np.testing.assert_array_equal(seeds, np.stack(expected))
    assert scanned.state == {"epoch": 1, "position": 0}


@pytest.mark.system
def test_outputs_of_a_step(graph):
    with pytest.raises(TypeError, match=r"step: expected \(state, output\), got"):
        make(graph).scan(lambda state, batch: state, jnp.int32(0), 2)
    loader = make(graph, deduplicate=True, capacity=[2, 2])
    with pytest.raises(TypeError, match=r"step: expected \(state, output\), got"):
        loader.scan(lambda state, batch: state, jnp.int32(0), 2)
    # The first seeds have no neighbors, the next ones many.
    graph = jaxgnn.Graph.from_edges(
        np.tile(np.arange(16, 40), 8), np.repeat(np.arange(8, 16), 24), num_nodes=40
    )
    options = {"input_nodes": np.arange(16), "batch_size": 8, "shuffle": False}
    options |= {"deduplicate": True, "capacity": [1, 1]}

    def step(state, batch):
        return state, batch.blocks.nodes

    loader = NeighborLoader(graph, None, None, [8, 2], **options)
    with pytest.raises(ValueError, match="step: expected an output whose shapes are the same"):
        loader.scan(step, jnp.int32(0), 2)
    # None of the steps before the capacity has grown were run.
    loader = NeighborLoader(
        graph, None, None, [8, 2], **options | {"input_nodes": np.arange(8, 16)}
    )
    loader.scan(step, jnp.int32(0), 1)


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.system
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("more", "epochs"), [({}, 250), ({"deduplicate": True, "capacity": [400, 400]}, 15)]
)
def test_memory_is_flat(more, epochs):
    """10,000 batches whose features take 3 MB or, deduplicated, 600 of 0.9 MB, once they are
    gathered."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 400, (2, 4000))
    graph = jaxgnn.Graph.from_edges(*ends, num_nodes=400)
    features = jnp.ones((400, 256))
    loader = NeighborLoader(graph, features, None, [10, 5], batch_size=50, **more)

    def settled(epochs):
        for _ in range(epochs):
            for batch in loader:
                jax.block_until_ready((batch, jnp.asarray(batch.features)))
        gc.collect()
        return resident_bytes(), len(jax.live_arrays())

    settled(10)
    size, arrays = settled(10)
    for _ in range(5):
        larger, more_arrays = settled(epochs)
        assert more_arrays <= arrays
        assert larger - size < 16 << 20


def test_training(graph):
    """A label that the neighbors' mean decides is learned, in one program of 300 steps."""
    features = jax.random.normal(jax.random.key(0), (NODES, 4))
    labels = (jaxgnn.spmm(graph, features, reduce="mean")[:, 0] > 0).astype(jnp.int32)
    loader = NeighborLoader(graph, features, labels, [20], batch_size=16, seed=3)
    model = GraphSAGE(4, 16, 2, num_layers=1, rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(model)
    optimizer = optax.adam(0.05)

    def step(state, batch):
        params, moments = state

        def loss(params):
            logits = nnx.merge(graphdef, params)(batch.blocks, batch.features)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
            return jnp.sum(losses * batch.mask) / jnp.sum(batch.mask)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), value

    (params, _), losses = loader.scan(step, (params, optimizer.init(params)), 300)
    assert losses.shape == (300,)
    predicted = jnp.argmax(nnx.merge(graphdef, params)(graph, features), axis=-1)
    assert jnp.mean(predicted == labels) >= 0.95


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected"),
        ({"shuffle": 1}, "shuffle: expected True or False"),
        ({"input_nodes": np.array([40])}, "input_nodes: expected nodes below 40, got 40"),
        ({"input_nodes": np.ones(3, bool)}, "input_nodes: expected a mask of 40, got 3"),
        ({"input_nodes": np.zeros(0, int)}, "input_nodes: expected at least 1, got 0"),
        (
            {"batch_size": 64, "drop_last": True},
            "input_nodes: expected at least 64, a batch_size",
        ),
        ({"capacity": [4]}, "capacity: expected"),
        ({"seed": -1}, "seed: expected"),
        ({"method": ["uniform"]}, "method: expected one of 'uniform', 'labor', got"),
        ({"input_nodes": []}, "input_nodes: expected at least 1, got 0"),
        ({"input_nodes": [[0], [1, 2]]}, "input_nodes: expected one axis, got rows of unlike"),
        ({"weights": [[1], [1, 2]]}, "weights: expected one an edge, got rows of unlike lengths"),
    ],
)
def test_errors(graph, change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(graph, **change)
    rectangular = jaxgnn.Graph.from_edges([0], [0], num_senders=3, num_receivers=2)
    with pytest.raises(ValueError, match="graph: expected a square graph"):
        NeighborLoader(rectangular, None, None, [4])
    with pytest.raises(TypeError, match=r"num_neighbors\[0\]: expected an integer, got list"):
        NeighborLoader(graph, None, None, np.ones((2, 2), int))
    with pytest.raises(TypeError, match="num_neighbors: expected a number for each hop"):
        NeighborLoader(graph, None, None, np.int32(4))
    with pytest.raises(TypeError, match="labels: expected an array of numbers, got <U3"):
        NeighborLoader(graph, None, np.full(40, "red"), [4])
    with pytest.raises(ValueError, match="labels: expected integers that int32 holds"):
        NeighborLoader(graph, None, np.arange(40) << 32, [4])
    with pytest.raises(ValueError, match="features: expected numbers within float32, got 1e"):
        NeighborLoader(graph, np.full((40, 1), 1e300), None, [4])
    with pytest.raises(ValueError, match=r"features: expected the shape \(40, ...\)"):
        NeighborLoader(graph, jnp.ones((3, 2)), None, [4])
