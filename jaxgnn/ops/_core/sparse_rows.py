"""What the families share of compressed balanced sparse rows (`jaxgnn.CBSR`)."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt

from jaxgnn import config
from jaxgnn._core.dispatch import dispatch
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.checked import check_columns

MAX_WIDTH = 4096


class SparseRows:
    """The base of `jaxgnn.CBSR`, whose fields are below: rows of `k` entries each."""

    values: Float[Array, "*rows k"]
    indices: UInt[Array, "*rows k"]
    width: int

    @property
    def k(self) -> int:
        """Entries in a row."""
        return self.values.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the dense matrix."""
        return (*self.values.shape[:-1], self.width)

    @property
    def num_rows(self) -> int:
        return math.prod(self.values.shape[:-1])

    @property
    def dtype(self) -> np.dtype:
        """That of the values."""
        return self.values.dtype


Rows = TypeVar("Rows", bound=SparseRows)


def sparse_rows_argument(rows: Rows, name: str) -> Rows:
    """The rows, those of one device, if their parts fit together.

    Raises:
        TypeError: they are no `CBSR`, or their values or indices are of another dtype.
        ValueError: the shapes differ, or there are more entries than columns; with
            `jaxgnn.config.check_graphs` also where columns do not ascend or are beyond the width.
    """
    if not isinstance(rows, SparseRows):
        raise TypeError(f"{name}: expected a jaxgnn.CBSR, got {type(rows).__name__}")
    values = checks.floating(rows.values, f"{name}.values")
    indices = jnp.asarray(rows.indices)
    checks.integer(rows.width, f"{name}.width", 1, MAX_WIDTH)
    if indices.dtype != index_dtype(rows.width):
        raise TypeError(
            f"{name}.indices: expected {index_dtype(rows.width)} for the width {rows.width}, "
            f"got {indices.dtype}"
        )
    if values.ndim == 0 or values.shape != indices.shape:
        raise ValueError(
            f"{name}: expected values and indices of one shape (..., k), "
            f"got {values.shape} and {indices.shape}"
        )
    if not 1 <= values.shape[-1] <= rows.width <= MAX_WIDTH:
        raise ValueError(
            f"{name}: expected 1 <= k <= width <= {MAX_WIDTH}, "
            f"got k = {values.shape[-1]} and the width {rows.width}"
        )
    if config.check_graphs:
        indices = check_columns(indices, rows.width, name)
    return dataclasses.replace(rows, values=values, indices=indices, sharding=None)  # type: ignore


def head_values(v: Any, num_senders: int) -> Any:
    """The argument `v` of an attention, rows of heads of features of each sender: an array, or
    sparse rows."""
    if isinstance(v, SparseRows):
        v = sparse_rows_argument(v, "v")
    else:
        v = checks.floating_rows(v, "v", num_senders, "sender")
    if len(v.shape) != 3 or v.shape[0] != num_senders:
        raise ValueError(f"v: expected the shape ({num_senders}, heads, features), got {v.shape}")
    return v


def index_dtype(width: int) -> np.dtype:
    """The smallest that holds a column: uint8 up to 256 columns, else uint16."""
    return np.dtype(np.uint8 if width <= 256 else np.uint16)


@functools.partial(jax.jit, static_argnames="width")
def scatter(
    width: int, values: Float[Array, "rows k"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows width"]:
    """The dense rows."""
    rows = jnp.arange(values.shape[0])[:, None]
    dense = jnp.zeros((values.shape[0], width), values.dtype)
    return dense.at[rows, indices.astype(jnp.int32)].set(values, unique_indices=True)


@jax.jit
def gather(
    dense: Float[Array, "rows width"], indices: UInt[Array, "rows k"]
) -> Float[Array, "rows k"]:
    """The entries of dense rows at the positions; the transpose of `scatter`."""
    return jnp.take_along_axis(dense, indices.astype(jnp.int32), axis=1)


def visible(width: int, values: Any, indices: Array) -> tuple[Any, Array]:
    """NaN for CBSR rows with columns beyond the width, which CUDA's kernels would trust.

    The CPU's kernels report such indices. `maxk` makes none.
    """
    if width == 2 ** (8 * indices.dtype.itemsize):
        return values, indices

    def guarded(values: Any, indices: Array) -> tuple[Any, Array]:
        beyond = indices >= width
        if values is not None:
            bad = jnp.any(beyond, axis=1, keepdims=True)
            values = jnp.where(bad, jnp.full((), jnp.nan, values.dtype), values)
        return values, jnp.where(beyond, jnp.zeros((), indices.dtype), indices)

    return on_cuda(guarded, otherwise=lambda *operands: operands)(values, indices)


def on_cuda(kernel: Any, *, otherwise: Any) -> Any:
    """A kernel that only CUDA has."""
    target = "jaxgnn_maxk_sspmm_scatter"
    return functools.partial(dispatch, (target,), kernel, otherwise, platforms=("cuda",))
