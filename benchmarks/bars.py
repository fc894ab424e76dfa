"""The bars: ratios that a run must reach, as data, and their evaluation over the rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from benchmarks import plan

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pick:
    """Which rows: all given fields equal; `impls` lists alternatives, the fastest counts.

    Without `k` those of dense rows.
    """

    impls: tuple[str, ...]
    dtype: str = "float32"
    direction: str = "forward"
    k: int | None = None

    def best(self, rows: Sequence[Row], suite: str, case: str, width: int | None) -> Row | None:
        """The fastest such row that is accurate."""
        found = [
            row
            for row in rows
            if row["suite"] == suite
            and row["case"] == case
            and row["impl"] in self.impls
            and row["dtype"] == self.dtype
            and row["pass"] == self.direction
            and row["shape"].get("k") == self.k
            and (width is None or row["shape"].get("width") == width)
            and row["accurate"]
        ]
        return min(found, key=lambda row: row["ms"], default=None)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A statement that a run meets or misses.

    Attributes:
        what: the sentence.
        suite, device: where it applies.
        cases: graphs; each must reach `at_least`, or with `geometric_mean` their mean must.
        width: of the features.
        ours, reference: the ratio is the time of `reference` over that of `ours`.
        at_least: the bar on that ratio.
        quantity, at_most: instead of a ratio, a bar on a field of our row, in `unit`.
        published_ms: what the kernels of the paper took on the same GPU and graph, to be shown
            beside ours.
    """

    what: str
    suite: str
    device: Literal["cpu", "gpu"] | None
    ours: Pick
    cases: tuple[str, ...]
    reference: Pick | None = None
    at_least: float | None = None
    width: int | None = None
    geometric_mean: bool = False
    quantity: str | None = None
    unit: float = 1.0
    at_most: float | None = None
    published_ms: float | None = None


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
    ours, half = Pick((plan.OURS,)), Pick((plan.OURS,), dtype="bfloat16")
    back = Pick((plan.OURS,), direction="backward")
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


def _maxk_cpu() -> list[Bar]:
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
_MAXK_FORWARD = ((32, 4.6, 7.24), (16, 8.0, 4.95), (8, 10.0, 5.06))
_MAXK_FORWARD_HALF = ((32, 5.5, None), (16, 9.5, None), (8, 14.0, None))
_MAXK_BACKWARD = ((32, 4.0, 6.79), (16, 7.5, 2.79), (8, 11.0, 2.21))
_MAXK_DENSE = {"float32": 2.5, "bfloat16": 1.35}
_MAXK = (plan.MAXK, plan.MAXK_WINDOWS)


def _maxk_gpu() -> list[Bar]:
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
        impls = _MAXK if direction == "forward" else (*_MAXK, plan.MAXK_DETERMINISTIC)
        return [
            reddit(what, Pick(impls, dtype, direction, k), cusparse, at_least, published_ms)
            for k, at_least, published_ms in table
        ]

    return [
        *against_cusparse("float32", "forward", _MAXK_FORWARD),
        *against_cusparse(half, "forward", _MAXK_FORWARD_HALF),
        *against_cusparse("float32", "backward", _MAXK_BACKWARD),
        *(
            reddit(
                f"{direction}, {dtype}: our dense spmm",
                Pick(_MAXK, dtype, direction, 32),
                Pick((plan.OURS,), dtype, direction),
                at_least,
            )
            for dtype, at_least in _MAXK_DENSE.items()
            for direction in both
        ),
        reddit(
            "deterministic backward, bfloat16: our dense spmm",
            Pick((plan.MAXK_DETERMINISTIC,), half, "backward", 32),
            Pick((plan.OURS,), half),
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
_MAXK_STEP = {"float32": {32: 2.2, 16: 3.0}, "bfloat16": {32: 1.35, 16: 1.9}}
# ... as PyG's.
_MAXK_STEP_PYG = {32: 5.0, 16: 7.0}


def _maxk_training() -> list[Bar]:
    def step(model: str, dtype: str, k: int, what: str, reference: Pick, at_least: float) -> Bar:
        name = f"{model}, MaxK {k}, {dtype}: {what}"
        ours = Pick((plan.OURS,), dtype, "step", k)
        cases = (f"{plan.BIG_SHAPE} {model}",)
        return Bar(name, "training-maxk", "gpu", ours, cases, reference, at_least)

    return [
        *(
            step(model, dtype, k, "our ReLU model", Pick((plan.OURS,), dtype, "step"), at_least)
            for model in ("sage", "gcn", "gin")
            for dtype, table in _MAXK_STEP.items()
            for k, at_least in table.items()
        ),
        *(
            step("sage", "float32", k, "PyG", Pick((plan.PYG_ADJ,), direction="step"), at_least)
            for k, at_least in _MAXK_STEP_PYG.items()
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
    *_maxk_cpu(),
    *_maxk_gpu(),
    *_training(),
    *_maxk_training(),
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
    if bar.quantity is not None:
        value = ours.get(bar.quantity)
        return None if value is None else value / bar.unit
    if bar.reference is None:
        return None
    reference = bar.reference.best(rows, bar.suite, case, bar.width)
    return None if reference is None else reference["ms"] / ours["ms"]
