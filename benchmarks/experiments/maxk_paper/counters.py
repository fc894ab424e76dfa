"""Table 2: bytes that cross L2, and hits, of single kernels under Nsight Compute.

`python -m benchmarks.experiments.maxk_paper.counters TASK.json` runs one operation once, for the
profiler around it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.experiments.maxk_paper.store import Results
from benchmarks.harness import nsight, plan
from benchmarks.harness.nsight import HBM, L2, TIME, NoCounters
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement

L1, L1_HITS = "l1tex__t_bytes.sum", "l1tex__t_sector_hit_rate.pct"
L2_HITS = "lts__t_sector_hit_rate.pct"
METRICS = (TIME, L2, HBM, L1, L1_HITS, L2_HITS)


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
    ncu = nsight.find()
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
    task = workspace / "counters.json"
    entry = dataclasses.asdict(measurement)
    graphs = {measurement.case: str(graph)}
    task.write_text(json.dumps({"device": "gpu", "graphs": graphs, "entries": [entry]}))
    command = (sys.executable, "-m", __name__, str(task))
    return total(nsight.count(ncu, command, METRICS, options, workspace, names="jaxgnn"))


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
