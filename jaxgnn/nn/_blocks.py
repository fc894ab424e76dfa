"""A model's layers on a graph, or on sampled blocks: a rectangular graph each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool

from jaxgnn._core.arguments import unwrap
from jaxgnn.graph import Blocks, Graph, squared
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import Features


def layer_graphs(graph: Any, weights: Any, convs: Sequence[Any], model: str) -> list[Graph]:
    """The graph of each layer; the edge data of blocks, checked, as it is cut for each layer."""
    if not isinstance(graph, Blocks):
        return [_inputs.square_graph(graph, model)] * len(convs)
    if graph.num_layers != len(convs):
        raise ValueError(
            f"graph: {model} expected blocks of {len(convs)} layers, a hop each, got {graph}"
        )
    num_edges = graph.graphs[0].num_edges
    shape = getattr(unwrap(weights), "shape", (num_edges,))
    if shape[:1] != (num_edges,):
        raise ValueError(
            f"weights: expected the shape ({num_edges}, ...), a row for each edge of the blocks "
            f"(Blocks.take_edges), got {shape}"
        )
    return list(graph.graphs)


def convolve(
    conv: Callable[..., Array], graph: Graph, x: Features, weights: Any, **call: Any
) -> Array:
    """One layer. Of blocks, convolutions that take no pair run on a square graph."""
    if graph.is_square:
        return conv(graph, x, weights, **call)
    if weights is not None:
        weights = unwrap(weights)[: graph.num_edges]
    if getattr(conv, "accepts_pair", False):
        return conv(graph, (x, first_rows(x, graph.num_receivers)), weights, **call)
    return conv(squared(graph), x, weights, **call)[: graph.num_receivers]


def first_rows(x: Features, count: int) -> Features:
    """The first rows, which are those of a layer's receivers."""
    return jax.tree.map(lambda array: array[:count], x)


def normalize(norm: nnx.Module, x: Array, mask: Bool[Array, " places"] | None) -> Array:
    """The normalization, over the nodes without blocks' padding."""
    if mask is None or not isinstance(norm, nnx.BatchNorm):
        return norm(x)  # type: ignore[operator]
    mask = mask[: x.shape[0]]
    return norm(x, mask=mask.reshape(-1, *[1] * (x.ndim - 1)))
