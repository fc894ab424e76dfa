"""Reader of the TUDataset's text files (Morris et al., 2020)."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxgnn.data.files.checks import check_features
from jaxgnn.data.files.limits import Budget, DataError, display_path, reading
from jaxgnn.data.files.native import native_module
from jaxgnn.data.formats.edges import parse
from jaxgnn.data.sets.csr import offsets_of
from jaxgnn.data.sets.dataset import Metadata
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.splits import fold_splits

_CITATION = "Morris et al., TUDataset: A collection of benchmark datasets, 2020"
_NEEDED = ("graph_indicator", "A")
_PARTS = (
    *_NEEDED,
    *("graph_labels", "graph_attributes"),
    *("node_labels", "node_attributes", "edge_labels", "edge_attributes"),
)
_MOST_ROWS = 2**31 - 1
_MOST_CLASSES = 4096  # of a node or an edge: they become one-hot columns


def find_tudataset(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the sets whose files lie in a directory."""
    return sorted(
        path.name.removesuffix("_graph_indicator.txt")
        for path in pathlib.Path(folder).glob("*_graph_indicator.txt")
    )


def read_tudataset(
    folder: str | os.PathLike[str],
    name: str | None = None,
    *,
    folds: int = 10,
    seed: int = 0,
    max_bytes: int | None = None,
) -> GraphSet:
    """A set of the TUDataset, as PyG's `TUDataset` reads it with its attributes.

    Node features are the node attributes, if there are any, then the node labels, one-hot; edge
    features likewise. Self-loops are dropped, repeated edges merged, their features summed.
    Labels are `graph_attributes` if there are any, else the graphs' classes, numbered from 0 by
    their values (`class_names`). With classes there are `folds` stratified splits, drawn by
    `seed`: fold i is tested, the next one validates, the others train.

    Args:
        folder: the directory of NAME_A.txt, NAME_graph_indicator.txt, ...
        name: the NAME, where there are several.
        folds: how many; a class has at least as many graphs, else there is no split.
        seed: of the folds.
        max_bytes: as of `read_planetoid`.

    Raises:
        DataError: a file is missing or damaged, or the files do not fit together.
    """
    folder = pathlib.Path(folder)
    found = find_tudataset(folder)
    if name is None:
        if len(found) != 1:
            raise DataError(
                f"{display_path(folder)}: expected one set (NAME_graph_indicator.txt), "
                f"got {', '.join(found[:9]) or 'none'}"
            )
        name = found[0]
    budget = Budget(max_bytes)
    paths = {
        part: path
        for part in _PARTS
        if (path := folder / f"{name}_{part}.txt").exists() or part in _NEEDED
    }
    indicator = _integers(paths["graph_indicator"], budget, columns=1)[:, 0]
    edges = _integers(paths["A"], budget, columns=2)
    labels, num_classes, class_names = _labels(paths, indicator, budget)
    with reading(paths["graph_indicator"]):
        count = len(labels) if labels is not None else int(indicator.max(initial=0))
        budget.charge(24 * (count + 1), "the graphs")
        node_offsets = _node_offsets(indicator, count)
    n = indicator.size
    features = _beside(paths, "node", n, budget)
    edge_features = _beside(paths, "edge", len(edges), budget)
    with reading(paths["A"]):
        if edges.size and not 1 <= edges.min() <= edges.max() <= n:
            raise DataError(f"expected ids from 1 to {n}, got {edges.min()} to {edges.max()}")
        width = 0 if edge_features is None else edge_features.shape[1]
        budget.charge(len(edges) * (60 + 4 * width), "the edges in order")
        senders, receivers, edge_features = _in_order(edges - 1, n, edge_features)
        graphs = indicator[senders]
        if (graphs != indicator[receivers]).any():
            raise DataError("expected edges within a graph, got one between two")
        starts = node_offsets[graphs - 1]
        edge_offsets = offsets_of(np.bincount(graphs - 1, minlength=count))
        splits = {}
        if (
            labels is not None
            and num_classes
            and np.bincount(labels, minlength=num_classes).min() >= folds
        ):
            budget.charge(3 * folds * count, "the folds")
            splits = fold_splits(labels, folds, seed=seed)
        return GraphSet(
            name=name,
            node_offsets=node_offsets,
            edge_offsets=edge_offsets,
            senders=(senders - starts).astype(np.int32),
            receivers=(receivers - starts).astype(np.int32),
            features=features,
            edge_features=edge_features,
            labels=labels,
            num_classes=num_classes,
            splits=splits,
            class_names=class_names,
            metadata=Metadata(source=os.fspath(folder), citation=_CITATION),
        )


def _table(path: pathlib.Path, kind: str, budget: Budget) -> np.ndarray:
    parser = getattr(native_module("the readers of text"), kind)(_MOST_ROWS)
    parse(parser, path, budget)
    values = parser.take()
    budget.charge(values.nbytes, "the table")
    return values.reshape(-1, parser.columns) if parser.rows else values.reshape(0, 1)


def _integers(path: pathlib.Path, budget: Budget, columns: int | None = None) -> np.ndarray:
    with reading(path):
        values = _table(path, "IntegerTableParser", budget)
        if columns is not None and values.size and values.shape[1] != columns:
            raise DataError(f"expected {columns} columns, got {values.shape[1]}")
        return values.reshape(-1, columns) if columns else values


def _node_offsets(indicator: np.ndarray, count: int) -> np.ndarray:
    if indicator.size and not (
        indicator[0] >= 1 and indicator[-1] <= count and (np.diff(indicator) >= 0).all()
    ):
        raise DataError(f"expected the numbers of the graphs, 1 to {count}, in order")
    sizes = np.bincount(indicator - 1, minlength=count) if indicator.size else np.zeros(count, int)
    return offsets_of(sizes)


def _labels(
    paths: dict[str, pathlib.Path], indicator: np.ndarray, budget: Budget
) -> tuple[np.ndarray | None, int | None, tuple[str, ...] | None]:
    if "graph_attributes" in paths:
        with reading(paths["graph_attributes"]):
            values = _table(paths["graph_attributes"], "FloatTableParser", budget)
            return check_features(values, "graph_attributes", budget), None, None
    if "graph_labels" in paths:
        values = _integers(paths["graph_labels"], budget, columns=1)[:, 0]
        budget.charge(40 * values.size, "the labels")
        distinct, labels = np.unique(values, return_inverse=True)
        numbered = np.array_equal(distinct, np.arange(distinct.size))
        names = None if numbered else tuple(map(str, distinct.tolist()))
        return labels.astype(np.int32), distinct.size, names
    most = int(indicator.max(initial=0))
    if most > indicator.size:
        with reading(paths["graph_indicator"]):
            raise DataError(f"expected graphs from 1 to at most {indicator.size}, got {most}")
    return None, None, None


def _beside(
    paths: dict[str, pathlib.Path], of: str, rows: int, budget: Budget
) -> np.ndarray | None:
    """Attributes and one-hot labels of nodes or edges, beside each other."""
    parts = []
    for part in (f"{of}_attributes", f"{of}_labels"):
        if part not in paths:
            continue
        with reading(paths[part]):
            if part.endswith("labels"):
                values = _one_hot(_integers(paths[part], budget), budget)
            else:
                values = _table(paths[part], "FloatTableParser", budget)
            if len(values) != rows:
                raise DataError(f"expected {rows} rows, one for each {of}, got {len(values)}")
            parts.append(check_features(values, part, budget))
    if not parts:
        return None
    budget.charge(sum(part.nbytes for part in parts), f"features of the {of}s")
    return np.concatenate(parts, axis=1)


def _one_hot(labels: np.ndarray, budget: Budget) -> np.ndarray:
    """Each column from its least value on, as PyG's."""
    if not labels.size:
        return np.zeros((0, 1), np.float32)
    least, most = labels.min(axis=0).tolist(), labels.max(axis=0).tolist()
    widths = [high - low + 1 for low, high in zip(least, most, strict=True)]
    if max(widths) > _MOST_CLASSES or sum(widths) > _MOST_CLASSES:
        raise DataError(f"expected at most {_MOST_CLASSES} classes, got {max(widths)}")
    budget.charge(4 * len(labels) * sum(widths) + 16 * labels.size, "the labels, one-hot")
    one_hot = np.zeros((len(labels), sum(widths)), np.float32)
    starts = np.cumsum([0, *widths[:-1]])
    columns = labels - np.array(least) + starts
    one_hot[np.arange(len(labels))[:, None], columns] = 1
    return one_hot


def _in_order(
    edges: np.ndarray, n: int, features: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Both ends by sender, then receiver (as PyG's), each once, without self-loops."""
    proper = edges[:, 0] != edges[:, 1]
    keys, first, place = np.unique(
        edges[proper, 0] * n + edges[proper, 1], return_index=True, return_inverse=True
    )
    if features is not None:
        features = features[proper]
        if keys.size == len(features):
            features = features[first]
        else:
            sums = np.zeros((keys.size, features.shape[1]), np.float32)
            np.add.at(sums, place, features)
            features = sums
    senders, receivers = np.divmod(keys, max(n, 1))
    return senders, receivers, features
