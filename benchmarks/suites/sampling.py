"""The suite `sampling`: aggregation over a sample of each row's edges, and its gradient.

Beside it, in the same run: the product of the whole graph, and `spmm` of the sampled graph.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import plan
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare
from benchmarks.suites import spmm

SIZES = (16, 32, 64, 128, 256)
STRATEGIES = tuple(plan.SAMPLED + name for name in ("stride", "bucket", "fastrand", "random"))
GRADIENT_SIZES = (16, 64)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    spmm.run_plan(measurements(options), options, record, workspace)


def measurements(options: Options) -> list[Measurement]:
    """The plan in the order in which it runs: the whole graph's products first."""
    gpu = options.device == "gpu"
    cases = options.shapes or ((plan.BIG_SHAPE, "proteins") if gpu else ("rmat",))
    every = (
        measurement
        for case in cases
        for width in options.widths or (256 if gpu else 64,)
        for measurement in _case(case, width, options)
    )
    return plan.narrowed(every, options.dtypes, options.only)


def _case(case: str, width: int, options: Options) -> Iterator[Measurement]:
    gpu = options.device == "gpu"
    whole = (plan.OURS, *(plan.CUSPARSE if gpu else (plan.TORCH,)))
    for direction in plan.BOTH:
        for impl in whole:
            yield Measurement(case, impl, width, "float32", direction)
    dtypes = options.dtypes or plan.HALF_TOO
    sizes = options.sample_sizes or (SIZES if gpu else SIZES[:2])
    for dtype, size in itertools.product(dtypes, sizes):
        impls = (*STRATEGIES, plan.PRESAMPLED) if dtype == "float32" else STRATEGIES[:1]
        for impl in impls:
            yield Measurement(case, impl, width, dtype, "forward", sample=size)
        if options.sample_sizes or size in GRADIENT_SIZES:
            yield Measurement(case, STRATEGIES[0], width, dtype, "backward", sample=size)


def set_baselines(rows: list[Row], device: str) -> None:
    """The baseline is the float32 product of the whole graph by the library for it; beside it the
    ratio to `spmm` of the sample."""
    products = plan.CUSPARSE if device == "gpu" else (plan.TORCH,)
    for row in rows:
        spec = {"impl": plan.PRESAMPLED}
        if compare(row, rows, spec, ("case", "width", "dtype", "pass", "S")):
            row["ratio_spmm_of_the_sample"] = row["ratio"]
        compare(row, rows, {"impl": products}, ("case", "width", "pass"))
