"""What the scores share: arguments of NumPy and of JAX, means over tasks, and the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Num

from jaxgnn._core import checks
from jaxgnn._core.arguments import check_integers_fit, unwrap

Score = float | Float[Array, ""]
Rows = Num[ArrayLike, "rows *tasks"]
Mask = Bool[ArrayLike, " rows"] | None


def mean_over_tasks(
    score: Callable[..., tuple[Any, Any]],
    labels: Any,
    predictions: Any,
    mask: Any,
    name: str = "predictions",
) -> Score:
    xp, labels, predictions, valid = arguments(labels, predictions, mask, name)
    if labels.ndim == 1:
        return result(xp, *score(xp, labels, predictions, valid))
    if xp is np:
        columns = zip(labels.T, predictions.T, valid.T, strict=True)
        found = [score(np, *column) for column in columns]
        values, defined = (np.asarray(part) for part in zip(*found, strict=True))
    else:
        values, defined = jax.vmap(lambda *column: score(jnp, *column), in_axes=1)(
            labels, predictions, valid
        )
    return result(xp, *mean_of_counted(xp, values, defined))


def arguments(
    labels: Any, predictions: Any, mask: Any, name: str = "predictions"
) -> tuple[Any, Any, Any, Any]:
    """The module of the arrays, both of them, and which labels count; `name`, of the second."""
    xp, (labels, predictions) = as_arrays(**{"labels": labels, name: predictions})
    if labels.shape != predictions.shape or labels.ndim not in (1, 2):
        raise ValueError(
            f"labels, {name}: expected one shape, (rows,) or (rows, tasks), got "
            f"{labels.shape} and {predictions.shape}"
        )
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise ValueError(f"labels: expected at least one task, got the shape {labels.shape}")
    valid = counted(xp, labels, mask)
    if labels.ndim == 2:
        valid = xp.broadcast_to(valid[:, None], labels.shape)
    if xp.issubdtype(labels.dtype, xp.floating):
        valid = valid & ~xp.isnan(labels)
    return xp, labels, predictions, valid


def as_arrays(**values: Any) -> tuple[Any, list[Any]]:
    """NumPy or JAX, and the values as its arrays."""
    given = [unwrap(value) for value in values.values()]
    xp = jnp if any(isinstance(value, jax.Array) for value in given) else np
    arrays = [_as_array(xp, value, name) for name, value in zip(values, given, strict=True)]
    for name, array in zip(values, arrays, strict=True):
        numeric = array.dtype == bool or jnp.issubdtype(array.dtype, jnp.number)
        if not numeric or jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise TypeError(f"{name}: expected an array of numbers, got {array.dtype}")
    if xp is np:  # NumPy's own do not know bfloat16
        wide = [np.float32 if a.dtype.kind == "V" else a.dtype for a in arrays]
        arrays = [array.astype(dtype) for array, dtype in zip(arrays, wide, strict=True)]
    return xp, arrays


def _as_array(xp: Any, value: Any, name: str) -> Any:
    if xp is np:
        return checks.host_array(value, name)
    check_integers_fit(value, name)
    return checks.as_numbers(value, name)


def counted(xp: Any, rows: Any, mask: Any) -> Any:
    if mask is None:
        return xp.ones(rows.shape[:1], bool)
    mask = unwrap(mask)
    if xp is np and isinstance(mask, Tracer):
        raise TypeError("mask: expected an array of NumPy beside others, got a traced one")
    mask = xp.asarray(mask)
    if mask.dtype != bool or mask.shape != rows.shape[:1]:
        raise ValueError(
            f"mask: expected bool[{rows.shape[0]}], got {mask.dtype}{list(mask.shape)}"
        )
    return mask


def score_dtype(xp: Any, *arrays: Any) -> Any:
    """The dtype of a score."""
    if xp is np:
        return np.float64
    wide = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.float64 if wide else jnp.float32


def is_positive(labels: Any) -> Any:
    """Which labels are above 0; under strict promotion JAX does not compare a boolean with 0."""
    return labels if labels.dtype == bool else labels > 0


def _is_narrow(array: Any) -> bool:
    """Whether it is of floats of 16 bits or fewer."""
    return array.dtype.itemsize <= 2 and jnp.issubdtype(array.dtype, jnp.floating)


def alike(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays in one dtype that holds them all, under `jax_numpy_dtype_promotion="strict"`
    too; 16-bit floats in one that holds the numbers of classes beside them."""
    wide = [
        array.astype(score_dtype(xp, array)) if _is_narrow(array) else array for array in arrays
    ]
    with jax.numpy_dtype_promotion("standard"):
        dtype = xp.result_type(*wide)
    return [array.astype(dtype) for array in wide]


def integer_dtype(xp: Any) -> Any:
    return np.int64 if xp is np else jnp.int32


def mean_of_counted(xp: Any, values: Any, valid: Any) -> tuple[Any, Any]:
    count = valid.sum()
    total = xp.where(valid, values, xp.zeros_like(values)).sum()
    return total / xp.maximum(count, 1).astype(values.dtype), count > 0


def counts_before(xp: Any, counts: Any) -> Any:
    """The sums of the counts before each place, and of all."""
    return xp.concatenate([xp.zeros(1, counts.dtype), xp.cumsum(counts, dtype=counts.dtype)])


def ratio(xp: Any, part: Any, whole: Any, dtype: Any = None) -> Any:
    """`part / whole`, 0 where there is no whole."""
    dtype = score_dtype(xp) if dtype is None else dtype
    return part.astype(dtype) / xp.maximum(whole, 1).astype(dtype)


def nan_where(xp: Any, value: Any, undefined: Any) -> Any:
    return xp.where(undefined, xp.full_like(value, xp.nan), value)


def result(xp: Any, value: Any, defined: Any) -> Score:
    value = nan_where(xp, value, ~xp.asarray(defined))
    return float(value) if xp is np else value
