"""Timing and memory: medians over repeated batches, peaks from the system."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# A call shorter than this is timed in batches, so that the clock and the dispatch of the first
# call of a batch do not count.
_LONG_CALL = 5e-3
_BATCH = 50e-3


class Timing(NamedTuple):
    """Milliseconds of one call: the median over `repeats` batches of `batch` calls, and spread."""

    ms: float
    p10: float
    p90: float
    repeats: int
    batch: int


def measure(
    seconds: Callable[[int], float], repeats: int, *, warmup: int = 3, batch_seconds: float = _BATCH
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
    samples = sorted(1e3 * seconds(batch) / batch for _ in range(repeats))
    return Timing(
        ms=statistics.median(samples),
        p10=samples[round(0.1 * (repeats - 1))],
        p90=samples[round(0.9 * (repeats - 1))],
        repeats=repeats,
        batch=batch,
    )


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


def _status(field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return None if match is None else 1024 * int(match[1])
