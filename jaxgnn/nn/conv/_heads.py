"""What the attention layers share: heads, features of edges, weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.nn._inputs import real_edges
from jaxgnn.nn.maxk import MaxK
from jaxgnn.ops import CBSR, segment_reduce
from jaxgnn.ops._core import over_parts

FillValue = float | ArrayLike | Literal["mean", "add", "mul", "min", "max"]


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


def maxk_of_heads(head_k: Any, out_features: int) -> MaxK | None:
    """The selection of so many features of each head, checked; `None` of all."""
    if head_k is None:
        return None
    return MaxK(checks.integer(head_k, "head_k", 1, out_features))


def averaged(
    maxk: MaxK | None, graph: Graph, v: Float[Array, "nodes *batch heads features"]
) -> Float[Array, "nodes _ features"] | CBSR:
    """What an attention averages: the features that `maxk` keeps of each head, or all."""
    if maxk is None:
        return fold(v)
    rows = maxk.sparse(v, graph=graph)
    return dataclasses.replace(rows, values=fold(rows.values), indices=fold(rows.indices))


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
        raise ValueError(
            f"edge_attr: {module} without edge_dim expected None, got the shape "
            f"{jnp.shape(edge_attr)}: give the module their width, edge_dim=1 for weights"
        )
    edge_attr = checks.floating_rows(edge_attr, "edge_attr", graph.num_edges, "edge")
    if edge_attr.ndim == 1:
        edge_attr = edge_attr[:, None]
    width = layer.kernel[...].shape[0]
    return real_edges(graph, checks.matrix(edge_attr, "edge_attr", graph.num_edges, width))


class LoopFeatures(nnx.Variable):
    """Given features of added self-loops: no parameter."""


def checked_fill_value(fill_value: Any) -> float | str | LoopFeatures:
    """A number, the name of a reduction, or a variable that holds an array, as an attribute."""
    if isinstance(fill_value, str):
        checks.choice(fill_value, "fill_value", ("mean", "add", "mul", "min", "max"))
        return fill_value
    fill_value = unwrap(fill_value)
    if isinstance(fill_value, jax.Array | np.ndarray | list | tuple):
        array = checks.floating(fill_value, "fill_value")
        if array.ndim > 2:
            raise ValueError(f"fill_value: expected one row or one a node, got {array.shape}")
        return LoopFeatures(array)
    return checks.number(fill_value, "fill_value", -math.inf, math.inf)


def fill_value(stored: float | str | LoopFeatures) -> FillValue:
    """What `checked_fill_value` made an attribute of."""
    return stored[...] if isinstance(stored, LoopFeatures) else stored  # pyright: ignore


def loop_features(graph: Graph, edge_attr: Array, fill_value: FillValue) -> Array:
    """The features of each receiver's added self-loop."""
    if not isinstance(fill_value, str):
        return _given_features(graph, edge_attr, jnp.asarray(fill_value, edge_attr.dtype))
    return _reduced_features(graph, edge_attr, fill_value)


@over_parts({"edge_attr": "edges"}, split="edges", name="attention with edge_dim")
def _reduced_features(graph: Graph, edge_attr: Array, fill_value: str) -> Array:
    """The reduction of the features of each receiver's edges, self-loops aside."""
    kept = (graph.senders != graph.receivers)[:, None]
    dtype, edge_attr = edge_attr.dtype, edge_attr.astype(accumulation_dtype(edge_attr.dtype))
    neutral = {"min": jnp.inf, "max": -jnp.inf, "mul": 1}.get(fill_value, 0)
    values = jnp.where(kept, edge_attr, jnp.full_like(edge_attr, neutral))
    if fill_value == "mul":
        return _row_products(graph, values).astype(dtype)
    degree = segment_reduce(graph, kept.astype(edge_attr.dtype))
    if fill_value in ("min", "max"):
        reduced = segment_reduce(graph, values, fill_value)
    else:
        reduced = segment_reduce(graph, values)
    if fill_value == "mean":
        reduced = reduced / jnp.maximum(degree, 1)
    return jnp.where(degree > 0, reduced, jnp.zeros_like(reduced)).astype(dtype)


def _given_features(graph: Graph, edge_attr: Array, given: Array) -> Array:
    """`given` for each receiver: one number, one row, or a row for each loop, as PyG takes them."""
    width, loops = edge_attr.shape[1], min(graph.num_senders, graph.num_receivers)
    if given.ndim == 1 and width == 1:
        given = given[:, None]  # of edges with one feature, a number for each loop
    rows = given.shape[0] if given.ndim == 2 else 1
    if given.ndim and (given.shape[-1] not in (1, width) or rows not in (1, loops)):
        raise ValueError(
            f"fill_value: expected the shape ({width},) or ({loops}, {width}), got {given.shape}"
        )
    given = jnp.broadcast_to(given.reshape(rows, -1), (loops, width))
    return jnp.pad(given, ((0, graph.num_receivers - loops), (0, 0)))


def _row_products(graph: Graph, values: Array) -> Array:
    """The product of the values of each receiver's edges, 1 without any: a segmented scan, which
    is differentiable where values are 0, too."""
    if graph.num_edges == 0:
        return jnp.ones((graph.num_receivers, values.shape[1]), values.dtype)
    receivers = graph.receivers
    first = jnp.concatenate([jnp.ones(1, bool), receivers[1:] != receivers[:-1]])[:, None]

    def multiply(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        (begins, product), (begins_again, factor) = left, right
        return begins | begins_again, jnp.where(begins_again, factor, product * factor)

    products = jax.lax.associative_scan(multiply, (first, values))[1]
    ends = products[jnp.maximum(graph.row_offsets[1:] - 1, 0)]
    return jnp.where((graph.in_degrees > 0)[:, None], ends, jnp.ones_like(ends))
