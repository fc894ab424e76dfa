"""Python in child processes."""

import os
import subprocess
import sys
from pathlib import Path

import jaxgnn

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
    assert done.returncode == status, done.stdout + done.stderr
    return done


def start_python(
    *arguments: str, directory: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Starts the same, for a test that watches it or ends it."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **_options(directory, environment),
    )
