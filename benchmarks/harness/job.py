"""A job: an operation, a training step or a build that is prepared, to be timed and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Unsupported(Exception):
    """This implementation does not have this operation; the reason is the message."""


@dataclasses.dataclass
class Job:
    """What the worker times, then checks.

    Attributes:
        identity: the row's `case`, `impl`, `dtype`, `shape` and `pass`.
        seconds: runs that many calls and returns the time that they took.
        check: the row's `error`, `accurate` and further fields, after the timing.
        loop: makes a `seconds` whose call is a loop of that many calls on the device.
        after: fields that follow from the time of a call in milliseconds.
    """

    identity: dict[str, Any]
    seconds: Callable[[int], float]
    check: Callable[[], dict[str, Any]]
    peak_bytes: Callable[[], int | None]
    loop: Callable[[int], Callable[[int], float]] | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    after: Callable[[float], dict[str, Any]] = lambda ms: {}
    close: Callable[[], None] = lambda: None


class Workshop(Protocol):
    """Makes the jobs of a task's entries, one after the other."""

    def prepare(self, entry: dict[str, Any]) -> Job | None:
        """The job of an entry; `None` where it leaves a file in place of a row."""

    def clear(self) -> None:
        """Gives memory back to the system between jobs."""


def checked(error: float, tolerance: float) -> dict[str, Any]:
    """The fields `error` and `accurate` of a row."""
    finite = bool(np.isfinite(error))
    return {"error": error if finite else "not finite", "accurate": finite and error <= tolerance}


def out_of_memory(error: Exception) -> bool:
    """Whether a framework asked for more memory than there is."""
    return "out of memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)


def device_lost(error: Exception, device: str) -> bool:
    """Whether the GPU may be in any state after this error, so that the process must end."""
    signs = ("CUDA error", "CUDA_ERROR", "INTERNAL", "illegal")
    return (
        device == "gpu" and not out_of_memory(error) and any(sign in str(error) for sign in signs)
    )
