"""What a run ran on: versions, device, kernels, memory."""

from __future__ import annotations

import resource
import sys
from typing import Any

import jax

import jaxgnn


def environment() -> dict[str, str]:
    """What a run's bits depend on: the versions of jaxgnn, jax and jaxlib, and the device.

    By the names `jaxgnn`, `jax`, `jaxlib` and `device`; this is what a run directory records.
    """
    info = jaxgnn.build_info()
    return {
        "jaxgnn": jaxgnn.__version__,
        "jax": info.jax,
        "jaxlib": info.jaxlib,
        "device": describe_device(),
    }


def describe_device() -> str:
    """The device that JAX computes on by default."""
    device = jax.devices()[0]
    return device.device_kind if device.platform != "cpu" else "cpu"


def describe_kernels(calls: dict[str, int], *, maxk: bool = False) -> str:
    """Which kernels a program has, how many calls of each, and where; `maxk`: it contains MaxK."""
    info = jaxgnn.build_info()
    if jax.default_backend() == "cpu":
        place, missing = f"cpu ({info.cpu_isa})", f"jaxgnn._cpu: {info.cpu_error or 'loaded'}"
    else:
        place, missing = "CUDA", f"jaxgnn._cuda: {info.cuda_error or 'loaded'}"
    if not calls:
        return f"none: JAX reference ({missing})"
    listed = ", ".join(
        f"{name} ({'sparse features, ' * name.startswith('maxk_')}{count} call{'s' * (count != 1)})"
        for name, count in sorted(calls.items())
    )
    reference = maxk and not any(name.startswith("maxk") for name in calls)
    return f"{listed}: {place}{'; MaxK: JAX reference' * reference}"


def peak_memory() -> dict[str, Any]:
    """The high-water mark of the device that used most, or on the CPU the process's."""
    key = "peak_bytes_in_use"
    statistics = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [int(found[key]) for found in statistics if key in found]
    if peaks:
        return {"memory_of": "device", "peak_bytes": max(peaks)}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return {"memory_of": "process", "peak_bytes": resident * unit}
