"""`run_folds`: a run of `--task graph` for each of the first splits of a set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxgnn._core.arguments import as_integer
from jaxgnn.data import GraphSet
from jaxgnn.train.problems.graph_data import FOLDS, graph_split
from jaxgnn.train.problems.problem import load_graphs
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.comparison import Comparison, compare
from jaxgnn.train.reports.records import create_run_directory
from jaxgnn.train.runs.runner import run
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


def run_folds(
    config: TrainConfig,
    folds: int,
    console: Console | None = None,
    *,
    dataset: GraphSet | None = None,
    recovery: Callable[[], Recovery] = Recovery,
) -> Comparison:
    """Trains a run for each of the splits 0 to `folds - 1`, in the directories `fold0`, ... of the
    run directory. Those that are there are continued: after an interruption the same call goes on.

    Args:
        config: the options, with `task="graph"`; without `run_directory` a new one in `runs`.
        folds: their number.
        console: where to show progress and results; nowhere if None.
        dataset: the data; by default those of `config.dataset`.
        recovery: makes what each run tells of what it has written.

    Returns:
        The mean and the standard deviation over the folds, as a `Comparison` of one row.

    Raises:
        TypeError: `config` is no `TrainConfig`.
        ConfigError: another task, a split chosen, or fewer splits than folds.
        OSError, DataError, CheckpointError, DivergenceError, RunError: as of `run`.
    """
    check_config(config)
    config.check()
    check_folds(config, folds)
    graphs = load_graphs(config) if dataset is None else dataset
    count = len(graphs.splits) or FOLDS
    if folds > count:
        raise ConfigError(
            f"--folds: expected at most the {count} splits of {graphs.name}, got {folds}"
        )
    for fold in range(folds):
        graph_split(graphs, fold)
    directory = create_run_directory(config)
    directories = [directory / f"fold{fold}" for fold in range(folds)]
    for fold, path in enumerate(directories):
        options = dataclasses.replace(config, split=fold, run_directory=str(path))
        if _is_begun(path):
            options = dataclasses.replace(options, resume=str(path))
        told = recovery()
        told.folds = directory
        run(options, console, dataset=graphs, recovery=told)
    return compare(directories, "--run-directory")


def check_folds(config: TrainConfig, folds: int) -> None:
    """Raises a `ConfigError` for options that runs of several folds do not have."""
    if as_integer(folds) is None or not 1 <= folds <= 1 << 16:
        raise ConfigError(f"--folds: expected an integer from 1 to {1 << 16}, got {folds!r}")
    if config.task != "graph":
        raise ConfigError(f"--folds: expected --task graph with it, got --task {config.task}")
    if config.split:
        raise ConfigError(f"--folds: expected no --split with it, got {config.split}")
    if config.resume is not None:
        raise ConfigError("--folds: expected --run-directory to continue, got --resume")


def _is_begun(path: Path) -> bool:
    return (path / "config.json").exists()
