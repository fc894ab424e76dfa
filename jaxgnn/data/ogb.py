"""Reader of the Open Graph Benchmark's node sets, in the layout of their archives."""

from __future__ import annotations

import gzip
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from jaxgnn.data.checks import (
    MAX_BYTES,
    check_features,
    check_labels,
    check_size,
    reading,
)
from jaxgnn.data.dataset import DataError, NodeDataset, Split
from jaxgnn.data.provenance import metadata_of
from jaxgnn.graph import Graph

_LONGEST_LINE = 1 << 16


def read_ogb(
    path: str | os.PathLike[str], *, undirected: bool = True, max_bytes: int = MAX_BYTES
) -> NodeDataset:
    """A node set of the OGB, unpacked: `raw/edge.csv.gz`, ..., `split/NAME/train.csv.gz`, ...

    Nodes without features (ogbn-proteins) get the sums of the features of the edges that end at
    them, as in OGB's own example. One label column is a class; more are binary tasks, scored by
    ROC AUC.

    Args:
        path: the directory, such as `ogbn_products/`; its name is the set's.
        undirected: add the reverse of each edge (the files of the undirected sets, products and
            proteins among them, list each once).
        max_bytes: refuse an array of more.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    name = folder.resolve().name.replace("_", "-")
    raw = folder / "raw"
    n, edges = (int(_table(raw / f"num-{what}-list.csv.gz", np.int64, 1, max_bytes)[0, 0])
                for what in ("node", "edge"))  # fmt: skip
    ends = _table(raw / "edge.csv.gz", np.int64, edges, max_bytes, columns=2)
    with reading(raw / "edge.csv.gz"):
        if ends.size and not 0 <= ends.min() <= ends.max() < n:
            raise DataError(f"expected ids below {n}, got {ends.min()} to {ends.max()}")
    if (raw / "node-feat.csv.gz").exists():
        features = _table(raw / "node-feat.csv.gz", np.float32, n, max_bytes)
    else:
        values = _table(raw / "edge-feat.csv.gz", np.float32, edges, max_bytes)
        features = _sums_at_ends(ends, values, n, undirected)
    labels = _table(raw / "node-label.csv.gz", np.float32, n, max_bytes)
    several = labels.shape[1] > 1
    with reading(raw / "node-label.csv.gz"):
        if not several:
            classes = labels[:, 0].astype(np.int64)
            if (classes != labels[:, 0]).any():
                raise DataError("expected a class for each node, as an integer")
            labels = check_labels(classes, n, "labels")
    with reading(folder):
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(ends[:, 0], ends[:, 1], num_nodes=n, undirected=undirected),
            features=check_features(features, "features", max_bytes),
            labels=labels,
            num_classes=labels.shape[1] if several else int(labels.max(initial=0)) + 1,
            splits={"published": _split(folder / "split", n, max_bytes)},
            metadata=metadata_of(
                name, source=os.fspath(path), metric="roc_auc" if several else "accuracy"
            ),
        )


def _sums_at_ends(ends: np.ndarray, values: np.ndarray, n: int, undirected: bool) -> np.ndarray:
    """For each node the sum of the features of the edges that end at it."""
    columns = [
        sum(np.bincount(ends[:, end], column, n) for end in ((0, 1) if undirected else (1,)))
        for column in values.T
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _split(folder: pathlib.Path, n: int, max_bytes: int) -> Split:
    """The masks of the one published split."""
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if len(found) != 1:
        raise DataError(f"{folder}: expected one directory, got {len(found)}")
    masks = []
    for part in ("train", "valid", "test"):
        path = found[0] / f"{part}.csv.gz"
        ids = _table(path, np.int64, None, max_bytes, columns=1, most=n)[:, 0]
        with reading(path):
            if ids.size and not 0 <= ids.min() <= ids.max() < n:
                raise DataError(f"expected ids below {n}, got {ids.min()} to {ids.max()}")
        mask = np.zeros(n, bool)
        mask[ids] = True
        masks.append(mask)
    return Split(*masks)


def _table(
    path: pathlib.Path,
    dtype: type,
    rows: int | None,
    max_bytes: int,
    *,
    columns: int | None = None,
    most: int = 0,
) -> np.ndarray:
    """A `.csv.gz` of numbers: exactly `rows` rows, or if that is None at most `most`."""
    with reading(path):
        limit = most if rows is None else rows
        with gzip.open(path) as stream:
            first = stream.readline(_LONGEST_LINE)
        width = first.count(b",") + 1
        check_size(np.dtype(dtype).itemsize * width * max(limit, 0), f"{rows} rows", max_bytes)
        with gzip.open(path) as stream:
            values = np.loadtxt(_lines(stream, limit), dtype, delimiter=",", ndmin=2, comments=None)
        if not first.strip():
            values = np.zeros((0, columns or 1), dtype)
        if rows is not None and len(values) != rows:
            raise DataError(f"expected {rows} rows, got {len(values)}")
        if columns is not None and values.shape[1] != columns:
            raise DataError(f"expected {columns} columns, got {values.shape[1]}")
        return values


def _lines(stream: gzip.GzipFile, most: int) -> Iterator[bytes]:
    """Lines of bounded number and length, however much the file would inflate to."""
    for _ in range(most):
        line = stream.readline(_LONGEST_LINE)
        if not line:
            return
        if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
            raise DataError(f"expected lines of less than {_LONGEST_LINE} bytes")
        yield line
    if stream.readline(_LONGEST_LINE).strip():
        raise DataError(f"expected at most {most} rows, got more")
