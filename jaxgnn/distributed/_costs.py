"""What one aggregation takes of each device, by layout: edges gathered and rows sent."""

from __future__ import annotations

from typing import NamedTuple

_LINK_BYTES = 370e9
"""Bytes a second that a device sends: NVLink of an H100 or H200, one way, as NCCL uses it."""

_GATHERS_PER_SENT_ROW = 20
"""Rows that a device gathers for its edges while it sends one: an H200 gathers about 6 to 10 TB/s
where 256 float32 features are aggregated, as senders are shared in its L2."""


class Cost(NamedTuple):
    """Of the device that has most to do, in rows of all features.

    Attributes:
        layout: `"rows"`, `"features"` or `"both"`.
        gathered: rows that its edges read.
        sent: rows that leave it.
    """

    layout: str
    gathered: float
    sent: float

    def seconds(self, row_bytes: float, sent_bytes: float) -> float:
        """The predicted time, of which nothing overlaps.

        Args:
            row_bytes: of a row that is gathered.
            sent_bytes: of one on the wire.
        """
        gathering = self.gathered * row_bytes / _GATHERS_PER_SENT_ROW
        return (gathering + self.sent * sent_bytes) / _LINK_BYTES


def cost(
    layout: str, *, edges: int, places: int, pair_rows: int, row_parts: int, column_parts: int
) -> Cost:
    """That of a layout.

    Args:
        layout: its name.
        edges: of the largest part.
        places: of nodes, on all devices.
        pair_rows: that a part sends to each other one.
        row_parts, column_parts: devices along each axis.
    """
    # Rows to columns and back, within the devices of a part; then the halo, of those columns.
    turned = 2 * places * (column_parts - 1) / (column_parts**2 * row_parts)
    halo = pair_rows * (row_parts - 1) / column_parts
    return Cost(layout, edges / column_parts, turned + halo)
