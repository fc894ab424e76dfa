"""`GraphLoader`: the padded union that sorting would give, few shapes, resumed, odd graphs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, batch, readout
from jaxgnn.data import GraphSet, PlainGraph
from jaxgnn.train import GraphLoader
from jaxgnn.train.graph_store import GraphStore
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
    loader = GraphLoader(graphs, 4, seed=3, prefetch=1)
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
        # The union of symmetric graphs alone may be one where the set's are not.
        if found.graph.symmetric == expected.graph.symmetric:
            assert jax.tree.structure(found) == jax.tree.structure(expected)
            jax.tree.map(np.testing.assert_array_equal, found, expected)
        else:
            np.testing.assert_array_equal(found.graph.senders, expected.graph.senders)
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
    first, second = (GraphLoader(graphs, 3, seed=7, prefetch=n) for n in (0, 2))
    batches = [*first, *first]
    assert first.state() == {"epoch": 2, "position": 0}
    assert [int(i) for b in batches[:4] for i in b.indices] != [
        int(i) for b in batches[4:] for i in b.indices
    ]
    for skipped in (next(iter(second)), next(iter(second))):  # leaves the thread in mid-epoch
        assert skipped is not None
    assert second.state() == {"epoch": 0, "position": 2}
    other = GraphLoader(graphs, 3, seed=7)
    other.restore(second.state())
    for got, expected in zip([*other, *other], batches[2:], strict=True):
        jax.tree.map(np.testing.assert_array_equal, got, expected)
    for state in ({"epoch": 0}, {"epoch": 0, "position": 4}, {"epoch": -1, "position": 0}):
        with pytest.raises(ValueError, match=r"state|position|epoch"):
            other.restore(state)


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


def test_what_does_not_fit_is_refused():
    graphs = graph_set(SIZES)
    plain = PlainGraph("bare", graphs[0].graph)
    for arguments, error, message in (
        ((graphs, 0), ValueError, "batch_size"),
        (([], 1), ValueError, "graphs: expected at least 1, got 0"),
        ((3, 1), TypeError, "graphs: expected a sequence"),
        (([3], 1), TypeError, r"graphs\[0\]: expected a graph, got int"),
        (([graphs[0], plain], 1), ValueError, r"graphs\[1\]: expected features"),
    ):
        with pytest.raises(error, match=message):
            GraphLoader(*arguments)
    for options, message in (
        ({"base": 1.0}, "base"),
        ({"indices": np.array([11])}, "indices: expected graphs below 11, got 11"),
        ({"indices": np.array([], np.int32)}, "graphs: expected at least 1, got 0"),
        ({"drop_last": True}, "graphs: expected at least 12, got 11"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphLoader(graphs, 12, **options)


def test_the_page_s_snippet_trains():
    text = (ROOT / "docs" / "graphs.md").read_text(encoding="utf-8")
    found: dict = {}
    exec(compile(text.split("```python\n")[1].split("```")[0], "docs/graphs.md", "exec"), found)
    assert np.isfinite(found["loss"])
