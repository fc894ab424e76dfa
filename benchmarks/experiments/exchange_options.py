"""Steps of a sharded graph on all devices, by XLA's options for collectives and command buffers.

    python -m benchmarks.experiments.exchange_options [--devices 2] [--sets default overlap ...]

The steps are those of the suite `scale`. Each is compiled with each set of options, timed, and on a
GPU traced: `busy` is the time in which the first device runs something, `collectives` what they
take in all, `exposed` the part in which nothing else runs there.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import plan, timing
from benchmarks.harness.record import write_records
from benchmarks.harness.setting import Setting
from benchmarks.harness.trace import Kernel, busy, gpu_kernels
from benchmarks.suites import scale
from benchmarks.suites.training import with_input_layer
from jaxgnn.train.loaders.compiler_options import RECORDED

SETS: dict[str, dict[str, Any]] = {
    "default": {},
    # Independent work beside collectives, by an estimate of both.
    "overlap": {"xla_gpu_enable_latency_hiding_scheduler": True},
    # Copies between the GPUs of one host in place of NCCL's kernels.
    "copies": {"xla_gpu_use_memcpy_local_p2p": True},
    "concurrent": {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"},
    "recorded": {"xla_gpu_enable_command_buffer": f"{RECORDED},COLLECTIVES"},
    "buffers": {"xla_gpu_enable_nccl_user_buffers": True},
    "channels": {"xla_gpu_nccl_p2p_max_nchannels": 32},
}
SETS["overlap, copies"] = SETS["overlap"] | SETS["copies"]
SETS["overlap, concurrent"] = SETS["overlap"] | SETS["concurrent"]
# By name: entries of MaxK, the layout, and whether over tiles.
STEPS = {
    "maxk rows": (32, "rows", False),
    "tiles features": (None, "features", True),
    "relu rows": (None, "rows", False),
}
_TRACED = 5


@dataclasses.dataclass(frozen=True)
class Options:
    """Times sharded steps by XLA's options."""

    devices: int = 2
    """How many share the graph."""
    steps: tuple[str, ...] = tuple(STEPS)
    """Those of `STEPS`."""
    sets: tuple[str, ...] = tuple(SETS)
    """Those of `SETS`."""
    dtype: str = "float32"
    """Of the model."""
    shape: str = "reddit"
    """The graph."""
    scale: float = 1.0
    """Of its nodes and edges."""
    cache: Path | None = None
    """Keep the generated graph in this folder."""
    json: Path | None = None
    """A file for the results."""


def main() -> None:
    """Prints a row for each step and set of options."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    with scale.stored(options.shape, options.scale, options.cache, options.devices) as graph:
        _run(options, graph)


def _run(options: Options, graph: scale.Stored) -> None:
    import jax

    from benchmarks.ours.scale_step import Steps

    if len(jax.devices()) < options.devices:
        raise SystemExit(f"exchange_options: {len(jax.devices())} of {options.devices} devices")
    chosen = {name: STEPS[name] for name in options.steps}
    windows = any(k is not None for k, _, _ in chosen.values())
    steps = Steps(graph.folder, windows, any(tiles for _, _, tiles in chosen.values()))
    records = []
    table = Table("ms of a step", "options", "step", "busy", "collectives", "exposed", "error")
    for name, (k, layout, tiles) in chosen.items():
        setting = Setting(
            plan.ESTIMATED if tiles else plan.OURS,
            k=k,
            dtype=options.dtype,
            input_layer=k is not None,
        )
        sizes = list(graph.widths if k is None else with_input_layer(graph.widths))
        share = steps.prepare(setting, sizes, graph.features, layout, options.devices, sent=False)
        for given in options.sets:
            found = measure(share, SETS[given])
            records.append({"step": name, "devices": options.devices, "options": given, **found})
            cells = [found.get(key) for key in ("ms", "busy", "collectives", "exposed")]
            numbers = ["–" if cell is None else f"{cell:.3f}" for cell in cells]
            table.add_row(name, given, *numbers, found.get("error", ""))
            print(records[-1], flush=True)
    Console(width=160).print(table)
    if options.json is not None:
        write_records(options.json, records, graphs=[graph.facts])


def measure(share: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of the step on all devices; or the error, as options differ by XLA's version."""
    import jax

    from benchmarks.ours.scale_step import step_seconds

    step, _ = share.whole
    state, arguments = share.on_all_devices()
    device = jax.default_backend()
    try:
        program = step.lower(state, *arguments).compile(options or None)
        seconds = functools.partial(step_seconds, program, state, arguments, device=device)
        found = {"ms": timing.measure(seconds, 10, batch_seconds=0.1).ms}
        if device == "gpu":
            run = functools.partial(seconds, _TRACED)
            found |= split(list(gpu_kernels(run, "GPU:0")), _TRACED)
        return found
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:120]}"}


def split(kernels: list[Kernel], count: int) -> dict[str, float]:
    """Of `count` steps of a device: busy, in collectives, and in these alone."""
    sent = [kernel for kernel in kernels if _is_collective(kernel.name)]
    rest = [kernel for kernel in kernels if not _is_collective(kernel.name)]
    whole = busy(kernels)
    return {
        "busy": whole / count,
        "collectives": sum(kernel.end - kernel.start for kernel in sent) / count,
        "exposed": (whole - busy(rest)) / count,
    }


def _is_collective(name: str) -> bool:
    """NCCL's kernels, XLA's own all-reduce, and copies between GPUs."""
    return any(part in name.lower() for part in ("nccl", "all_reduce", "allreduce", "p2p"))


if __name__ == "__main__":
    main()
