"""The bars of MaxK: its operations, and the training steps made of them."""

from __future__ import annotations

from typing import Any

from benchmarks import plan
from benchmarks.bar import Bar, Pick


def operations_cpu() -> list[Bar]:
    return [
        Bar(
            "rmat, k = 32: our dense spmm",
            "maxk",
            "cpu",
            Pick(_MAXK, k=32),
            ("rmat",),
            Pick((plan.OURS,)),
            2.0,
            plan.MAXK_WIDTH,
        )
    ]


# (k, at least so many times cuSPARSE's best float32 product, the paper's kernels' ms)
_FORWARD = ((32, 4.6, 7.24), (16, 8.0, 4.95), (8, 10.0, 5.06))
_FORWARD_HALF = ((32, 5.5, None), (16, 9.5, None), (8, 14.0, None))
_BACKWARD = ((32, 4.0, 6.79), (16, 7.5, 2.79), (8, 11.0, 2.21))
_DENSE = {"float32": 2.5, "bfloat16": 1.35}
_OURS = (plan.OURS, plan.ORDERED)
_MAXK = (plan.MAXK, plan.MAXK_WINDOWS)
_DETERMINISTIC = (plan.MAXK_DETERMINISTIC, plan.MAXK_WINDOWS_DETERMINISTIC)


def operations_gpu() -> list[Bar]:
    half, both = "bfloat16", plan.BOTH

    def reddit(
        what: str,
        ours: Pick,
        reference: Pick,
        at_least: float,
        published_ms: float | None = None,
    ) -> Bar:
        width, cases = plan.MAXK_WIDTH, (plan.BIG_SHAPE,)
        return Bar(
            f"reddit, k = {ours.k}: {what}",
            "maxk",
            "gpu",
            ours,
            cases,
            reference,
            at_least,
            width,
            published_ms=published_ms,
        )

    def against_cusparse(dtype: str, direction: str, table: Any) -> list[Bar]:
        what, cusparse = f"{direction}, {dtype}: best cuSPARSE float32", Pick(plan.CUSPARSE)
        impls = _MAXK if direction == "forward" else (*_MAXK, *_DETERMINISTIC)
        return [
            reddit(what, Pick(impls, dtype, direction, k), cusparse, at_least, published_ms)
            for k, at_least, published_ms in table
        ]

    return [
        *against_cusparse("float32", "forward", _FORWARD),
        *against_cusparse(half, "forward", _FORWARD_HALF),
        *(
            reddit(
                "forward, packed float32: best cuSPARSE float32",
                Pick((plan.MAXK_PACKED,), "float32", "forward", k),
                Pick(plan.CUSPARSE),
                at_least,
            )
            for k, at_least, _ in _FORWARD_HALF
        ),
        *against_cusparse("float32", "backward", _BACKWARD),
        *(
            reddit(
                f"{direction}, {dtype}: our dense spmm",
                Pick(_MAXK, dtype, direction, 32),
                Pick(_OURS, dtype, direction),
                at_least,
            )
            for dtype, at_least in _DENSE.items()
            for direction in both
        ),
        reddit(
            "deterministic backward, bfloat16: our dense spmm",
            Pick(_DETERMINISTIC, half, "backward", 32),
            Pick(_OURS, half),
            1.0,
        ),
        reddit(
            "select, float32: copy of the input",
            Pick((plan.MAXK,), direction="select", k=32),
            Pick((plan.COPY,), direction="select"),
            1 / 1.2,
            0.28,
        ),
        reddit(
            "select, float32: jax.lax.top_k",
            Pick((plan.MAXK,), direction="select", k=32),
            Pick((plan.TOP_K,), direction="select", k=32),
            15.0,
        ),
    ]


# At least so many times as fast as our model with ReLU, by k.
_STEP = {"float32": {32: 2.2, 16: 3.0}, "bfloat16": {32: 1.35, 16: 1.9}}
# ... as PyG's.
_STEP_PYG = {32: 5.0, 16: 7.0}


def steps() -> list[Bar]:
    def step(model: str, dtype: str, k: int, what: str, reference: Pick, at_least: float) -> Bar:
        name = f"{model}, MaxK {k}, {dtype}: {what}"
        ours = Pick((plan.OURS,), dtype, "step", k)
        cases = (f"{plan.BIG_SHAPE} {model}",)
        return Bar(name, "training-maxk", "gpu", ours, cases, reference, at_least)

    return [
        *(
            step(model, dtype, k, "our ReLU model", Pick((plan.OURS,), dtype, "step"), at_least)
            for model in ("sage", "gcn", "gin")
            for dtype, table in _STEP.items()
            for k, at_least in table.items()
        ),
        *(
            step("sage", "float32", k, "PyG", Pick((plan.PYG_ADJ,), direction="step"), at_least)
            for k, at_least in _STEP_PYG.items()
        ),
    ]
