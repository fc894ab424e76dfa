"""Readers of the large inductive sets: GraphSAINT's files (Flickr, Yelp, ...) and Reddit's."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np

from jaxgnn.data.archive import npz_keys, read_npy, read_npz
from jaxgnn.data.checks import (
    MAX_BYTES,
    check_csr,
    check_features,
    check_integers,
    check_labels,
    check_size,
    reading,
)
from jaxgnn.data.dataset import DataError, NodeDataset, Split
from jaxgnn.data.provenance import metadata_of
from jaxgnn.graph import Graph

GRAPHSAINT_FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")


def read_graphsaint(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> NodeDataset:
    """A set in GraphSAINT's layout: `adj_full.npz`, `feats.npy`, `class_map.json`, `role.json`.

    Edges, features and masks are the files', as PyG's `Flickr` and `Yelp` and DGL's read them.
    Where a node has a list of labels (Yelp) the score is the micro-averaged F1, as published.

    Args:
        path: the directory; its name is the set's.
        max_bytes: refuse a file that holds more.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    with reading(folder / "adj_full.npz"):
        senders, receivers, n = _adjacency(folder / "adj_full.npz", max_bytes)
    with reading(folder / "feats.npy"):
        matrix = read_npy(folder / "feats.npy", max_bytes=max_bytes)
        features = check_features(matrix, "feats", max_bytes)
        if len(features) != n:
            raise DataError(f"expected a row for each of the {n} nodes, got {len(features)}")
    with reading(folder / "class_map.json"):
        labels = _class_map(_read_json(folder / "class_map.json", max_bytes), n)
    with reading(folder / "role.json"):
        split = _roles(_read_json(folder / "role.json", max_bytes), n)
    with reading(folder):
        several = labels.ndim == 2
        name = folder.resolve().name
        return NodeDataset(
            name=name,
            graph=Graph.from_edges(senders, receivers, num_nodes=n),
            features=features,
            labels=labels,
            num_classes=labels.shape[1] if several else int(labels.max(initial=0)) + 1,
            splits={"published": split},
            metadata=metadata_of(
                name, source=os.fspath(path), metric="micro_f1" if several else "accuracy"
            ),
        )


def read_reddit(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> NodeDataset:
    """GraphSAGE's Reddit: `reddit_data.npz` and `reddit_graph.npz`, 114.6 million edges.

    The files that PyG's `Reddit` and DGL's `RedditDataset` download; GraphSAINT's Reddit is a
    smaller graph.

    Args:
        path: the directory.
        max_bytes: refuse a file whose arrays take more.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    with reading(folder / "reddit_graph.npz"):
        senders, receivers, n = _adjacency(folder / "reddit_graph.npz", max_bytes)
    with reading(folder / "reddit_data.npz"):
        keys = ("feature", "label", "node_types")
        arrays = read_npz(folder / "reddit_data.npz", keys, max_bytes=max_bytes)
        features = check_features(arrays["feature"], "feature", max_bytes)
        labels = check_labels(arrays["label"], n, "label")
        roles = check_integers(arrays["node_types"], "node_types")
        if len(features) != n or roles.size != n:
            raise DataError(
                f"feature, node_types: expected a row for each of the {n} nodes, "
                f"got {len(features)} and {roles.size}"
            )
        return NodeDataset(
            name="reddit",
            graph=Graph.from_edges(senders, receivers, num_nodes=n),
            features=features,
            labels=labels,
            num_classes=int(labels.max(initial=0)) + 1,
            splits={"published": Split(*(roles == role for role in (1, 2, 3)))},
            metadata=metadata_of("reddit", source=os.fspath(path)),
        )


def _adjacency(path: pathlib.Path, max_bytes: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Senders, receivers and the number of nodes of a square SciPy matrix, saved as CSR or COO.

    The values are not read: an entry is an edge, from its row to its column.
    """
    compressed = "indptr" in npz_keys(path)
    names = ("indices", "indptr") if compressed else ("row", "col")
    arrays = read_npz(path, (*names, "shape", "format"), max_bytes=max_bytes)
    kind = bytes(arrays["format"].astype("S")).decode("ascii", "replace")
    if kind != ("csr" if compressed else "coo"):
        raise DataError(f"format: expected a matrix saved as csr or coo, got {kind!r:.40}")
    shape = check_integers(arrays["shape"], "shape")
    if shape.size != 2 or shape[0] != shape[1]:
        raise DataError(f"shape: expected that of a square matrix, got {shape.tolist()}")
    n = int(shape[0])
    if compressed:
        indices = arrays["indices"]
        ones = np.broadcast_to(np.ones((), np.int8), indices.shape)
        matrix = check_csr(ones, indices, arrays["indptr"], (n, n), "adjacency")
        senders = np.repeat(np.arange(n, dtype=np.int32), np.diff(matrix.indptr))
        return senders, matrix.indices.astype(np.int32, copy=False), n
    ends = []
    for name in names:
        values = check_integers(arrays.pop(name), name)
        if not 0 <= n < 1 << 31 or (values.size and not 0 <= values.min() <= values.max() < n):
            raise DataError(f"{name}: expected ids from 0 to {n - 1}")
        ends.append(values.astype(np.int32))
    if ends[0].size != ends[1].size:
        raise DataError(f"row, col: expected as many, got {ends[0].size} and {ends[1].size}")
    return ends[0], ends[1], n


def _read_json(path: pathlib.Path, max_bytes: int) -> dict[str, Any]:
    check_size(path.stat().st_size, "the file", max_bytes)
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise DataError(f"expected an object, got {type(value).__name__}")
    return value


def _class_map(entries: dict[str, Any], num_nodes: int) -> np.ndarray:
    """The class of each node, or zeros and ones `[num_nodes, num_classes]`."""
    if len(entries) != num_nodes:
        raise DataError(f"expected an entry for each of the {num_nodes} nodes, got {len(entries)}")
    missing = next((i for i in range(num_nodes) if str(i) not in entries), None)
    if missing is not None:
        raise DataError(f"expected an entry for each node, got none for {missing}")
    values = [entries[str(i)] for i in range(num_nodes)]
    if values and isinstance(values[0], list):
        # Whoever mixes rows of different lengths gets NumPy's error.
        return check_integers(np.asarray(values), "labels", ndim=2).astype(np.float32)
    return check_labels(np.asarray(values), num_nodes, "labels")


def _roles(roles: dict[str, Any], num_nodes: int) -> Split:
    masks = []
    for name in ("tr", "va", "te"):
        if name not in roles:
            raise DataError(f"expected the nodes of {name!r}, got {', '.join(roles):.100}")
        ids = check_integers(np.asarray(roles[name] or np.zeros(0, int)), name)
        if ids.size and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise DataError(
                f"{name}: expected ids from 0 to {num_nodes - 1}, got {ids.min()} to {ids.max()}"
            )
        mask = np.zeros(num_nodes, bool)
        mask[ids] = True
        masks.append(mask)
    return Split(*masks)
