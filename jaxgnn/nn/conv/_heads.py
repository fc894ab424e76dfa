"""What the attention layers share: heads, features of edges, weights."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.ops import segment_reduce

FillValue = float | Literal["mean", "add", "min", "max"]


class AttentionWeights(NamedTuple):
    """The weights by which a layer averaged, after dropout.

    Attributes:
        edges: of the edges, in the graph's order; 0 for self-loops that were skipped.
        loops: of the added self-loops, of the nodes that are both sender and receiver; `None`
            without.
    """

    edges: Float[Array, "num_edges *batch heads"]
    loops: Float[Array, "nodes *batch heads"] | None


def project(layer: nnx.Linear, x: Array, heads: int) -> Float[Array, "nodes *batch heads features"]:
    """The linear projection, split into heads."""
    out = layer(x)
    return out.reshape(*out.shape[:-1], heads, out.shape[-1] // heads)


def fold(rows: Float[Array, "nodes *batch heads features"]) -> Float[Array, "nodes _ features"]:
    """The axes between the nodes and the heads, folded into the heads."""
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:-1]), rows.shape[-1])


def join(out: Float[Array, "nodes *batch heads features"], concat: bool) -> Array:
    """The heads concatenated, or their mean."""
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
    edge_attr = checks.floating_rows(edge_attr, "edge_attr", graph.num_edges, "edge")
    if edge_attr.ndim == 1:
        edge_attr = edge_attr[:, None]
    return checks.matrix(edge_attr, "edge_attr", graph.num_edges, layer.kernel[...].shape[0])


def check_fill_value(fill_value: Any) -> None:
    """Raises unless it is a number or the name of a reduction."""
    if isinstance(fill_value, str):
        checks.choice(fill_value, "fill_value", ("mean", "add", "min", "max"))
    else:
        checks.number(fill_value, "fill_value", -math.inf, math.inf)


def loop_features(graph: Graph, edge_attr: Array, fill_value: FillValue) -> Array:
    """The features of each receiver's added self-loop."""
    if not isinstance(fill_value, str):
        shape = (graph.num_receivers, edge_attr.shape[1])
        return jnp.full(shape, fill_value, edge_attr.dtype)
    kept = (graph.senders != graph.receivers)[:, None]
    dtype, edge_attr = edge_attr.dtype, edge_attr.astype(accumulation_dtype(edge_attr.dtype))
    degree = segment_reduce(graph, kept.astype(edge_attr.dtype))
    neutral = {"min": jnp.inf, "max": -jnp.inf}.get(fill_value, 0)
    values = jnp.where(kept, edge_attr, jnp.full_like(edge_attr, neutral))
    if fill_value in ("min", "max"):
        reduced = segment_reduce(graph, values, fill_value)
    else:
        reduced = segment_reduce(graph, values)
    if fill_value == "mean":
        reduced = reduced / jnp.maximum(degree, 1)
    return jnp.where(degree > 0, reduced, jnp.zeros_like(reduced)).astype(dtype)
