"""The run directory: `config.json`, `metrics.jsonl`, `summary.json`."""

from __future__ import annotations

import contextlib
import csv
import datetime
import errno
import fcntl
import json
import math
import os
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from jaxgnn._core.checksum import checksum
from jaxgnn._core.text import printable
from jaxgnn.data import NodeDataset, Split
from jaxgnn.data.formats.partitioned import arrays_before_masks
from jaxgnn.train.process.checkpoint import CheckpointError
from jaxgnn.train.process.recovery import describe, naming
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError

_LOCK = "lock"


# What is wrong with the path that was given, not with the disk.
_BAD_PATHS = (
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
)


def create_run_directory(config: TrainConfig) -> Path:
    """Makes a new run's directory, if it is not there.

    Raises:
        ConfigError: a path that cannot be one.
        OSError: it cannot be made: a full disk, say.
    """
    if config.run_directory is None:
        return _create_named(config)
    path = Path(config.run_directory)
    check_path(path, "--run-directory")
    make_directory(path, "--run-directory")
    return path


def check_new_directory(config: TrainConfig) -> None:
    """Refuses early what `create_run_directory` and `check_vacant` would refuse of a path that is
    there, before data are read.

    Raises:
        ConfigError: a path that cannot be one, or a directory that is not empty.
    """
    if config.run_directory is None or not os.path.exists(config.run_directory):
        return
    check_vacant(create_run_directory(config))


def make_directory(path: Path, name: str) -> None:
    """Makes the directory that the option `name` gave, if it is not there.

    Raises:
        ConfigError: a path that cannot be one.
        OSError: it cannot be made: a full disk, say.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _BAD_PATHS:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: {printable(path)}: {reason}") from error


def _create_named(config: TrainConfig) -> Path:
    """A directory below `runs` that no other process makes."""
    # At most 100 bytes of the data's name: file systems allow 255 in all.
    stem = printable(Path(config.dataset).stem).replace("\\", "-")
    stem = stem.encode("utf-8", "replace")[:100].decode("utf-8", "ignore").strip() or "graph"
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name, suffix = f"{stem}-{config.model}-{time}", 2
    path = Path("runs") / name
    check_path(path, "--run-directory")
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not path.is_dir():
                raise
            path, suffix = path.with_name(f"{name}-{suffix}"), suffix + 1


def check_path(path: Path, name: str) -> None:
    """Refuses what checkpoints cannot be written to.

    Raises:
        ConfigError: a path with backslashes, or one that is not UTF-8.
    """
    text = str(path.absolute())
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected a path in UTF-8, got {printable(text)}") from None
    if "\\" in text or "\0" in text:
        raise ConfigError(f"{name}: expected a path without backslashes, got {printable(text)}")


def check_vacant(directory: Path) -> None:
    """Refuses a directory, locked by now, that holds anything else.

    Raises:
        ConfigError: it does.
    """
    if any(path.name != _LOCK for path in directory.iterdir()):
        path = printable(directory)
        is_run = (directory / "config.json").exists()
        advice = f"; continue its run with --resume {path}" if is_run else ""
        raise ConfigError(f"--run-directory: {path} is not empty{advice}")


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds a run directory for this process; the system lets go when the process dies.

    Raises:
        ConfigError: another process holds it.
    """
    path = directory / _LOCK
    with path.open("a") as file:
        try:
            with naming(path):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{printable(directory)}: another process is training there"
            ) from None
        yield


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


@contextlib.contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[Any]:
    """A file to write, of text in UTF-8 or binary, which takes the place of `path` when all of it
    is on the disk."""
    temporary = path.with_name(path.name + ".tmp")
    with naming(path):
        try:
            with (
                temporary.open("wb")
                if binary
                else temporary.open("w", encoding="utf-8", newline="") as file
            ):
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if error.filename == os.fspath(temporary) and not temporary.exists():
                error.filename = os.fspath(path)  # the one that was asked for
            raise


def read_config(directory: Path, name: str = "--resume") -> dict[str, Any]:
    """The `config.json` of a run; `name` is the option that gave its directory.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    shown = printable(directory)
    path = directory / "config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{name}: {shown} is no run directory (no config.json)") from None
    except NotADirectoryError:
        raise ConfigError(f"{name}: {shown} is no directory") from None
    except OSError as error:
        raise ConfigError(f"{name}: {describe(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {printable(path)}: {printable(error)[:200]}") from error
    if not isinstance(value, dict) or not isinstance(value.get("settings"), dict):
        raise ConfigError(f"{name}: {printable(path)}: expected an object with settings")
    return value


def check_data(directory: Path, saved: Any, data: dict[str, str], name: str = "--resume") -> None:
    """Refuses data that are not those which a run recorded.

    Raises:
        ConfigError: they are not.
    """
    if saved != data:
        raise ConfigError(
            f"{name}: the data are not those of {printable(directory)}: expected {_named(saved)}, "
            f"got {_named(data)}"
        )


def _named(data: Any) -> str:
    """The data by their name and the checksum of all that a run reads."""
    if not isinstance(data, dict) or data.keys() != {"name", "fingerprint"}:
        return printable(reprlib.repr(data))
    return printable(f"{data['name']} with the checksum {data['fingerprint']}")


def fingerprint(dataset: NodeDataset, split: Split, *, weights: bool = False) -> str:
    """A checksum of all that a run reads, so that it is not resumed on other data; of the weights
    of edges where it reads them."""
    return checksum(*data_arrays(dataset, split, weights=weights))


def data_arrays(dataset: NodeDataset, split: Split, *, weights: bool = False) -> list[Any]:
    """All that a run reads."""
    before = arrays_before_masks(dataset, weights=weights)
    return [*before, split.train, split.val, split.test]


def write_metrics(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes `metrics.csv`: a line an epoch, empty where an epoch lacks a metric."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class MetricsLog:
    """`metrics.jsonl`: an object a line, an epoch each, written as it happens.

    All but `seconds` (the epoch's time) is a function of the configuration and the data.
    """

    def __init__(self, path: Path, rows: Sequence[dict[str, Any]] = ()):
        """Opens the log at the end of `rows`, dropping the lines that a killed run wrote after
        the checkpoint it continues from.

        Raises:
            OSError: it cannot be written.
        """
        self.rows = list(rows)
        self._path = path
        with replacing(path) as file:
            file.writelines(_line(row) for row in self.rows)
        self._file = path.open("a", encoding="utf-8")

    def append(self, row: dict[str, Any]) -> None:
        """Adds an epoch."""
        self.rows.append(row)
        with naming(self._path):
            self._file.write(_line(row))
            self._file.flush()

    def sync(self) -> None:
        """Waits until all epochs are on the disk."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; what `append` could not write is lost."""
        with contextlib.suppress(OSError):
            self._file.close()


class KeptRows:
    """The rows of a process that writes no log."""

    def __init__(self, rows: Sequence[dict[str, Any]]):
        self.rows = list(rows)

    def append(self, row: dict[str, Any]) -> None:
        """Adds an epoch."""
        self.rows.append(row)

    def sync(self) -> None:
        """Nothing is to be waited for."""


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


def read_rows(path: Path, epochs: int) -> list[dict[str, Any]]:
    """The first lines of a log.

    Raises:
        CheckpointError: lines of these epochs that are missing or damaged.
    """
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            while len(rows) < epochs and (line := file.readline()):
                row = json.loads(line)
                _check_row(row, len(rows) + 1)
                rows.append(row)
    except OSError as error:
        raise CheckpointError(describe(error)) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{printable(path)}: damaged before epoch {epochs} ({printable(error)[:200]})"
        ) from error
    if len(rows) < epochs:
        raise CheckpointError(f"{printable(path)}: expected {epochs} epochs, got {len(rows)}")
    return rows


def _check_row(row: Any, epoch: int) -> None:
    if not isinstance(row, dict) or not {"epoch", "loss", "seconds"} <= row.keys():
        raise ValueError("expected an object with epoch, loss and seconds")
    for name, value in row.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {reprlib.repr(value)}")
    if row["epoch"] != epoch:
        raise ValueError(f"expected epoch {epoch}, got {reprlib.repr(row['epoch'])}")
