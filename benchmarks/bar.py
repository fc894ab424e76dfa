"""What a bar is: a ratio of two rows, or a quantity of one, that a run must reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pick:
    """Which rows: all given fields equal; `impls` lists alternatives, the fastest counts.

    Without `k` those of dense rows.
    """

    impls: tuple[str, ...]
    dtype: str = "float32"
    direction: str = "forward"
    k: int | None = None

    def best(self, rows: Sequence[Row], suite: str, case: str, width: int | None) -> Row | None:
        """The fastest such row that is accurate."""
        found = [
            row
            for row in rows
            if row["suite"] == suite
            and row["case"] == case
            and row["impl"] in self.impls
            and row["dtype"] == self.dtype
            and row["pass"] == self.direction
            and row["shape"].get("k") == self.k
            and (width is None or row["shape"].get("width") == width)
            and row["accurate"]
        ]
        return min(found, key=lambda row: row["ms"], default=None)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A statement that a run meets or misses.

    Attributes:
        what: the sentence.
        suite, device: where it applies.
        cases: graphs; each must reach `at_least`, or with `geometric_mean` their mean must.
        width: of the features.
        ours, reference: the ratio is the time of `reference` over that of `ours`, or another
            `quantity` of theirs, a field of the row.
        at_least: the bar on that ratio.
        at_most: without a `reference`, the bar on the `quantity` of our row, in `unit`.
        published_ms: what the kernels of the paper took on the same GPU and graph, to be shown
            beside ours.
    """

    what: str
    suite: str
    device: Literal["cpu", "gpu"] | None
    ours: Pick
    cases: tuple[str, ...]
    reference: Pick | None = None
    at_least: float | None = None
    width: int | None = None
    geometric_mean: bool = False
    quantity: str | None = None
    unit: float = 1.0
    at_most: float | None = None
    published_ms: float | None = None
