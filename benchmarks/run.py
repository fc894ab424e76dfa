"""The benchmarks' one command: `python -m benchmarks.run SUITE`."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import attention, building, maxk, spmm, training
from benchmarks.options import parse
from benchmarks.record import Record

_SUITES = {
    "spmm": spmm.run,
    "maxk": maxk.run,
    "attention": attention.run,
    "training": training.run,
    "graph": building.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a suite; returns the exit status."""
    options = parse(arguments)
    record = Record(options)
    with tempfile.TemporaryDirectory(prefix="jaxgnn-benchmarks-") as workspace:
        _SUITES[options.suite](options, record, Path(workspace))
    return record.finish()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker is ended too
    sys.exit(main())
