"""Ctrl-C while a run trains."""

from __future__ import annotations

import signal
import threading
from typing import Self


class PostponedInterrupt:
    """Puts Ctrl-C off to the end of the epoch, whose checkpoint is then written.

    A context manager. A second Ctrl-C is not put off.

    Attributes:
        requested: whether there was one.
        epoch: the last that ended.
    """

    def __init__(self) -> None:
        self.requested = False
        self.epoch = 0

    def __enter__(self) -> Self:
        # Python lets the main thread alone handle signals.
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._previous = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        """Raises KeyboardInterrupt if one was requested and nothing else was raised."""
        if self._main:
            signal.signal(signal.SIGINT, self._previous)
        if self.requested and kind is None:
            raise KeyboardInterrupt(f"interrupted after epoch {self.epoch}")

    def _request(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
