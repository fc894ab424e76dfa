"""A task under Nsight Compute: rows with the counters of the kernels of each entry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import counters, process
from benchmarks.harness.options import Options
from benchmarks.harness.record import Record, Row

# A command buffer's kernels are not profiled one by one. Autotuning runs each GEMM many times
# over, slowly under the profiler, and changes few bytes.
XLA_FLAGS = "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0"
ABSENT = "needs Nsight Compute and a GPU: no `ncu` here (--ncu says where it is)"


def find(options: Options) -> str | None:
    """Nsight Compute's command, or `None`."""
    return options.ncu or (counters.find() if options.device == "gpu" else None)


def run(
    task: dict[str, Any],
    names: Sequence[str],
    options: Options,
    record: Record,
    workspace: Path,
    *,
    list_kernels: bool = False,
) -> list[Row]:
    """Runs each entry of a task once and returns the rows, with counters in place of times.

    Where Nsight Compute may not read the counters, entries are left out with the reason.
    `list_kernels` puts each kernel's counters into the row, not their number.
    """
    ncu = find(options)
    assert ncu is not None
    file, log = workspace / "task.json", workspace / "counters.csv"
    file.write_text(json.dumps({**task, "profile": True}))
    flags = f"{options.xla_flags} {XLA_FLAGS}".strip()
    env = process.environment(options.device, options.threads, flags)
    rows: dict[int, Row] = {}
    failed: dict[int, str] = {}

    def receive(message: dict[str, Any]) -> None:
        if "start" in message:
            record.say(f"under Nsight Compute: {names[message['start']]}")
        if "row" in message:
            rows[message["done"]] = message["row"]
        for kind in ("failed", "skipped"):
            if kind in message:
                failed[message["done"]] = message[kind]

    # Points, not commas, before decimals.
    under = counters.command(ncu, log)
    status = process.run([str(file)], {**env, "LC_ALL": "C"}, receive, under)
    kernels: dict[int, list[counters.Kernel]] = {}
    reason = f"no kernels between its markers (status {status})"
    try:
        printed = log.read_text(errors="replace") if log.exists() else ""
        kernels = counters.by_case(counters.parse(printed), len(names))
    except counters.NoCounters as problem:
        reason = f"Nsight Compute (status {status}): {problem}"
    found = []
    for number, name in enumerate(names):
        own = kernels.get(number)
        if number in rows and own:
            sums = counters.total(own)
            milliseconds = dict.fromkeys(("ms", "p10", "p90"), sums["ms"] or 0.0)
            listed = [kernel.as_dict() for kernel in own] if list_kernels else len(own)
            fields = {"repeats": 1, "peak_bytes": None, "kernels": listed}
            found.append({**rows[number], **sums, **milliseconds, **fields})
        else:
            record.leave_out(f"counters of {name}", failed.get(number, reason), number in failed)
    return found
