"""The suite `scale`: a full-batch training step of one graph over several devices.

With one device each part's share of the step is timed by itself, the exchange replaced by local
work on buffers of the same shape; the predicted time is that of the slowest part and of the bytes
that the compiled program of all devices sends, at the links' bandwidth. Where there are as many
devices, the real step is timed, too (`measured_ms`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import graphs, plan, process, timing
from benchmarks.harness.job import Job, Unsupported, checked
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare
from benchmarks.harness.steps import Setting, load_arrays, save_features
from benchmarks.suites.training import widths

BANDWIDTH = 370e9  # bytes a second that an H200 sends over NVLink
DEVICES = (2, 4, 8)
LAYOUTS = ("rows", "features")
_BYTES_TOLERANCE = 0.02
_ONE = "one"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A number of devices, a layout and a step."""

    impl: str
    layout: str
    devices: int
    dtype: str
    k: int | None

    def __str__(self) -> str:
        activation = "ReLU" if self.k is None else f"MaxK {self.k}"
        return f"scale {self.impl} {self.layout} on {self.devices} {activation} {self.dtype}"


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs one device's step, then each number of devices in each layout, in one process."""
    record.compare = set_baselines
    case = (options.shapes or (plan.BIG_SHAPE,))[0]
    entries = entries_of(options)
    folder = graphs.store_all([case], options.cache or workspace, options.scale)[case]
    facts = graphs.read_facts(folder)
    record.note_graph(facts)
    sizes = widths(options)
    save_features(workspace, facts, sizes)
    most = max(entry.devices for entry in entries)
    flag = f"--xla_force_host_platform_device_count={most}"
    options = dataclasses.replace(options, xla_flags=f"{options.xla_flags} {flag}".strip())
    task = {"module": __name__, "graph": str(folder), "workspace": str(workspace)}
    task["counts"] = sorted({entry.devices for entry in entries} - {1})
    process.run_each({**task, "widths": list(sizes)}, entries, options, record, workspace)
    for row in record.rows:
        record.say(describe(row))


def entries_of(options: Options) -> list[Entry]:
    """What is timed: of each step first one device."""
    names = options.activations or ("relu",)
    ks = [None if name == "relu" else int(name.removeprefix("maxk")) for name in names]
    layouts = options.layouts or LAYOUTS
    steps = list(itertools.product(ks, options.dtypes or ("float32",)))
    places = [(_ONE, 1), *itertools.product(layouts, options.devices or DEVICES)]
    # A split is made once for all steps on it.
    return [
        Entry(plan.OURS, layout, count, dtype, k) for layout, count in places for k, dtype in steps
    ]


def set_baselines(rows: list[Row]) -> None:
    """The baseline is the step on one device; the ratio is that of the predicted time."""
    for row in rows:
        if row["shape"]["layout"] == _ONE:
            continue
        same = ("case", "dtype", "pass", "k")
        if compare(row, rows, {"impl": plan.OURS, "layout": _ONE}, same):
            one_ms = row["ratio"] * row["ms"]
            row["ratio"] = row["speed_up"] = round(one_ms / row["predicted_ms"], 3)
            row["share_of_even"] = round(row["ms"] * row["shape"]["devices"] / one_ms, 3)
            row["packing_share"] = round(row["packing_ms"] / row["ms"], 3)
            row["planned_by_predicted"] = round(row["planned_ms"] / row["predicted_ms"], 3)
            if row["measured_ms"] is not None:
                row["measured_speed_up"] = round(one_ms / row["measured_ms"], 3)


def describe(row: Row) -> str:
    """A row for people."""
    shape = row["shape"]
    if shape["layout"] == _ONE:
        return f"{row['case']} {row['dtype']} k={shape.get('k')}: {row['ms']:.2f} ms on one device"
    measured = row["measured_ms"]
    return (
        f"{row['case']} {row['dtype']} k={shape.get('k')} {shape['layout']} on {shape['devices']}: "
        f"slowest part {row['ms']:.2f} ms of {row['parts_ms']}, packing {row['packing_ms']:.2f}, "
        f"sent {row['exchange_bytes'] / 1e6:,.1f} MB (padding {row['padding']:.3f}) and "
        f"{row['reduce_bytes'] / 1e6:,.1f} MB of gradients, predicted {row['predicted_ms']:.2f} ms"
        f", {row.get('speed_up')} times one device; planned {row['planned_ms']}"
        + ("" if measured is None else f"; measured {measured:.2f} ms")
    )


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of an entry."""
    from benchmarks.ours import models, scale_step

    del models
    return functools.partial(_prepare, task, scale_step.Steps(Path(task["graph"])))


def _prepare(task: dict[str, Any], steps: Any, values: dict[str, Any]) -> Job:
    entry, sizes = Entry(**values), list(task["widths"])
    setting = Setting(plan.OURS, k=entry.k, dtype=entry.dtype, input_layer=entry.k is not None)
    if setting.input_layer:  # as the published script has it: all convolutions are hidden wide
        sizes = [*sizes[:-1], *sizes[-3:-1], sizes[-1]]
    features = load_arrays(Path(task["workspace"]) / "features.npz")
    try:
        found = steps.prepare(setting, sizes, features, entry.layout, entry.devices)
    except (TypeError, ValueError) as error:
        if "sharded" in str(error):
            raise Unsupported(str(error)) from error
        raise
    seconds = functools.partial(found.seconds, device=task["device"])
    parts_ms = [
        timing.measure(functools.partial(seconds, part), 5, batch_seconds=0.02).ms
        for part in range(found.parts)
    ]
    slowest = int(np.argmax(parts_ms))

    def after(ms: float) -> dict[str, Any]:
        if entry.layout == _ONE:
            return {}
        sent = found.sent["exchange_bytes"] + found.sent["reduce_bytes"]
        return {"predicted_ms": round(ms + 1e3 * sent / BANDWIDTH, 4)}

    shape = {"nodes": steps.num_nodes, "edges": steps.num_edges, "widths": sizes}
    shape |= {"layout": entry.layout, "devices": entry.devices}
    if entry.k is not None:
        shape["k"] = entry.k
    facts: dict[str, Any] = {}
    error = 0.0
    if entry.layout != _ONE:
        error = abs(found.sent["exchange_bytes"] / found.formula_bytes - 1)
        facts = {
            **found.sent,
            "formula_bytes": found.formula_bytes,
            "padding": round(found.padding, 4),
            "dense_share": round(found.formula_bytes / found.dense_bytes, 4),
            "parts_ms": parts_ms,
            "packing_ms": round(found.packing_ms(task["device"]), 4),
            "measured_ms": found.measured_ms(task["device"]),
        }
        planned = steps.planned_ms(setting, tuple(sizes), tuple(task["counts"]))
        facts["planned_ms"] = round(planned[entry.layout, entry.devices], 4)
    return Job(
        functools.partial(seconds, slowest),
        found.peak_bytes,
        {"case": steps.name, "impl": entry.impl, "dtype": entry.dtype, "shape": shape}
        | {"pass": "step"},
        lambda: checked(error, _BYTES_TOLERANCE),
        facts=facts,
        after=after,
    )
