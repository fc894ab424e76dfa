"""Data over the edges, nodes and graphs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Shaped

from jaxgnn._core.arguments import check_fill_value, check_integers_fit
from jaxgnn._core.device import device_array
from jaxgnn.graph import _edge_list
from jaxgnn.graph._graph_batch import GraphBatch, batch_argument, graph_sizes_of


def union_edge_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "edges ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_edges ..."]:
    """Edge data of each graph, in its edge order, as one array over the batch's edges.

    The order is the graph's, not the user's (`Graph.sort_edge_data`). Padding edges get
    `fill_value`.

    Raises:
        TypeError: `batch` is neither a `GraphBatch` nor a `Graph`, or is traced, or `data` is no
            sequence.
        ValueError: not one array for each graph, of one row for each of its edges and of one shape
            behind, or their dtype does not hold `fill_value`.
    """
    batch = batch_argument(batch)
    ends = np.asarray(batch.graph.row_offsets)[np.asarray(batch.membership.row_offsets)]
    _check_parts(batch, data, np.diff(ends), "edges")
    return _union(data, batch.graph.num_edges, batch.edge_mask, fill_value, "edges")


def union_node_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "nodes ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_nodes ..."]:
    """Node data (receivers', of rectangular graphs) of each graph as one array over the batch.

    Raises:
        TypeError, ValueError: as `union_edge_data`, for nodes.
    """
    batch = batch_argument(batch)
    _check_parts(batch, data, graph_sizes_of(batch.membership), "nodes")
    return _union(data, batch.graph.num_receivers, batch.node_mask, fill_value, "nodes")


def union_sender_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "senders ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_senders ..."]:
    """The same of the senders of rectangular graphs.

    Raises:
        TypeError, ValueError: as `union_edge_data`, for senders.
    """
    batch = batch_argument(batch)
    _check_parts(batch, data, graph_sizes_of(batch.sender_membership), "senders")
    return _union(data, batch.graph.num_senders, batch.sender_mask, fill_value, "senders")


def union_graph_data(
    batch: GraphBatch, data: Shaped[ArrayLike, "graphs ..."], *, fill_value: float = 0.0
) -> Shaped[Array, "num_graphs ..."]:
    """A row for each graph (labels, say), padded to the batch's number of graphs.

    Raises:
        TypeError: `batch` is neither a `GraphBatch` nor a `Graph`, or is traced.
        ValueError: not a row for each graph, or the dtype does not hold `fill_value`.
    """
    batch = batch_argument(batch)
    return _union([data], batch.num_graphs, batch.graph_mask, fill_value, "graphs")


def _check_parts(batch: GraphBatch, data: Sequence[Any], sizes: np.ndarray, what: str) -> None:
    """Raises unless there is a part for each graph that is not padding, of its size."""
    _check_sequence(data)
    sizes = sizes[: int(np.sum(np.asarray(batch.graph_mask)))]
    if len(data) != sizes.size:
        raise ValueError(f"data: expected {sizes.size} arrays, one for each graph, got {len(data)}")
    for i, (part, size) in enumerate(zip(data, sizes, strict=True)):
        if np.shape(part)[:1] != (size,):
            raise ValueError(
                f"data[{i}]: expected {size} rows, one for each of the {what}, "
                f"got the shape {np.shape(part)}"
            )


def _check_sequence(data: Any) -> None:
    """Raises unless `data` is a sequence, if an array then along its first axis."""
    if not isinstance(data, Sequence | np.ndarray | jax.Array) or isinstance(data, str):
        raise TypeError(f"data: expected a sequence of arrays, got {type(data).__name__}")
    if not isinstance(data, Sequence) and data.ndim == 0:
        raise ValueError("data: expected a sequence of arrays, got an array of no axes")
    kinds = {np.shape(part)[1:] for part in data}
    if len(kinds) > 1:
        raise ValueError(
            f"data: expected arrays that differ in the first axis alone, got rows of the shapes "
            f"{', '.join(map(str, sorted(kinds)))}"
        )


def _union(
    data: Sequence[Any], size: int, mask: Bool[Array, " size"], fill_value: float, what: str
) -> Array:
    for part in data:
        _edge_list.check_concrete(part, "data", "a batch is made of arrays")
    parts = [np.asarray(part) for part in data]
    for part in parts:
        if part.dtype != np.bool_ and not jnp.issubdtype(part.dtype, jnp.number):
            raise TypeError(f"data: expected arrays of numbers, got {part.dtype}")
    real = int(np.sum(np.asarray(mask)))
    if any(part.ndim == 0 for part in parts):
        raise ValueError(f"data: expected {real} rows, one for each of the {what}, got a scalar")
    rows = np.concatenate(parts) if parts else np.zeros(0)
    if rows.shape[0] != real:
        raise ValueError(
            f"data: expected {real} rows, one for each of the {what}, got {rows.shape[0]}"
        )
    check_fill_value(fill_value, rows.dtype)
    check_integers_fit(rows, "data")
    padding = np.full((size - real, *rows.shape[1:]), fill_value, rows.dtype)
    return device_array(np.concatenate([rows, padding]))
