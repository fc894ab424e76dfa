"""The gradient of a projection's weights, beside XLA's product and PyTorch's.

    python -m benchmarks.experiments.weight_gradient [--device gpu] [--dtype bfloat16] [--json FILE]

For each shape, rows by features of the rows and of their cotangents, the medians of calls in turns:
of the kernel, of XLA's product as JAX makes it of a projection's gradient, and of PyTorch's where
it is installed. On a Hopper GPU the kernel is one of its own; beside it the one of any other device
is timed there. float32 products on a GPU are TF32's. `pays` is what `jaxgnn.ops._projection`
chooses by the shape.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness.record import write_records
from jaxgnn.ops._projection import weight_gradient

Shape = tuple[int, int, int]
_SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": (
        *((6087, 64, 64), (6087, 29, 64), (6087, 64, 7), (6087, 100, 100), (6087, 256, 2)),
        *((2708, 1433, 16), (256, 64, 64), (1000, 64, 64), (500, 256, 256), (6000, 512, 512)),
        *((20000, 16, 16), (20000, 32, 32), (20000, 100, 256), (20000, 256, 256)),
        *((50000, 128, 128), (169343, 128, 256)),
    ),
    "gpu": (
        *((232965, 256, 256), (232965, 602, 256), (232965, 256, 41), (232965, 64, 64)),
        *((169343, 128, 128), (169343, 128, 40), (2449029, 100, 256), (132534, 256, 256)),
        *((56944, 50, 64), (19717, 500, 16), (19717, 64, 64), (8192, 256, 256)),
        *((65536, 1024, 1024), (2708, 1433, 16)),
        # Multiples of 128 rows, as devices of a sharded graph have, of which XLA copies nothing.
        *((29184, 256, 256), (116608, 256, 256), (233088, 256, 256), (169984, 100, 256)),
        *((29184, 602, 256), (116608, 602, 256), (29184, 256, 41), (116608, 256, 41)),
    ),
}
_GRADIENTS = 4  # of one array, in a call, on a CPU
_PRODUCTS = 50  # in a call on a GPU, which is waited for at its end


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    device: Literal["cpu", "gpu"] = "cpu"
    dtype: str = "float32"
    repeats: int = 15
    threads: int = 2
    """Of PyTorch on a CPU; XLA takes all."""
    json: Path | None = None
    """A file for the results."""


def on_cpu(options: Options, x: np.ndarray, gs: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
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
    ours, *theirs = (
        torch.from_numpy(np.asarray(a, np.float32)).to(getattr(torch, options.dtype))
        for a in (x, *gs)
    )
    return found | {"PyTorch": lambda: [ours.T @ g for g in theirs]}


def on_gpu(options: Options, x: np.ndarray, g: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Calls that make one gradient many times, without the host in between, and wait for it."""
    rows, gradients = jnp.asarray(x), jnp.asarray(g)

    def repeated(product: Any) -> Callable[[], Any]:
        def repeat(x: jax.Array, g: jax.Array) -> jax.Array:
            def body(_: Any, last: jax.Array) -> jax.Array:
                # As if of new rows, so that no product leaves the loop.
                return product(*jax.lax.optimization_barrier((x, g, last))[:2])

            first = jnp.zeros((x.shape[1], g.shape[1]), x.dtype)
            return jax.lax.fori_loop(0, _PRODUCTS, body, first)

        call = jax.jit(repeat)
        return lambda: jax.block_until_ready(call(rows, gradients))

    kernel = weight_gradient.by_gpu_kernel
    found = {
        "jaxgnn": repeated(kernel),
        "any device": repeated(functools.partial(kernel, warpgroups=False)),
        "XLA": repeated(functools.partial(weight_gradient.by_xla, None)),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_float32_matmul_precision("high")  # TF32, as is JAX's default
    ours, theirs = (
        torch.from_numpy(np.asarray(a, np.float32)).to("cuda", getattr(torch, options.dtype))
        for a in (x, g)
    )
    graph, out = torch.cuda.CUDAGraph(), ours.T @ theirs
    with torch.cuda.graph(graph):
        for _ in range(_PRODUCTS):
            torch.matmul(ours.T, theirs, out=out)

    def by_torch() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return found | {"PyTorch": by_torch}


def pays(options: Options, x: np.ndarray, g: np.ndarray) -> bool:
    """What the library chooses."""
    if options.device == "gpu":
        return weight_gradient.pays_on_gpu(x, g, None)
    return weight_gradient.pays(x, g)


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    jax.config.update("jax_default_device", jax.devices(options.device)[0])
    columns = ("jaxgnn", "any device", "XLA", "PyTorch")
    table = Table("rows", "features", "of gradients", "pays", *(f"{name} ms" for name in columns))
    records = []
    for shape in _SHAPES[options.device]:
        rows, width, out_width = shape
        rng = np.random.default_rng(0)
        gpu = options.device == "gpu"
        dtype, gradients = jnp.dtype(options.dtype), 1 if gpu else _GRADIENTS
        widths = (width, *[out_width] * gradients)
        x, *gs = (rng.standard_normal((rows, w), np.float32).astype(dtype) for w in widths)
        if gpu and width * dtype.itemsize % 4 + out_width * dtype.itemsize % 4:
            continue
        calls = on_gpu(options, x, gs[0]) if gpu else on_cpu(options, x, gs)
        share = _PRODUCTS if gpu else gradients
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(options.repeats + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if repeat:
                    seconds[name].append((time.perf_counter() - start) / share)
        ms = {name: round(1e3 * statistics.median(times), 4) for name, times in seconds.items()}
        numbers = [f"{ms[name]:.3f}" if name in ms else "" for name in columns]
        chosen = pays(options, x, gs[0])
        table.add_row(*map(str, shape), "yes" if chosen else "", *numbers)
        records.append({"shape": shape, "pays": chosen, "ms": ms})
        if options.json is not None:  # a run that is cut off keeps what it has
            write_records(options.json, records, dtype=options.dtype)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
