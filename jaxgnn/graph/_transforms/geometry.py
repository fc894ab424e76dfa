"""Graphs of points, and features of edges by the positions of their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from jaxgnn._core.checks import boolean, host_array, integer, number
from jaxgnn.graph._argument import graph_argument
from jaxgnn.graph._build import csr
from jaxgnn.graph._build.edge_list import check_concrete
from jaxgnn.graph._graph import Graph


def cartesian(
    graph: Graph,
    positions: Float[ArrayLike, "num_nodes dimensions"],
    *,
    normalize: bool = True,
    max_value: float | None = None,
    interval: tuple[float, float] = (0.0, 1.0),
) -> Float[np.ndarray, "num_edges dimensions"]:
    r"""The position of each edge's sender relative to its receiver, float32, in the edge order.

    $$ e_{ij} = p_j - p_i $$

    over the edges from $j$ to $i$; with `normalize`, scaled by the largest magnitude of all (or
    `max_value`) so that $[-max, max]$ becomes `interval`. PyG's `Cartesian`.

    Args:
        graph: a square graph.
        positions: one row a node; finite.
        normalize: scale; else `max_value` and `interval` are not used.
        max_value: the magnitude that is scaled to the end of `interval`, from 0; by default the
            largest.
        interval: two finite numbers, ascending.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, the positions are no real numbers, or an
            option is of another type.
        ValueError: the graph is rectangular, the positions are not finite, one a node, `max_value`
            is below 0 or not finite, or `interval` does not ascend.
    """
    sources, targets = _ends(graph, positions)
    relative = sources - targets
    low, high = _interval(interval)
    most = None if max_value is None else np.float32(number(max_value, "max_value", 0, np.inf))
    if boolean(normalize, "normalize") and relative.size:
        most = np.abs(relative).max() if most is None else most
        relative = (high - low) * relative / (2 * _divisor(most)) + (low + high) / 2
    return relative.astype(np.float32)


def distance(
    graph: Graph,
    positions: Float[ArrayLike, "num_nodes dimensions"],
    *,
    normalize: bool = True,
    max_value: float | None = None,
    interval: tuple[float, float] = (0.0, 1.0),
) -> Float[np.ndarray, "num_edges 1"]:
    """The Euclidean length of each edge, float32, in the edge order.

    With `normalize`, scaled by the largest of all (or `max_value`) so that [0, max] becomes
    `interval`. PyG's `Distance`.

    Args:
        graph, positions, normalize, interval: as of `cartesian`.
        max_value: the length that is scaled to the end of `interval`, from 0; by default the
            largest.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, the positions are no real numbers, or an
            option is of another type.
        ValueError: the graph is rectangular, the positions are not finite, one a node, `max_value`
            is below 0 or not finite, or `interval` does not ascend.
    """
    sources, targets = _ends(graph, positions)
    lengths = np.linalg.norm(targets - sources, axis=1, keepdims=True)
    low, high = _interval(interval)
    most = None if max_value is None else np.float32(number(max_value, "max_value", 0, np.inf))
    if boolean(normalize, "normalize") and lengths.size:
        most = lengths.max() if most is None else most
        lengths = (high - low) * (lengths / _divisor(most)) + low
    return lengths.astype(np.float32)


def radius_graph(
    points: Float[ArrayLike, "num_points dimensions"],
    radius: float,
    *,
    max_num_neighbors: int | None = None,
    loop: bool = False,
) -> Graph:
    """Graph with an edge to each point from each other one at a distance of at most `radius`.

    Distances are Euclidean, in float64, by SciPy's k-d tree on the host; `knn_graph` of
    `jaxgnn` gives the nearest ones on the device.

    Args:
        points: one row a point; finite.
        radius: not negative.
        max_num_neighbors: keep the nearest ones of a point, itself apart; of equal distances, those
            of the lower index.
        loop: also from each point to itself.

    Raises:
        TypeError: `points` are no real numbers, or are traced, or an option is of another type.
        ValueError: `points` are not such an array, or an option is out of range.
    """
    from scipy.spatial import KDTree

    points = _positions(points, "points", "num_points")
    radius = number(radius, "radius", 0, np.inf)
    loop = boolean(loop, "loop")
    most = max_num_neighbors
    if most is not None:
        most = integer(most, "max_num_neighbors", 1, 2**31 - 1)
    n = len(points)
    pairs = KDTree(points).query_pairs(radius, output_type="ndarray") if n else np.zeros((0, 2))
    pairs = pairs.astype(np.int32)
    senders, receivers = np.concatenate([pairs, pairs[:, ::-1]]).T
    if most is not None:
        lengths = np.linalg.norm(points[senders] - points[receivers], axis=1)
        order = np.lexsort((senders, lengths, receivers))
        senders, receivers = senders[order], receivers[order]
        starts = np.searchsorted(receivers, np.arange(n))
        near = np.arange(receivers.size) - starts[receivers] < most
        senders, receivers = senders[near], receivers[near]
    return Graph.from_edges(senders, receivers, num_nodes=n, self_loops="add" if loop else "keep")


def _positions(positions: Any, name: str, rows: int | str) -> np.ndarray:
    check_concrete(positions, name, "positions are read")
    values = host_array(positions, name)
    if values.dtype.kind in "cSU":
        raise TypeError(f"{name}: expected real numbers, got {values.dtype}")
    if values.ndim != 2 or not values.shape[1] or rows not in (len(values), "num_points"):
        raise ValueError(f"{name}: expected [{rows}, dimensions], got the shape {values.shape}")
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return values


def _ends(graph: Graph, positions: Any) -> tuple[np.ndarray, np.ndarray]:
    graph = graph_argument(graph)
    check_concrete(graph.senders, "edge features", "positions are read")
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got the rectangular {graph}")
    values = _positions(positions, "positions", graph.num_receivers)
    receivers = csr.row_ids(np.asarray(graph.row_offsets))
    return values[np.asarray(graph.senders)], values[receivers]


def _interval(interval: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = map(float, interval)
    except (TypeError, ValueError):
        raise TypeError(f"interval: expected two numbers, got {interval!r}") from None
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ValueError(f"interval: expected two ascending numbers, got {interval!r}")
    return low, high


def _divisor(most: Any) -> Any:
    """All edges of length 0 stay so, where PyG divides by 0."""
    return most if most > 0 else 1.0
