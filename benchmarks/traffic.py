"""Bytes that MaxK's kernels move, from hardware counters: `python -m benchmarks.traffic`.

Each case runs once under Nsight Compute: products of dense rows, of the kept entries of rows and
their gradients, and the selection. A row has the bytes that crossed L2 and HBM, and those that its
format has to move, so that what is fetched beyond them shows. To stand beside the table of memory
traffic in the paper on MaxK-GNN (Peng et al., ASPLOS 2024, table 2).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import counters, graphs, oracle, plan, process, profiling
from benchmarks.options import Options, default_device
from benchmarks.plan import Measurement
from benchmarks.record import Record, Row

KS = (32, 16, 8)
_BACKWARD = (
    plan.MAXK,
    plan.MAXK_DETERMINISTIC,
    plan.MAXK_WINDOWS,
    plan.MAXK_WINDOWS_DETERMINISTIC,
)
_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_COLUMN_BYTES = 4  # of an edge


def main(arguments: Sequence[str] | None = None) -> int:
    """Profiles the cases; returns the exit status."""
    options = parse(arguments)
    ncu = options.ncu or counters.find()
    if ncu is None:
        print(
            "benchmarks.traffic: Nsight Compute is needed, and `ncu` is neither on the PATH nor in "
            "/usr/local/cuda*/bin or /opt/nvidia/nsight-compute; --ncu says where it is",
            file=sys.stderr,
        )
        return 1
    record = Record(options)
    record.compare = set_ratios
    chosen = cases(options)
    with tempfile.TemporaryDirectory(prefix="jaxgnn-traffic-") as workspace:
        _profile(chosen, options, record, ncu, Path(workspace))
    record.save()
    record.console.print(_table(record.rows))
    for entry in record.left_out:
        record.console.print(f"left out: {entry['what']}: {entry['reason']}", style="bold red")
    record.console.print(f"written to {record.path}")
    return int(bool(record.left_out) or not all(row["accurate"] for row in record.rows))


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.traffic",
        description="L2 and HBM traffic of MaxK's kernels; see docs/benchmarks.md.",
    )
    parser.add_argument("--shape", default=plan.BIG_SHAPE, help="the graph, by name")
    parser.add_argument("--scale", type=float, default=1.0, help="of the graph; default 1")
    parser.add_argument("--width", type=int, default=plan.MAXK_WIDTH, help="of the features")
    parser.add_argument("--k", dest="ks", nargs="+", type=int, default=KS, help="default 32 16 8")
    parser.add_argument("--dtypes", nargs="+", choices=plan.DTYPES, help="dtypes to keep")
    parser.add_argument("--only", nargs="+", help="implementations to keep, by part of the name")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="the CPU has no such counters")
    parser.add_argument("--ncu", help="Nsight Compute's command")
    parser.add_argument("--cache", type=Path, help="keep the generated graph in this folder")
    parser.add_argument(
        "--output", type=Path, help="default: benchmarks/results/DATE-HARDWARE-traffic.json"
    )
    parser.add_argument("--xla-flags", default="", help="XLA_FLAGS to add")
    parser.add_argument("--commit", help="where the checkout has no git data to read it from")
    values = vars(parser.parse_args(arguments))
    if any(not 0 < k <= values["width"] for k in values["ks"]):
        parser.error(f"--k: expected from 1 to the width, got {values['ks']}")
    flags = " ".join(filter(None, [values.pop("xla_flags"), profiling.NO_COMMAND_BUFFERS]))
    return Options(
        suite="traffic",
        device=values.pop("device") or default_device(),
        shapes=[values.pop("shape")],
        widths=[values.pop("width")],
        repeats=1,
        xla_flags=flags,
        program="benchmarks.traffic",
        **values,
    )


def cases(options: Options) -> list[Measurement]:
    """What is profiled, dense rows in float32 first: the others are compared with them."""
    assert options.shapes and options.widths and options.ks
    (case,), (width,) = options.shapes, options.widths

    def make(impl: str, dtype: str, direction: plan.Pass, k: int | None = None) -> Measurement:
        return Measurement(case, impl, width, dtype, direction, k=k)

    every = [make(plan.OURS, dtype, "forward") for dtype in ("float32", "bfloat16")]
    for dtype in ("float32", "bfloat16"):
        for k in options.ks:
            for impl in (plan.MAXK, plan.MAXK_WINDOWS):
                every.append(make(impl, dtype, "forward", k))
    every += [make(impl, "float32", "backward", k) for k in options.ks for impl in _BACKWARD]
    every.append(make(plan.MAXK, "float32", "select", options.ks[0]))
    return [
        m
        for m in every
        if (not options.dtypes or m.dtype in options.dtypes)
        and (not options.only or any(part.lower() in m.impl.lower() for part in options.only))
    ]


def needed_bytes(m: Measurement, nodes: int, edges: int) -> tuple[int, int]:
    """Bytes that the format moves: with a record for each edge, and with each array once.

    A record is a dense row, or k values with their columns; an edge has the number of its node
    beside it. The result is written once, and a gradient's dense rows are read once.
    """
    value = _VALUE_BYTES[m.dtype]
    dense = nodes * m.width * value
    if m.k is None:
        record = m.width * value
    else:
        record = m.k * (value + oracle.index_dtype(m.width).itemsize)
    if m.direction == "select":
        return dense + nodes * record, dense + nodes * record
    return edges * (record + _COLUMN_BYTES) + dense, nodes * record + edges * _COLUMN_BYTES + dense


def _profile(
    chosen: list[Measurement], options: Options, record: Record, ncu: str, workspace: Path
) -> None:
    """Runs the worker under Nsight Compute and adds the rows.

    Where the driver's profiler calls have not selected a kernel, once more with jaxgnn's kernels
    selected by name.
    """
    names = sorted({m.case for m in chosen})
    folders = graphs.store_all(names, options.cache or workspace, options.scale)
    for folder in folders.values():
        record.note_graph(json.loads((folder / "graph.json").read_text()))
    task = {
        "device": options.device,
        "threads": options.threads,
        "graphs": {name: str(folder) for name, folder in folders.items()},
        "measurements": [dataclasses.asdict(m) for m in chosen],
    }
    task_file = workspace / "traffic.json"
    env = process.environment("jax", options.device, options.threads, options.xla_flags)
    for by_name in (False, True):
        profiler_calls = options.device == "gpu" and not by_name
        task_file.write_text(json.dumps({**task, "profiler_calls": profiler_calls}))
        profile = profiling.run(
            "benchmarks.traffic_worker",
            task_file,
            [str(m) for m in chosen],
            env,
            ncu,
            record.say,
            by_name=by_name,
        )
        if profile.kernels or len(profile.failed) == len(chosen):
            break
        record.say(f"{profile.reason}; selecting kernels by name")
    for number, measurement in enumerate(chosen):
        missing = profile.missing(number)
        if missing is None:
            record.rows.append(_row(measurement, profile.facts[number], profile.kernels[number]))
        else:
            record.leave_out(str(measurement), missing, failed=True)
    record.save()


def _row(m: Measurement, facts: dict[str, Any], kernels: list[counters.Kernel]) -> Row:
    shape = facts["shape"]
    by_edge, once = needed_bytes(m, shape["nodes"], shape["edges"])
    return {
        "suite": "traffic",
        "case": m.case,
        "impl": m.impl,
        "dtype": m.dtype,
        "pass": m.direction,
        **facts,
        **counters.total(kernels),
        "l2_bytes_needed": by_edge,
        "hbm_bytes_needed": once,
        "kernels": [dataclasses.asdict(kernel) for kernel in kernels],
    }


def set_ratios(rows: list[Row]) -> None:
    """Writes how many times less each row moves than the float32 product of dense rows."""
    dense = [row for row in rows if row["impl"] == plan.OURS and row["dtype"] == "float32"]
    for row in rows:
        for ratio, field in (("ratio", "ms"), ("l2_ratio", "l2_bytes"), ("hbm_ratio", "hbm_bytes")):
            known = dense and dense[0][field] and row[field]
            row[ratio] = round(dense[0][field] / row[field], 3) if known else None
        row["baseline"] = plan.OURS if dense else None


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="Traffic (ratios: of the float32 product of dense rows over this)")
    for column in ("dtype", "pass", "k", "implementation"):
        table.add_column(column)
    for column in (
        *("ms", "ratio", "L2 GB", "ratio", "asked GB", "needed GB"),
        *("HBM GB", "ratio", "needed GB", "L1 hits %", "L2 hits %", "error"),
    ):
        table.add_column(column, justify="right")

    def number(value: float | None, unit: float = 1.0, digits: int = 4) -> str:
        return "" if value is None else f"{value / unit:.{digits}g}"

    last = None
    for row in rows:
        group = row["pass"], row["dtype"]
        if last not in (None, group):
            table.add_section()
        last = group
        error = row["error"]
        table.add_row(
            *(row["dtype"], row["pass"], str(row["shape"].get("k", "")), row["impl"]),
            *(number(row["ms"]), number(row["ratio"])),
            *(number(row["l2_bytes"], 1e9), number(row["l2_ratio"])),
            *(number(row["l2_bytes_asked"], 1e9), number(row["l2_bytes_needed"], 1e9)),
            *(number(row["hbm_bytes"], 1e9), number(row["hbm_ratio"])),
            number(row["hbm_bytes_needed"], 1e9),
            *(number(row["l1_hit_percent"]), number(row["l2_hit_percent"])),
            error if isinstance(error, str) else f"{error:.1e}",
            style=None if row["accurate"] else "bold red",
        )
    return table


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker is ended too
    sys.exit(main())
