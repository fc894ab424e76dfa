"""Readers of the two usual `.npz` layouts of node data."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import scipy.sparse

from jaxgnn.data.archive import npz_keys, read_npz
from jaxgnn.data.checks import (
    MAX_BYTES,
    check_csr,
    check_features,
    check_integers,
    check_labels,
    reading,
)
from jaxgnn.data.dataset import DataError, NodeDataset, Split
from jaxgnn.data.provenance import metadata_of
from jaxgnn.data.splits import per_class_splits
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


def layout_of(path: str | os.PathLike[str]) -> str:
    """`"shchur"` or `"heterophilous"`, by the names of the arrays in the file.

    Raises:
        DataError: neither, or not an `.npz` file.
    """
    keys = npz_keys(path)
    if {*_ADJACENCY, "labels"} <= keys:
        return "shchur"
    if set(_HETEROPHILOUS) <= keys:
        return "heterophilous"
    raise DataError(
        f"{os.fspath(path)}: expected the arrays of shchur's gnn-benchmark ({_ADJACENCY[0]}, ...) "
        f"or of a heterophilous set ({_HETEROPHILOUS[0]}, ...), got {', '.join(sorted(keys)):.200}"
    )


def read_shchur(
    path: str | os.PathLike[str],
    *,
    undirected: bool = True,
    binarize: bool = True,
    labels_per_class: int = 20,
    validation_per_class: int = 30,
    seed: int = 0,
    num_splits: int = 10,
    max_bytes: int = MAX_BYTES,
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
        max_bytes: refuse a file whose arrays, or dense features, take more.

    Raises:
        DataError: the file is damaged or its arrays don't fit together.
    """
    name = pathlib.Path(path).stem
    with reading(path):
        sparse = "attr_data" in npz_keys(path)
        attributes = _ATTRIBUTES if sparse else ("attr_matrix",)
        arrays = read_npz(path, (*_ADJACENCY, *attributes, "labels"), max_bytes=max_bytes)
        adjacency = _csr(arrays, "adj")
        n, columns = (int(count) for count in adjacency.shape or ())
        if columns != n:
            raise DataError(f"adj: expected a square matrix, got {n} x {columns}")
        matrix = _csr(arrays, "attr") if sparse else arrays["attr_matrix"]
        features = check_features(matrix, "attr", max_bytes)
        if binarize:
            features[features > 0] = 1
        labels = check_labels(arrays["labels"], n, "labels")
        senders = np.repeat(np.arange(n, dtype=np.int32), np.diff(adjacency.indptr))
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(
                senders,
                adjacency.indices.astype(np.int32),
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
    path: str | os.PathLike[str], *, undirected: bool = True, max_bytes: int = MAX_BYTES
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
    with reading(path):
        arrays = read_npz(path, _HETEROPHILOUS, max_bytes=max_bytes)
        features = check_features(arrays["node_features"], "node_features", max_bytes)
        n = len(features)
        labels = check_labels(arrays["node_labels"], n, "node_labels")
        edges = check_integers(arrays["edges"], "edges", ndim=2)
        if edges.shape[1] != 2:
            raise DataError(f"edges: expected the shape [edges, 2], got {list(edges.shape)}")
        if edges.size and not 0 <= edges.min() <= edges.max() < n:
            raise DataError(f"edges: expected ids below {n}, got {edges.min()} to {edges.max()}")
        masks = [arrays[f"{part}_masks"] for part in ("train", "val", "test")]
        for mask in masks:
            if mask.dtype != np.bool_ or mask.shape != (len(masks[0]), n):
                raise DataError(
                    f"masks: expected bool[splits, {n}], got {mask.dtype}{list(mask.shape)}"
                )
        num_classes = int(labels.max(initial=0)) + 1
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(
                edges[:, 0], edges[:, 1], num_nodes=n, undirected=undirected, deduplicate=True
            ),
            features=features,
            labels=labels,
            num_classes=num_classes,
            splits={f"split{i}": Split(*parts) for i, parts in enumerate(zip(*masks, strict=True))},
            metadata=metadata_of(
                name,
                source=os.fspath(path),
                metric="roc_auc" if num_classes == 2 else "accuracy",
            ),
        )


def _csr(arrays: dict[str, np.ndarray], prefix: str) -> scipy.sparse.csr_array:
    data, indices, indptr, shape = (arrays[f"{prefix}_{part}"] for part in _CSR_PARTS)
    shape = check_integers(shape, f"{prefix}_shape")
    if shape.size != 2:
        raise DataError(f"{prefix}_shape: expected two numbers, got {shape.size}")
    return check_csr(data, indices, indptr, (int(shape[0]), int(shape[1])), prefix)
