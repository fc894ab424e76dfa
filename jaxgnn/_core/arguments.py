"""Numbers among the arguments, of operations and on the host."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def unwrap(value: Any) -> Any:
    """The array of what has `__jax_array__`, such as an `nnx.Param`; else `value` itself."""
    if isinstance(value, jax.Array) or not hasattr(value, "__jax_array__"):
        return value
    return value.__jax_array__()


def as_integer(value: Any) -> int | None:
    """`value` as Python's integer; `None` if it is none, as booleans are not."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_fill_value(fill_value: Any, dtype: Any) -> None:
    """Raises if it is no number, or if what JAX makes of `dtype` does not have it."""
    if isinstance(fill_value, list | tuple) or np.ndim(fill_value):
        raise TypeError(f"fill_value: expected a number, got {fill_value!r}")
    if isinstance(fill_value, Tracer):
        return
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    kind = np.asarray(fill_value).dtype
    if kind != np.bool_ and not jnp.issubdtype(kind, jnp.number):
        raise TypeError(f"fill_value: expected a number, got {fill_value!r}")
    is_complex = jnp.issubdtype(kind, jnp.complexfloating)
    if is_complex and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"fill_value: expected a real number, got {fill_value!r}")
    if jnp.issubdtype(dtype, jnp.inexact):
        if float(jnp.finfo(dtype).max) < abs(fill_value) < np.inf:
            raise ValueError(f"fill_value: expected a number within {dtype}, got {fill_value}")
        return
    whole = jnp.issubdtype(dtype, jnp.integer)
    least, most = (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max) if whole else (0, 1)
    if not least <= fill_value <= most or fill_value != int(fill_value):
        raise ValueError(f"fill_value: expected an integer within {dtype}, got {fill_value}")


def check_integers_fit(values: Any, name: str) -> None:
    """Raises if 64-bit integers of the host are beyond the 32 bits that JAX makes of them."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu" or not values.size:
        return
    kind = jax.dtypes.canonicalize_dtype(values.dtype)
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    for value in (values.min(), values.max()):
        if not least <= value <= most:
            raise ValueError(
                f"{name}: expected integers that {kind} holds (JAX's without jax_enable_x64), "
                f"got {value}"
            )


def check_floats_fit(values: Any, name: str, what: str = "numbers") -> None:
    """Raises if float64 of the host is beyond the float32 that JAX makes of it: infinite there."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float64:
        return
    kind = jax.dtypes.canonicalize_dtype(values.dtype)
    if kind == values.dtype:
        return
    beyond = np.isfinite(values) & (np.abs(values) > np.finfo(kind).max)
    if beyond.any():
        raise ValueError(f"{name}: expected {what} within {kind}, got {values[beyond][0]}")


def check_fits(values: Any, name: str) -> None:
    """Raises if numbers of the host, of either kind, would not be the same as JAX's."""
    check_integers_fit(values, name)
    check_floats_fit(values, name)
