"""The suite `attention`: models whose messages belong to edges, and none of them stored.

Parts: `kernels`, attention and its gradients beside our product of the same width; `steps`, a
full-batch training step of two layers against PyG and the same model in plain JAX; `memory`, the
step of attention models on the Reddit-shaped graph, where messages would not fit; and, if asked
for, `ablation`, the step of two layers with one optimisation more from row to row, as in
"Understanding GNN Computational Graph" (Zhang et al., MLSys 2022, section 7): on the edges,
reorganised, fused, recomputed; and `bytes`, what each of these moves, from hardware counters.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import graphs, plan, spmm, step_traffic, training
from benchmarks.attention_plan import (
    ABLATION,
    ABLATION_LABEL,
    ABLATION_MODELS,
    AGNN_WIDTH,
    CPU_SHAPE,
    DEEP,
    PARTS,
    QUICK_WIDTHS,
    REFERENCES,
    STEP_SHAPES,
    STEP_WIDTHS,
    measurements,
)
from benchmarks.options import MODELS, Options
from benchmarks.record import Record, Row
from benchmarks.training import Setting


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the parts one after the other."""
    record.compare = set_baselines
    parts = options.parts or PARTS[options.device]

    def stored(case: str) -> Path:
        return graphs.store_all([case], options.cache or workspace, options.scale)[case]

    if "kernels" in parts:
        chosen = measurements(options)
        spmm.run_plan(chosen, options, record, workspace, operator.attrgetter("case"))
    for case, widths, settings in steps(options, parts):
        groups = training.with_oracles([[setting] for setting in settings], options)
        if groups:
            own = workspace / f"step {case}{settings[0].label}"
            own.mkdir()
            training.run_groups(groups, stored(case), widths, options, record, own)
    for case, widths, settings in steps(options, ["ablation"] if "bytes" in parts else []):
        for model, same in itertools.groupby(settings, operator.attrgetter("model")):
            for chosen in training.narrowed([list(same)], options):
                own = workspace / f"bytes {case} {model}"
                own.mkdir()
                step_traffic.run(chosen, stored(case), widths, options, record, own)


def steps(
    options: Options, parts: Sequence[str]
) -> Iterator[tuple[str, tuple[int, ...], list[Setting]]]:
    """Graphs, widths and what runs on them, the oracles aside."""
    shapes, models = options.shapes, options.models or MODELS["attention"]
    default = STEP_SHAPES if options.device == "gpu" else (CPU_SHAPE,)
    widths = QUICK_WIDTHS if options.quick else STEP_WIDTHS
    if "ablation" in parts:
        for case in shapes or default:
            ablated = [model for model in models if model in ABLATION_MODELS]
            yield case, widths, [s for model in ablated for s in _ablation_of(model)]
    if "steps" in parts:
        for case in shapes or default:
            chosen = [s for model in models for s in _of_model(model, options.device)]
            yield case, widths, [s for s in chosen if s.dtype in (options.dtypes or plan.DTYPES)]
    if "memory" in parts and "gat" in models:
        case = plan.BIG_SHAPE if not shapes or plan.BIG_SHAPE in shapes else shapes[0]
        for deep in DEEP:
            widths = deep.widths
            if options.quick:
                widths = (QUICK_WIDTHS[0], *[QUICK_WIDTHS[1]] * (len(widths) - 2), QUICK_WIDTHS[2])
            settings = [
                Setting(plan.OURS, "gat", dtype=dtype, heads=plan.ATTENTION_HEADS, label=deep.label)
                for dtype in deep.dtypes
                if not options.dtypes or dtype in options.dtypes
            ]
            if settings:
                yield case, widths, settings


def _ablation_of(model: str) -> Iterator[Setting]:
    for impl in ABLATION:
        yield dataclasses.replace(_setting(model), impl=impl, label=ABLATION_LABEL)


def _of_model(model: str, device: str) -> Iterator[Setting]:
    for impl in (plan.OURS, *REFERENCES[device]):
        yield dataclasses.replace(_setting(model), impl=impl)
        if impl == plan.PLAIN and model == "edgeconv":
            yield dataclasses.replace(_setting(model), impl=plan.PLAIN_NODES)


def _setting(model: str) -> Setting:
    """Our step of a model, in its sizes."""
    heads = plan.ATTENTION_HEADS if model in ("gat", "gatv2") else None
    return Setting(plan.OURS, model, heads=heads, hidden=AGNN_WIDTH if model == "agnn" else None)


def set_baselines(rows: list[Row]) -> None:
    """The baseline is our product of dense rows, of a step PyG, else plain JAX, else ours; of an
    ablation what is on the edges, and of its bytes as well, whose ratio is that of HBM's."""
    for row in rows:
        if row["pass"] in ("step", step_traffic.PASS):
            impls = (plan.PYG_EDGES, plan.PLAIN, plan.PLAIN_EDGES, plan.OURS)
            direction = row["pass"]
        else:
            impls, direction = (plan.OURS,), "forward"
        same = [
            other
            for other in rows
            if other["impl"] in impls
            and other["pass"] == direction
            and other["accurate"]
            and other["case"] == row["case"]
            and (direction != "forward" or other["dtype"] == row["dtype"])
        ]
        if same:
            best = min(same, key=lambda other: impls.index(other["impl"]))
            compared = "hbm_bytes" if direction == step_traffic.PASS else "ms"
            if best[compared] and row[compared]:
                row["baseline"] = best["impl"]
                row["ratio"] = round(best[compared] / row[compared], 3)
