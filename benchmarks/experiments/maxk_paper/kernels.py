"""Figure 8 and Table 4: aggregation of the kept entries against the dense product; selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.maxk_paper.store import Receiver, Results
from benchmarks.harness import graphs, plan, process
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement

SELECTION_K = 32  # of Table 4
# The engine that a user gets: of rows, windows and dense rows the one that the estimate names.
_OURS = plan.MAXK_CHOSEN


def measurements(shape: str, ks: Sequence[int], width: int, device: str) -> list[Measurement]:
    """Of a graph: the dense product by the library's algorithms and ours, then ours of k entries
    by the engine that is chosen, and the selection."""
    library = plan.CUSPARSE if device == "gpu" else (plan.TORCH,)

    def make(impl: str, way: plan.Pass, k: int | None = None) -> Measurement:
        return Measurement(shape, impl, width, "float32", way, k=k)

    every = [make(impl, "forward") for impl in library]
    every += [make(plan.OURS, way) for way in plan.BOTH]
    every += [make(_OURS, way, k) for k in ks for way in plan.BOTH]
    return [*every, make(plan.MAXK, "select", SELECTION_K)]


def run(
    shape: str,
    graph: Path,
    ks: Sequence[int],
    width: int,
    options: Options,
    results: Results,
    workspace: Path,
) -> None:
    """Times what `results` do not have yet on a stored graph, a process for each framework."""
    assert options.device is not None
    left = [
        m
        for m in measurements(shape, ks, width, options.device)
        if not _rows(results, shape, m.impl, m.direction, m.k)
    ]
    task = {
        "module": "benchmarks.experiments.maxk_paper.worker",
        "graphs": {shape: str(graph)},
        "deadline": results.deadline,
    }
    for framework in dict.fromkeys(m.framework for m in left):
        if results.out_of_time():
            return
        own = [m for m in left if m.framework == framework]
        receiver = Receiver(results, "operations", graphs.read_facts(graph))
        process.run_each(task, own, options, receiver, workspace)


def _rows(results: Results, shape: str, impl: str, way: str, k: int | None = None) -> list[dict]:
    rows = results.find("operations", case=shape, impl=impl, **{"pass": way})
    return [row for row in rows if row["shape"].get("k") == k]


def fastest(
    results: Results, shape: str, impls: Sequence[str], way: str, k: int | None = None
) -> float | None:
    """The least time of these implementations, of rows whose result was right."""
    rows = [row for impl in impls for row in _rows(results, shape, impl, way, k)]
    return min((row["ms"] for row in rows if row["accurate"]), default=None)


def times(results: Results, shape: str, k: int) -> dict[str, float | None]:
    """Table 4's times on a graph: the library's dense product, ours of k entries, the selection."""
    library = (*plan.CUSPARSE, plan.TORCH)
    found = {way: fastest(results, shape, (_OURS,), way, k) for way in plan.BOTH}
    return {
        "dense": fastest(results, shape, library, "forward"),
        "ours dense": fastest(results, shape, (plan.OURS,), "forward"),
        "ours dense backward": fastest(results, shape, (plan.OURS,), "backward"),
        **found,
        "select": fastest(results, shape, (plan.MAXK,), "select", k),
    }


def speedups(results: Results, ks: Sequence[int]) -> list[dict[str, Any]]:
    """Figure 8: of each graph, by pass and k, over the library's dense product and over ours.

    As in the paper the gradient is compared with the library's product, too.
    """
    entries = []
    for shape in dict.fromkeys(row["case"] for row in results.parts["operations"]):
        facts = next(row for row in results.parts["operations"] if row["case"] == shape)
        for way in plan.BOTH:
            entry = {"graph": shape, "mean_degree": facts["mean_degree"], "pass": way}
            entry |= {"over_library": {}, "over_ours": {}}
            for k in ks:
                found = times(results, shape, k)
                own = found[way]
                dense = found["ours dense" if way == "forward" else "ours dense backward"]
                if own and found["dense"]:
                    entry["over_library"][k] = found["dense"] / own
                if own and dense:
                    entry["over_ours"][k] = dense / own
            entries.append(entry)
    return entries


def mean(values: Sequence[float]) -> float | None:
    """The geometric mean of speed-ups."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
