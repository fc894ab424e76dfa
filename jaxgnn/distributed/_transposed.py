"""Sums and means at the edges' senders, of a graph by rows: the forward's transpose.

A part has the edges that end at its nodes. What starts from a node of another part is added in the
halo, and travels back as the gradient of an exchange does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.ops import gather_edges

if TYPE_CHECKING:
    from jaxgnn.distributed._sharded_graph import ShardedGraph


def spmm_transposed(
    sharded: ShardedGraph,
    x: Float[Array, "places *features"],
    weights: Float[Array, "num_edges *heads"] | None,
    reduce: str,
    impl: Any,
) -> Float[Array, "places *features"]:
    """`spmm(transpose=True)`.

    Raises:
        ValueError: an extremum, whose transpose is of no sum.
    """
    _check("transpose: expected False", sharded, reduce)

    def forward(x: Array) -> Array:
        return sharded.spmm(x, weights, reduce="sum", transpose=False, impl=impl)

    return _at_senders(forward, sharded, x, reduce)


def reduce_by_senders(
    sharded: ShardedGraph, data: Float[Array, "num_edges *features"], reduce: str, impl: Any
) -> Float[Array, "places *features"]:
    """`segment_reduce(by="senders")`.

    Raises:
        ValueError: an extremum, as above; or a graph split by features, too.
    """
    _check("by: expected 'receivers'", sharded, reduce)

    def forward(x: Array) -> Array:
        return sharded.map_parts(
            lambda graph, x: gather_edges(graph, senders=x, impl=impl),
            "segment_reduce by senders",
            {"x": x},
            {"x": "senders"},
            "edges",
        )

    if sharded.graph is None and sharded.features is None:
        # The gather needs one graph of all edges. The same sum is that of ones with the data as
        # weights, which runs over the two.
        weights = data.reshape(sharded.num_edges, math.prod(data.shape[1:]))
        ones = jnp.ones((sharded.num_senders, weights.shape[1], 1), data.dtype)
        out = spmm_transposed(sharded, ones, weights, reduce, impl)
        return out.reshape(sharded.num_senders, *data.shape[1:])
    return _at_senders(forward, sharded, data, reduce)


def _check(expected: str, sharded: ShardedGraph, reduce: str) -> None:
    if reduce not in ("sum", "mean"):
        raise ValueError(
            f"{expected} for {reduce!r} on a graph sharded by {sharded.layout}, "
            "which has sums and means at the senders alone"
        )


def _at_senders(
    forward: Callable[[Array], Array], sharded: ShardedGraph, values: Array, reduce: str
) -> Array:
    """The transpose of a map from the places' rows, of the values; divided for a mean."""
    dtype = values.dtype
    if reduce == "mean":  # of sums that could overflow in 16 bits
        values = values.astype(accumulation_dtype(dtype))
    shape = (sharded.num_senders, *values.shape[1:])
    # The gradient of a linear map, at any point. `jax.linear_transpose` does not know all that the
    # map calls; XLA removes the forward, which nothing reads.
    (out,) = jax.vjp(forward, jnp.zeros(shape, values.dtype))[1](values)
    if reduce == "mean":
        counts = jnp.maximum(sharded.out_degrees, 1).astype(out.dtype)
        out = out / counts.reshape(-1, *(1,) * (out.ndim - 1))
    return out.astype(dtype)
