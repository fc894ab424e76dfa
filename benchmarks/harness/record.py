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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import plan, targets, timing
from benchmarks.harness.options import Options, gpu_facts
from benchmarks.harness.process import ROOT

Row = dict[str, Any]
_IDENTITY = ("suite", "case", "impl", "dtype", "shape", "pass")
_BAD = "not finite"


class Record:
    """Collects rows and writes the file after each, so that a run cut short leaves what it has.

    `compare` is the suite's: it writes each row's baseline and the ratio to it.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.header = header(options)
        self.rows: list[Row] = []
        self.graphs: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.targets: list[dict[str, Any]] = []
        self.compare: Callable[[list[Row]], None] = lambda rows: None
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
        self.say(_line(row))

    def note_graph(self, facts: dict[str, Any]) -> None:
        if facts["name"] not in {graph["name"] for graph in self.graphs}:
            self.graphs.append(facts)

    def leave_out(self, what: str, reason: str, failed: bool) -> None:
        """Notes a measurement without a result: it failed, or the library does not have it."""
        entry = {"what": what, "reason": reason, "failed": failed}
        if entry in self.left_out:  # by an earlier round
            return
        self.left_out.append(entry)
        self.say(f"{what}: {'FAILED' if failed else 'skipped'}: {reason}")
        self.save()

    def save(self) -> None:
        """Writes the JSON, whole or not at all, with the ratios and targets as far as they are."""
        self.compare(self.rows)
        options = self.options
        self.targets = targets.evaluate(self.rows, options.label, options.device, options.scale)
        content = {
            "header": self.header,
            "graphs": self.graphs,
            "rows": [_recorded(row) for row in self.rows],
            "targets": self.targets,
            "left_out": self.left_out,
        }
        partial = self.path.with_suffix(".tmp")
        partial.write_text(_written(content))
        partial.replace(self.path)

    def finish(self) -> int:
        """Saves, prints the tables, and returns the exit status.

        1 if a result was above the tolerance, ours failed, or (with `--strict`) a target is missed.
        """
        self.header["load_average_at_end"] = _load_average()
        self.save()
        self.console.print(_targets_table(self.targets))
        inaccurate = [row for row in self.rows if not row["accurate"]]
        failed = [entry for entry in self.left_out if entry["failed"]]
        for entry in failed:
            self.console.print(f"failed: {entry['what']}: {entry['reason']}", style="bold red")
        self.console.print(f"written to {self.path}")
        missed = self.options.strict and any(target["status"] != "met" for target in self.targets)
        ours_failed = any("jaxgnn" in entry["what"] for entry in failed)
        return int(bool(inaccurate) or ours_failed or missed)


def _written(content: dict[str, Any]) -> str:
    """JSON with a line for each entry of a list."""
    parts = []
    for name, value in content.items():
        text = json.dumps(value, indent=1)
        if isinstance(value, list):
            text = "[" + ",".join(f"\n  {json.dumps(entry)}" for entry in value) + "\n ]"
        parts.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _recorded(row: Row) -> Row:
    """A row as the file has it: its times without the samples that they are the quantiles of."""
    return {name: value for name, value in row.items() if name != "samples"}


def join(first: Row, second: Row) -> Row:
    """One row of two rounds: the median of all batches, the worst error and peak."""
    samples = first["samples"] + second["samples"]
    worst = max(
        first, second, key=lambda row: float("inf" if row["error"] == _BAD else row["error"])
    )
    known = [row["peak_bytes"] for row in (first, second) if row["peak_bytes"] is not None]
    shares = [row["others"] for row in (first, second) if row["others"] is not None]
    return {
        **second,
        **timing.summary(samples),
        "samples": samples,
        "others": max(shares, default=None),
        "peak_bytes": max(known, default=None),
        "error": worst["error"],
        "accurate": first["accurate"] and second["accurate"],
    }


def compare(
    row: Row,
    rows: list[Row],
    chosen: Callable[[Row], bool],
    same: Sequence[str],
    quantity: str = "ms",
) -> bool:
    """Writes a row's baseline, and the ratio of the baseline's quantity to its own.

    The baseline is the fastest accurate row that is `chosen` and has the `same` fields; without
    one nothing is written, and the result is false.
    """
    found = [
        other
        for other in rows
        if other["accurate"] and chosen(other) and all(other[key] == row[key] for key in same)
    ]
    if not found:
        return False
    best = min(found, key=lambda other: other["ms"])
    if best[quantity] and row[quantity]:
        row["baseline"] = best["impl"]
        row["ratio"] = round(best[quantity] / row[quantity], 3)
    return True


def compare_with_pyg(row: Row, rows: list[Row]) -> None:
    """Writes a step's ratio to PyG, beside that to the best."""
    pyg = [
        other["ms"]
        for other in rows
        if other["impl"] in (plan.PYG_ADJ, plan.PYG_EDGES)
        and all(other[key] == row[key] for key in ("case", "dtype", "pass"))
    ]
    row["ratio_pyg"] = round(pyg[0] / row["ms"], 3) if pyg else None


def header(options: Options) -> dict[str, Any]:
    """What one needs to know to compare two runs."""
    gpu = gpu_facts() if options.device == "gpu" else {}
    commit, dirty = _commit(options.commit)
    packages = ("jax", "jaxlib", "torch", "torch_geometric", "numpy", "scipy", "flax")
    return {
        "suite": options.label,
        "hardware": gpu.get("name", f"{_cpu_name()}, {options.threads} threads"),
        "device": options.device,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        **{package: _version(package) for package in packages},
        "python": platform.python_version(),
        "driver": gpu.get("driver"),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": options.threads if options.device == "cpu" else None,
        "load_average": _load_average(),
        "repeats": options.repeats,
        "rounds": options.rounds,
        "scale": options.scale,
        "xla_flags": " ".join(filter(None, [os.environ.get("XLA_FLAGS"), options.xla_flags])),
        "command": "python -m benchmarks.run " + " ".join(sys.argv[1:]),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit(given: str | None) -> tuple[str | None, bool | None]:
    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if given or commit is None:
        return given, None
    # The results' own folder is what a run changes.
    status = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return commit, bool(status)


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def _load_average() -> list[float] | None:
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def _default_path(header: dict[str, Any]) -> Path:
    hardware = re.sub(r"[^a-z0-9]+", "-", header["hardware"].lower()).strip("-")
    return (
        ROOT / "benchmarks" / "results" / f"{header['date'][:10]}-{hardware}-{header['suite']}.json"
    )


def _line(row: Row) -> str:
    """A row for people."""
    names = {"width": "F", "k": "k"}
    sizes = (f"{name}={row['shape'][key]}" for key, name in names.items() if key in row["shape"])
    error = row["error"] if isinstance(row["error"], str) else f"{row['error']:.1e}"
    parts = [row["case"], *sizes, row["dtype"], row["pass"], f"{row['impl']}:"]
    parts.append(
        f"{row['ms']:.4g} ms, error {error}{'' if row['accurate'] else ' ABOVE TOLERANCE'}"
    )
    if row["peak_bytes"] is not None:
        parts.append(f", {row['peak_bytes'] / 1e9:.3f} GB")
    if row["ratio"] is not None:
        parts.append(f", {row['ratio']:.2f} times as fast as {row['baseline']}")
    return " ".join(parts).replace(" ,", ",")


def _targets_table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Targets")
    for column in ("target", "needed", "reached", "status", "ms", "published ms", "by"):
        table.add_column(column)
    colours = {"met": "green", "missed": "bold red"}
    for target in results:
        at_least = target["at_least"] is not None
        needed = f">= {target['at_least']:.3g}" if at_least else f"<= {target['at_most']:.3g}"
        reached = "" if target["value"] is None else f"{target['value']:.3g}"
        times = (f"{target[key]:.4g}" if target.get(key) else "" for key in ("ms", "published_ms"))
        style = colours.get(target["status"])
        row = (target["target"], needed, reached, target["status"], *times)
        table.add_row(*row, target.get("impl") or "", style=style)
    return table
