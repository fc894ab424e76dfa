"""A run over several processes of which one is lost: one line and exit status 1."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jaxgnn_cli.output import Output

_LOST = re.compile(r"unhealthy[^\n]*:\n((?:[\d, ]+\n)+)")
_LATE = re.compile(r"Id: Shutdown(?s:.){,1000} timed out task names:\n((?:[\d, ]+\n)+)")
_HELD = re.compile(rb"[EF]\d{4} .*(?:coordination_service|client\.h:\d+\] Terminating process)")
_LARGEST = 1 << 20

# Of two threads at once, and so in pieces.
_CHATTER = re.compile(rb"\[Gloo\]|peer ranks|^\s*\d*\s*$")

_COLLECTIVE = re.compile(
    "gloo|nccl|collective|coordination|heartbeat|barrier|connection|unavailable|deadline",
    re.IGNORECASE,
)


class LostProcess:
    """Says which other process is lost, where JAX aborts.

    JAX notices a lost process by its heartbeats, prints a trace in C++ and calls `abort`; an
    exception may come before in the main thread, from the collective that the other one left. So
    what C++ prints goes through a pipe, in which the trace is held back, and a handler of SIGABRT
    reads there which process it was. All else that comes through the pipe is passed on to standard
    error; what Python prints does not come through it.

    Attributes:
        advice: what is safe, and how to go on.
        process: the number of this process, once it is known.
        connected: whether all were there.
        descriptors: of standard output and standard error, which Python has.
    """

    def __init__(self) -> None:
        self.advice: Callable[[], str] = lambda: ""
        self.process: int | None = None
        self.connected = False
        self._held = bytearray()
        self._holding = self._leaving = False

    def start(self) -> None:
        """Takes over SIGABRT and the descriptors 1 and 2, for good."""
        self.descriptors = (os.dup(1), os.dup(2))
        self._stderr = self.descriptors[1]
        reading, writing = os.pipe()
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(writing, number)
        os.close(writing)
        options = {"mode": "w", "buffering": 1, "errors": "backslashreplace"}
        sys.stdout, sys.stderr = (os.fdopen(own, **options) for own in self.descriptors)
        sys.stdout = Output(sys.stdout)
        threading.Thread(target=self._read, args=(reading,), name="stderr", daemon=True).start()
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborted)
        self._signal(ctypes.cast(self._handler, ctypes.c_void_p))

    def leave(self) -> None:
        """This process ends by itself: that others do is no news."""
        self._leaving = True

    def wait(self, error: BaseException, seconds: float) -> None:
        """Waits for JAX to say who is lost, if the error may come from that."""
        causes: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None and len(causes) < 10:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        if any(_COLLECTIVE.search(str(cause)) for cause in causes):
            time.sleep(seconds)  # the handler ends the process

    def _signal(self, action: ctypes.c_void_p | None) -> None:
        # Python's own handlers wait for the main thread, and `abort` does not wait for them.
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal.restype = ctypes.c_void_p
        library.signal(signal.SIGABRT, action)

    def _read(self, reading: int) -> None:
        rest = b""
        while data := os.read(reading, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._line(line + b"\n")

    def _line(self, line: bytes) -> None:
        self._holding = self._holding or _HELD.match(line) is not None
        if not self._holding:
            if not _CHATTER.search(line):
                with contextlib.suppress(OSError):
                    os.write(self._stderr, line)
        elif len(self._held) < _LARGEST:
            self._held += line

    def _aborted(self, _: int) -> None:
        """Runs in the thread that called `abort`."""
        time.sleep(0.5)  # what was printed comes through the pipe
        if self._leaving:
            time.sleep(10)
            os._exit(1)
        text = self._held.decode("utf-8", "replace")
        line = lost_process(text, self.process)
        if line is None:
            with contextlib.suppress(OSError):
                os.write(self._stderr, bytes(self._held))
            self._signal(None)  # aborts
            return
        if not self.connected:
            line = "--distributed: the processes did not connect"
        advice = self.advice()
        with contextlib.suppress(OSError):
            message = f"jaxgnn: {line}{'; ' * bool(advice)}{advice}\n"
            os.write(self._stderr, message.encode("utf-8", "backslashreplace"))
        if self.process == 0:
            time.sleep(1)  # it tells the others who was lost
        os._exit(1)


def lost_process(text: str, process: int | None) -> str | None:
    """Which processes are lost.

    Args:
        text: what JAX printed when it aborted.
        process: the number of this one.

    Returns:
        A line, or `None` where the text is of something else.
    """
    if (found := _LOST.search(text)) is not None:
        listed, plural = _processes(found[1])
        return f"{listed} {'were' if plural else 'was'} lost"
    if (found := _LATE.search(text)) is not None:
        return f"{_processes(found[1])[0]} did not end with the others"
    if "Terminating process because the JAX distributed service" not in text:
        return None
    if process != 0 and ("PollForError" in text or "Failed to send RPC" in text):
        return "process 0 was lost"  # the one that the others report to
    return "another process was lost"


def _processes(lines: str) -> tuple[str, bool]:
    """Those that JAX lists, and whether they are several."""
    numbers = sorted({int(number) for number in re.findall(r"\d+", lines)})
    return f"process{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers))}", len(numbers) > 1


@contextlib.contextmanager
def watch_processes() -> Iterator[LostProcess]:
    """A started `LostProcess`, which an exception leaves without a word on the other processes."""
    lost = LostProcess()
    lost.start()
    try:
        yield lost
    finally:
        lost.leave()
