"""Readers beside PyG's own, array by array, on files that the test writes or shared ones.

PyG's are run on raw files put in place, so that nothing is downloaded. Others are in
`test_formats.py` (PROTEINS), `test_npz.py` (shchur's sets), `test_planetoid.py` and
`test_large.py` (GraphSAINT's sets and Reddit).
"""

import shutil

import numpy as np
import pytest

from jaxgnn import data
from tests.support.large_sets import write_ppi

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")


def ends(graph) -> np.ndarray:
    offsets = np.asarray(graph.row_offsets)
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(offsets))
    return np.stack([np.asarray(graph.senders), receivers])


def by_receiver(edge_index) -> np.ndarray:
    edges = edge_index.numpy()
    return edges[:, np.lexsort(edges)]


@pytest.mark.parametrize("directed", [True, False])
def test_ppi(tmp_path, directed):
    pytest.importorskip("networkx")
    from torch_geometric.datasets import PPI

    folder = write_ppi(tmp_path / "ppi" / "raw", directed=directed, nodes=30)
    kept = shutil.copytree(folder, tmp_path / "kept")
    loaded = data.load(kept)
    split = loaded.split()
    edges, start = ends(loaded.graph), 0
    found = 0
    for name in ("train", "val", "test"):
        mask = getattr(split, name)
        parts = PPI(str(tmp_path / "ppi"), split=name)
        assert len(parts) == 2 and mask.sum() == sum(part.num_nodes for part in parts)
        for part in parts:
            stop = start + part.num_nodes
            assert mask[start:stop].all()
            np.testing.assert_array_equal(loaded.features[start:stop], part.x.numpy())
            np.testing.assert_array_equal(loaded.labels[start:stop], part.y.numpy())
            inside = (edges >= start).all(axis=0) & (edges < stop).all(axis=0)
            np.testing.assert_array_equal(edges[:, inside] - start, by_receiver(part.edge_index))
            found, start = found + inside.sum(), stop
    assert found == edges.shape[1] and start == loaded.graph.num_nodes


def test_heterophilous(data_directory, tmp_path):
    from torch_geometric.datasets import HeterophilousGraphDataset

    source = data_directory / "minesweeper" / "minesweeper.npz"
    raw = tmp_path / "minesweeper" / "raw"
    raw.mkdir(parents=True)
    shutil.copy(source, raw)
    theirs = HeterophilousGraphDataset(str(tmp_path), "Minesweeper")[0]
    loaded = data.load(source)
    np.testing.assert_array_equal(loaded.features, theirs.x.numpy())
    np.testing.assert_array_equal(loaded.labels, theirs.y.numpy())
    np.testing.assert_array_equal(ends(loaded.graph), by_receiver(theirs.edge_index))
    for i, split in enumerate(loaded.splits.values()):
        for name in ("train", "val", "test"):
            mask = theirs[f"{name}_mask"][:, i].numpy()
            np.testing.assert_array_equal(getattr(split, name), mask)
    assert len(loaded.splits) == theirs.train_mask.shape[1]


@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_tudataset_with_all_its_files(tmp_path, targets):
    from torch_geometric.io import read_tu_data

    rng = np.random.default_rng(1)
    sizes = np.array([4, 1, 7, 3, 5])
    of_node = np.repeat(np.arange(5), sizes)
    first = np.cumsum(sizes) - sizes
    graphs = rng.permutation(np.repeat(np.arange(5), 9))  # edges in any order, some repeated
    edges = np.stack([rng.integers(0, sizes[graphs]) + first[graphs] for _ in range(2)], axis=1)
    files = {
        "A": edges + 1,
        "graph_indicator": of_node + 1,
        "graph_labels": np.array([3, -1, 3, 7, -1]),
        "node_labels": rng.integers(2, 6, (20, 2)),
        "node_attributes": rng.integers(-8, 8, (20, 3)) / 4,
        "edge_labels": rng.integers(5, 8, 45),
        "edge_attributes": rng.integers(-8, 8, (45, 2)) / 4,
    }
    if targets == "numbers":
        files["graph_attributes"] = rng.integers(-8, 8, (5, 2)) / 4
    for name, rows in files.items():
        text = "".join(
            ", ".join(map(str, np.atleast_1d(row).tolist())) + "\n" for row in np.asarray(rows)
        )
        (tmp_path / f"TINY_{name}.txt").write_text(text)
    whole, slices, _ = read_tu_data(str(tmp_path), "TINY")
    loaded = data.load(tmp_path)
    np.testing.assert_array_equal(loaded.features, whole.x.numpy())
    np.testing.assert_array_equal(loaded.labels, whole.y.numpy())
    np.testing.assert_array_equal(loaded.node_offsets, slices["x"].numpy())
    np.testing.assert_array_equal(loaded.edge_offsets, slices["edge_index"].numpy())
    found = np.stack([loaded.senders, loaded.receivers])
    np.testing.assert_array_equal(found, whole.edge_index.numpy())
    np.testing.assert_array_equal(loaded.edge_features, whole.edge_attr.numpy())


@pytest.mark.parametrize("suffix", ["off", "obj"])
def test_meshes_of_triangles(tmp_path, suffix):
    from torch_geometric.io import read_obj, read_off
    from torch_geometric.transforms import FaceToEdge

    rng = np.random.default_rng(2)
    points = rng.integers(-8, 8, (12, 3)) / 4
    faces = np.stack([rng.permutation(11)[:3] for _ in range(15)])  # the last is in none
    vertices = [" ".join(map(str, row)) for row in points.tolist()]
    if suffix == "off":
        lines = ["OFF", f"{len(points)} {len(faces)} 0", *vertices]
        lines += ["3 " + " ".join(map(str, row)) for row in faces.tolist()]
    else:
        lines = [f"v {row}" for row in vertices]
        lines += ["f " + " ".join(map(str, row)) for row in (faces + 1).tolist()]
    path = tmp_path / f"mesh.{suffix}"
    path.write_text("\n".join(lines) + "\n")
    theirs = {"off": read_off, "obj": read_obj}[suffix](str(path))
    theirs = FaceToEdge()(theirs)
    loaded = data.load(path)
    np.testing.assert_array_equal(loaded.positions, theirs.pos.numpy())
    np.testing.assert_array_equal(ends(loaded.graph), by_receiver(theirs.edge_index))


def test_graphml(tmp_path):
    networkx = pytest.importorskip("networkx")
    from torch_geometric.utils import from_networkx

    path = tmp_path / "a.graphml"
    networkx.write_graphml(networkx.gnp_random_graph(12, 0.3, seed=3, directed=True), path)
    theirs = from_networkx(networkx.read_graphml(path))
    loaded = data.load(path)
    np.testing.assert_array_equal(ends(loaded.graph), by_receiver(theirs.edge_index))
    assert loaded.graph.num_nodes == theirs.num_nodes


def test_edge_list_of_snap(tmp_path):
    from torch_geometric.datasets import snap_dataset

    rng = np.random.default_rng(4)
    pairs = np.unique(rng.integers(0, 30, (60, 2)), axis=0)
    path = tmp_path / "wiki-Vote.txt"
    text = "# a\n# b\n# Nodes: 30 Edges: 60\n# FromNodeId\tToNodeId\n"
    path.write_text(text + "".join(f"{a}\t{b}\n" for a, b in rng.permutation(pairs)))
    (theirs,) = snap_dataset.read_wiki([str(path)], "wiki")
    used = np.unique(pairs)  # PyG numbers the ids that occur
    found = ends(data.load(path).graph)
    found = np.searchsorted(used, found)
    np.testing.assert_array_equal(found, by_receiver(theirs.edge_index))
