"""The bars: ratios that a run must reach, as data, and their evaluation over the rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from benchmarks import bars_attention, bars_maxk, plan
from benchmarks.bar import Bar, Pick, Row


def _spmm_cpu() -> list[Bar]:
    ours, back = Pick((plan.OURS,)), Pick((plan.OURS,), direction="backward")
    bars = []
    for width, against_jax in ((64, 3.5), (256, 4.0)):
        common = {"suite": "spmm", "device": "cpu", "cases": ("rmat",), "width": width}
        bars += [
            Bar(
                f"rmat, F = {width}: torch.sparse CSR",
                ours=ours,
                reference=Pick((plan.TORCH,)),
                at_least=1.3,
                **common,
            ),
            Bar(
                f"rmat, F = {width}: JAX gather + sorted segment_sum",
                ours=ours,
                reference=Pick((plan.SORTED,)),
                at_least=against_jax,
                **common,
            ),
            Bar(
                f"rmat, F = {width}: gradient of JAX gather + sorted segment_sum",
                ours=back,
                reference=Pick((plan.SORTED,), direction="backward"),
                at_least=5.0,
                **common,
            ),
        ]
    return bars


def _spmm_gpu() -> list[Bar]:
    mine = (plan.OURS, plan.ORDERED)
    ours, half = Pick(mine), Pick(mine, dtype="bfloat16")
    back = Pick(mine, direction="backward")
    cusparse = Pick(plan.CUSPARSE)
    jax_back = Pick((plan.SORTED,), direction="backward")
    cusparse_half = Pick(plan.CUSPARSE, dtype="bfloat16")

    def reddit(what: str, ours: Pick, reference: Pick, at_least: float) -> Bar:
        cases = (plan.BIG_SHAPE,)
        return Bar(f"reddit, F = 256: {what}", "spmm", "gpu", ours, cases, reference, at_least, 256)

    return [
        reddit("best cuSPARSE float32", ours, cusparse, 1.2),
        reddit("bfloat16 against best cuSPARSE float32", half, cusparse, 2.3),
        reddit("bfloat16 against best cuSPARSE bfloat16", half, cusparse_half, 1.0),
        reddit("backward within 15 % of forward", back, ours, 1 / 1.15),
        reddit(
            "bfloat16 backward within 15 % of forward",
            dataclasses.replace(half, direction="backward"),
            half,
            1 / 1.15,
        ),
        reddit("JAX sorted segment_sum", ours, Pick((plan.SORTED,)), 1.4),
        reddit("gradient of JAX sorted segment_sum", back, jax_back, 4.0),
        reddit("JAX unsorted segment_sum", ours, Pick((plan.UNSORTED,)), 15.0),
        *(
            Bar(
                f"{shape}, F = 256: best cuSPARSE float32",
                "spmm",
                "gpu",
                ours,
                (shape,),
                cusparse,
                1.0,
                256,
            )
            for shape in plan.OTHER_SHAPES
        ),
        Bar(
            "geometric mean of the other shapes: best cuSPARSE float32",
            "spmm",
            "gpu",
            ours,
            plan.OTHER_SHAPES,
            cusparse,
            1.3,
            256,
            geometric_mean=True,
        ),
    ]


def _training() -> list[Bar]:
    ours = Pick((plan.OURS,), dtype="float32", direction="step")
    cases = (plan.BIG_SHAPE,)
    return [
        Bar(
            "GraphSAGE step: PyG's best path",
            "training",
            "gpu",
            ours,
            cases,
            Pick((plan.PYG_ADJ,), direction="step"),
            2.0,
        ),
        Bar(
            "GraphSAGE step: plain JAX",
            "training",
            "gpu",
            ours,
            cases,
            Pick((plan.SORTED,), direction="step"),
            2.7,
        ),
        Bar(
            "GraphSAGE step: peak memory in GB",
            "training",
            "gpu",
            ours,
            cases,
            quantity="peak_bytes",
            unit=1e9,
            at_most=7.5,
        ),
    ]


def _graph() -> list[Bar]:
    ours = Pick((plan.OURS,), dtype="int32", direction="build")
    return [
        Bar(
            "building 20 M edges: peak memory over the result's",
            "graph",
            None,
            ours,
            ("rmat20m",),
            quantity="memory_ratio",
            at_most=3.0,
        ),
    ]


BARS: tuple[Bar, ...] = (
    *_spmm_cpu(),
    *_spmm_gpu(),
    *bars_maxk.operations_cpu(),
    *bars_maxk.operations_gpu(),
    *bars_attention.bars(),
    *_training(),
    *bars_maxk.steps(),
    *_graph(),
)


def evaluate(
    rows: Sequence[Row], suite: str, device: str, scale: float = 1.0
) -> list[dict[str, Any]]:
    """Each bar of a suite and device with its value and `met`, `missed` or `not measured`.

    Graphs of another size than the bars speak of (`scale`) measure none of them.
    """
    return [
        _evaluate(bar, rows if scale == 1 else [])
        for bar in BARS
        if bar.suite == suite and bar.device in (device, None)
    ]


def _evaluate(bar: Bar, rows: Sequence[Row]) -> dict[str, Any]:
    values = [_value(bar, rows, case) for case in bar.cases]
    result: dict[str, Any] = {"bar": bar.what, "at_least": bar.at_least, "at_most": bar.at_most}
    if bar.published_ms is not None:
        result["published_ms"] = bar.published_ms
    if len(bar.cases) == 1:
        best = bar.ours.best(rows, bar.suite, bar.cases[0], bar.width)
        result |= {"impl": best and best["impl"], "ms": best and best["ms"]}
    if any(value is None for value in values):
        return {**result, "value": None, "status": "not measured"}
    known = [value for value in values if value is not None]
    if bar.geometric_mean:
        value = math.exp(sum(map(math.log, known)) / len(known))
    else:
        value = min(known) if bar.at_least is not None else max(known)
    met = value >= bar.at_least if bar.at_least is not None else value <= (bar.at_most or 0)
    return {**result, "value": round(value, 3), "status": "met" if met else "missed"}


def _value(bar: Bar, rows: Sequence[Row], case: str) -> float | None:
    ours = bar.ours.best(rows, bar.suite, case, bar.width)
    if ours is None:
        return None
    quantity = bar.quantity or "ms"
    value = ours.get(quantity)
    if bar.reference is None:
        return None if value is None else value / bar.unit
    reference = bar.reference.best(rows, bar.suite, case, bar.width)
    compared = None if reference is None else reference.get(quantity)
    return None if value is None or compared is None else compared / value
