"""Which kernels a device's share of a training step spends its time in, beside the whole step's.

    python -m benchmarks.experiments.step_kernels [--k 32] [--devices 8] [--parts 0 1] [--cache DIR]
    python -m benchmarks.experiments.step_kernels --devices 8 --layout features --tiles
    python -m benchmarks.experiments.step_kernels --devices 1 --model gin --k 32

The steps are those of the suite `scale`, of GraphSAGE unless another model is named; with
`--devices 1` that of one device alone. Each is timed, then traced by JAX's profiler; for
each kernel of a GPU the table has its time in a step on one device, that time by the devices, and
its time in a step of a part. What a part adds to its even share is where the speed-up is lost.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import plan, timing
from benchmarks.harness.setting import Setting
from benchmarks.harness.trace import gpu_kernels
from benchmarks.suites import scale
from benchmarks.suites.training import with_input_layer

_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Options:
    """Traces a training step and those of its parts."""

    model: str = "sage"
    """The model: sage, gcn or gin."""
    k: int | None = None
    """Entries that MaxK keeps; by default ReLU."""
    dtype: str = "float32"
    """Of the model."""
    devices: int = 8
    """Parts of the graph."""
    parts: tuple[int, ...] = (0,)
    """Those that are traced."""
    layout: Literal["rows", "features"] = "rows"
    """Of the parts."""
    tiles: bool = False
    """Whether one device, and parts by features, have a graph with tiles."""
    shape: str = "reddit"
    """The graph."""
    scale: float = 1.0
    """Of its nodes and edges."""
    cache: Path | None = None
    """Keep the generated graph in this folder."""
    most: int = 40
    """Rows of the table."""


def traced(steps: Callable[[], Any], count: int = _STEPS) -> dict[str, float]:
    """The milliseconds of each kernel of a GPU in one of `count` steps."""
    totals: dict[str, float] = collections.defaultdict(float)
    for name, start, end in gpu_kernels(steps):
        totals[_short(name)] += (end - start) / count
    return totals


def _short(name: str) -> str:
    """A kernel's name without the arguments of its template and the numbers of XLA's."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return name.split("<")[0].split("(")[0].rstrip("0123456789_.")


def main() -> None:
    """Prepares the steps, traces them and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    with scale.stored(options.shape, options.scale, options.cache, options.devices) as graph:
        _run(options, graph)


def _run(options: Options, graph: scale.Stored) -> None:
    import jax

    from benchmarks.ours.scale_step import Steps

    device = jax.default_backend()
    if device != "gpu":
        raise SystemExit("step_kernels: needs a GPU, whose kernels it lists")
    # The suite `training` has ReLU's step of these models with an input layer, too.
    own = options.model != "sage" or options.devices == 1
    with_input = options.k is not None or own
    impl = plan.ESTIMATED if options.tiles else plan.OURS
    setting = Setting(impl, options.model, options.k, options.dtype, input_layer=with_input)
    sizes = list(with_input_layer(graph.widths) if with_input else graph.widths)
    steps = Steps(graph.folder, options.k is not None, options.tiles)
    columns: dict[str, tuple[float, dict[str, float]]] = {}
    layouts = [("one", 1, (0,)), (options.layout, options.devices, options.parts)]
    for layout, count, parts in layouts[: 1 + (options.devices > 1)]:
        share = steps.prepare(setting, sizes, graph.features, layout, count, sent=False)
        for part in parts:
            seconds = functools.partial(share.seconds, part, device=device)
            ms = timing.measure(seconds, 5, batch_seconds=0.05).ms
            name = "one device" if layout == "one" else f"part {part}"
            columns[name] = ms, traced(functools.partial(seconds, _STEPS))
    show(columns, options)


def show(columns: dict[str, tuple[float, dict[str, float]]], options: Options) -> None:
    """The table: the kernels by their time in the first part."""
    whole_ms, whole = columns.pop("one device")
    table = Table("ms of a step", "one device", f"by {options.devices}", *columns)
    first = next((found for _, found in columns.values()), whole)
    names = sorted({*whole, *first}, key=lambda name: -first.get(name, 0.0))

    def row(name: str, total: float, values: list[float]) -> None:
        numbers = [total, total / options.devices, *values]
        table.add_row(name, *(f"{number:.3f}" for number in numbers))

    row("step", whole_ms, [ms for ms, _ in columns.values()])
    row("kernels", sum(whole.values()), [sum(found.values()) for _, found in columns.values()])
    for name in names[: options.most]:
        row(name, whole.get(name, 0.0), [found.get(name, 0.0) for _, found in columns.values()])
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
