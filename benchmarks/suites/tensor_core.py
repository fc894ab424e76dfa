"""The suite `tensor_core`: operations over tiles, by rows, and cuSPARSE's; and training steps.

Part `products`: the sparse-dense product, without weights and with; and dot products on edges, by
rows. On the sets of TC-GNN's Table 4 that the suite `spmm` does not have, the faster engine by
estimate beside both and cuSPARSE; for those of many small graphs a copy of the features. Part
`steps`: the training steps of TC-GNN's models on all sets of that table.

On a CPU tiles run by rows: there it shows that the suite runs.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import plan
from benchmarks.harness.options import PARTS, Options
from benchmarks.harness.plan import BIG_SHAPE, CUSPARSE, OTHER_SHAPES, Block, Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare_steps
from benchmarks.suites import spmm, tensor_core_steps

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
    """Runs the parts one after the other, a worker process for each framework."""

    def set_baselines(rows: list[Row]) -> None:
        spmm.set_baselines(rows, options.device or "cpu")
        compare_steps(rows)

    record.compare = set_baselines
    parts = options.parts or PARTS["tensor_core"]
    if "products" in parts:
        together = ("case", "width", "direction")
        spmm.run_plan(measurements(options), options, record, workspace, together)
    if "steps" in parts:
        tensor_core_steps.run(options, record, workspace / "steps")


def measurements(options: Options) -> list[Measurement]:
    """The plan of a device, narrowed by the options."""
    blocks = CPU if options.device == "cpu" else GPU
    return spmm.narrowed(blocks, WIDTHS[options.device], options)
