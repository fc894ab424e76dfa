"""The kernels that a GPU runs, as JAX's profiler traces them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """What a stream ran; a copy between host and device is one, too.

    Attributes:
        name: with the arguments of its template.
        start, end: in milliseconds of the trace.
    """

    name: str
    start: float
    end: float


def keep_command_buffers() -> None:
    """Before JAX is imported: XLA would else launch each kernel by itself while it is traced, and
    a GPU would wait for the host where it does not otherwise."""
    add_xla_flag("--xla_enable_command_buffers_during_profiling=true")


def add_xla_flag(flag: str) -> None:
    """For this process; before JAX starts."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def gpu_kernels(run: Callable[[], Any], device: str = "GPU") -> Iterator[Kernel]:
    """The kernels of all streams during a call, which waits for its results.

    Of all GPUs, or of those whose names have `device` in them, as `"GPU:0"`.

    Those of a command buffer are traced one by one, too, after `keep_command_buffers`.
    """
    import jax

    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            run()
        (file,) = Path(directory).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines if device in plane.name else ():
                if line.name.startswith("Stream"):
                    for event in line.events:
                        yield Kernel(event.name, event.start_ns / 1e6, event.end_ns / 1e6)


def busy(kernels: Iterable[Kernel]) -> float:
    """Milliseconds in which at least one kernel runs."""
    total, last = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0.0, kernel.end - max(kernel.start, last))
        last = max(last, kernel.end)
    return total
