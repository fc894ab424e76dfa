"""The suite `spmm`: the sparse-dense product and its gradient, ours against the others.

Among its blocks are the maximum over neighbours and its gradient.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import graphs, plan, process
from benchmarks.harness.options import Options
from benchmarks.harness.plan import BIG_SHAPE, CUSPARSE, OTHER_SHAPES, Block, Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare

_OURS = (plan.OURS, plan.ORDERED)

CPU = (
    Block(("rmat",), (plan.OURS, plan.SORTED, plan.UNSORTED, plan.TORCH, plan.SCIPY)),
    Block(("rmat",), (plan.PYG_EDGE_INDEX,)),
    Block(("rmat",), (plan.BCOO,), directions=plan.FORWARD),
    Block(("rmat",), (plan.OURS,), dtypes=("bfloat16", "float16")),
    Block(("rmat",), (plan.OURS, plan.TORCH), directions=plan.FORWARD, weighted=True),
    Block(("rmat",), (plan.MAX,)),
)
GPU = (
    Block((BIG_SHAPE,), (*_OURS, plan.TORCH, *CUSPARSE), dtypes=plan.HALF_TOO),
    Block((BIG_SHAPE,), (plan.OURS, CUSPARSE[3]), dtypes=("float16",)),
    Block((BIG_SHAPE,), (plan.SORTED, plan.UNSORTED, plan.PYG_EDGE_INDEX)),
    Block((BIG_SHAPE,), (plan.SORTED + plan.FTZ, plan.UNSORTED + plan.FTZ)),
    Block((BIG_SHAPE,), (plan.BCOO,), directions=plan.FORWARD),
    Block((BIG_SHAPE,), (*_OURS, *CUSPARSE[2:]), plan.HALF_TOO, plan.FORWARD, weighted=True),
    Block(OTHER_SHAPES, (*_OURS, *CUSPARSE), plan.HALF_TOO, plan.FORWARD),
    Block(OTHER_SHAPES, (*_OURS, *CUSPARSE[2:]), directions=("backward",)),
    Block((BIG_SHAPE, *OTHER_SHAPES[:2]), (plan.MAX,), dtypes=plan.HALF_TOO),
    Block(OTHER_SHAPES[:2], (plan.MAX_SORTED,)),
    Block(OTHER_SHAPES, (plan.SORTED, plan.SORTED + plan.FTZ), directions=plan.FORWARD),
)
WIDTHS = {"cpu": (64, 256), "gpu": (256,)}


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    together = ("case", "width", "direction")
    run_plan(measurements(options), options, record, workspace, together)


def measurements(options: Options) -> list[Measurement]:
    """The plan of a device, narrowed by the options."""
    blocks = CPU if options.device == "cpu" else GPU
    return narrowed(blocks, WIDTHS[options.device], options)


def narrowed(blocks: Sequence[Block], widths: Sequence[int], options: Options) -> list[Measurement]:
    """A plan, narrowed by the options, in the order in which it runs.

    A graph that the plan does not name gets the plan of the others.
    """
    known = {case for block in blocks for case in block.cases}
    unknown = tuple(case for case in options.shapes if case not in known)

    def cases(block: Block) -> Sequence[str]:
        if not options.shapes:
            return block.cases
        kept = tuple(case for case in block.cases if case in options.shapes)
        return kept + (unknown if block.cases[-1] == blocks[-1].cases[-1] else ())

    every = (
        measurement
        for block in blocks
        for case in cases(block)
        for width in options.widths or widths
        for measurement in block.at(case, width)
    )
    kept = plan.narrowed(every, options.dtypes, options.only)
    order = list(dict.fromkeys(m.case for m in kept))

    def place(m: Measurement) -> tuple[Any, ...]:
        """A worker loads a graph once and the features once for what needs the same."""
        return order.index(m.case), m.width, m.direction == "backward", plan.DTYPES.index(m.dtype)

    return sorted(kept, key=place)


def run_plan(
    measurements: list[Measurement],
    options: Options,
    record: Record,
    workspace: Path,
    together: Sequence[str] = ("case",),
) -> None:
    """Runs measurements, a worker process for each framework.

    Where there are rounds, neighbours with the same fields `together` run in them close in time.
    """
    names = list(dict.fromkeys(m.case for m in measurements))
    folders = graphs.store_all(names, options.cache or workspace, options.scale)
    for folder in folders.values():
        record.note_graph(graphs.read_facts(folder))
    task = {
        "module": "benchmarks.harness.operations",
        "graphs": {name: str(path) for name, path in folders.items()},
    }
    chunks = [measurements]
    if options.rounds > 1:
        groups = itertools.groupby(measurements, operator.attrgetter(*together))
        chunks = [list(group) for _, group in groups]
    for chunk in chunks:
        for _ in range(options.rounds):
            for framework in dict.fromkeys(m.framework for m in chunk):
                own = [m for m in chunk if m.framework == framework]
                process.run_each(task, own, options, record, workspace)


def set_baselines(rows: list[Row], device: str) -> None:
    """Writes into each row the library that a user would call instead, and the ratio to it.

    On the GPU the fastest algorithm of cuSPARSE, on the CPU `torch.sparse`, for the maximum plain
    JAX; in the row's dtype, or in float32 where the library was not timed in it.
    """
    products = (plan.TORCH,) if device == "cpu" else (*CUSPARSE, plan.TORCH)
    for row in rows:
        maximum = row["impl"] in (plan.MAX, plan.MAX_SORTED)
        spec = {"impl": plan.MAX_SORTED if maximum else products}
        if row["impl"] == plan.SDDMM:
            spec = {"impl": (plan.CUSPARSE_SDDMM, plan.JAX_SDDMM)}
        own = ("case", "shape", "pass")
        if not compare(row, rows, spec, (*own, "dtype")) and compare(row, rows, spec, own):
            row["baseline"] += " float32"
