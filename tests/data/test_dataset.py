"""The dataset shape, splits, nearest neighbors, the digits, and `load` by name."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import data
from jaxgnn.data import DataError, NodeDataset, Split
from jaxgnn.graph import Graph


def small_dataset(**changes) -> NodeDataset:
    """Five nodes: a triangle, a self-loop with a directed edge, an isolated node."""
    fields = dict(
        name="small",
        graph=Graph.from_edges([0, 1, 1, 2, 2, 0, 3, 3], [1, 0, 2, 1, 0, 2, 3, 0], num_nodes=5),
        features=np.arange(10, dtype=np.float32).reshape(5, 2),
        labels=np.array([0, 0, 1, 1, 1], np.int32),
        num_classes=2,
        splits={"only": small_split()},
    )
    return NodeDataset(**{**fields, **changes})


def small_split(**changes) -> Split:
    masks = dict(train=[1, 0, 0, 0, 0], val=[0, 1, 0, 0, 0], test=[0, 0, 1, 1, 0])
    return Split(**{name: np.array(mask, bool) for name, mask in {**masks, **changes}.items()})


def test_statistics():
    assert small_dataset().statistics() == {
        "nodes": 5,
        "edges": 8,
        "mean degree": 1.6,
        "median degree": 2.0,
        "maximum degree": 3,
        "self-loops": 1,
        "isolated nodes": 1,
        "symmetric": False,
        "features": 2,
        "classes": 2,
        # 0-1 both ways of the seven edges that are no self-loop.
        "homophily": 2 / 7,
        "splits": 1,
    }


def test_statistics_of_no_edges():
    graph = Graph.from_edges(np.zeros(0, int), np.zeros(0, int), num_nodes=5)
    statistics = small_dataset(graph=graph).statistics()
    assert statistics["symmetric"] is True
    assert statistics["isolated nodes"] == 5
    assert statistics["homophily"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros((4, 2), np.float32)}, r"features: expected float32\[5, "),
        ({"features": np.zeros((5, 2))}, r"features: .* got float64\[5, 2\]"),
        ({"features": np.zeros((5, 0), np.float32)}, "features: expected at least one a node"),
        ({"features": np.full((5, 2), np.nan, np.float32)}, "features: expected finite .* node 0"),
        ({"labels": np.zeros(5, np.float32)}, r"labels: expected int\[5\]"),
        ({"labels": np.array([0, 1, 2, 0, 0])}, "labels: expected classes from 0 to 1, got 0 to 2"),
        ({"labels": np.array([0, -1, 1, 0, 0])}, "labels: .* got -1 to 1"),
        ({"labels": np.full((5, 2), 2, np.float32)}, "labels: expected zeros and ones"),
        ({"labels": np.zeros((5, 3), np.float32)}, r"labels: expected int\[5\] or float32\[5, 2\]"),
        (
            {"labels": np.zeros((5, 1), np.int32)},
            r"labels: expected int\[5\] or .* got int32\[5, 1\]",
        ),
        ({"splits": {}}, "splits: expected at least one"),
        ({"splits": small_split()}, r"splits: expected a dict of names and .*Split, got Split"),
        ({"splits": {"a": ()}}, r"splits\['a'\]: expected a jaxgnn\.data\.Split, got tuple"),
        ({"name": 3}, "name: expected a string, then the graph, got int"),
        ({"graph": np.zeros((2, 5))}, r"graph: expected a jaxgnn\.Graph, got ndarray"),
        ({"splits": {"a": Split(*np.eye(3, 4, dtype=bool))}}, r"splits\['a'\]: .* 5 nodes, got 4"),
        (
            {"graph": Graph.from_edges([0], [0], num_senders=2, num_receivers=5)},
            "graph: expected one set of nodes",
        ),
    ],
)
def test_dataset_refuses(changes, message):
    with pytest.raises(DataError, match=message):
        small_dataset(**changes)


def test_multilabel_dataset():
    labels = np.array([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]], np.float32)
    dataset = small_dataset(labels=labels)
    assert dataset.is_multilabel
    assert dataset.statistics()["homophily"] is None


def test_split_refuses():
    with pytest.raises(DataError, match="at least one training node"):
        small_split(train=[0, 0, 0, 0, 0]).check_trains()
    with pytest.raises(DataError, match=r"disjoint masks, got 1 nodes .* \(the first: 1\)"):
        small_split(test=[0, 1, 0, 1, 0])
    with pytest.raises(DataError, match="one length, got 5, 5, 2"):
        small_split(test=[0, 1])
    with pytest.raises(DataError, match=r"test: expected a mask bool\[num_nodes\], got int64"):
        Split(train=np.eye(1, 5, dtype=bool)[0], val=np.zeros(5, bool), test=np.ones(5, np.int64))


def test_split_by_name_and_place():
    first, second = small_split(), small_split(val=[0] * 5)
    dataset = small_dataset(splits={"a": first, "b": second})
    assert dataset.split() is first and dataset.split("a") is first
    assert dataset.split(1) is second and dataset.split("b") is second
    assert second.sizes == (1, 0, 2)
    with pytest.raises(KeyError, match="small has a, b"):
        dataset.split("c")
    for place in (2, -1):
        with pytest.raises(IndexError, match="small has 2"):
            dataset.split(place)


def test_normalize_features():
    x = np.array([[1, 3], [-1, -1], [-1, -0.5]], np.float32)
    # The minimum is -1; sums below 1 are not divided by.
    expected = np.array([[2 / 6, 4 / 6], [0, 0], [0, 0.5]], np.float32)
    normalized = data.normalize_features(x)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized, expected, rtol=1e-6)
    with pytest.raises(DataError, match="normalize_features: expected rows whose sum"):
        data.normalize_features(np.full((2, 3), [[-1e38], [3e38]], np.float32))


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**31))
def test_split_per_class(num_train, num_val, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat([0, 1, 2], [8, 9, 20]))
    split = data.split_per_class(labels, num_train, num_val, seed=seed)
    for mask, count in ((split.train, num_train), (split.val, num_val)):
        assert np.bincount(labels[mask], minlength=3).tolist() == [count] * 3
    assert (split.train | split.val | split.test).all()
    again = data.split_per_class(labels, num_train, num_val, seed=seed)
    assert np.array_equal(again.train, split.train) and np.array_equal(again.val, split.val)


def test_splits_refuse():
    labels = np.repeat([0, 1], 5)
    with pytest.raises(DataError, match="class 0: expected more than 3 \\+ 2 nodes"):
        data.split_per_class(labels, 3, 2, seed=0)
    with pytest.raises(DataError, match="num_train"):
        data.split_per_class(labels, 0, 2, seed=0)
    with pytest.raises(DataError, match="shares"):
        data.split_fractions(10, 0.8, 0.2, seed=0)
    with pytest.raises(DataError, match="num_splits"):
        data.per_class_splits(labels, 1, 1, seed=0, num_splits=0)


def test_split_fractions():
    split = data.split_fractions(1000, 0.5, 0.2, seed=3)
    assert split.sizes == (500, 200, 300)
    assert not np.array_equal(split.train, data.split_fractions(1000, 0.5, 0.2, seed=4).train)


# Small integer coordinates: most distances tie, and points coincide.
@given(st.integers(2, 60), st.integers(1, 3), st.integers(1, 6), st.booleans(), st.integers(0, 99))
def test_knn_against_brute_force(n, dimensions, extent, symmetrize, seed):
    points = np.random.default_rng(seed).integers(0, extent, (n, dimensions)).astype(float)
    k = min(n - 1, 1 + seed % 12)
    csr = data.knn(points, k, symmetrize=symmetrize)
    distance = ((points[:, None] - points[None]) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    dense = np.zeros((n, n), bool)
    for i in range(n):
        dense[i, np.argsort(distance[i], kind="stable")[:k]] = True
    if symmetrize:
        dense |= dense.T
    assert np.array_equal(csr.to_scipy().T.toarray() > 0, dense)
    assert csr.num_edges == dense.sum()


def test_knn_of_coinciding_points():
    csr = data.knn(np.zeros((400, 2)), 3, symmetrize=False)
    assert csr.senders[:6].tolist() == [1, 2, 3, 0, 2, 3]
    assert np.array_equal(csr.senders[12:], np.tile([0, 1, 2], 396))


def test_to_scipy_has_senders_as_rows_as_that_of_the_graph():
    csr = data.rmat(5, 4.0, undirected=False, seed=1)
    matrix = csr.to_scipy().toarray()
    assert not np.array_equal(matrix, matrix.T)
    assert np.array_equal(matrix, csr.to_graph().to_scipy().toarray())
    edge = csr.senders[0], csr.receivers[0]
    assert matrix[edge] == 1


def test_knn_refuses():
    with pytest.raises(DataError, match="k: expected 1 to 4 neighbors among 5 points, got 5"):
        data.knn(np.zeros((5, 2)), 5, symmetrize=False)
    with pytest.raises(TypeError, match=r"k: expected an integer, got 1\.5"):
        data.knn(np.zeros((5, 2)), 1.5, symmetrize=False)
    with pytest.raises(TypeError, match="symmetrize: expected True or False, got 'no'"):
        data.knn(np.zeros((5, 2)), 2, symmetrize="no")
    with pytest.raises(DataError, match="points: expected finite"):
        data.knn(np.array([[np.nan], [0.0], [1.0]]), 1, symmetrize=False)


def test_digits():
    dataset = data.load("digits")
    assert (dataset.num_nodes, dataset.num_features, dataset.num_classes) == (1797, 64, 10)
    assert dataset.features.min() == 0 and dataset.features.max() == 1
    statistics = dataset.statistics()
    assert statistics["symmetric"] and statistics["self-loops"] == 0
    # Every node has its ten nearest; others may add themselves.
    assert np.asarray(dataset.graph.in_degrees).min() == 10
    assert statistics["homophily"] > 0.95
    for split in dataset.splits.values():
        assert np.bincount(dataset.labels[split.train]).tolist() == [5] * 10
        assert split.sizes == (50, 50, 1697)


def test_digits_graph_is_that_of_scikit_learn():
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    pixels = load_digits().data
    theirs = kneighbors_graph(pixels, 10, mode="distance").toarray()
    ours = data.knn(pixels, 10, symmetrize=False).to_scipy().T.toarray()
    # Which of equally far points is taken may differ, but not how far they are.
    rows, columns = ours.nonzero()
    distance = np.linalg.norm(pixels[rows] - pixels[columns], axis=1).reshape(-1, 10)
    expected = np.sort(theirs[theirs.nonzero()].reshape(-1, 10), axis=1)
    np.testing.assert_allclose(np.sort(distance, axis=1), expected, rtol=1e-9)


def test_digits_options():
    dataset = data.load("digits", seed=7, num_splits=2, labels_per_class=3, k=4)
    assert list(dataset.splits) == ["seed7", "seed8"]
    assert dataset.split(0).sizes == (30, 50, 1717)
    defaults = data.load("digits", num_splits=8)
    same = data.load("digits", seed=7, num_splits=1)
    assert np.array_equal(same.split(0).train, defaults.split("seed7").train)


def test_load_refuses():
    with pytest.raises(DataError, match="corra: no such file or directory, and no dataset of that"):
        data.load("corra")
    with pytest.raises(DataError, match="digits: no option 'edges'; it has k, labels_per_class"):
        data.load("digits", edges=3)
    with pytest.raises(TypeError, match="name_or_path: expected a path, got int"):
        data.load(5)


def test_load_refuses_other_files(tmp_path):
    with pytest.raises(DataError, match=r"expected a known layout .* got 0 files"):
        data.load(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.npz: expected an .npz file, a zip archive"):
        data.load(tmp_path)
    (tmp_path / "b.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"got 2 files: a\.npz, b\.npz"):
        data.load(tmp_path)


def test_load_normalizes_features():
    dataset = data.load("digits", normalize_features=True)
    np.testing.assert_allclose(dataset.features.sum(axis=1), 1, rtol=1e-5)
    assert dataclasses.replace(dataset, name="other").name == "other"


def test_names_of_nodes_and_classes():
    whole = small_dataset()
    nodes = tuple(f"n{i}" for i in range(whole.num_nodes))
    classes = tuple("abcdefghij"[: whole.num_classes])
    named = dataclasses.replace(whole, node_names=nodes, class_names=classes)
    assert named.node_names == nodes and named.class_names == classes
    for bad in (nodes[:-1], nodes[:-1] + nodes[:1], list(nodes)):
        with pytest.raises(DataError, match="node_names: expected"):
            dataclasses.replace(whole, node_names=bad)
    with pytest.raises(DataError, match="class_names: expected"):
        dataclasses.replace(whole, class_names=("a",))


def test_normalized_integers():
    """In float32, of lists too."""
    found = data.normalize_features([[1, 3], [1, 1]])
    assert found.dtype == np.float32 and found.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("key", [None, 1.5, [0]])
def test_split_of_no_name_or_number(key):
    with pytest.raises(TypeError, match="split: expected a name or an integer, got"):
        data.load("sbm", nodes_per_class=5).split(key)
