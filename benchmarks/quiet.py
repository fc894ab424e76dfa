"""How much of the machine others use while we measure on its CPUs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple


class Snapshot(NamedTuple):
    """Seconds so far: of the clock, of all CPUs at work, and of this process."""

    clock: float
    busy: float
    own: float


def snapshot() -> Snapshot | None:
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


def wait(allowed: float, deadline: float) -> None:
    """Returns once others use no more than `allowed`, or at `deadline` on the monotonic clock."""
    while time.monotonic() < deadline:
        before = snapshot()
        time.sleep(0.3)
        share = foreign_share(before, snapshot())
        if share is None or share <= allowed:
            return
