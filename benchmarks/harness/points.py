"""Clouds of points and the graphs of their nearest neighbors, and what times the search of these.

The clouds stand in for ModelNet40's of 1,024 points: random points on ellipsoids' surfaces.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.job import Job, checked

SIZE = 1024  # points of a cloud
# Clouds and neighbors of a point, by the graph's name.
CLOUDS = {f"points{clouds}-k{k}": (clouds, k) for clouds in (32, 64) for k in (20, 40)}
OURS, PLAIN = "jaxgnn knn_graph", "jax top_k of distances"
_TOLERANCE = 1e-4
_SEED = 9


@dataclasses.dataclass(frozen=True)
class Search:
    """The search for the nearest neighbors of each point among those of its cloud."""

    case: str
    impl: str
    clouds: int
    neighbors: int
    width: int  # of the points: coordinates, or features of a layer before
    points: int = SIZE

    def __str__(self) -> str:
        return f"{self.case} k={self.neighbors} F={self.width} {self.impl}"


def clouds_at(name: str, scale: float) -> int:
    """The clouds of a graph at this scale."""
    return max(1, round(CLOUDS[name][0] * scale))


def surfaces(clouds: int, seed: int = _SEED) -> np.ndarray:
    """Points of that many clouds, float32 `[clouds, SIZE, 3]`."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((clouds, SIZE, 3)).astype(np.float32)
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return points * rng.uniform(0.3, 1.0, (clouds, 1, 3)).astype(np.float32)


def nearest(name: str, scale: float, seed: int) -> Any:
    """The graph of the nearest neighbors, as rows by receiver."""
    from jaxgnn import knn_graph
    from jaxgnn.data import CSR

    graph = knn_graph(surfaces(clouds_at(name, scale), seed), CLOUDS[name][1])
    return CSR(np.asarray(graph.row_offsets), np.asarray(graph.senders))


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of a search."""
    del threads
    return functools.partial(_job, task["device"])


def _job(device: str, entry: dict[str, Any]) -> Job:
    import jax
    import jax.numpy as jnp

    from benchmarks.harness.jax_programs import call_seconds, program_bytes
    from jaxgnn import knn_graph

    search = Search(**entry)
    k = search.neighbors
    points = surfaces(search.clouds)
    if search.width != points.shape[-1]:
        shape = (*points.shape[:-1], search.width)
        points = np.random.default_rng(_SEED).standard_normal(shape).astype(np.float32)

    def plain(points: Any) -> Any:
        """Of each cloud at once; exact products, as TF32 ones confuse near points."""
        squares = (points**2).sum(axis=-1)
        products = jnp.einsum("cif,cjf->cij", points, points, precision="highest")
        distances = squares[:, :, None] + squares[:, None] - 2 * products
        own = jnp.eye(points.shape[1], dtype=bool)
        return jax.lax.top_k(-jnp.where(own, jnp.inf, distances), k)[1]

    operand = jax.device_put(points)
    function = functools.partial(knn_graph, k=k) if search.impl == OURS else plain
    program = jax.jit(function).lower(operand).compile()

    def check() -> dict[str, Any]:
        result = program(operand)
        if search.impl == OURS:
            assert (np.diff(result.row_offsets) == k).all()
            found = np.asarray(result.senders).reshape(search.clouds, SIZE, k)
            found = found - np.arange(search.clouds)[:, None, None] * SIZE
        else:
            found = np.asarray(result)
        return checked(distance_error(points, found), _TOLERANCE)

    identity = {
        "case": search.case,
        "impl": search.impl,
        "dtype": "float32",
        "shape": {name: entry[name] for name in ("clouds", "points", "width", "neighbors")},
        "pass": "build",
    }
    call = functools.partial(program, operand)
    seconds = functools.partial(call_seconds, call, device=device)
    return Job(seconds, lambda: program_bytes(program), identity, check)


def distance_error(points: np.ndarray, found: np.ndarray, count: int = 64) -> float:
    """How far the neighbors found are above the nearest ones: of some points of the first and last
    cloud, the largest difference of distances by the largest distance, in float64. Infinite where
    one is found twice, or is the point itself."""
    rows = np.random.default_rng(_SEED).choice(points.shape[1], count, replace=False)
    error = 0.0
    for cloud in {0, points.shape[0] - 1}:
        wide = points[cloud].astype(np.float64)
        distances = np.linalg.norm(wide[rows, None] - wide[None], axis=-1)
        own = found[cloud][rows]
        twice = (np.diff(np.sort(own, axis=1), axis=1) == 0).any()
        if twice or (own == rows[:, None]).any():
            return float("inf")
        distances[np.arange(count), rows] = np.inf
        least = np.sort(distances, axis=1)[:, : own.shape[1]]
        ours = np.sort(np.take_along_axis(distances, own, axis=1), axis=1)
        error = max(error, float(np.abs(ours - least).max() / least.max()))
    return error
