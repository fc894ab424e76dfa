"""The readers of `.npz` files: the real sets, PyG's reading of them, damage and malice."""

import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import data
from jaxgnn.data import DataError
from jaxgnn.data.files.archive import open_npz
from jaxgnn.data.files.limits import Budget

N = 220


def shchur_arrays(**changes):
    """A small directed set with self-loops, duplicates and an explicit zero; two classes."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, N, (2, 900))
    senders[:5] = receivers[:5]
    order = np.argsort(senders, kind="stable")
    values = np.ones(900, np.float32)
    values[17] = 0
    attributes = scipy.sparse.random_array((N, 6), density=0.5, format="csr", rng=rng)
    arrays = dict(
        adj_data=values,
        adj_indices=receivers[order],
        adj_indptr=np.searchsorted(senders[order], np.arange(N + 1)),
        adj_shape=np.array([N, N]),
        attr_data=attributes.data.astype(np.float32),
        attr_indices=attributes.indices,
        attr_indptr=attributes.indptr,
        attr_shape=np.array([N, 6]),
        labels=np.arange(N) % 2,
    )
    return {name: value for name, value in {**arrays, **changes}.items() if value is not None}


def heterophilous_arrays(**changes):
    rng = np.random.default_rng(0)
    part = rng.integers(0, 3, (2, N))
    arrays = dict(
        node_features=rng.standard_normal((N, 4), np.float32),
        node_labels=np.arange(N) % 3,
        edges=rng.integers(0, N, (500, 2)),
        train_masks=part == 0,
        val_masks=part == 1,
        test_masks=part == 2,
    )
    return {name: value for name, value in {**arrays, **changes}.items() if value is not None}


def write(path, arrays, save=np.savez_compressed):
    save(path, **arrays)
    return path


def pyg_npz(path):
    pytest.importorskip("torch_geometric")
    from torch_geometric.io import read_npz as read

    return read(str(path))


def assert_same_as_pyg(dataset, theirs):
    np.testing.assert_array_equal(dataset.features, theirs.x.numpy())
    np.testing.assert_array_equal(dataset.labels, theirs.y.numpy())
    ours = np.stack([np.asarray(dataset.graph.receivers), np.asarray(dataset.graph.senders)])
    # PyG sorts by source; the graph is symmetric.
    np.testing.assert_array_equal(ours, theirs.edge_index.numpy())


@pytest.mark.parametrize(
    ("folder", "nodes", "edges", "features", "classes", "isolated"),
    [
        ("amazon_photo", 7650, 2 * 119_081, 745, 8, 115),
        ("dblp", 17_716, 2 * 52_867, 1639, 4, 0),
    ],
)
def test_shchur_sets(data_directory, folder, nodes, edges, features, classes, isolated):
    dataset = data.load(data_directory / folder)
    assert dataset.features.shape == (nodes, features) and dataset.num_classes == classes
    statistics = dataset.statistics()
    assert (statistics["edges"], statistics["isolated nodes"]) == (edges, isolated)
    assert statistics["symmetric"] and statistics["self-loops"] == 0
    assert len(dataset.splits) == 10
    rest = nodes - 50 * classes
    assert dataset.split("seed3").sizes == (20 * classes, 30 * classes, rest)
    assert_same_as_pyg(dataset, pyg_npz(dataset.metadata.source))


def test_shchur_options(data_directory):
    path = data_directory / "dblp" / "dblp.npz"
    dataset = data.load(path, binarize=False, seed=5, num_splits=1, labels_per_class=2)
    assert list(dataset.splits) == ["seed5"] and dataset.split().sizes[:2] == (8, 120)
    assert 0 < dataset.features[dataset.features > 0].min() < 0.2
    directed = data.load(data_directory / "amazon_photo", undirected=False)
    assert directed.graph.num_edges == 143_662
    assert not directed.statistics()["symmetric"]


def test_minesweeper(data_directory):
    dataset = data.load(data_directory / "minesweeper")
    assert dataset.metric == "roc_auc" and dataset.num_classes == 2
    assert dataset.features.shape == (10_000, 7) and len(dataset.splits) == 10
    assert {split.sizes for split in dataset.splits.values()} == {(5000, 2500, 2500)}
    statistics = dataset.statistics()
    assert statistics["edges"] == 2 * 39_402 and statistics["symmetric"]
    assert statistics["maximum degree"] == 8


def test_small_sets(tmp_path):
    path = write(tmp_path / "s.npz", shchur_arrays())
    dataset = data.load(path)
    assert dataset.name == "s" and dataset.statistics()["self-loops"] == 0
    assert_same_as_pyg(dataset, pyg_npz(path))
    dense = shchur_arrays(attr_matrix=np.ones((N, 3)), attr_data=None)
    assert data.load(write(tmp_path / "d.npz", dense)).num_features == 3
    other = data.load(write(tmp_path / "h.npz", heterophilous_arrays(), np.savez))
    assert other.metric == "accuracy" and list(other.splits) == ["split0", "split1"]


def test_fields_that_are_not_read_may_hold_anything(tmp_path):
    arrays = shchur_arrays(class_names=np.array([{}, None], object))
    assert data.load(write(tmp_path / "a.npz", arrays)).num_nodes == N


class Bomb:
    def __reduce__(self):
        return (print, ("this must not be printed",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([Bomb()] * N, object)}, "labels: holds pickled Python objects"),
        ({"labels": np.zeros(N)}, "labels: expected integers"),
        ({"labels": np.zeros((N, 2), int)}, "labels: expected integers with 1 axes"),
        ({"labels": np.zeros(N, "i4,i4")}, "labels: expected numbers"),
        ({"labels": np.zeros(N, "M8[s]")}, "labels: expected numbers"),
        ({"labels": np.zeros(3, int)}, f"labels: expected {N} entries"),
        ({"labels": np.full(N, -1)}, "labels: expected classes from 0"),
        ({"labels": np.full(N, 10**15)}, "labels: expected classes from 0, fewer than nodes"),
        ({"labels": np.arange(N)}, "class 0: expected more than 20"),
        ({"adj_shape": np.array([N, N + 1])}, "adj: expected a square"),
        ({"adj_shape": np.array([N])}, "adj_shape: expected two"),
        ({"adj_shape": np.array([2**40, 2**40])}, "adj: expected a shape"),
        ({"adj_shape": np.array([N + 1, N + 1])}, "adj indptr: expected 222 entries"),
        ({"adj_indptr": np.arange(N, -1, -1)}, "adj indptr: expected an ascent"),
        ({"adj_indices": np.full(900, N)}, "adj indices: expected 0 to 219"),
        ({"adj_indices": np.full(900, -1)}, "adj indices: expected 0 to 219"),
        ({"adj_data": np.zeros(9)}, "adj: expected as many values"),
        ({"attr_data": np.full(660, np.nan)}, "attr: expected finite"),
        ({"attr_data": np.full(660, 1e39)}, "attr: expected finite"),
        ({"attr_shape": np.array([N, 2**31 - 1])}, "attr .* more than the limit"),
        ({"attr_shape": np.array([N, 3])}, "attr indices: expected 0 to 2"),
        ({"labels": None}, "expected the arrays of shchur's"),
    ],
)
def test_shchur_refuses(tmp_path, capfd, changes, message):
    path = write(tmp_path / "bad.npz", shchur_arrays(**changes))
    with pytest.raises(DataError, match=message) as refusal:
        data.load(path)
    assert str(refusal.value).startswith(str(path))
    assert not capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_features": np.full((N, 4), np.inf)}, "node_features: expected finite"),
        ({"node_features": np.zeros(N)}, "node_features: expected a matrix"),
        ({"node_features": np.array([[Bomb()]] * N)}, "node_features: holds pickled"),
        ({"edges": np.zeros((3, 3), int)}, "edges: expected the shape"),
        ({"edges": np.full((3, 2), N)}, "edges: expected ids below 220, got 220"),
        ({"edges": np.full((3, 2), -1)}, "edges: expected ids below 220, got -1"),
        ({"edges": np.zeros((3, 2))}, "edges: expected integers"),
        ({"train_masks": np.ones((2, N), int)}, r"masks: expected bool\[splits, 220\], got int64"),
        ({"val_masks": np.ones((1, N), bool)}, r"masks: expected bool\[splits, 220\]"),
        ({"val_masks": np.ones((2, N), bool)}, "expected disjoint masks"),
        ({"test_masks": None}, "of a heterophilous set"),
    ],
)
def test_heterophilous_refuses(tmp_path, changes, message):
    path = write(tmp_path / "bad.npz", heterophilous_arrays(**changes))
    with pytest.raises(DataError, match=message) as refusal:
        data.load(path)
    assert str(refusal.value).startswith(str(path))


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def write_entries(path, method=zipfile.ZIP_DEFLATED, **entries):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return path


def read_array(path, key="a", max_bytes=None):
    with open_npz(path, Budget(max_bytes)) as archive:
        return archive.read(key)


def refused(path, message, max_bytes=None):
    """Whether reading the array `a` fails with that message, without much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            read_array(path, max_bytes=max_bytes)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_zip_bomb(tmp_path):
    # 200 MB of zeros in 200 kB.
    path = write_entries(tmp_path / "a.npz", a=claim((25_000_000,), size=200_000_000))
    refused(path, "a would take 200,000,000 bytes, more than .* 100,000,000", max_bytes=10**8)


def test_zip_that_lies_about_its_size(tmp_path):
    path = write_entries(tmp_path / "a.npz", a=bytes(200_000_000))
    content = bytearray(path.read_bytes())
    # The uncompressed size, in the local header and in the central directory.
    content[22:26] = struct.pack("<I", 1000)
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 1000)
    path.write_bytes(content)
    refused(path, "a.npz: ")


def claim(shape, descr="<f8", size=16) -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(size)


@pytest.mark.parametrize(
    "content",
    [
        claim((2**40,)),
        claim((2**62, 4)),
        claim((-2,)),
        claim((-1, -2)),
        claim((3,)),
        claim(2),
        claim((2.0,)),
        claim((2,), "|O"),
        claim((2,), "<c8"),
        claim((0, 2**60), "|V0", 0),
        claim((2**60,), "<U0", 0),
        claim((1,), "(2**40,)f8"),
        claim((2,), "exec('1')"),
        claim((2,))[:100],
        claim((2,))[:7],
        b"",
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
        b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10000,
        b"\x80\x02cos\nsystem\nU\x04true\x85R.",
        pickle.dumps(Bomb()),
    ],
)
def test_npy_that_lies(tmp_path, capfd, content):
    refused(write_entries(tmp_path / "a.npz", a=content), "a.npz: ")
    assert not capfd.readouterr().out


def test_npy_that_does_not_lie(tmp_path):
    for array in (np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3), ">f4"))):
        path = write_entries(tmp_path / "a.npz", a=npy(array))
        np.testing.assert_array_equal(read_array(path), array)
    path = write_entries(tmp_path / "a.npz", a=claim((2,)))
    assert read_array(path).tolist() == [0, 0]


def test_other_compression_is_refused(tmp_path):
    path = write_entries(tmp_path / "a.npz", zipfile.ZIP_LZMA, a=npy(np.arange(3)))
    refused(path, "stored or deflated")
    refused(write_entries(tmp_path / "b.npz", b=b""), "no array 'a'")


@given(st.data())
def test_damage_of_the_archive(tmp_path, draw):
    save = draw.draw(st.sampled_from((np.savez, np.savez_compressed)))
    path = write(tmp_path / "a.npz", shchur_arrays(), save)
    content = bytearray(path.read_bytes())
    place = st.one_of(st.integers(-1200, -1), st.integers(0, len(content) - 1))
    for _ in range(draw.draw(st.integers(0, 3))):
        content[draw.draw(place)] = draw.draw(st.integers(0, 255))
    if draw.draw(st.booleans()):
        del content[draw.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    check_load(path)


@given(st.data())
def test_damage_of_the_arrays(tmp_path, draw):
    # With checksums that are right.
    arrays = draw.draw(st.sampled_from((shchur_arrays(), heterophilous_arrays())))
    entries = {name: bytearray(npy(array)) for name, array in arrays.items()}
    content = entries[draw.draw(st.sampled_from(sorted(entries)))]
    place = st.one_of(st.integers(0, 127), st.integers(0, len(content) - 1))
    for _ in range(draw.draw(st.integers(1, 3))):
        content[draw.draw(place)] = draw.draw(st.integers(0, 255))
    if draw.draw(st.booleans()):
        del content[draw.draw(st.integers(0, len(content) - 1)) :]
    check_load(write_entries(tmp_path / "a.npz", **{k: bytes(v) for k, v in entries.items()}))


def check_load(path):
    try:
        dataset = data.load(path)
    except DataError as error:
        assert str(error).startswith(str(path))
    else:
        assert dataset.num_nodes == N
