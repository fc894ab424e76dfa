"""Bytes that training steps move, from hardware counters: one step of each under Nsight Compute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import counters, process, profiling
from benchmarks.options import Options
from benchmarks.record import Record, Row
from benchmarks.training import Setting

ABSENT = "needs Nsight Compute and a GPU: no `ncu` here (--ncu says where it is)"


def add_to_rows(
    settings: Sequence[Setting],
    folder: Path,
    widths: Sequence[int],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    """Writes into the settings' rows what their kernels moved.

    Where there is no Nsight Compute, or it may not read the counters, that is noted as left out.

    Args:
        settings: of `training.run_groups`; those without a row are passed over.
        folder, widths, options, record, workspace: what that got.
    """
    graph = json.loads((folder / "graph.json").read_text())["name"]
    rows = {s: row for s in settings if (row := _row_of(s, graph, record.rows)) is not None}
    if not rows:
        return
    what = f"bytes moved by {settings[0].case(graph)}"
    ncu = options.ncu or (counters.find() if options.device == "gpu" else None)
    if ncu is None:
        record.leave_out(what, ABSENT, failed=False)
        return
    task = workspace / "traffic.json"
    task.write_text(
        json.dumps(
            {
                "device": options.device,
                "threads": options.threads,
                "graph": str(folder),
                "workspace": str(workspace),
                "widths": list(widths),
                "settings": [dataclasses.asdict(setting) for setting in rows],
                "profiler_calls": options.device == "gpu",
            }
        )
    )
    flags = f"{options.xla_flags} {profiling.NO_COMMAND_BUFFERS}".strip()
    env = process.environment("training", options.device, options.threads, flags)
    profile = profiling.run(
        "benchmarks.step_traffic_worker",
        task,
        [str(setting) for setting in rows],
        env,
        ncu,
        record.say,
        metrics=counters.NEEDED,
    )
    for number, (setting, row) in enumerate(rows.items()):
        missing = profile.missing(number)
        if missing is None:
            kernels = profile.kernels[number]
            sums = counters.total(kernels)
            row |= {name: sums[name] for name in ("l2_bytes", "hbm_bytes")}
            row |= {"kernel_ms": sums["ms"], "kernels": len(kernels)}
        else:
            failed = number in profile.failed
            record.leave_out(f"bytes moved by {setting}", missing, failed=failed)
    record.save()


def _row_of(setting: Setting, graph: str, rows: Sequence[Row]) -> Row | None:
    wanted = setting.case(graph), setting.impl, setting.dtype
    same = (row for row in rows if (row["case"], row["impl"], row["dtype"]) == wanted)
    return next(same, None)
