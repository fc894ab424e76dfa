"""Whether an embedding is right: its rows' lengths, and some rows in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxgnn.train import RunError

_LENGTH_TOLERANCE = 1e-6
_ROW_TOLERANCE = {"cpu": 1e-4, "gpu": 1e-2}  # a GPU may multiply in TF32


def check_embedding(
    graph: Any, x: Any, params: Any, key: Any, out: Any, children: int, leaves: int, rows: int
) -> tuple[float, float, int]:
    """The largest deviations of a length from 1 and of the first rows, and the rows all zero.

    Raises:
        RunError: one is too large.
    """
    import jax

    result = np.asarray(out)
    lengths = np.sqrt(np.einsum("ij,ij->i", result, result, dtype=np.float64))
    deviation = np.where(lengths == 0, 0, np.abs(lengths - 1))
    worst = float(deviation.max())
    expected = reference(graph, x, params, key, children, leaves, np.arange(rows, dtype=np.int32))
    error = float(np.abs(result[:rows] - expected).max(initial=0))
    if not worst <= _LENGTH_TOLERANCE:
        raise RunError(f"embed: expected rows of length 1, got a length {worst:.1e} from it")
    if not error <= _ROW_TOLERANCE.get(jax.default_backend(), 1e-2):
        raise RunError(f"embed: expected the rows of float64, got one {error:.1e} from it")
    return worst, error, int((lengths == 0).sum())


def reference(
    graph: Any, x: Any, params: Any, key: Any, children: int, leaves: int, nodes: np.ndarray
) -> np.ndarray:
    """The embedding of the first nodes in float64, with NumPy."""
    import jax

    features = np.asarray(x, np.float64)
    weights = {name: np.asarray(value, np.float64) for name, value in params.items()}
    drawn = _neighbors(graph, nodes, jax.random.fold_in(key, 0), children)
    found = _neighbors(graph, drawn.reshape(-1), jax.random.fold_in(key, 1), leaves)
    # A leaf after the other: not all rows of all leaves at once.
    total = np.zeros((found.shape[0], features.shape[1]))
    for column in found.T:
        total += features[column]
    means = total / leaves
    of_children = _layer(features[drawn.reshape(-1)], means, weights["Wf1"], weights["Wa1"])
    of_sources = _layer(features[nodes], features[drawn].mean(1), weights["Wf1"], weights["Wa1"])
    around = of_children.reshape(*drawn.shape, -1).mean(1)
    return _layer(of_sources, around, weights["Wf2"], weights["Wa2"])


def _neighbors(graph: Any, nodes: np.ndarray, key: Any, size: int) -> np.ndarray:
    from jaxgnn import sampled_edges

    edges, counts = sampled_edges(
        graph, sample_size=size, strategy="random", key=key, replace=True, rows=nodes
    )
    if graph.num_edges == 0:
        return np.repeat(nodes[:, None], size, axis=1)
    senders = np.asarray(graph.senders)[np.maximum(np.asarray(edges), 0)]
    return np.where(np.asarray(counts)[:, None] > 0, senders, nodes[:, None])


def _layer(itself: np.ndarray, around: np.ndarray, wf: np.ndarray, wa: np.ndarray) -> np.ndarray:
    h = np.maximum(np.concatenate([itself @ wf, around @ wa], axis=1), 0)
    length = np.linalg.norm(h, axis=1, keepdims=True)
    return h / np.where(length > 0, length, 1)
