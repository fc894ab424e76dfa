"""What the attention layers with scores of pairs share: heads, features of edges, weights."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn.graph import Graph
from jaxgnn.nn._linear import width
from jaxgnn.nn.conv.gat import AttentionWeights
from jaxgnn.ops import _check


def width_pair(in_features: Any) -> tuple[int, int]:
    """The widths of the senders and of the receivers."""
    pair = in_features if isinstance(in_features, tuple | list) else (in_features,) * 2
    if len(pair) != 2:
        raise ValueError(f"in_features: expected a number or a pair, got {in_features!r}")
    senders, receivers = (width(value, "in_features") for value in pair)
    return senders, receivers


def project(layer: nnx.Linear, x: Array, heads: int) -> Float[Array, "nodes *batch heads features"]:
    """The product, cut into heads."""
    out = layer(x)
    return out.reshape(*out.shape[:-1], heads, out.shape[-1] // heads)


def fold(rows: Float[Array, "nodes *batch heads features"]) -> Float[Array, "nodes _ features"]:
    """The axes between the nodes and the heads, multiplied into the heads."""
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:-1]), rows.shape[-1])


def join(out: Float[Array, "nodes *batch heads features"], concat: bool) -> Array:
    """The heads side by side, or their mean."""
    if concat:
        return out.reshape(*out.shape[:-2], out.shape[-2] * out.shape[-1])
    return jnp.mean(out, axis=-2)


def unfolded_weights(
    edges: Float[Array, "num_edges _"], loops: Float[Array, "nodes _"] | None, shape: Any
) -> AttentionWeights:
    """The weights, with the axes that `fold` took away."""
    return AttentionWeights(
        edges.reshape(edges.shape[0], *shape),
        None if loops is None else loops.reshape(loops.shape[0], *shape),
    )


def edge_rows(
    graph: Graph, edge_attr: Any, layer: nnx.Linear | None, module: str
) -> Float[Array, "num_edges edge_dim"] | None:
    """The features of the edges, checked; `None` where there are none."""
    if edge_attr is None:
        return None
    if layer is None:
        raise ValueError(f"edge_attr: {module} without edge_dim expected None")
    edge_attr = _check.floating_rows(edge_attr, "edge_attr", graph.num_edges, "edge")
    if edge_attr.ndim == 1:
        edge_attr = edge_attr[:, None]
    return _check.matrix(edge_attr, "edge_attr", graph.num_edges, layer.kernel[...].shape[0])
