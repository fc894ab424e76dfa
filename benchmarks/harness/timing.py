"""Timing and memory: medians over repeated batches, peaks from the system."""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# A call shorter than this, in milliseconds, may have taken the host longer than the device.
SHORT_CALL = 1.0
# A call shorter than this is timed in batches, so that the clock and the dispatch of the first
# call of a batch do not count.
_BATCH = 50e-3
_WARMUP = 3


class Timing(NamedTuple):
    """Milliseconds of one call: the median over `repeats` batches of `batch` calls, and spread.

    `others` is the median share of the machine's CPUs that other processes used meanwhile.
    `samples` joins rounds in memory and is not recorded.
    """

    ms: float
    p10: float
    p90: float
    repeats: int
    batch: int
    others: float | None
    samples: list[float]

    def divided(self, steps: int) -> Timing:
        """The time of one of the `steps` operations that each timed call ran."""
        samples = [round(sample / steps, 5) for sample in self.samples]
        return self._replace(**summary(samples), batch=self.batch * steps, samples=samples)


def summary(samples: list[float]) -> dict[str, Any]:
    """The median and the spread."""
    p10, p90 = np.quantile(samples, (0.1, 0.9), method="nearest").round(5).tolist()
    ms = round(statistics.median(samples), 5)
    return {"ms": ms, "p10": p10, "p90": p90, "repeats": len(samples)}


def measure(
    seconds: Callable[[int], float],
    repeats: int,
    *,
    batch_seconds: float = _BATCH,
    long_call: float = math.inf,
) -> Timing:
    """Times `repeats` batches of `count` calls that `seconds(count)` runs, waits for and times.

    The last call of the warm-up sets the size of a batch: calls that are short are batched to
    `batch_seconds`. Calls of `long_call` seconds or more are warmed up once and timed 3 times.
    """
    once, batch = seconds(1), 1
    if once < long_call:
        for _ in range(_WARMUP - 1):
            once = seconds(1)
    else:
        repeats = min(repeats, 3)
    if once < min(_BATCH, batch_seconds):
        # The single call includes the full latency: measure again at a size where it does not.
        trial = max(1, min(64, math.ceil(batch_seconds / max(once, 1e-7))))
        batch = max(1, math.ceil(batch_seconds * trial / max(seconds(trial), 1e-7)))
    samples, shares = [], []
    for _ in range(repeats):
        before = cpu_snapshot()
        samples.append(round(1e3 * seconds(batch) / batch, 5))
        shares.append(foreign_share(before, cpu_snapshot()))
    known = [share for share in shares if share is not None]
    others = round(statistics.median(known), 3) if known else None
    return Timing(**summary(samples), batch=batch, others=others, samples=samples)


def peak_resident_bytes(call: Callable[[], object]) -> int | None:
    """How far one call raises the process's resident memory, or `None` where nobody can say.

    Linux resets the high-water mark when 5 is written to `clear_refs`. What the call returns
    counts, what it was given does not.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = process_bytes()
    result = call()
    peak = process_bytes("VmHWM")
    del result
    return None if before is None or peak is None else max(peak - before, 0)


def process_bytes(field: str = "VmRSS") -> int | None:
    """What the process holds now, or with `VmHWM` at its peak; `None` where nobody can say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    match = re.search(rf"^{field}:\s+(\d+) kB", status, re.M)
    return None if match is None else 1024 * int(match[1])


def cpu_snapshot() -> np.ndarray | None:
    """Seconds so far: of the clock, of all CPUs at work, of this process; `None` without /proc."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait is work,
    # or time that a neighbour of this virtual machine took.
    ticks = [int(field) for field in line.split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return np.array([time.perf_counter(), busy, time.process_time()])


def foreign_share(before: np.ndarray | None, after: np.ndarray | None) -> float | None:
    """The share of all CPUs' time in between that others used."""
    if before is None or after is None:
        return None
    elapsed, busy, own = after - before
    return float(max(busy - own, 0.0) / max(elapsed * (os.cpu_count() or 1), 1e-9))
