"""Bytes that training steps move, from hardware counters: one step of each under Nsight Compute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counters, process, profiling, training
from benchmarks.options import Options
from benchmarks.record import Record, Row
from benchmarks.training import Setting

PASS = "step traffic"
ABSENT = "needs Nsight Compute and a GPU: no `ncu` here (--ncu says where it is)"
# Autotuning runs each product many times over, slowly under the profiler, and changes few bytes.
_FLAGS = f"{profiling.NO_COMMAND_BUFFERS} --xla_gpu_autotune_level=0"
# Of a step's loss, relative to the first one's: TF32 products.
_TOLERANCE = 1e-2


def run(
    settings: Sequence[Setting],
    folder: Path,
    widths: Sequence[int],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    """Adds a row for each setting, all in one process.

    Where there is no Nsight Compute, or it may not read the counters, that is noted as left out.

    Args:
        settings: implementations of one model.
        folder: of the graph.
        widths, options, record, workspace: see `training.run_groups`.
    """
    facts = json.loads((folder / "graph.json").read_text())
    record.note_graph(facts)
    ncu = options.ncu or (counters.find() if options.device == "gpu" else None)
    if ncu is None:
        what = f"bytes moved by {settings[0].case(facts['name'])}"
        record.leave_out(what, ABSENT, failed=False)
        return
    training.save_inputs(workspace, settings, facts, widths)
    task = workspace / "traffic.json"
    task.write_text(
        json.dumps(
            {
                "device": options.device,
                "threads": options.threads,
                "graph": str(folder),
                "workspace": str(workspace),
                "widths": list(widths),
                "settings": [dataclasses.asdict(setting) for setting in settings],
                "profiler_calls": options.device == "gpu",
            }
        )
    )
    flags = f"{options.xla_flags} {_FLAGS}".strip()
    env = process.environment("training", options.device, options.threads, flags)
    names = [str(setting) for setting in settings]
    profile = profiling.run(
        "benchmarks.step_traffic_worker",
        task,
        names,
        env,
        ncu,
        record.say,
        metrics=counters.NEEDED,
    )
    for number, setting in enumerate(settings):
        missing = profile.missing(number)
        if missing is None:
            known = {"suite": options.label, "case": setting.case(facts["name"])}
            row = _row(setting, profile.facts[number], profile.kernels[number])
            record.add({**known, **row, **_checked(profile.facts, number)})
        else:
            record.leave_out(f"bytes moved by {names[number]}", missing, number in profile.failed)


def _row(setting: Setting, facts: dict[str, Any], kernels: Sequence[counters.Kernel]) -> Row:
    sums = counters.total(kernels)
    milliseconds = sums["ms"] or 0.0
    return {
        "impl": setting.impl,
        "dtype": setting.dtype,
        "shape": facts["shape"],
        "pass": PASS,
        **dict.fromkeys(("ms", "p10", "p90"), milliseconds),
        "repeats": 1,
        "baseline": None,
        "ratio": None,
        "peak_bytes": None,
        "l2_bytes": sums["l2_bytes"],
        "hbm_bytes": sums["hbm_bytes"],
        "kernels": len(kernels),
    }


def _checked(facts: dict[int, dict[str, Any]], number: int) -> dict[str, Any]:
    """A step's loss beside that of the first that ran."""
    loss, expected = facts[number]["loss"], facts[min(facts)]["loss"]
    error = abs(loss - expected) / abs(expected)
    return {"loss": loss, "error": error, "accurate": bool(error <= _TOLERANCE)}
