"""Multi-label node sets: a graph, and for each label the nodes that carry it."""

from __future__ import annotations

import os

import numpy as np
import scipy.sparse
from jaxtyping import Float

from jaxgnn.data.files.checks import charge_splits
from jaxgnn.data.files.limits import Budget, DataError, quote, reading, stem_of
from jaxgnn.data.files.lines import as_count, text_lines
from jaxgnn.data.formats.edges import read_edges
from jaxgnn.data.sets.dataset import Metadata, NodeDataset, Split
from jaxgnn.data.sets.splits import fraction_splits
from jaxgnn.graph import Graph

_FEATURES = "features: log(1 + in-degree), for the source has none"


def read_label_sets(
    graph_path: str | os.PathLike[str],
    labels_path: str | os.PathLike[str],
    *,
    undirected: bool = True,
    train: float = 0.5,
    val: float = 0.25,
    seed: int = 0,
    num_splits: int = 10,
    max_bytes: int | None = None,
) -> NodeDataset:
    """A graph as an edge list, and a file of label sets: line i lists the nodes with label i.

    Nodes may have several labels; those without any are in no mask. The one feature is
    log(1 + in-degree), for such sets have none.

    Args:
        graph_path: an edge list, as `read_edges` reads it. Ids that are names are looked up.
        labels_path: the label sets (`.cmty`), ids split by blanks, gzipped or not.
        undirected: add the reverse of each edge.
        train, val: shares of the nodes with labels; the rest is tested.
        seed: the splits are drawn with the seeds `seed`, `seed + 1`, ...
        num_splits: how many splits.
        max_bytes: as of `read_planetoid`, for each of the two files.

    Raises:
        DataError: a file is damaged, or a label set names a node that the graph does not have.
    """
    whole = read_edges(graph_path, undirected=undirected, max_bytes=max_bytes)
    budget = Budget(max_bytes)
    n = whole.num_nodes
    index = None
    with reading(labels_path):
        if whole.node_names is not None:
            budget.charge(100 * n, "the names of the nodes")
            index = {name: i for i, name in enumerate(whole.node_names)}
        nodes, sizes = [], []
        for number, line in text_lines(labels_path, budget):
            if line.startswith(("#", "%")):
                continue
            tokens = line.split()
            budget.charge(12 * len(tokens) + 400, "the label sets")
            ids = [as_count(token) if index is None else index.get(token) for token in tokens]
            for token, node in zip(tokens, ids, strict=True):
                if node is None or node >= n:
                    raise DataError(
                        f"line {number}: expected nodes of the graph"
                        f"{f', 0 to {n - 1}' if index is None else ''}, got {quote(token)}"
                    )
            nodes.append(np.array(ids, np.int32))
            sizes.append(len(ids))
        classes = len(sizes)
        if not classes:
            raise DataError("expected a label set a line, got none")
        budget.charge(9 * n * classes, f"labels of {n} nodes and {classes} classes")
        labels = np.zeros((n, classes), np.float32)
        labels[np.concatenate(nodes), np.repeat(np.arange(classes), sizes)] = 1
        return multilabel_dataset(
            stem_of(graph_path),
            whole.graph,
            labels,
            budget,
            shares=(train, val),
            seed=seed,
            num_splits=num_splits,
            source=f"{os.fspath(graph_path)}, {os.fspath(labels_path)}",
            node_names=whole.node_names,
        )


def multilabel_dataset(
    name: str,
    graph: Graph,
    labels: Float[np.ndarray, "n classes"],
    budget: Budget,
    *,
    shares: tuple[float, float],
    seed: int,
    num_splits: int,
    source: str,
    node_names: tuple[str, ...] | None = None,
) -> NodeDataset:
    """The set of a graph without features; splits among the nodes with labels."""
    charge_splits(budget, len(labels), num_splits)
    return NodeDataset(
        name=name,
        graph=graph,
        features=degree_column(graph),
        labels=labels,
        num_classes=labels.shape[1],
        splits=labelled_splits(
            np.any(labels != 0, axis=1),
            *shares,
            seed=seed,
            num_splits=num_splits,
            what="the label sets",
        ),
        metadata=Metadata(source=source, notes=_FEATURES, metric="micro_f1"),
        node_names=node_names,
    )


def labelled_splits(
    labelled: np.ndarray, train: float, val: float, *, seed: int, num_splits: int, what: str
) -> dict[str, Split]:
    """Splits by shares of the nodes of a mask; the others are in none.

    Raises:
        DataError: no node has a label.
    """
    nodes = np.flatnonzero(labelled)
    if not nodes.size:
        raise DataError(f"{what}: expected a node with a label, got none")

    def whole(mask: np.ndarray) -> np.ndarray:
        spread = np.zeros(labelled.size, bool)
        spread[nodes[mask]] = True
        return spread

    drawn = fraction_splits(nodes.size, train, val, seed=seed, num_splits=num_splits)
    return {
        name: Split(whole(split.train), whole(split.val), whole(split.test))
        for name, split in drawn.items()
    }


DEGREE_FEATURE = "log(1 + in-degree)"
"""The name of the feature that tables without columns of features have."""


def degree_column(graph: Graph) -> Float[np.ndarray, "n 1"]:
    """log(1 + in-degree) of each node, where the source has no features."""
    degrees = np.diff(np.asarray(graph.row_offsets))
    return np.log1p(degrees).astype(np.float32)[:, None]


def dense_labels(sets: scipy.sparse.csr_array, budget: Budget) -> Float[np.ndarray, "n classes"]:
    """Zeros and ones of a sparse matrix of label sets."""
    rows, columns = (int(count) for count in sets.shape or ())
    budget.charge(16 * rows * columns, f"labels of {rows} nodes and {columns} classes")
    return (sets.toarray() != 0).astype(np.float32)
