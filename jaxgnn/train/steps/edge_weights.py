"""`--edge-weights`: the weights that the data give their edges, for the models that take some."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.text import printable
from jaxgnn.data import DataError, NodeDataset, PlainGraph
from jaxgnn.distributed import ShardedGraph
from jaxgnn.ops import segment_reduce
from jaxgnn.train.settings.config import TrainConfig

_LARGE = float(np.finfo(np.float32).max) / (1 << 32)
"""2**32 weights up to this one have a sum that float32 holds."""


def edge_weights_of(
    config: TrainConfig,
    data: NodeDataset | PlainGraph,
    where: str | None = None,
    *,
    training: bool = False,
) -> Float[np.ndarray, " num_edges"] | None:
    """The weights that the configured model takes, in the graph's edge order; `None` without
    `--edge-weights`.

    Args:
        config: the options.
        data: the graph, and its weights.
        where: what messages name; by default the data.
        training: the weights are to be trained with, not to be predicted with alone.

    Raises:
        DataError: the data have none, or some whose degrees GCN cannot divide by.
    """
    if not config.edge_weights:
        return None
    where = printable(data.name if where is None else where)
    if data.weights is None:
        raise DataError(f"{where}: expected weights of the edges for --edge-weights, got none")
    if config.model == "gcn":
        negative = (data.weights < 0).any()
        if negative or data.weights.max(initial=0) > _LARGE:
            _check_degrees(data, data.weights, where, accumulation_dtype(config.dtype))
        if negative and training and config.num_neighbors:
            edge = int(data.weights.argmin())
            raise DataError(
                f"{where}: weights: expected none below 0 for gcn with --num-neighbors, since "
                f"any part of a node's edges may be its degree, got {data.weights[edge]}"
            )
    return data.weights


def check_degrees_of_parts(
    config: TrainConfig, graph: ShardedGraph, weights: Float[Array, " num_edges"], where: str
) -> None:
    """Refuses weights whose degrees GCN cannot divide by, of a graph that no process has whole.

    Args:
        config: the options.
        graph: over all devices.
        weights: of its places.
        where: what messages name.

    Raises:
        DataError: in all processes.
    """
    if config.model != "gcn":
        return
    dtype = accumulation_dtype(config.dtype)

    @jax.jit
    def extremes(graph: Any, weights: Array) -> tuple[Array, ...]:
        kept = jnp.where(graph.repeated_self_loops, 0, weights.astype(dtype))
        degrees = segment_reduce(graph, kept) + (graph.self_loops == 0)
        least, most = degrees.argmin(), degrees.argmax()
        return degrees[least], graph.node_of_place[least], degrees[most], graph.node_of_place[most]

    least, at_least, most, at_most = map(np.asarray, extremes(graph, weights))
    _refuse(where, dtype, (least, int(at_least)), (most, int(at_most)))


def _check_degrees(
    data: NodeDataset | PlainGraph,
    weights: Float[np.ndarray, " num_edges"],
    where: str,
    dtype: np.dtype,
) -> None:
    """Refuses negative degrees, whose inverse roots are NaN, and those beyond the type of the sums,
    whose inverse roots are 0: `GCNConv` says what degrees are."""
    graph = data.graph
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    is_loop = senders == receivers
    loops = np.ones(graph.num_receivers)
    loops[receivers[is_loop]] = weights[is_loop]  # of several the last one
    others = ~is_loop
    degrees = loops + np.bincount(receivers[others], weights[others], graph.num_receivers)
    least, most = int(degrees.argmin()), int(degrees.argmax())
    names = data.node_names or range(graph.num_receivers)
    _refuse(where, dtype, (degrees[least], names[least]), (degrees[most], names[most]))


def _refuse(
    where: str, dtype: np.dtype, least: tuple[Any, int | str], most: tuple[Any, int | str]
) -> None:
    """Refuses the least or the largest degree, each with its node."""
    for (degree, node), wrong, expected in (
        (least, not least[0] >= 0, "from 0"),
        (most, most[0] > np.finfo(dtype).max, f"that {dtype} holds"),
    ):
        if wrong:
            raise DataError(
                f"{where}: weights: expected degrees {expected} for gcn, the weights of a node's "
                f"incoming edges and of its self-loop (1 if it has none), got {degree:.6g} at "
                f"node {printable(node)}"
            )
