"""`load`, `load_links`, `load_graphs`: exported models, checked before they run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax import export

from jaxgnn._core import checks, platform
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.data.files.archive import open_npz
from jaxgnn.data.files.limits import Budget, DataError, display_path, quote, reading
from jaxgnn.export import _flat, _unions
from jaxgnn.export._manifest import (
    DECODER,
    DECODER_WEIGHTS,
    PROGRAM,
    WEIGHTS,
    Manifest,
    read_manifest,
)
from jaxgnn.export._models import ExportedGraphModel, ExportedLinkModel, ExportedModel
from jaxgnn.export._save import custom_calls
from jaxgnn.graph import Graph
from jaxgnn.graph.batch import disjoint_union

# What JAX's own operations call, beside our kernels: no other target runs. Symbolic sizes are
# asserted when they are known.
_HARMLESS = {"mhlo.topk", "Sharding", "shape_assertion"}


def load(directory: str | os.PathLike[str]) -> ExportedModel:
    """An exported model for the default device.

    The files' checksums, the versions, the program's types and the targets of its custom calls are
    checked; no pickle is read.

    Args:
        directory: what `save` wrote.

    Raises:
        DataError: no exported model, a damaged one, one of another version or for another platform,
            kernels that this installation lacks, or a model of links or of many graphs.
        TypeError: `directory` is no path.
    """
    directory = checks.path(directory, "directory")
    manifest = _manifest(directory, "nodes")
    return ExportedModel(manifest, *_encoder(directory, manifest))


def load_graphs(directory: str | os.PathLike[str]) -> ExportedGraphModel:
    """An exported model of many graphs for the default device; checked as by `load`.

    Args:
        directory: what `save` wrote with `num_graphs`.

    Raises:
        DataError: as `load`, or a model of nodes or of links.
        TypeError: `directory` is no path.
    """
    directory = checks.path(directory, "directory")
    manifest = _manifest(directory, "graphs")
    return ExportedGraphModel(manifest, *_encoder(directory, manifest))


def load_links(directory: str | os.PathLike[str]) -> ExportedLinkModel:
    """An exported model of links for the default device; checked as by `load`.

    Args:
        directory: what `save` wrote with a decoder.

    Raises:
        DataError: as `load`, or a model of nodes or of many graphs.
        TypeError: `directory` is no path.
    """
    directory = checks.path(directory, "directory")
    manifest = _manifest(directory, "links")
    encoder = ExportedModel(manifest, *_encoder(directory, manifest))
    program, weights = _program(directory, manifest, DECODER, DECODER_WEIGHTS, set())
    with reading(directory):
        _check_decoder(program, manifest, weights)
    return ExportedLinkModel(encoder, program, jax.device_put(weights))


def _manifest(directory: Path, kind: Literal["nodes", "links", "graphs"]) -> Manifest:
    """The manifest of a model of this kind."""
    manifest = read_manifest(directory)
    if manifest.kind != kind:
        loader = "load" if manifest.kind == "nodes" else f"load_{manifest.kind}"
        raise DataError(
            f"{display_path(directory)}: a model of {manifest.kind}, for jaxgnn.export.{loader}"
        )
    return manifest


def _encoder(directory: Path, manifest: Manifest) -> tuple[export.Exported, dict[str, Any]]:
    """The program with our kernels, and its weights on the device."""
    _check_versions(manifest, display_path(directory))
    known = {name for names in manifest.kernels.values() for name in names}
    program, weights = _program(directory, manifest, PROGRAM, WEIGHTS, known)
    with reading(directory):
        _check_types(program, manifest, weights)
    return program, jax.device_put(weights)


def _program(
    directory: Path, manifest: Manifest, program_file: str, weights_file: str, kernels: set[str]
) -> tuple[export.Exported, dict[str, np.ndarray]]:
    """A program that calls these kernels at most, and its weights, as the checksums have them."""
    blob = _read(directory / program_file, manifest)
    _read(directory / weights_file, manifest)
    with reading(directory / program_file):
        program = _deserialized(blob, manifest)
        _check_calls(program, kernels)
        if tuple(program.platforms) != manifest.platforms:
            raise DataError(f"platforms: the program has {', '.join(program.platforms)}")
    path = directory / weights_file
    with reading(path), open_npz(path, Budget()) as archive:
        return program, {name: archive.read(name) for name in sorted(archive.keys)}


def _check_versions(manifest: Manifest, where: str) -> None:
    import jaxgnn

    if not manifest.portable and manifest.jaxgnn != jaxgnn.__version__:
        raise DataError(
            f"{where}: exported by jaxgnn {quote(manifest.jaxgnn)}, whose kernels are not those of "
            f"{jaxgnn.__version__}: export the run again, or with --portable"
        )
    if manifest.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise DataError(f"{where}: needs jax.config.update('jax_enable_x64', True)")
    name = platform.of_device()
    if name not in manifest.platforms:
        listed = ", ".join(manifest.platforms)
        raise DataError(f"{where}: exported for {listed}, the default device is of {name}")
    lacking = [target for target in manifest.kernels[name] if not platform.serves(name, target)]
    if lacking:
        reason = platform.why_not(name) or "another build"
        raise DataError(f"{where}: needs the kernel {quote(lacking[0])} on {name}: {reason}")


def _read(path: Path, manifest: Manifest) -> bytes:
    with reading(path):
        blob = Budget().read(path)
        if hashlib.sha256(blob).hexdigest() != manifest.sha256[path.name]:
            raise DataError("its checksum is not that of the manifest")
    return blob


def _deserialized(blob: bytes, manifest: Manifest) -> export.Exported:
    try:
        return export.deserialize(bytearray(blob))
    except ImportError:
        raise DataError("needs flatbuffers: pip install 'jaxgnn[export]'") from None
    except Exception as error:  # flatbuffers and MLIR raise what they like
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DataError(
            f"jax {jax.__version__} cannot read it, written by jax {quote(manifest.jax)}: {first}"
        ) from error


def _check_calls(program: export.Exported, known: set[str]) -> None:
    unknown = custom_calls(program) - known - _HARMLESS
    unknown |= {name for name in known if not name.startswith("jaxgnn_")}
    if unknown:
        raise DataError(f"expected calls of jaxgnn's kernels alone, got {quote(min(unknown))}")


def _check_types(
    program: export.Exported, manifest: Manifest, weights: dict[str, np.ndarray]
) -> None:
    """That the program takes what the manifest says and the files hold."""
    graph = Graph.from_edges(np.zeros(1, int), np.zeros(1, int), num_nodes=1)
    rows = manifest.num_graphs + 1 if manifest.num_graphs else manifest.num_nodes
    if manifest.num_graphs or manifest.has_membership:
        union = _unions.padded_union(disjoint_union([graph]), 1, 1, 1)
        names = _unions.names_and_arrays(union, manifest.portable)[0]
    else:
        names = _flat.names_and_arrays(_flat.padded(graph, 1, 1), manifest.portable)[0]
    if manifest.arrays != names:
        raise DataError(f"arrays: expected {', '.join(names)}, got {quote(manifest.arrays)}")
    shapes = [(manifest.num_nodes, manifest.num_features)]
    if manifest.num_edge_features:
        shapes.append((manifest.num_edges, manifest.num_edge_features))
    features = [jax.ShapeDtypeStruct(shape, manifest.dtype) for shape in shapes]
    if manifest.edge_weights:
        dtype = accumulation_dtype(manifest.dtype)
        features.append(jax.ShapeDtypeStruct((manifest.num_edges,), dtype))
    arguments: Any = ((weights, [0] * len(names), *features), {})
    if jax.tree.structure(arguments) != program.in_tree:
        raise DataError("the program's arguments are not the weights and the arrays of a graph")
    found = list(program.in_avals)
    _check_avals(found, [*weights.values(), *found[len(weights) : -len(features)], *features])
    out = [(aval.shape, str(aval.dtype)) for aval in program.out_avals]
    if len(out) != 1 or out[0][0] != (rows, manifest.num_classes):
        what = "graph" if manifest.num_graphs else "node"
        raise DataError(f"the program's result is not a row of classes for each {what}")


def _check_decoder(
    program: export.Exported, manifest: Manifest, weights: dict[str, np.ndarray]
) -> None:
    """That it takes what the encoder gives, and any number of pairs."""
    found = list(program.in_avals)
    arguments: Any = ((weights, 0, 0, 0), {})
    if jax.tree.structure(arguments) != program.in_tree:
        raise DataError("the decoder's arguments are not its weights, nodes and pairs")
    nodes, senders, receivers = found[len(weights) :]
    _check_avals(found[: len(weights)], list(weights.values()))
    known = len(nodes.shape) == 2 and nodes.shape[1] == manifest.num_classes
    ends = [(end.shape, end.dtype) for end in (senders, receivers)]
    known &= len(senders.shape) == 1 and ends[0] == ends[1] and senders.dtype == np.int32
    sizes = (*nodes.shape[:1], *senders.shape)
    known &= len(sizes) == 2 and not any(isinstance(size, int) for size in sizes)
    known &= [aval.shape for aval in program.out_avals] == [senders.shape]
    if not known:
        raise DataError("the decoder does not score pairs of any number of nodes")


def _check_avals(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for have, want in zip(found, expected, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            raise DataError(
                f"the program expects {have.dtype}{list(have.shape)}, the files hold "
                f"{want.dtype}{list(want.shape)}"
            )
