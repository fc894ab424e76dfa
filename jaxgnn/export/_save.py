"""`save`: a model as a serialized program and its weights."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.typing import DTypeLike

from jaxgnn import config
from jaxgnn._core import checks, ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import serves
from jaxgnn.data.files.limits import DataError, display_path
from jaxgnn.export import _flat, _unions
from jaxgnn.export._manifest import (
    DECODER,
    DECODER_WEIGHTS,
    FORMAT,
    PLATFORMS,
    PROGRAM,
    TEMPORARY,
    WEIGHTS,
    Manifest,
)
from jaxgnn.graph import Graph
from jaxgnn.graph.batch import disjoint_union

if TYPE_CHECKING:
    from flax import nnx

_TARGET = re.compile(r'custom_call @(?:"([^"]*)"|([\w.$-]+))|call_target_name = "([^"]*)"')


def save(
    model: nnx.Module,
    directory: str | os.PathLike[str],
    *,
    num_nodes: int,
    num_edges: int,
    num_features: int,
    num_graphs: int | None = None,
    num_edge_features: int = 0,
    edge_weights: bool = False,
    dtype: DTypeLike = "float32",
    platforms: Sequence[str] = ("cpu",),
    portable: bool = False,
    multilabel: bool = False,
    class_names: Sequence[str] | None = None,
    normalized_features: bool = False,
    feature_names: Sequence[str] | None = None,
    decoder: nnx.Module | None = None,
) -> Manifest:
    """Writes a model for graphs of one size, so that it runs without the code that built it.

    Smaller graphs are padded when it is called; where they have fewer edges, they need at least one
    node fewer, for the padding edges to run between padding nodes. `GraphNorm` leaves padding nodes
    out as the `norm` of a model of `jaxgnn.nn`; elsewhere it is refused without `num_graphs`, and
    so is `DynamicEdgeConv`. A module of your own that reads all nodes at once, such as their mean,
    needs `num_graphs` too, since padding nodes count.

    Args:
        model: called as `model(graph, features)`, with `edge_weights` as
            `model(graph, features, weights)`, or with `num_graphs` as `model(batch, features)`
            or `model(batch, features, edge_features)`. The program is in inference mode, whichever
            mode the model is in.
        directory: where to write; made if it is not there, refused if it is not empty.
        num_nodes, num_edges: of the graphs that it takes.
        num_features: of a node. With a decoder 0, if the model reads no features but an embedding
            of its nodes; it must then take a graph with one node more, the padding. With
            `num_graphs` 0, if the model reads the batch alone, such as the nodes' degrees.
        num_graphs: makes it a model of many graphs: the most graphs of a union, to which the
            program adds one of padding. `load_graphs` reads what is written.
        num_edge_features: of an edge, with `num_graphs`; 0: the model takes none.
        edge_weights: the program takes a weight of each edge, without `num_graphs` and `decoder`:
            in float32, where `dtype` is float64 in float64. Edges of padding get 0.
        dtype: of the features.
        platforms: some of `"cpu"` and `"cuda"`.
        portable: take the JAX reference of every operation: the program then needs JAX alone, and
            is slower.
        multilabel, class_names: for those who read the outputs.
        normalized_features, feature_names: for those who prepare the features: whether the model
            was trained on what `jaxgnn.data.normalize_features` makes of them, with `num_graphs`
            of each graph's, which the program does not apply, and their names in their order.
        decoder: makes it a model of links: called as `decoder(outputs, senders, receivers)`, such
            as `jaxgnn.nn.DotDecoder`. `load_links` reads what is written.

    Returns:
        What was written. Its `kernels` are those that the program calls on each platform; where
        this machine has none for a platform, the program has the reference there.

    Raises:
        DataError: an argument out of range, a directory that is not empty, no `flatbuffers`, a
            model whose result would change with padding nodes, or one without a row of outputs for
            each node, of a union for each graph.
        TypeError: an argument of another type.
        OSError: it cannot be written.
    """
    directory = checks.path(directory, "directory")
    _check_module(model, "model")
    if decoder is not None:
        _check_module(decoder, "decoder")
    fewest = int(decoder is None and num_graphs is None)
    num_nodes = _integer(num_nodes, "num_nodes", 1)
    num_edges = _integer(num_edges, "num_edges", 0)
    num_features = _integer(num_features, "num_features", fewest)
    num_edge_features = _integer(num_edge_features, "num_edge_features", 0, 2**31 - 2)
    if num_graphs is not None:
        num_graphs = _integer(num_graphs, "num_graphs", 1, 2**31 - 2)
    dtype = checks.floating_dtype(dtype, "dtype").name
    _check_platforms(platforms, dtype)
    _check_graphs(num_graphs, num_edge_features, decoder)
    portable, multilabel = _boolean(portable, "portable"), _boolean(multilabel, "multilabel")
    edge_weights = _boolean(edge_weights, "edge_weights")
    _check_edge_weights(edge_weights, num_graphs, decoder)
    normalized_features = _boolean(normalized_features, "normalized_features")
    class_names = _names(class_names, "class_names")
    feature_names = _names(feature_names, "feature_names")
    _check_count(feature_names, "feature_names", num_features)
    masked = num_graphs is None and _normalizes_graphs(model)
    _check_vacant(directory)
    from flax import nnx  # `load` does without

    import jaxgnn

    # One graph, and the padding as another.
    graphs = 1 if masked else num_graphs
    names, arrays, whole_of = _layout(num_nodes, num_edges, graphs, portable)
    definition, state = nnx.split(model)
    weights, rebuild = _flat_weights(state)

    def program(weights: Any, arrays: Any, *features: Any) -> Any:
        model: Any = nnx.merge(definition, rebuild(weights))
        model.eval()
        return model(whole_of(arrays), *features)

    features = [jax.ShapeDtypeStruct((num_nodes, num_features), jnp.dtype(dtype))]
    if num_edge_features:
        shape = num_edges, num_edge_features
        features.append(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))
    if edge_weights:
        features.append(jax.ShapeDtypeStruct((num_edges,), accumulation_dtype(dtype)))
    targets = {name for platform in PLATFORMS for name in _targets(platform)}
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in sorted(targets)]
    with config.use(impl="jax" if portable else config.impl):
        made = export.export(
            jax.jit(program), platforms=list(platforms), disabled_checks=() if portable else allowed
        )(weights, arrays, *features)
    shapes = [list(aval.shape) for aval in made.out_avals]
    rows = num_nodes if num_graphs is None else num_graphs + 1
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] != rows or not shapes[0][1]:
        got = ", ".join(map(str, shapes)) or "none"
        raise DataError(f"model: expected outputs of the shape [{rows}, classes], got {got}")
    num_classes = shapes[0][1]
    _check_count(class_names, "class_names", num_classes)
    calls = custom_calls(made)
    manifest = Manifest(
        format=FORMAT,
        jaxgnn=jaxgnn.__version__,
        jax=jax.__version__,
        platforms=tuple(platforms),
        portable=portable,
        kernels={name: tuple(sorted(calls & _targets(name))) for name in platforms},
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_graphs=num_graphs or 0,
        num_features=num_features,
        normalized_features=normalized_features,
        feature_names=feature_names,
        num_edge_features=num_edge_features,
        edge_weights=edge_weights,
        num_classes=num_classes,
        dtype=dtype,
        multilabel=multilabel,
        class_names=class_names,
        arrays=names,
        links=decoder is not None,
        sha256={},
    )
    files: dict[str, Any] = {PROGRAM: _serialized(made), WEIGHTS: weights}
    if decoder is not None:
        decoding, files[DECODER_WEIGHTS] = _exported_decoder(decoder, made, platforms)
        files[DECODER] = _serialized(decoding)
    _write(directory, manifest, files)
    return manifest


def _layout(
    num_nodes: int, num_edges: int, num_graphs: int | None, portable: bool
) -> tuple[tuple[str, ...], list[jax.Array], Callable[[Any], Any]]:
    """The arrays of a graph, or of a union, of that size, by name; and what makes it of them."""
    # One of that size, for its shapes.
    zeros = np.zeros(num_edges, np.int32)
    graph = Graph.from_edges(zeros, zeros, num_nodes=num_nodes)
    if num_graphs is None:
        graph = _flat.padded(graph, num_nodes, num_edges)
        made = _flat.names_and_arrays(graph, portable)
        if portable:
            return *made, lambda arrays: _flat.graph_of_edges(arrays, num_nodes)
        return *made, jax.tree.structure(graph).unflatten
    union = _unions.padded_union(disjoint_union([graph]), num_nodes, num_edges, num_graphs)
    made = _unions.names_and_arrays(union, portable)
    if portable:
        return *made, lambda arrays: _unions.union_of_edges(arrays, num_graphs)
    structure = _unions.structure_of(union)
    return *made, lambda arrays: _unions.union_of_arrays(structure, arrays, num_graphs)


def _exported_decoder(
    decoder: nnx.Module, encoder: export.Exported, platforms: Sequence[str]
) -> tuple[export.Exported, dict[str, jax.Array]]:
    """The decoder as a program for any number of nodes and of pairs, and its weights.

    It has no kernels of ours.
    """
    from flax import nnx

    definition, state = nnx.split(decoder)
    weights, rebuild = _flat_weights(state)

    def program(weights: Any, nodes: Any, senders: Any, receivers: Any) -> Any:
        model: Any = nnx.merge(definition, rebuild(weights))
        model.eval()
        return model(nodes, senders, receivers)

    count, pairs = export.symbolic_shape("nodes, pairs")
    outputs = encoder.out_avals[0]
    nodes = jax.ShapeDtypeStruct((count, outputs.shape[-1]), outputs.dtype)
    ends = jax.ShapeDtypeStruct((pairs,), jnp.int32)
    with config.use(impl="jax"):
        made = export.export(jax.jit(program), platforms=list(platforms))(
            weights, nodes, ends, ends
        )
    return made, weights


def custom_calls(made: export.Exported) -> set[str]:
    """The targets of all custom calls of a program."""
    return {"".join(found) for found in _TARGET.findall(made.mlir_module())}


def _targets(platform: str) -> set[str]:
    return {name for name in ffi.targets[platform] if serves(platform, name)}


def _check_module(value: Any, name: str) -> None:
    from flax import nnx

    if not isinstance(value, nnx.Module):
        raise TypeError(f"{name}: expected an nnx.Module, got {type(value).__name__}")


def _integer(value: Any, name: str, least: int, most: int = 2**31 - 1) -> int:
    try:
        return checks.integer(value, name, least, most)
    except ValueError as error:
        raise DataError(str(error)) from None


def _boolean(value: Any, name: str) -> bool:
    try:
        return checks.boolean(value, name)
    except TypeError as error:
        raise DataError(str(error)) from None


def _names(value: Any, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise DataError(f"{name}: expected a sequence of names, got {value!r}")
    return tuple(map(str, value))


def _check_count(names: Sequence[str] | None, name: str, count: int) -> None:
    if names is not None and len(names) != count:
        raise DataError(f"{name}: expected {count} names, got {len(names)}")


def _normalizes_graphs(model: nnx.Module) -> bool:
    """Whether it is to take a graph and its padding as two graphs, for its `GraphNorm`s.

    Raises:
        DataError: padding nodes would change its result.
    """
    from flax import nnx

    from jaxgnn.nn import GNN, DynamicEdgeConv, GraphNorm

    own = list(model.norms or ()) if isinstance(model, GNN) else []
    normalizes = False
    for _, module in nnx.iter_graph(model):
        if not isinstance(module, GraphNorm | DynamicEdgeConv):
            continue
        if not any(module is norm for norm in own):
            kind = type(module).__name__
            raise DataError(
                f"model: expected no {kind}, for which padding nodes count, without num_graphs; "
                f"got {type(model).__name__}"
            )
        normalizes = True
    return normalizes


def _check_platforms(platforms: Any, dtype: str) -> None:
    if isinstance(platforms, str) or not isinstance(platforms, Sequence):
        raise DataError(f"platforms: expected a sequence such as ('cpu',), got {platforms!r}")
    known = all(isinstance(name, str) and name in PLATFORMS for name in platforms)
    if not platforms or not known or len(set(platforms)) < len(platforms):
        got = ", ".join(map(str, platforms)) or "-"
        raise DataError(f"platforms: expected some of {', '.join(PLATFORMS)}, got {got}")
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise DataError("dtype: float64 needs jax.config.update('jax_enable_x64', True)")


def _check_graphs(num_graphs: int | None, num_edge_features: int, decoder: Any) -> None:
    if num_graphs is None and num_edge_features:
        raise DataError(
            f"num_edge_features: expected num_graphs with it, got {num_edge_features} alone"
        )
    if num_graphs is not None and decoder is not None:
        raise DataError(f"decoder: expected none with num_graphs, got {type(decoder).__name__}")


def _check_edge_weights(edge_weights: bool, num_graphs: int | None, decoder: Any) -> None:
    if edge_weights and (num_graphs is not None or decoder is not None):
        other = "decoder" if num_graphs is None else "num_graphs"
        raise DataError(f"edge_weights: expected False with {other}, got True")


def _check_vacant(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        occupied = any(directory.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{display_path(directory)}: {reason}") from None
    if occupied:
        raise DataError(f"{display_path(directory)}: expected an empty directory")


def _flat_weights(state: Any) -> tuple[dict[str, jax.Array], Callable[[Any], Any]]:
    """The variables of a model as arrays by name, random keys as their data; and the inverse."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    structure = jax.tree.structure(state)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    kinds = {
        name: jax.random.key_impl(leaf)
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }
    flat = {
        name: jax.random.key_data(leaf) if name in kinds else jnp.asarray(leaf)
        for name, (_, leaf) in zip(names, leaves, strict=True)
    }

    def rebuild(flat: dict[str, Any]) -> Any:
        found = [
            jax.random.wrap_key_data(flat[name], impl=kinds[name]) if name in kinds else flat[name]
            for name in names
        ]
        return jax.tree.unflatten(structure, found)

    return flat, rebuild


def _serialized(made: export.Exported) -> bytes:
    try:
        return bytes(made.serialize())
    except ImportError:
        raise DataError("export needs flatbuffers: pip install 'jaxgnn[export]'") from None


def _write(directory: Path, manifest: Manifest, files: dict[str, Any]) -> None:
    """The manifest comes last: a directory without one is no exported model. All or nothing is
    left, since a directory that is not empty is refused."""
    try:
        for name, content in files.items():
            if isinstance(content, bytes):
                (directory / name).write_bytes(content)
            else:
                arrays: dict[str, Any] = {key: np.asarray(array) for key, array in content.items()}
                with (directory / name).open("wb") as file:
                    np.savez(file, **arrays)
            with (directory / name).open("rb") as file:
                manifest.sha256[name] = hashlib.file_digest(file, "sha256").hexdigest()
        manifest.write(directory)
    except BaseException:
        for name in (*files, TEMPORARY):
            with contextlib.suppress(OSError):
                (directory / name).unlink()
        raise
