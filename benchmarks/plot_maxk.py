"""Speed-up against k: `python -m benchmarks.plot_maxk SWEEP.json [--training FILE.json] OUTPUT`.

One panel for each direction: the time of cuSPARSE's best float32 product of dense rows (where it
was not timed, of the row's baseline) over that of the aggregation of k entries a row, a line for
each graph. With results of `training --models ...` a third panel: a whole step against the same
model with ReLU, as measured, as predicted from the aggregations alone, and Amdahl's limit
$1 / (1 - p)$, where $p$ is the share of the ReLU step that they take.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import plan
from benchmarks.harness.targets import Pick, Row
from benchmarks.suites import maxk

Points = list[tuple[int, float]]


def speedups(rows: Sequence[Row], case: str, direction: str) -> tuple[Points, float | None]:
    """(k, speed-up) of a graph's aggregation in float32, and of our dense product."""
    suites = {row["suite"] for row in rows}
    widths = {row["shape"]["width"] for row in rows if row["case"] == case}
    if len(suites) != 1 or len(widths) != 1:
        raise ValueError(f"rows of {case}: expected one suite and width, got {suites}, {widths}")
    (suite,), (width,) = suites, widths

    def best(*impls: str, direction: str = direction, k: int | None = None) -> Row | None:
        pick = Pick(impls, direction=direction, k=k)
        return pick.best(rows, suite, case, width)

    dense = best(plan.OURS, plan.ORDERED)
    baseline = best(*plan.CUSPARSE, direction="forward") or dense
    if baseline is None:
        return [], None
    ks = sorted({row["shape"]["k"] for row in rows if "k" in row["shape"]})
    found = [(k, best(*maxk.OURS, k=k)) for k in ks]
    points = [(k, baseline["ms"] / row["ms"]) for k, row in found if row is not None]
    return points, None if dense is None else baseline["ms"] / dense["ms"]


def step_speedups(
    rows: Sequence[Row], case: str, dtype: str
) -> tuple[Points, Points, float] | None:
    """(k, measured), (k, predicted) and the limit of a model's step against ReLU."""
    own = [
        row
        for row in rows
        if row["impl"] == plan.OURS and row["case"] == case and row["dtype"] == dtype
    ]
    relu = next((row for row in own if "k" not in row["shape"]), None)
    if relu is None:
        return None
    rest = relu["ms"] - relu["aggregation_ms"]
    sparse = sorted((row for row in own if "k" in row["shape"]), key=lambda row: row["shape"]["k"])
    measured = [(row["shape"]["k"], relu["ms"] / row["ms"]) for row in sparse]
    predicted = [(row["shape"]["k"], relu["ms"] / (rest + row["aggregation_ms"])) for row in sparse]
    return measured, predicted, relu["ms"] / rest if rest > 0 else math.inf


def draw(sweep: dict[str, Any], training: dict[str, Any] | None) -> Figure:
    """The figure of one or two results."""
    count = 2 if training is None else 3
    figure = Figure(figsize=(5 * count, 4), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    rows = [row for row in sweep["rows"] if row["accurate"]]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    gpu = sweep["header"]["device"] == "gpu"
    for ax, direction in zip(axes, plan.BOTH, strict=False):
        for number, case in enumerate(cases):
            points, dense = speedups(rows, case, direction)
            _line(ax, points, f"C{number}", marker="o", markersize=3, label=case)
            if dense is not None:
                ax.axhline(dense, color=f"C{number}", linewidth=0.7, linestyle=":")
        ax.set_title(f"{direction}, float32 (dotted: our dense product)")
        ax.set_ylabel("speed-up over " + ("cuSPARSE, dense" if gpu else "our dense product"))
    if training is not None:
        _draw_steps(axes[2], [row for row in training["rows"] if row["accurate"]])
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.set_xlabel("k")
        ax.grid(alpha=0.3)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize="small")
    figure.suptitle(f"MaxK, {sweep['header']['hardware']}")
    return figure


def _draw_steps(ax: Axes, rows: Sequence[Row]) -> None:
    names = dict.fromkeys((row["case"], row["dtype"]) for row in rows)
    for number, (case, dtype) in enumerate(names):
        found = step_speedups(rows, case, dtype)
        if found is None:
            continue
        measured, predicted, limit = found
        colour = f"C{number}"
        _line(ax, measured, colour, marker="o", label=f"{case.split()[-1]} {dtype}")
        _line(ax, predicted, colour, linestyle="--", linewidth=0.8)
        if math.isfinite(limit):
            ax.axhline(limit, color=colour, linewidth=0.7, linestyle=":")
    ax.set_title("training step (dashed: predicted, dotted: limit)")
    ax.set_ylabel("speed-up over ReLU")


def _line(ax: Axes, points: Points, colour: str, **style: Any) -> None:
    if points:
        ks, values = zip(*points, strict=True)
        ax.plot(ks, values, color=colour, **style)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_maxk")
    parser.add_argument("sweep", type=Path, help="result of the suite maxk, with --sweep or not")
    parser.add_argument("--training", type=Path, help="result of training --models ...")
    parser.add_argument("output", type=Path, help="an image; its ending says which kind")
    options = parser.parse_args(arguments)
    training = None if options.training is None else json.loads(options.training.read_text())
    figure = draw(json.loads(options.sweep.read_text()), training)
    figure.savefig(options.output, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
