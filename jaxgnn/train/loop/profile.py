"""`--profile`: a trace of a run's first epochs, for TensorBoard, XProf or Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import jax

from jaxgnn.train.reports.records import make_directory

_EPOCHS = 10


class Profile:
    """Traces from its entry to the end of the tenth epoch, or of the run; nothing without a
    directory.

    Each epoch is a step of the trace, and operations are below the names of their layers.
    """

    def __init__(self, directory: str | None, run_directory: str | None = None):
        """Makes the directory, if it is not there; one within the run's, which is empty until the
        run begins, is made with the trace.

        Raises:
            ConfigError: a path that cannot be one.
        """
        self._directory, self._left = directory, 0
        if directory is None:
            return
        if run_directory is None or not _is_within(Path(directory), Path(run_directory)):
            make_directory(Path(directory), "--profile")

    def __enter__(self) -> Self:
        if self._directory is not None:
            jax.profiler.start_trace(self._directory)
            self._left = _EPOCHS
        return self

    def epoch(self) -> None:
        """An epoch ended."""
        if self._left:
            self._left -= 1
            if not self._left:
                jax.profiler.stop_trace()

    def __exit__(self, *exception: object) -> None:
        if self._left:
            self._left = 0
            jax.profiler.stop_trace()


def _is_within(path: Path, directory: Path) -> bool:
    return path.absolute().is_relative_to(directory.absolute())
