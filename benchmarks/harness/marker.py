"""Marks in a profile which kernels belong to which entry of a task."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks.harness import counters
from jaxgnn.ops import csr_row_ids as marker_kernel  # a kernel of a name and size of its own

_EDGES_PER_BLOCK = 1024


class Marker:
    """Launches kernels whose number of blocks tells which entry begins, and that it has ended.

    With `profiler_calls` the driver is told as well, so that nothing else need be profiled.
    """

    def __init__(self, profiler_calls: bool) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1") if profiler_calls else None
        if self._driver is not None:
            # The calls act on the thread's context, which JAX's own threads have and this one
            # need not have.
            jax.block_until_ready(jax.numpy.zeros(1))
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
            self._call("cuCtxSetCurrent", context)

    @contextlib.contextmanager
    def case(self, number: int) -> Iterator[None]:
        """Kernels that are launched within belong to this entry."""
        begin, end = self._mark(number + counters.FIRST), self._mark(counters.END)
        self._call("cuProfilerStart")
        self._launch(begin)
        try:
            yield
        finally:
            self._launch(end)
            self._call("cuProfilerStop")

    def _mark(self, blocks: int) -> tuple[jax.Array, int]:
        """The marker's arguments; it is launched once here, so that it is compiled."""
        edges = blocks * _EDGES_PER_BLOCK
        mark = jax.device_put(np.array([0, edges], np.int32)), edges
        self._launch(mark)
        return mark

    def _launch(self, mark: tuple[jax.Array, int]) -> None:
        jax.block_until_ready(marker_kernel(*mark))

    def _call(self, name: str, *arguments: object) -> None:
        if self._driver is None:
            return
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with status {status}")
