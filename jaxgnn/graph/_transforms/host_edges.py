"""Edges taken from the device to the host, and a graph of the new ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Shaped

from jaxgnn._core.arguments import check_fill_value, check_floats_fit, check_integers_fit
from jaxgnn._core.checks import host_array
from jaxgnn._core.device import device_array
from jaxgnn.graph._argument import graph_argument
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._validate import check_rows

Values = Any  # a NumPy array on the host, or a traced one of JAX
Weighted = tuple[Graph, Shaped[Array, "num_edges ..."] | None]


def host_edges(
    graph: Graph, weights: Any, *, square: bool = False, real: bool = False
) -> tuple[np.ndarray, np.ndarray, Values | None]:
    """Senders, receivers and weights in NumPy, checked; weights that are traced stay so.

    `real` refuses complex weights.
    """
    graph = graph_argument(graph)
    if square and not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got the rectangular {graph}")
    if isinstance(graph.senders, Tracer):
        raise TypeError(
            "graph: transforms run outside jax.jit, on the graph itself; give its result to the "
            "jitted function"
        )
    check_rows(graph)
    receivers = _csr.row_ids(np.asarray(graph.row_offsets))
    senders = np.asarray(graph.senders)
    if weights is None:
        return senders, receivers, None
    if hasattr(weights, "__jax_array__"):
        weights = jnp.asarray(weights)
    values = weights if isinstance(weights, Tracer) else host_array(weights, "weights")
    if values.dtype != np.bool_ and not jnp.issubdtype(values.dtype, jnp.number):
        raise TypeError(f"weights: expected an array of numbers, got {values.dtype}")
    if real and jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise TypeError(f"weights: expected real numbers, got {values.dtype}")
    if values.ndim == 0 or values.shape[0] != graph.num_edges:
        raise ValueError(
            f"weights: expected one for each of the {graph.num_edges} edges, "
            f"got the shape {values.shape}"
        )
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        check_floats_fit(values, "weights")
        values = values.astype(jax.dtypes.canonicalize_dtype(np.float64), copy=False)
    return senders, receivers, values


def edge_numbers(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32 if size < 2**31 else np.int64)


def counts_of(graph: Graph) -> dict[str, Any]:
    if graph.is_square:
        return {"num_nodes": graph.num_receivers}
    return {"num_senders": graph.num_senders, "num_receivers": graph.num_receivers}


def rebuild(
    graph: Graph,
    senders: np.ndarray,
    receivers: np.ndarray,
    values: Values | None,
    sources: np.ndarray,
    fill_value: float = 1.0,
    *,
    counts: dict[str, Any] | None = None,
) -> Weighted:
    """Graph of new edges between the same nodes, or between as many as `counts` says.

    `sources[e]` is the old edge that the new edge e comes from, or -1; weights and the user's
    edge numbers are taken from there.
    """
    csr = _csr.build(senders, receivers, **(counts or counts_of(graph)))
    order = csr.edge_permutation
    assert order is not None
    sources = sources[order]
    added = sources < 0
    users = positions = None
    if graph.edge_permutation is not None:
        users = _take(np.asarray(graph.edge_permutation), sources, added, -1)
    if graph.edge_positions is not None:
        new = np.full(graph.num_edges + 1, -1, order.dtype)  # the last place is that of none
        new[sources[~added]] = np.flatnonzero(~added)
        positions = new[np.asarray(graph.edge_positions)]
    result = Graph._from_host(
        csr._replace(
            edge_permutation=users,
            edge_positions=positions,
            num_input_edges=graph.num_input_edges,
            merges_edges=graph.merges_edges,
        )
    )
    if values is None:
        return result, None
    check_integers_fit(values, "weights")
    taken = _take(values, sources, added, fill_value)
    return result, device_array(taken) if isinstance(taken, np.ndarray) else taken


def _take(values: Any, sources: np.ndarray, added: np.ndarray, fill_value: float) -> Any:
    """`values[sources]`, and `fill_value` where `added`."""
    if not added.any():
        return values[sources]
    check_fill_value(fill_value, values.dtype)
    if isinstance(values, Tracer):
        result = jnp.full((sources.size, *values.shape[1:]), fill_value, values.dtype)
        return result.at[np.flatnonzero(~added)].set(values[sources[~added]], unique_indices=True)
    result = np.full((sources.size, *values.shape[1:]), fill_value, values.dtype)
    result[~added] = values[sources[~added]]
    return result
