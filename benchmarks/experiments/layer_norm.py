"""Layer normalization on a CPU: the kernels, Flax's module as XLA compiles it, and PyTorch's.

    python -m benchmarks.experiments.layer_norm [--rows 50000] [--width 256] [--dtype bfloat16]
        [--device gpu] [--json FILE]

Milliseconds, forward and with the backward pass; of Flax's also by the variance that it takes
unless told otherwise, E(x^2) - E(x)^2. On a CPU it is the processor time of all threads, on a GPU
the clock's; the medians of calls in turns in one process. PyTorch's is the CPU's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.dropout import in_turns, ready
from benchmarks.harness.record import write_records
from jaxgnn.nn import LayerNorm

_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    rows: int = 50_000
    width: int = 256
    dtype: str = "float32"
    repeats: int = 9
    threads: int = 2
    """Of PyTorch; XLA takes all."""
    device: Literal["cpu", "gpu"] = "cpu"
    json: Path | None = None
    """A file for the results."""


def modules(options: Options, ours: Any, flax: Any) -> dict[str, nnx.Module]:
    """Ours and Flax's, of these classes."""
    types = {"epsilon": _EPSILON, "dtype": jnp.dtype(options.dtype), "rngs": nnx.Rngs(0)}
    return {
        "jaxgnn": ours(options.width, **types),
        "Flax": flax(options.width, use_fast_variance=False, **types),
        "Flax, by E(x^2)": flax(options.width, **types),
    }


def cases(options: Options, ours: Any, flax: Any, torch_name: str) -> dict[str, Callable[[], Any]]:
    """Each forward, and with the gradients of the rows, the scale and the bias."""
    rng = np.random.default_rng(0)
    x, ct = (
        jnp.asarray(rng.standard_normal((options.rows, options.width), np.float32), options.dtype)
        for _ in range(2)
    )
    calls = {}
    for name, module in modules(options, ours, flax).items():
        definition, state = nnx.split(module)

        def forward(state: Any, x: jax.Array, definition: Any = definition) -> jax.Array:
            return nnx.merge(definition, state)(x)

        def both(forward: Callable[..., Any], state: Any, x: jax.Array, ct: jax.Array) -> Any:
            out, pullback = jax.vjp(forward, state, x)
            return out, pullback(ct)

        calls[f"{name}, forward"] = ready(forward, state, x)
        calls[f"{name}, both"] = ready(functools.partial(both, forward), state, x, ct)
    if options.device == "gpu":
        return calls
    return calls | torch_cases(options, torch_name, x, ct)


def torch_cases(
    options: Options, name: str, x: jax.Array, ct: jax.Array
) -> dict[str, Callable[[], Any]]:
    """PyTorch's, where it is installed."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    rows, gradient = (torch.from_numpy(np.asarray(a, np.float32)).to(dtype) for a in (x, ct))
    module = getattr(torch.nn, name)(options.width, eps=_EPSILON).to(dtype)

    def forward() -> None:
        with torch.no_grad():
            module(rows)

    def both() -> None:
        own = rows.detach().requires_grad_()
        module.zero_grad(set_to_none=True)
        module(own).backward(gradient)

    return {"PyTorch, forward": forward, "PyTorch, both": both}


def report(found: dict[str, float], path: Path | None, **header: Any) -> None:
    """Prints the seconds of each "NAME, forward" and "NAME, both" as a table, and writes them."""
    table = Table("", "forward, ms", "and backward, ms")
    records = []
    for name in dict.fromkeys(case.rpartition(", ")[0] for case in found):
        ms = [round(1e3 * found[f"{name}, {what}"], 4) for what in ("forward", "both")]
        table.add_row(name, *(f"{number:.2f}" for number in ms))
        records.append({"what": name, "forward_ms": ms[0], "both_ms": ms[1]})
    Console(width=100).print(table)
    if path is not None:
        write_records(path, records, **header)


def measure(ours: Any, flax: Any, torch_name: str) -> None:
    """Measures modules of these classes as the command's options say, and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    jax.config.update("jax_default_device", jax.devices(options.device)[0])
    found = in_turns(cases(options, ours, flax, torch_name), options.repeats)
    report(found, options.json, shape=[options.rows, options.width], dtype=options.dtype)


if __name__ == "__main__":
    measure(LayerNorm, nnx.LayerNorm, "LayerNorm")
