"""Folders of partitions: a folder a part, and a manifest with the checksum of every file.

    manifest.json                format, version, parts, nodes, edges, statistics, files,
                                 edge_arrays, data
    part-00000/nodes.npy         the part's nodes, ascending, int64
    part-00000/row_offsets.npy   of its rows, int64
    part-00000/senders.npy       of its edges, by their ids in the whole graph
    part-00000/NAME.npy          its rows of each array that was given: of its nodes, or, where
                                 edge_arrays names it, of its edges

The manifest is written last: without it the folder is not a partition. A folder without edge
arrays is of version 1, which has no such key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxgnn._core import checks
from jaxgnn._core.limits import Budget, DataError, quote, reading

if TYPE_CHECKING:
    from jaxgnn.distributed._partition import Partition

_FORMAT, _VERSION = "jaxgnn partition", 2
_MANIFEST = "manifest.json"
_OWN = ("nodes", "row_offsets", "senders")


class PartData(NamedTuple):
    """What one process reads of a partition.

    Attributes:
        nodes: the part's nodes by their ids in the whole graph, ascending, int64.
        row_offsets: int64 `[nodes + 1]`: row i is of `nodes[i]`.
        senders: by their ids in the whole graph.
        arrays: the part's rows of the nodes' arrays that `Partition.save` was given.
        edge_arrays: likewise of the edges' arrays, in the order of `senders`.
    """

    nodes: np.ndarray
    row_offsets: np.ndarray
    senders: np.ndarray
    arrays: dict[str, np.ndarray]
    edge_arrays: dict[str, np.ndarray]


def save(
    partition: Partition,
    directory: str | os.PathLike[str],
    offsets: np.ndarray,
    senders: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    edge_arrays: Mapping[str, np.ndarray],
    data: Mapping[str, Any] | None,
) -> None:
    """Writes the folder; holds one part at a time."""
    root, count = Path(directory), partition.owner.size
    if offsets.size != count + 1:
        raise ValueError(f"graph: expected {count} nodes, got {offsets.size - 1}")
    arrays = _checked(arrays, "arrays", count)
    edge_arrays = _checked(edge_arrays, "edge_arrays", int(offsets[-1]))
    for name in edge_arrays:
        if name in arrays:
            raise ValueError(f"edge_arrays: expected other names than those of arrays, got {name}")
    described = None if data is None else _as_json(data)
    if root.exists() and not root.is_dir():
        raise ValueError(f"directory: expected a directory, got the file {os.fspath(directory)!r}")
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise ValueError(f"directory: expected an empty one, got {os.fspath(directory)!r}")
    files = {}
    for part in range(partition.parts):
        nodes = np.flatnonzero(partition.owner == part)
        lengths = offsets[nodes + 1] - offsets[nodes]
        rows = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        edges = np.arange(rows[-1]) + np.repeat(offsets[nodes] - rows[:-1], lengths)
        contents = {"nodes": nodes.astype(np.int64), "row_offsets": rows, "senders": senders[edges]}
        contents |= {name: values[nodes] for name, values in arrays.items()}
        contents |= {name: values[edges] for name, values in edge_arrays.items()}
        (root / _folder(part)).mkdir()
        for name, values in contents.items():
            stream = io.BytesIO()
            np.save(stream, values, allow_pickle=False)
            content = stream.getbuffer()
            path = f"{_folder(part)}/{name}.npy"
            (root / path).write_bytes(content)
            files[path] = {"bytes": content.nbytes, "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "format": _FORMAT,
        "version": _VERSION if edge_arrays else 1,
        "parts": partition.parts,
        "nodes": count,
        "edges": int(offsets[-1]),
        "statistics": dataclasses.asdict(partition.statistics),
        "files": files,
    }
    if edge_arrays:
        manifest["edge_arrays"] = sorted(edge_arrays)
    if described is not None:
        manifest["data"] = described
    temporary = root / f"{_MANIFEST}.tmp"
    temporary.write_text(json.dumps(manifest, indent=1), "utf-8")
    os.replace(temporary, root / _MANIFEST)


def _as_json(data: Any) -> dict[str, Any]:
    """`data`, which JSON can have; before anything is written."""
    if not isinstance(data, Mapping):
        raise TypeError(f"data: expected a mapping, got {type(data).__name__}")
    try:
        json.dumps(dict(data), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"data: expected what JSON has: {error}") from error
    return dict(data)


def _checked(arrays: Mapping[str, Any], what: str, rows: int) -> dict[str, np.ndarray]:
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{what}: expected arrays by name, got {type(arrays).__name__}")
    for name in arrays:
        if not isinstance(name, str):
            raise TypeError(f"{what}: expected names, got {name!r}")
    found = {name: checks.host_array(values, f"{what}: {name}") for name, values in arrays.items()}
    for name, values in found.items():
        if not name.isidentifier() or name in _OWN:
            raise ValueError(
                f"{what}: expected identifiers other than {', '.join(_OWN)} as names, got {name!r}"
            )
        if values.shape[:1] != (rows,) or values.dtype.kind not in "biufSU":
            raise ValueError(
                f"{what}: {name}: expected numbers with {rows} rows, got {values.dtype} of the "
                f"shape {values.shape}"
            )
    return found


def read_part(directory: str | os.PathLike[str], part: int) -> PartData:
    """One part's data, checked; no other part's files are opened."""
    root, manifest = checks.path(directory, "directory"), read_manifest(directory)
    part = checks.integer(part, "part", 0, manifest["parts"] - 1)
    prefix = f"{_folder(part)}/"
    names = [path[len(prefix) : -4] for path in manifest["files"] if path.startswith(prefix)]
    names += [*_OWN, *manifest["edge_arrays"]]
    arrays = {name: _read(root, f"{prefix}{name}.npy", manifest) for name in set(names)}
    nodes, offsets, senders = (arrays.pop(name) for name in _OWN)
    edge_arrays = {name: arrays.pop(name) for name in manifest["edge_arrays"]}
    with reading(root / prefix):
        _check_part(nodes, offsets, senders, manifest["nodes"])
        for found, rows in ((arrays, nodes), (edge_arrays, senders)):
            if any(values.shape[:1] != rows.shape for values in found.values()):
                raise DataError("the files of the part do not belong together")
    return PartData(nodes, offsets, senders, arrays, edge_arrays)


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest, checked as far as it is used."""
    path = checks.path(directory, "directory") / _MANIFEST
    with reading(path):
        found = json.loads(Budget().read(path))
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise DataError("expected the manifest of a partition")
        version = found.get("version")
        if type(version) is not int or not 1 <= version <= _VERSION:
            raise DataError(f"expected version 1 to {_VERSION}, got {quote(version)}")
        parts, nodes, edges = found.get("parts"), found.get("nodes"), found.get("edges")
        if type(parts) is not int or type(nodes) is not int or not 1 <= parts <= nodes:
            raise DataError(f"parts and nodes are out of range: {quote(parts)}, {quote(nodes)}")
        if type(edges) is not int or edges < 0:
            raise DataError(f"edges: expected an integer from 0, got {quote(edges)}")
        if not isinstance(found.get("files"), dict):
            raise DataError("expected a table of files")
        if parts * len(_OWN) > len(found["files"]):  # before there is anything for each part
            raise DataError(f"expected the files of {parts} parts, got {len(found['files'])} files")
        _check_names(found.setdefault("edge_arrays", []))
    return found


def read_owner(directory: str | os.PathLike[str], manifest: dict[str, Any]) -> np.ndarray:
    """The owner of each node, from the nodes of all parts."""
    root, count = Path(directory), manifest["nodes"]
    paths = [f"{_folder(part)}/nodes.npy" for part in range(manifest["parts"])]
    parts = [_read(root, path, manifest) for path in paths]
    with reading(root / _MANIFEST):  # before there is a number for each
        if sum(nodes.size for nodes in parts) < count:
            raise DataError("some nodes have no part")
    owner = np.full(count, -1, np.int32)
    for part, (path, nodes) in enumerate(zip(paths, parts, strict=True)):
        with reading(root / path):
            _check_nodes(nodes, count)
            if (owner[nodes] >= 0).any():
                raise DataError("it has nodes of another part")
            owner[nodes] = part
    return owner


def read_rows(
    directory: str | os.PathLike[str], manifest: dict[str, Any], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Arrays of all nodes, in their order, of those that each part has."""
    root, found = Path(directory), {}
    folders = [_folder(part) for part in range(manifest["parts"])]
    nodes = [_read(root, f"{folder}/nodes.npy", manifest) for folder in folders]
    order = np.concatenate(nodes)
    with reading(root / _MANIFEST):
        if not np.array_equal(np.sort(order), np.arange(manifest["nodes"])):
            raise DataError(f"expected each of {manifest['nodes']} nodes in one part")
    for name in names:
        paths = [f"{folder}/{name}.npy" for folder in folders]
        if all(path in manifest["files"] for path in paths):
            parts = [_read(root, path, manifest) for path in paths]
            with reading(root / _MANIFEST):
                if [part.shape[:1] for part in parts] != [part.shape for part in nodes]:
                    raise DataError(f"{name}: the files of the parts do not belong together")
                found[name] = np.concatenate(parts)[np.argsort(order)]
    return found


def _check_names(names: Any) -> None:
    """That they are different names of edge arrays."""
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not are_names or len({*names, *_OWN}) != len(names) + len(_OWN):
        raise DataError(f"edge_arrays: expected different names of arrays, got {quote(names)}")


def _check_nodes(nodes: np.ndarray, count: int) -> None:
    """That they are nodes of the whole graph, ascending."""
    if nodes.ndim != 1 or nodes.dtype != np.int64 or (np.diff(nodes) <= 0).any():
        raise DataError("nodes: expected int64, ascending")
    if nodes.size and not 0 <= nodes[0] <= nodes[-1] < count:
        raise DataError(f"expected nodes from 0 to {count - 1}")


def _check_part(nodes: np.ndarray, offsets: np.ndarray, senders: np.ndarray, count: int) -> None:
    _check_nodes(nodes, count)
    if offsets.shape != (nodes.size + 1,) or offsets.dtype != np.int64:
        raise DataError("the files of the part do not belong together")
    if offsets[0] != 0 or offsets[-1] != senders.size or (np.diff(offsets) < 0).any():
        raise DataError(f"row_offsets: expected an ascent from 0 to {senders.size}")
    if senders.ndim != 1 or senders.dtype.kind not in "iu":
        raise DataError(f"senders: expected integers with 1 axis, got {senders.dtype}")
    if senders.size and not 0 <= senders.min() <= senders.max() < count:
        raise DataError(f"senders: expected nodes from 0 to {count - 1}")


def _folder(part: int) -> str:
    return f"part-{part:05d}"


def _read(root: Path, path: str, manifest: dict[str, Any]) -> np.ndarray:
    from jaxgnn.data.files.archive import Npy  # loaded when first used

    with reading(root / path):
        entry = manifest["files"].get(path)
        if not isinstance(entry, dict):
            raise DataError("the manifest does not name this file")
        with Budget().open(root / path) as file:
            if file.size != entry.get("bytes"):
                raise DataError(f"expected {quote(entry.get('bytes'))} bytes, got {file.size}")
            data = file.read_all()
        if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
            raise DataError("the checksum differs: the file is damaged or of another partition")
        return Npy(io.BytesIO(data), len(data), Budget()).read()
