"""The suite `spmm`: the sparse-dense product and its gradient, ours against the others.

Among its blocks are the maximum over neighbours and its gradient.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import graphs, plan, process
from benchmarks.harness.options import Options
from benchmarks.harness.plan import BIG_SHAPE, CUSPARSE, FTZ, OTHER_SHAPES, Block, Measurement
from benchmarks.harness.record import Record, Row, compare

_OURS = (plan.OURS, plan.ORDERED)
_HALF_TOO = ("float32", "bfloat16")

CPU = (
    Block(("rmat",), (plan.OURS, plan.SORTED, plan.UNSORTED, plan.TORCH, plan.SCIPY)),
    Block(("rmat",), (plan.PYG_EDGE_INDEX,)),
    Block(("rmat",), (plan.BCOO,), directions=plan.FORWARD),
    Block(("rmat",), (plan.OURS,), dtypes=("bfloat16", "float16")),
    Block(("rmat",), (plan.OURS, plan.TORCH), directions=plan.FORWARD, weighted=True),
    Block(("rmat",), (plan.MAX,)),
)
GPU = (
    Block((BIG_SHAPE,), (*_OURS, plan.TORCH, *CUSPARSE), dtypes=_HALF_TOO),
    Block((BIG_SHAPE,), (plan.OURS, CUSPARSE[3]), dtypes=("float16",)),
    Block((BIG_SHAPE,), (plan.SORTED, plan.UNSORTED, plan.PYG_EDGE_INDEX)),
    Block((BIG_SHAPE,), (plan.SORTED + FTZ, plan.UNSORTED + FTZ)),
    Block((BIG_SHAPE,), (plan.BCOO,), directions=plan.FORWARD),
    Block((BIG_SHAPE,), (*_OURS, *CUSPARSE[2:]), _HALF_TOO, plan.FORWARD, weighted=True),
    Block(OTHER_SHAPES, (*_OURS, *CUSPARSE), _HALF_TOO, plan.FORWARD),
    Block(OTHER_SHAPES, (*_OURS, *CUSPARSE[2:]), directions=("backward",)),
    Block((BIG_SHAPE, *OTHER_SHAPES[:2]), (plan.MAX,), dtypes=_HALF_TOO),
    Block(OTHER_SHAPES[:2], (plan.MAX_SORTED,)),
    Block(OTHER_SHAPES, (plan.SORTED, plan.SORTED + FTZ), directions=plan.FORWARD),
)
WIDTHS = {"cpu": (64, 256), "gpu": (256,)}


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the plan, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    together = operator.attrgetter("case", "width", "direction")
    run_plan(measurements(options), options, record, workspace, together)


def measurements(options: Options) -> list[Measurement]:
    """The plan of a device, narrowed by the options, in the order in which it runs.

    A graph that the plan does not name gets the plan of the others.
    """
    blocks = CPU if options.device == "cpu" else GPU
    known = {case for block in blocks for case in block.cases}
    unknown = tuple(case for case in options.shapes or () if case not in known)

    def cases(block: Block) -> Sequence[str]:
        if not options.shapes:
            return block.cases
        kept = tuple(case for case in block.cases if case in options.shapes)
        return kept + (unknown if block.cases[-1] == blocks[-1].cases[-1] else ())

    def every() -> Iterator[Measurement]:
        for block in blocks:
            for case in cases(block):
                for width in options.widths or WIDTHS[options.device]:
                    yield from block.at(case, width)

    kept = plan.narrowed(every(), options.dtypes, options.only)
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
    together: Callable[[Measurement], Any],
) -> None:
    """Runs measurements, a worker process for each framework.

    Where there are rounds, neighbours with the same key `together` run in them close in time.
    """
    task = task_of(measurements, options, record, workspace)
    chunks = [measurements]
    if options.rounds > 1:
        chunks = [list(group) for _, group in itertools.groupby(measurements, together)]
    for chunk in chunks:
        for _ in range(options.rounds):
            for framework in dict.fromkeys(m.framework for m in chunk):
                mine = [m for m in chunk if m.framework == framework]
                entries = [dataclasses.asdict(m) for m in mine]
                env = process.environment(
                    options.device,
                    options.threads,
                    options.xla_flags,
                    ftz_atomics=framework.endswith(FTZ),
                )
                own = task | {"framework": framework, "entries": entries}
                process.run_each(own, [str(m) for m in mine], env, record, workspace)


def task_of(
    measurements: list[Measurement], options: Options, record: Record, workspace: Path
) -> dict[str, Any]:
    """What the workers of measurements read, but for the entries; stores their graphs."""
    names = list(dict.fromkeys(m.case for m in measurements))
    folders = graphs.store_all(names, options.cache or workspace, options.scale)
    for name, folder in folders.items():
        facts = graphs.read_facts(folder)
        record.note_graph(facts)
        record.say(f"{name}: {facts}")
    return {
        "kind": "operations",
        "suite": options.label,
        "device": options.device,
        "threads": options.threads,
        "timing": options.timing(),
        "graphs": {name: str(folder) for name, folder in folders.items()},
    }


def set_baselines(rows: list[Row], device: str) -> None:
    """Writes into each row the library that a user would call instead, and the ratio to it.

    On the GPU the fastest algorithm of cuSPARSE, on the CPU `torch.sparse`, for the maximum plain
    JAX; in the row's dtype, or in float32 where the library was not timed in it.
    """
    products = (plan.TORCH,) if device == "cpu" else (*CUSPARSE, plan.TORCH)
    for row in rows:
        impls = (plan.MAX_SORTED,) if row["impl"] in (plan.MAX, plan.MAX_SORTED) else products
        own = ("case", "shape", "pass")
        if not compare(row, rows, lambda other: other["impl"] in impls, (*own, "dtype")):  # noqa: B023
            wide = [other for other in rows if other["dtype"] == "float32"]
            if compare(row, wide, lambda other: other["impl"] in impls, own):  # noqa: B023
                row["baseline"] += " float32"
