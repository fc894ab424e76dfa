"""Where a run continues: at its newest checkpoint that is whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jaxgnn._core.text import printable
from jaxgnn.train.loop.epochs import Progress
from jaxgnn.train.process.checkpoint import CheckpointError, Checkpoints
from jaxgnn.train.process.recovery import Recovery
from jaxgnn.train.reports.records import read_rows
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps.step import LossSums


@dataclasses.dataclass
class Position:
    """Where a run is.

    Attributes:
        state: what `Checkpoints` keep.
        progress: the epochs done and what they came to.
        rows: the metrics of each.
        sums: of the epoch that the state is within, `None` between two.
    """

    state: Any
    progress: Progress = dataclasses.field(default_factory=Progress)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    sums: LossSums | None = None


def restore_newest(
    checkpoints: Checkpoints, log: Path, start: Any, config: TrainConfig, recovery: Recovery
) -> Position:
    """The newest checkpoint that can be restored and whose epochs the log has.

    Newer ones are moved aside, with a warning that says so: training writes them anew.

    Args:
        checkpoints: those of the run.
        log: the metrics of its epochs.
        start: the state that the run begins with, if it has no checkpoint.
        config: what is to be trained.
        recovery: what is told of the checkpoint, and of those that are damaged.

    Raises:
        CheckpointError: there are checkpoints, but none can be restored.
        ConfigError: the configuration ends before the checkpoint does.
    """
    damaged: list[tuple[int, str]] = []
    for epoch in checkpoints.epochs():
        try:
            state, values = checkpoints.restore(epoch, start)
            position = Position(state, read_progress(values, epoch), read_rows(log, epoch))
        except CheckpointError as error:
            damaged.append((epoch, str(error)))
            continue
        _check_length(config, position.progress)
        for newer, reason in damaged:
            moved = printable(checkpoints.set_aside(newer))
            recovery.warn(f"{reason}; continuing from epoch {epoch}, the damaged one is {moved}")
        recovery.epoch = epoch
        return position
    if damaged:
        reason = damaged[0][1]
        raise CheckpointError(f"{reason}; no older one is whole, start a new run")
    return Position(start)


def restore_within(
    directory: Path,
    log: Path,
    position: Position,
    sums: LossSums,
    config: TrainConfig,
    recovery: Recovery,
) -> Position:
    """The position within an epoch where the run was interrupted, if that is not before this one.

    Args:
        directory: of the checkpoints within epochs, by the steps done.
        log: the metrics of the epochs.
        position: what `restore_newest` found.
        sums: of no batches.
        config: what is to be trained.
        recovery: is told of the epoch, and of what is damaged.

    Raises:
        ConfigError: the configuration ends before the epoch.
    """
    if not directory.is_dir():
        return position
    with Checkpoints(directory) as checkpoints:
        for steps in checkpoints.epochs():
            try:
                (state, best, found), values = checkpoints.restore(steps, (*position.state, sums))
                epoch = values.get("epoch") if isinstance(values, dict) else None
                progress = read_progress(values, epoch if isinstance(epoch, int) else -1)
                if progress.epoch < position.progress.epoch:
                    break
                rows = read_rows(log, progress.epoch)
            except CheckpointError as error:
                # Out of the way: steps up to this one are to be saved again.
                moved = printable(checkpoints.set_aside(steps, "damaged-within"))
                recovery.warn(
                    f"{error}; continuing from an earlier checkpoint, the damaged one is {moved}"
                )
                continue
            _check_length(config, progress)
            recovery.within = progress.epoch + 1
            return Position((state, best), progress, rows, found)
    return position


def read_progress(values: Any, epoch: int) -> Progress:
    """The progress that the checkpoint of an epoch holds.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return Progress.from_json(values, epoch)
    except ValueError as error:
        raise CheckpointError(f"the progress of epoch {epoch} is damaged: {error}") from error


def _check_length(config: TrainConfig, progress: Progress) -> None:
    """Refuses fewer epochs than are done; a longer patience lets a stopped run go on."""
    if config.epochs < progress.epoch:
        raise ConfigError(
            f"--epochs: expected at least the {progress.epoch} that the run has, got "
            f"{config.epochs}"
        )
    waited = progress.epoch - progress.best_epoch
    progress.stopped = 0 < config.patience <= waited
