"""The worker of `benchmarks.traffic`: `python -m benchmarks.traffic_worker TASK.json`.

Runs each case once to compile, load and check it, and once more between two markers, which alone
the profiler around this process is to see.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from benchmarks import counters, families, oracle, process, worker
from benchmarks.plan import Measurement
from jaxgnn._core.row_ids import csr_row_ids

_EDGES_PER_BLOCK = 1024  # of the kernel `expand`


def main(task_file: str) -> int:
    task = json.loads(Path(task_file).read_text())
    process.limit_threads(task["device"], task["threads"])
    family = families.make("jax", task["device"])
    inputs = worker.Inputs(family, {name: Path(path) for name, path in task["graphs"].items()})
    marker = Marker(task["profiler_calls"])
    for number, fields in enumerate(task["measurements"]):
        measurement = Measurement(**fields)
        process.send({"start": number})
        try:
            candidate, error = worker.prepare(family, inputs, measurement)
        except Exception as problem:
            reason = f"{type(problem).__name__}: {str(problem)[:300]}"
            process.send({"done": number, "failed": reason})
            if family.device_lost(problem):
                return 3
            continue
        with marker.case(number):
            family.wait(candidate.call())
        facts = {
            "error": error if np.isfinite(error) else "not finite",
            "accurate": bool(error <= oracle.TOLERANCE[measurement.dtype]),
            "shape": worker.shape(inputs.graph(measurement.case), measurement),
            **candidate.facts,
        }
        process.send({"done": number, "facts": facts})
        candidate.close()
        family.clear()
    return 0


class Marker:
    """Launches kernels whose number of blocks says which case begins, and that it has ended.

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
        """Kernels that are launched here belong to this case."""
        begin, end = self._mark(number + counters.FIRST), self._mark(counters.END)
        self._call("cuProfilerStart")
        self._launch(begin)
        try:
            yield
        finally:
            self._launch(end)
            self._call("cuProfilerStop")

    def _mark(self, blocks: int) -> tuple[jax.Array, int]:
        """The marker's argument; it is launched once here, so that it is compiled."""
        edges = blocks * _EDGES_PER_BLOCK
        mark = jax.device_put(np.array([0, edges], np.int32)), edges
        self._launch(mark)
        return mark

    def _launch(self, mark: tuple[jax.Array, int]) -> None:
        jax.block_until_ready(csr_row_ids(*mark))

    def _call(self, name: str, *arguments: object) -> None:
        if self._driver is None:
            return
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with status {status}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
