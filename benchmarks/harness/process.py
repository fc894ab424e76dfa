"""Worker processes: one framework each, with its threads and flags set before it starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORKER = "benchmarks.harness.worker"

# Lets LLVM use the GPU's native float32 atomics although they flush denormals: without it jaxlib
# 0.10.2 to 0.11.0 compile a scatter-add to a compare-and-swap loop (openxla/xla#46225).
FTZ_ATOMICS = "-nvptx-allow-ftz-atomics"

_MARK = "@message "


def send(message: dict[str, Any]) -> None:
    """Sends a message from a worker to its parent, beside its other output."""
    print(_MARK + json.dumps(message), flush=True)


def environment(
    device: str, threads: int, xla_flags: str = "", *, ftz_atomics: bool = False
) -> dict[str, str]:
    """The environment of a worker; `ftz_atomics` adds XLA's fastest flags for plain JAX."""
    values = dict(os.environ)
    values["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [values.get("PYTHONPATH", "")])]
    )
    if device == "cpu":
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            values[name] = str(threads)
    values["JAX_PLATFORMS"] = "cpu" if device == "cpu" else "cuda"
    values.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Memory as it is needed, and nearly all of it if need be, so that peaks mean something.
    values["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    values["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"
    flags = " ".join(filter(None, [values.get("XLA_FLAGS", ""), xla_flags]))
    if ftz_atomics:
        flags = add_backend_option(flags, FTZ_ATOMICS)
    if flags:
        values["XLA_FLAGS"] = flags
    return values


def add_backend_option(flags: str, option: str) -> str:
    """`flags` with an LLVM option added to the one list of them that XLA reads."""
    prefix = "--xla_backend_extra_options="
    parts = flags.split()
    for place, part in enumerate(parts):
        if part.startswith(prefix):
            parts[place] = f"{part},{option}"
            return " ".join(parts)
    return " ".join([*parts, prefix + option])


def limit_threads(device: str, threads: int) -> int:
    """Restricts this process to `threads` CPUs, which is what XLA's thread pool goes by.

    Call it before a framework is imported. Returns the number of CPUs granted.
    """
    if device != "cpu" or not hasattr(os, "sched_setaffinity"):
        return threads
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


def run(
    arguments: list[str],
    env: dict[str, str],
    receive: Callable[[dict[str, Any]], None],
    under: Sequence[str] = (),
) -> int:
    """Runs the worker with these arguments, passes its messages on, returns its exit status.

    `under` is the command of a tool that runs it, such as a profiler's.
    """
    command = [*under, sys.executable, "-m", WORKER, *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=bool(under),
    ) as child:
        assert child.stdout is not None
        if under:  # a tool that crashes leaves the program behind, which waits for it
            threading.Thread(target=_end_with, args=(child,), daemon=True).start()
        try:
            for line in child.stdout:
                if line.startswith(_MARK):
                    receive(json.loads(line.removeprefix(_MARK)))
                else:
                    sys.stderr.write(line)
            return child.wait()
        finally:  # no worker outlives its parent; nothing, where it has ended
            if under:
                _end_group(child)
            child.kill()


def _end_with(tool: subprocess.Popen[str]) -> None:
    """Waits for a tool, and ends what it has left running."""
    tool.wait()
    _end_group(tool)


def _end_group(tool: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(tool.pid, signal.SIGKILL)


def run_each(
    task: dict[str, Any], names: Sequence[str], env: dict[str, str], record: Any, workspace: Path
) -> None:
    """Runs the worker until each entry of the task has had its turn.

    The worker sends `start` with an entry's number, and `done` with its `row`, `skipped` or
    `failed`; `missing` if a package that it needs is not installed. An entry whose process dies is
    noted, and a new process continues behind it.
    """
    file = workspace / "task.json"
    file.write_text(json.dumps(task))
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
        status = run([str(file), str(finished + 1)], env, receive)
        if status == 0:
            break
        reason = f"the process ended with status {status}"
        if started > finished:
            record.leave_out(names[started], reason, failed=True)
            finished = started
        elif started < 0:
            record.leave_out(names[0], f"no start: {reason}", failed=True)
            break
