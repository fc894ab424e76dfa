"""Data over the edges, nodes and graphs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Shaped

from jaxgnn._core.arguments import check_fill_value, check_fits
from jaxgnn._core.checks import host_array
from jaxgnn._core.device import device_array
from jaxgnn.graph._batches.graph_batch import GraphBatch, batch_argument, graph_sizes_of
from jaxgnn.graph._build import edge_list


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
    parts = _parts(batch, data, np.diff(ends), "edges")
    return _union(parts, batch.graph.num_edges, batch.edge_mask, fill_value, "edges")


def union_node_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "nodes ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_nodes ..."]:
    """Node data (receivers', of rectangular graphs) of each graph as one array over the batch.

    Raises:
        TypeError, ValueError: as `union_edge_data`, for nodes.
    """
    batch = batch_argument(batch)
    parts = _parts(batch, data, graph_sizes_of(batch.membership), "nodes")
    return _union(parts, batch.graph.num_receivers, batch.node_mask, fill_value, "nodes")


def union_sender_data(
    batch: GraphBatch, data: Sequence[Shaped[ArrayLike, "senders ..."]], *, fill_value: float = 0.0
) -> Shaped[Array, "num_senders ..."]:
    """The same of the senders of rectangular graphs.

    Raises:
        TypeError, ValueError: as `union_edge_data`, for senders.
    """
    batch = batch_argument(batch)
    parts = _parts(batch, data, graph_sizes_of(batch.sender_membership), "senders")
    return _union(parts, batch.graph.num_senders, batch.sender_mask, fill_value, "senders")


def union_graph_data(
    batch: GraphBatch, data: Shaped[ArrayLike, "graphs ..."], *, fill_value: float = 0.0
) -> Shaped[Array, "num_graphs ..."]:
    """A row for each graph (labels, say), padded to the batch's number of graphs.

    Raises:
        TypeError: `batch` is neither a `GraphBatch` nor a `Graph`, or is traced.
        ValueError: not a row for each graph, or the dtype does not hold `fill_value`.
    """
    batch = batch_argument(batch)
    return _union([_host(data, "data")], batch.num_graphs, batch.graph_mask, fill_value, "graphs")


def _parts(
    batch: GraphBatch, data: Sequence[Any], sizes: np.ndarray, what: str
) -> list[np.ndarray]:
    """The parts on the host: one for each graph that is not padding, of its size."""
    if not isinstance(data, Sequence | np.ndarray | jax.Array) or isinstance(data, str):
        raise TypeError(f"data: expected a sequence of arrays, got {type(data).__name__}")
    if not isinstance(data, Sequence) and data.ndim == 0:
        raise ValueError("data: expected a sequence of arrays, got an array of no axes")
    parts = [_host(part, f"data[{i}]") for i, part in enumerate(data)]
    kinds = {part.shape[1:] for part in parts}
    if len(kinds) > 1:
        raise ValueError(
            f"data: expected arrays that differ in the first axis alone, got rows of the shapes "
            f"{', '.join(map(str, sorted(kinds)))}"
        )
    sizes = sizes[: int(np.sum(np.asarray(batch.graph_mask)))]
    if len(parts) != sizes.size:
        raise ValueError(
            f"data: expected {sizes.size} arrays, one for each graph, got {len(parts)}"
        )
    for i, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if part.shape[:1] != (size,):
            raise ValueError(
                f"data[{i}]: expected {size} rows, one for each of the {what}, "
                f"got the shape {part.shape}"
            )
    return parts


def _host(part: Any, name: str) -> np.ndarray:
    edge_list.check_concrete(part, "data", "a batch is made of arrays")
    return host_array(part, name)


def _union(
    parts: list[np.ndarray], size: int, mask: Bool[Array, " size"], fill_value: float, what: str
) -> Array:
    for part in parts:
        if part.dtype != np.bool_ and not jnp.issubdtype(part.dtype, jnp.number):
            raise TypeError(f"data: expected arrays of numbers, got {part.dtype}")
    real = int(np.sum(np.asarray(mask)))
    if any(part.ndim == 0 for part in parts):
        raise ValueError(f"data: expected {real} rows, one for each of the {what}, got a scalar")
    dtype = _common_dtype(parts)
    rows = np.concatenate([part.astype(dtype, copy=False) for part in parts] or [np.zeros(0)])
    if rows.shape[0] != real:
        raise ValueError(
            f"data: expected {real} rows, one for each of the {what}, got {rows.shape[0]}"
        )
    check_fill_value(fill_value, rows.dtype)
    check_fits(rows, "data")
    padding = np.full((size - real, *rows.shape[1:]), fill_value, rows.dtype)
    return device_array(np.concatenate([rows, padding]))


def _common_dtype(parts: list[np.ndarray]) -> Any:
    dtypes = {part.dtype for part in parts} or {np.dtype(np.float64)}
    try:
        return np.result_type(*dtypes)
    except TypeError:  # bfloat16 and integers, say
        return jnp.result_type(*dtypes)
