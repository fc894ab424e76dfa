"""Standard output and standard error, which may be full, closed or no terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class OutputClosed(Exception):
    """Who read standard output went away."""


class Output:
    """A stream whose errors say that they are standard output's."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with _named(self._stream):
            return self._stream.write(text)

    def flush(self) -> None:
        with _named(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _named(stream: Any) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is still in the buffer would be written, and fail, again when the process ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosed from None
        raise OSError(error.errno, error.strerror, "standard output") from error


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Standard output as an `Output`, flushed at the end; streams that are closed as nowhere."""
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, stack.enter_context(open(os.devnull, "w")))
            with contextlib.suppress(AttributeError):  # a stream that is no file
                getattr(sys, name).reconfigure(errors="backslashreplace")
        output = Output(sys.stdout)
        with contextlib.redirect_stdout(output):  # type: ignore[type-var]
            yield
            output.flush()


def print_error(message: str) -> None:
    """One line on standard error, if that takes it."""
    from jaxgnn._core.text import printable

    with contextlib.suppress(OSError):
        print(f"jaxgnn: {printable(message)}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """With a unit; an estimate is infinite where a kernel does not serve."""
    if seconds == float("inf"):
        return "cannot"
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    return f"{seconds / size:.3g} {unit}"
