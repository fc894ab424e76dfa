"""Readers of the two usual `.npz` layouts of node data."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import scipy.sparse

from jaxgnn.data.files.archive import Npz, open_npz
from jaxgnn.data.files.checks import (
    charge_graph,
    charge_splits,
    check_csr,
    check_csr_claims,
    check_csr_structure,
    check_ids,
    check_kind,
    check_labels,
    check_vector,
    read_features,
    row_blocks,
)
from jaxgnn.data.files.limits import Budget, DataError, quote
from jaxgnn.data.sets.dataset import NodeDataset, Split
from jaxgnn.data.sets.provenance import metadata_of
from jaxgnn.data.sets.splits import per_class_splits
from jaxgnn.graph import Graph

_CSR_PARTS = ("data", "indices", "indptr", "shape")
_ADJACENCY = tuple(f"adj_{part}" for part in _CSR_PARTS)
_ATTRIBUTES = tuple(f"attr_{part}" for part in _CSR_PARTS)
_HETEROPHILOUS = (
    "node_features",
    "node_labels",
    "edges",
    "train_masks",
    "val_masks",
    "test_masks",
)


def is_shchur(keys: set[str]) -> bool:
    """Whether a file with these arrays is in the layout of shchur's gnn-benchmark."""
    return {*_ADJACENCY, "labels"} <= keys


def is_heterophilous(keys: set[str]) -> bool:
    """Whether a file with these arrays is in the layout of the heterophilous sets."""
    return set(_HETEROPHILOUS) <= keys


def read_shchur(
    path: str | os.PathLike[str],
    *,
    undirected: bool = True,
    binarize: bool = True,
    labels_per_class: int = 20,
    validation_per_class: int = 30,
    seed: int = 0,
    num_splits: int = 10,
    max_bytes: int | None = None,
) -> NodeDataset:
    """A set in the layout of shchur's gnn-benchmark, as PyG's `Amazon` and `CitationFull` read it.

    Self-loops are dropped, duplicates merged. The file has no split: as in the publication,
    random ones of 20 training and 30 validation nodes a class, the rest tested.

    Args:
        path: the `.npz` file.
        undirected: add the reverse of each edge.
        binarize: set positive features to 1, as PyG does.
        labels_per_class, validation_per_class: sizes of the splits.
        seed: the splits are drawn with the seeds `seed`, `seed + 1`, ...
        num_splits: how many splits.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the file, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: the file is damaged or its arrays don't fit together.
    """
    name = pathlib.Path(path).stem
    budget = Budget(max_bytes)
    with open_npz(path, budget) as archive:
        sparse = "attr_data" in archive.keys
        n, columns = _shape(archive, "adj")
        if columns != n:
            raise DataError(f"adj: expected a square matrix, got {n} x {columns}")
        _check_csr_headers(archive, (n, n), "adj")
        check_vector(archive.header("labels"), n, "labels")
        indices, indptr = (archive.read(f"adj_{part}") for part in ("indices", "indptr"))
        indices, indptr = check_csr_structure(indices, indptr, (n, n), "adj", budget)
        features = read_features(
            lambda: _csr(archive, "attr", budget) if sparse else archive.read("attr_matrix"),
            "attr",
            budget,
        )
        if len(features) != n:
            raise DataError(f"attr: expected a row for each of the {n} nodes, got {len(features)}")
        if binarize:
            for begin, end in row_blocks(features):
                block = features[begin:end]
                block[block > 0] = 1
        labels = check_labels(archive.read("labels"), n, "labels", budget)
        budget.charge(4 * indices.size, "the senders")
        senders = np.repeat(np.arange(n, dtype=np.int32), np.diff(indptr))
        charge_graph(budget, n, indices.size, undirected=undirected)
        charge_splits(budget, n, num_splits)
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(
                senders,
                indices,
                num_nodes=n,
                undirected=undirected,
                deduplicate=True,
                self_loops="remove",
            ),
            features=features,
            labels=labels,
            num_classes=int(labels.max(initial=0)) + 1,
            splits=per_class_splits(
                labels, labels_per_class, validation_per_class, seed=seed, num_splits=num_splits
            ),
            metadata=metadata_of(
                name,
                source=os.fspath(path),
                notes=f"random splits: {labels_per_class} training and {validation_per_class} "
                "validation nodes a class, the rest tested",
            ),
        )


def read_heterophilous(
    path: str | os.PathLike[str], *, undirected: bool = True, max_bytes: int | None = None
) -> NodeDataset:
    """A heterophilous set of Platonov et al. with its (usually 10) splits.

    Scored by ROC AUC if it has two classes, as in the publication.

    Args:
        path: the `.npz` file.
        undirected: add the reverse of each edge (the file lists each once).
        max_bytes: refuse a file whose arrays take more.

    Raises:
        DataError: the file is damaged or its arrays don't fit together.
    """
    name = pathlib.Path(path).stem
    budget = Budget(max_bytes)
    with open_npz(path, budget) as archive:
        claims = {key: archive.header(key) for key in _HETEROPHILOUS}
        if claims["node_features"].ndim != 2:
            raise DataError(
                f"node_features: expected a matrix, got {quote(claims['node_features'].shape)}"
            )
        n = claims["node_features"].shape[0]
        check_vector(claims["node_labels"], n, "node_labels")
        check_kind(claims["edges"], "edges", ndim=2)
        if claims["edges"].shape[1] != 2:
            raise DataError(
                f"edges: expected the shape [edges, 2], got {quote(claims['edges'].shape)}"
            )
        masks = [f"{part}_masks" for part in ("train", "val", "test")]
        num_splits = claims[masks[0]].shape[:1]
        for key in masks:
            if claims[key].dtype != np.bool_ or claims[key].shape != (*num_splits, n):
                raise DataError(
                    f"masks: expected bool[splits, {n}], "
                    f"got {claims[key].dtype}{quote(claims[key].shape)}"
                )
        features = read_features(lambda: archive.read("node_features"), "node_features", budget)
        labels = check_labels(archive.read("node_labels"), n, "node_labels", budget)
        edges = archive.read("edges")
        if edges.size and not 0 <= edges.min() <= edges.max() < n:
            raise DataError(f"edges: expected ids below {n}, got {edges.min()} to {edges.max()}")
        budget.charge(4 * edges.size, "edges")
        ends = [check_ids(column, n, "edges", budget) for column in edges.T]
        charge_graph(budget, n, len(edges), undirected=undirected)
        parts = zip(*(archive.read(key) for key in masks), strict=True)
        charge_splits(budget, n)
        num_classes = int(labels.max(initial=0)) + 1
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(*ends, num_nodes=n, undirected=undirected, deduplicate=True),
            features=features,
            labels=labels,
            num_classes=num_classes,
            splits={f"split{i}": Split(*masks) for i, masks in enumerate(parts)},
            metadata=metadata_of(
                name,
                source=os.fspath(path),
                metric="roc_auc" if num_classes == 2 else "accuracy",
            ),
        )


def _shape(archive: Npz, prefix: str) -> tuple[int, int]:
    """The shape that a CSR matrix claims."""
    check_kind(archive.header(f"{prefix}_shape"), f"{prefix}_shape")
    if (size := archive.header(f"{prefix}_shape").size) != 2:
        raise DataError(f"{prefix}_shape: expected two numbers, got {size}")
    rows, columns = archive.read(f"{prefix}_shape").tolist()
    return rows, columns


def _csr(archive: Npz, prefix: str, budget: Budget) -> scipy.sparse.csr_array:
    shape = _shape(archive, prefix)
    _check_csr_headers(archive, shape, prefix)
    values, indices, indptr = (archive.read(f"{prefix}_{part}") for part in _CSR_PARTS[:3])
    return check_csr(values, indices, indptr, shape, prefix, budget)


def _check_csr_headers(archive: Npz, shape: tuple[int, int], prefix: str) -> None:
    values, indices, indptr = (archive.header(f"{prefix}_{part}") for part in _CSR_PARTS[:3])
    check_csr_claims(values, indices, indptr, shape, prefix)
