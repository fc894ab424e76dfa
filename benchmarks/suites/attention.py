"""The suite `attention`: models whose messages belong to edges, and none of them stored.

Parts: `kernels`, attention and its gradients beside our product of the same width; `steps`, a
full-batch training step of two layers against PyG and the same model in plain JAX; `memory`, the
step of attention models on the Reddit-shaped graph, where messages would not fit; and, if asked
for, `ablation`, the step of two layers with one optimization more from row to row, as in
"Understanding GNN Computational Graph" (Zhang et al., MLSys 2022, section 7): on the edges,
reorganized, fused, recomputed; and `bytes`, what each of these moves, from hardware counters.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import graphs, plan, profiling, steps
from benchmarks.harness.options import EDGE_MODELS, Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record, Row, compare, compare_with_pyg
from benchmarks.harness.steps import Setting
from benchmarks.suites import spmm

STEP_SHAPES = ("arxiv", "amazon0601", "artist")
CPU_SHAPE = "rmat-dense"
# In, hidden (4 heads of 32), out.
STEP_WIDTHS = (128, 128, 40)
QUICK_WIDTHS = (12, 8, 5)
# AGNN's hidden rows, which it propagates: narrower, as in its paper.
AGNN_WIDTH = 64
# The optimizations one by one: reorganization, fusion, recomputation.
ABLATION = (plan.PLAIN_EDGES, plan.PLAIN_NODES, plan.STORED, plan.OURS)
ABLATION_MODELS = ("gat", "edgeconv")
# What runs unless `--parts` says otherwise.
PARTS = {"gpu": ("kernels", "steps", "memory"), "cpu": ("kernels", "steps")}


@dataclasses.dataclass(frozen=True)
class Deep:
    """A step of the part `memory`: what its case ends in, widths and dtypes."""

    label: str
    widths: tuple[int, ...]
    dtypes: tuple[str, ...]


DEEP = (
    Deep(" 2 layers", (602, 128, 41), ("float32",)),
    Deep(" 4 layers", (602, 256, 256, 256, 41), ("float32", "bfloat16")),
)


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the parts one after the other."""
    record.compare = set_baselines
    parts = options.parts or PARTS[options.device]
    if "kernels" in parts:
        together = operator.attrgetter("case")
        spmm.run_plan(kernels(options), options, record, workspace, together)
    if "bytes" in parts and profiling.find(options) is None:
        record.leave_out("bytes moved by the ablation", profiling.ABSENT, failed=False)
        parts = [part for part in parts if part != "bytes"]
    for part in parts:
        # The bytes are those of the ablation's steps.
        planned = step_settings(options, ["ablation" if part == "bytes" else part])
        for number, (case, widths, settings) in enumerate(planned):
            groups = [[setting] for setting in settings]
            if part == "bytes":  # one process for a model, under the profiler
                by_model = itertools.groupby(settings, operator.attrgetter("model"))
                groups = [list(own) for _, own in by_model]
            every = [groups] if part != "bytes" else [[group] for group in groups]
            for place, chosen in enumerate(every):
                chosen = steps.with_oracles(chosen, options)
                if not chosen:
                    continue
                folder = graphs.store_all([case], options.cache or workspace, options.scale)[case]
                own = workspace / f"{part} {number} {place}"
                profile = part == "bytes"
                rows = steps.run_groups(
                    chosen, folder, widths, options, record, own, profile=profile
                )
                for row in rows:
                    record.add({**row, "pass": "step traffic"})


def kernels(options: Options) -> list[Measurement]:
    """The products and attentions of the part `kernels`."""
    default = plan.BIG_SHAPE if options.device == "gpu" else CPU_SHAPE
    every = (
        Measurement(case, impl, width, dtype, direction)
        for case in options.shapes or [default]
        for width in options.widths or [plan.MAXK_WIDTH]
        for dtype in options.dtypes or ("float32", "bfloat16")
        for direction in plan.BOTH
        for impl in (plan.OURS, plan.GAT)
    )
    return plan.narrowed(every, only=options.only)


def plain_steps(model: str, device: str) -> tuple[str, ...]:
    """The model's steps in plain JAX: as its users write it, and its strongest.

    Heads are flattened into the features, EdgeConv's projections are on the nodes, and on a GPU
    the fastest form also has XLA's fastest flags.
    """
    heads = (plan.PLAIN_FLAT,) if model in ("gat", "gatv2") else ()
    forms = (plan.PLAIN, *heads, *((plan.PLAIN_NODES,) if model == "edgeconv" else ()))
    return (*forms, forms[-1] + plan.FTZ) if device == "gpu" else forms


def step_settings(
    options: Options, parts: Sequence[str]
) -> Iterator[tuple[str, tuple[int, ...], list[Setting]]]:
    """Graphs, widths and what runs on them, the oracles aside."""
    shapes, models = options.shapes, options.models or EDGE_MODELS
    default = STEP_SHAPES if options.device == "gpu" else (CPU_SHAPE,)
    widths = QUICK_WIDTHS if options.quick else STEP_WIDTHS
    if "ablation" in parts:
        chosen = [
            dataclasses.replace(_setting(model), impl=impl, label=" ablation")
            for model in models
            if model in ABLATION_MODELS
            for impl in ABLATION
        ]
        yield from ((case, widths, chosen) for case in shapes or default)
    if "steps" in parts:
        pyg = (plan.PYG_EDGES,) if options.device == "gpu" else ()
        chosen = [
            dataclasses.replace(_setting(model), impl=impl)
            for model in models
            for impl in (plan.OURS, *plain_steps(model, options.device), *pyg)
            if "float32" in (options.dtypes or plan.DTYPES)
        ]
        yield from ((case, widths, chosen) for case in shapes or default)
    if "memory" in parts and "gat" in models:
        case = plan.BIG_SHAPE if not shapes or plan.BIG_SHAPE in shapes else shapes[0]
        for deep in DEEP:
            widths = deep.widths
            if options.quick:
                widths = (QUICK_WIDTHS[0], *[QUICK_WIDTHS[1]] * (len(widths) - 2), QUICK_WIDTHS[2])
            yield (
                case,
                widths,
                [
                    dataclasses.replace(_setting("gat"), dtype=dtype, label=deep.label)
                    for dtype in deep.dtypes
                    if dtype in (options.dtypes or plan.DTYPES)
                ],
            )


def _setting(model: str) -> Setting:
    """Our step of a model, in its sizes."""
    heads = plan.ATTENTION_HEADS if model in ("gat", "gatv2") else None
    return Setting(plan.OURS, model, heads=heads, hidden=AGNN_WIDTH if model == "agnn" else None)


def set_baselines(rows: list[Row]) -> None:
    """The baseline of a kernel is our product of dense rows; of a step the fastest other one.

    Of an ablation it is what is on the edges, and of its bytes as well, whose ratio is that of
    HBM's. `ratio_pyg` is a step's ratio to PyG beside it.
    """
    for row in rows:
        same = ("case", "dtype", "pass")
        quantity = "hbm_bytes" if row["pass"] == "step traffic" else "ms"
        if row["pass"] in plan.BOTH:
            forward = [other for other in rows if other["pass"] == "forward"]
            compare(row, forward, lambda other: other["impl"] == plan.OURS, same[:2])
        elif row["case"].endswith("ablation"):
            compare(row, rows, lambda other: other["impl"] == plan.PLAIN_EDGES, same, quantity)
        else:
            if not compare(row, rows, lambda other: other["impl"] != plan.OURS, same):
                compare(row, rows, lambda other: True, same)
            compare_with_pyg(row, rows)
