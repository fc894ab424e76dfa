"""Readers of the large sets: against PyG's reading of the same files, damage and malice."""

import gzip
import json

import numpy as np
import pytest
import scipy.sparse

from jaxgnn import data
from jaxgnn.data import DataError
from jaxgnn.train import score
from tests.support.large_sets import (
    write_csv,
    write_graphsaint,
    write_ogb,
    write_ogb_arrays,
    write_ogb_graphs,
    write_ppi,
    write_reddit,
)


def edges_of(dataset):
    return np.stack([np.asarray(dataset.graph.senders), np.asarray(dataset.graph.receivers)])


def assert_same_as_pyg(dataset, theirs):
    np.testing.assert_array_equal(dataset.features, theirs.x.numpy())
    np.testing.assert_array_equal(dataset.labels, theirs.y.numpy())
    ours, others = edges_of(dataset), theirs.edge_index.numpy()
    np.testing.assert_array_equal(ours[:, np.lexsort(ours)], others[:, np.lexsort(others)])
    split = dataset.split("published")
    for name in ("train", "val", "test"):
        np.testing.assert_array_equal(getattr(split, name), theirs[f"{name}_mask"].numpy())


@pytest.mark.parametrize("name", ["flickr", "yelp"])
def test_graphsaint_s_files_are_read_as_by_pyg(tmp_path, name):
    datasets = pytest.importorskip("torch_geometric.datasets")
    folder = write_graphsaint(tmp_path / name / "raw", multilabel=name == "yelp")
    folder.rename(tmp_path / name / "kept")
    write_graphsaint(folder, multilabel=name == "yelp")
    theirs = {"flickr": datasets.Flickr, "yelp": datasets.Yelp}[name](str(tmp_path / name))[0]
    dataset = data.load(tmp_path / name / "kept")
    assert_same_as_pyg(dataset, theirs)
    assert dataset.metric == ("micro_f1" if name == "yelp" else "accuracy")
    assert dataset.num_classes == 3 and dataset.name == "kept"


def test_reddit_s_files_are_read_as_by_pyg(tmp_path):
    datasets = pytest.importorskip("torch_geometric.datasets")
    write_reddit(tmp_path / "reddit" / "raw")
    theirs = datasets.Reddit(str(tmp_path / "reddit"))[0]
    dataset = data.load(tmp_path / "reddit" / "raw")
    assert_same_as_pyg(dataset, theirs)
    assert dataset.name == "reddit" and "NeurIPS 2017" in dataset.metadata.citation


def test_ogb_s_files(tmp_path):
    """Products: classes, features of the nodes."""
    folder = write_ogb(tmp_path / "ogbn_products")
    dataset = data.load(folder)
    assert (dataset.name, dataset.metric, dataset.num_classes) == ("ogbn-products", "accuracy", 3)
    pairs = np.loadtxt(folder / "raw" / "edge.csv.gz", int, delimiter=",")
    assert dataset.graph.num_edges == 2 * len(pairs)
    assert {*map(tuple, edges_of(dataset).T)} == {*map(tuple, pairs), *map(tuple, pairs[:, ::-1])}
    features = np.loadtxt(folder / "raw" / "node-feat.csv.gz", np.float32, delimiter=",")
    np.testing.assert_array_equal(dataset.features, features)
    labels = np.loadtxt(folder / "raw" / "node-label.csv.gz", int)
    np.testing.assert_array_equal(dataset.labels, labels)
    valid = np.loadtxt(folder / "split" / "some_rule" / "valid.csv.gz", int)
    assert set(np.flatnonzero(dataset.split().val)) == set(valid)
    assert data.load(folder, undirected=False).graph.num_edges == len(pairs)
    folder.rename(tmp_path / "ogbn_arxiv")  # directed, by its name
    directed = data.load(tmp_path / "ogbn_arxiv")
    assert {*map(tuple, edges_of(directed).T)} == {*map(tuple, pairs)}
    both = data.load(tmp_path / "ogbn_arxiv", undirected=True)
    assert both.graph.num_edges == 2 * len(pairs)


def test_ogb_s_proteins_get_the_sums_of_their_edges_features(tmp_path):
    folder = write_ogb(tmp_path / "ogbn_proteins", features=0, tasks=4)
    dataset = data.load(folder)
    assert (dataset.metric, dataset.num_classes, dataset.num_features) == ("roc_auc", 4, 8)
    pairs = np.loadtxt(folder / "raw" / "edge.csv.gz", int, delimiter=",")
    values = np.loadtxt(folder / "raw" / "edge-feat.csv.gz", delimiter=",")
    expected = np.zeros((40, 8))
    for (a, b), value in zip(pairs, values, strict=True):
        expected[a] += value
        expected[b] += value
    np.testing.assert_allclose(dataset.features, expected, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"features": 0, "tasks": 4}])
def test_ogb_s_arrays(tmp_path, options):
    """As the same set in text; `data.npz` has all edges, unknown labels are NaN."""
    text = data.load(write_ogb(tmp_path / "a" / "set", **options), undirected=False)
    both = data.load(tmp_path / "a" / "set")
    folder = write_ogb_arrays(tmp_path / "b" / "set", **options)
    for expected, given in ((text, {}), (both, {"undirected": True})):
        got = data.load(folder, **given)
        assert (got.name, got.metric, got.num_classes) == ("set", expected.metric, text.num_classes)
        np.testing.assert_array_equal(edges_of(got), edges_of(expected))
        np.testing.assert_array_equal(got.features, expected.features)
        np.testing.assert_array_equal(got.labels, expected.labels)
        for part in ("train", "val", "test"):
            mask = getattr(got.split(), part)
            np.testing.assert_array_equal(mask, getattr(expected.split(), part))
    if options:
        return
    path = folder / "raw" / "node-label.npz"
    labels = text.labels[:, None].astype(np.float32)
    labels[3] = np.nan
    np.savez(path, node_label=labels)
    with pytest.raises(DataError, match="split: expected labels of its nodes, got some"):
        data.load(folder)
    for part in ("train", "valid", "test"):
        write_csv(folder / "split" / "some_rule" / f"{part}.csv.gz", {"train": [5]}.get(part, []))
    got = data.load(folder)
    assert got.labels[3] == 0 and got.split().sizes == (1, 0, 0)
    arrays = dict(np.load(folder / "raw" / "data.npz"))
    for changes, message in (
        (
            {"edge_index": arrays["edge_index"].T},
            r"edge_index: expected \[2, 120\], got \[120, 2\]",
        ),
        ({"edge_index": arrays["edge_index"] + 39}, "edge_index: expected 0 to 39, got 39 to "),
        ({"edge_index": arrays["edge_index"] / 2}, "edge_index: expected integers with 2 axes"),
        ({"num_nodes_list": np.array([40, 1])}, "num_nodes_list: expected 1 entries, got 2"),
        ({"num_nodes_list": np.array([1 << 40])}, "expected a number from 0 to 2.*, got 10995"),
        ({"num_nodes_list": np.array([41])}, "node-label.npz: node_label: expected .* 41 rows"),
        ({"node_feat": np.zeros((39, 2))}, "node_feat: expected numbers with 40 rows and 2 axes"),
        ({"node_feat": np.full((40, 1), np.nan)}, "data.npz: node_feat: expected finite"),
        ({"node_feat": None}, "data.npz: expected features of the nodes or, .* got neither"),
    ):
        resave(folder / "raw" / "data.npz", **(arrays | changes))
        with pytest.raises(DataError, match=message):
            data.load(folder)
    resave(folder / "raw" / "data.npz", **arrays)
    (folder / "split" / "some_rule" / "split_dict.pt").touch()
    with pytest.raises(DataError, match="PyTorch's pickles are not read"):
        data.load(folder)


def test_micro_f1():
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    labels = (rng.random((50, 6)) < 0.3).astype(np.float32)
    logits, mask = rng.normal(size=(50, 6)), rng.random(50) < 0.5
    expected = sklearn.f1_score(labels[mask], logits[mask] > 0, average="micro")
    assert score("micro_f1", labels, logits, mask) == pytest.approx(expected)
    classes = labels.argmax(axis=1)
    expected = sklearn.f1_score(classes[mask], logits[mask].argmax(axis=1), average="micro")
    assert score("micro_f1", classes, logits, mask) == pytest.approx(expected)
    assert np.isnan(score("micro_f1", 0 * labels, -np.abs(logits), mask))


# Damage.


def rewrite(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def save_matrix(folder, matrix):
    scipy.sparse.save_npz(folder / "adj_full.npz", matrix)


def resave(path, **changes):
    with np.load(path) as archive:
        arrays = dict(archive) | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


GRAPHSAINT_DAMAGE = {
    "a missing node": (
        lambda f: rewrite(f / "class_map.json", lambda m: m.pop("7")),
        "class_map.json: expected an entry for each of the 40 nodes, got 39",
    ),
    "another name": (
        lambda f: rewrite(f / "class_map.json", lambda m: m.update({"x": m.pop("7")})),
        "class_map.json: expected an entry for each node, got none for 7",
    ),
    "a negative class": (
        lambda f: rewrite(f / "class_map.json", lambda m: m.update({"7": -1})),
        "class_map.json: labels: expected classes from 0",
    ),
    "mixed labels": (
        lambda f: rewrite(f / "class_map.json", lambda m: m.update({"0": [1, 0], "1": [1]})),
        "class_map.json: labels: expected 2 for each node, got others for 1",
    ),
    "a name for a class": (
        lambda f: rewrite(f / "class_map.json", lambda m: m.update({"7": "cat"})),
        "class_map.json: labels: expected integers",
    ),
    "deep nesting": (
        lambda f: (f / "class_map.json").write_text("[" * 200_000),
        "class_map.json: cannot be read",
    ),
    "a list": (lambda f: (f / "role.json").write_text("[]"), "role.json: expected an object"),
    "no test nodes' key": (
        lambda f: rewrite(f / "role.json", lambda m: m.pop("te")),
        "role.json: expected the nodes of 'te', got 'tr, va'",
    ),
    "an unknown node": (
        lambda f: rewrite(f / "role.json", lambda m: m["va"].append(40)),
        "role.json: va: expected ids from 0 to 39",
    ),
    "shared nodes": (
        lambda f: rewrite(f / "role.json", lambda m: m["va"].extend(m["tr"])),
        "role.json: train, val, test: expected disjoint masks",
    ),
    "half of the features": (
        lambda f: np.save(f / "feats.npy", np.zeros((20, 5))),
        "feats.npy: expected a row for each of the 40 nodes, got 20",
    ),
    "pickled features": (
        lambda f: np.save(f / "feats.npy", np.array([{}], object), allow_pickle=True),
        "feats.npy: array: holds pickled Python objects",
    ),
    "NaN": (
        lambda f: np.save(f / "feats.npy", np.full((40, 5), np.nan)),
        "feats.npy: feats: expected finite values",
    ),
    "cut features": (
        lambda f: (f / "feats.npy").write_bytes((f / "feats.npy").read_bytes()[:-3]),
        "feats.npy: array: a float64",
    ),
    "a rectangle": (
        lambda f: save_matrix(f, scipy.sparse.csr_matrix(np.ones((40, 39)))),
        "adj_full.npz: shape: expected that of a square matrix, got [40, 39]",
    ),
    "columns first": (
        lambda f: save_matrix(f, scipy.sparse.csc_matrix(np.eye(40))),
        "adj_full.npz: format: expected a matrix saved as csr or coo, got 'csc'",
    ),
    "wild indices": (
        lambda f: resave(f / "adj_full.npz", indices=np.full(240, 99)),
        "adj_full.npz: adjacency indices: expected 0 to 39",
    ),
    "no zip": (
        lambda f: (f / "adj_full.npz").write_bytes(b"PK"),
        "adj_full.npz: expected an .npz file",
    ),
}


@pytest.mark.parametrize("damage", GRAPHSAINT_DAMAGE)
def test_damaged_graphsaint_files_are_named(tmp_path, damage):
    folder = write_graphsaint(tmp_path / "set")
    change, message = GRAPHSAINT_DAMAGE[damage]
    change(folder)
    with pytest.raises(DataError) as error:
        data.load(folder)
    assert message in str(error.value) and str(error.value).startswith(str(folder))


OGB_DAMAGE = {
    "a missing row": (
        lambda f: write_csv(f / "raw" / "node-label.csv.gz", [1] * 39),
        "node-label.csv.gz: expected 40 rows, got 39",
    ),
    "too many rows": (
        lambda f: write_csv(f / "raw" / "node-label.csv.gz", [1] * 41),
        "node-label.csv.gz: expected at most 40 rows, got more",
    ),
    "half a class": (
        lambda f: write_csv(f / "raw" / "node-label.csv.gz", [0.5] * 40),
        "node-label.csv.gz: expected a class for each node",
    ),
    "words": (
        lambda f: write_csv(f / "raw" / "node-feat.csv.gz", ["a,b"] * 40),
        "node-feat.csv.gz: line 1: expected numbers, got 'a,b'",
    ),
    "wild edges": (
        lambda f: write_csv(f / "raw" / "edge.csv.gz", [[0, 99]] * 120),
        "edge.csv.gz: expected ids below 40",
    ),
    "three ends": (
        lambda f: write_csv(f / "raw" / "edge.csv.gz", [[0, 1, 2]] * 120),
        "edge.csv.gz: line 1: expected two columns, got '0,1,2'",
    ),
    "an endless line": (
        lambda f: (f / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"1" * 10_000_000)),
        "edge.csv.gz: line 1: expected at most 65536 bytes, got '1111",
    ),
    "no class": (
        lambda f: write_csv(f / "raw" / "node-label.csv.gz", [*["1"] * 38, "nan", "1e300"]),
        "node-label.csv.gz: expected a class for each node",
    ),
    "two rules": (
        lambda f: (f / "split" / "another").mkdir(),
        "split: expected one directory, got 2",
    ),
    "no gzip": (
        lambda f: (f / "raw" / "edge.csv.gz").write_bytes(b"\x1f\x8b0,1\n"),
        "edge.csv.gz: cannot be read",
    ),
    "a huge promise": (
        lambda f: write_csv(f / "raw" / "num-node-list.csv.gz", [10**12]),
        "num-node-list.csv.gz: expected a number from 0 to 2**31 - 1, got 1000000000000",
    ),
}


@pytest.mark.parametrize("damage", OGB_DAMAGE)
def test_damaged_ogb_files_are_named(tmp_path, damage):
    folder = write_ogb(tmp_path / "ogbn_products")
    change, message = OGB_DAMAGE[damage]
    change(folder)
    with pytest.raises(DataError) as error:
        data.load(folder)
    assert message in str(error.value) and str(error.value).startswith(str(folder))


def test_damaged_reddit_files_are_named(tmp_path):
    folder = write_reddit(tmp_path / "a")
    resave(folder / "reddit_data.npz", node_types=np.ones(39, int))
    with pytest.raises(DataError, match=r"reddit_data.npz: feature, node_types: .* 40 and 39"):
        data.load(folder)
    folder = write_reddit(tmp_path / "b")
    resave(folder / "reddit_graph.npz", row=np.arange(3))
    with pytest.raises(DataError, match=r"reddit_graph.npz: row, col: expected as many, got 3"):
        data.load(folder)
    resave(folder / "reddit_graph.npz", row=np.full(240, -1))
    with pytest.raises(DataError, match=r"reddit_graph.npz: row: expected 0 to 39, got -1"):
        data.load(folder)


@pytest.mark.parametrize("directed", [True, False])
def test_ppi_is_the_union_of_its_graphs(tmp_path, directed):
    folder = write_ppi(tmp_path / "ppi", directed=directed)
    dataset = data.load(folder)
    assert (dataset.name, dataset.metric, dataset.num_classes) == ("ppi", "micro_f1", 3)
    split = dataset.split()
    assert [mask.sum() for mask in (split.train, split.val, split.test)] == [20, 20, 20]
    expected = set()
    for i, part in enumerate(("train", "valid", "test")):
        links = json.loads((folder / f"{part}_graph.json").read_text())["links"]
        pairs = {(20 * i + link["source"], 20 * i + link["target"]) for link in links}
        expected |= pairs if directed else pairs | {pair[::-1] for pair in pairs}
        rows = np.load(folder / f"{part}_feats.npy").astype(np.float32)
        np.testing.assert_array_equal(dataset.features[20 * i : 20 * i + 20], rows)
        rows = np.load(folder / f"{part}_labels.npy")
        np.testing.assert_array_equal(dataset.labels[20 * i : 20 * i + 20], rows)
    graph = dataset.graph
    found = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert sorted(found) == sorted(pair for pair in expected if pair[0] != pair[1])


@pytest.mark.parametrize("tasks", [1, 3])
def test_ogb_s_graphs(tmp_path, tasks):
    """As OGB's reader: each edge beside its reverse; missing targets are NaN."""
    folder = write_ogb_graphs(tmp_path / "ogbg_molhiv", tasks=tasks)
    graphs = data.load(folder)
    assert isinstance(graphs, data.GraphSet) and len(graphs) == 8
    raw = folder / "raw"
    sizes, counts = (np.loadtxt(raw / f"num-{what}-list.csv.gz", int) for what in ("node", "edge"))
    edges = np.loadtxt(raw / "edge.csv.gz", int, delimiter=",")
    np.testing.assert_array_equal(np.diff(graphs.node_offsets), sizes)
    np.testing.assert_array_equal(np.diff(graphs.edge_offsets), 2 * counts)
    np.testing.assert_array_equal(graphs.senders, edges.reshape(-1))
    np.testing.assert_array_equal(graphs.receivers, edges[:, ::-1].reshape(-1))
    values = np.loadtxt(raw / "edge-feat.csv.gz", delimiter=",")
    np.testing.assert_array_equal(graphs.edge_features, np.repeat(values, 2, axis=0))
    values = np.loadtxt(raw / "node-feat.csv.gz", delimiter=",")
    np.testing.assert_array_equal(graphs.features, values)
    labels = np.loadtxt(raw / "graph-label.csv.gz", delimiter=",")
    np.testing.assert_array_equal(graphs.labels, labels)
    if tasks > 1:  # as pandas writes them
        text = gzip.decompress((raw / "graph-label.csv.gz").read_bytes()).replace(b"nan", b"")
        assert b",," in text or b"\n," in text or b",\n" in text
        (raw / "graph-label.csv.gz").write_bytes(gzip.compress(text))
        np.testing.assert_array_equal(data.load(folder).labels, labels)
    assert graphs.num_classes == (2 if tasks == 1 else None)
    np.testing.assert_array_equal(graphs.node_categories, 1 + graphs.features.max(0))
    np.testing.assert_array_equal(graphs.edge_categories, 1 + graphs.edge_features.max(0))
    assert graphs.metadata.metric == "roc_auc"  # molhiv's, whatever its labels
    test = np.loadtxt(folder / "split" / "scaffold" / "test.csv.gz", int)
    assert set(np.flatnonzero(graphs.splits["published"].test)) == set(test)
    once = data.load(folder, undirected=False)
    assert once.num_edges == counts.sum()
    arrays = data.load(write_ogb_arrays(tmp_path / "b", write_ogb_graphs, tasks=tasks))
    for name in ("node_offsets", "edge_offsets", "senders", "receivers", "features", "labels"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(once, name))
    np.testing.assert_array_equal(arrays.edge_features, once.edge_features)
    assert arrays.num_classes == once.num_classes
    assert arrays.node_categories is None  # of a set of molecules alone
    (raw / "num-edge-list.csv.gz").write_bytes((raw / "num-node-list.csv.gz").read_bytes())
    with pytest.raises(DataError, match=r"edge.csv.gz: expected 32 rows, got 62"):
        data.load(folder)


def test_damaged_ppi_files_are_named(tmp_path):
    folder = write_ppi(tmp_path / "ppi")
    path = folder / "valid_graph.json"
    value = json.loads(path.read_text())
    for changes, message in (
        ({"nodes": value["nodes"][1:]}, "nodes: expected 20, got 19"),
        ({"links": None}, "expected a list 'links', got"),
        ({"links": [{"source": 1}]}, "links: expected a 'target' in each"),
        ({"links": [{"source": 1, "target": 20}]}, "target: expected 0 to 19, got 20 to 20"),
        ({"links": [{"source": 1, "target": 0.5}]}, "target: expected integers, got"),
    ):
        path.write_text(json.dumps(value | changes))
        with pytest.raises(DataError, match=rf"valid_graph.json: {message}"):
            data.load(folder)
    np.save(folder / "train_labels.npy", np.full((20, 3), 2))
    with pytest.raises(DataError, match=r"train_labels.npy: expected zeros and ones for each of"):
        data.load(folder)


def test_what_is_read_is_bounded(tmp_path):
    writers = {"a": write_graphsaint, "b": write_reddit, "c": write_ogb, "d": write_ppi}
    for name, writer in writers.items():
        folder = writer(tmp_path / name)
        with pytest.raises(DataError, match="more than the limit of 500"):
            data.load(folder, max_bytes=500)
