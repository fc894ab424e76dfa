"""`load`: an exported model, called as `model(graph, x)`."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, ArrayLike, Float

from jaxgnn._core import platform
from jaxgnn.data.archive import open_npz
from jaxgnn.data.limits import Budget, DataError, display_path, quote, reading
from jaxgnn.export._flat import names_and_arrays, padded
from jaxgnn.export._manifest import PROGRAM, WEIGHTS, Manifest, read_manifest
from jaxgnn.export._save import custom_calls
from jaxgnn.graph import Graph

# What JAX's own operations call, beside our kernels: no other target runs.
_HARMLESS = {"mhlo.topk", "Sharding"}


class ExportedModel:
    """A model that `jaxgnn.export.save` or `jaxgnn export` wrote.

    Attributes:
        manifest: what it expects, and the versions that wrote it.
    """

    def __init__(self, manifest: Manifest, program: export.Exported, weights: dict[str, Array]):
        self.manifest = manifest
        self._weights = weights
        self._call = jax.jit(program.call)
        self._flat: weakref.WeakKeyDictionary[Graph, list[Array]] = weakref.WeakKeyDictionary()

    def __call__(
        self, graph: Graph, x: Float[ArrayLike, "nodes features"]
    ) -> Float[Array, "nodes classes"]:
        """The model's outputs at the nodes of a graph.

        A graph is padded to the exported size at its first call, on the host, and its arrays are
        kept as long as it lives.

        Args:
            graph: a square graph of at most the exported size.
            x: the features of its nodes.

        Raises:
            DataError: a graph that is too large or rectangular, or features of another shape.
        """
        expected = self.manifest
        shape = np.shape(x)
        if len(shape) != 2 or shape != (graph.num_receivers, expected.num_features):
            raise DataError(
                f"x: expected the shape [{graph.num_receivers}, {expected.num_features}], got "
                f"{list(shape)}"
            )
        arrays = self._flat.get(graph)
        if arrays is None:
            whole = padded(graph, expected.num_nodes, expected.num_edges)
            arrays = names_and_arrays(whole, expected.portable)[1]
            self._flat[graph] = arrays
        features = jnp.asarray(x, expected.dtype)
        missing = expected.num_nodes - graph.num_receivers
        if missing:
            features = jnp.pad(features, ((0, missing), (0, 0)))
        out = self._call(self._weights, arrays, features)
        return out[: graph.num_receivers] if missing else out

    def __repr__(self) -> str:
        m = self.manifest
        return (
            f"ExportedModel(num_nodes={m.num_nodes}, num_edges={m.num_edges}, "
            f"num_features={m.num_features}, num_classes={m.num_classes}, portable={m.portable})"
        )


def load(directory: str | os.PathLike[str]) -> ExportedModel:
    """An exported model for the default device.

    The files' checksums, the versions, the program's types and the targets of its custom calls are
    checked; no pickle is read.

    Args:
        directory: what `save` wrote.

    Raises:
        DataError: no exported model, a damaged one, one of another version or for another platform,
            or kernels that this installation lacks.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    where = display_path(directory)
    _check_versions(manifest, where)
    blob = _read(directory / PROGRAM, manifest)
    _read(directory / WEIGHTS, manifest)
    with reading(directory / PROGRAM):
        program = _deserialized(blob, manifest)
        _check_calls(program, manifest)
    with reading(directory / WEIGHTS), open_npz(directory / WEIGHTS, Budget()) as archive:
        weights = {name: archive.read(name) for name in sorted(archive.keys)}
    with reading(directory):
        _check_types(program, manifest, weights)
    return ExportedModel(manifest, program, jax.device_put(weights))


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


def _check_calls(program: export.Exported, manifest: Manifest) -> None:
    known = {name for names in manifest.kernels.values() for name in names}
    unknown = custom_calls(program) - known - _HARMLESS
    unknown |= {name for name in known if not name.startswith("jaxgnn_")}
    if unknown:
        raise DataError(f"expected calls of jaxgnn's kernels alone, got {quote(min(unknown))}")


def _check_types(
    program: export.Exported, manifest: Manifest, weights: dict[str, np.ndarray]
) -> None:
    """That the program takes what the manifest says and the files hold."""
    if tuple(program.platforms) != manifest.platforms:
        raise DataError(f"platforms: the program has {', '.join(program.platforms)}")
    graph = Graph.from_edges(np.zeros(1, int), np.zeros(1, int), num_nodes=1)
    names = names_and_arrays(padded(graph, 1, 1), manifest.portable)[0]
    if manifest.arrays != names:
        raise DataError(f"arrays: expected {', '.join(names)}, got {quote(manifest.arrays)}")
    features = jax.ShapeDtypeStruct((manifest.num_nodes, manifest.num_features), manifest.dtype)
    arguments: Any = ((weights, [0] * len(names), features), {})
    if jax.tree.structure(arguments) != program.in_tree:
        raise DataError("the program's arguments are not the weights and the arrays of a graph")
    found = list(program.in_avals)
    expected = [*weights.values(), *found[len(weights) : -1], features]
    for have, want in zip(found, expected, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            raise DataError(
                f"the program expects {have.dtype}{list(have.shape)}, the files hold "
                f"{want.dtype}{list(want.shape)}"
            )
    out = [(aval.shape, str(aval.dtype)) for aval in program.out_avals]
    if len(out) != 1 or out[0][0] != (manifest.num_nodes, manifest.num_classes):
        raise DataError("the program's result is not a row of classes for each node")
