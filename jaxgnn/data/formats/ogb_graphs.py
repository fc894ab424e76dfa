"""Reader of the Open Graph Benchmark's sets of graphs, in the layout of their archives."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxgnn.data.files.limits import Budget, DataError, reading
from jaxgnn.data.formats.ogb_raw import ARRAYS, Raw, raw_of, split_of_folder
from jaxgnn.data.sets.categories import count_categories
from jaxgnn.data.sets.csr import offsets_of
from jaxgnn.data.sets.dataset import Metric
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.provenance import metadata_of

OGB_GRAPH_FILES = (
    ("raw/edge.csv.gz", "raw/graph-label.csv.gz"),
    (ARRAYS, "raw/graph-label.npz"),
)
# Sets whose `add_inverse_edge` is False in OGB's master table, by the names of their archives.
_DIRECTED = ("code", "code2")
# Sets of molecules, whose columns are categories; OGB's AtomEncoder and BondEncoder embed them.
_MOLECULES = "mol"
# What the table scores a set by, where it is neither the accuracy nor, of molecules, the ROC AUC.
_METRICS: dict[str, Metric] = {
    **dict.fromkeys(("molpcba", "molmuv"), "average_precision"),
    **dict.fromkeys(("molesol", "molfreesolv", "mollipo"), "rmse"),
}


def read_ogb_graphs(
    path: str | os.PathLike[str], *, undirected: bool | None = None, max_bytes: int | None = None
) -> GraphSet:
    """A set of graphs of the OGB, unpacked: `raw/edge.csv.gz`, `raw/graph-label.csv.gz`, ...

    Or `raw/data.npz`, `raw/graph-label.npz`, the layout that OGB's `DatasetSaver` writes.

    Columns of the features of molecules (ogbg-mol...) are categories, where they are whole numbers
    from 0. One label column of whole numbers is a class; anything else are targets, float32, with
    NaN where one is missing. Edges with their reverses stand side by side, as OGB's reader has
    them.

    Args:
        path: the directory, such as `ogbg_molhiv/`; its name is the set's.
        undirected: add the reverse of each edge. By default as OGB's master table has it: not for
            ogbg-code and ogbg-code2, nor of `data.npz`, which has all edges.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    name = folder.resolve().name.replace("_", "-")
    budget = Budget(max_bytes)
    raw = raw_of(folder, budget)
    if undirected is None:
        directed = _short(name) in _DIRECTED
        undirected = not (directed or raw.both_directions)
    sizes = _counts(raw, "node", None)
    count = sizes.size
    edge_counts = _counts(raw, "edge", count)
    labels, num_classes = _labels(raw.labels("graph-label", count), count, budget)
    num_nodes, num_edges = int(sizes.sum()), int(edge_counts.sum())
    senders, receivers = raw.edges(int(sizes.max(initial=0)), num_edges)
    features = raw.table("node-feat", num_nodes)
    edge_features = raw.table("edge-feat", num_edges)
    categories = [None, None]
    with reading(folder):
        if _short(name).startswith(_MOLECULES):
            with budget.scope():
                values = [0 if rows is None else rows.size for rows in (features, edge_features)]
                budget.charge(8 * max(values), "the categories")
                categories = [count_categories(rows) for rows in (features, edge_features)]
        splits = {"published": split_of_folder(folder / "split", count, budget)}
        if undirected:
            width = 0 if edge_features is None else edge_features.shape[1]
            budget.charge(num_edges * (16 + 8 * width), "the reverse edges")
            ends = np.stack([senders, receivers], axis=1)
            senders, receivers = ends.reshape(-1), ends[:, ::-1].reshape(-1)
            edge_counts = 2 * edge_counts
            if edge_features is not None:
                edge_features = np.repeat(edge_features, 2, axis=0)
        return GraphSet(
            name=name,
            node_offsets=offsets_of(sizes),
            edge_offsets=offsets_of(edge_counts),
            senders=senders,
            receivers=receivers,
            features=features,
            edge_features=edge_features,
            node_categories=categories[0],
            edge_categories=categories[1],
            labels=labels,
            num_classes=num_classes,
            splits=splits,
            metadata=metadata_of(
                name, source=os.fspath(path), metric=_metric(name, labels, num_classes)
            ),
        )


def _short(name: str) -> str:
    return name.lower().removeprefix("ogbg-")


def _metric(name: str, labels: np.ndarray, num_classes: int | None) -> Metric:
    short = _short(name)
    if short in _METRICS:
        return _METRICS[short]
    if num_classes is not None:
        return "roc_auc" if short.startswith(_MOLECULES) and num_classes <= 2 else "accuracy"
    binary = ((labels == 0) | (labels == 1) | np.isnan(labels)).all()
    return "roc_auc" if binary else "rmse"


def _counts(raw: Raw, what: str, rows: int | None) -> np.ndarray:
    """A number of nodes or edges for each graph."""
    values = raw.counts(what, rows)
    with reading(raw.path_of(f"num-{what}-list")):
        if values.size and (values.min() < 0 or values.max() >= 1 << 31):
            raise DataError("expected numbers from 0 to 2**31 - 1")
        if values.sum(dtype=np.float64) >= 1 << 31:
            raise DataError("expected fewer than 2**31 in all")
    return values


def _labels(values: np.ndarray, count: int, budget: Budget) -> tuple[np.ndarray, int | None]:
    classes = (values >= 0) & (values < max(count, 2)) & (values == np.floor(values))
    if values.shape[1] > 1 or not classes.all():
        return values, None
    budget.charge(4 * count, "labels")
    labels = values[:, 0].astype(np.int32)
    return labels, int(labels.max(initial=0)) + 1
