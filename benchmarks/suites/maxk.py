"""The suite `maxk`: selection (also after dropout), aggregation of the kept entries, its gradient.

Beside them, in the same run: the dense product that they take the place of (cuSPARSE's or
`torch.sparse`'s, and ours), what plain JAX offers, and the copy of the input matrix.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import plan
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare, flat
from benchmarks.suites import spmm

KS = (32, 16, 8, 64)
SWEEP = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192)
WIDE = (256, 384, 512, 1024)
OURS = (plan.MAXK, plan.MAXK_WINDOWS)
# On a GPU, where there are three engines.
CHOICE = (plan.MAXK_DENSE, plan.MAXK_CHOSEN)
OF_WEIGHTS = (plan.MAXK_OF_WEIGHTS, plan.MAXK_WINDOWS_OF_WEIGHTS)
DETERMINISTIC = (plan.MAXK_DETERMINISTIC, plan.MAXK_WINDOWS_DETERMINISTIC)
DROPPING = (plan.MAXK_DROPOUT, plan.MAXK_BERNOULLI)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    baselines = set_entry_ratios if options.wide else set_baselines
    record.compare = functools.partial(baselines, device=options.device)
    spmm.run_plan(measurements(options), options, record, workspace)


def measurements(options: Options) -> list[Measurement]:
    """The plan in the order in which it runs: what is compared with first, then k by k.

    The sweep has many k in float32, on every shape, without what does not depend on the graph. Wide
    rows have k = 32 and an eighth of their width.
    """
    device, sweep = options.device, options.sweep
    cases: Sequence[str] = options.shapes or ("rmat",)
    if not options.shapes and device == "gpu":
        cases = (plan.BIG_SHAPE, *(plan.OTHER_SHAPES if sweep else ()))
    if options.wide:
        wide = (
            m
            for case in cases
            for width in options.widths or WIDE
            for k in options.ks or dict.fromkeys((min(32, width), width // 8))
            for m in _wide(case, width, options.dtypes or ("float32",), k)
        )
        return plan.narrowed(wide, only=options.only)
    dtypes = options.dtypes or (("float32",) if sweep else plan.HALF_TOO)
    ks = options.ks or (SWEEP if sweep else KS)
    every = (
        measurement
        for case in cases
        for width in options.widths or (plan.MAXK_WIDTH,)
        for measurement in _case(device, case, width, dtypes, [k for k in ks if k <= width], sweep)
    )
    return plan.narrowed(every, only=options.only)


def _case(
    device: str | None, case: str, width: int, dtypes: Sequence[str], ks: Sequence[int], sweep: bool
) -> Iterator[Measurement]:
    gpu = device == "gpu"

    def block(
        dtype: str,
        impls: Sequence[str],
        directions: Sequence[plan.Pass],
        k: int | None = None,
        weighted: bool = False,
    ) -> list[Measurement]:
        pairs = itertools.product(directions, impls)
        return [Measurement(case, impl, width, dtype, way, weighted, k) for way, impl in pairs]

    for dtype in dtypes if gpu else ("float32",):
        yield from block(dtype, plan.CUSPARSE if gpu else (plan.TORCH,), plan.FORWARD)
    for dtype in dtypes:
        yield from block(dtype, (plan.OURS, plan.ORDERED) if gpu else (plan.OURS,), plan.BOTH)
        if not sweep:
            yield from block(dtype, (plan.COPY,), ("select",))
        for k in ks:
            yield from block(dtype, (*OURS, *CHOICE) if gpu else OURS, plan.BOTH, k)
            if sweep:
                continue
            yield from block(dtype, (*OURS, *CHOICE) if gpu else OURS, plan.BOTH, k, weighted=True)
            yield from block(dtype, OF_WEIGHTS, ("backward",), k, weighted=True)
            yield from block(dtype, DETERMINISTIC, ("backward",), k)
            packed = (plan.MAXK_PACKED,) if dtype == "float32" and width <= 1024 else ()
            yield from block(dtype, (plan.MAXK_FLOAT, *packed), plan.FORWARD, k)
            yield from block(dtype, (plan.MAXK_FLOAT, *packed), plan.FORWARD, k, weighted=True)
            yield from block(dtype, (plan.MAXK,), ("select",), k)
            # These do not get faster as k falls: one k tells all.
            if k == ks[0] and dtype == "float32":
                yield from block(dtype, (*DROPPING, plan.TOP_K), ("select",), k)
                plain = (plan.SORTED, plan.SORTED + plan.FTZ) if gpu else (plan.SORTED,)
                yield from block(dtype, plain, plan.BOTH, k)


def _wide(case: str, width: int, dtypes: Sequence[str], k: int) -> Iterator[Measurement]:
    for dtype in dtypes:
        for impl, directions in (
            (plan.MAXK, plan.BOTH),
            (plan.MAXK_WINDOWS, plan.BOTH),
            (plan.MAXK_PACKED, plan.FORWARD),
        ):
            for direction in directions:
                yield Measurement(case, impl, width, dtype, direction, False, k)


def set_entry_ratios(rows: list[Row], device: str) -> None:
    """Writes each row's baseline, the same product of rows of 256 columns at k = 32, and the ratio
    of their times for a kept entry."""
    for row in rows:
        narrow = {"impl": row["impl"], "width": plan.MAXK_WIDTH, "k": 32}
        if compare(row, rows, narrow, ("case", "dtype", "pass")):
            row["ratio"] = round(row["ratio"] * flat(row)["k"] / 32, 3)


def set_baselines(rows: list[Row], device: str) -> None:
    """Writes each row's baseline and the ratio to it.

    A selection's is the copy of its input. A product's, forward or backward, is the best product
    of dense rows in its dtype: cuSPARSE's on a GPU; on the CPU ours, in the same direction. That of
    one with edge weights is the same one without.
    """
    for row in rows:
        own = ("case", "dtype", "width")
        if row["case"].endswith(" weighted"):
            case = row["case"].removesuffix(" weighted")
            impl = row["impl"].removesuffix(" of the weights")
            compare(row, rows, {"impl": impl, "case": case}, ("dtype", "width", "pass", "k"))
            continue
        if row["pass"] == "select":
            compare(row, rows, {"impl": plan.COPY}, (*own, "pass"))
        elif device == "gpu":
            compare(row, rows, {"impl": plan.CUSPARSE}, own)
        else:
            compare(row, rows, {"impl": plan.OURS}, (*own, "pass"))
