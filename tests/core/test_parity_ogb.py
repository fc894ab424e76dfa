"""`jaxgnn.metrics`, and the readers of its files, against OGB's own package."""

import sys

import numpy as np
import pytest

from jaxgnn import data, metrics
from tests.support.large_sets import write_ogb_graphs

torch = pytest.importorskip("torch")


@pytest.fixture
def ogb(monkeypatch):
    """A module of the package, which shall not look on the network for a newer one."""
    monkeypatch.setitem(sys.modules, "outdated", None)
    return lambda name: pytest.importorskip(f"ogb.{name}")


@pytest.fixture
def evaluator(ogb):
    return lambda kind, name: ogb(f"{kind}proppred").Evaluator(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ogbg-molhiv", "roc_auc"),
        ("ogbg-moltox21", "roc_auc"),
        ("ogbg-molpcba", "average_precision"),
        ("ogbg-molesol", "rmse"),
        ("ogbg-ppa", "accuracy"),
    ],
)
def test_graphs(evaluator, name, ours):
    found = evaluator("graph", name)
    rng = np.random.default_rng(0)
    tasks = found.num_tasks
    scores = rng.integers(0, 9, (60, tasks)).astype(np.float32)  # with ties
    labels = rng.integers(0, 2, (60, tasks)).astype(np.float32)
    if ours in ("roc_auc", "average_precision") and tasks > 1:
        labels[rng.random(labels.shape) < 0.3] = np.nan
        labels[:, 0] = np.nan  # a task without a score
        labels[:, 1] = 1
    elif ours == "rmse":
        labels = rng.normal(size=(60, tasks)).astype(np.float32)
    else:
        scores = scores if ours == "roc_auc" else rng.integers(0, 3, (60, tasks))
    expected = found.eval({"y_true": labels, "y_pred": scores})
    (value,) = expected.values()
    if ours == "accuracy":
        assert metrics.accuracy(labels[:, 0].astype(int), scores[:, 0]) == pytest.approx(value)
    else:
        assert getattr(metrics, ours)(labels, scores) == pytest.approx(value, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_nodes(evaluator):
    rng = np.random.default_rng(1)
    labels, found = rng.integers(0, 5, (2, 80, 1))
    value = evaluator("node", "ogbn-arxiv").eval({"y_true": labels, "y_pred": found})["acc"]
    assert metrics.accuracy(labels[:, 0], found[:, 0]) == pytest.approx(value)
    labels = rng.integers(0, 2, (80, 112))
    scores = rng.integers(0, 9, (80, 112)).astype(np.float32)
    value = evaluator("node", "ogbn-proteins").eval({"y_true": labels, "y_pred": scores})
    expected = metrics.roc_auc(labels.astype(np.float32), scores)
    assert expected == pytest.approx(value["rocauc"], rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_links(evaluator):
    rng = np.random.default_rng(2)
    positives = rng.integers(0, 9, 40).astype(np.float32)
    negatives = rng.integers(0, 9, 300).astype(np.float32)
    for name, k in (("ogbl-ddi", 20), ("ogbl-collab", 50), ("ogbl-ppa", 100)):
        for shared in (negatives, negatives[:10]):
            value = evaluator("link", name).eval({"y_pred_pos": positives, "y_pred_neg": shared})
            assert metrics.hits_at_k(positives, shared, k) == pytest.approx(value[f"hits@{k}"])
    each = rng.integers(0, 9, (40, 30)).astype(np.float32)
    tensors = {"y_pred_pos": torch.tensor(positives), "y_pred_neg": torch.tensor(each)}
    value = evaluator("link", "ogbl-citation2").eval(tensors)
    assert metrics.mrr(positives, each) == pytest.approx(float(value["mrr_list"].mean()), rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_graphs_are_read_as_by_ogb(ogb, tmp_path):
    folder = write_ogb_graphs(tmp_path / "ogbg_molhiv")
    theirs = ogb("io.read_graph_raw").read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=True)
    ours = data.load(folder)
    assert len(theirs) == len(ours)
    counts = [graph["num_nodes"] for graph in theirs]
    np.testing.assert_array_equal(np.diff(ours.node_offsets), counts)
    ends = np.concatenate([graph["edge_index"] for graph in theirs], axis=1)
    np.testing.assert_array_equal(np.stack([ours.senders, ours.receivers]), ends)
    for name, key in (("features", "node_feat"), ("edge_features", "edge_feat")):
        rows = np.concatenate([graph[key] for graph in theirs])
        np.testing.assert_array_equal(getattr(ours, name), rows)
