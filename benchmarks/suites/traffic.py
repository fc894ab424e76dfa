"""The suite `traffic`: bytes that MaxK's kernels move, from hardware counters.

Each case runs once under Nsight Compute: products of dense rows, of the kept entries of rows and
their gradients, and the selection. A row has the bytes that crossed L2 and HBM, and those that its
format has to move, so that what is fetched beyond them shows. To stand beside the table of memory
traffic in the paper on MaxK-GNN (Peng et al., ASPLOS 2024, table 2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import plan, profiling
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record, Row
from benchmarks.suites import spmm

KS = (32, 16, 8)
_BACKWARD = (
    plan.MAXK,
    plan.MAXK_DETERMINISTIC,
    plan.MAXK_WINDOWS,
    plan.MAXK_WINDOWS_DETERMINISTIC,
)
_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_COLUMN_BYTES = 4  # of an edge


def run(options: Options, record: Record, workspace: Path) -> None:
    """Profiles the cases; where there is no Nsight Compute, that is a failure."""
    record.compare = set_ratios
    if profiling.find(options) is None:
        record.leave_out("jaxgnn's traffic", profiling.ABSENT, failed=True)
        return
    chosen = measurements(options)
    task = spmm.task_of(chosen, options, record, workspace)
    task |= {"framework": "jax", "entries": [dataclasses.asdict(m) for m in chosen]}
    names = [str(m) for m in chosen]
    for row in profiling.run(task, names, options, record, workspace, list_kernels=True):
        shape = row["shape"]
        m = next(
            m
            for m in chosen
            if (m.impl, m.dtype, m.direction, m.k)
            == (row["impl"], row["dtype"], row["pass"], shape.get("k"))
        )
        by_edge, once = needed_bytes(m, shape["nodes"], shape["edges"])
        record.add({**row, "l2_bytes_needed": by_edge, "hbm_bytes_needed": once})


def measurements(options: Options) -> list[Measurement]:
    """What is profiled, dense rows in float32 first: the others are compared with them."""
    case = (options.shapes or [plan.BIG_SHAPE])[0]
    width = (options.widths or [plan.MAXK_WIDTH])[0]
    ks = options.ks or KS

    def every() -> Iterator[Measurement]:
        for dtype in ("float32", "bfloat16"):
            yield Measurement(case, plan.OURS, width, dtype, "forward")
        for dtype in ("float32", "bfloat16"):
            for k in ks:
                for impl in (plan.MAXK, plan.MAXK_WINDOWS):
                    yield Measurement(case, impl, width, dtype, "forward", k=k)
        for k in ks:
            for impl in _BACKWARD:
                yield Measurement(case, impl, width, "float32", "backward", k=k)
        yield Measurement(case, plan.MAXK, width, "float32", "select", k=ks[0])

    return plan.narrowed(every(), options.dtypes, options.only)


def needed_bytes(m: Measurement, nodes: int, edges: int) -> tuple[int, int]:
    """Bytes that the format moves: with a row read for each edge, and with each array once.

    A row is dense, or k values with their columns; an edge has the number of its node beside it.
    The result is written once, and a gradient's dense rows are read once.
    """
    value = _VALUE_BYTES[m.dtype]
    dense = nodes * m.width * value
    row = m.width * value if m.k is None else m.k * (value + (1 if m.width <= 256 else 2))
    if m.direction == "select":
        return dense + nodes * row, dense + nodes * row
    return edges * (row + _COLUMN_BYTES) + dense, nodes * row + edges * _COLUMN_BYTES + dense


def set_ratios(rows: list[Row]) -> None:
    """Writes how many times less each row moves than the float32 product of dense rows."""
    dense = [row for row in rows if row["impl"] == plan.OURS and row["dtype"] == "float32"]
    for row in rows:
        for ratio, field in (("ratio", "ms"), ("l2_ratio", "l2_bytes"), ("hbm_ratio", "hbm_bytes")):
            known = dense and dense[0][field] and row[field]
            row[ratio] = round(dense[0][field] / row[field], 3) if known else None
        row["baseline"] = plan.OURS if dense else None
