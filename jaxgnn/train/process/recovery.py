"""What is safe when a run ends early, and how it goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from jaxgnn._core.text import printable


class RunError(RuntimeError):
    """A disk or memory that gave out: one line that names it, what is safe and how to go on."""


class RunWarning(UserWarning):
    """What a run went on without, or instead."""


def _warn(message: str) -> None:
    warnings.warn(message, RunWarning, stacklevel=3)


class Recovery:
    """What a run has written so far.

    Attributes:
        directory: the run directory, once it can be resumed.
        epoch: that of the last complete checkpoint.
        within: the epoch that a later checkpoint is within, if there is one.
        options: those of the command to resume, beside the directory.
        folds: the run directory of all folds, if the run is one of them.
        warn: called with one line; by default a `RunWarning`.
    """

    def __init__(self, warn: Callable[[str], None] = _warn):
        self.directory: Path | None = None
        self.epoch: int | None = None
        self.within: int | None = None
        self.options = ""
        self.folds: Path | None = None
        self.warn = warn

    def advice(self) -> str:
        """What is safe, and the command that goes on."""
        if self.directory is None:
            return "nothing was trained"
        directory = shlex.quote(str(self.directory))
        command = printable(f"jaxgnn train --resume {directory}{self.options}")
        if self.folds is not None:
            of_all = shlex.quote(str(self.folds))
            command = printable(f"the same command and --run-directory {of_all}")
        if self.within is not None:
            return f"the checkpoint within epoch {self.within} is safe, continue with {command}"
        if self.epoch is None:
            return f"there is no checkpoint yet, start over with {command}"
        return f"the checkpoint of epoch {self.epoch} is safe, continue with {command}"

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what disks and memory raise into a `RunError`."""
        try:
            with memory_errors():
                yield
        except OSError as error:
            raise RunError(f"{describe(error)}; {self.advice()}") from error
        except MemoryError as error:
            raise RunError(
                f"out of memory: {error}; {self.advice()}, or use a smaller model"
            ) from error


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turns what JAX raises where memory runs out into a `MemoryError` of one line."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        first = next(iter(str(error).splitlines()), "") or "the process has no more"
        raise MemoryError(printable(first)[:200]) from error


def describe(error: OSError) -> str:
    """An operating system's error as `path: reason`."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return printable(reason)
    return f"{printable(os.fsdecode(error.filename))}: {printable(reason)}"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the path to errors of the operating system that come without one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        reason = error.strerror or os.strerror(error.errno)
        raise OSError(error.errno, reason, os.fspath(path)) from error


def os_error(error: Exception, path: Path) -> OSError:
    """What Orbax and TensorStore raise for an error of the operating system, as that error, with a
    path: `path` if the error names none."""
    if isinstance(error, OSError):
        if error.filename is not None or error.errno is None:
            return error
        return OSError(error.errno, error.strerror or os.strerror(error.errno), os.fspath(path))
    text = str(error)
    code = re.search(r"os_error_code='(\d+)'", text)
    named = re.search(r'"(/[^"]*)": (?:Failed to|Error)', text)
    # TensorStore leaves the code out where the message is long.
    known = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
    for number in [int(code[1])] if code else [n for n in known if os.strerror(n) in text]:
        return OSError(number, os.strerror(number), named[1] if named else os.fspath(path))
    first = next(iter(text.splitlines()), "")
    return OSError(errno.EIO, f"{type(error).__name__}: {first[:100]}", os.fspath(path))


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "emory" in text
