"""Worker processes: one framework each, with its threads and flags set before it starts."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import plan
from benchmarks.harness.options import Options

ROOT = Path(__file__).resolve().parents[2]
WORKER = "benchmarks.harness.worker"

# Lets LLVM use the GPU's native float32 atomics although they flush denormals: without it jaxlib
# 0.10.2 to 0.11.0 compile a scatter-add to a compare-and-swap loop (openxla/xla#46225).
FTZ_ATOMICS = "-nvptx-allow-ftz-atomics"

# The environment variable that names the Python of workers that run DGL.
DGL_PYTHON = "JAXGNN_DGL_PYTHON"

_MARK = "@message "


def send(message: dict[str, Any]) -> None:
    """Sends a message from a worker to its parent, beside its other output."""
    print(_MARK + json.dumps(message), flush=True)


def environment(options: Options, *, ftz_atomics: bool = False) -> dict[str, str]:
    """The environment of a worker; `ftz_atomics` adds XLA's fastest flags for plain JAX."""
    values = dict(os.environ)
    values["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), values.get("PYTHONPATH")]))
    if options.device == "cpu":
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            values[name] = str(options.threads)
    values["JAX_PLATFORMS"] = "cpu" if options.device == "cpu" else "cuda"
    if options.suite == "scale" and options.device == "gpu":
        values["JAX_PLATFORMS"] = "cuda,cpu"  # programs of many devices are compiled for the CPU
    values.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Memory as it is needed, and nearly all of it if need be, so that peaks mean something.
    values["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    values["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"
    flags = f"{values.get('XLA_FLAGS', '')} {options.xla_flags}".strip()
    if ftz_atomics:
        flags = add_backend_option(flags, FTZ_ATOMICS)
    if flags:
        values["XLA_FLAGS"] = flags
    return values


def add_backend_option(flags: str, option: str) -> str:
    """`flags` with an LLVM option added to the one list of them that XLA reads."""
    prefix = "--xla_backend_extra_options="
    if prefix in flags:
        return re.sub(rf"{prefix}\S*", rf"\g<0>,{option}", flags)
    return f"{flags} {prefix}{option}".strip()


def limit_threads(device: str, threads: int) -> int:
    """Restricts this process to CPUs before a framework is imported; returns their number."""
    if device != "cpu" or not hasattr(os, "sched_setaffinity"):
        return threads
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


def run(
    arguments: list[str],
    env: dict[str, str],
    receive: Callable[[dict[str, Any]], None],
    python: str = sys.executable,
) -> int:
    """Runs the worker with these arguments, passes its messages on, returns its exit status."""
    command = [python, "-m", WORKER, *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if line.startswith(_MARK):
                    receive(json.loads(line.removeprefix(_MARK)))
                else:
                    sys.stderr.write(line)
            return child.wait()
        finally:  # no worker outlives its parent; nothing, where it has ended
            child.kill()


def run_each(
    task: dict[str, Any], entries: Sequence[Any], options: Options, record: Any, workspace: Path
) -> None:
    """Runs the worker until each entry, a measurement or setting, has had its turn.

    The worker sends `start` with an entry's number, and `done` with its `row`, `skipped` or
    `failed`; `missing` if a package that it needs is not installed. An entry whose process dies is
    noted, and a new process continues behind it.
    """
    file, names = workspace / "task.json", [str(entry) for entry in entries]
    common = {
        "suite": options.label,
        "device": options.device,
        "threads": options.threads,
        "timing": options.timing,
        "ends_at": None if options.budget is None else record.started + options.budget,
        "entries": [dataclasses.asdict(entry) for entry in entries],
    }
    file.write_text(json.dumps(task | common))
    env = environment(options, ftz_atomics=entries[0].impl.endswith(plan.FTZ))
    # DGL needs an older torch and NumPy.
    python = os.environ.get(DGL_PYTHON) if entries[0].impl.startswith("DGL") else None
    started, finished = -1, -1

    def receive(message: dict[str, Any]) -> None:
        nonlocal started, finished
        started = message.get("start", started)
        finished = message.get("done", finished)
        if "missing" in message:
            record.leave_out(f"all from {names[0]} on", message["missing"], failed=False)
        if "row" in message:
            record.add(message["row"])
        for kind in ("skipped", "failed"):
            if kind in message:
                record.leave_out(names[finished], message[kind], kind == "failed")

    while finished < len(names) - 1:
        status = run([str(file), str(finished + 1)], env, receive, python or sys.executable)
        if status == 0:
            break
        reason = f"the process ended with status {status}"
        if started > finished:
            record.leave_out(names[started], reason, failed=True)
            finished = started
        elif started < 0:
            record.leave_out(names[0], f"no start: {reason}", failed=True)
            break
