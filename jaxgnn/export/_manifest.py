"""`manifest.json`: what an exported model expects, checked before anything else is read."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Literal

from jaxgnn.data.files.limits import Budget, DataError, display_path, quote, reading

FILE = "manifest.json"
TEMPORARY = f"{FILE}.tmp"
PROGRAM = "program.bin"
WEIGHTS = "variables.npz"
DECODER = "decoder.bin"
DECODER_WEIGHTS = "decoder.npz"
FORMAT = 4
PLATFORMS = ("cpu", "cuda")

_LARGEST = 1 << 24  # bytes of a manifest
_COUNTS = ("num_nodes", "num_edges", "num_graphs")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is beside `program.bin` and `variables.npz`; of links also `decoder.bin`, `decoder.npz`.

    Attributes:
        format: of the directory.
        jaxgnn, jax: the versions that wrote it.
        platforms: those that the program was lowered for.
        portable: whether it needs none of our kernels.
        kernels: the FFI targets that it calls, by platform.
        num_nodes, num_edges: of the graphs that it takes.
        num_graphs: the most graphs of a union, which has one more of padding; 0: it takes a graph,
            and has outputs a node.
        num_features, num_classes: widths of its input and output. No features: it has an embedding
            of the nodes, of which there are `num_nodes` - 1, or of unions it reads the degrees.
        normalized_features: whether it expects what `jaxgnn.data.normalize_features` makes of the
            nodes' features, of unions each graph's, as its training did; the program takes them as
            they are.
        feature_names: names of its features in their order, or `None`.
        num_edge_features: width of the edges' features that it reads.
        edge_weights: whether it reads a weight of each edge, in the type of the sums.
        dtype: of its features.
        multilabel: whether a node may have several labels.
        class_names: names of the classes, or `None`.
        arrays: the names of its arguments between the weights and the features.
        links: whether it encodes nodes for a decoder of pairs, which is there too.
        sha256: of the other files, by name.
    """

    format: int
    jaxgnn: str
    jax: str
    platforms: tuple[str, ...]
    portable: bool
    kernels: dict[str, tuple[str, ...]]
    num_nodes: int
    num_edges: int
    num_graphs: int
    num_features: int
    normalized_features: bool
    feature_names: tuple[str, ...] | None
    num_edge_features: int
    edge_weights: bool
    num_classes: int
    dtype: str
    multilabel: bool
    class_names: tuple[str, ...] | None
    arrays: tuple[str, ...]
    links: bool
    sha256: dict[str, str]

    @property
    def kind(self) -> Literal["nodes", "links", "graphs"]:
        """What it has outputs for."""
        return "links" if self.links else "graphs" if self.num_graphs else "nodes"

    @property
    def has_membership(self) -> bool:
        """Whether it takes a union of graphs, or a graph and its padding as the union of both."""
        return any(name.startswith(("graph_ids", "membership")) for name in self.arrays)

    @property
    def files(self) -> set[str]:
        """The names of the other files."""
        return {PROGRAM, WEIGHTS} | ({DECODER, DECODER_WEIGHTS} if self.links else set())

    def write(self, directory: Path) -> None:
        """Writes the file last of all, whole or not at all."""
        temporary = directory / TEMPORARY
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(directory / FILE)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a directory.

    Raises:
        DataError: there is none, or it is damaged.
    """
    path = directory / FILE
    try:
        is_there = path.exists()
    except (OSError, ValueError):  # a name that is too long, or with a NUL
        is_there = False
    if not is_there:
        raise DataError(f"{display_path(directory)}: no exported model (no {FILE})")
    with reading(path):
        try:
            value = json.loads(Budget(_LARGEST).read(path).decode())
        except RecursionError:
            raise DataError("expected JSON that is not nested deeply") from None
        return _checked(value)


def _checked(value: Any) -> Manifest:
    if not isinstance(value, dict):
        raise DataError("expected an object")
    found = value.get("format")
    if type(found) is not int or found != FORMAT:
        raise DataError(f"expected format {FORMAT}, got {quote(found)}: export the run again")
    names = [field.name for field in dataclasses.fields(Manifest)]
    if value.keys() != set(names):
        raise DataError(f"expected the keys {', '.join(names)}")
    for name in ("jaxgnn", "jax"):
        _expect(type(value[name]) is str, name, "a version", value[name])
    for name in ("portable", "multilabel", "links", "edge_weights", "normalized_features"):
        _expect(type(value[name]) is bool, name, "true or false", value[name])
    _expect(not (value["links"] and value["num_graphs"]), "links", "false of graphs", True)
    if value["links"] or value["num_graphs"]:
        _expect(not value["edge_weights"], "edge_weights", "false of links and of graphs", True)
    may_be_0 = {"num_edges", "num_graphs", "num_edge_features"}
    if value["links"] or value["num_graphs"]:
        may_be_0.add("num_features")
    for name in (*_COUNTS, "num_features", "num_edge_features", "num_classes"):
        known = type(value[name]) is int and int(name not in may_be_0) <= value[name] < 1 << 40
        _expect(known, name, "a count", value[name])
    _expect(value["dtype"] in _DTYPES, "dtype", f"one of {', '.join(_DTYPES)}", value["dtype"])
    for name in ("platforms", "arrays"):
        value[name] = _names(value[name], name)
    for name, count in (("class_names", "num_classes"), ("feature_names", "num_features")):
        if value[name] is not None:
            value[name] = _names(value[name], name)
            known = len(value[name]) == value[count]
            _expect(known, name, f"{value[count]} names", len(value[name]))
    platforms = value["platforms"]
    known = len(platforms) > 0 and set(platforms) <= set(PLATFORMS)
    _expect(known, "platforms", f"some of {', '.join(PLATFORMS)}", platforms)
    kernels = value["kernels"]
    known = isinstance(kernels, dict) and kernels.keys() == set(platforms)
    _expect(known, "kernels", "lists by platform", kernels)
    value["kernels"] = {key: _names(listed, "kernels") for key, listed in kernels.items()}
    sums = value["sha256"]
    known = isinstance(sums, dict) and all(type(item) is str for item in sums.values())
    _expect(known, "sha256", "checksums by name", sums)
    manifest = Manifest(**value)
    known = sums.keys() == manifest.files
    _expect(known, "sha256", f"those of {' and '.join(sorted(manifest.files))}", sums)
    return manifest


def _names(value: Any, name: str) -> tuple[str, ...]:
    known = isinstance(value, list) and all(type(item) is str for item in value)
    _expect(known, name, "a list of names", value)
    return tuple(value)


def _expect(condition: bool, name: str, expected: str, got: Any) -> None:
    if not condition:
        raise DataError(f"{name}: expected {expected}, got {quote(got)}")
