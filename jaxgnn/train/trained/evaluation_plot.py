"""`evaluation.png`: score and speed-up by the share of the edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from jaxgnn.train.reports.plot import save_figure
from jaxgnn.train.steps.task import METRIC_NAMES

_COLORS = {
    "bucket": "#3b6fb6",
    "fastrand": "#d9762b",
    "stride": "#3a923a",
    "random": "#8a5fb0",
    "dropedge": "#a94442",
}
_ALL = "#7a7a7a"


def save_evaluation_plot(path: Path, evaluation: dict[str, Any]) -> None:
    """Draws what `evaluate` returned, without touching matplotlib's global state."""
    figure = Figure(figsize=(10.5, 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    scores, speedups = figure.subplots(1, 2)
    everything, *rows = evaluation["rows"]
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        own = sorted(
            (row for row in rows if row["strategy"] == strategy),
            key=lambda row: row["edge_share"],
        )
        color = _COLORS[strategy]
        shares = [row["edge_share"] for row in own]
        if all(row["test_score"] is not None for row in own):
            means = [row["test_score"] for row in own]
            errors = [row["test_std"] or 0 for row in own]
            line = {"color": color, "label": strategy, "linewidth": 1.6, "markersize": 4}
            scores.errorbar(shares, means, errors if any(errors) else None, fmt="o-", **line)
        for name, style in (("aggregation", "o-"), ("inference", "s--")):
            factors = [row[f"{name}_speedup"] for row in own]
            label = f"{strategy}, {name}"
            speedups.plot(shares, factors, style, color=color, label=label, markersize=4)
    if everything["test_score"] is not None:
        label = f"all edges, {100 * everything['test_score']:.2f} %"
        scores.axhline(everything["test_score"], color=_ALL, linestyle="--", label=label)
    speedups.axhline(1, color=_ALL, linestyle="--", linewidth=1)
    name = METRIC_NAMES[evaluation["metric"]]
    scores.set(title=f"Test {name}")
    scores.yaxis.set_major_formatter(PercentFormatter(1))
    speedups.set(title="Speed-up over all edges", ylabel="times as fast")
    for ax in (scores, speedups):
        _style(ax)
    save_figure(figure, path, f"{evaluation['model']} on {evaluation['dataset']}")


def _style(ax: Axes) -> None:
    ax.set_xlabel("share of the edges")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=True, framealpha=0.9, fontsize=8)
