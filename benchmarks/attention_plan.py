"""What the suite `attention` runs: sizes, graphs, and the products of its part `kernels`."""

from __future__ import annotations

import dataclasses

from benchmarks import plan
from benchmarks.options import Options
from benchmarks.plan import Measurement

STEP_SHAPES = ("arxiv", "amazon0601", "artist")
CPU_SHAPE = "rmat-dense"
# In, hidden (4 heads of 32), out.
STEP_WIDTHS = (128, 128, 40)
QUICK_WIDTHS = (12, 8, 5)
# AGNN's hidden rows, which it propagates: narrower, as in its paper.
AGNN_WIDTH = 64
# What our step is compared with; EdgeConv has one form more.
REFERENCES = {"gpu": (plan.PLAIN, plan.PYG_EDGES), "cpu": (plan.PLAIN,)}
# The optimisations one by one: reorganisation, fusion, recomputation.
ABLATION = (plan.PLAIN_EDGES, plan.PLAIN_NODES, plan.STORED, plan.OURS)
ABLATION_LABEL = " ablation"
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


def measurements(options: Options) -> list[Measurement]:
    """The products and attentions of the part `kernels`."""
    default = plan.BIG_SHAPE if options.device == "gpu" else CPU_SHAPE
    return [
        measurement
        for case in options.shapes or [default]
        for width in options.widths or [plan.MAXK_WIDTH]
        for dtype in options.dtypes or ("float32", "bfloat16")
        for direction in plan.BOTH
        for measurement in (
            Measurement(case, impl, width, dtype, direction) for impl in (plan.OURS, plan.GAT)
        )
        if not options.only or any(part.lower() in measurement.impl for part in options.only)
    ]
