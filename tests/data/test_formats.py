"""Readers of graphs, of many graphs and of label sets; `load` recognizes each by its content."""

import gzip
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from jaxgnn import data
from jaxgnn.data import DataError, GraphSet, NodeDataset, PlainGraph


def ends(graph) -> list[tuple[int, int]]:
    offsets = np.asarray(graph.row_offsets)
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(offsets))
    return list(zip(np.asarray(graph.senders).tolist(), receivers.tolist(), strict=True))


def written(path, content: bytes | str):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "nodes", "edges"),
    [
        ("amazon_photo", NodeDataset, 7650, 238_162),
        ("cora", NodeDataset, 2708, 10_556),
        ("dblp", NodeDataset, 17_716, 105_734),
        ("facebook_combined", PlainGraph, 4039, 88_234),
        ("meshes", GraphSet, 38_877, 2 * (104_288 + 8784)),
        ("minesweeper", NodeDataset, 10_000, 78_804),
        ("modelnet10_voxel_points", GraphSet, 1_374_716, 0),
        ("p2p_gnutella31", PlainGraph, 62_586, 147_892),
        ("proteins_full", GraphSet, 43_471, 162_088),
        ("wikipedia_pos", NodeDataset, 4777, 2 * 92_295 + 222),
    ],
)
def test_the_shared_sets_load_by_path_alone(data_directory, name, kind, nodes, edges):
    loaded = data.load(data_directory / name)
    graph = loaded if kind is GraphSet else loaded.graph
    assert type(loaded) is kind and loaded.num_nodes == nodes and graph.num_edges == edges
    assert loaded.statistics()["nodes"] == nodes and repr(loaded).startswith(kind.__name__)


def test_what_the_shared_sets_hold(data_directory):
    clouds = data.load(data_directory / "modelnet10_voxel_points")
    assert clouds.class_names == ("chair", "monitor") and len(clouds) == 676
    assert clouds.splits["file"].sizes == (542, 0, 134)
    assert clouds[3].positions.shape == (clouds[3].num_nodes, 3) and clouds[3].label == 0
    words = data.load(data_directory / "wikipedia_pos", seed=3, num_splits=2)
    assert words.labels.sum() == 6770 and list(words.splits) == ["seed3", "seed4"]
    meshes = data.load(data_directory / "meshes")
    assert meshes.graph_names == ("spot", "stanford-bunny") and meshes[0].num_nodes == 2930
    with pytest.raises(DataError, match=r"meshes: expected nodes with labels, got GraphSet\("):
        data.load_nodes(data_directory / "meshes")


@pytest.mark.parametrize(
    ("content", "options", "expected", "names", "weights"),
    [
        ("", {}, [], None, None),
        ("0 0\n", {}, [(0, 0)], None, None),
        ("0 1", {}, [(0, 1)], None, None),
        ("\ufeff0 1\r\n\r\n1 0\r\n", {}, [(1, 0), (0, 1)], None, None),
        ("% c\n0;1;2\n", {"weights": True}, [(0, 1)], None, [2]),
        ("0|1\n0|1\n", {"num_nodes": 3}, [(0, 1)], None, None),
        ("0 1 2\n0 1 3\n", {"weights": True, "undirected": True}, [(1, 0), (0, 1)], None, [5, 5]),
        ("source,target\n0,1\n", {}, [(0, 1)], None, None),
        ("a,b\n0,1\n", {}, [(0, 1)], None, None),
        ("from\tto\nx\ty z\n", {}, [(0, 1)], ("x", "y z"), None),
        ('"x" y\tz\n', {}, [(0, 1)], ('"x" y', "z"), None),
        ("é b\nb c\n", {}, [(0, 1), (1, 2)], ("é", "b", "c"), None),
        ("a,b c\n", {"delimiter": " "}, [(0, 1)], ("a,b", "c"), None),
        ("3000000000 7\n7 7\n", {}, [(0, 1), (1, 1)], ("3000000000", "7"), None),
        ("7 5\n5 7\n", {"names": True}, [(1, 0), (0, 1)], ("7", "5"), None),
        ("; c\n0 1\n", {"comments": ";"}, [(0, 1)], None, None),
    ],
)
def test_edge_lists(tmp_path, content, options, expected, names, weights):
    for path in (tmp_path / "edges.txt", tmp_path / "edges.txt.gz"):
        loaded = data.load(written(path, content), **options)
        assert type(loaded) is PlainGraph and ends(loaded.graph) == expected
        assert loaded.node_names == names
        assert weights is None if loaded.weights is None else loaded.weights.tolist() == weights


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("0 1 x\n", {"weights": True}, "line 1: expected a weight that float32 holds in the third"),
        ("0 1\n0 1 nan\n", {"weights": True}, "line 1: expected a weight"),
        ("a\n", {}, "line 1: expected two names, got 'a'"),
        ("a b\n\0 c\n", {}, "line 2: expected text"),
        ("0 1\n3000000000 1\n", {}, "line 2: expected two ids from 0 to 2147483646"),
        ("0 2000000\n", {}, "claims 2000001 nodes for 1 edges.*names=True"),
        ("a b\n", {"num_nodes": 4}, "num_nodes: expected none where ids are names"),
        ("a b\n", {"max_bytes": 100}, "would take more than the limit"),
        ('"Doe, J",b\nb,c\n', {}, "expected names without quotes, got '\"Doe'"),
        ('"source";"target"\n"1";"2"\n', {}, "expected names without quotes, got '\"1\"'"),
        (b"a b\nb \xe9\n", {}, r"expected UTF-8 text, got the name b'é'"),
        ("id,age\n0,31\n", {}, "line 1: .*, got the column 'id': .* with nodes.csv and edges.csv"),
        ("label\tID\nred\talice\n", {}, "line 1: .*, got the column 'ID': a table of nodes"),
        ("3 2\n0 1\n1 2\n", {}, "line 1: '3 2' looks like .*: delete the line, or begin it with #"),
    ],
)
def test_edge_lists_refuse(tmp_path, content, options, message):
    with pytest.raises(DataError, match=f"edges.txt: .*{message}"):
        data.load(written(tmp_path / "edges.txt", content), **options)
    with pytest.raises(DataError, match="delimiter: expected one ASCII character"):
        data.read_edges(tmp_path / "edges.txt", delimiter="::")


def test_a_table_of_nodes_is_no_edge_list(tmp_path):
    for name in ("nodes.csv", "nodes.csv.gz"):
        with pytest.raises(DataError, match=f"{name}: expected an edge list, got a table of nodes"):
            data.load(written(tmp_path / name, "0,31\n1,45\n"))
    path = written(tmp_path / "edges.csv", "id,ego\nego,id\n")
    assert data.load(path, skip_lines=0).node_names == ("id", "ego")


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("follower,followed\na,b\n", "line 1 ('follower', 'followed') is read as an edge"),
        ("# c\nself self\na b\n", "line 2 ('self', 'self') is read as an edge"),
        ("a b\nc a\n", ""),
        ("a b\n", ""),
        ("source,target\na,b\n", ""),
        ("5 6\n0 1\n", ""),
    ],
)
def test_an_edge_of_names_that_may_be_a_header_is_noted(tmp_path, content, note):
    notes = data.load(written(tmp_path / "edges.txt", content)).metadata.notes
    assert notes.startswith(note) if note else notes == ""


def test_many_names(tmp_path):
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 3000, (20_000, 2))
    text = "".join(f"node-{a:05}\tnode-{b:05}\n" for a, b in pairs.tolist())
    loaded = data.load(written(tmp_path / "edges.tsv", text))
    names = [int(name[5:]) for name in loaded.node_names]
    assert {(names[a], names[b]) for a, b in ends(loaded.graph)} == set(map(tuple, pairs.tolist()))


def test_matrices_equal_scipy(tmp_path):
    matrix = scipy.sparse.random_array((9, 9), density=0.3, rng=np.random.default_rng(0))
    paths = []
    for kind in ("csr", "csc", "coo"):
        paths.append(tmp_path / f"{kind}.npz")
        scipy.sparse.save_npz(paths[-1], matrix.asformat(kind), compressed=kind != "csc")
    for name, value, compressed in (
        ("sparse", scipy.sparse.csc_matrix(matrix), True),
        ("plain", scipy.sparse.csc_matrix(matrix), False),
        ("full", matrix.toarray(), True),
    ):
        paths.append(tmp_path / f"{name}.mat")
        variables = {"A": value, "text": "no matrix", "v": np.arange(3)}
        scipy.io.savemat(paths[-1], variables, do_compression=compressed)
    paths.append(tmp_path / "a.mtx")
    scipy.io.mmwrite(paths[-1], matrix)
    for path in paths:
        loaded = data.load(path, weights=True)
        dense = loaded.graph.to_scipy(loaded.weights).toarray()
        np.testing.assert_allclose(dense, matrix.toarray(), rtol=1e-6, err_msg=str(path))
        assert data.load(path).weights is None
        assert data.load(path, undirected=True).statistics()["symmetric"]
    skew = "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 1.5D1\n"
    loaded = data.load(written(tmp_path / "b.mtx", skew), weights=True)
    assert loaded.weights.tolist() == [15, -15] and ends(loaded.graph) == [(1, 0), (0, 1)]


def test_mat_with_label_sets(tmp_path):
    network = scipy.sparse.csc_matrix(np.eye(4, k=1))
    group = scipy.sparse.csc_matrix(np.array([[1, 0], [1, 1], [0, 0], [0, 1]]))
    scipy.io.savemat(tmp_path / "a.mat", {"network": network, "group": group})
    loaded = data.load(tmp_path / "a.mat", train=0.4, val=0.3)
    np.testing.assert_array_equal(loaded.labels, group.toarray())
    assert ends(loaded.graph) == [(0, 1), (1, 2), (2, 3)] and loaded.metric == "micro_f1"
    split = loaded.split()
    assert split.sizes == (1, 1, 1) and not (split.train | split.val | split.test)[2]


def test_label_sets(tmp_path):
    written(tmp_path / "a.ungraph", "x y\ny z\n")
    written(tmp_path / "a.cmty", "x z\n\ny x\n")
    loaded = data.load(tmp_path)
    assert loaded.labels.tolist() == [[1, 0, 1], [0, 0, 1], [1, 0, 0]]
    assert loaded.node_names == ("x", "y", "z") and loaded.graph.num_edges == 4
    np.testing.assert_allclose(loaded.features[:, 0], np.log([2, 3, 2]), rtol=1e-6)
    written(tmp_path / "a.cmty", "x w\n")
    with pytest.raises(DataError, match=r"a.cmty: line 1: expected nodes of the graph, got 'w'"):
        data.load(tmp_path)
    with pytest.raises(DataError, match=r"a.cmty: label sets need their graph"):
        data.load(tmp_path / "a.cmty")


def test_meshes(tmp_path):
    triangle = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    contents = {
        "a.off": "OFF\n# c\n3 1 0\n0 0 0\n1 0 0\n\n0 1 0.5\n3 0 1 2 255 0 0\n",
        "b.off": "OFF3 1 0\n0 0 0\n1 0 0\n0 1 0.5\n3 0 1 2\n",
        "c.obj": "o x\nv 0 0 0\nv 1 0 0 1.0\nv 0 1 0.5\nvt 0 0\nf 1/1/1 2//3 -1\n",
    }
    for name, content in contents.items():
        loaded = data.load(written(tmp_path / name, content))
        assert sorted(ends(loaded.graph)) == triangle
        assert loaded.positions.tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0.5]]
    several = data.load(tmp_path)
    assert len(several) == 3 and several.graph_names == ("a", "b", "c")
    assert sorted(ends(several[-1].graph)) == triangle
    for content, message in (
        ("OFF\n3 1 0\n0 0 0\n", r"line 4: expected three coordinates, got 'the end of the file'"),
        ("OFF\n1 1 0\n0 0 0\n3 0 0 7\n", "expected faces of the 1 vertices, got the vertex 7"),
        ("OFF\n3\n", r"line 2: expected the numbers of vertices"),
        ("v 0 0 0\nf 1 x\n", r"line 2: expected vertices of a face, got 'x'"),
        ("v 0 0 0\nf 0 1\n", r"line 2: expected vertices of a face, got '0'"),
        ("v 0 0 0\nv 0 nan 0\n", r"line 2: expected three coordinates"),
    ):
        with pytest.raises(DataError, match=rf"d.obj: .*{message}"):
            data.load(written(tmp_path / "d.obj", content))


def test_point_clouds(tmp_path):
    points = np.arange(12, dtype=np.float64).reshape(4, 3)
    np.save(tmp_path / "one.npy", points)
    np.save(tmp_path / "two.npy", points.reshape(2, 2, 3))
    np.savez(tmp_path / "ptr.npz", pos=points, ptr=[0, 0, 4], y=[1, 0])
    one, two = data.load(tmp_path / "one.npy"), data.load(tmp_path / "two.npy")
    assert type(one) is PlainGraph and one.positions.tolist() == points.tolist()
    assert len(two) == 2 and two[1].positions.tolist() == points[2:].tolist()
    sets = data.load(tmp_path / "ptr.npz")
    assert [len(cloud.positions) for cloud in sets] == [0, 4] and [c.label for c in sets] == [1, 0]
    np.savez(tmp_path / "ptr.npz", pos=points, ptr=[0, 5])
    with pytest.raises(DataError, match=r"ptr.npz: ptr: expected an ascent from 0 to 4"):
        data.load(tmp_path / "ptr.npz")
    np.savez(tmp_path / "ptr.npz", pos=points.reshape(2, 2, 3), y=[1, 0], test_mask=[True, True])
    split = data.load(tmp_path / "ptr.npz").splits["file"]
    assert split.test.all() and not split.train.any()
    np.savez(tmp_path / "one.npz", pos=points, y=[3])
    assert data.load(tmp_path / "one.npz").label == 3
    np.savez(tmp_path / "one.npz", pos=points, y=[3, 0, 1, 2])
    with pytest.raises(DataError, match=r"y: expected the class of the one cloud, got int64\[4\]"):
        data.load(tmp_path / "one.npz")


def test_a_mesh_in_two_formats(tmp_path):
    written(tmp_path / "a.off", "OFF3 1 0\n0 0 0\n1 0 0\n0 1 0.5\n3 0 1 2\n")
    for name in ("a.obj", "b.obj"):
        written(tmp_path / name, "v 0 0 0\nv 1 0 0\nv 0 1 0.5\nf 1 2 3\n")
    assert data.load(tmp_path).graph_names == ("a.obj", "a.off", "b")


def test_graphml(tmp_path):
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([("a", "b"), ("b", "c"), ("a", "a")])
    graph["a"]["b"]["weight"] = 2.5
    networkx.write_graphml(graph, tmp_path / "a.graphml")
    loaded = data.load(tmp_path / "a.graphml", weight="weight")
    assert loaded.node_names == ("a", "b", "c")
    assert dict(zip(ends(loaded.graph), loaded.weights.tolist(), strict=True)) == {
        (0, 0): 1,
        (0, 1): 2.5,
        (1, 2): 1,
    }
    text = (tmp_path / "a.graphml").read_text()
    entity = re.sub(r"\?>", '?><!DOCTYPE x [<!ENTITY a "b">]>', text, count=1)
    with pytest.raises(DataError, match="without a document type"):
        data.load(written(tmp_path / "b.graphml", entity))
    with pytest.raises(DataError, match=r"b.graphml: cannot be read"):
        data.load(written(tmp_path / "b.graphml", text[:-30]))


def write_tudataset(folder, **changes):
    """Three graphs: two nodes with doubled edges and a loop, none, one node."""
    files = {
        "A": "1, 2\n2, 1\n1, 2\n2, 2\n",
        "graph_indicator": "1\n1\n3\n",
        "graph_labels": "-1\n4\n-1\n",
        "node_labels": "5\n3\n5\n",
        "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n",
        "edge_labels": "0\n1\n1\n0\n",
    }
    for part, content in {**files, **changes}.items():
        (folder / f"TINY_{part}.txt").write_text(content)
    return folder


def test_tudataset(tmp_path):
    loaded = data.load(write_tudataset(tmp_path))
    assert len(loaded) == 3 and loaded.class_names == ("-1", "4") and not loaded.splits
    assert loaded.labels.tolist() == [0, 1, 0] and np.diff(loaded.node_offsets).tolist() == [
        2,
        0,
        1,
    ]
    assert loaded.features.tolist() == [[0.5, 1, 0, 0, 1], [1.5, 2, 1, 0, 0], [2.5, 3, 0, 0, 1]]
    first = loaded[0]
    assert ends(first.graph) == [(1, 0), (0, 1)] and first.edge_features.tolist() == [
        [0, 1],
        [1, 1],
    ]
    for changes, message in (
        ({"A": "1, 3\n", "edge_labels": "1\n"}, "A.txt: expected edges within a graph"),
        ({"A": "0, 1\n", "edge_labels": "1\n"}, "A.txt: expected ids from 1 to 3, got 0 to 1"),
        ({"graph_indicator": "1\n3\n1\n"}, "indicator.txt: expected the numbers of the graphs"),
        ({"node_labels": "1\n"}, "node_labels.txt: expected 3 rows, one for each node, got 1"),
        ({"node_labels": "1\n99999\n1\n"}, "expected at most 4096 classes"),
        ({"graph_attributes": "1\nnan\n1\n"}, r"^\S*_attributes\.txt: graph_attributes: exp"),
    ):
        with pytest.raises(DataError, match=message):
            data.load(write_tudataset(tmp_path, **changes))


def test_proteins_equal_pyg(data_directory):
    pytest.importorskip("torch")
    io = pytest.importorskip("torch_geometric.io")
    folder = data_directory / "proteins_full"
    whole, slices, _ = io.read_tu_data(str(folder), "PROTEINS_full")
    loaded = data.load(folder)
    np.testing.assert_array_equal(loaded.features, whole.x.numpy())
    np.testing.assert_array_equal(loaded.labels, whole.y.numpy())
    np.testing.assert_array_equal(loaded.node_offsets, slices["x"].numpy())
    np.testing.assert_array_equal(loaded.edge_offsets, slices["edge_index"].numpy())
    edges = np.stack([loaded.senders, loaded.receivers])
    np.testing.assert_array_equal(edges, whole.edge_index.numpy())
    tests = np.stack([split.test for split in loaded.splits.values()])
    assert (tests.sum(axis=0) == 1).all() and np.ptp(tests.sum(axis=1)) <= 1
    for split in loaded.splits.values():
        assert abs(loaded.labels[split.test].mean() - loaded.labels.mean()) < 0.01


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"\x89HDF\r\n", "HDF5"),
        ("a.pkl", b"\x80\x04.", "got a pickle"),
        ("a.xml", b"<html>", "expected GraphML"),
        ("a.json", b'{"nodes": [1, 2]}', "got JSON"),
        ("a.npz", b"PK\x03\x04", "expected an .npz file"),
        ("a.mat", b"MATLAB 5.0 ".ljust(140, b"\0"), "the mark IM or MI"),
    ],
)
def test_unknown_content_is_refused(tmp_path, name, content, message):
    with pytest.raises(DataError, match=rf"{name}: .*{message}"):
        data.load(written(tmp_path / name, content))
    (tmp_path / "other").write_text("0 1\n")
    with pytest.raises(DataError, match=r"expected a known layout .* got 2 files"):
        data.load(tmp_path)
