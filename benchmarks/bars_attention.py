"""The bars of the suite `attention`: its operation, steps, and their memory."""

from __future__ import annotations

from benchmarks import attention_plan, plan
from benchmarks.bar import Bar, Pick
from benchmarks.options import MODELS

_SUITE = "attention"
# At most so many times our product of the same width and dtype.
_OPERATION = {"forward": 1.4, "backward": 2.2}
_MODELS = MODELS[_SUITE]


def bars() -> list[Bar]:
    return [*_operations(), *_steps_gpu(), *_memory(), *_steps_cpu()]


def _operations() -> list[Bar]:
    return [
        Bar(
            f"reddit, 4 heads of 64, {direction}, {dtype}: within {times} times our spmm",
            _SUITE,
            "gpu",
            Pick((plan.GAT,), dtype, direction),
            (plan.BIG_SHAPE,),
            Pick((plan.OURS,), dtype),
            1 / times,
            plan.MAXK_WIDTH,
        )
        for dtype in ("float32", "bfloat16")
        for direction, times in _OPERATION.items()
    ]


def _step(
    device: str,
    case: str,
    model: str,
    reference: str,
    at_least: float,
    quantity: str | None = None,
) -> Bar:
    """A step's time, or another quantity of it, against a reference's."""
    what = "peak memory of " if quantity else ""
    return Bar(
        f"{case}, {model} step: {what}{reference}",
        _SUITE,
        "gpu" if device == "gpu" else "cpu",
        Pick((plan.OURS,), direction="step"),
        (f"{case} {model}",),
        Pick((reference,), direction="step"),
        at_least,
        quantity=quantity,
    )


def _steps_gpu() -> list[Bar]:
    return [
        bar
        for model in _MODELS
        for case in attention_plan.STEP_SHAPES
        for bar in (
            _step("gpu", case, model, plan.PYG_EDGES, 3.0),
            _step("gpu", case, model, plan.PYG_EDGES, 4.0, "peak_bytes"),
            _step("gpu", case, model, plan.PLAIN, 5.0),
        )
    ]


def _steps_cpu() -> list[Bar]:
    return [
        bar
        for model in _MODELS
        for bar in (
            _step("cpu", attention_plan.CPU_SHAPE, model, plan.PLAIN, 2.0),
            _step("cpu", attention_plan.CPU_SHAPE, model, plan.PLAIN, 10.0, "peak_bytes"),
        )
    ]


def _memory() -> list[Bar]:
    two, four = (f"{plan.BIG_SHAPE} gat{deep.label}" for deep in attention_plan.DEEP)

    def at_most(case: str, dtype: str, quantity: str, unit: float, bound: float) -> Bar:
        what = {"peak_bytes": "peak memory in GB", "ms": "milliseconds"}[quantity]
        ours = Pick((plan.OURS,), dtype, "step")
        return Bar(
            f"{case} step, {dtype}: {what}",
            _SUITE,
            "gpu",
            ours,
            (case,),
            quantity=quantity,
            unit=unit,
            at_most=bound,
        )

    return [
        at_most(two, "float32", "peak_bytes", 1e9, 3.9),
        at_most(four, "float32", "ms", 1.0, 230.0),
        at_most(four, "bfloat16", "ms", 1.0, 130.0),
        at_most(four, "float32", "peak_bytes", 1e9, 8.0),
    ]
