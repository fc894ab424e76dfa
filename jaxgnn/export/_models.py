"""Exported models, called with a graph, features and pairs of nodes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int

from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.data.files.checks import check_ends
from jaxgnn.data.files.limits import DataError, quote
from jaxgnn.export import _unions
from jaxgnn.export._flat import check_fits, names_and_arrays, padded
from jaxgnn.export._manifest import Manifest
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.graph.batch import GraphBatch, disjoint_union

Kept = TypeVar("Kept", Graph, GraphBatch)


class _Exported(Generic[Kept]):
    """A program, its weights, and the arrays of the graphs that it was called with."""

    def __init__(self, manifest: Manifest, program: export.Exported, weights: dict[str, Array]):
        self.manifest = manifest
        self._weights = weights
        self._call = jax.jit(program.call)
        self._flat: weakref.WeakKeyDictionary[Kept, list[Array]] = weakref.WeakKeyDictionary()


class ExportedModel(_Exported[Graph]):
    """A model that `jaxgnn.export.save` or `jaxgnn export` wrote.

    Attributes:
        manifest: what it expects, and the versions that wrote it.
    """

    def __call__(
        self,
        graph: Graph,
        x: Float[ArrayLike, "nodes features"],
        weights: Float[ArrayLike, " num_edges"] | None = None,
    ) -> Float[Array, "nodes classes"]:
        """The model's outputs at the nodes of a graph.

        A graph is padded to the exported size at its first call, on the host, and its arrays are
        kept as long as it lives.

        Args:
            graph: a square graph of at most the exported size.
            x: the features of its nodes.
            weights: of its edges, in the graph's edge order; None where the model reads none
                (`manifest.edge_weights` is false).

        Raises:
            DataError: a graph that is too large or rectangular, or features or weights of another
                shape.
            TypeError: a graph that is traced, or features or weights that are not real numbers.
        """
        graph_argument(graph)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(graph)):
            raise TypeError(
                "graph: expected one that is not traced, for it is padded on the host: close over "
                "it, or call the exported model outside of jax.jit"
            )
        expected = self.manifest
        x = _real(x, "x")
        if x.shape != (graph.num_receivers, expected.num_features):
            raise DataError(
                f"x: expected the shape [{graph.num_receivers}, {expected.num_features}], got "
                f"{list(x.shape)}"
            )
        of_edges = self._edge_weights(graph, weights)
        arrays = self._flat.get(graph)
        if arrays is None:
            arrays = self._flat[graph] = self._arrays(graph)
        features = jnp.asarray(x, expected.dtype)
        missing = expected.num_nodes - graph.num_receivers
        if missing:
            features = jnp.pad(features, ((0, missing), (0, 0)))
        out = self._call(self._weights, arrays, features, *of_edges)
        return out[: graph.num_receivers] if missing else out

    def _arrays(self, graph: Graph) -> list[Array]:
        expected = self.manifest
        sizes = expected.num_nodes, expected.num_edges
        if not expected.has_membership:
            return names_and_arrays(padded(graph, *sizes), expected.portable)[1]
        check_fits(graph, *sizes)
        union = _unions.padded_union(disjoint_union([graph]), *sizes, 1)
        return _unions.names_and_arrays(union, expected.portable)[1]

    def _edge_weights(self, graph: Graph, weights: ArrayLike | None) -> list[Array]:
        """The program's argument of that kind, if it has one."""
        expected = self.manifest
        if not expected.edge_weights:
            if weights is not None:
                raise DataError("weights: expected None, the model reads none, got an array")
            return []
        if weights is None:
            raise DataError("weights: expected a weight of each edge, got None")
        weights = _real(weights, "weights")
        if weights.shape != (graph.num_edges,):
            got = list(weights.shape)
            raise DataError(f"weights: expected the shape [{graph.num_edges}], got {got}")
        values = jnp.asarray(weights, accumulation_dtype(expected.dtype))
        # Padding edges come last, as their receivers do.
        return [jnp.pad(values, (0, max(expected.num_edges - graph.num_edges, 0)))]

    def __repr__(self) -> str:
        m = self.manifest
        return (
            f"ExportedModel(num_nodes={m.num_nodes}, num_edges={m.num_edges}, "
            f"num_features={m.num_features}, num_classes={m.num_classes}, portable={m.portable}, "
            f"edge_weights={m.edge_weights})"
        )


class ExportedLinkModel:
    """An encoder and a decoder that `jaxgnn.export.save` or `jaxgnn export` wrote.

    Attributes:
        manifest: what they expect, and the versions that wrote them.
    """

    def __init__(self, encoder: ExportedModel, decoder: export.Exported, weights: dict[str, Array]):
        self.manifest = encoder.manifest
        self._encoder, self._weights = encoder, weights
        self._decode = jax.jit(decoder.call)
        self._dtype = decoder.in_avals[-3].dtype  # of the nodes: senders and receivers are last

    def encode(
        self, graph: Graph, x: Float[ArrayLike, "nodes features"] | None = None
    ) -> Float[Array, "nodes width"]:
        """The nodes' outputs, which `score` takes: once for each graph.

        Args:
            graph: as of `ExportedModel`; with the reverse of each edge, unless the run was
                directed. Of a model with an embedding it has the nodes of the run.
            x: the features of its nodes; None where the model has an embedding.

        Raises:
            DataError: another graph, or features of another shape.
            TypeError: as of `ExportedModel`.
        """
        graph_argument(graph)
        expected, nodes = self.manifest, graph.num_receivers
        if not expected.num_features:
            if x is not None:
                raise DataError("x: expected None for a model with an embedding, got an array")
            if nodes != expected.num_nodes - 1:
                raise DataError(
                    f"graph: expected the {expected.num_nodes - 1} nodes whose embedding was "
                    f"learned, got {nodes}"
                )
            x = np.zeros((nodes, 0), np.float32)
        elif x is None:
            raise DataError(f"x: expected {expected.num_features} features a node, got None")
        return self._encoder(graph, x)

    def score(
        self,
        nodes: Float[ArrayLike, "nodes width"],
        senders: Int[ArrayLike, " pairs"],
        receivers: Int[ArrayLike, " pairs"],
    ) -> Float[Array, " pairs"]:
        """The scores (logits) of pairs, compiled once for each number of them.

        Args:
            nodes: of `encode`.
            senders, receivers: the ends of each pair.

        Raises:
            DataError: ends that are no nodes, or of two lengths, or nodes of another width.
            TypeError: nodes that are not real numbers, or ends that are no array.
        """
        nodes = _real(nodes, "nodes")
        width = self.manifest.num_classes
        if nodes.ndim != 2 or nodes.shape[1] != width:
            got = list(nodes.shape)
            raise DataError(f"nodes: expected the shape [nodes, {width}], got {got}")
        ends = check_ends(senders, receivers, nodes.shape[0])
        nodes = jnp.asarray(nodes, self._dtype)
        if not ends[0].size:
            return jnp.zeros(0, nodes.dtype)
        return self._decode(self._weights, nodes, *(ids.astype(np.int32) for ids in ends))

    def __call__(
        self,
        graph: Graph,
        x: Float[ArrayLike, "nodes features"] | None,
        senders: Int[ArrayLike, " pairs"],
        receivers: Int[ArrayLike, " pairs"],
    ) -> Float[Array, " pairs"]:
        """`score` of `encode`."""
        return self.score(self.encode(graph, x), senders, receivers)

    def __repr__(self) -> str:
        m = self.manifest
        return (
            f"ExportedLinkModel(num_nodes={m.num_nodes}, num_edges={m.num_edges}, "
            f"num_features={m.num_features}, width={m.num_classes}, portable={m.portable})"
        )


class ExportedGraphModel(_Exported[GraphBatch]):
    """A model of many graphs that `jaxgnn.export.save` or `jaxgnn export` wrote.

    Attributes:
        manifest: what it expects, and the versions that wrote it.
    """

    def __call__(
        self,
        graphs: GraphBatch | Iterable[Graph],
        x: Float[ArrayLike, "nodes features"] | None = None,
        edge_features: Float[ArrayLike, "edges edge_features"] | None = None,
    ) -> Float[np.ndarray, "graphs outputs"]:
        """The model's outputs, a row a graph, on the host.

        Graphs are joined and padded to the exported size on the host. A list of more graphs than
        one call takes goes through in several. The arrays of a `GraphBatch` are kept as long as it
        lives.

        Args:
            graphs: square graphs, each of at most the exported size; or a batch of them, which has
                to fit as a whole.
            x: the features of their nodes, those of the first graph first; None where the model
                reads none (`manifest.num_features` is 0).
            edge_features: of their edges, likewise, each graph's in its edge order; None where the
                model reads none (`manifest.num_edge_features` is 0).

        Raises:
            DataError: graphs that are too large or rectangular, or features of another shape.
            TypeError: one graph or no graphs, or features that are not real numbers.
        """
        if isinstance(graphs, Graph) or not isinstance(graphs, GraphBatch | Iterable):
            got = "one Graph" if isinstance(graphs, Graph) else type(graphs).__name__
            raise TypeError(f"graphs: expected a GraphBatch or a sequence of graphs, got {got}")
        if isinstance(graphs, GraphBatch):
            nodes, edges = graphs.graph.num_receivers, graphs.graph.num_edges
        else:
            graphs = list(graphs)
            for i, graph in enumerate(graphs):
                if not isinstance(graph, Graph) or not graph.is_square:
                    raise DataError(f"graphs[{i}]: expected a square graph, got {quote(graph)}")
            nodes = sum(graph.num_receivers for graph in graphs)
            edges = sum(graph.num_edges for graph in graphs)
        expected = self.manifest
        rows = _rows(x, nodes, expected.num_features, "x", "node")
        edge_rows = _rows(edge_features, edges, expected.num_edge_features, "edge_features", "edge")
        if isinstance(graphs, GraphBatch):
            arrays = self._flat.get(graphs)
            if arrays is None:
                arrays = self._flat[graphs] = self._arrays(graphs)
            return self._outputs(arrays, rows, edge_rows)[: graphs.num_graphs]
        sizes = expected.num_nodes, expected.num_edges, expected.num_graphs
        found = [np.zeros((0, expected.num_classes), np.float32)]
        for part in _unions.packed(graphs, *sizes):
            union = disjoint_union(part)
            nodes, edges = union.graph.num_receivers, union.graph.num_edges
            outputs = self._outputs(self._arrays(union), rows[:nodes], edge_rows[:edges])
            found.append(outputs[: len(part)])
            rows, edge_rows = rows[nodes:], edge_rows[edges:]
        return np.concatenate(found[1:] or found)

    def _arrays(self, union: GraphBatch) -> list[Array]:
        expected = self.manifest
        sizes = expected.num_nodes, expected.num_edges, expected.num_graphs
        whole = _unions.padded_union(union, *sizes)
        return _unions.names_and_arrays(whole, expected.portable)[1]

    def _outputs(self, arrays: list[Array], rows: np.ndarray, edge_rows: np.ndarray) -> np.ndarray:
        expected = self.manifest
        features = [self._padded(rows, expected.num_nodes)]
        if expected.num_edge_features:
            features.append(self._padded(edge_rows, expected.num_edges))
        return np.asarray(self._call(self._weights, arrays, *features))

    def _padded(self, rows: np.ndarray, count: int) -> Array:
        whole = np.zeros((count, rows.shape[1]), jnp.dtype(self.manifest.dtype))
        whole[: len(rows)] = rows
        return jnp.asarray(whole)

    def __repr__(self) -> str:
        m = self.manifest
        return (
            f"ExportedGraphModel(num_graphs={m.num_graphs}, num_nodes={m.num_nodes}, "
            f"num_edges={m.num_edges}, num_features={m.num_features}, "
            f"num_edge_features={m.num_edge_features}, num_classes={m.num_classes}, "
            f"portable={m.portable})"
        )


def _rows(values: ArrayLike | None, count: int, width: int, name: str, of: str) -> np.ndarray:
    """Features of that shape, on the host; without columns where the model reads none."""
    if not width:
        if values is not None:
            raise DataError(f"{name}: expected None, the model reads none, got an array")
        return np.zeros((count, 0), np.float32)
    if values is None:
        raise DataError(f"{name}: expected {width} features a {of}, got None")
    rows = np.asarray(_real(values, name))
    if rows.shape != (count, width):
        raise DataError(f"{name}: expected the shape [{count}, {width}], got {list(rows.shape)}")
    return rows


def _real(values: Any, name: str) -> Array | np.ndarray:
    """`values` as an array of real numbers, where it is: on the device or the host."""
    array = unwrap(values)
    if not isinstance(array, jax.Array):
        try:
            array = np.asarray(array)
        except (TypeError, ValueError):  # rows of several lengths
            got = type(values).__name__
            raise TypeError(f"{name}: expected an array of real numbers, got {got}") from None
    if array.dtype != np.bool_ and not any(
        jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer)
    ):
        got = "None" if values is None else array.dtype
        raise TypeError(f"{name}: expected an array of real numbers, got {got}")
    return array
