"""The reader of Planetoid's files: Cora, a set with missing ids like Citeseer, and damage."""

import os
import pickle
import shutil

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import data
from jaxgnn.data import DataError, NodeDataset
from jaxgnn.data.formats.planetoid import PARTS
from tests.support.strategies import examples

KNOWN, TESTED, TRAINED, CLASSES, FEATURES = 530, 12, 6, 3, 8


@pytest.fixture
def citeseer(tmp_path):
    """A small set in which `test.index` skips ids and neighbor lists repeat themselves."""
    return write_planetoid(tmp_path)


def write_planetoid(folder, name="citeseer", **changes):
    rng = np.random.default_rng(0)

    def rows(n):
        features = scipy.sparse.csr_matrix((rng.random((n, FEATURES)) > 0.6).astype(np.float32))
        return features, np.eye(CLASSES, dtype=np.int32)[rng.integers(0, CLASSES, n)]

    allx, ally = rows(KNOWN)
    tx, ty = rows(TESTED)
    skipped = np.array([1, 2, 9])
    tested = np.delete(np.arange(KNOWN, KNOWN + TESTED + len(skipped)), skipped)
    n = int(tested.max()) + 1
    lists = {i: [] for i in range(n)}
    for sender, receiver in rng.integers(0, n, (2000, 2)):
        if sender - KNOWN in skipped or receiver - KNOWN in skipped:
            continue
        lists[int(sender)] += [int(receiver)]
        lists[int(receiver)] += [int(sender), int(sender)]
    lists[4] += [4, 4]
    parts = dict(
        x=allx[:TRAINED], y=ally[:TRAINED], tx=tx, ty=ty, allx=allx, ally=ally, graph=lists
    )
    parts["test.index"] = rng.permutation(tested)
    parts.update(changes)
    for part, value in parts.items():
        path = folder / f"ind.{name}.{part}"
        if part == "test.index":
            path.write_text("".join(f"{i}\n" for i in value))
        elif value is not None:
            path.write_bytes(pickle.dumps(value, 2))
    return folder


def pyg_planetoid(folder, name):
    pytest.importorskip("torch_geometric")
    from torch_geometric.io import read_planetoid_data

    return read_planetoid_data(str(folder), name)


def assert_same_as_pyg(dataset, theirs):
    np.testing.assert_array_equal(dataset.features, theirs.x.numpy())
    np.testing.assert_array_equal(dataset.labels, theirs.y.numpy())
    # PyG's edges are sorted by target, then source, as ours.
    np.testing.assert_array_equal(np.asarray(dataset.graph.senders), theirs.edge_index[0].numpy())
    np.testing.assert_array_equal(np.asarray(dataset.graph.receivers), theirs.edge_index[1].numpy())
    split = dataset.split()
    np.testing.assert_array_equal(split.train, theirs.train_mask.numpy())
    np.testing.assert_array_equal(split.val, theirs.val_mask.numpy())
    np.testing.assert_array_equal(split.test, theirs.test_mask.numpy())


def test_cora(data_directory):
    dataset = data.load(data_directory / "cora")
    assert dataset.name == "cora" and dataset.metric == "accuracy"
    assert dataset.features.shape == (2708, 1433) and dataset.num_classes == 7
    statistics = dataset.statistics()
    assert statistics["edges"] == 10_556 and statistics["symmetric"]
    assert statistics["self-loops"] == statistics["isolated nodes"] == 0
    assert statistics["maximum degree"] == 168
    assert dataset.split("public").sizes == (140, 500, 1000)
    assert np.bincount(dataset.labels[dataset.split().train]).tolist() == [20] * 7
    assert "ICML 2016" in dataset.metadata.citation


def test_cora_is_that_of_pyg(data_directory):
    theirs = pyg_planetoid(data_directory / "cora", "cora")
    dataset = data.load(data_directory / "cora" / "ind.cora.test.index")
    assert_same_as_pyg(dataset, theirs)

    from torch_geometric.transforms import NormalizeFeatures

    normalized = data.load(data_directory / "cora", normalize_features=True)
    np.testing.assert_allclose(
        normalized.features, NormalizeFeatures()(theirs).x.numpy(), rtol=1e-6, atol=0
    )


def test_skipped_ids_are_those_of_pyg(citeseer):
    assert_same_as_pyg(data.load(citeseer), pyg_planetoid(citeseer, "citeseer"))


def test_skipped_ids(citeseer):
    dataset = data.load(citeseer)
    assert dataset.num_nodes == KNOWN + TESTED + 3
    skipped = KNOWN + np.array([1, 2, 9])
    assert not dataset.features[skipped].any() and not dataset.labels[skipped].any()
    split = dataset.split()
    assert not (split.train | split.val | split.test)[skipped].any()
    assert split.sizes == (TRAINED, 500, TESTED)
    assert dataset.statistics()["self-loops"] == 0 and dataset.statistics()["symmetric"]


def test_two_sets_in_one_directory(citeseer):
    write_planetoid(citeseer, "other")
    with pytest.raises(DataError, match=r"expected one set .* got citeseer, other"):
        data.load(citeseer)
    assert data.load(citeseer, name="other").name == "other"
    assert data.load(citeseer / "ind.other.tx").name == "other"


def test_missing_files(citeseer):
    os.remove(citeseer / "ind.citeseer.ty")
    os.remove(citeseer / "ind.citeseer.test.index")
    with pytest.raises(DataError, match=r"no ind\.citeseer\.ty, ind\.citeseer\.test\.index"):
        data.load(citeseer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tx": scipy.sparse.csr_matrix((3, FEATURES), dtype=np.float32)}, "tx, ty: .* 3 and 12"),
        ({"x": scipy.sparse.csr_matrix((TRAINED, 9), dtype=np.float32)}, "columns, got 9, 8, 8"),
        ({"x": np.full((TRAINED, FEATURES), np.nan)}, r"ind\.citeseer\.x: .*finite"),
        ({"x": np.full((TRAINED, FEATURES), 1e300)}, r"ind\.citeseer\.x: .*finite"),
        ({"x": np.full((TRAINED, FEATURES), "a")}, r"ind\.citeseer\.x: "),
        ({"ally": np.full((KNOWN, CLASSES), 1)}, "one-hot"),
        ({"ally": np.full((KNOWN, CLASSES), 0.5)}, "one-hot"),
        ({"graph": [1, 2]}, r"ind\.citeseer\.graph: expected a pickled dict"),
        ({"graph": {0: 1}}, "graph: expected a list of neighbors, got int"),
        ({"graph": {0: ["a"]}}, "graph: expected an integer, got str"),
        ({"graph": {0: [2**70]}}, r"graph: expected integers of at most 64 bits"),
        ({"graph": {0: [545]}}, "node ids from 0 to 544"),
        ({"graph": {-1: [0]}}, "node ids from 0 to 544"),
        ({"graph": os.system}, r"ind\.citeseer\.graph: a pickle that names"),
        (
            {"test.index": ["a"] * TESTED},
            r"citeseer\.test\.index: line 1: expected 64-bit integers, got 'a'",
        ),
        ({"test.index": [KNOWN] * TESTED}, "distinct ids from 530 on"),
        ({"test.index": range(TESTED)}, "distinct ids from 530 on, got 0 to 11"),
        ({"test.index": range(KNOWN, KNOWN + 3)}, "test.index: expected 12 ids, got 3"),
        ({"test.index": [*range(KNOWN, KNOWN + 11), 10**12]}, "more than the limit"),
        ({"test.index": [*range(KNOWN, KNOWN + 11), 10**30]}, "line 12: expected 64-bit integers"),
        ({"test.index": []}, "test.index: expected 12 ids, got 0"),
    ],
)
def test_refuses(tmp_path, changes, message):
    with pytest.raises(DataError, match=message) as refusal:
        data.load(write_planetoid(tmp_path, **changes))
    assert str(tmp_path) in str(refusal.value)


def test_too_few_validation_nodes(tmp_path):
    folder = write_planetoid(
        tmp_path,
        x=scipy.sparse.csr_matrix((31, FEATURES), dtype=np.float32),
        y=np.eye(CLASSES)[np.zeros(31, int)],
    )
    with pytest.raises(DataError, match="31 training and 500 validation nodes, got 530 rows"):
        data.load(folder)


def test_wide_matrix_is_refused(tmp_path):
    wide = {
        part: scipy.sparse.csr_matrix((rows, 2**31 - 1), dtype=np.float32)
        for part, rows in (("x", TRAINED), ("tx", TESTED), ("allx", KNOWN))
    }
    with pytest.raises(DataError, match="more than the limit of 268,435,456"):
        data.load(write_planetoid(tmp_path, **wide))


def test_max_bytes(data_directory):
    with pytest.raises(DataError, match=r"ind\.cora\..*more than the limit of 1,000,000"):
        data.load(data_directory / "cora", max_bytes=1_000_000)


@pytest.fixture(scope="module")
def damaged_cora(data_directory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    for part in PARTS:
        shutil.copyfile(data_directory / "cora" / f"ind.cora.{part}", folder / f"ind.cora.{part}")
    return folder


@examples(60)
@given(st.data())
def test_damage(data_directory, damaged_cora, draw):
    part = draw.draw(st.sampled_from(PARTS))
    path = damaged_cora / f"ind.cora.{part}"
    original = (data_directory / "cora" / path.name).read_bytes()
    damaged = bytearray(original)
    # Headers are where a flipped byte does most: half of the flips are at either end.
    size = len(damaged)
    place = st.one_of(st.integers(0, 300), st.integers(-80, -1), st.integers(0, size - 1))
    for _ in range(draw.draw(st.integers(0, 4))):
        damaged[draw.draw(place)] = draw.draw(st.integers(0, 255))
    if draw.draw(st.booleans()):
        del damaged[draw.draw(st.integers(0, size - 1)) :]
    os.chmod(path, 0o644)
    path.write_bytes(damaged)
    try:
        dataset = data.load(damaged_cora)
    except DataError as error:
        assert "ind.cora." in str(error)
    else:
        assert isinstance(dataset, NodeDataset)
    finally:
        path.write_bytes(original)
