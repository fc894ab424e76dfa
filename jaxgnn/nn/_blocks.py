"""A model's layers on a graph, or on sampled blocks: a rectangular graph each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn._core.arguments import unwrap
from jaxgnn._core.linear_call import linear_call
from jaxgnn.graph import Blocks, Graph, GraphSubstitute, squared
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import Features, first_rows


def layer_graphs(graph: Any, weights: Any, convs: Sequence[Any], model: str) -> list[Graph]:
    """The graph of each layer; the edge data of blocks, checked, as it is cut for each layer."""
    if isinstance(graph, GraphSubstitute):
        return [_inputs.graph_or_substitute(graph)] * len(convs)
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
    conv: Callable[..., Array],
    graph: Graph,
    x: Features,
    weights: Any,
    blocks: Blocks | None = None,
    **call: Any,
) -> Array:
    """One layer. Of blocks, convolutions that take no pair run on a square graph, and those that
    take degrees have the blocks' where there are no weights."""
    takes_degrees = weights is None and getattr(conv, "accepts_degrees", False)
    if takes_degrees and blocks is not None and blocks.degrees is not None:
        call["degrees"] = blocks.degrees[: graph.num_senders]
        return conv(squared(graph, blocks.nodes), x, **call)[: graph.num_receivers]
    if graph.is_square:
        return conv(graph, x, weights, **call)
    if weights is not None:
        weights = unwrap(weights)[: graph.num_edges]
    if getattr(conv, "accepts_pair", False):
        return conv(graph, _both_ends(graph, x), weights, **call)
    return conv(squared(graph), x, weights, **call)[: graph.num_receivers]


def _both_ends(graph: Graph, x: Features) -> tuple[Features, Features]:
    """The senders' rows, and the receivers', which are the first of them.

    As one linear map, so that its transpose need not pad the receivers' gradient to all rows. What
    the senders' gradient is made of decides: rows that a kernel wrote are added to in place, those
    that XLA gathers are fused with the sum.
    """
    count = graph.num_receivers
    if not isinstance(x, jax.Array) or count == 0:
        return x, first_rows(x, count)
    gathers = graph.transpose_row_chunks.longest == 1

    def split(_: None, x: Array) -> tuple[Array, Array]:
        return x, x[:count]

    def add(_: None, cotangents: tuple[Array, Array]) -> Array:
        senders, receivers = cotangents
        if gathers:
            row = jnp.arange(senders.shape[0])
            return senders + receivers.at[row].get(mode="fill", fill_value=0)
        first = senders[:count] + receivers
        return jax.lax.dynamic_update_slice_in_dim(senders, first, 0, axis=0)

    return linear_call(split, add, None, x, (x, x[:count]))
