"""Hardware counters of a worker's kernels: Nsight Compute's command, and what it prints.

The worker launches a marker before each case, and one after: the kernel `expand` of so many blocks
as the case has for a number. Nsight Compute lists kernels in the order of their launches, so that
those between two markers are a case's.
"""

from __future__ import annotations

import csv
import dataclasses
import glob
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

TIME = "gpu__time_duration.sum"
L2 = "lts__t_bytes.sum"
HBM = "dram__bytes.sum"
# What the multiprocessors ask of L2, without what its two halves exchange.
L2_SECTORS = "lts__t_sectors_srcunit_tex.sum"
L1 = "l1tex__t_bytes.sum"
L1_HITS = "l1tex__t_sector_hit_rate.pct"
L2_HITS = "lts__t_sector_hit_rate.pct"
GRID = "launch__grid_size"
NEEDED = (TIME, L2, HBM, GRID)
METRICS = (*NEEDED, L2_SECTORS, L1, L1_HITS, L2_HITS)
SECTOR = 32

# Blocks of a marker: 1 ends a case, case `i` begins with `i + FIRST`.
END, FIRST = 1, 2
_MARKER = re.compile(r"\bexpand\b")

# Nsight Compute is asked for base units.
_UNITS = {"": 1.0, "block": 1.0, "%": 1.0, "sector": 1.0, "byte": 1.0, "nsecond": 1e-9, "ns": 1e-9}


class NoCounters(Exception):
    """Nsight Compute gave none; the message says what it said."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch; its metrics in bytes, seconds, sectors and percent."""

    name: str
    blocks: int
    metrics: dict[str, float]

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def find() -> str | None:
    """Nsight Compute's command, on the path or where it is installed; the newest one."""
    on_path = shutil.which("ncu")
    if on_path:
        return on_path
    places = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
    return max((path for place in places for path in glob.glob(place)), default=None)


def command(ncu: str, log: Path, metrics: Sequence[str] = METRICS) -> list[str]:
    """The command line before the program's; `log` gets what Nsight Compute prints.

    Every kernel between the driver's calls `cuProfilerStart` and `cuProfilerStop` is recorded.
    """
    return [
        ncu,
        *("--csv", "--page", "raw", "--print-units", "base"),
        # Following the children as well, such as the compilers that XLA starts, ended Nsight
        # Compute 2025.3.1 with a segmentation fault.
        *("--target-processes", "application-only", "--replay-mode", "kernel"),
        # The clocks are the machine's, as when times are measured.
        *("--clock-control", "none"),
        *("--metrics", ",".join(metrics)),
        *("--log-file", str(log)),
        *("--profile-from-start", "off"),
    ]


def parse(text: str) -> list[Kernel]:
    """The kernels in the order of their launches.

    Nsight Compute's page `raw` has a row for each kernel, below one of units.

    Raises:
        NoCounters: there is no table, no kernel in it, or an unknown unit.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    messages = " ".join(line for line in lines if re.match("==(ERROR|WARNING)==", line))
    if start is None:
        raise NoCounters(messages or "it printed no table")
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    kernels = list(_by_kernel(rows))
    if not kernels:
        raise NoCounters(messages or "its table is empty")
    return kernels


def _by_kernel(rows: Sequence[dict[str, str]]) -> Iterator[Kernel]:
    units: dict[str, str] = {}
    for row in rows:
        if not row["ID"]:
            units = row
            continue
        metrics = {name: _value(row.get(name, ""), units.get(name, "")) for name in METRICS}
        yield _kernel(row, metrics)


def _kernel(row: dict[str, str], metrics: dict[str, float | None]) -> Kernel:
    known = {name: value for name, value in metrics.items() if value is not None}
    sizes = map(int, re.findall(r"\d+", row.get("Grid Size", "")))
    blocks = known.pop(GRID, None) or math.prod(sizes)
    return Kernel(row["Kernel Name"], int(blocks), known)


def _value(text: str | None, unit: str | None) -> float | None:
    """A number in its base unit; `None` where there is none (`n/a`)."""
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    if (unit or "") not in _UNITS:
        raise NoCounters(f"a unit that is not known, {unit!r}")
    return number * _UNITS[unit or ""]


def by_case(kernels: Iterable[Kernel], cases: int) -> dict[int, list[Kernel]]:
    """The kernels of each case, by its number; a case that was not reached is missing."""
    groups: dict[int, list[Kernel]] = {}
    current: list[Kernel] | None = None
    for kernel in kernels:
        marks = _MARKER.search(kernel.name) and kernel.blocks < FIRST + cases
        if marks and kernel.blocks == END:
            current = None
        elif marks:
            current = groups[kernel.blocks - FIRST] = []
        elif current is not None:
            current.append(kernel)
    return groups


def total(kernels: Sequence[Kernel]) -> dict[str, float | None]:
    """A case's sums; hit rates are weighed by the bytes. `None` where a kernel has no figure."""

    def add(name: str) -> float | None:
        values = [kernel.metrics.get(name) for kernel in kernels]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    def rate(name: str, weight: str) -> float | None:
        pairs = [(kernel.metrics.get(name), kernel.metrics.get(weight)) for kernel in kernels]
        known = [(value, bytes_) for value, bytes_ in pairs if value is not None and bytes_]
        weights = sum(bytes_ for _, bytes_ in known)
        return sum(value * bytes_ for value, bytes_ in known) / weights if weights else None

    seconds, sectors = add(TIME), add(L2_SECTORS)
    return {
        "ms": None if seconds is None else 1e3 * seconds,
        "l2_bytes": add(L2),
        "l2_bytes_asked": None if sectors is None else SECTOR * sectors,
        "hbm_bytes": add(HBM),
        "l1_bytes": add(L1),
        "l1_hit_percent": rate(L1_HITS, L1),
        "l2_hit_percent": rate(L2_HITS, L2),
    }
