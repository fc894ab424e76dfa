"""Ctrl-C: one line and exit status 130 at once, in imports and compilation too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator


class Watch:
    """Ends the process at the first SIGINT, or at the second where the first is postponed.

    Python handles signals between two instructions of the main thread: not while it compiles, and
    an exception raised inside an import may come out as any other. So a thread reads the signals
    from a pipe (`signal.set_wakeup_fd`) and ends the process itself. What files are written are
    whole or absent at any moment.

    Code that needs the first SIGINT for itself installs a handler with `signal.signal`.

    Attributes:
        advice: what to say beside "interrupted": what is safe, and how to go on.
        descriptors: of standard output and standard error.
    """

    def __init__(self) -> None:
        self.advice: Callable[[], str] = lambda: ""
        self.descriptors: tuple[int, int] = (1, 2)
        self._ending = threading.Lock()

    def start(self) -> None:
        """Takes over SIGINT."""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._handler = signal.signal(signal.SIGINT, self._handle)
        self._descriptor = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._read, name="interrupts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Gives it back."""
        signal.signal(signal.SIGINT, self._handler)
        signal.set_wakeup_fd(self._descriptor)
        os.close(self._writing)
        self._thread.join()
        os.close(self._reading)

    def _handle(self, *_: object) -> None:
        self._end()

    def _read(self) -> None:
        count = 0
        while signals := os.read(self._reading, 1):
            if signals[0] == signal.SIGINT:
                count += 1
                if count > 1 or signal.getsignal(signal.SIGINT) == self._handle:
                    self._end()

    def _end(self) -> None:
        if not self._ending.acquire(blocking=False):
            return  # the other thread does it
        advice = self.advice()
        line = f"jaxgnn: interrupted{'; ' * bool(advice)}{advice}\n"
        stdout, stderr = self.descriptors
        with contextlib.suppress(OSError):
            if os.isatty(stdout):
                os.write(stdout, b"\x1b[?25h")  # the cursor, which a live display hides
            os.write(stderr, line.encode("utf-8", "backslashreplace"))
        os._exit(130)


_active: Watch | None = None


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """The process's `Watch`: a new one, if there is none and SIGINT is not ignored."""
    global _active
    if _active is not None:
        yield _active
        return
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield Watch()
        return
    _active = Watch()
    _active.start()
    try:
        yield _active
    finally:
        _active.stop()
        _active = None
