"""A process that reads files for others, one at a time, under a limit of memory, and measures.

Each line of its input is a request, each line of its output the answer, both JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn import data
from jaxgnn.graph import Graph
from tests.fuzz.cases import make_case, read_case

# Address space is reserved in larger parts than are used: stacks and heaps of threads, modules.
ADDRESS_SLACK = 512 << 20


def measure(call: Callable[[], Any], max_bytes: int) -> dict[str, Any]:
    """What a call said and took: at its peak, in bytes, and in seconds."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier calls freed is not there to be used again
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, limit = _status("VmRSS"), _status("VmSize") + max_bytes + ADDRESS_SLACK
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    start = time.perf_counter()
    answer: dict[str, Any] = {"kind": "read", "message": None, "num_nodes": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            result = call()
            answer["num_nodes"] = result.num_nodes
            _check(result)
        except Exception as error:
            known = isinstance(error, data.DataError)
            answer.update(kind="refused" if known else type(error).__name__, message=str(error))
    answer["seconds"] = time.perf_counter() - start
    answer["peak_bytes"] = _status("VmHWM") - before
    answer["warnings"] = [
        str(warning.message) for warning in caught if warning.category is RuntimeWarning
    ]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return answer


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def _check(result: Any) -> None:
    """Fails if what was read is not a graph, or the arrays do not fit each other."""
    if isinstance(result, data.GraphSet):
        for graph in result:
            _check(graph)
        return
    graph = result if isinstance(result, data.CSR) else result.graph
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    assert offsets[0] == 0 and offsets[-1] == senders.size and (np.diff(offsets) >= 0).all()
    assert not senders.size or 0 <= senders.min() <= senders.max() < result.num_nodes


def main() -> None:
    """Answers until its input ends."""
    # XLA's threads share one heap: each reserves up to 128 MB of address space for one of its own,
    # and ends the process where the limit leaves none (M_ARENA_MAX of mallopt).
    ctypes.CDLL(None).mallopt(-8, 1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    Graph.from_edges([0], [0]).senders.block_until_ready()  # JAX's own start
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as temporary:
        for line in sys.stdin:
            request = json.loads(line)
            max_bytes = request["max_bytes"]
            if "call" in request:
                answer = measure(lambda: eval(request["call"], {"data": data}), max_bytes)  # noqa: B023
            else:
                case = make_case(*request["case"])
                answer = measure(lambda: read_case(case, Path(temporary)), max_bytes)  # noqa: B023
            answers.write(json.dumps(answer) + "\n")
