"""Folders of `jaxgnn partition`, read back as one set in the order of the nodes' own ids."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any, get_args

import numpy as np

from jaxgnn._core import checks
from jaxgnn._core.checksum import checksum
from jaxgnn.data.files.limits import DataError, quote, reading, stem_of
from jaxgnn.data.sets.dataset import Metadata, Metric, NodeDataset, Split
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.distributed import _partition_files as files
from jaxgnn.graph import Graph

_MASKS = ("train", "val", "test")
_KINDS = {"name": str, "num_classes": int, "splits": list, "metric": str, "positions": bool}

# What older folders lack.
_OPTIONAL = {"feature_names", "unlabelled", "checksum", "weights_checksum"}


def is_partition(path: str | os.PathLike[str]) -> bool:
    """Whether a directory has the folders of parts, with the manifest or interrupted before it."""
    return (pathlib.Path(path) / "part-00000").is_dir()


def partition_arrays(
    dataset: NodeDataset | PlainGraph | GraphSet,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any] | None]:
    """What `Partition.save` is given of a dataset, so that `read_partition` reads it back.

    Features of edges are left out: `jaxgnn train` uses none.

    Returns:
        Nodes' arrays by name, edges' likewise, and the rest as JSON: of a graph without labels the
        names of the features alone, `None` where it has none.

    Raises:
        ValueError: a set of many graphs.
    """
    if isinstance(dataset, GraphSet):
        raise ValueError("dataset: expected one graph, got a set of graphs")
    arrays: dict[str, np.ndarray] = {}
    edge_arrays = {} if dataset.weights is None else {"weights": np.asarray(dataset.weights)}
    if dataset.features is not None:
        arrays["features"] = np.asarray(dataset.features)
    if dataset.node_names is not None:
        arrays["node_names"] = np.asarray(dataset.node_names)
    names = None if dataset.feature_names is None else list(dataset.feature_names)
    if isinstance(dataset, PlainGraph):
        return arrays, edge_arrays, None if names is None else {"feature_names": names}
    arrays["labels"] = np.asarray(dataset.labels)
    splits = list(dataset.splits.values())
    for name in _MASKS:
        arrays[name] = np.stack([getattr(split, name) for split in splits], axis=1)
    found = checksum(*arrays_before_masks(dataset))
    checksums = {"checksum": found}
    if dataset.weights is not None:
        checksums["weights_checksum"] = checksum(dataset.weights, after=found)
    return (
        arrays,
        edge_arrays,
        {
            "name": dataset.name,
            "num_classes": dataset.num_classes,
            "splits": list(dataset.splits),
            "metric": dataset.metric,
            "positions": dataset.metadata.positions,
            "unlabelled": dataset.metadata.unlabelled,
            "class_names": None if dataset.class_names is None else list(dataset.class_names),
            "feature_names": names,
            **checksums,
        },
    )


def arrays_before_masks(dataset: NodeDataset, *, weights: bool = False) -> list[Any]:
    """The graph, the features and the labels, by which a run knows its data; and the weights of the
    edges, where a run takes them."""
    graph = dataset.graph
    found = [graph.row_offsets, graph.senders, dataset.features, dataset.labels]
    return [*found, dataset.weights] if weights and dataset.weights is not None else found


def has_weights(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has the weights of its edges.

    Raises:
        DataError: an interrupted or damaged manifest.
    """
    return "weights" in files.read_manifest(path)["edge_arrays"]


def partition_nodes(
    path: str | os.PathLike[str], *, weights: bool = False
) -> tuple[NodeDataset, str] | None:
    """Labels and masks of a folder, in a set without edges and with features that are 0, and the
    checksum of what it lacks.

    Args:
        path: the folder.
        weights: the checksum is to be with the weights of the edges.

    Returns:
        `None` for a graph without labels, or a folder without the checksum.

    Raises:
        DataError: an interrupted, damaged or mismatched folder; it names the file.
    """
    manifest = files.read_manifest(path)
    data, name = manifest.get("data"), "weights_checksum" if weights else "checksum"
    if not isinstance(data, dict) or not isinstance(data.get(name), str):
        return None
    arrays = files.read_rows(path, manifest, ("labels", *_MASKS))
    with reading(path):
        if re.fullmatch("[0-9a-f]{8}", data[name]) is None:
            raise DataError(f"manifest.json: data: {name}: got {quote(data[name])}")
        count = manifest["nodes"]
        width = len(_feature_names(data) or [None])
        arrays["features"] = np.broadcast_to(np.float32(0), (count, width))
        none = Graph.from_csr(np.zeros(count + 1, np.int64), np.zeros(0, np.int64))
        return _nodes(data, none, arrays, None, str(path)), data[name]


def read_partition(path: str | os.PathLike[str]) -> NodeDataset | PlainGraph:
    """The whole set of a folder of `jaxgnn partition`: nodes have their original ids.

    Args:
        path: the folder.

    Raises:
        DataError: an interrupted, damaged or mismatched folder; it names the file.
        TypeError: `path` is no path.
    """
    manifest = files.read_manifest(checks.path(path, "path"))
    parts = [files.read_part(path, part) for part in range(manifest["parts"])]
    with reading(path):
        order = np.concatenate([part.nodes for part in parts])
        count = manifest["nodes"]
        if order.size != count or not np.array_equal(np.sort(order), np.arange(count)):
            raise DataError(f"expected each of {count} nodes in one part")
        names = set.intersection(*(set(part.arrays) for part in parts))
        arrays = {
            name: _in_order(order, [part.arrays[name] for part in parts]) for name in sorted(names)
        }
        lengths = [np.diff(part.row_offsets) for part in parts]
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(_in_order(order, lengths), out=offsets[1:])
        starts = [
            np.repeat(offsets[part.nodes] - part.row_offsets[:-1], rows)
            for part, rows in zip(parts, lengths, strict=True)
        ]
        edges = np.concatenate([start + np.arange(start.size) for start in starts])
        graph = Graph.from_csr(offsets, _in_order(edges, [part.senders for part in parts]))
        weights = None
        if "weights" in manifest["edge_arrays"]:
            in_rows = _in_order(edges, [part.edge_arrays["weights"] for part in parts])
            weights = in_rows[np.asarray(graph.edge_permutation)]
        node_names = arrays.get("node_names")
        named = None if node_names is None else tuple(map(str, node_names))
        data = manifest.get("data")
        if data is None or (isinstance(data, dict) and data.keys() == {"feature_names"}):
            return PlainGraph(
                stem_of(path),
                graph,
                weights,
                features=arrays.get("features"),
                node_names=named,
                feature_names=_feature_names(data or {}),
            )
        return _nodes(data, graph, arrays, named, str(path), weights)


def _in_order(order: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
    rows = np.concatenate(values)
    out = np.empty_like(rows)
    out[order] = rows
    return out


def _nodes(
    data: Any,
    graph: Graph,
    arrays: dict[str, np.ndarray],
    node_names: tuple[str, ...] | None,
    source: str,
    weights: np.ndarray | None = None,
) -> NodeDataset:
    if not isinstance(data, dict) or data.keys() - _OPTIONAL != {*_KINDS, "class_names"}:
        raise DataError(f"manifest.json: data: expected {', '.join([*_KINDS, 'class_names'])}")
    for name, kind in _KINDS.items():
        if type(data[name]) is not kind:
            raise DataError(
                f"manifest.json: data: {name}: expected {kind.__name__}, got {quote(data[name])}"
            )
    if data["metric"] not in get_args(Metric):
        raise DataError(f"manifest.json: data: metric: got {quote(data['metric'])}")
    missing = {"features", "labels", *_MASKS} - arrays.keys()
    if missing:
        raise DataError(f"expected arrays of {', '.join(sorted(missing))} in each part")
    splits = data["splits"]
    shape = (graph.num_receivers, len(splits))
    if not all(isinstance(name, str) for name in splits) or len(set(splits)) != len(splits):
        raise DataError("manifest.json: data: splits: expected different names")
    for name in _MASKS:
        if arrays[name].shape != shape:
            raise DataError(f"{name}: expected the shape {shape}, got {arrays[name].shape}")
    class_names = data["class_names"]
    return NodeDataset(
        data["name"],
        graph,
        arrays["features"],
        arrays["labels"],
        data["num_classes"],
        {
            name: Split(*(np.ascontiguousarray(arrays[mask][:, i]) for mask in _MASKS))
            for i, name in enumerate(splits)
        },
        Metadata(
            source,
            metric=data["metric"],
            positions=data["positions"],
            unlabelled=data.get("unlabelled") is True,
        ),
        node_names=node_names,
        class_names=None if class_names is None else tuple(class_names),
        weights=weights,
        feature_names=_feature_names(data),
    )


def _feature_names(data: dict[str, Any]) -> tuple[str, ...] | None:
    names = data.get("feature_names")
    if names is None:
        return None
    if not isinstance(names, list):
        raise DataError(f"manifest.json: data: feature_names: expected a list, got {quote(names)}")
    return tuple(names)
