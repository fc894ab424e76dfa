"""Reader of the Open Graph Benchmark's node sets, in the layout of their archives; what its files
are made of is read for its sets of graphs, too."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator

import numpy as np

from jaxgnn.data.checks import charge_graph, charge_splits, check_features, check_labels
from jaxgnn.data.dataset import NodeDataset, Split
from jaxgnn.data.edges import parse
from jaxgnn.data.limits import Budget, DataError, reading
from jaxgnn.data.native import native_module
from jaxgnn.data.provenance import metadata_of
from jaxgnn.graph import Graph

# Sets whose `add_inverse_edge` is False in OGB's master table, by the names of their archives.
_DIRECTED = ("arxiv", "papers100m", "papers100m-bin")


def read_ogb(
    path: str | os.PathLike[str], *, undirected: bool | None = None, max_bytes: int | None = None
) -> NodeDataset:
    """A node set of the OGB, unpacked: `raw/edge.csv.gz`, ..., `split/NAME/train.csv.gz`, ...

    Nodes without features (ogbn-proteins) get the sums of the features of the edges that end at
    them, as in OGB's own example. One label column is a class; more are binary tasks, scored by
    ROC AUC.

    Args:
        path: the directory, such as `ogbn_products/`; its name is the set's.
        undirected: add the reverse of each edge. By default as OGB's master table has it: not for
            ogbn-arxiv and ogbn-papers100M, which are directed; the files of the undirected sets,
            products and proteins, list each edge once.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    name = folder.resolve().name.replace("_", "-")
    if undirected is None:
        undirected = name.lower().removeprefix("ogbn-") not in _DIRECTED
    raw = folder / "raw"
    budget = Budget(max_bytes)
    n, num_edges = (_count(raw / f"num-{what}-list.csv.gz", budget) for what in ("node", "edge"))
    # Before anything has a row for each node: that there are as many.
    labels = _labels(raw / "node-label.csv.gz", n, budget)
    senders, receivers = edges_of_file(raw / "edge.csv.gz", n, num_edges, budget)
    if (raw / "node-feat.csv.gz").exists():
        features = table_of_file(raw / "node-feat.csv.gz", np.float32, n, budget)
    else:
        with budget.scope():
            values = table_of_file(raw / "edge-feat.csv.gz", np.float32, num_edges, budget)
            features = _sums_at_ends(senders, receivers, values, n, undirected, budget)
            del values
        budget.charge(features.nbytes, "features")
    several = labels.ndim == 2
    with reading(folder):
        split = split_of_folder(folder / "split", n, budget)
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


def _count(path: pathlib.Path, budget: Budget) -> int:
    """The one number of a file."""
    count = int(table_of_file(path, np.int64, 1, budget, columns=1)[0, 0])
    if not 0 <= count < 1 << 31:
        raise DataError(f"{path}: expected a number from 0 to 2**31 - 1, got {count}")
    return count


def _labels(path: pathlib.Path, n: int, budget: Budget) -> np.ndarray:
    """A class a node, int32, or several binary labels, float32."""
    labels = table_of_file(path, np.float32, n, budget)
    with reading(path):
        if labels.shape[1] > 1:
            return labels
        budget.charge(8 * n, "labels")
        classes = labels[:, 0].astype(np.int64)
        if (classes != labels[:, 0]).any():
            raise DataError("expected a class for each node, as an integer")
        return check_labels(classes, n, "labels", budget)


def edges_of_file(
    path: pathlib.Path, n: int, num_edges: int, budget: Budget
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of each edge, int32."""
    with reading(path):
        parser = native_module("the readers of text").EdgeListParser(strict=True)
        parse(parser, path, budget)
        senders, receivers = parser.take()
        budget.charge(senders.nbytes + receivers.nbytes, "the edges")
        if senders.size != num_edges:
            raise DataError(f"expected {num_edges} rows, got {senders.size}")
        if parser.max_id >= n:
            raise DataError(f"expected ids below {n}, got {parser.max_id}")
        return senders, receivers


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


def split_of_folder(folder: pathlib.Path, n: int, budget: Budget) -> Split:
    """The masks of the one published split."""
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if len(found) != 1:
        raise DataError(f"{folder}: expected one directory, got {len(found)}")
    masks = []
    charge_splits(budget, n)
    for part in ("train", "valid", "test"):
        path = found[0] / f"{part}.csv.gz"
        with reading(path), budget.scope():
            ids = table_of_file(path, np.int64, None, budget, columns=1, most=n)[:, 0]
            if ids.size and not 0 <= ids.min() <= ids.max() < n:
                raise DataError(f"expected ids below {n}, got {ids.min()} to {ids.max()}")
            mask = np.zeros(n, bool)
            mask[ids] = True
            masks.append(mask)
    return Split(*masks)


def table_of_file(
    path: pathlib.Path,
    dtype: type,
    rows: int | None,
    budget: Budget,
    *,
    columns: int | None = None,
    most: int = 0,
    blanks: bool = False,
) -> np.ndarray:
    """A `.csv.gz` of numbers: exactly `rows` rows, or if that is None at most `most`. With `blanks`
    an empty field is NaN."""
    with reading(path):
        module = native_module("the readers of text")
        kind = module.FloatTableParser if dtype is np.float32 else module.IntegerTableParser
        parser = kind(most if rows is None else rows)
        parse(parser, path, budget, _with_nan if blanks else iter)
        if rows is not None and parser.rows != rows:
            raise DataError(f"expected {rows} rows, got {parser.rows}")
        width = parser.columns if parser.rows else columns or 1
        if columns is not None and width != columns:
            raise DataError(f"expected {columns} columns, got {width}")
        values = parser.take()
        budget.charge(values.nbytes, "the table")
        return values.reshape(-1, width)


_BLANK = re.compile(rb"(?m)^(?=,)|(?<=,)(?=,|\r?$)")
_LONGEST_LINE = 1 << 24


def _with_nan(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks with NaN in empty fields, cut at the ends of lines."""
    rest = b""
    for block in blocks:
        rest += block
        end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0)
        if end:
            yield _BLANK.sub(b"nan", rest[:end])
            rest = rest[end:]
    if rest:
        yield _BLANK.sub(b"nan", rest)
