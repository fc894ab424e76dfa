"""The part `paper` of the suite `attention`: the settings of "Understanding GNN Computational
Graph" (Zhang et al., MLSys 2022), forward passes and whole steps with their memory.

GAT of two layers of one head of 128 features; EdgeConv of 64, 64, 128 and 256 features on clouds of
1,024 points, and the search for their neighbors; MoNet of width 16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import plan, points, process
from benchmarks.harness.options import Options
from benchmarks.harness.points import Search
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare
from benchmarks.harness.setting import Setting
from jaxgnn.data import benchmark_shapes

# Features and classes of a set's nodes, where `benchmark_shapes` has none.
_ENDS = {"reddit": (602, 41)}
GRAPHS = ("cora", "citeseer", "pubmed", "reddit")
GAT_WIDTH, MONET_WIDTH = 128, 16
GAUSSIANS = ((3, 2), (3, 3), (2, 1))  # of MoNet: kernels and coordinates
# Three coordinates and the layers' features; the last are the classes of the step's loss.
POINT_WIDTHS = (3, 64, 64, 128, 256)
Case = tuple[str, tuple[int, ...], list[Setting]]


def cases(options: Options) -> Iterator[Case]:
    """Graphs, widths and what runs on them."""
    models = options.models or ("gat", "edgeconv", "monet")
    pyg = (plan.PYG_EDGES,) if options.device == "gpu" else ()
    wanted = set(options.shapes or (*GRAPHS, *points.CLOUDS))
    if options.dtypes and "float32" not in options.dtypes:
        return

    def every(model: str, **fields: int | str) -> list[Setting]:
        own = Setting(plan.OURS, model, **fields)  # pyright: ignore[reportArgumentType]
        return [
            dataclasses.replace(own, impl=impl, forward=forward)
            for impl in (plan.OURS, *plan.plain_steps(model, options.device), *pyg)
            for forward in (True, False)
        ]

    for graph in (name for name in GRAPHS if name in wanted):
        shape = benchmark_shapes()[graph]
        first, last = _ENDS.get(graph, (shape.features, shape.classes))
        if options.quick:
            first, last = 12, 5
        if "gat" in models:
            width = 8 if options.quick else GAT_WIDTH
            yield graph, (first, width, last), every("gat", heads=1, label=" 1 head")
        for kernels, dim in GAUSSIANS if "monet" in models else ():
            label = f" K={kernels} r={dim}"
            own = every("monet", kernel_size=kernels, dim=dim, label=label)
            yield graph, (first, MONET_WIDTH, last), own
    for graph in (name for name in points.CLOUDS if name in wanted and "edgeconv" in models):
        widths = (3, 8, 8, 12, 16) if options.quick else POINT_WIDTHS
        yield graph, widths, every("edgeconv")


def searches(options: Options) -> list[Search]:
    """The neighbors of the points, and those by the features of each layer's input, whose graph is
    a new one where it is dynamic."""
    if options.models and "edgeconv" not in options.models:
        return []
    assert options.scale is not None
    return [
        Search(f"{name} search", impl, points.clouds_at(name, options.scale), k, width)
        for name, (_, k) in points.CLOUDS.items()
        if not options.shapes or name in options.shapes
        for width in dict.fromkeys(POINT_WIDTHS[:-1])
        for impl in (points.OURS, points.PLAIN)
        if plan.wanted(impl, options.only)
    ]


def run_searches(options: Options, record: Record, workspace: Path) -> None:
    """Times them in one process."""
    entries = searches(options)
    if entries:
        workspace.mkdir(parents=True, exist_ok=True)
        process.run_each({"module": points.__name__}, entries, options, record, workspace)


def set_baseline(row: Row, rows: list[Row]) -> None:
    """Of a search, plain JAX's."""
    compare(row, rows, {"impl": "jax *"}, ("case", "dtype", "pass", "width", "neighbors"))
