"""The suite `scale`: a full-batch training step of one graph over several devices.

With one device each part's share of the step is timed by itself, the exchange replaced by local
work on buffers of the same shape; the predicted time is that of the slowest part and of the bytes
that the compiled program of all devices sends, at the links' bandwidth, without what overlaps with
the aggregation of owned edges, which is timed by itself. Where there are as many
devices, the real step is timed, too (`measured_ms`). On a GPU steps with ReLU on one device and by
features also run over a graph with tiles, which parts by rows have none of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import graphs, plan, process, timing
from benchmarks.harness.job import Job, Unsupported, checked
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare
from benchmarks.harness.setting import Arrays, Setting
from benchmarks.harness.steps import load_arrays, save_features
from benchmarks.harness.trace import add_xla_flag, keep_command_buffers
from benchmarks.suites.training import widths, with_input_layer

BANDWIDTH = 370e9  # bytes a second that an H200 sends over NVLink
DEVICES = (2, 4, 8)
LAYOUTS = ("features", "rows")
# What the targets speak of, the first the most important: entries of MaxK, and the dtype.
STEPS = ((None, "float32"), (32, "float32"), (None, "bfloat16"))
_BYTES_TOLERANCE = 0.02
_PART_REPEATS = 15  # which part is the slowest is decided by these
_ONE = "one"
_PLAN = "plan"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A number of devices, a layout and a step; or what `plan` says of all of them."""

    impl: str
    layout: str
    devices: int
    dtype: str
    k: int | None

    def __str__(self) -> str:
        activation = "ReLU" if self.k is None else f"MaxK {self.k}"
        return f"scale {self.impl} {self.layout} on {self.devices} {activation} {self.dtype}"


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the entries in one process, in order of importance."""
    record.compare = functools.partial(set_baselines, workspace)
    record.describe = describe
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
    task = {
        "module": __name__,
        "graph": str(folder),
        "workspace": str(workspace),
        "layouts": options.layouts or LAYOUTS,
        "counts": options.devices or DEVICES,
        "widths": sizes,
    }
    process.run_each(task, entries, options, record, workspace)
    record.save()
    for row in record.rows:
        record.say(describe(row))


class Stored(NamedTuple):
    """What the steps of a graph are made of.

    Attributes:
        folder: of the graph.
        facts: about it.
        widths: of the rows, without an input layer.
        features: of its nodes, and labels.
    """

    folder: Path
    facts: dict[str, Any]
    widths: tuple[int, ...]
    features: Arrays


@contextlib.contextmanager
def stored(shape: str, scale: float, cache: Path | None, devices: int) -> Iterator[Stored]:
    """A graph for an experiment on these steps, in this process: before JAX starts, as it sets how
    many devices are simulated, and that command buffers are traced as they run."""
    add_xla_flag(f"--xla_force_host_platform_device_count={devices}")
    keep_command_buffers()
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        folder = graphs.store_all([shape], cache or workspace, scale)[shape]
        facts, sizes = graphs.read_facts(folder), widths(Options("scale"))
        save_features(workspace, facts, sizes)
        yield Stored(folder, facts, sizes, load_arrays(workspace / "features.npz"))


def entries_of(options: Options) -> list[Entry]:
    """What is timed, by importance: of each step one device, then several, then the plan."""
    steps: Any = [(4 if k and options.quick else k, dtype) for k, dtype in STEPS]
    if options.activations or options.dtypes:
        names = options.activations or ("relu",)
        ks = [None if name == "relu" else int(name.removeprefix("maxk")) for name in names]
        steps = itertools.product(ks, options.dtypes or ("float32",))
    counts, layouts = options.devices or DEVICES, options.layouts or LAYOUTS
    entries = []
    for k, dtype in steps:
        # By features MaxK raises.
        found = [layout for layout in layouts if k is None or layout == "rows"]
        places = [(_ONE, 1), *((layout, count) for count in counts for layout in found)]
        impls = plan.DENSE_STEPS if k is None and options.device == "gpu" else (plan.OURS,)
        if found:
            entries += [
                Entry(impl, layout, count, dtype, k)
                for impl in impls
                for layout, count in places
                if impl == plan.OURS or layout != "rows"
            ]
            entries.append(Entry(impls[-1], _PLAN, max(counts), dtype, k))
    return [entry for entry in entries if plan.wanted(entry.impl, options.only)]


def set_baselines(workspace: Path, rows: list[Row]) -> None:
    """The baseline is the step on one device; the ratio is that of the predicted time."""
    # A run has tiles where it can.
    tiled = any(row["impl"] == plan.ESTIMATED for row in rows)
    planned_impl = {"features": plan.ESTIMATED if tiled else plan.OURS, "rows": plan.OURS}
    for row in rows:
        if row["shape"]["layout"] == _ONE:
            continue
        file = _plan_file(workspace, row["dtype"], row["shape"].get("k"))
        if file.exists() and row["impl"] == planned_impl[row["shape"]["layout"]]:
            planned = json.loads(file.read_text())
            row["planned_ms"] = planned[f"{row['shape']['layout']} {row['shape']['devices']}"]
            row["planned_by_predicted"] = round(row["planned_ms"] / row["predicted_ms"], 3)
        same = ("case", "dtype", "pass", "k")
        if compare(row, rows, {"impl": row["impl"], "layout": _ONE}, same):
            one_ms = row["ratio"] * row["ms"]
            row["ratio"] = row["speed_up"] = round(one_ms / row["predicted_ms"], 3)
            row["share_of_even"] = round(row["ms"] * row["shape"]["devices"] / one_ms, 3)
            row["packing_share"] = round(row["packing_ms"] / row["ms"], 3)
            if row["measured_ms"] is not None:
                row["measured_speed_up"] = round(one_ms / row["measured_ms"], 3)
                row["predicted_by_measured"] = round(row["predicted_ms"] / row["measured_ms"], 3)


def _plan_file(workspace: Path, dtype: str, k: int | None) -> Path:
    return workspace / f"plan-{dtype}-{k}.json"


def describe(row: Row) -> str:
    """A row for people."""
    shape = row["shape"]
    what = f"{row['case']} {row['impl']} {row['dtype']} k={shape.get('k')}"
    seconds = f" [{row['seconds_in_all']:.0f} s]"
    if shape["layout"] == _ONE:
        return f"{what}: {row['ms']:.2f} ms on one device{seconds}"
    parts = " ".join(f"{ms:.2f}" for ms in row["parts_ms"])
    text = (
        f"{what} {shape['layout']} on {shape['devices']}: slowest part {row['ms']:.2f} ms of "
        f"{parts} ({row.get('share_of_even')} of an even one), packing {row['packing_ms']:.2f} "
        f"({row.get('packing_share')}), sent {row['exchange_bytes'] / 1e6:,.1f} MB (error "
        f"{row['error']:.4f}, padding {row['padding']:.3f}, {row['dense_share']} of dense rows) "
        f"and {row['reduce_bytes'] / 1e6:,.1f} MB of gradients, {row['hidden_ms']:.2f} ms of it "
        f"hidden; predicted "
        f"{row['predicted_ms']:.2f} ms, {row.get('speed_up')} times one device"
    )
    if "planned_ms" in row:
        text += f"; plan {row['planned_ms']:.2f} ms, {row['planned_by_predicted']} of predicted"
    if row["measured_ms"] is not None:
        text += f"; measured {row['measured_ms']:.2f} ms, {row.get('measured_speed_up')} times"
    if "measured_error" in row:
        text += f"; NOT measured: {row['measured_error']}"
    return text + seconds


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job | None]:
    """What makes the job of an entry."""
    from benchmarks.ours import scale_step

    windows = any(entry["k"] is not None for entry in task["entries"])
    tiles = any(entry["impl"] == plan.ESTIMATED for entry in task["entries"])
    return functools.partial(_prepare, task, scale_step.Steps(Path(task["graph"]), windows, tiles))


def _prepare(task: dict[str, Any], steps: Any, values: dict[str, Any]) -> Job | None:
    """The job of an entry; that of the plan leaves a file."""
    entry, sizes, workspace = Entry(**values), list(task["widths"]), Path(task["workspace"])
    setting = Setting(entry.impl, k=entry.k, dtype=entry.dtype, input_layer=entry.k is not None)
    if setting.input_layer:
        sizes = list(with_input_layer(sizes))
    if entry.layout == _PLAN:
        layouts = [each for each in task["layouts"] if entry.k is None or each == "rows"]
        planned = steps.planned_ms(setting, sizes, task["counts"], layouts)
        _plan_file(workspace, entry.dtype, entry.k).write_text(json.dumps(planned))
        return None
    features = load_arrays(workspace / "features.npz")
    try:
        found = steps.prepare(setting, sizes, features, entry.layout, entry.devices)
    except (TypeError, ValueError) as error:
        if "sharded" in str(error):
            raise Unsupported(str(error)) from error
        raise
    seconds = functools.partial(found.seconds, device=task["device"])
    parts_ms = [
        timing.measure(functools.partial(seconds, part), _PART_REPEATS, batch_seconds=0.05).ms
        for part in range(found.parts)
    ]
    slowest = int(np.argmax(parts_ms))

    def after(ms: float) -> dict[str, Any]:
        if entry.layout == _ONE:
            return {}
        sent = found.sent["exchange_bytes"] + found.sent["reduce_bytes"]
        predicted = ms + 1e3 * sent / BANDWIDTH - facts["hidden_ms"]
        return {"predicted_ms": round(predicted, 4)}

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
            "overlap": bool(found.meanwhile),
            "hidden_ms": round(found.hidden_ms(task["device"], BANDWIDTH), 4),
            "measured_ms": None,
        }
        try:
            facts["measured_ms"] = found.measured_ms(task["device"])
        except Exception as error:  # what one device predicts stays
            facts["measured_error"] = f"{type(error).__name__}: {str(error)[:300]}"
    return Job(
        functools.partial(seconds, slowest),
        found.peak_bytes,
        {"case": steps.name, "impl": entry.impl, "dtype": entry.dtype, "shape": shape}
        | {"pass": "step"},
        lambda: checked(error, _BYTES_TOLERANCE),
        facts=facts,
        after=after,
    )
