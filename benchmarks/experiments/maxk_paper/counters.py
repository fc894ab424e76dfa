"""Table 2: bytes that cross L2, and hits, of single kernels under Nsight Compute.

`python -m benchmarks.experiments.maxk_paper.counters TASK.json` runs one operation once, for the
profiler around it.
"""

from __future__ import annotations

import csv
import dataclasses
import glob
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.experiments.maxk_paper.store import Results
from benchmarks.harness import plan, process
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement

TIME, L2, HBM = "gpu__time_duration.sum", "lts__t_bytes.sum", "dram__bytes.sum"
L1, L1_HITS = "l1tex__t_bytes.sum", "l1tex__t_sector_hit_rate.pct"
L2_HITS = "lts__t_sector_hit_rate.pct"
METRICS = (TIME, L2, HBM, L1, L1_HITS, L2_HITS)

# A command buffer's kernels are not profiled one by one.
_NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="


class NoCounters(Exception):
    """Nsight Compute gave none; the message says what it said."""


def find() -> str | None:
    """Nsight Compute's command, on the path or where it is installed; the newest one."""
    places = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
    installed = (path for place in places for path in glob.glob(place))
    return shutil.which("ncu") or max(installed, default=None)


def cases(shape: str, width: int, k: int) -> dict[str, Measurement]:
    """The columns of the table."""
    return {
        "dense": Measurement(shape, plan.OURS, width, "float32", "forward"),
        "forward": Measurement(shape, plan.MAXK_WINDOWS, width, "float32", "forward", k=k),
        "backward": Measurement(shape, plan.MAXK_WINDOWS, width, "float32", "backward", k=k),
    }


def run(
    shape: str,
    graph: Path,
    width: int,
    k: int,
    options: Options,
    results: Results,
    workspace: Path,
) -> None:
    """Counts what `results` do not have yet; where there is no profiler, notes that."""
    left = {
        name: m
        for name, m in cases(shape, width, k).items()
        if not results.find("counters", case=shape, column=name)
    }
    if not left:
        return
    ncu = find()
    if options.device != "gpu" or ncu is None:
        results.leave_out("counters (Table 2)", "no GPU, or no Nsight Compute (`ncu`)")
        return
    for name, measurement in left.items():
        if results.out_of_time():
            return
        try:
            counted = _profile(ncu, graph, measurement, options, workspace)
        except NoCounters as problem:
            results.leave_out(f"counters (Table 2): {name}", str(problem))
            continue
        results.add("counters", {"case": shape, "column": name, "k": measurement.k, **counted})


def _profile(
    ncu: str, graph: Path, measurement: Measurement, options: Options, workspace: Path
) -> dict[str, Any]:
    task, log = workspace / "counters.json", workspace / "counters.csv"
    log.unlink(missing_ok=True)
    entry = dataclasses.asdict(measurement)
    graphs = {measurement.case: str(graph)}
    task.write_text(json.dumps({"device": "gpu", "graphs": graphs, "entries": [entry]}))
    env = process.environment(options) | {"LC_ALL": "C"}  # points, not commas, before decimals
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {_NO_COMMAND_BUFFERS}".strip()
    under = [
        *(ncu, "--csv", "--page", "raw", "--print-units", "base"),
        *("--target-processes", "application-only", "--clock-control", "none"),
        *("--kernel-name-base", "demangled", "--kernel-name", "regex:jaxgnn"),
        *("--metrics", ",".join(METRICS), "--log-file", str(log)),
    ]
    command = [*under, sys.executable, "-m", __name__, str(task)]
    try:
        status = subprocess.run(command, cwd=process.ROOT, env=env, timeout=300).returncode
    except subprocess.TimeoutExpired:
        raise NoCounters("Nsight Compute took more than 300 s") from None
    text = log.read_text(errors="replace") if log.exists() else ""
    try:
        return total(parse(text))
    except NoCounters as problem:
        raise NoCounters(f"Nsight Compute (status {status}): {problem}") from None


def parse(text: str) -> list[dict[str, float]]:
    """The metrics of each kernel, from Nsight Compute's table: a row for each kernel, below one of
    units (base units: bytes, nanoseconds, percent).

    Raises:
        NoCounters: there is no table, or no kernel in it.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    messages = " ".join(line for line in lines if re.match("==(ERROR|WARNING)==", line))
    if start is None:
        raise NoCounters(messages or "it printed no table")
    rows = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    kernels = [{name: _number(row.get(name)) for name in METRICS} for row in rows if row["ID"]]
    if not kernels:
        raise NoCounters(messages or "its table is empty")
    return kernels


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        raise NoCounters(f"it printed {text!r} for a counter") from None


def total(kernels: Iterable[dict[str, float]]) -> dict[str, Any]:
    """An operation's sums over its kernels; hits are weighted by bytes."""
    kernels = list(kernels)

    def summed(name: str) -> float:
        return sum(kernel[name] for kernel in kernels)

    def share(hits: str, of: str) -> float | None:
        size = summed(of)
        return sum(k[hits] * k[of] for k in kernels) / size if size else None

    return {
        "kernels": len(kernels),
        "ms": summed(TIME) / 1e6,
        "l2_gigabytes": summed(L2) / 1e9,
        "hbm_gigabytes": summed(HBM) / 1e9,
        "l1_hit_percent": share(L1_HITS, L1),
        "l2_hit_percent": share(L2_HITS, L2),
    }


def main(task_file: str) -> None:
    """Runs the task's operation once."""
    task = json.loads(Path(task_file).read_text())
    operations = importlib.import_module("benchmarks.harness.operations")
    job = operations.make(task, 1)(task["entries"][0])
    job.seconds(1)


if __name__ == "__main__":
    main(sys.argv[1])
