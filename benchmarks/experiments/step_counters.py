"""Bytes that a training step moves through L2 and HBM, by hardware counters, on a GPU.

    python -m benchmarks.experiments.step_counters [--shapes arxiv] [--models gat] [--json OUT]

The steps are those of the part `ablation` of the suite `attention`: GAT, EdgeConv and MoNet in the
stages of "Understanding GNN Computational Graph" (Zhang et al., MLSys 2022). Each runs in a process
of its own under Nsight Compute, one step after the program is compiled and has run once. Caches are
cold before each kernel; the milliseconds are the sum of the kernels' own.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.harness import graphs, nsight, options, plan, steps
from benchmarks.harness.nsight import HBM, L2, TIME
from benchmarks.harness.record import write_rows
from benchmarks.harness.setting import Setting
from benchmarks.suites import attention_ablation

_METRICS = (TIME, L2, HBM)
_MODULE, _TASK = "benchmarks.experiments.step_counters", "--task"


@dataclasses.dataclass(frozen=True)
class Options:
    """What is counted."""

    shapes: tuple[str, ...] = ("arxiv", "reddit")
    """Of `benchmark_graph`."""
    models: tuple[str, ...] = attention_ablation.MODELS
    """Of the ablation."""
    impls: tuple[str, ...] = (*plan.STAGES, plan.OURS)
    """Stages, by name."""
    scale: float = 1.0
    """Of the graphs' nodes and edges."""
    seconds: float = 120
    """The longest that one step may take."""
    budget: float = float("inf")
    """Seconds in all: no step is started later."""
    json: Path | None = None
    """A file for the results."""


def main(given: Options) -> int:
    """Counts, prints a table, and with `--json` writes a file; the exit status."""
    console, end = Console(width=120), time.monotonic() + given.budget
    ncu = nsight.find()
    if ncu is None:
        console.print("error: expected Nsight Compute (`ncu`) on the path, found none")
        return 2
    table = Table("step", "implementation", "kernels", "ms", "L2, GB", "HBM, GB")
    rows: list[dict[str, Any]] = []
    run = options.Options(
        "attention", device="gpu", shapes=given.shapes, models=given.models, scale=given.scale
    )
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        cases = list(attention_ablation.cases(run))
        places = steps.store({case: widths for case, widths, _ in cases}, run, workspace)
        facts = [graphs.read_facts(Path(place["folder"])) for place in places.values()]
        for case, _, settings in cases:
            for setting in settings:
                if setting.impl not in given.impls or time.monotonic() > end:
                    continue
                setting = dataclasses.replace(setting, graph=case)
                try:
                    row = counted(ncu, setting, places, run, workspace, given.seconds)
                except nsight.NoCounters as problem:
                    console.print(f"{setting}: {problem}", markup=False, soft_wrap=True)
                    continue
                sizes = (f"{row[name] / 1e9:.3g}" for name in ("l2_bytes", "hbm_bytes"))
                line = (row["case"], row["impl"], str(row["kernels"]), f"{row['ms']:.3f}", *sizes)
                console.print(*line, markup=False, highlight=False, soft_wrap=True)
                table.add_row(*line)
                rows.append(row)
                if given.json is not None:  # a run that is cut off keeps what it has
                    write_rows(given.json, rows, facts)
    console.print(table)
    return 0


def counted(
    ncu: str,
    setting: Setting,
    places: dict[str, Any],
    run: options.Options,
    workspace: Path,
    seconds: float,
) -> dict[str, Any]:
    """The row of a setting.

    Raises:
        NoCounters: Nsight Compute gave none.
    """
    task = workspace / "task.json"
    entry = dataclasses.asdict(setting)
    task.write_text(json.dumps({"device": "gpu", "graphs": places, "entries": [entry]}))
    command = (sys.executable, "-m", _MODULE, _TASK, str(task))
    kernels = nsight.count(ncu, command, _METRICS, run, workspace, seconds=seconds)
    total = {name: sum(kernel[name] for kernel in kernels) for name in _METRICS}
    identity = json.loads((workspace / "identity.json").read_text())
    ms = total[TIME] / 1e6
    return {
        **{"suite": "attention", **identity, "pass": "step traffic"},
        **{"ms": ms, "p10": ms, "p90": ms, "repeats": 1, "accurate": True},
        **{"l2_bytes": total[L2], "hbm_bytes": total[HBM], "kernels": len(kernels)},
    }


def run_one(task_file: Path) -> None:
    """Compiles the task's step and runs it, once for the profiler."""
    task = json.loads(task_file.read_text())
    job = steps.make(task, 1)(task["entries"][0])
    assert job is not None
    with nsight.profiled():
        job.seconds(1)
    (task_file.parent / "identity.json").write_text(json.dumps(job.identity))


if __name__ == "__main__":
    if sys.argv[1:2] == [_TASK]:
        run_one(Path(sys.argv[2]))
    else:
        sys.exit(main(tyro.cli(Options, prog=f"python -m {_MODULE}")))
