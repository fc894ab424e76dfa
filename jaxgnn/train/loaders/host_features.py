"""`HostFeatures`: features that stay in host memory, of which programs read the rows they need."""

from __future__ import annotations

import copy
import mmap
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Real

from jaxgnn._core import checks, ffi, platform
from jaxgnn.graph import Graph
from jaxgnn.ops._sampling.host_rows import TARGET, HostRows, cpu_device, gather_host_rows
from jaxgnn.ops._sampling.sample import numbers_below


@jax.tree_util.register_pytree_node_class
class HostFeatures:
    """Features of the nodes in host memory, beyond what a GPU has.

    `take` gathers rows within a program. A GPU reads them from page-locked memory by their
    address, over PCIe: nothing waits for the host, and no more than these rows crosses. A CPU reads
    them where they are. `NeighborLoader` takes it in place of an array.

    A pytree whose leaves are an address and the cache: an argument of `jit`, `lax.scan` and
    `vmap`. It has no gradient. On a GPU it unlocks the memory when it is gone: keep it as long as
    programs read it, or see `keep_until`, which loaders call. Objects of the same array share its
    lock; CUDA refuses arrays that overlap otherwise. Writing to the array later changes
    what is read, the rows of the cache excepted.

    Args:
        features: a contiguous NumPy array, `[num_nodes, features]`. It is not copied, a file that
            is mapped into memory (`np.memmap`) and a read-only array on a GPU excepted: these are
            read into memory that can be locked.
        cache_rows: how many rows a GPU also keeps in its own memory.
        hot: which these are: those with the largest of these numbers `[num_nodes]`, or for a graph
            the nodes with most edges that start there, which are sampled most often. The address of
            each costs 4 bytes a node.

    Raises:
        TypeError: `features` is no NumPy array of floating-point numbers.
        ValueError: `features` has another rank, is not contiguous or not aligned; `cache_rows` or
            `hot` does not fit.
        RuntimeError: the memory cannot be locked; the message has CUDA's words.

    Source: Min et al., "PyTorch-Direct" (VLDB 2021), for reading by address in aligned lines.
    """

    def __init__(
        self,
        features: Float[np.ndarray, "num_nodes features"],
        *,
        cache_rows: int = 0,
        hot: Graph | Real[ArrayLike, " num_nodes"] | None = None,
    ):
        _check(features)
        num_nodes = features.shape[0]
        cache_rows = checks.integer(cache_rows, "cache_rows", 0, num_nodes)
        slots = cache = None
        if cache_rows:
            rows = _largest(hot, num_nodes, cache_rows)
            table = np.full(num_nodes, -1, np.int32)
            table[rows] = np.arange(cache_rows, dtype=np.int32)
            slots, cache = jnp.asarray(table), jnp.asarray(features[rows])
        locks = platform.of_device() == "cuda" and platform.serves("cuda", TARGET)
        self._pending: list[Array] = []
        if locks and features.size:
            features = _lockable(features)
            registration = _register(features)
            # Not at exit: the system takes all memory back.
            end = weakref.finalize(self, _unlock, features, registration, self._pending)
            end.atexit = False
        self._shape, self._dtype = features.shape, features.dtype
        self._matrix: np.ndarray | None = features
        self._on_cpu: Array | None = None
        self._rows = HostRows(_address(features), slots, cache)
        self._original: HostFeatures | None = None  # it has the lock

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes and features."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """Of the rows."""
        return self._dtype

    def take(self, nodes: Int[ArrayLike, "*places"]) -> Float[Array, "*places features"]:
        """The rows of these nodes; 0 for a number out of range, such as -1.

        Raises:
            TypeError: `nodes` are no integers.
        """
        if not isinstance(nodes, np.ndarray):
            none = isinstance(nodes, list | tuple) and not nodes
            nodes = checks.as_numbers(np.zeros(0, np.int32) if none else nodes, "nodes")
        if not jnp.issubdtype(nodes.dtype, jnp.integer):
            raise TypeError(f"nodes: expected integers, got {nodes.dtype}")
        num_nodes, width = self._shape
        flat = numbers_below(nodes, num_nodes, jnp.int32).reshape(-1)
        rows = gather_host_rows(self._rows, flat, num_nodes, width, self._dtype)
        return rows.reshape(*nodes.shape, width)

    def on_cpu(self) -> Float[Array, "num_nodes features"]:
        """All of the features as an array of JAX's CPU backend, for what reads them on the host.

        The same memory where it is aligned to 64 bytes, else a copy that is made once.

        Raises:
            TypeError: this object went through a program, which has the address alone.
            RuntimeError: JAX has no CPU backend.
        """
        if self._matrix is None:
            raise TypeError("features: expected HostFeatures outside of jit, got traced ones")
        there = self._on_cpu
        if there is None:
            there = self._on_cpu = jax.device_put(self._matrix, cpu_device())
        return there

    def keep_until(self, result: Array) -> None:
        """Has the memory stay locked until this array, of the last program to read it, is ready."""
        self._pending[:] = [result]

    def placed(self, put: Callable[[Any], Any]) -> Self:
        """The same memory for programs of other devices, with the leaves as `put` places them."""
        other = copy.copy(self)
        other._rows, other._original = jax.tree.map(put, self._rows), self
        return other

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The leaves, and what programs are compiled for."""
        return tuple(self._rows), (self._shape, self._dtype)

    @classmethod
    def tree_unflatten(cls, kind: tuple[Any, ...], leaves: Any) -> Self:
        """The inverse; the memory stays with the original."""
        features = object.__new__(cls)
        features._shape, features._dtype = kind
        features._rows, features._pending = HostRows(*leaves), []
        features._matrix = features._on_cpu = features._original = None
        return features

    def __repr__(self) -> str:
        cached = 0 if self._rows.cache is None else self._rows.cache.shape[0]
        return f"HostFeatures({self._dtype}{list(self._shape)}, cache_rows={cached})"


def _check(features: Any) -> None:
    if not isinstance(features, np.ndarray):
        raise TypeError(f"features: expected a NumPy array, got {type(features).__name__}")
    dtype = features.dtype
    if not jnp.issubdtype(dtype, jnp.floating) or jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            "features: expected float32, bfloat16 or float16 (or float64 with jax_enable_x64), got "
            f"{dtype}"
        )
    if features.ndim != 2:
        raise ValueError(f"features: expected 2 axes, got the shape {features.shape}")
    flags = features.flags
    if not (flags.c_contiguous and flags.aligned and dtype.isnative):
        raise ValueError(
            "features: expected a contiguous, aligned array in this machine's byte order, got the "
            f"strides {features.strides} and the type {dtype.str}"
        )


def _largest(hot: Any, num_nodes: int, count: int) -> np.ndarray:
    if hot is None:
        raise ValueError(
            "hot: expected a graph or a number for each node with cache_rows, got None"
        )
    numbers = checks.host_array(hot.out_degrees if isinstance(hot, Graph) else hot, "hot")
    checks.real(numbers, "hot")
    if numbers.shape != (num_nodes,):
        raise ValueError(
            f"hot: expected {num_nodes} numbers, got {numbers.dtype}{list(numbers.shape)}"
        )
    return np.sort(np.argpartition(numbers, num_nodes - count)[num_nodes - count :])


class _Memory(bytearray):
    """What JAX holds as long as a program may read the address: it holds the matrix."""

    matrix: np.ndarray


def _address(matrix: np.ndarray) -> Array:
    """The address of a matrix. On a CPU, where JAX shares aligned memory of NumPy's and lets go of
    it once no program reads it, the matrix lives as long."""
    memory = _Memory(128)
    memory.matrix = matrix
    octets = np.frombuffer(memory, np.uint8)
    first = -octets.ctypes.data % 64
    words = octets[first : first + 8].view(np.uint32)
    words[:] = matrix.ctypes.data & 0xFFFFFFFF, matrix.ctypes.data >> 32
    return jax.device_put(words)


def _lockable(features: np.ndarray) -> np.ndarray:
    """The features in memory that can be page-locked."""
    if isinstance(features, np.memmap) or not features.flags.writeable:
        # Pages of a file cannot be locked. Whole pages, so that rows begin where lines do.
        pages = np.frombuffer(mmap.mmap(-1, features.nbytes), features.dtype)
        pages = pages.reshape(features.shape)
        np.copyto(pages, features)
        features = pages
    return features


class _Registration:
    """Memory that CUDA knows as page-locked, once for all objects that read it.

    A finalizer may run within these methods, but never between the two halves of `count += 1`: what
    is counted stays locked.
    """

    def __init__(self, address: int, size: int):
        self.address, self.size = address, size
        self.count, self.locked = 0, False

    def add(self) -> None:
        """Locks the memory if nobody had it locked."""
        assert ffi.cuda_module is not None
        with _changing:
            self.count += 1
            try:
                if not self.locked:
                    ffi.cuda_module.pin(self.address, self.size)
                    self.locked = True
            except RuntimeError as error:
                self.count -= 1
                raise RuntimeError(
                    f"features: {self.size} bytes of host memory cannot be locked: {error}"
                ) from error

    def remove(self) -> None:
        """Unlocks the memory if nobody else needs it."""
        assert ffi.cuda_module is not None
        with _changing:
            self.count -= 1
            if self.count == 0:
                ffi.cuda_module.unpin(self.address)
                self.locked = False


_changing = threading.RLock()
_registrations: weakref.WeakValueDictionary[tuple[int, int], _Registration] = (
    weakref.WeakValueDictionary()
)


def _register(features: np.ndarray) -> _Registration:
    """Locks the memory of the features, once where several objects read the same array."""
    key = (features.ctypes.data, features.nbytes)
    with _changing:
        registration = _registrations.setdefault(key, _Registration(*key))
        registration.add()
    return registration


def _unlock(features: np.ndarray, registration: _Registration, pending: list[Array]) -> None:
    del features  # kept so far: its memory must outlive the registration
    jax.block_until_ready([array for array in pending if not array.is_deleted()])
    registration.remove()
