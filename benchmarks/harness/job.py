"""A job: an operation, a training step or a build that is prepared, to be timed and checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np


class Unsupported(Exception):
    """This implementation does not have this operation; the reason is the message."""


@dataclasses.dataclass
class Job:
    """What the worker times, then checks."""

    seconds: Callable[[int], float]  # runs that many calls and returns the time that they took
    peak_bytes: Callable[[], int | None]
    # The row's `case`, `impl`, `dtype`, `shape` and `pass`.
    identity: dict[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[], dict[str, Any]] = dict  # `error`, `accurate` and more, after the timing
    # Makes a `seconds` whose call is a loop of that many calls on the device.
    loop: Callable[[int], Callable[[int], float]] | None = None
    loop_steps: int | None = None  # of each loop, which then is timed however long a call takes
    long_call: float = math.inf  # seconds from which on a call is timed three times at most
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    after: Callable[[float], dict[str, Any]] = lambda ms: {}  # fields that follow from a call's ms
    close: Callable[[], None] = lambda: None
    # Of a step: the loss of the timed program, the loss and the gradients by parameter name
    # without dropout, which `check` compares.
    gradients: Callable[[], tuple[float, float, dict[str, Any]]] = lambda: (0.0, 0.0, {})
    # Of a model's forward pass: these rows of its result.
    rows: Callable[[np.ndarray], np.ndarray] = lambda rows: np.zeros(rows.shape)


def checked(error: float, tolerance: float) -> dict[str, Any]:
    """The fields `error` and `accurate` of a row."""
    finite = bool(np.isfinite(error))
    return {"error": error if finite else "not finite", "accurate": finite and error <= tolerance}
