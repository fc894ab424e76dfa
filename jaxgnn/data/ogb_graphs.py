"""Reader of the Open Graph Benchmark's sets of graphs, in the layout of their archives."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxgnn.data.checks import check_features
from jaxgnn.data.graph_set import GraphSet
from jaxgnn.data.limits import Budget, DataError, reading
from jaxgnn.data.ogb import edges_of_file, split_of_folder, table_of_file
from jaxgnn.data.provenance import metadata_of

OGB_GRAPH_FILES = ("raw/edge.csv.gz", "raw/graph-label.csv.gz")
_MOST_GRAPHS = 1 << 26
# Sets whose `add_inverse_edge` is False in OGB's master table, by the names of their archives.
_DIRECTED = ("code", "code2")


def read_ogb_graphs(
    path: str | os.PathLike[str], *, undirected: bool | None = None, max_bytes: int | None = None
) -> GraphSet:
    """A set of graphs of the OGB, unpacked: `raw/edge.csv.gz`, `raw/graph-label.csv.gz`, ...

    One label column of whole numbers is a class; anything else are targets, float32, with NaN where
    one is missing. Edges with their reverses stand side by side, as OGB's reader has them.

    Args:
        path: the directory, such as `ogbg_molhiv/`; its name is the set's.
        undirected: add the reverse of each edge. By default as OGB's master table has it: not for
            ogbg-code and ogbg-code2.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    name = folder.resolve().name.replace("_", "-")
    if undirected is None:
        undirected = name.lower().removeprefix("ogbg-") not in _DIRECTED
    raw, budget = folder / "raw", Budget(max_bytes)
    sizes = _counts(raw / "num-node-list.csv.gz", None, budget)
    count = sizes.size
    edge_counts = _counts(raw / "num-edge-list.csv.gz", count, budget)
    labels, num_classes = _labels(raw / "graph-label.csv.gz", count, budget)
    num_nodes, num_edges = int(sizes.sum()), int(edge_counts.sum())
    senders, receivers = edges_of_file(
        raw / "edge.csv.gz", int(sizes.max(initial=0)), num_edges, budget
    )
    features = _optional(raw / "node-feat.csv.gz", num_nodes, budget)
    edge_features = _optional(raw / "edge-feat.csv.gz", num_edges, budget)
    with reading(folder):
        splits = {"published": split_of_folder(folder / "split", count, budget)}
        if undirected:
            width = 0 if edge_features is None else edge_features.shape[1]
            budget.charge(num_edges * (16 + 8 * width), "the reverse edges")
            ends = np.stack([senders, receivers], axis=1)
            senders, receivers = ends.reshape(-1), ends[:, ::-1].reshape(-1)
            edge_counts = 2 * edge_counts
            if edge_features is not None:
                edge_features = np.repeat(edge_features, 2, axis=0)
        several = num_classes is None
        return GraphSet(
            name=name,
            node_offsets=_offsets(sizes),
            edge_offsets=_offsets(edge_counts),
            senders=senders,
            receivers=receivers,
            features=features,
            edge_features=edge_features,
            labels=labels,
            num_classes=num_classes,
            splits=splits,
            metadata=metadata_of(
                name, source=os.fspath(path), metric="roc_auc" if several else "accuracy"
            ),
        )


def _counts(path: pathlib.Path, rows: int | None, budget: Budget) -> np.ndarray:
    """A number of nodes or edges for each graph."""
    values = table_of_file(path, np.int64, rows, budget, columns=1, most=_MOST_GRAPHS)[:, 0]
    with reading(path):
        if values.size and (values.min() < 0 or values.max() >= 1 << 31):
            raise DataError("expected numbers from 0 to 2**31 - 1")
        if values.sum(dtype=np.float64) >= 1 << 31:
            raise DataError("expected fewer than 2**31 in all")
    return values


def _labels(path: pathlib.Path, count: int, budget: Budget) -> tuple[np.ndarray, int | None]:
    values = table_of_file(path, np.float32, count, budget, blanks=True)
    classes = (values >= 0) & (values < max(count, 2)) & (values == np.floor(values))
    if values.shape[1] > 1 or not classes.all():
        return values, None
    budget.charge(4 * count, "labels")
    labels = values[:, 0].astype(np.int32)
    return labels, int(labels.max(initial=0)) + 1


def _optional(path: pathlib.Path, rows: int, budget: Budget) -> np.ndarray | None:
    if not path.exists():
        return None
    values = table_of_file(path, np.float32, rows, budget)
    with reading(path):
        return check_features(values, path.name.split(".")[0], budget)


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
