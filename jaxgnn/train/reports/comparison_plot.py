"""The plot of `jaxgnn compare`: test scores, with their standard deviations over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from jaxgnn._core.text import printable
from jaxgnn.train.reports.plot import save_figure
from jaxgnn.train.steps.task import ERRORS, METRIC_NAMES

if TYPE_CHECKING:
    from jaxgnn.train.reports.comparison import ComparedRuns, Comparison

_COLOR = "#3b6fb6"


def save_comparison_plot(path: Path, comparison: Comparison) -> None:
    """Draws the rows that have a test score, without touching matplotlib's global state."""
    rows = [row for row in comparison.rows if row.test_score is not None]
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(rows)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    places = range(len(rows))
    ax.errorbar(
        [row.test_score or 0 for row in rows],
        places,
        xerr=[row.test_std or 0 for row in rows],
        fmt="o",
        color=_COLOR,
        capsize=3,
    )
    ax.set_yticks(places, list(map(_label, rows)))
    ax.invert_yaxis()
    if not any(row.metric in ERRORS for row in rows):
        ax.xaxis.set_major_formatter(PercentFormatter(1))
    names = ", ".join(dict.fromkeys(METRIC_NAMES[row.metric] for row in rows))
    ax.set(xlabel=f"test {names}".strip())
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, "mean and standard deviation over seeds")


def _label(row: ComparedRuns) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in row.settings.items())
    return printable(settings or f"{len(row.seeds)} runs")[:80].replace("$", r"\$")
