"""Python in child processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import jaxgnn

# A shell's background processes ignore Ctrl-C, and so would those that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where `jaxgnn` was imported from, for children that start in another directory.
PACKAGES = str(Path(jaxgnn.__file__).resolve().parents[1])


def _options(directory: Path | None, environment: dict[str, str]) -> dict:
    path = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))
    return {
        "cwd": directory,
        "env": {**os.environ, "PYTHONPATH": path, **environment},
        "text": True,
    }


def run_python(
    *arguments: str, directory: Path | None = None, status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python *arguments`, which must end with that status; has its output as text."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, **_options(directory, environment)
    )
    ended = f"{' '.join(arguments)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == status, ended
    return done


def start_python(
    *arguments: str,
    directory: Path | None = None,
    stdin: int | None = None,
    stderr: int | None = subprocess.PIPE,
    **environment: str,
) -> subprocess.Popen[str]:
    """Starts the same, for a test that watches it or ends it."""
    return start(
        sys.executable, *arguments, directory=directory, stdin=stdin, stderr=stderr, **environment
    )


def start(
    *command: str,
    directory: Path | None = None,
    stdin: int | None = None,
    stdout: int | IO[str] = subprocess.PIPE,
    stderr: int | None = subprocess.PIPE,
    preexec_fn: Callable[[], None] | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """Starts any program in the same environment."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=preexec_fn,
        **_options(directory, environment),
    )
