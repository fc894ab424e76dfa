"""Readers of the large inductive sets: GraphSAINT's files (Flickr, Yelp, ...) and Reddit's."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from jaxgnn.data.files.archive import Header, open_npy, open_npz
from jaxgnn.data.files.checks import (
    charge_graph,
    charge_splits,
    check_csr_claims,
    check_csr_structure,
    check_ids,
    check_kind,
    check_labels,
    check_vector,
    read_features,
)
from jaxgnn.data.files.json_objects import integers, read_json
from jaxgnn.data.files.limits import Budget, DataError, quote, reading
from jaxgnn.data.sets.dataset import NodeDataset, Split
from jaxgnn.data.sets.provenance import metadata_of
from jaxgnn.graph import Graph

GRAPHSAINT_FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")


def read_graphsaint(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> NodeDataset:
    """A set in GraphSAINT's layout: `adj_full.npz`, `feats.npy`, `class_map.json`, `role.json`.

    Edges, features and masks are the files', as PyG's `Flickr` and `Yelp` and DGL's read them.
    Where a node has a list of labels (Yelp) the score is the micro-averaged F1, as published.

    Args:
        path: the directory; its name is the set's.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    budget = Budget(max_bytes)
    senders, receivers, n = _adjacency(folder / "adj_full.npz", budget)
    with open_npy(folder / "feats.npy", budget) as array:
        _check_rows(array.header(), n)
        features = read_features(array.read, "feats", budget)
    with reading(folder / "class_map.json"):
        labels = _class_map(folder / "class_map.json", n, budget)
    with reading(folder / "role.json"):
        split = _roles(folder / "role.json", n, budget)
    with reading(folder):
        several = labels.ndim == 2
        name = folder.resolve().name
        charge_graph(budget, n, senders.size)
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


def read_reddit(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> NodeDataset:
    """GraphSAGE's Reddit: `reddit_data.npz` and `reddit_graph.npz`, 114.6 million edges.

    The files that PyG's `Reddit` and DGL's `RedditDataset` download; GraphSAINT's Reddit is a
    smaller graph.

    Args:
        path: the directory.
        max_bytes: as of `read_graphsaint`.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    budget = Budget(max_bytes)
    senders, receivers, n = _adjacency(folder / "reddit_graph.npz", budget)
    with open_npz(folder / "reddit_data.npz", budget) as archive:
        claims = [archive.header(key) for key in ("feature", "node_types")]
        rows, roles = (claim.shape[0] if claim.ndim else 0 for claim in claims)
        if rows != n or roles != n:
            raise DataError(
                f"feature, node_types: expected a row for each of the {n} nodes, "
                f"got {rows} and {roles}"
            )
        check_vector(claims[1], n, "node_types")
        check_vector(archive.header("label"), n, "label")
        features = read_features(lambda: archive.read("feature"), "feature", budget)
        labels = check_labels(archive.read("label"), n, "label", budget)
        roles = archive.read("node_types")
        charge_splits(budget, n)
        charge_graph(budget, n, senders.size)
        return NodeDataset(
            name="reddit",
            graph=Graph.from_edges(senders, receivers, num_nodes=n),
            features=features,
            labels=labels,
            num_classes=int(labels.max(initial=0)) + 1,
            splits={"published": Split(*(roles == role for role in (1, 2, 3)))},
            metadata=metadata_of("reddit", source=os.fspath(path)),
        )


def _adjacency(path: pathlib.Path, budget: Budget) -> tuple[np.ndarray, np.ndarray, int]:
    """Senders, receivers and the number of nodes of a square SciPy matrix, saved as CSR or COO.

    The values are not read: an entry is an edge, from its row to its column.
    """
    with open_npz(path, budget) as archive:
        compressed = "indptr" in archive.keys
        names = ("indices", "indptr") if compressed else ("row", "col")
        claim = archive.header("format")
        if claim.dtype.kind not in "SU" or claim.nbytes > 100:
            raise DataError(f"format: expected text, got {claim.dtype}{quote(claim.shape)}")
        kind = bytes(archive.read("format").astype("S")).rstrip(b"\0").decode("ascii", "replace")
        if kind != ("csr" if compressed else "coo"):
            raise DataError(f"format: expected a matrix saved as csr or coo, got {quote(kind)}")
        check_kind(archive.header("shape"), "shape")
        sizes = archive.read("shape").tolist() if archive.header("shape").size == 2 else []
        if len(sizes) != 2 or sizes[0] != sizes[1]:
            raise DataError(f"shape: expected that of a square matrix, got {quote(sizes)}")
        n = sizes[0]
        if not 0 <= n < 1 << 31:
            raise DataError(f"shape: expected 0 to 2**31 - 1 nodes, got {n}")
        claims = [archive.header(name) for name in names]
        if compressed:
            check_csr_claims(claims[0], claims[0], claims[1], (n, n), "adjacency")
            indices, indptr = (archive.read(name) for name in names)
            indices, indptr = check_csr_structure(indices, indptr, (n, n), "adjacency", budget)
            budget.charge(4 * indices.size + 12 * n, "the senders")
            return np.repeat(np.arange(n, dtype=np.int32), np.diff(indptr)), indices, n
        for name, claim in zip(names, claims, strict=True):
            check_kind(claim, name)
        if claims[0].size != claims[1].size:
            raise DataError(
                f"row, col: expected as many, got {claims[0].size} and {claims[1].size}"
            )
        rows, columns = (check_ids(archive.read(name), n, name, budget) for name in names)
        return rows, columns, n


def _check_rows(claim: Header, num_nodes: int) -> None:
    rows = claim.shape[0] if claim.ndim else 0
    if rows != num_nodes:
        raise DataError(f"expected a row for each of the {num_nodes} nodes, got {rows}")


def _class_map(path: pathlib.Path, num_nodes: int, budget: Budget) -> np.ndarray:
    """The class of each node, or zeros and ones `[num_nodes, num_classes]`."""
    with budget.scope():
        entries = read_json(path, budget)
        if len(entries) != num_nodes:
            raise DataError(
                f"expected an entry for each of the {num_nodes} nodes, got {len(entries)}"
            )
        missing = next((i for i in range(num_nodes) if str(i) not in entries), None)
        if missing is not None:
            raise DataError(f"expected an entry for each node, got none for {missing}")
        values = [entries[str(i)] for i in range(num_nodes)]
        if values and isinstance(values[0], list):
            labels = _label_rows(values, budget)
        else:
            labels = check_labels(integers(values, "labels", budget), num_nodes, "labels", budget)
    budget.charge(labels.nbytes, "labels")
    return labels


def _label_rows(values: list[Any], budget: Budget) -> np.ndarray:
    """Rows of zeros and ones, float32."""
    width = len(values[0])
    budget.charge(4 * len(values) * width, "labels")
    labels = np.empty((len(values), width), np.float32)
    for row, value in enumerate(values):
        if not isinstance(value, list) or len(value) != width:
            raise DataError(f"labels: expected {width} for each node, got others for {row}")
        if not all(type(item) is int and item in (0, 1) for item in value):
            raise DataError(f"labels: expected zeros and ones, got others for node {row}")
        labels[row] = value
    return labels


def _roles(path: pathlib.Path, num_nodes: int, budget: Budget) -> Split:
    charge_splits(budget, num_nodes)
    masks = []
    with budget.scope():
        roles = read_json(path, budget)
        for name in ("tr", "va", "te"):
            if name not in roles:
                raise DataError(
                    f"expected the nodes of {name!r}, got {quote(', '.join(list(roles)[:9]))}"
                )
            if not isinstance(roles[name], list):
                raise DataError(f"{name}: expected a list of nodes, got {quote(roles[name])}")
            ids = integers(roles[name], name, budget)
            if ids.size and not 0 <= ids.min() <= ids.max() < num_nodes:
                raise DataError(
                    f"{name}: expected ids from 0 to {num_nodes - 1}, got {ids.min()} to "
                    f"{ids.max()}"
                )
            mask = np.zeros(num_nodes, bool)
            mask[ids] = True
            masks.append(mask)
    return Split(*masks)
