"""`curves.png`: loss and score by epoch, and the confusion matrix of the test nodes."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from jaxgnn._core.text import printable
from jaxgnn.train.process.recovery import naming
from jaxgnn.train.steps.task import ERRORS, METRIC_NAMES, score_text

_TRAIN, _VAL, _BEST = "#3b6fb6", "#d9762b", "#7a7a7a"
_ANNOTATED_CLASSES = 20


def save_plot(
    path: Path,
    rows: list[dict[str, Any]],
    summary: dict[str, Any],
    confusion: Int[np.ndarray, "classes classes"] | None,
) -> None:
    """Draws a run without touching matplotlib's global state.

    Args:
        path: the PNG.
        rows: the metrics of each epoch.
        summary: the run's summary.
        confusion: number of test nodes of each class (row) given each class (column), if a node
            has one class.
    """
    panels = 2 if confusion is None else 3
    figure = Figure(figsize=(5 * panels, 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels)
    metric = summary["metric"]
    name = METRIC_NAMES[metric]
    _curves(axes[0], rows, "loss", "val_loss", summary["best_epoch"])
    loss = {"rmse": "squared error", "mae": "absolute error"}.get(metric, "cross entropy")
    axes[0].set(title="Loss", ylabel=loss)
    axes[0].set_ylim(bottom=0)
    _curves(axes[1], rows, f"train_{metric}", f"val_{metric}", summary["best_epoch"])
    title = name[0].upper() + name[1:]
    axes[1].set(title=title)
    if metric not in ERRORS:
        axes[1].yaxis.set_major_formatter(PercentFormatter(1))
    if summary["test_score"] is not None:
        axes[1].plot(
            summary["best_epoch"],
            summary["test_score"],
            "*",
            color="black",
            markersize=11,
            label=f"test, {score_text(metric, summary['test_score'])}",
            clip_on=False,
            zorder=5,
        )
    for ax, place in ((axes[0], "upper right"), (axes[1], "lower right")):
        ax.legend(loc=place, frameon=True, framealpha=0.9)
    if confusion is not None:
        _confusion(figure, axes[2], confusion, "graphs" if summary["task"] == "graph" else "nodes")
    save_figure(figure, path, f"{summary['model']} on {summary['dataset']}")


def save_figure(figure: Figure, path: Path, title: str) -> None:
    """Writes a figure as PNG, whole or not at all; its title may hold any name."""
    title = printable(title)
    figure.suptitle(title if len(title) <= 100 else title[:99] + "…", parse_math=False)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with naming(path), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(temporary, format="png")
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _curves(ax: Axes, rows: list[dict[str, Any]], train: str, val: str, best: int) -> None:
    for key, label, color in ((train, "train", _TRAIN), (val, "validation", _VAL)):
        points = [(row["epoch"], row[key]) for row in rows if key in row]
        if points:
            style = "o-" if len(points) == 1 else "-"
            ax.plot(*zip(*points, strict=True), style, color=color, label=label, linewidth=1.6)
    ax.axvline(best, color=_BEST, linestyle="--", linewidth=1, label=f"selected: epoch {best}")
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def _confusion(
    figure: Figure, ax: Axes, counts: Int[np.ndarray, "classes classes"], of: str
) -> None:
    """Rows scaled to sum 1 in color, counts in figures."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ax.set(title=f"Confusion matrix, test {of}", xlabel="predicted class", ylabel="true class")
    classes = len(counts)
    if classes <= _ANNOTATED_CLASSES:
        ax.set_xticks(range(classes))
        ax.set_yticks(range(classes))
        size = 9 if counts.max() < 1000 and classes <= 10 else 7
        for i, j in np.argwhere(counts):
            color = "white" if shares[i, j] > 0.5 else "black"
            ax.text(j, i, str(counts[i, j]), ha="center", va="center", color=color, fontsize=size)
    else:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1))
    bar.set_label("share of the true class")
