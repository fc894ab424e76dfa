"""A training run that is read, not continued."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxgnn._core import checks
from jaxgnn._core.text import printable
from jaxgnn.data import NodeDataset, Split
from jaxgnn.train.loop.epochs import Best, Progress
from jaxgnn.train.loop.resume import read_progress
from jaxgnn.train.problems.node_problem import choose_split, load_dataset, make_task
from jaxgnn.train.process.checkpoint import CheckpointError, Checkpoints
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.records import check_data, check_path, fingerprint, read_config
from jaxgnn.train.runs.runner import check_wide
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError, TaskName
from jaxgnn.train.settings.saved_settings import from_settings
from jaxgnn.train.steps.build_program import build
from jaxgnn.train.steps.step import Program
from jaxgnn.train.steps.task import Task


@dataclasses.dataclass(frozen=True)
class RestoredRun:
    """A run and the parameters that it selected.

    Attributes:
        directory: the run directory.
        config: the settings.
        dataset, split, task: the data; the task's features are where the run had them.
        program: the model, taken apart.
        best: its selected parameters and other variables.
        progress: the epochs done, and the selected one.
    """

    directory: Path
    config: TrainConfig
    dataset: NodeDataset
    split: Split
    task: Task
    program: Program
    best: Best
    progress: Progress


def saved_config(directory: str | os.PathLike[str], name: str = "run") -> TrainConfig:
    """The settings of a run; `name` is the argument that gave its directory.

    Raises:
        ConfigError: it is no run directory.
    """
    return from_settings(read_config(checks.path(directory, name), name)["settings"])


def restore_run(
    directory: str | os.PathLike[str],
    name: str = "run",
    *,
    dataset: NodeDataset | None = None,
    warn: Callable[[str], None] | None = None,
) -> RestoredRun:
    """Restores the newest checkpoint of a run that is whole; nothing is written to the run.

    Args:
        directory: the run directory.
        name: the argument that gave it.
        dataset: the data; by default those of the run's settings.
        warn: called with one line for each checkpoint that is damaged; by default a `RunWarning`.

    Raises:
        ConfigError, DataError: no run directory, or other data.
        CheckpointError: no checkpoint, or none that can be restored.
    """
    directory = checks.path(directory, name)
    config = run_config(directory, name)
    if dataset is None:
        dataset = load_dataset(config)
    split = choose_split(dataset, config.split)
    checksum = fingerprint(dataset, split, weights=config.edge_weights)
    data = {"name": dataset.name, "fingerprint": checksum}
    check_data(directory, read_config(directory, name).get("data"), data, name)
    task = make_task(config, dataset, split)
    program, state = build(config, task)
    start = (state, Best(state.params, state.rest))
    (_, best), progress = newest_checkpoint(directory, name, start, warn or Recovery().warn)
    return RestoredRun(directory, config, dataset, split, task, program, best, progress)


def run_config(directory: Path, name: str, *tasks: TaskName) -> TrainConfig:
    """The settings of a run of these tasks, by default of nodes, that has checkpoints: their folder
    is not made.

    Raises:
        ConfigError: no run directory, a run of another task, a float64 run without
            `jax_enable_x64`, or no checkpoints.
    """
    config = check_wide(saved_config(directory, name))
    tasks = tasks or ("node",)
    if config.task not in tasks:
        expected = " or ".join(tasks)
        raise ConfigError(f"{name}: expected a run of --task {expected}, got --task {config.task}")
    check_path(directory, name)
    if not (directory / "checkpoints").is_dir():
        raise _no_checkpoint(directory, name)
    return config


def newest_checkpoint(
    directory: Path, name: str, start: Any, warn: Callable[[str], None]
) -> tuple[Any, Progress]:
    """The newest checkpoint of a run that is whole, and its progress.

    Args:
        directory: the run directory.
        name: the argument that gave it.
        start: a state of the same structure.
        warn: called with one line for each newer checkpoint, which is damaged.

    Raises:
        CheckpointError: none can be restored.
        ConfigError: there is none.
    """
    damaged: list[str] = []
    with Checkpoints(directory / "checkpoints") as checkpoints:
        for epoch in checkpoints.epochs():
            try:
                state, values = checkpoints.restore(epoch, start)
                progress = read_progress(values, epoch)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for reason in damaged:
                warn(f"{reason}; the checkpoint of epoch {epoch} is read")
            return state, progress
    if damaged:
        raise CheckpointError(f"{damaged[0]}; no older one is whole")
    raise _no_checkpoint(directory, name)


def _no_checkpoint(directory: Path, name: str) -> ConfigError:
    return ConfigError(f"{name}: {printable(directory)} has no checkpoint yet")
