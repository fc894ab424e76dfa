"""Reads mutated files, and reports those that end in anything but a graph or one clear line."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from jaxgnn.data.files.limits import MESSAGE_LENGTH
from tests.fuzz.cases import make_case, write_case
from tests.fuzz.formats import MAX_BYTES, READERS
from tests.fuzz.pool import ask_all

# Buffers, JAX's arrays and threads' stacks, beside what `max_bytes` counts.
SLACK = 64 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """Mutates valid files and reads them, each in a worker with limits on memory and time."""

    reader: Annotated[str, tyro.conf.Positional] = "all"
    """One of the readers, or `all`."""
    files: int = 1000
    """Files a reader."""
    seed: int = 0
    """Of the mutations: a file is a function of the reader, the seed and its number."""
    first: int = 0
    """The number of the first file; with `--files 1`, one case again."""
    workers: int = os.cpu_count() or 1
    """Number of processes."""
    seconds: float = 10.0
    """The longest that a file may take."""
    failures: Path = Path("fuzz-failures")
    """Where the files of failures are saved."""


def complaint(answer: dict[str, Any]) -> str | None:
    """What is wrong with an answer; None of a graph, or of an error as it should be."""
    kind, message = answer["kind"], answer["message"]
    if kind not in ("read", "refused"):
        return f"{kind}: {message}"
    if answer["warnings"]:
        return f"a warning: {answer['warnings'][0]}"
    if answer["peak_bytes"] > MAX_BYTES + SLACK:
        return f"a peak of {answer['peak_bytes'] >> 20} MiB"
    if message is not None and not (0 < len(message) <= MESSAGE_LENGTH and message.isprintable()):
        return f"a message of {len(message)} characters: {message[:400]!r}"
    return None


def run(reader: str, options: Options) -> tuple[Counter[str], int, list[str]]:
    """Counts of the outcomes of one reader, the highest peak in bytes, and the failures."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    peak = 0

    def take(request: dict[str, Any], answer: dict[str, Any]) -> None:
        nonlocal peak
        peak = max(peak, answer.get("peak_bytes", 0))
        problem = complaint(answer)
        counts["failed" if problem else answer["kind"]] += 1
        if problem:
            number = request["case"][2]
            folder = options.failures / f"{reader}-{options.seed}-{number}"
            write_case(make_case(reader, options.seed, number), folder)
            (folder / "problem.txt").write_text(f"{problem}\n")
            failures.append(f"{reader} --seed {options.seed} --first {number}: {problem}")

    numbers = range(options.first, options.first + options.files)
    requests = ({"case": (reader, options.seed, i), "max_bytes": MAX_BYTES} for i in numbers)
    ask_all(requests, take, workers=options.workers, seconds=options.seconds)
    return counts, peak, failures


def main(options: Options) -> int:
    """Runs and prints; 1 if anything failed."""
    console = Console()
    if options.reader != "all" and options.reader not in READERS:
        console.print(f"reader: expected all or one of {', '.join(READERS)}", markup=False)
        return 2
    failures: list[str] = []
    for reader in READERS if options.reader == "all" else (options.reader,):
        start = time.perf_counter()
        counts, peak, failed = run(reader, options)
        failures += failed
        seconds = time.perf_counter() - start
        console.print(
            f"{reader}: {counts.total():,} files, {counts['read']:,} read, "
            f"{counts['refused']:,} refused, {counts['failed']:,} failed; "
            f"highest peak {peak / 2**20:.0f} MiB, {seconds:.0f} s",
            soft_wrap=True,
        )
    for failure in failures[:50]:
        console.print(failure, markup=False, highlight=False, soft_wrap=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m tests.fuzz")))
