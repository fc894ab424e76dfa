"""`--stall-timeout`: ends a run over several processes in which no epoch ends any more."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import jax

from jaxgnn._core.text import printable
from jaxgnn.train.settings.config import TrainConfig

_ANSWER_SECONDS = 5
_LINGER_SECONDS = 3


class Watchdog:
    """A thread that a run feeds where it makes progress; it ends the process where none comes.

    A process that is alive but stuck sends heartbeats, and the others wait for it: all of them see
    that nothing ends, tell how far they came, and name the one that came least far. All end with
    exit status 1, so that what started them starts them again.

    They tell each other by files in the run's directory, which all of them see, as JAX has no
    public name for its own table of keys and values, and collectives are what they are stuck in.
    """

    def __init__(
        self,
        seconds: float,
        directory: Path | None,
        advice: Callable[[], str],
        *,
        prefix: str = "stalled-",
        eager: bool = False,
    ):
        """
        Args:
            seconds: without progress; 0 watches nothing.
            directory: that all see, such as the run's; `None`: there is none, and who is stuck is
                not said.
            advice: what is safe, and how to go on.
            prefix: of the files' names.
            eager: tell the others at every feed, as processes come far at different times; the
                seconds are of all together, so that all end at one time.
        """
        self._seconds, self._directory, self._advice = seconds, directory, advice
        self._prefix, self._eager = prefix, eager
        self._place, self._place_name, self._last = 0, "at the start", time.monotonic()
        self._stopped = threading.Event()

    def feed(self, name: str) -> None:
        """There is progress; `name` is where it was, as in "after epoch 3"."""
        self._place, self._place_name = self._place + 1, name
        if self._eager and self._seconds:
            self._answer(self._here())
        if self._eager and self._place > 1:
            return
        self._last = time.monotonic()
        if self._seconds:
            # A thread of C, for a process that holds Python's lock: with a traceback.
            faulthandler.dump_traceback_later(self._seconds + 6 * _ANSWER_SECONDS, exit=True)

    def __enter__(self) -> Self:
        if self._seconds:
            # From the start on, since network file systems show a new file late, and without what
            # an earlier run has left there.
            self._answer("")
            self.feed("at the start")
            threading.Thread(target=self._watch, name="stall", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Watches no more."""
        if self._stopped.is_set():  # and one that came after it may watch
            return
        self._stopped.set()
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
            self._remove(jax.process_index())

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._seconds / 10)):
            if time.monotonic() - self._last > self._seconds:
                self._end()

    def _here(self) -> str:
        return f"{self._place:012d} {self._place_name}"

    def _end(self) -> None:
        own, count = jax.process_index(), jax.process_count()
        self._answer(self._here())
        time.sleep(_ANSWER_SECONDS)
        found = [self._answer_of(process) for process in range(count)]
        if self._stopped.is_set():
            return
        who = describe(found)
        if found[own] is None:  # there is no place for answers
            who = (
                f"a process did not go on; this one, {own}, came no further than {self._place_name}"
            )
        line = f"jaxgnn: {who} within {self._seconds:g} s (--stall-timeout); {self._advice()}"
        with contextlib.suppress(OSError, ValueError):
            print(printable(line), file=sys.stderr, flush=True)
        # The end of one fails the collective that another is in, which is to say its line before.
        time.sleep(_LINGER_SECONDS)
        if own == 0:
            time.sleep(_ANSWER_SECONDS)  # its end would be the others' reason
            for process in range(count):
                self._remove(process)
        os._exit(1)

    def _file(self, process: int) -> Path:
        if self._directory is None:
            raise FileNotFoundError
        return self._directory / f"{self._prefix}{process}"

    def _answer(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file(jax.process_index()).write_text(text)

    def _remove(self, process: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file(process).unlink()

    def _answer_of(self, process: int) -> str | None:
        """What another process, or this one, wrote; `None` if it did not."""
        try:
            return self._file(process).read_text() or None
        except (OSError, ValueError):  # of a path, or of what is no text
            return None


def stall_seconds(config: TrainConfig) -> float:
    """Without progress, of a process that has others; 0 of one that has none."""
    return config.stall_timeout if config.distributed else 0


def before_the_run(config: TrainConfig, advice: Callable[[], str]) -> Watchdog:
    """Of a run that has no directory yet: its files lie beside where that will be, or in the one
    that is continued."""
    seconds = stall_seconds(config)
    if config.resume is not None:
        return Watchdog(seconds, Path(config.resume), advice, prefix="stalled-before-", eager=True)
    if config.run_directory is None:
        return Watchdog(seconds, None, advice, eager=True)
    path = Path(config.run_directory).absolute()
    return Watchdog(seconds, path.parent, advice, prefix=f".{path.name}-stalled-", eager=True)


def describe(found: list[str | None]) -> str:
    """Who holds the others up.

    Args:
        found: of each process how far it came and where that is; `None` if it does not answer.
    """
    silent = [process for process, answer in enumerate(found) if answer is None]
    if silent:
        return f"{_processes(silent)} did not answer, and nothing ended"
    places = [answer.partition(" ")[0] for answer in found if answer is not None]
    last = [process for process, place in enumerate(places) if place == min(places)]
    where = str(found[last[0]]).partition(" ")[2]
    if len(last) == len(found):
        return f"no process went on {where}"
    return f"{_processes(last)} did not go on {where}"


def _processes(numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers[:10])) + ", ..." * (len(numbers) > 10)
    return f"process{'es' * (len(numbers) > 1)} {listed}"
