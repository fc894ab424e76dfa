"""The targets: ratios that a run must reach, as one table, and their evaluation over the rows."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from benchmarks.harness import plan
from benchmarks.harness.options import EDGE_MODELS

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
class Target:
    """A statement that a run meets or misses.

    The ratio of the reference's `quantity` to ours is `at_least` so much in each case, or with
    `geometric_mean` in their mean; or, without a reference, our `quantity` in `unit` is `at_most`
    so much. `published_ms` is what the paper's kernels took on the same GPU and graph.
    """

    what: str
    suite: str
    device: Literal["cpu", "gpu"] | None
    cases: tuple[str, ...]
    ours: Pick
    reference: Pick | None = None
    at_least: float | None = None
    width: int | None = None
    geometric_mean: bool = False
    quantity: str = "ms"
    unit: float = 1.0
    at_most: float | None = None
    published_ms: float | None = None


_OURS = (plan.OURS, plan.ORDERED)
_MAXK = (plan.MAXK, plan.MAXK_WINDOWS)
_DETERMINISTIC = (plan.MAXK_DETERMINISTIC, plan.MAXK_WINDOWS_DETERMINISTIC)
_HALF = "bfloat16"
_SORTED = (plan.SORTED,)
_FASTEST_SORTED = (plan.SORTED + plan.FTZ,)  # with XLA's fastest flags


def _spmm() -> Iterator[Target]:
    def target(
        device: Literal["cpu", "gpu"], case: str, width: int, what: str, *picks: Any, **more: Any
    ) -> Target:
        cases = more.pop("cases", (case,))
        what = f"{case}, F = {width}: {what}"
        return Target(what, "spmm", device, cases, *picks, width=width, **more)

    ours, back = Pick((plan.OURS,)), Pick((plan.OURS,), direction="backward")
    for width, against_jax in ((64, 3.5), (256, 4.0)):
        at = ("cpu", "rmat", width)
        segment_sum = "JAX gather + sorted segment_sum"
        yield target(*at, "torch.sparse CSR", ours, Pick((plan.TORCH,)), 1.3)
        yield target(*at, segment_sum, ours, Pick((plan.SORTED,)), against_jax)
        jax_back = Pick((plan.SORTED,), direction="backward")
        yield target(*at, f"gradient of {segment_sum}", back, jax_back, 5.0)
    at = ("gpu", plan.BIG_SHAPE, 256)
    ours, half, back = Pick(_OURS), Pick(_OURS, _HALF), Pick(_OURS, direction="backward")
    half_back = Pick(_OURS, _HALF, "backward")
    cusparse = Pick(plan.CUSPARSE)
    jax_back = Pick(_SORTED, direction="backward")
    yield target(*at, "best cuSPARSE float32", ours, cusparse, 1.2)
    yield target(*at, "bfloat16: best cuSPARSE bfloat16", half, Pick(plan.CUSPARSE, _HALF), 1.0)
    yield target(*at, "backward within 15 % of forward", back, ours, 1 / 1.15)
    yield target(*at, "bfloat16 backward within 15 % of forward", half_back, half, 1 / 1.15)
    yield target(*at, "JAX sorted segment_sum", ours, Pick(_SORTED), 1.4)
    yield target(*at, "gradient of JAX sorted segment_sum", back, jax_back, 4.0)
    yield target(*at, "JAX unsorted segment_sum", ours, Pick((plan.UNSORTED,)), 15.0)
    for ours_, direction in ((ours, "forward"), (back, "backward")):
        flagged = Pick(_FASTEST_SORTED, direction=direction)
        yield target(*at, f"{direction}: JAX with its fastest flags", ours_, flagged, 1.0)
    for shape in plan.OTHER_SHAPES:
        yield target("gpu", shape, 256, "best cuSPARSE float32", ours, cusparse, 1.0)
    yield target(
        *("gpu", "geometric mean of the other shapes", 256, "best cuSPARSE float32"),
        *(ours, cusparse, 1.3),
        cases=plan.OTHER_SHAPES,
        geometric_mean=True,
    )


def _maxk() -> Iterator[Target]:
    dense = Pick((plan.OURS,))
    at: Any = ("maxk", "cpu", ("rmat",))
    yield Target("rmat, k = 32: our dense spmm", *at, Pick(_MAXK, k=32), dense, 2.0, 256)

    def target(what: str, ours: Pick, reference: Pick, at_least: float, **more: Any) -> Target:
        what = f"{plan.BIG_SHAPE}, k = {ours.k}: {what}"
        at: Any = ("maxk", "gpu", (plan.BIG_SHAPE,))
        return Target(what, *at, ours, reference, at_least, plan.MAXK_WIDTH, **more)

    # k, times as fast as cuSPARSE's best product of dense rows in that dtype, the paper's ms.
    tables = (
        ("forward", "float32", _MAXK, ((32, 4.6, 7.24), (16, 8.0, 4.95), (8, 10.0, 5.06))),
        ("forward", _HALF, _MAXK, ((32, 2.2, None), (16, 3.9, None), (8, 5.7, None))),
        (
            *("backward", "float32", (*_MAXK, *_DETERMINISTIC)),
            ((32, 4.0, 6.79), (16, 7.5, 2.79), (8, 11.0, 2.21)),
        ),
    )
    for direction, dtype, impls, rows in tables:
        for k, at_least, published_ms in rows:
            what = f"{direction}, {dtype}: best cuSPARSE {dtype}"
            ours, cusparse = Pick(impls, dtype, direction, k), Pick(plan.CUSPARSE, dtype)
            yield target(what, ours, cusparse, at_least, published_ms=published_ms)
    for k, at_least in ((32, 5.5), (16, 9.5), (8, 14.0)):
        what = "forward, packed float32: best cuSPARSE float32"
        yield target(what, Pick((plan.MAXK_PACKED,), k=k), Pick(plan.CUSPARSE), at_least)
    for dtype, at_least in (("float32", 2.5), (_HALF, 1.35)):
        for direction in plan.BOTH:
            what = f"{direction}, {dtype}: our dense spmm"
            ours = Pick(_MAXK, dtype, direction, 32)
            yield target(what, ours, Pick(_OURS, dtype, direction), at_least)
    what = "deterministic backward, bfloat16: our dense spmm"
    yield target(what, Pick(_DETERMINISTIC, _HALF, "backward", 32), Pick(_OURS, _HALF), 1.0)
    select = Pick((plan.MAXK,), direction="select", k=32)
    copy, top_k = (
        Pick((plan.COPY,), direction="select"),
        Pick((plan.TOP_K,), "float32", "select", 32),
    )
    what = "select, float32: copy of the input"
    yield target(what, select, copy, 1 / 1.2, published_ms=0.28)
    yield target("select, float32: jax.lax.top_k", select, top_k, 15.0)


def _attention() -> Iterator[Target]:
    from benchmarks.suites.attention import CPU_SHAPE, DEEP, STEP_SHAPES, plain_steps

    gpu: Any = ("attention", "gpu")
    for dtype, (direction, times) in itertools.product(
        ("float32", _HALF), (("forward", 1.4), ("backward", 2.2))
    ):
        what = f"4 heads of 64, {direction}, {dtype}: within {times} times our spmm"
        picks = Pick((plan.GAT,), dtype, direction), Pick((plan.OURS,), dtype), 1 / times
        yield Target(f"{plan.BIG_SHAPE}, {what}", *gpu, (plan.BIG_SHAPE,), *picks, 256)
    time, memory, pyg = "ms", "peak_bytes", (plan.PYG_EDGES,)
    ours = Pick((plan.OURS,), direction="step")
    steps = [("gpu", shape, model) for model in EDGE_MODELS for shape in STEP_SHAPES]
    steps += [("cpu", CPU_SHAPE, model) for model in EDGE_MODELS]
    for device, shape, model in steps:
        case, plain = f"{shape} {model}", plain_steps(model, device)
        fastest = ("plain JAX", plain, 5.0 if device == "gpu" else 2.0, time)
        compared = [fastest, ("peak memory of plain JAX", (plan.PLAIN,), 10.0, memory)]
        if device == "gpu":
            compared = [("PyG", pyg, 3.0, time), ("peak memory of PyG", pyg, 4.0, memory), fastest]
        for name, impls, at_least, quantity in compared:
            what, reference = f"{case} step: {name}", Pick(impls, direction="step")
            at: Any = ("attention", device, (case,))
            yield Target(what, *at, ours, reference, at_least, quantity=quantity)
    two, four = (f"{plan.BIG_SHAPE} gat{deep.label}" for deep in DEEP)
    for case, dtype, quantity, unit, at_most in (
        (two, "float32", memory, 1e9, 3.9),
        (four, "float32", time, 1.0, 230.0),
        (four, _HALF, time, 1.0, 130.0),
        (four, "float32", memory, 1e9, 8.0),
    ):
        what = "milliseconds" if quantity == time else "peak memory in GB"
        limits: Any = {"quantity": quantity, "unit": unit, "at_most": at_most}
        ours = Pick((plan.OURS,), dtype, "step")
        yield Target(f"{case} step, {dtype}: {what}", *gpu, (case,), ours, **limits)


def _steps() -> Iterator[Target]:
    from benchmarks.suites.training import STEP_REFERENCES

    ours, case = Pick((plan.OURS,), direction="step"), (plan.BIG_SHAPE,)
    at: Any = ("training", "gpu", case, ours)
    for what, impls, at_least in (
        ("the best of all others", STEP_REFERENCES, 1.3),
        ("PyG's best path", (plan.PYG_ADJ,), 2.0),
        ("plain JAX", (plan.SORTED,), 2.7),
    ):
        reference = Pick(impls, direction="step")
        yield Target(f"GraphSAGE step: {what}", *at, reference, at_least)
    limits: Any = {"quantity": "peak_bytes", "unit": 1e9, "at_most": 7.5}
    yield Target("GraphSAGE step: peak memory in GB", *at, **limits)
    relu = {"float32": {32: 2.2, 16: 3.0}, _HALF: {32: 1.35, 16: 1.9}}
    for model, dtype in itertools.product(("sage", "gcn", "gin"), relu):
        at = ("training-maxk", "gpu", (f"{plan.BIG_SHAPE} {model}",))
        for k, at_least in relu[dtype].items():
            what = f"{model}, MaxK {k}, {dtype}: our ReLU model"
            picks = Pick((plan.OURS,), dtype, "step", k), Pick((plan.OURS,), dtype, "step")
            yield Target(what, *at, *picks, at_least)
    at = ("training-maxk", "gpu", (f"{plan.BIG_SHAPE} sage",))
    for k, at_least in ((32, 5.0), (16, 7.0)):
        picks = Pick((plan.OURS,), direction="step", k=k), Pick((plan.PYG_ADJ,), direction="step")
        yield Target(f"sage, MaxK {k}, float32: PyG", *at, *picks, at_least)


def table() -> list[Target]:
    """All targets."""
    build = Pick((plan.OURS,), "int32", "build")
    limits: Any = {"quantity": "memory_ratio", "at_most": 3.0}
    what = "building 20 M edges: peak memory over the result's"
    graph = Target(what, "graph", None, ("rmat20m",), build, **limits)
    return [*_spmm(), *_maxk(), *_attention(), *_steps(), graph]


def evaluate(
    rows: Sequence[Row], suite: str, device: str, scale: float = 1.0
) -> list[dict[str, Any]]:
    """Each target of a suite and device with its value and `met`, `missed` or `not measured`.

    Graphs of another size than the targets speak of (`scale`) measure none of them.
    """
    return [
        _evaluate(target, rows if scale == 1 else [])
        for target in table()
        if target.suite == suite and target.device in (device, None)
    ]


def _evaluate(target: Target, rows: Sequence[Row]) -> dict[str, Any]:
    values = [_value(target, rows, case) for case in target.cases]
    result: dict[str, Any] = {
        "target": target.what,
        "at_least": target.at_least,
        "at_most": target.at_most,
    }
    if target.published_ms is not None:
        result["published_ms"] = target.published_ms
    if len(target.cases) == 1:
        best = target.ours.best(rows, target.suite, target.cases[0], target.width)
        result |= {"impl": best and best["impl"], "ms": best and best["ms"]}
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {**result, "value": None, "status": "not measured"}
    if target.geometric_mean:
        value = math.exp(sum(map(math.log, known)) / len(known))
    else:
        value = min(known) if target.at_least is not None else max(known)
    met = (
        value >= target.at_least if target.at_least is not None else value <= (target.at_most or 0)
    )
    return {**result, "value": round(value, 3), "status": "met" if met else "missed"}


def _value(target: Target, rows: Sequence[Row], case: str) -> float | None:
    ours = target.ours.best(rows, target.suite, case, target.width)
    value = None if ours is None else ours.get(target.quantity)
    if value is None or target.reference is None:
        return None if value is None else value / target.unit
    reference = target.reference.best(rows, target.suite, case, target.width)
    compared = None if reference is None else reference.get(target.quantity)
    return None if compared is None else compared / value
