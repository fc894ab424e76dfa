"""`compare`: runs side by side, those that differ in the seed alone as one row, or in the fold."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxgnn._core import checks
from jaxgnn._core.text import printable
from jaxgnn.train.reports.records import check_path, read_config, replacing
from jaxgnn.train.settings.options import ConfigError, option
from jaxgnn.train.settings.saved_settings import from_settings
from jaxgnn.train.steps.task import ERRORS, METRIC_NAMES

SUFFIXES = (".md", ".csv", ".png")

_NUMBERS = ("epochs", "best_epoch", "parameters", "epoch_seconds")


@dataclasses.dataclass(frozen=True)
class ComparedRuns:
    """Finished runs whose settings are equal but for the seed, and of many graphs the split.

    Attributes:
        settings: those that differ between rows, by name.
        metric: what the scores are.
        seeds: of the runs.
        test_score, val_score: means over the runs, `None` where a run has none.
        test_std, val_std: standard deviations over the runs (of the population); `None` of one run.
        epochs, epoch_seconds: means of the epochs done and of their median times.
    """

    settings: dict[str, Any]
    metric: str
    seeds: tuple[int, ...]
    test_score: float | None
    test_std: float | None
    val_score: float | None
    val_std: float | None
    epochs: float
    epoch_seconds: float


_RESULTS = tuple(
    field.name for field in dataclasses.fields(ComparedRuns) if field.name != "settings"
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        rows: the finished ones, in the order in which they were named.
        unfinished: directories of runs without a result.
    """

    rows: tuple[ComparedRuns, ...]
    unfinished: tuple[str, ...]

    def columns(self) -> list[str]:
        """The heads of `cells`. A setting with the name of a result is its option: `--epochs`."""
        return [*self._settings(), "runs", "test", "validation", "epochs", "epoch, ms"]

    def _settings(self) -> list[str]:
        names = self.rows[0].settings if self.rows else ()
        return [option(name) if name in _RESULTS else name for name in names]

    def metrics(self) -> str:
        """What the scores are, and the unit of shares."""
        names = dict.fromkeys(row.metric for row in self.rows)
        return ", ".join(METRIC_NAMES[name] + " in %" * (name not in ERRORS) for name in names)

    def cells(self) -> list[list[str]]:
        """A row of text for each of `rows`; scores with their standard deviation, shares in
        percent."""
        return [
            [
                *(printable(value) for value in row.settings.values()),
                str(len(row.seeds)),
                _score(row.metric, row.test_score, row.test_std),
                _score(row.metric, row.val_score, row.val_std),
                f"{row.epochs:g}",
                f"{1e3 * row.epoch_seconds:.2f}",
            ]
            for row in self.rows
        ]

    def markdown(self) -> str:
        """As a table in Markdown, unfinished runs named below it."""
        lines = []
        if self.rows:
            heads = self.columns()
            lines += [_line(heads), _line(["---"] * len(heads)), *map(_line, self.cells())]
            text = f"Scores: {self.metrics()}, means ± standard deviations over the runs."
            lines += ["", text]
        if self.unfinished:
            lines += ["", *(f"Unfinished: {printable(name)}" for name in self.unfinished)]
        return "\n".join(lines).strip() + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a `.md`, a `.csv` with all digits, or a plot as `.png`.

        Raises:
            ConfigError: a path of another suffix.
            OSError: it cannot be written.
        """
        path = Path(path)
        if path.suffix == ".png":
            from jaxgnn.train.reports.comparison_plot import save_comparison_plot

            save_comparison_plot(path, self)
        elif path.suffix == ".md":
            with replacing(path) as file:
                file.write(self.markdown())
        elif path.suffix == ".csv":
            with replacing(path) as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow([*self._settings(), *_RESULTS])
                for row in self.rows:
                    seeds = " ".join(map(str, row.seeds))
                    found = dataclasses.asdict(row) | {"seeds": seeds}
                    writer.writerow([*row.settings.values(), *(found[name] for name in _RESULTS)])
        else:
            raise ConfigError(f"path: expected {', '.join(SUFFIXES)}, got {printable(path)}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _score(metric: str, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    unit, digits = (1, 4) if metric in ERRORS else (100, 2)
    text = f"{unit * mean:.{digits}f}"
    return text if deviation is None else f"{text} ± {unit * deviation:.{digits}f}"


def compare(directories: Sequence[str | os.PathLike[str]], name: str = "run") -> Comparison:
    """Reads what runs came to; nothing is written to them.

    Args:
        directories: the run directories, each once.
        name: the argument that gave them, for messages.

    Raises:
        TypeError: no sequence of paths.
        ConfigError: no runs, one named twice, no run directory, or a damaged summary.
    """
    if isinstance(directories, str | os.PathLike) or not isinstance(directories, Iterable):
        got = type(directories).__name__
        raise TypeError(f"directories: expected a sequence of paths, got {got}")
    paths = [checks.path(directory, name) for directory in directories]
    if not paths:
        raise ConfigError(f"{name}: expected at least one run, got none")
    for path in paths:
        check_path(path, name)
    known: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in known:
            raise ConfigError(f"{name}: {printable(path)} is named twice")
        known.add(real)
    groups: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    unfinished = []
    for path in paths:
        settings = from_settings(read_config(path, name)["settings"]).settings()
        summary = _summary(path, name)
        if summary is None or not _is_done(settings, summary):
            unfinished.append(str(path))
            continue
        own = {key: value for key, value in settings.items() if key not in _repeats(settings)}
        key = json.dumps([own, summary["metric"]], sort_keys=True)
        groups.setdefault(key, []).append((settings, summary))
    firsts = [runs[0][0] for runs in groups.values()]
    differing = [
        key
        for key in (firsts[0] if firsts else {})
        if not all(key in _repeats(settings) for settings in firsts)
        and len({json.dumps(settings[key]) for settings in firsts}) > 1
    ]
    rows = tuple(_row(runs, differing) for runs in groups.values())
    return Comparison(rows, tuple(unfinished))


def _repeats(settings: dict[str, Any]) -> tuple[str, ...]:
    """The settings in which the runs of a row may differ: splits of many graphs are folds."""
    return ("seed", "split") if settings["task"] == "graph" else ("seed",)


def _row(runs: list[tuple[dict[str, Any], dict[str, Any]]], names: list[str]) -> ComparedRuns:
    settings, summary = runs[0]

    def moments(name: str) -> tuple[float | None, float | None]:
        values = [summary[name] for _, summary in runs]
        if None in values:
            return None, None
        return statistics.fmean(values), statistics.pstdev(values) if len(values) > 1 else None

    test, val = moments("test_score"), moments("val_score")
    return ComparedRuns(
        settings={name: settings[name] for name in names},
        metric=summary["metric"],
        seeds=tuple(settings["seed"] for settings, _ in runs),
        test_score=test[0],
        test_std=test[1],
        val_score=val[0],
        val_std=val[1],
        epochs=statistics.fmean(summary["epochs"] for _, summary in runs),
        epoch_seconds=statistics.fmean(summary["epoch_seconds"] for _, summary in runs),
    )


def _summary(directory: Path, name: str) -> dict[str, Any] | None:
    """The run's results; `None` where there are none."""
    path = directory / "summary.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {printable(path)}: {printable(error)[:200]}") from error
    if not isinstance(value, dict) or not _is_summary(value):
        raise ConfigError(f"{name}: {printable(path)}: expected the results of a run")
    return value


def _is_summary(value: dict[str, Any]) -> bool:
    numbers = [value.get(name) for name in _NUMBERS]
    scores = [value.get(name, "") for name in ("test_score", "val_score")]
    return (
        value.get("metric") in METRIC_NAMES
        and type(value.get("stopped")) is bool
        and all(map(_is_finite, numbers))
        and all(score is None or _is_finite(score) for score in scores)
    )


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63 and math.isfinite(value)


def _is_done(settings: dict[str, Any], summary: dict[str, Any]) -> bool:
    """Whether the results are those of the settings: a run may have been made longer since."""
    if summary["epochs"] >= settings["epochs"]:
        return True
    waited = summary["epochs"] - summary["best_epoch"]
    return summary["stopped"] and 0 < settings["patience"] <= waited
