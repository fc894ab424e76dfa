"""A batch of `sage_embedding`: what its sources draw, and the layers over that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.ops._sampling.gather import gather_nodes
from jaxgnn.ops._sampling.neighbors import (
    Draw,
    Nodes,
    Operands,
    aggregate_drawn,
    aggregate_sampled,
    draw_neighbors,
    reduced_dtype,
)
from jaxgnn.ops._sampling.sage_layer import (
    Into,
    LayerInputs,
    SourceInputs,
    grouped_layer,
    has_kernel,
    source_layers,
)
from jaxgnn.ops._sampling.unit_rows import unit_rows


class Weights(NamedTuple):
    """The four matrices: of a node itself (f) and of its neighbors (a), in both layers."""

    Wf1: Float[Array, "features f1"]
    Wa1: Float[Array, "features a1"]
    Wf2: Float[Array, "f1+a1 f2"]
    Wa2: Float[Array, "f1+a1 a2"]


class Plan(NamedTuple):
    """What is static: the draws, and which projections are made once a node beforehand."""

    draw: Draw
    num_children: int
    num_leaves: int
    activation: Callable[[Array], Array]
    project_self: bool
    project_neighbors: bool


class Tables(NamedTuple):
    """A row a node: the features, and what a node's own row, and its neighbors', are gathered
    from."""

    features: Float[Array, "num_nodes features"]
    itself: Float[Array, "num_nodes _"]
    neighbors: Float[Array, "num_nodes _"]


class HopKeys(NamedTuple):
    """The keys that children and leaves are drawn by."""

    children: Array
    leaves: Array


def hop_keys(key: Array) -> HopKeys:
    """Made once for all batches."""
    return HopKeys(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1))


class Drawn(NamedTuple):
    """What the sources of a batch draw.

    Attributes:
        children: child after child of each source, -1 for none.
        weights: of the edges to the children, or `None`.
        around_children, around_sources: the reduced rows of what each child, each source drew.
    """

    children: Int[Array, " batch*num_children"]
    weights: Float[Array, "batch num_children"] | None
    around_children: Float[Array, "batch*num_children _"]
    around_sources: Float[Array, "batch _"]


def draw_batch(
    plan: Plan,
    given: Operands,
    neighbors: Float[Array, "num_nodes _"],
    keys: HopKeys,
    first: UInt32[Array, ""],
    nodes: Int[Array, " batch"],
) -> Drawn:
    """The draws of the sources from place `first` on, which draw by their place in all, and the
    reduced rows of `neighbors`."""
    sources = Nodes(nodes, first, keys.children, plan.num_children)
    children, weights = draw_neighbors(plan.draw, given, sources)
    first_child = first * jnp.uint32(plan.num_children)
    leaves = Nodes(children.reshape(-1), first_child, keys.leaves, plan.num_leaves)
    around = (aggregate_sampled(plan.draw, given, neighbors, at) for at in (leaves, sources))
    return Drawn(leaves.nodes, weights, *around)


class Rows(NamedTuple):
    """What a layer reads of some places.

    Attributes:
        inputs: as its kernel takes them.
        itself: what the places' own rows are gathered from: the features, or their projections.
    """

    inputs: LayerInputs
    itself: Float[Array, "num_rows _"]


def embed_drawn(
    plan: Plan,
    matrices: Weights,
    children: Rows,
    sources: Rows,
    weights: Float[Array, "batch num_children"] | None,
    into: Into | None = None,
) -> Float[Array, "rows width"]:
    """The embedding of a batch's sources over the children that they drew; with `into` the array
    with these rows."""
    dtype = children.inputs.features.dtype
    around_dtype = reduced_dtype(plan.draw, weights is not None, dtype)

    def first_layer(inputs: LayerInputs, itself: Array) -> Array:
        itself = gather_nodes(inputs.nodes, itself)
        if not plan.project_self:
            itself = project(itself, inputs.own_matrix)
        around = inputs.around
        if not plan.project_neighbors:
            around = project(around, inputs.around_matrix)
        return _normalize(plan, itself, around).astype(dtype)

    def of_groups(inputs: LayerInputs, itself: Array, weights: Array | None) -> Array:
        rows = first_layer(inputs, itself)
        drawn = inputs.nodes.reshape(-1, plan.num_children)
        rows = rows.reshape(*drawn.shape, rows.shape[-1])
        return aggregate_drawn(plan.draw, drawn, weights, rows).astype(around_dtype)

    def of_sources(inputs: SourceInputs, itself: Array) -> Array:
        own = project(first_layer(inputs.first, itself), inputs.own_matrix)
        return _normalize(plan, own, project(inputs.around, inputs.around_matrix)).astype(dtype)

    def over(around: Array) -> SourceInputs:
        return SourceInputs(sources.inputs, around, matrices.Wf2, matrices.Wa2)

    sums = plan.draw.aggr != "max" and weights is None and not plan.project_neighbors
    if sums and has_kernel(children.inputs, plan.activation):
        group, aggr = plan.num_children, plan.draw.aggr
        around = grouped_layer(group, aggr, children.inputs, of_groups, children.itself, None)
        # Padding has rows of zeros.
        return source_layers(over(around), into, of_sources, sources.itself)
    out = of_sources(over(of_groups(*children, weights)), sources.itself)
    out = jnp.where((sources.inputs.nodes >= 0)[:, None], out, 0)
    return out if into is None else into.written(out)


def project(x: Array, matrix: Array) -> Array:
    """The product, in the accumulation dtype."""
    return jnp.matmul(x, matrix, preferred_element_type=accumulation_dtype(x.dtype))


def _normalize(plan: Plan, itself: Array, around: Array) -> Array:
    """The activation of the two side by side, each row divided by its length."""
    dtype = accumulation_dtype(around.dtype)
    h = plan.activation(jnp.concatenate([itself.astype(dtype), around.astype(dtype)], axis=-1))
    return unit_rows(h)
