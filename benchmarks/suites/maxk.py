"""The suite `maxk`: selection (also after dropout), aggregation of the kept entries, its gradient.

Beside them, in the same run: the dense product that they take the place of (cuSPARSE's or
`torch.sparse`'s, and ours), what plain JAX offers, and the copy of the input matrix.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import plan
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record, Row, compare
from benchmarks.suites import spmm

KS = (32, 16, 8, 64)
SWEEP = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192)
DTYPES = ("float32", "bfloat16")

OURS = (plan.MAXK, plan.MAXK_WINDOWS)
DROPPING = (plan.MAXK_DROPOUT, plan.MAXK_BERNOULLI)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    chosen = measurements(options)
    spmm.run_plan(chosen, options, record, workspace, operator.attrgetter("case"))


def measurements(options: Options) -> list[Measurement]:
    """The plan in the order in which it runs: what is compared with first, then k by k.

    The sweep has many k in float32, on every shape, without what does not depend on the graph.
    """
    device, sweep = options.device, options.sweep
    cases: Sequence[str] = options.shapes or ("rmat",)
    if not options.shapes and device == "gpu":
        cases = (plan.BIG_SHAPE, *(plan.OTHER_SHAPES if sweep else ()))
    dtypes = options.dtypes or (DTYPES[:1] if sweep else DTYPES)
    ks = options.ks or (SWEEP if sweep else KS)
    every = (
        measurement
        for case in cases
        for width in options.widths or (plan.MAXK_WIDTH,)
        for measurement in _case(device, case, width, dtypes, [k for k in ks if k <= width], sweep)
    )
    return plan.narrowed(every, only=options.only)


def _case(
    device: str, case: str, width: int, dtypes: Sequence[str], ks: Sequence[int], sweep: bool
) -> Iterator[Measurement]:
    def make(impl: str, dtype: str, direction: plan.Pass, k: int | None = None) -> Measurement:
        return Measurement(case, impl, width, dtype, direction, k=k)

    for dtype in ("float32",) if device == "cpu" else dtypes:
        for impl in (plan.TORCH,) if device == "cpu" else plan.CUSPARSE:
            yield make(impl, dtype, "forward")
    for dtype in dtypes:
        for direction in plan.BOTH:
            yield make(plan.OURS, dtype, direction)
            if device == "gpu":
                yield make(plan.ORDERED, dtype, direction)
        if not sweep:
            yield make(plan.COPY, dtype, "select")
        for k in ks:
            for direction in plan.BOTH:
                for impl in OURS:
                    yield make(impl, dtype, direction, k)
            if sweep:
                continue
            yield make(plan.MAXK_DETERMINISTIC, dtype, "backward", k)
            yield make(plan.MAXK_WINDOWS_DETERMINISTIC, dtype, "backward", k)
            yield make(plan.MAXK_FLOAT, dtype, "forward", k)
            if dtype == "float32":
                yield make(plan.MAXK_PACKED, dtype, "forward", k)
            yield make(plan.MAXK, dtype, "select", k)
            # These do not get faster as k falls: one k tells all.
            if k == ks[0] and dtype == "float32":
                for impl in (*DROPPING, plan.TOP_K):
                    yield make(impl, dtype, "select", k)
                for direction in plan.BOTH:
                    yield make(plan.SORTED, dtype, direction, k)
                    if device == "gpu":
                        yield make(plan.SORTED + plan.FTZ, dtype, direction, k)


def set_baselines(rows: list[Row], device: str) -> None:
    """Writes each row's baseline and the ratio to it.

    A selection's is the copy of its input. A product's, forward or backward, is the best product
    of dense rows in its dtype: cuSPARSE's on a GPU; on the CPU ours, in the same direction.
    """
    for row in rows:
        same = ("case", "dtype", "pass")
        if row["pass"] == "select":
            impls = (plan.COPY,)
        elif device == "gpu":
            impls, same = plan.CUSPARSE, ("case", "dtype")
        else:
            impls = (plan.OURS,)
        width = row["shape"]["width"]
        dense = [other for other in rows if other["shape"].get("width") == width]
        dense = [other for other in dense if "k" not in other["shape"]]
        compare(row, dense, lambda other: other["impl"] in impls, same)  # noqa: B023
