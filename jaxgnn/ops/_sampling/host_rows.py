"""Rows of a matrix that is no operand: read from host memory, by its address."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import one_by_one, with_vmap_rule
from jaxgnn.ops._core.rows import or_empty

TARGET = "jaxgnn_gather_host_rows"


@runtime_checkable
class HostMatrix(Protocol):
    """A matrix that stays in host memory: `jaxgnn.train.HostFeatures`."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def on_cpu(self) -> Array:
        """The whole of it as an array of JAX's CPU backend."""
        ...


def cpu_device() -> Any:
    """The host as a device of JAX's.

    Raises:
        RuntimeError: JAX has no CPU backend.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            f"features: expected JAX's CPU backend (JAX_PLATFORMS=cuda,cpu), got none: {error}"
        ) from None


class HostRows(NamedTuple):
    """Where the rows are.

    Attributes:
        address: of the matrix, its low word and its high one: an operand, so that another matrix
            of the same shape runs the same program.
        slots: of each row, its place in the cache, or -1; `None` without a cache.
        cache: copies of some rows, on the device.
    """

    address: UInt32[Array, "2"]
    slots: Int[Array, " num_rows"] | None
    cache: Float[Array, "slots width"] | None


def gather_host_rows(
    rows: HostRows, nodes: Int[Array, " places"], num_rows: int, width: int, dtype: Any
) -> Float[Array, "places width"]:
    """The row of each place's node, 0 where that is out of range; without a derivative."""
    if nodes.size == 0 or num_rows == 0 or width == 0:
        return ffi.zeros((nodes.shape[0], width), dtype, nodes, rows.address)

    def kernel(rows: HostRows, nodes: Array) -> Array:
        slots, cache = or_empty(rows.slots), or_empty(rows.cache)
        result = [((nodes.shape[0], width), dtype)]
        operands = [rows.address, nodes, slots, cache]
        return ffi.call(TARGET, operands, result, num_rows=num_rows)[0]

    def reference(rows: HostRows, nodes: Array) -> Array:
        # What the cache has is in the matrix too.
        result = jax.ShapeDtypeStruct((nodes.shape[0], width), dtype)

        def read(address: Array, nodes: Array) -> np.ndarray:
            return _read(np.asarray(address), np.asarray(nodes), num_rows, width, dtype)

        return jax.pure_callback(read, result, rows.address, nodes)

    def choose(rows: HostRows, nodes: Array) -> Array:
        return dispatch((TARGET,), kernel, reference, rows, nodes)

    def batched(call: Any, axis_size: int, in_batched: Any, rows: HostRows, nodes: Array) -> Array:
        if any(jax.tree.leaves(in_batched[0])):
            return one_by_one(call, in_batched, (rows, nodes))
        return call(rows, nodes.reshape(-1)).reshape(axis_size, -1, width)

    return with_vmap_rule(choose, batched)(jax.lax.stop_gradient(rows), nodes)


def _read(
    address: np.ndarray, nodes: np.ndarray, num_rows: int, width: int, dtype: Any
) -> np.ndarray:
    low, high = address.tolist()
    memory = ctypes.c_uint8 * (num_rows * width * np.dtype(dtype).itemsize)
    matrix = np.frombuffer(memoryview(memory.from_address(low | high << 32)), dtype).reshape(
        num_rows, width
    )
    inside = (nodes >= 0) & (nodes < num_rows)
    return np.where(inside[:, None], matrix[np.where(inside, nodes, 0)], np.zeros((), dtype))
