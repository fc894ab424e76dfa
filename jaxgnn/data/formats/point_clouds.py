"""Readers of point clouds in `.npy` and `.npz` files."""

from __future__ import annotations

import os

import numpy as np

from jaxgnn.data.files.archive import Npz, open_npy, open_npz
from jaxgnn.data.files.checks import (
    charge_graph,
    check_integers,
    check_kind,
    check_offsets,
    read_features,
)
from jaxgnn.data.files.limits import Budget, DataError, quote, reading, stem_of
from jaxgnn.data.sets.dataset import Metadata, Split
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

_POSITIONS = ("positions", "pos", "points", "coords", "xyz")
_OFFSETS = ("ptr", "offsets")
_LABELS = ("labels", "label", "y")
_MOST_DIMENSIONS = 64


def is_point_cloud(keys: set[str]) -> bool:
    """Whether an `.npz` file with these arrays is one of point clouds."""
    return len(keys & set(_POSITIONS)) == 1


def read_points(
    path: str | os.PathLike[str], *, max_bytes: int | None = None
) -> PlainGraph | GraphSet:
    """Point clouds as graphs without edges: `transform.radius_graph` and `knn` add them.

    A `.npy` file holds the points `[points, dimensions]` of one cloud, or `[clouds, points,
    dimensions]`. An `.npz` file holds such an array as `positions`, `pos`, `points`, `coords` or
    `xyz`; with `ptr` (or `offsets`), cloud i is the rows `ptr[i]` to `ptr[i + 1]`. It may hold a
    class a cloud (`labels`, `label`, `y`), `class_names`, and `test_mask`: the split `"file"`
    trains on all others, and leaves `val` empty. Coordinates stay as they are.

    Args:
        path: the file.
        max_bytes: as of `read_matrix_market`.

    Returns:
        A `PlainGraph` of one cloud, a `GraphSet` of several.

    Raises:
        DataError: not such a file, damaged, or more than 64 dimensions.
    """
    budget = Budget(max_bytes)
    with reading(path):
        if not _is_archive(path):
            with open_npy(path, budget) as file:
                _check_dimensions(file.header().shape)
                points = read_features(lambda: _flat(file.read()), "points", budget)
                return _clouds(path, points, file.header().shape, budget)
        with open_npz(path, budget) as archive:
            return _from_archive(path, archive, budget)


def _is_archive(path: str | os.PathLike[str]) -> bool:
    with Budget().open(path) as file:
        return file.read(2) == b"PK"


def _flat(points: np.ndarray) -> np.ndarray:
    return points.reshape(-1, points.shape[-1])


def _check_dimensions(shape: tuple[int, ...]) -> None:
    if len(shape) not in (2, 3) or not 1 <= shape[-1] <= _MOST_DIMENSIONS:
        raise DataError(
            f"points: expected [points, dimensions] or [clouds, points, dimensions], at most "
            f"{_MOST_DIMENSIONS} dimensions, got {quote(shape)}"
        )


def _from_archive(
    path: str | os.PathLike[str], archive: Npz, budget: Budget
) -> PlainGraph | GraphSet:
    key = _one_of(archive, _POSITIONS)
    if key is None:
        raise DataError(f"expected one of {', '.join(_POSITIONS)}, got {_listed(archive)}")
    shape = archive.header(key).shape
    _check_dimensions(shape)
    points = read_features(lambda: _flat(archive.read(key)), key, budget)
    offsets_key = _one_of(archive, _OFFSETS)
    if offsets_key is None:
        offsets = None
    elif len(shape) == 3:
        raise DataError(f"{offsets_key}: expected none beside {key} with three axes")
    else:
        offsets = check_integers(archive.read(offsets_key), offsets_key, budget)
        check_offsets(offsets, len(points), offsets_key)
    return _clouds(path, points, shape, budget, offsets, archive)


def _clouds(
    path: str | os.PathLike[str],
    points: np.ndarray,
    shape: tuple[int, ...],
    budget: Budget,
    offsets: np.ndarray | None = None,
    archive: Npz | None = None,
) -> PlainGraph | GraphSet:
    metadata = Metadata(source=os.fspath(path), positions=True)
    none = np.zeros(0, np.int32)
    if offsets is None and len(shape) == 2:
        charge_graph(budget, len(points), 0)
        label = None if archive is None else _label(archive)
        return PlainGraph(
            name=stem_of(path),
            graph=Graph.from_edges(none, none, num_nodes=len(points)),
            positions=points,
            label=label,
            metadata=metadata,
        )
    if offsets is None:
        budget.charge(16 * (shape[0] + 1), "the offsets")
        offsets = np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
    count = offsets.size - 1
    budget.charge(40 * count, "the clouds")
    labels = test = names = None
    if archive is not None:
        labels = _labels(archive, count)
        names = _class_names(archive, labels)
        test = _test_mask(archive, count)
    num_classes = None if labels is None else max(int(labels.max(initial=-1)) + 1, len(names or ()))
    splits = {}
    if test is not None:
        splits["file"] = Split(train=~test, val=np.zeros(count, bool), test=test)
    return GraphSet(
        name=stem_of(path),
        node_offsets=offsets,
        edge_offsets=np.zeros(count + 1, np.int64),
        senders=none,
        receivers=none,
        positions=points,
        labels=labels,
        num_classes=num_classes,
        splits=splits,
        class_names=names,
        metadata=metadata,
    )


def _one_of(archive: Npz, keys: tuple[str, ...]) -> str | None:
    found = [key for key in keys if key in archive.keys]
    if len(found) > 1:
        raise DataError(f"expected one of {', '.join(keys)}, got {', '.join(found)}")
    return found[0] if found else None


def _listed(archive: Npz) -> str:
    return quote(", ".join(sorted(archive.keys)[:9]))


def _labels(archive: Npz, count: int) -> np.ndarray | None:
    key = _one_of(archive, _LABELS)
    if key is None:
        return None
    header = archive.header(key)
    check_kind(header, key)
    if header.size != count:
        raise DataError(f"{key}: expected {count} classes, one a cloud, got {header.size}")
    labels = archive.read(key)
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < count:
        raise DataError(
            f"{key}: expected classes from 0, fewer than clouds, "
            f"got {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int32)


def _label(archive: Npz) -> int | None:
    """The class of the one cloud of a file, which may have any number."""
    key = _one_of(archive, _LABELS)
    if key is None:
        return None
    header = archive.header(key)
    if header.dtype.kind not in "iu" or header.size != 1:
        got = f"{header.dtype}{quote(header.shape)}"
        raise DataError(f"{key}: expected the class of the one cloud, got {got}")
    return int(archive.read(key).item())


def _class_names(archive: Npz, labels: np.ndarray | None) -> tuple[str, ...] | None:
    if labels is None or "class_names" not in archive.keys:
        return None
    header = archive.header("class_names")
    if header.dtype.kind != "U" or header.ndim != 1:
        raise DataError(f"class_names: expected text, got {header.dtype}{quote(header.shape)}")
    if header.size > labels.size or header.size <= labels.max(initial=-1):
        raise DataError(f"class_names: expected one a class, got {header.size}")
    return tuple(archive.read("class_names").tolist())


def _test_mask(archive: Npz, count: int) -> np.ndarray | None:
    if "test_mask" not in archive.keys:
        return None
    header = archive.header("test_mask")
    if header.dtype != np.bool_ or header.shape != (count,):
        raise DataError(
            f"test_mask: expected bool[{count}], got {header.dtype}{quote(header.shape)}"
        )
    return archive.read("test_mask")
