"""The gradient of a projection's weights on the CPU, beside XLA's product and PyTorch's.

    python -m benchmarks.experiments.weight_gradient [--dtype bfloat16] [--json FILE]

For each shape, rows by features of the rows and of their cotangents, the medians of calls in turns:
of the kernel, of XLA's product as JAX makes it of a projection's gradient, and of PyTorch's where
it is installed. `pays` is what `jaxgnn.ops._projection` chooses by the shape.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness.record import _cpu_name
from jaxgnn.ops._projection import weight_gradient

_SHAPES = (
    *((6087, 64, 64), (6087, 29, 64), (6087, 64, 7), (6087, 100, 100), (6087, 256, 2)),
    *((2708, 1433, 16), (256, 64, 64), (1000, 64, 64), (500, 256, 256), (6000, 512, 512)),
    *((20000, 16, 16), (20000, 32, 32), (20000, 100, 256), (20000, 256, 256)),
    *((50000, 128, 128), (169343, 128, 256)),
)
_GRADIENTS = 4  # of one array, in a call


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    dtype: str = "float32"
    repeats: int = 15
    threads: int = 2
    """Of PyTorch; XLA takes all."""
    json: Path | None = None
    """A file for the results."""


def products(options: Options, x: np.ndarray, gs: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """Calls that make all gradients, and wait for them."""
    rows, gradients = jnp.asarray(x), [jnp.asarray(g) for g in gs]

    def all_by(product: Any) -> Callable[[], Any]:
        call = jax.jit(lambda x, gs: [product(x, g) for g in gs])
        return lambda: jax.block_until_ready(call(rows, gradients))

    xla = functools.partial(weight_gradient.by_xla, None)
    found = {"jaxgnn": all_by(weight_gradient.by_kernel), "XLA": all_by(xla)}
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    ours, theirs = (
        torch.from_numpy(np.asarray(x, np.float32)).to(dtype),
        [torch.from_numpy(np.asarray(g, np.float32)).to(dtype) for g in gs],
    )
    return found | {"PyTorch": lambda: [ours.T @ g for g in theirs]}


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    table = Table("rows", "features", "of gradients", "pays", "jaxgnn ms", "XLA ms", "PyTorch ms")
    records = []
    for shape in _SHAPES:
        rows, width, out_width = shape
        rng = np.random.default_rng(0)
        dtype = jnp.dtype(options.dtype)
        x, *gs = (
            rng.standard_normal((rows, w)).astype(dtype) for w in (width, *[out_width] * _GRADIENTS)
        )
        pays = weight_gradient.pays(x, gs[0])
        calls = products(options, x, gs)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(options.repeats + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if repeat:
                    seconds[name].append((time.perf_counter() - start) / _GRADIENTS)
        ms = {name: round(1e3 * statistics.median(times), 4) for name, times in seconds.items()}
        numbers = [f"{ms[name]:.3f}" if name in ms else "" for name in ("jaxgnn", "XLA", "PyTorch")]
        table.add_row(*map(str, shape), "yes" if pays else "", *numbers)
        records.append({"shape": shape, "pays": pays, "ms": ms})
    Console().print(table)
    if options.json is not None:
        record = {
            "date": datetime.date.today().isoformat(),
            "hardware": _cpu_name(),
            "environment": {
                "cpus": len(os.sched_getaffinity(0)),
                "jaxlib": importlib.metadata.version("jaxlib"),
            },
            "dtype": options.dtype,
            "records": records,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
