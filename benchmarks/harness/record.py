"""The record of a run: a header, rows and targets, written as JSON and shown as tables."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import targets, timing
from benchmarks.harness.options import Options, gpu_facts
from benchmarks.harness.process import ROOT
from benchmarks.harness.rows import Row

_IDENTITY = ("suite", "case", "impl", "dtype", "shape", "pass")
_PACKAGES = ("jax", "jaxlib", "torch", "torch_geometric", "numpy", "scipy", "flax")


class Record:
    """Collects rows and writes the file after each, so that a run cut short leaves what it has.

    `compare` is the suite's: it writes each row's baseline and the ratio to it. `describe` is a row
    in a line. `started` is when the run began, in seconds of the system's clock.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.started = time.time()
        self.header = header(options)
        self.rows: list[Row] = []
        self.graphs: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.targets: list[dict[str, Any]] = []
        self.compare: Callable[[list[Row]], None] = lambda rows: None
        self.describe: Callable[[Row], str] = _line
        self.console = Console(width=None if sys.stdout.isatty() else 150)
        self.path = options.output or _default_path(self.header)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", highlight=False, markup=False)

    def add(self, row: Row) -> None:
        """Takes a row, joins it with an earlier round's, shows it in a line, and saves."""
        same = [r for r in self.rows if all(r[key] == row[key] for key in _IDENTITY)]
        if same:
            row = join(same[0], row)
            self.rows[self.rows.index(same[0])] = row
        else:
            self.rows.append(row)
        self.save()
        self.say(self.describe(row))

    def note_graph(self, facts: dict[str, Any]) -> None:
        if facts["name"] not in {graph["name"] for graph in self.graphs}:
            self.graphs.append(facts)
            self.say(f"{facts['name']}: {facts}")

    def leave_out(self, what: str, reason: str, failed: bool) -> None:
        """Notes a measurement without a result: it failed, or the library does not have it."""
        entry = {"what": what, "reason": reason, "failed": failed}
        if entry not in self.left_out:  # by an earlier round
            self.left_out.append(entry)
            self.say(f"{what}: {'FAILED' if failed else 'skipped'}: {reason}")
            self.save()

    def save(self) -> None:
        """Writes the JSON, whole or not at all, with the ratios and targets as far as they are."""
        self.compare(self.rows)
        options = self.options
        self.targets = targets.evaluate(self.rows, options.label, options.device, options.scale)
        # A line for each entry of a list; times without the samples that they are quantiles of.
        rows = [{name: row[name] for name in row if name != "samples"} for row in self.rows]
        parts = [f' "header": {json.dumps(self.header, indent=1)}']
        for name, entries in (
            ("graphs", self.graphs),
            ("rows", rows),
            ("targets", self.targets),
            ("left_out", self.left_out),
        ):
            lines = ",".join(f"\n  {json.dumps(entry)}" for entry in entries)
            parts.append(f' "{name}": [{lines}\n ]')
        partial = self.path.with_suffix(".tmp")
        partial.write_text("{\n" + ",\n".join(parts) + "\n}\n")
        partial.replace(self.path)

    def finish(self) -> int:
        """Saves, prints the tables, and returns the exit status.

        1 if a result was above the tolerance, ours failed, or (with `--strict`) a target is missed.
        """
        self.header["load_average_at_end"] = _load_average()
        self.save()
        self.console.print(_targets_table(self.targets))
        failed = [entry for entry in self.left_out if entry["failed"]]
        for entry in failed:
            self.console.print(f"failed: {entry['what']}: {entry['reason']}", style="bold red")
        self.console.print(f"written to {self.path}")
        inaccurate = any(not row["accurate"] for row in self.rows)
        missed = self.options.strict and any(target["status"] != "met" for target in self.targets)
        ours_failed = any("jaxgnn" in entry["what"] for entry in failed)
        return int(inaccurate or ours_failed or missed)


def join(first: Row, second: Row) -> Row:
    """One row of two rounds: the median of all batches, the worst error and peak."""
    both = (first, second)
    samples = first["samples"] + second["samples"]

    def largest(field: str) -> Any:
        return max((row[field] for row in both if row[field] is not None), default=None)

    finite = not any(isinstance(row["error"], str) for row in both)
    return {
        **second,
        **timing.summary(samples),
        "samples": samples,
        "others": largest("others"),
        "peak_bytes": largest("peak_bytes"),
        "error": largest("error") if finite else "not finite",
        "accurate": all(row["accurate"] for row in both),
    }


def header(options: Options) -> dict[str, Any]:
    """What one needs to know to compare two runs."""
    gpu = gpu_facts() if options.device == "gpu" else {}
    commit, dirty = _commit(options.commit)
    return {
        "suite": options.label,
        "hardware": gpu.get("name", f"{_cpu_name()}, {options.threads} threads"),
        "device": options.device,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        **{package: _version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "driver": gpu.get("driver"),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": options.threads if options.device == "cpu" else None,
        "load_average": _load_average(),
        "repeats": options.repeats,
        "rounds": options.rounds,
        "scale": options.scale,
        "xla_flags": f"{os.environ.get('XLA_FLAGS', '')} {options.xla_flags}".strip(),
        "command": "python -m benchmarks.run " + " ".join(sys.argv[1:]),
    }


def write_records(path: Path, records: list[Any], **facts: Any) -> None:
    """The file of an experiment: when, on what and by which command its records were measured."""
    content = {**_experiment(), **facts, "records": records}
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_rows(path: Path, rows: list[Row], graphs: list[dict[str, Any]]) -> None:
    """The file of an experiment whose rows are those of a suite: `benchmarks.tables` reads it."""
    content = {"header": _experiment(), "graphs": graphs, "rows": rows}
    path.write_text(json.dumps(content, indent=1) + "\n")


def _experiment() -> dict[str, Any]:
    import jax  # here, as a run's process leaves devices to its jobs

    module, device = sys.modules["__main__"].__spec__, jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": _cpu_name() if device.platform == "cpu" else device.device_kind,
        "jaxlib": _version("jaxlib"),
        "commit": _commit(None)[0],
        "command": " ".join(["python -m", module.name if module else "", *sys.argv[1:]]),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit(given: str | None) -> tuple[str | None, bool | None]:
    """The commit, and whether the tree differs from it; the results' own folder may."""

    def git(*arguments: str) -> str:
        return subprocess.check_output(
            ["git", *arguments], cwd=ROOT, text=True, stderr=subprocess.DEVNULL
        ).strip()

    if given:
        return given, None
    try:
        changed = git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "HEAD"), bool(changed)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None, None


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def _load_average() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def _default_path(header: dict[str, Any]) -> Path:
    hardware = re.sub(r"[^a-z0-9]+", "-", header["hardware"].lower()).strip("-")
    name = f"{header['date'][:10]}-{hardware}-{header['suite']}.json"
    return ROOT / "benchmarks" / "results" / name


def _line(row: Row) -> str:
    """A row for people."""
    names = {"width": "F", "k": "k", "seeds": "seeds", "children": "C", "sources": "sources"}
    sizes = [f"{name}={row['shape'][key]}" for key, name in names.items() if key in row["shape"]]
    error = row["error"] if isinstance(row["error"], str) else f"{row['error']:.1e}"
    error += "" if row["accurate"] else " ABOVE TOLERANCE"
    line = " ".join([row["case"], *sizes, row["dtype"], row["pass"], f"{row['impl']}:"])
    line += f" {row['ms']:.4g} ms, error {error}"
    if row["peak_bytes"] is not None:
        line += f", {row['peak_bytes'] / 1e9:.3f} GB"
    if row["ratio"] is not None:
        line += f", {row['ratio']:.2f} times as fast as {row['baseline']}"
    return line


def _targets_table(results: list[dict[str, Any]]) -> Table:
    columns = ("target", "needed", "reached", "status", "ms", "published ms", "by")
    table = Table(*columns, title="Targets")
    colours = {"met": "green", "missed": "bold red"}
    for target in results:
        at_least = target["at_least"] is not None
        needed = f">= {target['at_least']:.3g}" if at_least else f"<= {target['at_most']:.3g}"
        reached = "" if target["value"] is None else f"{target['value']:.3g}"
        times = (f"{target[key]:.4g}" if target.get(key) else "" for key in ("ms", "published_ms"))
        row = (target["target"], needed, reached, target["status"], *times)
        table.add_row(*row, target.get("impl") or "", style=colours.get(target["status"]))
    return table
