"""The graph of nearest neighbors, built on the device."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxgnn._core.arguments import unwrap
from jaxgnn.graph import Graph
from jaxgnn.graph._build import device_csr
from jaxgnn.ops._core import checks
from jaxgnn.ops._knn.nearest import nearest


@jax.named_scope("jaxgnn.knn_graph")
def knn_graph(
    points: Float[Array, "num_points dimensions"] | Float[Array, "clouds num_points dimensions"],
    k: int,
    *,
    batch: Int[Array, " num_points"] | None = None,
    padding_node: bool = False,
    loop: bool = False,
) -> Graph:
    r"""Graph with an edge to each point from each of its `k` nearest points.

    Edges run from the neighbor to the point, PyG's `source_to_target`. Distances are Euclidean,
    the sums of squared differences in float32 (float64 for float64); of points equally far the
    lower index is nearer. No gradient flows from the graph to the points.

    Everything runs in JAX on the points' device and may be inside `jit`, `vmap` and `shard_map`:
    the shapes of the result depend on the shapes of the points and on `k` alone. Distances are
    formed a block at a time, so memory grows with the number of points and not with its square.

    - `[num_points, dimensions]`: a graph of `num_points` nodes of `k` edges each.
    - `[clouds, num_points, dimensions]`: point clouds of one size. The graph is their disjoint
      union: point `i` of cloud `b` is node `b * num_points + i`.
    - With `batch`, clouds of any sizes, whose number each point names. Each must have `k` other
      points (with `loop`, `k` points).
    - With `batch` and `padding_node`, clouds may have fewer, and `batch` may be traced. The number
      of edges stays that of points times `k`. The graph has one node more, `num_points`, which pads
      as those of `jaxgnn.batch.pad` do: the missing edges are its self-loops. Give it a row of
      features (zeros, say) and drop its result; `graph.receivers < num_points` masks the edges.

    A `k` above the number of candidates among all points gives all of them. Each row's senders are
    sorted, as in any `Graph`; `edge_permutation` counts the edges point by point, nearest first,
    so that `graph.sort_edge_data` takes arrays of that order.

    Args:
        points: finite, and so must be their squared distances.
        k: number of neighbors, at least 1.
        batch: the cloud of each point, integers; sorted, many clouds take little more time than
            one, as blocks of distances between other clouds are skipped.
        padding_node: add a node that takes the edges missing in clouds of too few points.
        loop: whether a point is one of its own neighbors (at distance 0). Without, it never is:
            PyG drops it afterwards, and so has an edge more where over `k` other points coincide
            with it.

    Raises:
        TypeError: `points` is not floating, `batch` not of integers, or `k` no integer.
        ValueError: a shape that does not fit, `k` below 1, `batch` with clouds of equal size,
            2**31 edges or more; without `padding_node`, a cloud of too few points or a traced
            `batch`; with it, no `batch`.

    Source: PyG's `knn_graph`; Wang et al., "Dynamic Graph CNN for Learning on Point Clouds"
    (TOG 2019), section 3.3.
    """
    points = checks.floating(points, "points")
    if points.ndim not in (2, 3):
        raise ValueError(
            "points: expected the shape (num_points, dimensions) or (clouds, num_points, "
            f"dimensions), got {points.shape}"
        )
    k = checks.integer(k, "k", 1, 2**31 - 1)
    padding_node = checks.boolean(padding_node, "padding_node")
    loop = checks.boolean(loop, "loop")
    if points.dtype in (jnp.bfloat16, jnp.float16):
        points = points.astype(jnp.float32)
    points = jax.lax.stop_gradient(points)
    if points.shape[-1] == 0:  # all in one place
        points = jnp.zeros_like(points, shape=(*points.shape[:-1], 1))
    size = points.shape[-2]
    total = size if points.ndim == 2 else size * points.shape[0]
    k = max(min(k, size if loop else size - 1), 0)
    if total * k >= 2**31:
        raise ValueError(f"k: expected fewer than 2**31 edges, got {k} for {total} points")
    if batch is not None:
        numbers = _cloud_numbers(batch, points)
        if not padding_node:
            _check_sizes(batch, k, loop)
        batch = numbers
    elif padding_node:
        raise ValueError("padding_node: expected a batch with it, got None")
    return _graph_of(points, batch, k, loop, padding_node)


# One program also for calls outside `jit`, where each operation would be compiled for itself.
@functools.partial(jax.jit, static_argnames=("k", "loop", "padding_node"))
def _graph_of(points: Array, batch: Array | None, k: int, loop: bool, padding_node: bool) -> Graph:
    """The graph of arguments that fit, `k` not above the number of candidates."""
    if batch is not None and padding_node:
        return _padded(points, batch, k, loop)
    if points.ndim == 2:
        senders, _ = nearest(points, batch, k, loop)
    else:
        senders = _of_clouds(points, k, loop)
    total = math.prod(points.shape[:-1])
    senders = senders.reshape(total, k)
    order = jnp.argsort(senders, axis=1).astype(jnp.int32)
    nodes = jnp.arange(total, dtype=jnp.int32)[:, None]
    return device_csr.square_graph(
        jnp.arange(total + 1, dtype=jnp.int32) * k,
        jnp.take_along_axis(senders, order, axis=1).reshape(-1),
        jnp.broadcast_to(nodes, (total, k)).reshape(-1),
        (nodes * k + order).reshape(-1),
    )


def _cloud_numbers(batch: Any, points: Array) -> Int[Array, " num_points"]:
    """`batch` as an array that fits."""
    if points.ndim != 2:
        raise ValueError(f"batch: expected points of two axes with it, got {points.shape}")
    batch = unwrap(batch)
    if not isinstance(batch, jax.Array | np.ndarray | list | tuple):
        raise TypeError(f"batch: expected an array, got {type(batch).__name__}")
    if not isinstance(batch, jax.Array):
        batch = np.asarray(batch)
        if batch.size == 0:  # a list without elements is of floats
            batch = batch.astype(np.int32)
        narrow = jax.dtypes.canonicalize_dtype(batch.dtype)
        if np.issubdtype(batch.dtype, np.integer) and (batch.astype(narrow) != batch).any():
            # Which are equal, and their order, is all that matters of them.
            batch = np.unique(batch, return_inverse=True)[1].reshape(batch.shape)
    numbers = jnp.asarray(batch)
    if not jnp.issubdtype(numbers.dtype, jnp.integer):
        raise TypeError(f"batch: expected integers, got {numbers.dtype}")
    if numbers.shape != points.shape[:1]:
        raise ValueError(
            f"batch: expected the shape {points.shape[:1]}, a number for each point, "
            f"got {numbers.shape}"
        )
    return numbers


def _check_sizes(batch: Any, k: int, loop: bool) -> None:
    """Raises if a cloud has fewer than `k` candidates, or if that is not known yet."""
    if isinstance(batch, Tracer):
        raise ValueError(
            "padding_node: expected True with a traced batch, whose clouds may have too few "
            "points, got False"
        )
    smallest = np.unique(np.asarray(batch), return_counts=True)[1].min(initial=2**31)
    if smallest < k + (not loop):
        raise ValueError(
            f"batch: expected clouds of at least {k + (not loop)} points (or padding_node=True), "
            f"got one of {smallest}"
        )


def _of_clouds(
    points: Float[Array, "clouds size dimensions"], k: int, loop: bool
) -> Int[Array, "clouds size k"]:
    """The senders of each point, counted over all clouds."""
    clouds, size, _ = points.shape
    if clouds * size * k == 0:
        return jnp.zeros((clouds, size, k), jnp.int32)
    # As many at once as have 2**24 distances in all.
    together = max(1, 2**24 // size**2)
    own = jax.lax.map(lambda cloud: nearest(cloud, None, k, loop)[0], points, batch_size=together)
    return own + (jnp.arange(clouds, dtype=jnp.int32) * size)[:, None, None]


def _padded(
    points: Float[Array, "num_points dimensions"],
    batch: Int[Array, " num_points"],
    k: int,
    loop: bool,
) -> Graph:
    """The union of clouds of any sizes, and a node that has the missing edges as self-loops."""
    size = points.shape[0]
    senders, found = nearest(points, batch, k, loop)
    order = jnp.argsort(jnp.where(found, senders, size), axis=1).astype(jnp.int32)
    senders = jnp.take_along_axis(senders, order, axis=1)
    count = jnp.sum(found, axis=1, dtype=jnp.int32)
    offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(count, dtype=jnp.int32)])
    rank = jnp.arange(k, dtype=jnp.int32)[None, :]
    known = rank < count[:, None]  # the sort brought the missing ones to the end of their row
    # The known edges move up, the missing ones keep their order behind the last of them.
    missing = jnp.cumsum(~known.reshape(-1), dtype=jnp.int32).reshape(size, k) - 1
    place = jnp.where(known, offsets[:-1, None] + rank, offsets[-1] + missing).reshape(-1)
    nodes = jnp.arange(size, dtype=jnp.int32)[:, None]

    def moved(values: Int[Array, "num_points k"], padding: int) -> Int[Array, " num_edges"]:
        values = jnp.where(known, values, padding).reshape(-1)
        return jnp.zeros_like(values).at[place].set(values, unique_indices=True)

    last = jnp.full(1, size * k, jnp.int32)
    return device_csr.square_graph(
        jnp.concatenate([offsets, last]),
        moved(senders, size),
        moved(jnp.broadcast_to(nodes, (size, k)), size),
        moved(nodes * k + order, -1),
    )
