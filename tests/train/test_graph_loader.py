"""`GraphLoader`: the padded union that sorting would give, few shapes, resumed, odd graphs."""

import dataclasses
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, batch, readout
from jaxgnn.data import GraphSet, PlainGraph
from jaxgnn.train import GraphLoader
from jaxgnn.train.loaders.device_graphs import LARGEST_COUNT, _scaled
from jaxgnn.train.loaders.graph_programs import Run, runs
from jaxgnn.train.loaders.graph_store import GraphStore
from tests.support.paths import ROOT


def graph_set(sizes, *, undirected=False, seed=0):
    """Random graphs with duplicate edges and self-loops; those without nodes have no edges."""
    rng = np.random.default_rng(seed)
    edges = [rng.integers(0, max(n, 1), (2, 3 * n if n else 0)) for n in sizes]
    if undirected:
        edges = [np.concatenate([e, e[::-1]], axis=1) for e in edges]
    senders, receivers = np.concatenate(edges, axis=1).astype(np.int32)
    counts = [e.shape[1] for e in edges]
    labels = rng.normal(size=(len(sizes), 2)).astype(np.float32)
    labels[0, 0] = np.nan
    return GraphSet(
        name="random",
        node_offsets=np.concatenate([[0], np.cumsum(sizes)]),
        edge_offsets=np.concatenate([[0], np.cumsum(counts)]),
        senders=senders,
        receivers=receivers,
        features=rng.normal(size=(sum(sizes), 3)).astype(np.float32),
        edge_features=rng.normal(size=(senders.size, 2)).astype(np.float32),
        labels=labels,
    )


SIZES = [5, 1, 0, 9, 40, 1, 0, 7, 12, 3, 2]


@pytest.mark.parametrize("undirected", [False, True])
def test_sets_are_sorted_at_once_as_one_by_one(undirected):
    graphs = graph_set(SIZES, undirected=undirected)
    whole, single = GraphStore.of(graphs), GraphStore.of(list(graphs))
    for field in dataclasses.fields(GraphStore):
        found, expected = getattr(whole, field.name), getattr(single, field.name)
        np.testing.assert_array_equal(found, expected, err_msg=field.name)
        assert np.asarray(found).dtype == np.asarray(expected).dtype, field.name


@pytest.mark.parametrize("undirected", [False, True])
def test_batches_are_padded_unions(undirected):
    graphs = graph_set(SIZES, undirected=undirected)
    loader = GraphLoader(graphs, 4, seed=3, prefetch=1, max_device_bytes=0)
    seen, shapes = [], set()
    for minibatch in loader:
        found = minibatch.batch
        chosen = np.asarray(minibatch.indices)
        chosen = chosen[chosen >= 0]
        seen += chosen.tolist()
        parts = [graphs[i] for i in chosen]
        expected = batch.pad(
            batch.disjoint_union([part.graph for part in parts]),
            num_nodes=found.graph.num_receivers,
            num_edges=found.graph.num_edges,
            num_graphs=5,
        )
        assert found.graph.symmetric == undirected
        own = dataclasses.replace(expected.graph, symmetric=undirected)
        padded = dataclasses.replace(expected, graph=own)
        assert jax.tree.structure(found) == jax.tree.structure(padded)
        jax.tree.map(np.testing.assert_array_equal, found, padded)
        for name, union in (
            ("features", batch.union_node_data),
            ("edge_features", batch.union_edge_data),
        ):
            data = union(expected, [getattr(part, name) for part in parts])
            np.testing.assert_array_equal(getattr(minibatch, name), data)
        labels = batch.union_graph_data(expected, graphs.labels[chosen], fill_value=np.nan)
        np.testing.assert_array_equal(minibatch.labels, labels)
        shapes.add(found.graph.num_receivers)
    assert sorted(seen) == list(range(len(SIZES))) and seen != sorted(seen)
    assert len(loader) == 3 and len(shapes) <= 3


def test_a_restored_loader_goes_on_with_the_same_batches():
    graphs = graph_set(SIZES)
    first, second = (GraphLoader(graphs, 3, seed=7, prefetch=n, max_device_bytes=0) for n in (0, 2))
    batches = [*first, *first]
    assert first.state == {"epoch": 2, "position": 0}
    assert [int(i) for b in batches[:4] for i in b.indices] != [
        int(i) for b in batches[4:] for i in b.indices
    ]
    for skipped in (next(iter(second)), next(iter(second))):  # leaves the thread in mid-epoch
        assert skipped is not None
    assert second.state == {"epoch": 0, "position": 2}
    other = GraphLoader(graphs, 3, seed=7)
    other.state = second.state
    for got, expected in zip([*other, *other], batches[2:], strict=True):
        jax.tree.map(np.testing.assert_array_equal, got, expected)
    for state in ({"epoch": 0}, {"epoch": 0, "position": 4}, {"epoch": -1, "position": 0}):
        with pytest.raises(ValueError, match=r"state|position|epoch"):
            other.state = state


@pytest.mark.parametrize("prefetch", [0, 2])
def test_iterators_scans_and_states_share_one_place(prefetch):
    loader = GraphLoader(graph_set(SIZES), 3, shuffle=False, prefetch=prefetch, max_device_bytes=0)
    first = [int(b.indices[0]) for pair in zip(loader, loader, strict=True) for b in pair]
    assert first == [0, 3, 6, 9]

    def count(state, batch):
        return state + 1, batch.indices[0]

    seen = []
    for found in loader:
        seen.append(int(found.indices[0]))
        if len(seen) == 2:
            seen.append(int(loader.scan(count, 0, 1)[1][0]))
    assert seen == [0, 3, 6, 9]
    for found in loader:
        seen.append(int(found.indices[0]))
        if len(seen) == 6:
            loader.state = {"epoch": 2, "position": 0}
    assert seen[4:] == [0, 3, 0, 3, 6, 9]


@pytest.mark.parametrize("max_device_bytes", [0, 1 << 20])
def test_sizes_of_other_types_and_a_step_without_output(max_device_bytes):
    graphs, options = graph_set(SIZES), {"max_device_bytes": max_device_bytes}
    for size in (np.uint8(3), np.array(3), jax.numpy.int32(3)):
        assert len(GraphLoader(graphs, size, **options)) == 4
    with pytest.raises(TypeError, match=r"step: expected \(state, output\), got"):
        GraphLoader(graphs, 3, **options).scan(lambda state, batch: state, jax.numpy.zeros(()), 2)


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype and a.weak_type == b.weak_type


def hubs():
    """Graphs with rows that are cut into chunks, in one direction alone, and without data."""
    many = np.arange(3000, dtype=np.int32) % 50
    into = Graph.from_edges(many, np.zeros_like(many), num_nodes=60)
    return [into, Graph.from_edges([], [], num_nodes=0), into, Graph.from_edges([0], [1])]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "graphs",
    [
        graph_set(SIZES),
        graph_set(SIZES, undirected=True),
        hubs(),
        [Graph.from_edges([], [], num_nodes=n) for n in (0, 2, 0)],
        [Graph.from_edges([], [], num_nodes=0)],
    ],
    ids=["directed", "undirected", "hubs", "no edges", "no nodes"],
)
def test_batches_of_the_device_are_those_of_the_host(graphs):
    host, device = (
        GraphLoader(graphs, 3, seed=3, shapes=3, max_device_bytes=most) for most in (0, 1 << 20)
    )
    assert host.device_graphs is None and device.device_graphs is not None
    for _ in range(3):
        for found, expected in zip(device, host, strict=True):
            same(found, expected)
        assert device.state == host.state
    part = np.array([len(graphs) - 1, 0])
    assert device.part(part).device_graphs is device.device_graphs
    same(list(device.part(part)), list(host.part(part)))
    assert GraphLoader(graphs, 3, max_device_bytes=1).device_graphs is None


def test_quotients_of_products_with_more_than_32_bits():
    rng = np.random.default_rng(0)
    for divisor in (1, 3, 4097, LARGEST_COUNT - 3, LARGEST_COUNT):
        for factor in (0, 1, 12345, LARGEST_COUNT - 1, LARGEST_COUNT):
            numbers = rng.integers(-divisor, divisor + 1, 2000)
            found = _scaled(jnp.asarray(numbers), jnp.int32(factor), jnp.int32(divisor))
            np.testing.assert_array_equal(found, numbers * factor // divisor)


@pytest.mark.parametrize("most", [0, 1 << 20], ids=["host", "device"])
def test_a_scan_has_the_steps_of_an_iteration(most):
    graphs = graph_set(SIZES)
    loader, expected = (GraphLoader(graphs, 3, seed=1, max_device_bytes=most) for _ in range(2))
    traced = []

    def step(state, minibatch):
        traced.append(minibatch.batch.graph.num_receivers)
        return state + minibatch.features.sum(), {"of": minibatch.indices, "before": state}

    state, shapes, rows, sums = jnp.float32(0), set(), [], []
    for _ in range(3):
        for minibatch in expected:
            rows.append(minibatch.indices)
            sums.append(state)
            state = state + minibatch.features.sum()
            shapes.add(minibatch.batch.graph.num_receivers)
    next(iter(loader))  # begins in the middle of an epoch
    found, outputs = loader.scan(step, sums[1], 6)
    assert loader.state == {"epoch": 1, "position": 3}
    loader.scan(step, found, 5)
    assert loader.state == {"epoch": 3, "position": 0}
    np.testing.assert_array_equal(outputs["of"], np.stack(rows[1:7]))
    np.testing.assert_allclose(outputs["before"], np.stack(sums[1:7]), rtol=1e-5)
    np.testing.assert_allclose(found, sums[7], rtol=1e-5)
    # A program for each shape and number of steps, and a trace for the shapes of the outputs.
    assert len(traced) <= 2 * len(shapes) + 1
    count = len(traced)
    loader.state = {"epoch": 0, "position": 1}
    loader.scan(step, found, 6)
    assert len(traced) == count
    with pytest.raises(ValueError, match="steps: expected"):
        loader.scan(step, found, 0)
    with pytest.raises(TypeError, match="step: expected a function, got int"):
        loader.scan(3, found, 1)


def test_runs_of_one_shape_are_cut():
    sizes = [(8, 9)] * 5 + [(1, 2)] + [(8, 9)] * 2
    assert list(runs(sizes)) == [Run((8, 9), 0, 5), Run((1, 2), 5, 6), Run((8, 9), 6, 8)]
    cut = [(run.first, run.end) for run in runs(sizes, 3, 4)]
    assert cut == [(0, 3), (3, 4), (4, 5), (5, 6), (6, 8)]


@pytest.mark.system
@pytest.mark.parametrize("count", [1024, 1100])  # without and with a batch that is not full
def test_more_shapes_pad_less(count):
    sizes = np.random.default_rng(0).lognormal(3.2, 0.9, count).astype(int).tolist()
    padding, found = {}, {}
    for shapes in (1, 4):
        loader = GraphLoader(graph_set(sizes), 128, seed=0, shapes=shapes)
        counts = [m.batch.graph.num_receivers for _ in range(6) for m in loader]
        found[shapes], padding[shapes] = set(counts), 1 - 6 * sum(sizes) / sum(counts)
    assert len(found[1]) <= 3 and len(found[4]) <= 6
    assert padding[4] < 0.6 * padding[1]


def test_few_shapes_and_little_padding():
    sizes = np.random.default_rng(0).lognormal(3.2, 0.9, 1000).astype(int).tolist()
    loader = GraphLoader(graph_set(sizes), 128, seed=0)
    shapes, real, padded = set(), 0, 0
    for _ in range(3):
        for minibatch in loader:
            shapes.add(jax.tree.map(jnp.shape, jax.tree.leaves(minibatch.batch)).__repr__())
            real += int(minibatch.batch.node_mask.sum())
            padded += minibatch.batch.graph.num_receivers
    assert real == 3 * sum(sizes)
    assert len(shapes) <= 3
    assert 1 - real / padded <= 0.4


def test_any_source_and_graphs_without_anything():
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return Graph.from_edges([], [], num_nodes=index)

    loader = GraphLoader(Source(), 3, shuffle=False)
    (minibatch,) = loader
    assert minibatch.features is None and minibatch.labels is None
    assert minibatch.batch.graph.num_edges == 0
    ones = jnp.ones((minibatch.batch.graph.num_receivers, 1))
    np.testing.assert_array_equal(readout(minibatch.batch.membership, ones)[:3, 0], [0, 1, 2])
    kept = GraphLoader(Source(), 2, shuffle=False, drop_last=True, indices=np.array([2, 0, 1]))
    assert [np.asarray(b.indices).tolist() for b in kept] == [[2, 0, -1]]


def test_graphs_without_edges_of_a_set_with_some():
    graphs = graph_set([1, 0, 5])
    graphs = [Graph.from_edges([], [], num_nodes=2), graphs[0].graph, graphs[2].graph]
    loader = GraphLoader(graphs, 2, indices=np.array([0]))
    (alone,) = loader
    assert alone.batch.graph.num_edges == 0
    (others,) = loader.part(np.array([1, 2]))
    expected = sum(graph.num_edges for graph in graphs)
    assert int(others.batch.graph.row_offsets[6]) == expected


def items(labels=(0, 1), features=None):
    graph = Graph.from_edges([], [], num_nodes=2)
    return [types.SimpleNamespace(graph=graph, label=label, features=features) for label in labels]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (
            items([0, 2**33]),
            ValueError,
            r"graphs\[1\]: label: expected a class from 0 to 2147483647",
        ),
        (items([0, -1]), ValueError, r"graphs\[1\]: label: expected a class from 0 to .*, got -1"),
        (items(["a", "b"]), TypeError, r"graphs\[0\]: label: expected real numbers, got <U1"),
        (items([1, 1j]), TypeError, r"graphs\[1\]: label: expected real numbers, got complex128"),
        (
            items([[[1.0]], [[1.0]]]),
            ValueError,
            r"graphs\[0\]: label: expected a number or a vector",
        ),
        (items([1.0, 1e300]), ValueError, "graphs: label: expected numbers within float32"),
        (
            items([[1, 2], [2**24 + 1, 1]]),
            ValueError,
            r"graphs\[1\]: label: expected targets that float32 holds",
        ),
        (items([[1], [[1], [1, 2]]]), ValueError, r"graphs\[1\]: label: expected an array"),
        (items(features=[[2**40], [1]]), ValueError, "graphs: features: expected integers that"),
        (items(features=[[1e300], [1]]), ValueError, "graphs: features: expected numbers within"),
        (
            items(features=[["a"], ["b"]]),
            TypeError,
            r"graphs\[0\]: features: expected real numbers",
        ),
    ],
)
def test_data_that_would_change_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        GraphLoader(source, 1)


@pytest.mark.parametrize("max_device_bytes", [0, 1 << 20])
def test_dtypes_of_data(max_device_bytes):
    options = {"shuffle": False, "max_device_bytes": max_device_bytes}
    (found,) = GraphLoader(items([True, False], np.ones((2, 1), np.uint8)), 2, **options)
    assert (found.features.dtype, found.labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(found.labels, [1, 0, 0])
    (found,) = GraphLoader(items([[1, 0], [0, 1]]), 2, **options)
    np.testing.assert_array_equal(found.labels, [[1.0, 0.0], [0.0, 1.0], [np.nan] * 2])


def test_what_does_not_fit_is_refused():
    graphs = graph_set(SIZES)
    plain = PlainGraph("bare", graphs[0].graph)
    for arguments, error, message in (
        ((graphs, 0), ValueError, "batch_size"),
        (([], 1), ValueError, "graphs: expected at least 1, got 0"),
        ((3, 1), TypeError, "graphs: expected a sequence"),
        (({"a": graphs[0]}, 1), TypeError, "graphs: expected a sequence of graphs, got dict"),
        (([3], 1), TypeError, r"graphs\[0\]: expected a graph, got int"),
        (([graphs[0], plain], 1), ValueError, r"graphs\[1\]: expected features"),
    ):
        with pytest.raises(error, match=message):
            GraphLoader(*arguments)
    for options, message in (
        ({"base": 1.0}, "base"),
        ({"indices": np.array([11])}, "indices: expected graphs below 11, got 11"),
        ({"indices": np.array([], np.int32)}, "indices: expected at least 1, got 0"),
        ({"indices": []}, "indices: expected at least 1, got 0"),
        ({"indices": [[1], [2, 3]]}, "indices: expected an array, got lists of different"),
        ({"drop_last": True}, "graphs: expected at least 12, a batch_size, with drop_last, got"),
        ({"shapes": 0}, "shapes: expected"),
        ({"max_device_bytes": -1}, "max_device_bytes: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphLoader(graphs, 12, **options)


def test_the_page_s_snippets_train():
    text = (ROOT / "docs" / "graphs.md").read_text(encoding="utf-8")
    found: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, "docs/graphs.md", "exec"), found)
    assert found["losses"].shape == (3,) and found["losses"].mean() < 0.8
    assert 0 < found["accuracy"] <= 1
    assert np.isfinite(found["loss"])
