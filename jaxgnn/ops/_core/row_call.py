"""Calls a kernel that walks rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxgnn._core import ffi
from jaxgnn.ops._core.rows import Rows, ordered_structure, structure


def row_call(
    target: str,
    rows: Rows,
    operands: Sequence[Array],
    results: Sequence[tuple[tuple[int, ...], DTypeLike]],
    *,
    scheduled: bool = True,
    **attributes: int | float,
) -> list[Array]:
    """The results of an FFI target whose first operands are a row structure.

    Args:
        target: its name.
        rows: the rows; the length of their chunks becomes the attribute `chunk_length`.
        operands: what follows the structure; the axes after the first are merged.
        results: shape and dtype of each result; the same.
        scheduled: whether the target takes the row schedule after the structure.
        attributes: further attributes.
    """
    first = ordered_structure(rows) if scheduled else structure(rows)
    out = ffi.call(
        target,
        [*first, *(operand.reshape(_merged(operand.shape)) for operand in operands)],
        [(_merged(shape), dtype) for shape, dtype in results],
        chunk_length=rows.chunks.length,
        **attributes,
    )
    return [array.reshape(shape) for array, (shape, _) in zip(out, results, strict=True)]


def optional(array: Array | None, dtype: DTypeLike) -> Array:
    """The array, or one of two axes without elements that stands for an absent one."""
    return jnp.zeros((0, 0), dtype) if array is None else array


def _merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) <= 2 else (shape[0], math.prod(shape[1:]))
