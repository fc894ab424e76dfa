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

ROOT = Path(__file__).resolve().parents[1]

# Lets LLVM use the GPU's native float32 atomics although they flush denormals: without it jaxlib
# 0.10.2 to 0.11.0 compile a scatter-add to a compare-and-swap loop (openxla/xla#46225).
FTZ_ATOMICS = "-nvptx-allow-ftz-atomics"

_MARK = "@message "


def send(message: dict[str, Any]) -> None:
    """A worker's message to its parent; other output passes it by."""
    print(_MARK + json.dumps(message), flush=True)


def environment(family: str, device: str, threads: int, xla_flags: str = "") -> dict[str, str]:
    """The environment of a family's worker."""
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
    if family.endswith("_ftz"):
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

    Call it before a framework is imported. Returns how many it got.
    """
    if device != "cpu" or not hasattr(os, "sched_setaffinity"):
        return threads
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


def run(
    module: str,
    arguments: list[str],
    env: dict[str, str],
    receive: Callable[[dict[str, Any]], None],
    under: Sequence[str] = (),
) -> int:
    """Runs `python -m module arguments`, passes its messages on, returns its exit status.

    `under` is the command of a tool that runs it, such as a profiler's.
    """
    command = [*under, sys.executable, "-m", module, *arguments]
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
    module: str,
    task: Path,
    names: Sequence[str],
    env: dict[str, str],
    record: Any,
    who: str,
) -> None:
    """Runs `python -m module TASK FIRST` until each of the task's entries has had its turn.

    The worker sends `start` with an entry's number, and `done` with its `row`, `skipped` or
    `failed`; `missing` if it has not what it needs. One that dies costs the entry that it was
    at: a new process goes on behind it.

    Args:
        module, task, env: of the process.
        names: of the entries, for people.
        record: gets the rows (`add`), and what has none (`leave_out`).
        who: the worker's name, for people.
    """
    started, finished = -1, -1

    def receive(message: dict[str, Any]) -> None:
        nonlocal started, finished
        started = message.get("start", started)
        finished = message.get("done", finished)
        if "missing" in message:
            record.leave_out(f"all of {who}", message["missing"], failed=False)
        if "row" in message:
            record.add(message["row"])
        for kind in ("skipped", "failed"):
            if kind in message:
                record.leave_out(names[finished], message[kind], kind == "failed")

    while finished < len(names) - 1:
        status = run(module, [str(task), str(finished + 1)], env, receive)
        if status == 0:
            break
        if started > finished:
            reason = f"the process ended with status {status}"
            record.leave_out(names[started], reason, failed=True)
            finished = started
        elif started < 0:
            record.leave_out(f"all of {who}", f"no start: status {status}", failed=True)
            break
