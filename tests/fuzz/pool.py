"""Workers that are started again when they die, and asked from threads."""

from __future__ import annotations

import json
import selectors
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.processes import start_python

START_SECONDS = 120


class Worker:
    """A process of `tests.fuzz.worker`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer; of a worker that died or took too long, what became of it."""
        if self._process is None:
            # Last, as in conftest.py: `jaxgnn` is the one that this process has.
            root = str(Path(__file__).resolve().parents[2])
            program = f"import sys; sys.path.append({root!r}); from tests.fuzz import worker"
            self._process = start_python(
                "-c", f"{program}; worker.main()", stdin=subprocess.PIPE, stderr=None
            )
            seconds += START_SECONDS
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        answer = ""
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(seconds):
                    self.stop()
                    return {"kind": "timeout", "message": f"no answer in {seconds} s"}
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass
        if answer:
            return json.loads(answer)
        status = process.wait()
        self.stop()
        return {"kind": "died", "message": f"the process ended with status {status}"}

    def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def ask_all(
    requests: Iterable[dict[str, Any]],
    take: Callable[[dict[str, Any], dict[str, Any]], None],
    *,
    workers: int,
    seconds: float,
) -> None:
    """Asks all requests and gives `take` each with its answer, one at a time."""
    lock, remaining = threading.Lock(), iter(requests)

    def work() -> None:
        worker = Worker()
        try:
            while True:
                with lock:
                    request = next(remaining, None)
                if request is None:
                    return
                answer = worker.ask(request, seconds)
                with lock:
                    take(request, answer)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
