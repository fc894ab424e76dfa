"""The results in one file, saved after each: a run that was cut short goes on where it was."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.record import header
from benchmarks.harness.rows import Row

_LISTS = ("graphs", "steps", "scores", "operations", "counters", "left_out")
_SAME = ("hardware", "scale")  # of runs whose results stand in one file


BUDGET_SPENT = "no time is left for it (--budget)"


@dataclasses.dataclass
class Results:
    """Rows by the part that made them.

    Attributes:
        path: of the file, or `None` to keep none.
        header: of the machine and the versions.
        deadline: the time after which nothing new is started.
        parts: the lists of rows.
        pending: whether something was not started for want of time.
    """

    path: Path | None
    header: dict[str, Any]
    deadline: float
    parts: dict[str, list[Row]] = dataclasses.field(
        default_factory=lambda: {name: [] for name in _LISTS}
    )
    pending: bool = False

    @classmethod
    def open(cls, path: Path | None, options: Any, budget: float) -> Results:
        """What the file has, to go on with.

        Raises:
            ValueError: the file is of other hardware or another scale, or is no such file.
        """
        deadline = time.time() + budget if budget else float("inf")
        head = header(options) | {"command": " ".join(["python", *sys.argv])}
        results = cls(path, head, deadline)
        if path is None or not path.exists():
            return results
        try:
            known = json.loads(path.read_text())
            before, parts = known["header"], {name: list(known[name]) for name in _LISTS}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--json: expected a file of this command, got {path}") from error
        for name in _SAME:
            if before.get(name) != head[name]:
                raise ValueError(
                    f"--json: expected a file of {name} {head[name]!r}, got {before.get(name)!r}"
                )
        results.parts = parts | {"left_out": []}
        return results

    def out_of_time(self) -> bool:
        """Whether nothing new may be started; notes that something is pending."""
        late = time.time() >= self.deadline
        self.pending = self.pending or late
        return late

    def add(self, part: str, row: Row) -> None:
        """Takes a row and saves."""
        self.parts[part].append(row)
        self.save()

    def leave_out(self, what: str, reason: str) -> None:
        """Notes what has no result, and why."""
        if reason == BUDGET_SPENT:
            self.pending = True
            return
        self.add("left_out", {"what": what, "reason": reason})
        print(f"left out: {what}: {reason}", file=sys.stderr)

    def find(self, part: str, **fields: Any) -> list[Row]:
        """The rows of a part with these fields."""
        return [
            row
            for row in self.parts[part]
            if all(row.get(name) == value for name, value in fields.items())
        ]

    def save(self) -> None:
        """Writes the file, whole or not at all, a row a line."""
        if self.path is None:
            return
        blocks = [f' "header": {json.dumps(self.header, indent=1)}']
        for name, rows in self.parts.items():
            lines = ",".join(f"\n  {json.dumps(row)}" for row in rows)
            blocks.append(f' "{name}": [{lines}\n ]')
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".tmp")
        partial.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
        partial.replace(self.path)


class Receiver:
    """What `benchmarks.harness.process` tells of a worker's rows, as rows of one part."""

    def __init__(self, results: Results, part: str, more: dict[str, Any] | None = None) -> None:
        self._results, self._part, self._more = results, part, more or {}

    def add(self, row: Row) -> None:
        """Takes a row, without the samples that its times are quantiles of."""
        kept = {name: value for name, value in row.items() if name != "samples"}
        self._results.add(self._part, {**self._more, **kept})
        shape = row["shape"]
        k = "" if shape.get("k") is None else f" k={shape['k']}"
        print(f"{row['case']}{k} {row['pass']} {row['impl']}: {row['ms']:.4g} ms", file=sys.stderr)

    def leave_out(self, what: str, reason: str, failed: bool) -> None:
        """Notes what has no result."""
        self._results.leave_out(what, f"failed: {reason}" if failed else reason)
