"""The run directory: `config.json`, `metrics.jsonl`, `summary.json`."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxgnn.data import NodeDataset, Split
from jaxgnn.train.checkpoint import CheckpointError
from jaxgnn.train.config import ConfigError, TrainConfig


def create_run_directory(config: TrainConfig) -> Path:
    """Makes a new run's directory.

    Raises:
        ConfigError: it exists and is not empty, or cannot be made.
    """
    if config.run_directory is not None:
        path = Path(config.run_directory)
    else:
        name = Path(config.dataset).stem or "graph"
        time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        path = Path("runs") / f"{name}-{config.model}-{time}"
        suffix = 2
        while path.exists():
            path = path.with_name(f"{name}-{config.model}-{time}-{suffix}")
            suffix += 1
    try:
        path.mkdir(parents=True, exist_ok=True)
        occupied = any(path.iterdir())
    except OSError as error:
        raise ConfigError(f"--run-directory: {path}: {error.strerror or error}") from error
    if occupied:
        raise ConfigError(
            f"--run-directory: {path} is not empty; continue its run with --resume {path}"
        )
    return path


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds a run directory for this process; the system lets go when the process dies.

    Raises:
        ConfigError: another process holds it.
    """
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{directory}: another process is training there") from None
        yield


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_config(directory: Path) -> dict[str, Any]:
    """The `config.json` of a run.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    path = directory / "config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"--resume: {directory} is no run directory (no config.json)") from None
    except NotADirectoryError:
        raise ConfigError(f"--resume: {directory} is no directory") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--resume: {path}: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("settings"), dict):
        raise ConfigError(f"--resume: {path}: expected an object with settings")
    return value


def fingerprint(dataset: NodeDataset, split: Split) -> str:
    """A checksum of all that a run reads, so that it is not resumed on other data."""
    graph = dataset.graph
    crc = 0
    for array in (
        graph.row_offsets,
        graph.senders,
        dataset.features,
        dataset.labels,
        split.train,
        split.val,
        split.test,
    ):
        array = np.ascontiguousarray(array)
        crc = zlib.crc32(repr((array.shape, array.dtype.str)).encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"


class MetricsLog:
    """`metrics.jsonl`: an object a line, an epoch each, written as it happens.

    All but `seconds` (the epoch's time) is a function of the configuration and the data.
    """

    def __init__(self, path: Path, epochs: int = 0):
        """Opens the log at the end of an epoch, dropping the lines that a killed run wrote after
        the checkpoint it continues from.

        Raises:
            CheckpointError: lines before that are missing.
        """
        self.rows: list[dict[str, Any]] = []
        if epochs:
            self.rows = _read_rows(path, epochs)
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(_line(row) for row in self.rows)
        temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, row: dict[str, Any]) -> None:
        """Adds an epoch."""
        self.rows.append(row)
        self._file.write(_line(row))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _read_rows(path: Path, epochs: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if len(rows) == epochs:
                    break
                row = json.loads(line)
                if row["epoch"] != len(rows) + 1:
                    raise ValueError(f"expected epoch {len(rows) + 1}, got {row['epoch']}")
                rows.append(row)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged before epoch {epochs} ({error})") from error
    if len(rows) < epochs:
        raise CheckpointError(f"{path}: expected {epochs} epochs, got {len(rows)}")
    return rows
