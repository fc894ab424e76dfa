"""Reader of the Open Graph Benchmark's node sets, in the layouts of their archives."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxgnn.data.files.checks import charge_graph, check_features, check_labels
from jaxgnn.data.files.limits import Budget, DataError, reading
from jaxgnn.data.formats.ogb_raw import Raw, raw_of, split_of_folder
from jaxgnn.data.sets.dataset import NodeDataset
from jaxgnn.data.sets.provenance import metadata_of
from jaxgnn.graph import Graph

# Sets whose `add_inverse_edge` is False in OGB's master table, by the names of their archives.
_DIRECTED = ("arxiv", "papers100m", "papers100m-bin")


def read_ogb(
    path: str | os.PathLike[str], *, undirected: bool | None = None, max_bytes: int | None = None
) -> NodeDataset:
    """A node set of the OGB, unpacked: `raw/edge.csv.gz`, ..., `split/NAME/train.csv.gz`, ...

    The other layout, of ogbn-papers100M and of sets that OGB's `DatasetSaver` writes, has
    `raw/data.npz` and `raw/node-label.npz` in the place of text. Labels that are NaN there are
    unknown: such nodes have class 0 and are in no mask.

    Nodes without features (ogbn-proteins) get the sums of the features of the edges that end at
    them, as in OGB's own example. One label column is a class; more are binary tasks, scored by
    ROC AUC.

    Args:
        path: the directory, such as `ogbn_products/`; its name is the set's.
        undirected: add the reverse of each edge. By default as OGB's master table has it: not for
            ogbn-arxiv and ogbn-papers100M, which are directed; the text files of the undirected
            sets, products and proteins, list each edge once. `data.npz` has all edges.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB (ogbn-papers100M takes more).

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    name = folder.resolve().name.replace("_", "-")
    budget = Budget(max_bytes)
    raw = raw_of(folder, budget)
    if undirected is None:
        directed = name.lower().removeprefix("ogbn-") in _DIRECTED
        undirected = not (directed or raw.both_directions)
    n, num_edges = (_count(raw, what) for what in ("node", "edge"))
    # Before anything has a row for each node: that there are as many.
    labels, known = _labels(raw, n, budget)
    senders, receivers = raw.edges(n, num_edges)
    features = raw.table("node-feat", n)
    if features is None:
        with budget.scope():
            values = raw.table("edge-feat", num_edges)
            if values is None:
                raise DataError(
                    f"{raw.path_of('node-feat')}: expected features of the nodes or, in "
                    f"{raw.path_of('edge-feat').name}, of the edges, got neither"
                )
            features = _sums_at_ends(senders, receivers, values, n, undirected, budget)
            del values
        budget.charge(features.nbytes, "features")
    several = labels.ndim == 2
    with reading(folder):
        split = split_of_folder(folder / "split", n, budget)
        if known is not None and ((split.train | split.val | split.test) & ~known).any():
            raise DataError("split: expected labels of its nodes, got some that are NaN")
        charge_graph(budget, n, num_edges, undirected=undirected)
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(senders, receivers, num_nodes=n, undirected=undirected),
            features=check_features(features, "features", budget),
            labels=labels,
            num_classes=labels.shape[1] if several else int(labels.max(initial=0)) + 1,
            splits={"published": split},
            metadata=metadata_of(
                name, source=os.fspath(path), metric="roc_auc" if several else "accuracy"
            ),
        )


def _count(raw: Raw, what: str) -> int:
    """The number of nodes or edges of the one graph."""
    (count,) = raw.counts(what, 1).tolist()
    if not 0 <= count < 1 << 31:
        path = raw.path_of(f"num-{what}-list")
        raise DataError(f"{path}: expected a number from 0 to 2**31 - 1, got {count}")
    return count


def _labels(raw: Raw, n: int, budget: Budget) -> tuple[np.ndarray, np.ndarray | None]:
    """A class a node, int32, or several binary labels, float32; and which of the classes are known,
    None where all are."""
    labels, known = raw.labels("node-label", n), None
    with reading(raw.path_of("node-label")):
        if labels.shape[1] > 1:
            return labels, None
        budget.charge(10 * n, "labels")
        values = labels[:, 0]
        if raw.unknown_labels:
            known = ~np.isnan(values)
            values[~known] = 0
        classes = values.astype(np.int64)
        if (classes != values).any():
            raise DataError("expected a class for each node, as an integer")
        return check_labels(classes, n, "labels", budget), known


def _sums_at_ends(
    senders: np.ndarray,
    receivers: np.ndarray,
    values: np.ndarray,
    n: int,
    undirected: bool,
    budget: Budget,
) -> np.ndarray:
    """For each node the sum of the features of the edges that end at it."""
    # A column's weights and ids in the types of bincount, two sums in double.
    budget.charge(4 * n * values.shape[1] + 16 * len(values) + 24 * n, "the sums at the nodes")
    sums = np.empty((n, values.shape[1]), np.float32)
    for column, weights in enumerate(values.T):
        total = np.bincount(receivers, weights, n)
        if undirected:
            total += np.bincount(senders, weights, n)
        sums[:, column] = total
    return sums
