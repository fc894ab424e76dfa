"""What the pages' tables and figures show: see `benchmarks.tables`."""

from __future__ import annotations

from benchmarks.table_specs import (
    aggregation,
    attention,
    distributed,
    maxk,
    sampling,
    tiles,
    training,
)
from benchmarks.table_specs.common import Table
from benchmarks.table_specs.figures import FIGURES

__all__ = ["FIGURES", "TABLES", "Table"]

TABLES: dict[str, Table] = {
    **aggregation.TABLES,
    **attention.TABLES,
    **distributed.TABLES,
    **maxk.TABLES,
    **sampling.TABLES,
    **tiles.TABLES,
    **training.TABLES,
}
