"""The benchmarks' one command: `python -m benchmarks.run SUITE`."""

from __future__ import annotations

import importlib
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.options import parse
from benchmarks.harness.record import Record


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a suite; returns the exit status."""
    options = parse(arguments)
    suite = importlib.import_module(f"benchmarks.suites.{options.suite}")
    record = Record(options)
    with tempfile.TemporaryDirectory(prefix="jaxgnn-benchmarks-") as workspace:
        suite.run(options, record, Path(workspace))
    return record.finish()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker is ended too
    sys.exit(main())
