"""The suite `spmm`: the sparse-dense product and its gradient, ours against the others."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import graphs, plan, process
from benchmarks.options import Options
from benchmarks.record import Record, Row


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    measurements = plan.measurements(
        options.device,
        cases=options.shapes,
        widths=options.widths,
        dtypes=options.dtypes,
        only=options.only,
        ftz_atomics=options.ftz_atomics,
    )
    together = operator.attrgetter("case", "width", "direction")
    run_plan(measurements, options, record, workspace, together)


def run_plan(
    measurements: list[plan.Measurement],
    options: Options,
    record: Record,
    workspace: Path,
    together: Callable[[plan.Measurement], Any],
) -> None:
    """Runs measurements, a worker process for each framework.

    Where there are rounds, neighbours with the same key `together` run in them close in time.
    """
    names = list(dict.fromkeys(m.case for m in measurements))
    folders = graphs.store_all(names, options.cache or workspace, options.scale)
    for name, folder in folders.items():
        record.note_graph(json.loads((folder / "graph.json").read_text()))
        record.say(f"{name}: {(folder / 'graph.json').read_text()}")
    chunks = [measurements]
    if options.rounds > 1:
        chunks = [list(group) for _, group in itertools.groupby(measurements, together)]
    for chunk in chunks:
        for _ in range(options.rounds):
            for family in dict.fromkeys(m.family for m in chunk):
                mine = [m for m in chunk if m.family == family]
                _run_family(family, mine, folders, options, record, workspace)


def _run_family(
    family: str,
    measurements: list[plan.Measurement],
    folders: dict[str, Path],
    options: Options,
    record: Record,
    workspace: Path,
) -> None:
    task = workspace / f"{family}.json"
    task.write_text(
        json.dumps(
            {
                "suite": options.label,
                "family": family,
                "device": options.device,
                "threads": options.threads,
                "timing": options.timing(),
                "graphs": {name: str(folder) for name, folder in folders.items()},
                "measurements": [dataclasses.asdict(m) for m in measurements],
            }
        )
    )
    env = process.environment(family, options.device, options.threads, options.xla_flags)
    names = [str(m) for m in measurements]
    process.run_each("benchmarks.worker", task, names, env, record, family)


def set_baselines(rows: list[Row], device: str) -> None:
    """Writes into each row the library that a user would call instead, and the ratio to it.

    On the GPU the fastest algorithm of cuSPARSE, on the CPU `torch.sparse`, for the maximum plain
    JAX; in the row's dtype, or in float32 where the library was not timed in it.
    """
    products = (plan.TORCH,) if device == "cpu" else (*plan.CUSPARSE, plan.TORCH)
    for row in rows:
        impls = (plan.MAX_SORTED,) if row["impl"] in (plan.MAX, plan.MAX_SORTED) else products
        for dtype in (row["dtype"], "float32"):
            same = [
                other
                for other in rows
                if other["impl"] in impls
                and other["accurate"]
                and other["dtype"] == dtype
                and all(other[key] == row[key] for key in ("case", "shape", "pass"))
            ]
            if same:
                best = min(same, key=lambda other: other["ms"])
                row["baseline"] = best["impl"] + ("" if dtype == row["dtype"] else f" {dtype}")
                row["ratio"] = round(best["ms"] / row["ms"], 3)
                break
