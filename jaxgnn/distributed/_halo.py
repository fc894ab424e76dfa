"""Which rows the parts send each other, and where those that arrive lie before an aggregation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

_ALL_UP_TO = 1.05
"""Rows of a part by those of them that the largest pair sends, up to which it sends all: packing
them, and putting those that arrive behind the part's own, would take longer than sending these."""


class Halo(NamedTuple):
    """The exchange between parts.

    A part's own rows come first. Behind them lie, for each part, `pair_rows` received ones. Where
    all rows are sent, no place is kept for the own ones twice: the blocks of rows are in the order
    of the parts, but that the part's own block and the first one have changed places.

    Attributes:
        rows: of a part, with padding.
        pair_rows: that a part sends to each other one, with padding.
        all_rows: whether these are all of its rows, in their order.
    """

    rows: int
    pair_rows: int
    all_rows: bool

    @classmethod
    def of(cls, rows: int, halo_rows: Int[np.ndarray, "parts parts"]) -> Halo:
        """That of parts with so many rows, of which each needs these numbers, by owner."""
        needed = int(halo_rows.max())
        all_rows = needed > 0 and rows - 1 <= _ALL_UP_TO * needed  # the last one is padding
        return cls(rows, rows if all_rows else needed, all_rows)

    def num_senders(self, parts: int) -> int:
        """Rows that a part's edges may start from."""
        return parts * self.pair_rows + (0 if self.all_rows else self.rows)

    def received(self, parts: int) -> tuple[int, int]:
        """The first row of the array that arrives, among those, and its number of rows."""
        return (0 if self.all_rows else self.rows), parts * self.pair_rows

    def places(
        self,
        part: int,
        source: Int[np.ndarray, " halo"],
        slot: Int[np.ndarray, " halo"],
        row: Int[np.ndarray, " halo"],
    ) -> Int[np.ndarray, " halo"]:
        """Where the foreign rows of a part lie.

        Args:
            part: which.
            source: the owner of each.
            slot: its place among the rows that this owner sends, where those are not all.
            row: its place among the owner's rows.
        """
        if not self.all_rows:
            return self.rows + source * self.pair_rows + slot
        return np.where(source == 0, part, source) * self.rows + row
