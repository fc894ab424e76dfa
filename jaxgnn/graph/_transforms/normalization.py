"""Weights of edges from the degrees of their nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from jaxgnn._core.checks import boolean
from jaxgnn._core.device import device_array
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph._build import csr, ordered_sum
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._transforms.host_edges import host_edges
from jaxgnn.graph._transforms.self_loops import add_remaining_self_loops


def gcn_norm(
    graph: Graph,
    weights: Float[ArrayLike, "num_edges ..."] | None = None,
    *,
    improved: bool = False,
    add_self_loops: bool = True,
    fill_value: float | None = None,
) -> tuple[Graph, Float[Array, "num_edges ..."]]:
    r"""The GCN's symmetric normalization, after adding the remaining self-loops.

    $$ w'_{ij} = d_j^{-1/2} \, w_{ij} \, d_i^{-1/2}, \qquad d_i = \sum_j w_{ij} $$

    over the edges from $j$ to $i$: in a directed graph too, both ends are normalized by their
    weighted *in*-degree, and a degree of 0 gives 0. PyG 2.8's rule, of
    `torch_geometric.nn.conv.gcn_conv.gcn_norm`.

    Args:
        graph: a square graph.
        weights: of the edges, in the graph's edge order, not the user's (`Graph.sort_edge_data`);
            ones if not given. Integers become float32.
        improved: the added loops weigh 2, not 1 ($\hat A = A + 2 I$). Only if `weights` are
            given: without, PyG makes the loops of weight 1 too, and so does this.
        add_self_loops: `add_remaining_self_loops` first.
        fill_value: weight of the added loops, in any case.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, the weights are no real numbers, or an
            option that is `True` or `False` is something else.
        ValueError: the graph is rectangular, the weights are not of its edges, or there is a
            `fill_value` without `add_self_loops`.

    Source: Kipf and Welling, "Semi-supervised classification with graph convolutional
    networks", ICLR 2017.
    """
    values = host_edges(graph, weights, square=True, real=True)[2]
    improved = boolean(improved, "improved")
    add_self_loops = boolean(add_self_loops, "add_self_loops")
    if fill_value is not None and not add_self_loops:
        raise ValueError(f"fill_value: expected add_self_loops=True with it, got {fill_value}")
    if fill_value is None:
        fill_value = 2.0 if improved and values is not None else 1.0
    if values is None:
        values = np.ones(graph.num_edges, np.float32)
    elif not jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(np.float32)
    if add_self_loops:
        graph, looped = add_remaining_self_loops(graph, values, fill_value=fill_value)
        assert looped is not None
        values = looped if isinstance(looped, Tracer) else np.asarray(looped)
    if isinstance(values, Tracer):
        return graph, _gcn_normalized(graph, values)
    normalized = csr.gcn_normalize(np.asarray(graph.row_offsets), np.asarray(graph.senders), values)
    return graph, device_array(normalized)


def _gcn_normalized(graph: Graph, weights: Array) -> Array:
    """`csr.gcn_normalize` of traced weights, summed in the accumulation dtype."""
    senders, receivers, _ = host_edges(graph, None)
    wide = weights.astype(accumulation_dtype(weights.dtype))
    degrees = ordered_sum.sum_in_order(wide, receivers, graph.num_receivers)
    # The inner `where` keeps the derivative at degree 0 finite.
    isolated = degrees == 0
    scale = jax.lax.rsqrt(jnp.where(isolated, jnp.ones_like(degrees), degrees))
    scale = jnp.where(isolated, jnp.zeros_like(scale), scale)
    terms = (
        ordered_sum.take_in_order(scale, senders)
        * wide
        * ordered_sum.take_in_order(scale, receivers)
    )
    return terms.astype(weights.dtype)


def mean_weights(graph: Graph) -> Float[Array, " num_edges"]:
    """The weight 1 / in-degree of its receiver for each edge, float32.

    `spmm(graph, x, mean_weights(graph))` is the mean over the neighbors.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced.
    """
    _, receivers, _ = host_edges(graph, None)
    degrees = np.diff(np.asarray(graph.row_offsets))
    inverse = np.float32(1) / np.maximum(degrees, 1).astype(np.float32)
    return device_array(inverse[receivers])
