"""The jobs of features in host memory: rows that a program reads, and a copy to the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import plan
from benchmarks.harness.job import Job, checked

_VALUES = 2**20  # of a matrix: its row's number modulo this, which float32 has


@dataclasses.dataclass(frozen=True)
class HostRead:
    """`places` rows of float32 of a matrix `[nodes, width]`, without a cache."""

    impl: str
    width: int
    nodes: int
    places: int

    @property
    def framework(self) -> str:
        """All are JAX's."""
        return "jax"

    def __str__(self) -> str:
        return f"host {self.places} rows of {4 * self.width} bytes {self.impl}"


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of a `HostRead`."""

    def prepare(entry: dict[str, Any]) -> Job:
        own = HostRead(**entry)
        nodes = np.random.default_rng(0).integers(0, own.nodes, own.places).astype(np.int32)
        call = _copy(own, nodes) if own.impl == plan.HOST_COPY else _rows(own, nodes)
        return _job(own, nodes, call, task["device"])

    return prepare


def _rows(own: HostRead, nodes: np.ndarray) -> Callable[[], Any]:
    import jax

    from jaxgnn.train import HostFeatures

    matrix = np.empty((own.nodes, own.width), np.float32)
    matrix[:] = (np.arange(own.nodes) % _VALUES).astype(np.float32)[:, None]
    features, places = HostFeatures(matrix), jax.device_put(nodes)
    take = jax.jit(HostFeatures.take)
    return lambda: take(features, places)


def _copy(own: HostRead, nodes: np.ndarray) -> Callable[[], Any]:
    """The same rows, already side by side in page-locked memory."""
    import jax

    rows = np.empty((own.places, own.width), np.float32)
    rows[:] = (nodes % _VALUES).astype(np.float32)[:, None]
    device = jax.devices()[0]
    on_host = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    to = jax.sharding.SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
    pinned = jax.block_until_ready(jax.device_put(rows, on_host))
    return functools.partial(jax.device_put, pinned, to, may_alias=False)


def _job(own: HostRead, nodes: np.ndarray, call: Callable[[], Any], device: str) -> Job:
    from benchmarks.harness.jax_programs import call_seconds

    size = 4 * own.places * own.width

    def check() -> dict[str, Any]:
        result = call()
        expected = (nodes % _VALUES).astype(np.float32)[:, None]
        return checked(float(abs(result - expected).max()), 0.0)

    return Job(
        functools.partial(call_seconds, call, device=device),
        lambda: size,
        {
            "case": "host",
            "impl": own.impl,
            "dtype": "float32",
            "shape": {"nodes": own.nodes, "width": own.width, "places": own.places},
            "pass": "host",
        },
        check,
        after=lambda ms: {"gigabytes_per_second": round(size / ms / 1e6, 3)},
    )
