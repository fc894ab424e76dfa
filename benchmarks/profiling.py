"""A worker under Nsight Compute: its messages, and the counters of the kernels of its cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import counters, process

# A command buffer's kernels are not profiled one by one.
NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="


@dataclasses.dataclass
class Profile:
    """What a worker said about its cases, by their numbers, and what was counted.

    Attributes:
        facts: of the cases that ran.
        failed: why others did not.
        kernels: those of a case; none of a case that was not seen.
        reason: why a case may have none.
    """

    facts: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    failed: dict[int, str] = dataclasses.field(default_factory=dict)
    kernels: dict[int, list[counters.Kernel]] = dataclasses.field(default_factory=dict)
    reason: str = ""

    def missing(self, number: int) -> str | None:
        """Why this case has no counters, or `None` if it has."""
        if number in self.failed:
            return self.failed[number]
        return None if number in self.facts and self.kernels.get(number) else self.reason


def run(
    module: str,
    task: Path,
    names: Sequence[str],
    env: dict[str, str],
    ncu: str,
    say: Callable[[str], None],
    *,
    metrics: Sequence[str] = counters.METRICS,
    by_name: bool = False,
) -> Profile:
    """Runs `python -m module TASK` under Nsight Compute.

    The worker sends `start` with a case's number, and `done` with its `facts` or why it `failed`; a
    `traffic_worker.Marker` tells its kernels from others.

    Args:
        module, task, env: of the process.
        names: of the cases, for people.
        ncu: the executable.
        say: shows a line.
        metrics: the counters.
        by_name: see `counters.command`.
    """
    profile, log = Profile(), task.with_suffix(f".counters-{by_name}.csv")

    def receive(message: dict[str, Any]) -> None:
        if "start" in message:
            say(f"under Nsight Compute: {names[message['start']]}")
        if "facts" in message:
            profile.facts[message["done"]] = message["facts"]
        if "failed" in message:
            profile.failed[message["done"]] = message["failed"]

    under = counters.command(ncu, log, metrics, by_name=by_name)
    # Points, not commas, before decimals.
    status = process.run(module, [str(task)], {**env, "LC_ALL": "C"}, receive, under)
    try:
        printed = log.read_text(errors="replace") if log.exists() else ""
        profile.kernels = counters.by_case(counters.parse(printed), len(names))
        profile.reason = f"no kernels between its markers (status {status})"
    except counters.NoCounters as problem:
        profile.reason = f"Nsight Compute (status {status}): {problem}"
    return profile
