"""What a run shows while it trains and when it is done."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from jaxgnn._core.text import printable
from jaxgnn.train.reports.comparison import Comparison
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.task import METRIC_NAMES, score_text

_OF_ANY_RUN = (
    *("task", "layers", "hidden", "activation", "dropout", "learning_rate", "weight_decay"),
    *("epochs", "patience", "split", "seed"),
)


class Display(Protocol):
    """Shows epochs as they end; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def epoch(self, row: dict[str, Any], best_epoch: int) -> None:
        """An epoch's metrics, and the best epoch so far."""
        ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def epoch(self, row: dict[str, Any], best_epoch: int) -> None:
        pass


class Lines(Silent):
    """A line each tenth epoch, or each second if they are slower: for logs and pipes."""

    def __init__(self, console: Console, epochs: int, metric: str):
        self._console, self._epochs, self._metric = console, epochs, metric
        self._rate = Rate()
        self._next = 0.0

    def epoch(self, row: dict[str, Any], best_epoch: int) -> None:
        rate = self._rate.tick()
        epoch, now = row["epoch"], time.perf_counter()
        if epoch > 1 and epoch != self._epochs and now < self._next and epoch % 10:
            return
        self._next = now + 1
        text = [f"epoch {epoch:>{len(str(self._epochs))}}/{self._epochs}"]
        text += [f"{name} {value}" for name, value in columns(row, self._metric)]
        text += [f"best {best_epoch}", f"{rate:.1f} epochs/s"]
        print_line(self._console, "  ".join(text))


class Bar(Silent):
    """A live progress bar over a line of the current metrics."""

    def __init__(self, console: Console, epochs: int, metric: str, done: int = 0):
        self._metric, self._rate = metric, Rate()
        self._progress = Progress(
            TextColumn("[bold]epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=epochs, completed=done, rate="")
        self._row: dict[str, Any] = {}
        self._best = 0
        self._live = Live(console=console, refresh_per_second=10, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)  # a run may end before the next refresh
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def epoch(self, row: dict[str, Any], best_epoch: int) -> None:
        self._row, self._best = row, best_epoch
        rate = f"{self._rate.tick():.1f} epochs/s"
        self._progress.update(self._task, completed=row["epoch"], rate=rate)

    def _render(self) -> Table:
        grid = Table.grid(expand=True)
        grid.add_row(self._progress)
        values = columns(self._row, self._metric) if self._row else []
        if self._best:
            values.append(("best epoch", str(self._best)))
        grid.add_row(Text("  ").join(Text.assemble((name, "dim"), " ", v) for name, v in values))
        return grid


class Rate:
    """Epochs per second over about the last two seconds."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._epochs = self._seconds = 0.0

    def tick(self) -> float:
        """Counts an epoch and returns the rate."""
        now = time.perf_counter()
        elapsed, self._last = max(now - self._last, 1e-9), now
        forget = math.exp(-elapsed / 2)
        self._epochs = self._epochs * forget + 1
        self._seconds = self._seconds * forget + elapsed
        return self._epochs / self._seconds


def columns(row: dict[str, Any], metric: str) -> list[tuple[str, str]]:
    """The metrics to show of an epoch: names and values."""
    values = [("loss", f"{row['loss']:.4f}")]
    for name in ("train", "val"):
        value = row.get(f"{name}_{metric}")
        if value is not None:
            values.append((name, score_text(metric, value)))
    return values


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def make_display(
    console: Console | None, *, plain: bool, epochs: int, metric: str, done: int = 0
) -> Display:
    """The live bar on a terminal, lines elsewhere or if asked for, nothing without a console."""
    if console is None:
        return Silent()
    if plain or not console.is_terminal:
        return Lines(console, epochs, metric)
    return Bar(console, epochs, metric, done)


def summary_table(summary: dict[str, Any]) -> Table:
    """The table at the end of a run."""
    metric = METRIC_NAMES[summary["metric"]]
    title = Text(printable(f"{summary['model']} on {summary['dataset']}"))
    table = Table(title=title, title_justify="left")
    table.add_column("result")
    table.add_column("value", justify="right")
    text = score_text(summary["metric"], summary["test_score"])
    table.add_row(Text(f"test {metric}", "bold"), Text(text, "bold"))
    for name, value in summary["test_scores"].items():
        if name != summary["metric"]:
            table.add_row(f"test {METRIC_NAMES[name]}", score_text(name, value))
    if summary["val_score"] is not None:
        text = score_text(summary["metric"], summary["val_score"])
        table.add_row(f"validation {metric}", text)
    stop = " (patience ran out)" if summary["stopped"] else ""
    table.add_row("selected epoch", f"{summary['best_epoch']} of {summary['epochs']}{stop}")
    table.add_row("activation", summary["activation"])
    table.add_row("parameters", f"{summary['parameters']:,}")
    table.add_row("epoch time (median)", f"{1e3 * summary['epoch_seconds']:.2f} ms")
    table.add_row("compile time", f"{summary['compile_seconds']:.1f} s")
    table.add_row(f"peak memory ({summary['memory_of']})", size(summary["peak_bytes"]))
    table.add_row("device", Text(printable(summary["device"])))
    table.add_row("kernels", Text(printable(summary["kernels"])))
    return table


def trials_table(metric: str, chosen: dict[str, Any]) -> Table:
    """The short runs of `--k auto` or `--head-k auto`."""
    what = "MaxK's k" if chosen["option"] == "k" else "features kept of a head"
    title = f"{what}, {chosen['epochs']} epochs each, within {chosen['tolerance']:g} of the best"
    table = Table(title=Text(title), title_justify="left")
    for name in ("k", f"validation {METRIC_NAMES[metric]}", "epoch time (least)"):
        table.add_column(name, justify="right")
    named = {"relu": "ReLU", "all": "all"}
    without = [
        {"k": text, "chosen": False, **chosen[key]} for key, text in named.items() if key in chosen
    ]
    for trial in (*chosen["trials"], *without):
        score, time_of_epoch = (
            score_text(metric, trial["score"]),
            f"{1e3 * trial['seconds']:.2f} ms",
        )
        style = "bold" if trial["chosen"] else ""
        mark = " chosen" * trial["chosen"]
        table.add_row(f"{trial['k']}{mark}", score, time_of_epoch, style=style)
    return table


def scores_table(scores: dict[str, Any]) -> Table:
    """The table of `jaxgnn evaluate`: a row for the training, validation and test nodes, or
    graphs."""
    split = "" if scores["split"] is None else f", split {scores['split']}"
    title = Text(printable(f"{scores['model']} on {scores['dataset']}{split}"))
    table = Table(title=title, title_justify="left")
    kind = "nodes" if "nodes" in scores["rows"][0] else "graphs"
    table.add_column(kind)
    for name in ("number", METRIC_NAMES[scores["metric"]], "loss"):
        table.add_column(name, justify="right")
    for row in scores["rows"]:
        loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
        text = score_text(scores["metric"], row["score"])
        table.add_row(row[f"{kind}_of"], f"{row[kind]:,}", text, loss)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """The table of `jaxgnn compare`: a row for runs that differ in the seed alone."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.caption = Text(f"{comparison.metrics()}, mean ± standard deviation over the runs")

    def whole(text: str) -> Text:
        return Text(text, overflow="fold")  # in a narrow terminal: cut off, two may be alike

    for name in comparison.columns():
        table.add_column(whole(name), justify="right")
    for cells in comparison.cells():
        table.add_row(*map(whole, cells))
    return table


def evaluation_table(evaluation: dict[str, Any]) -> Table:
    """The table of `jaxgnn evaluate` with a part of the edges: a row a sample, all edges first."""
    metric = METRIC_NAMES[evaluation["metric"]]
    title = Text(printable(f"{evaluation['model']} on {evaluation['dataset']}"))
    width, device = evaluation["aggregated_width"], evaluation["device"]
    # Narrow enough for 80 columns: the file has all digits.
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.caption = Text(printable(f"{metric}; aggregation of {width} features; {device}"))
    table.add_column("taken", no_wrap=True)
    for name in (
        "edges,\n%",
        "test,\n%",
        "points",
        "valida-\ntion, %",
        "aggrega-\ntion, ms",
        "×",
        "infer-\nence, ms",
        "×",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in evaluation["rows"]:
        table.add_row(
            _name_of_sample(row),
            f"{100 * row['edge_share']:.1f}",
            _score(row, "test"),
            "-" if row["test_difference"] is None else f"{100 * row['test_difference']:+.1f}",
            _score(row, "val"),
            f"{1e3 * row['aggregation_seconds']:.3g}",
            f"{row['aggregation_speedup']:.2f}",
            f"{1e3 * row['inference_seconds']:.3g}",
            f"{row['inference_speedup']:.2f}",
        )
    return table


def _name_of_sample(row: dict[str, Any]) -> str:
    if row["drop_rate"] is not None:
        return f"drop {row['drop_rate']:g}"
    return row["strategy"] + ("" if row["sample_size"] is None else f" {row['sample_size']}")


def _score(row: dict[str, Any], name: str) -> str:
    value, deviation = row[f"{name}_score"], row[f"{name}_std"]
    if value is None:
        return "-"
    return f"{100 * value:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def median_seconds(rows: list[dict[str, Any]]) -> float:
    """Median time of an epoch."""
    return statistics.median(row["seconds"] for row in rows)


def print_line(console: Console, text: str) -> None:
    """A line of text that may hold a name: neither markup nor control characters count in it."""
    console.print(Text(printable(text)), soft_wrap=True, highlight=False)


def print_head(console: Console, config: TrainConfig, data: str, directory: Path) -> None:
    """What is trained, on what, and where it is written."""
    print_line(console, data)
    print_line(console, f"{config.model}: {_notable_settings(config)}")
    print_line(console, f"writing to {directory}")


def _notable_settings(config: TrainConfig) -> str:
    """Those that describe any run, and those that are not the default."""
    usual = TrainConfig().settings()
    settings = config.settings()
    names = [
        name
        for name in settings
        if name not in ("dataset", "model")
        and (name in _OF_ANY_RUN or settings[name] != usual[name])
    ]
    return ", ".join(f"{name} {settings[name]}" for name in names) + "; else the defaults"
