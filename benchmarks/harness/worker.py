"""The worker of all suites: `python -m benchmarks.harness.worker TASK.json [FIRST]`.

Runs the task's entries from number FIRST on, with a message before and after each, so that a
parent can continue behind an entry that takes the process down.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.harness import process, timing
from benchmarks.harness.job import Job, Unsupported

_LOST = ("CUDA error", "CUDA_ERROR", "INTERNAL", "illegal")  # the GPU may be in any state


def main(task_file: str, first: str = "0") -> int:
    task = json.loads(Path(task_file).read_text())
    threads = process.limit_threads(task["device"], task["threads"])
    try:
        # What makes the job of an entry, or `None` where that leaves a file in place of a row. Its
        # module imports the framework, after the threads are limited.
        prepare = importlib.import_module(task["module"]).make(task, threads)
    except ImportError as error:
        process.send({"missing": str(error)})
        return 0
    longest = 0.0
    for number, entry in list(enumerate(task["entries"]))[int(first) :]:
        process.send({"start": number})
        began = time.perf_counter()
        if reason := over_budget(task["ends_at"], longest):
            process.send({"done": number, "skipped": reason})
            continue
        try:
            job = prepare(entry)
            if job is None:
                process.send({"done": number})
            else:
                row = {"suite": task["suite"], **_timed(job, task["timing"])}
                row["seconds_in_all"] = round(time.perf_counter() - began, 2)
                process.send({"done": number, "row": row})
                job.close()
                del job
        except (Unsupported, ImportError) as error:
            process.send({"done": number, "skipped": str(error)})
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            full = "out of memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)
            if full and not entry["impl"].startswith("jaxgnn"):
                process.send({"done": number, "skipped": reason})
            else:
                traceback.print_exc()
                process.send({"done": number, "failed": reason})
            lost = not full and any(sign in str(error) for sign in _LOST)
            if lost and task["device"] == "gpu":
                return 3  # the parent starts a new process
        longest = max(longest, time.perf_counter() - began)
        gc.collect()
        if task["device"] == "gpu" and "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()
    return 0


def over_budget(ends_at: float | None, longest: float) -> str | None:
    """Why an entry that may take as long as the longest one before is left out."""
    left = None if ends_at is None else ends_at - time.time()
    if left is None or (left >= longest and left > 0):
        return None
    return f"--budget: {max(left, 0):.0f} s are left, an entry took {longest:.0f}"


def _timed(job: Job, config: dict[str, Any]) -> dict[str, Any]:
    """The row of a job. The peak is read before the check, whose memory is not the job's."""
    timed, call_ms = measure(job, config)
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
    call = timing.measure(job.seconds, **config, long_call=job.long_call)
    steps = job.loop_steps
    if job.loop is None or (steps is None and call.ms >= timing.SHORT_CALL):
        return call, None
    if steps is None:
        # Steps that fill a batch, and at least 64: a loop's start must not count.
        steps = min(max(math.ceil(1e3 * config["batch_seconds"] / call.ms), 64), 4096)
    return timing.measure(job.loop(steps), **config).divided(steps), call.ms


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
