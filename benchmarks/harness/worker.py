"""The worker of all suites: `python -m benchmarks.harness.worker TASK.json [FIRST]`.

Runs the task's entries from number FIRST on, with a message before and after each, so that a
parent can continue behind an entry that takes the process down. With `profile` in the task each
job runs once between two markers, which alone the profiler around this process is to see.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.harness import process, timing
from benchmarks.harness.job import Job, Unsupported, Workshop, device_lost, out_of_memory

# The module whose `make(task, threads)` prepares the jobs of a kind of task. It imports the
# framework, after the threads are limited.
_WORKSHOPS = {
    "operations": "benchmarks.harness.operations",
    "steps": "benchmarks.harness.steps",
    "graph": "benchmarks.suites.graph",
}


def main(task_file: str, first: str = "0") -> int:
    task = json.loads(Path(task_file).read_text())
    threads = process.limit_threads(task["device"], task["threads"])
    marker: Any = None
    try:
        module = importlib.import_module(_WORKSHOPS[task["kind"]])
        workshop: Workshop = module.make(task, threads)
        if task.get("profile"):
            from benchmarks.harness.marker import Marker

            marker = Marker(profiler_calls=task["device"] == "gpu")
    except ImportError as error:
        process.send({"missing": str(error)})
        return 0
    for number, entry in enumerate(task["entries"]):
        if number < int(first):
            continue
        process.send({"start": number})
        try:
            began = time.perf_counter()
            job = workshop.prepare(entry)
            if job is None:
                process.send({"done": number})
            else:
                row = _timed(job, task) if marker is None else _profiled(job, marker, number)
                row["seconds_in_all"] = round(time.perf_counter() - began, 2)
                process.send({"done": number, "row": {"suite": task["suite"], **row}})
                job.close()
                del job
        except (Unsupported, ImportError) as error:
            process.send({"done": number, "skipped": str(error)})
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            if out_of_memory(error) and not entry["impl"].startswith("jaxgnn"):
                process.send({"done": number, "skipped": reason})
            else:
                traceback.print_exc()
                process.send({"done": number, "failed": reason})
            if device_lost(error, task["device"]):
                return 3  # the parent starts a new process
        gc.collect()
        workshop.clear()
    return 0


def _timed(job: Job, task: dict[str, Any]) -> dict[str, Any]:
    """The row of a job. The peak is read before the check, whose memory is not the job's."""
    timed, call_ms = measure(job, task["timing"])
    peak = job.peak_bytes()
    return {
        **job.identity,
        **timed._asdict(),
        "call_ms": call_ms,
        "baseline": None,
        "ratio": None,
        "peak_bytes": peak,
        **job.check(),
        **job.facts,
        **job.after(timed.ms),
    }


def measure(job: Job, config: dict[str, Any]) -> tuple[timing.Timing, float | None]:
    """The time of a call, and that of a call from Python where it was timed in a loop."""
    call = timing.measure(job.seconds, **config)
    if job.loop is None or call.ms >= timing.SHORT_CALL:
        return call, None
    steps = timing.steps_in(call, config["batch_seconds"])
    return timing.measure(job.loop(steps), **config).divided(steps), call.ms


def _profiled(job: Job, marker: Any, number: int) -> dict[str, Any]:
    """The row of a job without times, run once more after it was compiled and checked."""
    checks = job.check()
    job.seconds(1)
    with marker.case(number):
        job.seconds(1)
    return {**job.identity, "baseline": None, "ratio": None, **checks, **job.facts}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
