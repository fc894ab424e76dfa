"""Hardware counters of a process's kernels, by Nsight Compute: its command, and what it prints."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import glob
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import process
from benchmarks.harness.options import Options

TIME, L2, HBM = "gpu__time_duration.sum", "lts__t_bytes.sum", "dram__bytes.sum"

# A command buffer's kernels are not profiled one by one.
_NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="


class NoCounters(Exception):
    """Nsight Compute gave none; the message says what it said."""


def find() -> str | None:
    """Nsight Compute's command, on the path or where it is installed; the newest one."""
    places = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
    installed = (path for place in places for path in glob.glob(place))
    return shutil.which("ncu") or max(installed, default=None)


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    """The kernels that `count` counts, in the process that it runs, unless it has their names."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuProfilerStart()
    try:
        yield
    finally:
        driver.cuProfilerStop()


def count(
    ncu: str,
    command: Sequence[str],
    metrics: Sequence[str],
    options: Options,
    workspace: Path,
    *,
    names: str | None = None,
    seconds: float = 300,
) -> list[dict[str, float]]:
    """Runs a command; the metrics of each of its kernels, of those that match `names` alone, or
    of those within `profiled`. Caches are cold.

    Raises:
        NoCounters: it took more than `seconds`, or there are none.
    """
    log = workspace / "counters.csv"
    log.unlink(missing_ok=True)
    env = process.environment(options) | {"LC_ALL": "C"}  # points, not commas, before decimals
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {_NO_COMMAND_BUFFERS}".strip()
    chosen = ("--profile-from-start", "off")
    if names is not None:
        chosen = ("--kernel-name-base", "demangled", "--kernel-name", f"regex:{names}")
    under = [
        *(ncu, "--csv", "--page", "raw", "--print-units", "base"),
        # Following the processes that XLA starts ends in a segmentation fault.
        *("--target-processes", "application-only", "--clock-control", "none"),
        *(*chosen, "--metrics", ",".join(metrics), "--log-file", str(log)),
    ]
    try:
        status = subprocess.run(
            [*under, *command], cwd=process.ROOT, env=env, timeout=seconds
        ).returncode
    except subprocess.TimeoutExpired:
        raise NoCounters(f"Nsight Compute took more than {seconds:.0f} s") from None
    text = log.read_text(errors="replace") if log.exists() else ""
    try:
        return parse(text, metrics)
    except NoCounters as problem:
        raise NoCounters(f"Nsight Compute (status {status}): {problem}") from None


def parse(text: str, metrics: Sequence[str]) -> list[dict[str, float]]:
    """The metrics of each kernel, from Nsight Compute's table: a row for each kernel, below one of
    units (base units: bytes, nanoseconds, percent).

    Raises:
        NoCounters: there is no table, or no kernel in it.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    messages = " ".join(line for line in lines if re.match("==(ERROR|WARNING)==", line))
    if start is None:
        raise NoCounters(messages or "it printed no table")
    rows = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    kernels = [{name: _number(row.get(name)) for name in metrics} for row in rows if row["ID"]]
    if not kernels:
        raise NoCounters(messages or "its table is empty")
    return kernels


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        raise NoCounters(f"it printed {text!r} for a counter") from None
