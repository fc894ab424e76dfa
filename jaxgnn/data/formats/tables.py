"""Reader of own data as two tables: nodes and edges."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import numpy as np

from jaxgnn.data.files.checks import charge_graph, charge_splits
from jaxgnn.data.files.columns import (
    Choice,
    Ids,
    Numbers,
    References,
    Text,
    find_table,
    matrix,
    read_columns,
)
from jaxgnn.data.files.limits import Budget, DataError, display_path, quote, reading, stem_of
from jaxgnn.data.formats.label_sets import DEGREE_FEATURE, degree_column, labelled_splits
from jaxgnn.data.sets.dataset import Metadata, NodeDataset, Split
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

_PARTS = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
    **dict.fromkeys(("", "none"), 3),
}
_INTEGER = re.compile(r"[+-]?\d+")
_ZERO_FRACTION = re.compile(r"(?<=\d)\.0*$")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+|inf|nan)", re.IGNORECASE)
_LONGEST_NUMBER = 64  # longer ones are names


def is_tables(folder: pathlib.Path) -> bool:
    """Whether a directory holds the two tables."""
    return all(find_table(folder, name) is not None for name in ("nodes", "edges"))


def read_tables(
    folder: str | os.PathLike[str],
    *,
    undirected: bool = False,
    train: float = 0.5,
    val: float = 0.25,
    seed: int = 0,
    num_splits: int = 10,
    max_bytes: int | None = None,
) -> NodeDataset | PlainGraph:
    """A directory with `nodes.csv` and `edges.csv`, `.csv.gz` or `.parquet` (needs pyarrow).

    `nodes` has the column `id`, and optionally `label` and `split`; `edges` has `source` and
    `target`, and optionally `weight`. All other columns are features, and numbers. Ids and labels
    may be any text, but labels that are all numbers have to be whole ones: nodes are numbered in
    their order and classes in the order of their names (of their values, if all are integers);
    `node_names` and `class_names` keep them where they are not 0, 1, ..., and `feature_names`
    those of the features. Nodes with an empty label are in no mask. `split` is `train`, `val`,
    `test`, in any case, or empty. Without that column, random splits of the labelled nodes are
    drawn. Without a column of features, the one feature of a node is
    log(1 + in-degree).

    Args:
        folder: the directory.
        undirected: add the reverse of each edge and merge repeated ones; their weights and
            features are summed. Without, repeated edges stay.
        train, val: shares of the labelled nodes, where there is no column `split`.
        seed: such splits are drawn with the seeds `seed`, `seed + 1`, ...
        num_splits: how many of them.
        max_bytes: as of `read_planetoid`. What pyarrow takes is counted as the file claims it.

    Returns:
        A `NodeDataset`; a `PlainGraph` where there is no column `label`.

    Raises:
        DataError: a missing column, an unknown or repeated id, text where a number belongs, a
            field too few; with the file, the line and the column. Labels with fractions.
    """
    folder = pathlib.Path(folder)
    nodes_path, edges_path = (find_table(folder, name) for name in ("nodes", "edges"))
    if nodes_path is None or edges_path is None:
        raise DataError(f"{display_path(folder)}: expected nodes.csv and edges.csv")
    budget = Budget(max_bytes)
    ids, label = Ids(), Text()
    part = Choice(_PARTS, "train, val, test or nothing")
    optional = {"label": label, "split": part}
    n, columns, found = read_columns(nodes_path, {"id": ids}, optional, budget)
    source, target, weight = References(ids.numbers), References(ids.numbers), Numbers()
    _, edge_columns, edge_found = read_columns(
        edges_path, {"source": source, "target": target}, {"weight": weight}, budget
    )
    with reading(folder):
        senders, receivers = source.numpy(), target.numpy()
        charge_graph(budget, n, senders.size, undirected=undirected)
        edge_data = {"features": matrix(edge_columns)}
        edge_data["weights"] = weight.numpy() if "weight" in edge_found else None
        present = {name: values for name, values in edge_data.items() if values is not None}
        budget.charge(5 * sum(value.nbytes for value in present.values()), "the edges' data")
        graph, sorted_data = Graph.from_edges(
            senders, receivers, num_nodes=n, undirected=undirected, edge_data=present
        )
        names = tuple(ids.numbers)
        fields: dict[str, Any] = {
            "name": stem_of(folder),
            "graph": graph,
            "features": matrix(columns),
            "node_names": None if _numbered(names) else names,
            "feature_names": tuple(columns) or None,
        }
        for name, values in sorted_data.items():
            key = "weights" if name == "weights" else "edge_features"
            fields[key] = np.asarray(values, np.float32)
        if "label" not in found:
            if "split" in found:
                raise DataError(f"{nodes_path.name}: expected the column 'label' beside 'split'")
            return PlainGraph(**fields, metadata=Metadata(source=os.fspath(folder)))
        labels, class_names = _classes(label.values, names, budget)
        labelled = labels >= 0
        if not labelled.any():
            raise DataError("label: expected a node with a label, got none")
        notes = "" if columns else f"features: {DEGREE_FEATURE}, for the source has none"
        if not columns:
            fields |= {"features": degree_column(graph), "feature_names": (DEGREE_FEATURE,)}
        if "split" in found:
            charge_splits(budget, n)
            parts = part.numpy()
            splits = {"file": Split(*((parts == number) & labelled for number in range(3)))}
        else:
            charge_splits(budget, n, num_splits)
            splits = labelled_splits(
                labelled, train, val, seed=seed, num_splits=num_splits, what="label"
            )
        return NodeDataset(
            **fields,
            labels=np.maximum(labels, 0),
            num_classes=len(class_names),
            splits=splits,
            class_names=None if _numbered(class_names) else class_names,
            metadata=Metadata(
                source=os.fspath(folder), notes=notes, unlabelled=not bool(labelled.all())
            ),
        )


def _numbered(names: tuple[str, ...]) -> bool:
    return all(name == str(i) for i, name in enumerate(names))


def _classes(
    values: list[str], nodes: tuple[str, ...], budget: Budget
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class of each node, -1 without one, and the classes' names in order."""
    budget.charge(8 * len(values), "labels")
    class_of = {name: name for name in set(values) - {""}}
    if all(len(name) < _LONGEST_NUMBER and _NUMBER.fullmatch(name) for name in class_of):
        # Integers beside missing ones are floats to pandas: 1.0 is 1.
        class_of = {name: _ZERO_FRACTION.sub("", name) for name in class_of}
        wrong = {name for name, whole in class_of.items() if not _INTEGER.fullmatch(whole)}
        for node, value in zip(nodes, values, strict=True):
            if value in wrong:  # else each target of a regression would be a class
                raise DataError(
                    "column 'label': expected names or integers as classes, got "
                    f"{quote(value)} of the node {quote(node)}"
                )
        names = sorted(set(class_of.values()), key=lambda name: (int(name), name))
    else:
        names = sorted(class_of)
    number = {name: i for i, name in enumerate(names)}
    numbers = {name: number[whole] for name, whole in class_of.items()} | {"": -1}
    return np.array([numbers[value] for value in values], np.int32), tuple(names)
