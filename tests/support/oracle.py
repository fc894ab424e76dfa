"""Whole results by brute force in float64, and how far a rounded result may be from them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import Graph
from tests.support import oracle_rows


def draw_array(rng: np.random.Generator, shape, dtype) -> jnp.ndarray:
    """Standard normal values that are exact in `dtype`."""
    # jnp.asarray would compile the conversion, and a copy, for each shape.
    return jax.device_put(rng.standard_normal(shape).astype(jnp.dtype(dtype)))


def edges(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """(senders, receivers) in the graph's edge order, without using the operations under test."""
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(np.asarray(graph.row_offsets)))
    return np.asarray(graph.senders), receivers


def brute_force_spmm(graph: Graph, x, weights, reduce: str, transpose: bool):
    """(the result, the tolerance) in float64, from the list of the edges."""
    source, target = edges(graph)
    rows = graph.num_receivers
    if transpose:
        source, target, rows = target, source, graph.num_senders
    unit = float(jnp.finfo(x.dtype).eps)
    accumulation_unit = min(unit, float(jnp.finfo(jnp.float32).eps))
    x = np.asarray(x, np.float64)
    messages = x[source]
    if weights is not None:
        w = np.asarray(weights, np.float64)
        messages = messages * w.reshape(w.shape + (1,) * (x.ndim - w.ndim))
    order = np.argsort(target, kind="stable")
    reached, first = np.unique(target[order], return_index=True)

    def over_rows(function: np.ufunc, messages: np.ndarray) -> np.ndarray:
        result = np.zeros((rows, *x.shape[1:]))
        if first.size:
            result[reached] = function.reduceat(messages[order], first, axis=0)
        return result

    out = over_rows({"max": np.maximum, "min": np.minimum}.get(reduce, np.add), messages)
    degree = np.bincount(target, minlength=rows).reshape(rows, *(1,) * (x.ndim - 1))
    magnitude = over_rows(np.add, np.abs(messages))
    if reduce == "mean":
        out, magnitude = out / np.maximum(degree, 1), magnitude / np.maximum(degree, 1)
    tolerance = unit * np.abs(out) + accumulation_unit * (degree + 2) * magnitude + 1e-30
    if unit > accumulation_unit:  # the smallest steps of float16
        tolerance = tolerance + float(jnp.finfo(jnp.float16).smallest_subnormal)
    return out, tolerance


def brute_force_maxk(x, k: int) -> np.ndarray:
    """The columns of the k largest entries of each row, ascending."""
    x = np.asarray(x)
    rows = x.reshape(-1, x.shape[-1])
    kept = oracle_rows.largest(oracle_rows.descending(rows), k)
    return kept.astype(np.int64).reshape(*x.shape[:-1], k)


def close(actual, expected, tolerance=3e-6):
    """Of one shape, and no further apart than that share of the largest number."""
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, np.abs(expected).max(initial=0))
    assert np.shape(actual) == expected.shape
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), expected, rtol=0, atol=tolerance * scale
    )


def assert_close(result, expected: np.ndarray, tolerance: np.ndarray) -> None:
    result = np.asarray(result, np.float64)
    assert result.shape == expected.shape
    excess = np.abs(result - expected) - tolerance
    assert not np.isnan(excess).any(), "NaN in the result"
    assert (excess <= 0).all(), f"off by {excess.max()} beyond the tolerance"
