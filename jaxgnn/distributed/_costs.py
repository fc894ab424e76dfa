"""What one aggregation takes of each device, by layout: edges gathered and rows sent."""

from __future__ import annotations

from typing import NamedTuple

_LINK_BYTES = 370e9
"""Bytes a second that a device sends: NVLink of an H100 or H200, one way, as NCCL uses it."""

_GATHERS_PER_SENT_ROW = 20
"""Rows that a device gathers for its edges while it sends one: an H200 gathers about 6 to 10 TB/s
where 256 float32 features are aggregated, as senders are shared in its L2."""

_READS_PER_SENT_ROW = 11
"""Rows that a device reads or writes in order while it sends one: an H200 copies 4.2 TB/s."""

_LEAST_GAIN = 1.05
"""Times as fast as an aggregation has to be predicted with overlap, for it to be chosen."""

_LEAST_SECONDS = 50e-6
"""That it has to save, too, at 256 float32 features: two more kernels start."""


class Edges(NamedTuple):
    """Of the largest parts, by rows.

    Attributes:
        all: edges of the part with most of them.
        owned: edges between nodes of a part, of the part with most of those.
        halo: edges that start in the halo, likewise.
        rows: nodes of a part, with padding.
        pair_rows: that a part sends to each other one, with padding.
    """

    all: int
    owned: int
    halo: int
    rows: int
    pair_rows: int

    def gain(self, parts: int, sent_bytes: int = 4) -> tuple[float, float]:
        """What overlap is predicted to win: times as fast, and seconds at 256 float32 features.

        Both orders pack the rows that are sent. Then one sends them, puts the received rows behind
        the owned ones, where those are not all, and aggregates all edges; the other aggregates the
        owned edges meanwhile, then those of the halo, and adds both results.

        Args:
            parts: that exchange rows.
            sent_bytes: of a value on the wire, of 4 elsewhere.
        """
        received = parts * self.pair_rows
        # All rows are repeated, not picked, and lie where they are read (`_halo.Halo`).
        all_rows = self.pair_rows == self.rows
        sent = (parts - 1) * self.pair_rows * sent_bytes / 4
        packed = (1 if all_rows else 2) * received / _READS_PER_SENT_ROW
        joined = 0 if all_rows else 2 * (self.rows + received) / _READS_PER_SENT_ROW
        added = 3 * self.rows / _READS_PER_SENT_ROW
        one_graph = packed + sent + joined + self.all / _GATHERS_PER_SENT_ROW
        owned, halo = self.owned / _GATHERS_PER_SENT_ROW, self.halo / _GATHERS_PER_SENT_ROW
        two_graphs = packed + max(sent, owned) + halo + added
        saved = (one_graph - two_graphs) * 256 * 4 / _LINK_BYTES
        return one_graph / max(two_graphs, 1.0), saved

    def overlap(self, parts: int, sent_bytes: int = 4) -> bool:
        """Whether that is enough to take it."""
        ratio, seconds = self.gain(parts, sent_bytes)
        return ratio >= _LEAST_GAIN and seconds >= _LEAST_SECONDS


class Cost(NamedTuple):
    """Of the device that has most to do, in rows of all features.

    Attributes:
        layout: `"rows"`, `"features"` or `"both"`.
        gathered: rows that its edges read.
        sent: rows that leave it.
        meanwhile: of `gathered`, those of edges that are aggregated while the halo travels.
        halo: of `sent`, those of the halo.
    """

    layout: str
    gathered: float
    sent: float
    meanwhile: float = 0.0
    halo: float = 0.0

    def seconds(self, row_bytes: float, sent_bytes: float) -> float:
        """The predicted time, of which nothing overlaps but what is aggregated meanwhile.

        Args:
            row_bytes: of a row that is gathered.
            sent_bytes: of one on the wire.
        """
        gathering = self.gathered * row_bytes / _GATHERS_PER_SENT_ROW
        hidden = min(self.meanwhile * row_bytes / _GATHERS_PER_SENT_ROW, self.halo * sent_bytes)
        return (gathering + self.sent * sent_bytes - hidden) / _LINK_BYTES


def cost(
    layout: str,
    *,
    edges: int,
    places: int,
    pair_rows: int,
    row_parts: int,
    column_parts: int,
    meanwhile: int = 0,
) -> Cost:
    """That of a layout.

    Args:
        layout: its name.
        edges: of the largest part.
        places: of nodes, on all devices.
        pair_rows: that a part sends to each other one.
        row_parts, column_parts: devices along each axis.
        meanwhile: of the edges those that are aggregated while the halo travels.
    """
    # Rows to columns and back, within the devices of a part; then the halo, of those columns.
    turned = 2 * places * (column_parts - 1) / (column_parts**2 * row_parts)
    halo = pair_rows * (row_parts - 1) / column_parts
    return Cost(layout, edges / column_parts, turned + halo, meanwhile / column_parts, halo)
