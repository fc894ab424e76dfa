"""The suite `tensor_core`: operations over tiles, by rows, and cuSPARSE's.

The sparse-dense product, without weights and with; and dot products on edges, by rows. On the sets
of TC-GNN's Table 4 that the suite `spmm` does not have, the faster engine by estimate beside both
and cuSPARSE; for those of many small graphs a copy of the features.

On a CPU tiles run by rows: there it shows that the suite runs.
"""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks.harness import plan
from benchmarks.harness.options import Options
from benchmarks.harness.plan import BIG_SHAPE, CUSPARSE, OTHER_SHAPES, Block, Measurement
from benchmarks.harness.record import Record
from benchmarks.suites import spmm

_IMPLS = (plan.TILES, plan.ESTIMATED, plan.OURS, plan.ORDERED, *CUSPARSE)
_SDDMM = (plan.SDDMM, plan.CUSPARSE_SDDMM)
_SHARING = (BIG_SHAPE, "proteins")  # their windows share many columns
_APART = tuple(shape for shape in OTHER_SHAPES if shape not in _SHARING)
GPU = (
    Block(_SHARING, _IMPLS, dtypes=plan.HALF_TOO),
    Block(_SHARING, _IMPLS[:4], ("float16",), plan.FORWARD),
    Block(_SHARING, (*_IMPLS[:3], *CUSPARSE), plan.HALF_TOO, plan.FORWARD, weighted=True),
    Block(_SHARING, _SDDMM, directions=plan.FORWARD),
    Block(_SHARING, _SDDMM[:1], ("bfloat16",), plan.FORWARD),
    Block(plan.SMALL_GRAPHS, (plan.COPY,), directions=("select",)),
    Block(plan.TCGNN_SHAPES, (*_IMPLS[:3], *CUSPARSE), directions=plan.FORWARD),
    Block(plan.TCGNN_SHAPES, _IMPLS[:3], ("bfloat16",), plan.FORWARD),
    Block(_APART, (*_SDDMM, plan.JAX_SDDMM), directions=plan.FORWARD),
    Block(_APART, _IMPLS, plan.HALF_TOO, plan.FORWARD),
)
CPU = (
    Block(("rmat",), (plan.TILES, plan.ESTIMATED, plan.OURS)),
    Block(("rmat",), (plan.TILES, plan.OURS), directions=plan.FORWARD, weighted=True),
    Block(("rmat",), (plan.SDDMM, plan.JAX_SDDMM), directions=plan.FORWARD),
)
WIDTHS = {"cpu": (64,), "gpu": (16, 32, 64, 128, 256)}


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(spmm.set_baselines, device=options.device)
    together = ("case", "width", "direction")
    spmm.run_plan(measurements(options), options, record, workspace, together)


def measurements(options: Options) -> list[Measurement]:
    """The plan of a device, narrowed by the options."""
    blocks = CPU if options.device == "cpu" else GPU
    return spmm.narrowed(blocks, WIDTHS[options.device], options)
