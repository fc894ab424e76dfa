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

# A call shorter than this, in milliseconds, may have taken the host longer than the device.
SHORT_CALL = 1.0
# A call shorter than this is timed in batches, so that the clock and the dispatch of the first
# call of a batch do not count.
_LONG_CALL = 50e-3
_BATCH = 50e-3


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
    ordered = sorted(samples)
    last = len(ordered) - 1
    return {
        "ms": round(statistics.median(ordered), 5),
        "p10": round(ordered[round(0.1 * last)], 5),
        "p90": round(ordered[round(0.9 * last)], 5),
        "repeats": len(ordered),
    }


def measure(
    seconds: Callable[[int], float],
    repeats: int,
    *,
    warmup: int = 3,
    batch_seconds: float = _BATCH,
) -> Timing:
    """Times what `seconds(count)` runs: `count` calls, waited for, in seconds of wall or device.

    Args:
        seconds: runs a batch and says how long it took.
        repeats: number of timed batches.
        warmup: untimed calls before, of which the last sets the size of a batch.
        batch_seconds: shortest batch of calls that are themselves short.
    """
    for _ in range(max(warmup - 1, 1)):
        seconds(1)
    once = seconds(1)
    batch = 1
    if once < min(_LONG_CALL, batch_seconds):
        # The single call includes the full latency: measure again at a size where it does not.
        trial = max(1, min(64, math.ceil(batch_seconds / max(once, 1e-7))))
        batch = max(1, math.ceil(batch_seconds * trial / max(seconds(trial), 1e-7)))
    samples: list[float] = []
    shares: list[float] = []
    for _ in range(repeats):
        before = cpu_snapshot()
        samples.append(1e3 * seconds(batch) / batch)
        share = foreign_share(before, cpu_snapshot())
        if share is not None:
            shares.append(share)
    return Timing(
        **summary(samples),
        batch=batch,
        others=round(statistics.median(shares), 3) if shares else None,
        samples=[round(sample, 5) for sample in samples],
    )


def steps_in(call: Timing, seconds: float = _BATCH) -> int:
    """The number of calls that fill this time, and at least 64: a loop's start must not count."""
    return min(max(math.ceil(1e3 * seconds / call.ms), 64), 4096)


def peak_resident_bytes(call: Callable[[], object]) -> int | None:
    """How far one call raises the process's resident memory, or `None` where nobody can say.

    Linux resets the high-water mark when 5 is written to `clear_refs`. What the call returns
    counts, what it was given does not.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = call()
        peak = _status("VmHWM")
        del result
    except OSError:
        return None
    return None if before is None or peak is None else max(peak - before, 0)


def peak_process_bytes() -> int | None:
    """The process's own high-water mark."""
    return _status("VmHWM")


def resident_bytes() -> int | None:
    """What the process holds now, or `None` where nobody can say."""
    try:
        return _status("VmRSS")
    except OSError:
        return None


def _status(field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return None if match is None else 1024 * int(match[1])


class Snapshot(NamedTuple):
    """Seconds so far: of the clock, of all CPUs at work, and of this process."""

    clock: float
    busy: float
    own: float


def cpu_snapshot() -> Snapshot | None:
    """Now, or `None` where the system does not say (it is Linux that does)."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait is work,
    # or time that a neighbour of this virtual machine took.
    ticks = [int(field) for field in line.split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return Snapshot(time.perf_counter(), busy, time.process_time())


def foreign_share(before: Snapshot | None, after: Snapshot | None) -> float | None:
    """The share of all CPUs' time in between that others used."""
    if before is None or after is None:
        return None
    elapsed = (after.clock - before.clock) * (os.cpu_count() or 1)
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return max(foreign, 0.0) / max(elapsed, 1e-9)
