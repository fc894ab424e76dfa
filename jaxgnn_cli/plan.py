"""`jaxgnn plan`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import tyro

from jaxgnn.train.settings.config import TrainConfig
from jaxgnn_cli.options import Options, parse_planned
from jaxgnn_cli.status import UsageError

_PIPED_WIDTH = 120


@dataclasses.dataclass(frozen=True)
class PlanOptions(Options):
    """Estimate the memory a device and the seconds an epoch of a run over several devices, from
    measurements on this one and the statistics of partitions.

    Takes the options of jaxgnn train that describe data and model, for --task node without
    --edge-weights, and writes no run. Devices count, wherever they are. One device is always
    estimated.
    """

    devices: Annotated[str, tyro.conf.arg(metavar="INT,INT,...")] = "2,4,8"
    """Numbers of devices."""

    shard: Literal["auto", "rows", "features", "both"] = "auto"
    """How the graph is split: by rows, features, both at once, or auto for all three."""

    bandwidth: Annotated[float, tyro.conf.arg(metavar="GB/s")] = 370.0
    """What a device sends to the others in all: 370 of NVLink on an H100 or H200, 50 of a 400
    Gb/s network."""

    distributed: tyro.conf.Suppress[bool] = False
    coordinator: tyro.conf.Suppress[str | None] = None
    processes: tyro.conf.Suppress[int | None] = None
    process: tyro.conf.Suppress[int | None] = None
    stall_timeout: tyro.conf.Suppress[int] = TrainConfig.stall_timeout

    memory: Annotated[float, tyro.conf.arg(metavar="GB")] = 0.0
    """Memory of a device; 0: as this one's, on the CPU the machine's."""


def plan(arguments: list[str]) -> None:
    """Prints the estimates, or the help."""
    options = parse_planned(PlanOptions, arguments)
    if options is None:
        return
    counts = _counts(options.devices)
    if not 0 < options.bandwidth < float("inf"):
        raise UsageError(f"--bandwidth: expected a finite number above 0, got {options.bandwidth}")
    if not 0 <= options.memory < float("inf"):
        raise UsageError(f"--memory: expected a finite number from 0, got {options.memory}")
    import jax
    from rich.console import Console

    from jaxgnn.train import plan as plan_of
    from jaxgnn.train.planning.plan import LAYOUTS
    from jaxgnn.train.process.recovery import memory_errors

    if options.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    with memory_errors():
        plans = plan_of(
            dataclasses.replace(options.config(), devices="1", shard="auto"),
            counts,
            layouts=LAYOUTS if options.shard == "auto" else (options.shard,),
            bandwidth=1e9 * options.bandwidth,
            limit=int(1e9 * options.memory) or None,
        )
    console = Console()
    if not console.is_terminal:  # a pipe has no width: no cell is cut
        console = Console(width=max(console.width, _PIPED_WIDTH))
    _print(console, options, plans)


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise UsageError(f"--devices: expected integers with commas between, got {text!r}")
    return [int(part) for part in parts if int(part) != 1]


def _print(console: Any, options: PlanOptions, plans: list[Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from jaxgnn._core.text import printable
    from jaxgnn.train.process.machine import describe_device
    from jaxgnn.train.reports.display import print_line

    title = f"{options.model} on {options.dataset}, {options.bandwidth:g} GB/s between devices"
    table = Table(title=Text(printable(title)), title_justify="left")
    heads = ("devices", "layout", "MB", "step, ms", "sent, ms", "padding", "epoch, s", "speed-up")
    for name in heads:
        table.add_column(name, justify="left" if name == "layout" else "right", no_wrap=True)
    for row in plans:
        table.add_row(
            str(row.devices),
            _layout(row),
            *(["!", *"-----"] if row.refused else _cells(row, plans[0])),
        )
    console.print(table)
    for row in plans:
        if row.reason:
            what = "does not work" if row.refused else "does not fit"
            print_line(console, f"! {row.devices} by {_layout(row)} {what}: {row.reason}")
    print_line(
        console,
        f"measured on {describe_device()}; times are of the device with most to do, less what "
        "edges between a part's own nodes hide of the exchange where shard takes overlap",
    )


def _layout(row: Any) -> str:
    """Its name, and of both axes the parts and the devices that share the columns of each."""
    if row.layout != "both":
        return row.layout
    return f"both {row.devices // row.column_devices}x{row.column_devices}"


def _cells(row: Any, one: Any) -> list[str]:
    return [
        f"{row.bytes / 1e6:,.1f}" + "!" * bool(row.reason),
        f"{1e3 * row.step_seconds:,.2f}",
        f"{1e3 * (row.step_seconds - row.compute_seconds):,.2f}",
        f"{row.padding:.2f}",
        f"{row.epoch_seconds:,.4f}",
        f"{one.step_seconds / row.step_seconds:.2f}",
    ]
