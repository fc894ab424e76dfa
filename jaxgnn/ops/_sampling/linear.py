r"""Sampled aggregation and its derivatives: three maps that differentiate into each other.

For a given sample $T$, $(x, w) \mapsto \sum_{e \in T(i)} w_e x_{j(e)}$ is linear in the features
and in the weights, as `spmm` is (`jaxgnn/ops/_aggregation/linear.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.linear_call import Multilinear
from jaxgnn.graph._build.row_chunks import no_chunks
from jaxgnn.ops._aggregation.kernels import dot_rows, reduce_rows
from jaxgnn.ops._core.rows import in_row_order, neighbors
from jaxgnn.ops._sampling.rows import (
    fits_in_cache,
    row_limit,
    rows_are_even,
    rows_by_edge,
    sampled_rows,
    sampled_rows_by_sender,
    taken_counts,
)
from jaxgnn.ops._sampling.sample import Places, Sample


class SampledMap(NamedTuple):
    """Which linear map.

    Attributes:
        sample: the edges that are summed.
        transpose: sums over the places of each sender.
        mean: the sums of a place are divided by its number of edges.
    """

    sample: Sample
    transpose: bool = False
    mean: bool = False

    def adjoint(self) -> SampledMap:
        return self._replace(transpose=not self.transpose)


def _aggregate(
    linear_map: SampledMap,
    places: Places,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    if not linear_map.transpose:
        reduce = "mean" if linear_map.mean else "sum"
        narrow = rows_are_even(linear_map.sample, places)
        limit = row_limit(linear_map.sample, places)
        if limit is not None:
            whole = neighbors(places.graph, transpose=False)
            rows = whole._replace(chunks=no_chunks(), schedule=None)
        else:
            rows = sampled_rows(linear_map.sample, places, order=weights is not None)
            weights = in_row_order(rows, weights)
        return reduce_rows(rows, x, weights, reduce, narrow_slices=narrow, row_limit=limit)
    rows, times = sampled_rows_by_sender(linear_map.sample, places, order=weights is not None)
    weights = in_row_order(rows, weights)
    if times is not None:
        dtype = accumulation_dtype(x.dtype)
        factor = times.astype(dtype)[:, None]
        weights = factor if weights is None else factor * weights
    if linear_map.mean:
        x = _divide(linear_map.sample, places, x)
    narrow = rows_are_even(linear_map.sample, places) and fits_in_cache(places.count)
    return reduce_rows(rows, x, weights, "sum", narrow_slices=narrow)


def _divide(
    sample: Sample, places: Places, x: Float[Array, "places heads width"]
) -> Float[Array, "places heads width"]:
    """Divided by the number of edges of each place."""
    dtype = accumulation_dtype(x.dtype)
    counts = jnp.maximum(taken_counts(sample, places), 1).astype(dtype)
    return (x.astype(dtype) / counts[:, None, None]).astype(x.dtype)


def _aggregate_transpose_x(linear_map, places, cotangent, weights):
    return aggregate(linear_map.adjoint(), places, cotangent, weights)


def _aggregate_transpose_weights(linear_map, places, x, cotangent):
    at_places, at_senders = (x, cotangent) if linear_map.transpose else (cotangent, x)
    if linear_map.mean:
        at_places = _divide(linear_map.sample, places, at_places)
    return edge_dot(linear_map.sample, places, at_places, at_senders)


aggregate = Multilinear(_aggregate, (_aggregate_transpose_x, _aggregate_transpose_weights))
"""`aggregate(linear_map, places, x, weights)`: the weighted sum or mean over the sampled edges."""


def _edge_dot(
    sample: Sample,
    places: Places,
    at_places: Float[Array, "places heads width"],
    at_senders: Float[Array, "num_senders heads width"],
) -> Float[Array, "num_edges heads"]:
    """The sum of the dot products of all places that took an edge."""
    num_edges = places.graph.num_edges
    rows = sampled_rows(sample, places)
    dots = dot_rows(rows, at_places, at_senders)
    assert rows.order is not None
    if places.rows is not None:
        # Several places may have taken an edge: their sum in a fixed order.
        by_edge = rows_by_edge(rows, num_edges)
        return reduce_rows(by_edge, dots[:, None], None, "sum")[:, 0]
    # An edge's repeats have one value: their sum is the same in any order.
    return jnp.zeros((num_edges, dots.shape[1]), dots.dtype).at[rows.order].add(dots, mode="drop")


edge_dot = Multilinear(
    _edge_dot,
    (
        lambda sample, places, cotangent, at_senders: aggregate(
            SampledMap(sample), places, at_senders, cotangent
        ),
        lambda sample, places, at_places, cotangent: aggregate(
            SampledMap(sample, transpose=True), places, at_places, cotangent
        ),
    ),
)
"""`edge_dot(sample, places, at_places, at_senders)`: dot products of the sampled edges' ends."""
