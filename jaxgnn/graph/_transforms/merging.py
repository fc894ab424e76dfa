"""Repeated edges merged, and both directions of each."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import ArrayLike, Shaped

from jaxgnn._core.checks import choice
from jaxgnn._core.device import device_array
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._build import edge_data
from jaxgnn.graph._build.edge_data import Reduce
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._transforms.host_edges import (
    Values,
    Weighted,
    counts_of,
    edge_numbers,
    host_edges,
    rebuild,
)


def coalesce(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    reduce: Reduce = "sum",
) -> Weighted:
    """Merges repeated edges into one, of the sum (mean, largest, smallest) of their weights.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, or the weights are no real numbers.
        ValueError: unknown `reduce`, or the weights are not of the graph's edges.
    """
    senders, receivers, values = host_edges(graph, weights, real=True)
    return _coalesce(graph, senders, receivers, values, edge_numbers(senders.size), reduce)


def to_undirected(
    graph: Graph,
    weights: Shaped[ArrayLike, "num_edges ..."] | None = None,
    *,
    reduce: Reduce = "sum",
) -> Weighted:
    """Adds the reverse of every edge, then merges repeated edges.

    PyG's rule, of `torch_geometric.utils.to_undirected`: with `reduce="sum"`, two edges that
    are each other's reverse both get the sum of their weights, and a self-loop twice its own.

    `weights` are in the graph's edge order, not the user's (`Graph.sort_edge_data`).

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, or the weights are no real numbers.
        ValueError: unknown `reduce`, the graph is rectangular, or the weights are not of its
            edges.
    """
    senders, receivers, values = host_edges(graph, weights, square=True, real=True)
    edges = edge_numbers(senders.size)
    return _coalesce(
        graph,
        np.concatenate([senders, receivers]),
        np.concatenate([receivers, senders]),
        values,
        np.concatenate([edges, edges]),
        reduce,
    )


def _coalesce(
    graph: Graph,
    senders: np.ndarray,
    receivers: np.ndarray,
    values: Values | None,
    sources: np.ndarray,
    reduce: Reduce,
) -> Weighted:
    """Merges equal edges; edge number e carries the weight `values[sources[e]]`."""
    choice(reduce, "reduce", edge_data.REDUCTIONS)
    csr = _csr.build(senders, receivers, **counts_of(graph))
    order = csr.edge_permutation
    assert order is not None
    rows = _csr.row_ids(csr.row_offsets)
    first = _csr.first_of_equal(csr.senders, rows)
    starts = np.flatnonzero(first)
    bare = dataclasses.replace(graph, edge_positions=None, merges_edges=True)
    result, _ = rebuild(bare, csr.senders[starts], rows[starts], None, sources[order[starts]])
    if values is None:
        return result, None
    if isinstance(values, Tracer):
        groups = np.cumsum(first) - 1
        return result, edge_data.merge_rows(values[sources[order]], groups, starts.size, reduce)[0]
    merge = _merged if jnp.issubdtype(values.dtype, jnp.floating) else _merged_integers
    return result, device_array(merge(values[sources[order]], starts, reduce))


def _merged(values: np.ndarray, starts: np.ndarray, reduce: Reduce) -> np.ndarray:
    """The reduction of each group, of which `starts` has the first place."""
    if starts.size == values.shape[0]:
        return values
    # bfloat16 and float16 are summed in float32.
    narrow = jnp.issubdtype(values.dtype, jnp.floating) and values.dtype.itemsize < 4
    wide = values.astype(np.float32) if narrow else values
    counts = np.diff(np.append(starts, values.shape[0]))
    if reduce in ("max", "min"):
        merged = (np.maximum if reduce == "max" else np.minimum).reduceat(wide, starts, axis=0)
    else:
        merged = _sum_in_order(wide, starts, counts)
    if reduce == "mean":
        merged = merged / counts.reshape(-1, *[1] * (values.ndim - 1)).astype(merged.dtype)
    return merged.astype(values.dtype)


def _sum_in_order(values: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum of each group from its first row on; `np.add.reduceat` adds in pairs."""
    sums = values[starts]
    groups, place = np.arange(starts.size), 1
    while (groups := groups[counts[groups] > place]).size:
        sums[groups] += values[starts[groups] + place]
        place += 1
    return sums


def _merged_integers(values: np.ndarray, starts: np.ndarray, reduce: Reduce) -> np.ndarray:
    """The same of integers and booleans: means in float32, else as `edge_data.merge_rows`."""
    # No mean of integers is an integer, and NumPy's sum of booleans is "or".
    if reduce == "mean":
        return _merged(values.astype(np.float32), starts, reduce)
    narrow = values.dtype.itemsize < 4
    dtype = np.dtype(np.int32) if narrow else jax.dtypes.canonicalize_dtype(values.dtype)
    merged = _merged(
        values.astype(np.uint64 if values.dtype.kind == "u" else np.int64), starts, reduce
    )
    limits = np.iinfo(dtype)
    outside = merged[(merged < limits.min) | (merged > limits.max)]
    if outside.size:
        raise ValueError(f"weights: expected results that {dtype} holds, got {outside[0]}")
    return merged.astype(dtype)
