"""Exported models, called with a graph, features and pairs of nodes."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, ArrayLike, Float, Int

from jaxgnn.data.checks import check_ends
from jaxgnn.data.limits import DataError
from jaxgnn.export._flat import names_and_arrays, padded
from jaxgnn.export._manifest import Manifest
from jaxgnn.graph import Graph


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


class ExportedLinkModel:
    """An encoder and a decoder that `jaxgnn.export.save` or `jaxgnn export` wrote.

    Attributes:
        manifest: what they expect, and the versions that wrote them.
    """

    def __init__(self, encoder: ExportedModel, decoder: export.Exported, weights: dict[str, Array]):
        self.manifest = encoder.manifest
        self._encoder, self._weights = encoder, weights
        self._decode = jax.jit(decoder.call)

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
        """
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
        nodes: Float[Array, "nodes width"],
        senders: Int[ArrayLike, " pairs"],
        receivers: Int[ArrayLike, " pairs"],
    ) -> Float[Array, " pairs"]:
        """The scores (logits) of pairs, compiled once for each number of them.

        Args:
            nodes: of `encode`.
            senders, receivers: the ends of each pair.

        Raises:
            DataError: ends that are no nodes, or of two lengths.
        """
        ends = np.asarray(senders), np.asarray(receivers)
        check_ends(*ends, nodes.shape[0])
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
