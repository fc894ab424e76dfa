"""Reader of the protein-protein interaction graphs of GraphSAGE: PPI's JSON and npy files."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxgnn.data.files.archive import open_npy
from jaxgnn.data.files.checks import charge_graph, charge_splits, check_integers, read_features
from jaxgnn.data.files.json_objects import integers, read_json
from jaxgnn.data.files.limits import Budget, DataError, quote, reading
from jaxgnn.data.sets.dataset import NodeDataset, Split
from jaxgnn.data.sets.provenance import metadata_of
from jaxgnn.graph import Graph

_PARTS = ("train", "valid", "test")
PPI_FILES = tuple(f"{part}_{what}" for part in _PARTS for what in ("graph.json", "feats.npy"))


def read_ppi(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> NodeDataset:
    """PPI, as `ppi.zip` of DGL and PyG has it: `train_graph.json`, `train_feats.npy`,
    `train_labels.npy`, `train_graph_id.npy`, and those of `valid` and `test`.

    The union of the 24 graphs, in the order of the files; the split is by graphs. Self-loops and
    repeated edges are left out, and where a file says that its graph is undirected each edge runs
    both ways, as PyG's `PPI` reads it. A node has several labels: the score is the micro-averaged
    F1.

    Args:
        path: the directory; its name is the set's.
        max_bytes: refuse to take more memory, all together; by default 1,024 bytes for each of
            the files, at least 256 MiB and at most 16 GiB.

    Raises:
        DataError: a file is missing or damaged, or they don't fit together.
    """
    folder = pathlib.Path(path)
    budget = Budget(max_bytes)
    features, labels, edges, counts = [], [], [], []
    for part in _PARTS:
        rows, values = _nodes(folder, part, budget)
        with reading(folder / f"{part}_graph.json"):
            pairs = _edges(folder / f"{part}_graph.json", len(rows), budget)
        features.append(rows)
        labels.append(values)
        edges.append(pairs + sum(counts))
        counts.append(len(rows))
    with reading(folder):
        for what, arrays in (("features", features), ("labels", labels)):
            if len({array.shape[1] for array in arrays}) > 1:
                raise DataError(f"{what}: expected as many columns in all parts")
            budget.charge(sum(array.nbytes for array in arrays), what)
        n = sum(counts)
        charge_splits(budget, n)
        part_of = np.repeat(np.arange(3), counts)
        charge_graph(budget, n, sum(pairs.shape[1] for pairs in edges))
        return NodeDataset(
            name=folder.resolve().name,
            graph=Graph.from_edges(*np.concatenate(edges, axis=1), num_nodes=n),
            features=np.concatenate(features),
            labels=np.concatenate(labels),
            num_classes=labels[0].shape[1],
            splits={"published": Split(*(part_of == i for i in range(3)))},
            metadata=metadata_of("ppi", source=os.fspath(path), metric="micro_f1"),
        )


def _nodes(
    folder: pathlib.Path, part: str, budget: Budget
) -> tuple[Float[np.ndarray, "nodes features"], Float[np.ndarray, "nodes classes"]]:
    """The features and the labels, zeros and ones, of a part."""
    with open_npy(folder / f"{part}_feats.npy", budget) as array:
        features = read_features(array.read, "feats", budget)
    with open_npy(folder / f"{part}_labels.npy", budget) as array:
        labels = read_features(array.read, "labels", budget)
        if len(labels) != len(features) or not np.isin(labels, (0, 1)).all():
            raise DataError(
                f"expected zeros and ones for each of the {len(features)} nodes, got the shape "
                f"{quote(labels.shape)}"
            )
    with open_npy(folder / f"{part}_graph_id.npy", budget) as array, budget.scope():
        graphs = check_integers(array.read(), "graph_id", budget)
        if graphs.shape != (len(features),):
            raise DataError(f"expected {len(features)} numbers, got {quote(graphs.shape)}")
    return features, labels


def _edges(path: pathlib.Path, n: int, budget: Budget) -> Int[np.ndarray, "2 edges"]:
    """The links between the nodes of a part, each once, without self-loops."""
    with budget.scope():
        value = read_json(path, budget)
        nodes, links = (_list(value, name) for name in ("nodes", "links"))
        if len(nodes) != n:
            raise DataError(f"nodes: expected {n}, got {len(nodes)}")
        ends = [integers(_all(links, end), end, budget) for end in ("source", "target")]
        undirected = value.get("directed") is not True
        for end, ids in zip(("source", "target"), ends, strict=True):
            if ids.size and not 0 <= ids.min() <= ids.max() < n:
                raise DataError(f"{end}: expected 0 to {n - 1}, got {ids.min()} to {ids.max()}")
        budget.charge(4 * 8 * 2 * len(links), "the edges")
        keys = ends[0] * n + ends[1]
        if undirected:
            keys = np.concatenate([keys, ends[1] * n + ends[0]])
        keys = np.unique(keys)
    budget.charge(16 * keys.size, "the edges")
    pairs = np.stack([keys // max(n, 1), keys % max(n, 1)])
    return pairs[:, pairs[0] != pairs[1]]


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    if not isinstance(found, list):
        raise DataError(f"expected a list {name!r}, got {quote(found)}")
    return found


def _all(links: list[Any], end: str) -> list[Any]:
    if not all(isinstance(link, dict) and end in link for link in links):
        raise DataError(f"links: expected a {end!r} in each")
    return [link[end] for link in links]
