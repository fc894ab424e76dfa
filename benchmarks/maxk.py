"""The suite `maxk`: selection (also after dropout), aggregation of the kept entries, its gradient.

Beside them, in the same run: the dense product that they take the place of (cuSPARSE's or
`torch.sparse`'s, and ours), what plain JAX offers, and the copy of the input matrix.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import plan, spmm
from benchmarks.options import Options
from benchmarks.plan import Measurement
from benchmarks.record import Record, Row

KS = (32, 16, 8, 64)
SWEEP = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192)
DTYPES = ("float32", "bfloat16")

OURS = (plan.MAXK, plan.MAXK_WINDOWS)
DROPPING = (plan.MAXK_DROPOUT, plan.MAXK_BERNOULLI, plan.MAXK_PHILOX)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    chosen = measurements(
        options.device,
        cases=options.shapes,
        widths=options.widths,
        dtypes=options.dtypes,
        only=options.only,
        ks=options.ks,
        sweep=options.sweep,
    )
    spmm.run_plan(chosen, options, record, workspace, operator.attrgetter("case"))


def measurements(
    device: str,
    *,
    cases: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    ks: Sequence[int] | None = None,
    sweep: bool = False,
) -> list[Measurement]:
    """The plan in the order in which it runs: what is compared with first, then k by k.

    Args:
        device: `"cpu"` or `"gpu"`.
        cases: graphs; by default the Reddit-shaped one, R-MAT on the CPU.
        widths, dtypes, ks: instead of the suite's own.
        only: implementations to keep, by part of their name.
        sweep: many k in float32, on every shape, without what does not depend on the graph.
    """
    if not cases:
        cases = ("rmat",) if device == "cpu" else (plan.BIG_SHAPE,)
        if sweep and device == "gpu":
            cases = (*cases, *plan.OTHER_SHAPES)
    dtypes = dtypes or (DTYPES[:1] if sweep else DTYPES)
    ks = ks or (SWEEP if sweep else KS)
    every = (
        measurement
        for case in cases
        for width in widths or (plan.MAXK_WIDTH,)
        for measurement in _case(device, case, width, dtypes, [k for k in ks if k <= width], sweep)
    )
    return list(
        dict.fromkeys(
            m for m in every if not only or any(part.lower() in m.impl.lower() for part in only)
        )
    )


def _case(
    device: str, case: str, width: int, dtypes: Sequence[str], ks: Sequence[int], sweep: bool
) -> Iterator[Measurement]:
    def make(impl: str, dtype: str, direction: plan.Pass, k: int | None = None) -> Measurement:
        return Measurement(case, impl, width, dtype, direction, k=k)

    for impl in (plan.TORCH,) if device == "cpu" else plan.CUSPARSE:
        yield make(impl, "float32", "forward")
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
                for impl in DROPPING:
                    yield make(impl, dtype, "select", k)
                yield make(plan.TOP_K, dtype, "select", k)
                for direction in plan.BOTH:
                    yield make(plan.SORTED, dtype, direction, k)


def set_baselines(rows: list[Row], device: str) -> None:
    """Writes each row's baseline and the ratio to it.

    A selection's is the copy of its input. A product's, forward or backward, is the best float32
    product of dense rows: cuSPARSE's on a GPU; on the CPU ours, in the same dtype and direction.
    """
    for row in rows:
        if row["pass"] == "select":
            impls, same = (plan.COPY,), ("pass", "dtype")
        elif device == "gpu":
            impls, same = plan.CUSPARSE, ()
        else:
            impls, same = (plan.OURS,), ("pass", "dtype")
        references = [
            other
            for other in rows
            if other["impl"] in impls
            and "k" not in other["shape"]
            and other["accurate"]
            and other["case"] == row["case"]
            and other["shape"]["width"] == row["shape"]["width"]
            and all(other[key] == row[key] for key in same)
        ]
        if references:
            best = min(references, key=operator.itemgetter("ms"))
            row["baseline"], row["ratio"] = best["impl"], round(best["ms"] / row["ms"], 3)
