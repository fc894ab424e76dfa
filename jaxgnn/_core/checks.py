"""Argument checks: what was expected, what came."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._core.arguments import as_integer, unwrap

_FLOATS = tuple(np.dtype(t) for t in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64))

EDGE_ORDER = " (edge data is in the graph's edge order: see Graph.sort_edge_data)"
"""What an error about edge data of a wrong length adds."""


def choice(value: Any, name: str, allowed: Collection[str | None]) -> None:
    """Raises a `ValueError` unless `value` is one of the words."""
    # An array in a word's place compares by element: types are compared first.
    is_word = isinstance(value, str | None)
    if not is_word or value not in allowed:
        options = ", ".join(repr(option) for option in allowed)
        hint = ": PyG's 'add' is 'sum'" if is_word and value == "add" and "sum" in allowed else ""
        raise ValueError(f"{name}: expected one of {options}, got {value!r}{hint}")


def floating_rows(x: Any, name: str, rows: int, what: str) -> Array:
    """`x` as an array of a supported floating dtype whose first axis has `rows` entries."""
    array = floating(x, name)
    if array.ndim == 0 or array.shape[0] != rows:
        order = EDGE_ORDER if what == "edge" else ""
        raise ValueError(
            f"{name}: expected the shape ({rows}, ...), a row for each {what}, got {array.shape}"
            f"{order}"
        )
    return array


def edge_weights(weights: Any, edges: int, leading: tuple[int, ...]) -> Array:
    """`weights` of shape `[edges, *prefix]`, where `prefix` begins `x`'s axes before the last."""
    array = floating(weights, "weights")
    fits = array.ndim >= 1 and array.shape[0] == edges
    if not fits or array.shape[1:] != leading[: array.ndim - 1]:
        shapes = ", ".join(str((edges, *leading[:n])) for n in range(len(leading) + 1))
        raise ValueError(f"weights: expected a shape of {shapes}, got {array.shape}{EDGE_ORDER}")
    return array


def as_numbers(x: Any, name: str) -> Array:
    """`x` as an array of any dtype that JAX has: not of strings or objects."""
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError):
        got = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name}: expected an array of numbers, got {got}") from None


def host_array(values: Any, name: str) -> np.ndarray:
    """`values` as an array of NumPy's, of any dtype."""
    try:
        return np.asarray(values)
    except ValueError as error:  # NumPy's own names no argument
        raise ValueError(f"{name}: expected an array, got lists of different lengths") from error


def real(values: np.ndarray, name: str) -> None:
    """Raises a `TypeError` unless they are real numbers or booleans."""
    if values.dtype.kind not in "biuf" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(f"{name}: expected real numbers, got {values.dtype}")


def floating(x: Any, name: str) -> Array:
    """`x` as an array of a supported floating dtype."""
    x = unwrap(x)
    if not isinstance(x, jax.Array | np.ndarray | np.generic | float | int | list | tuple):
        sparse = hasattr(x, "to_dense") and hasattr(x, "packed")
        hint = ", whose to_dense() is one" if sparse else torch_hint(x, name)
        raise TypeError(f"{name}: expected an array, got {type(x).__name__}{hint}")
    array = as_numbers(x, name)
    if array.dtype not in _FLOATS:
        raise TypeError(
            f"{name}: expected float32, bfloat16, float16 or float64, got {array.dtype}"
        )
    return array


def torch_hint(value: Any, name: str) -> str:
    """What an error about a tensor of PyTorch's in the place of an array adds."""
    return f" of torch: jnp.asarray({name}) is an array" if hasattr(value, "detach") else ""


def floating_dtype(value: Any, name: str) -> np.dtype:
    """`value` as a supported floating dtype."""
    try:
        dtype = None if value is None else np.dtype(jnp.dtype(value))
    except TypeError:
        dtype = None
    if dtype is None or dtype not in _FLOATS:
        raise TypeError(
            f"{name}: expected float32, bfloat16, float16 or float64, got "
            f"{repr(value) if dtype is None else dtype}"
        )
    return dtype


def integer(value: Any, name: str, least: int, most: int) -> int:
    """`value` as an integer from `least` to `most`, known when a function is traced."""
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if not least <= number <= most:
        raise ValueError(f"{name}: expected an integer from {least} to {most}, got {number}")
    return number


def boolean(value: Any, name: str) -> bool:
    """`value` as Python's boolean: a number in its place is most often another argument's."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def booleans(**options: Any) -> None:
    """Raises for the first of them that is none."""
    for name, value in options.items():
        boolean(value, name)


def function(value: Any, name: str) -> None:
    """Raises a `TypeError` unless `value` can be called."""
    if not callable(value):
        raise TypeError(f"{name}: expected a function, got {type(value).__name__}")


def path(value: Any, name: str) -> Path:
    """`value` as a path, of text or what has it."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}: expected a path, got {type(value).__name__}")
    return Path(value)


def matrix(x: Any, name: str, rows: int, columns: int) -> Array:
    """`x` as an array of a supported floating dtype and exactly this shape."""
    array = floating(x, name)
    if array.shape != (rows, columns):
        raise ValueError(f"{name}: expected the shape ({rows}, {columns}), got {array.shape}")
    return array


def number(value: Any, name: str, least: float, below: float, *, inclusive: bool = False) -> float:
    """`value` as a finite number in `[least, below)`, known when a function is traced;
    `inclusive`: it may be `below` itself."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    fits = least <= value < below or (inclusive and value == below)
    if not (fits and value != -np.inf):
        limits = "" if least == -np.inf else f" from {least}"
        limits += "" if below == np.inf else f" to {'' if inclusive else 'less than '}{below}"
        raise ValueError(f"{name}: expected a finite number{limits}, got {value}")
    return float(value)


def key(value: Any, name: str) -> Array:
    """`value` as one key of JAX's, new-style or of raw words."""
    value = unwrap(value)
    if not isinstance(value, jax.Array | np.ndarray):
        raise TypeError(f"{name}: expected a JAX key, got {type(value).__name__}")
    typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if not typed and value.dtype != jnp.uint32:
        raise TypeError(f"{name}: expected a JAX key, got an array of {value.dtype}")
    if value.ndim != (0 if typed else 1):
        raise ValueError(f"{name}: expected one key, got the shape {value.shape}")
    if not typed and value.shape != (2,):  # JAX reads others by its setting of the generator
        try:
            jax.random.wrap_key_data(jnp.asarray(value))
        except (TypeError, ValueError) as error:
            words = f"{value.shape[0]} words"
            raise ValueError(f"{name}: expected the words of a JAX key, got {words}") from error
    return jnp.asarray(value)
