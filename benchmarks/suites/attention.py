"""The suite `attention`: models whose messages belong to edges, and none of them stored.

Parts: `kernels`, attention and its gradients beside our product of the same width, and with `--k`
of as many features of each head alone, beside attention of all; `steps`, a
full-batch training step of two layers against PyG and the same model in plain JAX; `memory`, the
step of attention models on the Reddit-shaped graph, where messages would not fit. By name alone,
as they take long: `paper` and `ablation`, the settings and the steps of a paper.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import plan, steps
from benchmarks.harness.options import Options, Part
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare, compare_steps, flat, of_model
from benchmarks.harness.setting import Setting
from benchmarks.suites import attention_ablation, attention_paper, spmm

# In, hidden (4 heads of 32), out.
STEP_WIDTHS = (128, 128, 40)
QUICK_WIDTHS = (12, 8, 5)
# AGNN's hidden rows, which it propagates: narrower, as in its paper.
AGNN_WIDTH = 64
# What runs unless `--parts` says otherwise.
PARTS: dict[str, tuple[Part, ...]] = {
    "gpu": ("kernels", "steps", "memory"),
    "cpu": ("kernels", "steps"),
}


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the parts one after the other."""
    record.compare = set_baselines
    parts = options.parts or PARTS[options.device]
    if "kernels" in parts:
        spmm.run_plan(kernels(options), options, record, workspace)
    planned = itertools.chain(step_settings(options, parts), paper_settings(options, parts))
    for number, (case, widths, settings) in enumerate(planned):
        groups = [[setting] for setting in settings]
        own = workspace / f"steps {number}"
        steps.run_groups(groups, case, widths, options, record, own)
    if "paper" in parts:
        attention_paper.run_searches(options, record, workspace / "searches")


def kernels(options: Options) -> list[Measurement]:
    """The products and attentions of the part `kernels`."""
    default = plan.BIG_SHAPE if options.device == "gpu" else plan.CPU_SHAPE
    block = plan.Block((), (plan.OURS, plan.GAT), options.dtypes or plan.HALF_TOO)
    every = [
        measurement
        for case in options.shapes or (default,)
        for width in options.widths or (plan.MAXK_WIDTH,)
        for measurement in block.at(case, width)
    ]
    of_heads = [m for m in every if m.impl == plan.GAT]
    every += [dataclasses.replace(m, k=k) for k in options.ks for m in of_heads]
    return plan.narrowed(every, only=options.only)


def step_settings(
    options: Options, parts: Sequence[str]
) -> Iterator[tuple[str, tuple[int, ...], list[Setting]]]:
    """Graphs, widths and what runs on them, the oracles aside."""
    shapes, models, gpu = (
        options.shapes,
        options.models or plan.EDGE_MODELS,
        options.device == "gpu",
    )
    dtypes = options.dtypes or plan.DTYPES
    if "steps" in parts and "float32" in dtypes:
        pyg = (plan.PYG_EDGES,) if gpu else ()
        chosen = [
            _setting(model, impl)
            for model in models
            for impl in (plan.OURS, *plan.plain_steps(model, options.device), *pyg)
        ]
        widths = QUICK_WIDTHS if options.quick else STEP_WIDTHS
        yield from (
            (case, widths, chosen)
            for case in shapes or (plan.STEP_SHAPES if gpu else (plan.CPU_SHAPE,))
        )
    if "memory" in parts and "gat" in models:
        case = plan.BIG_SHAPE if not shapes or plan.BIG_SHAPE in shapes else shapes[0]
        for label, (widths, own_dtypes) in plan.DEEP.items():
            if options.quick:
                first, hidden, last = QUICK_WIDTHS
                widths = (first, *[hidden] * (len(widths) - 2), last)
            chosen = [
                dataclasses.replace(_setting("gat"), dtype=dtype, label=label)
                for dtype in own_dtypes
                if dtype in dtypes
            ]
            yield case, widths, chosen


def paper_settings(options: Options, parts: Sequence[str]) -> Iterator[attention_paper.Case]:
    """Those of the parts `paper` and `ablation`."""
    if "paper" in parts:
        yield from attention_paper.cases(options)
    if "ablation" in parts:
        yield from attention_ablation.cases(options)


def _setting(model: str, impl: str = plan.OURS) -> Setting:
    """The step of a model in its sizes."""
    heads = plan.ATTENTION_HEADS if model in ("gat", "gatv2") else None
    return Setting(impl, model, heads=heads, hidden=AGNN_WIDTH if model == "agnn" else None)


def set_baselines(rows: list[Row]) -> None:
    """The baseline of a kernel is our product of dense rows, of one on sparse rows the same on
    dense ones; of a step the fastest other one."""
    compare_steps(rows)
    for row in rows:
        if flat(row)["k"] is not None:
            compare(row, rows, {"impl": plan.GAT}, ("case", "dtype", "pass"))
        elif row["case"].endswith(attention_ablation.LABEL):
            attention_ablation.set_baseline(row, rows)
        elif row["pass"] == "build":
            attention_paper.set_baseline(row, rows)
        elif not of_model(row):
            compare(row, rows, {"impl": plan.OURS}, ("case", "dtype"))
