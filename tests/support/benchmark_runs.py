"""What the tests of the benchmarks share: a row of a result, and a quick run of a suite."""

import itertools
import json

import pytest

pytest.importorskip("rich")

from benchmarks import bars, run
from jaxgnn._core import ffi

needs_kernels = pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")

COMMON = {"suite": "spmm", "case": "rmat", "accurate": True, "error": 0.0}


def row(impl, ms, *, dtype="float32", direction="forward", width=64, **fields):
    shape = {"nodes": 8, "edges": 9, "width": width}
    return {**COMMON, "impl": impl, "ms": ms, "dtype": dtype, "pass": direction, "shape": shape} | (
        fields
    )


def compared(suite, device):
    """The case, implementation, width and pick of all that a suite's bars compare."""
    found = []
    for bar in bars.BARS:
        if (bar.suite, bar.device) == (suite, device):
            assert bar.reference is not None
            for case, pick in itertools.product(bar.cases, (bar.ours, bar.reference)):
                found += [(case, impl, bar.width, pick) for impl in pick.impls]
    assert found
    return found


class Notes:
    """What parts of a suite ask of a `Record`."""

    def __init__(self):
        self.rows, self.left_out, self.graphs = [], [], []

    def add(self, row):
        self.rows.append(row)

    def leave_out(self, what, reason, failed):
        self.left_out.append((what, reason, failed))

    def note_graph(self, facts):
        self.graphs.append(facts["name"])

    def say(self, text):
        pass


def run_quick(suite, tmp_path, *arguments, name="result.json"):
    output = tmp_path / name
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine torch's threads would spin for each other.
        patch.setenv("OMP_WAIT_POLICY", "passive")
        patch.setenv("KMP_BLOCKTIME", "0")
        status = run.main([suite, "--quick", "--device=cpu", f"--output={output}", *arguments])
    result = json.loads(output.read_text())
    assert status == 0, result["left_out"]
    for key in ("hardware", "jax", "jaxlib", "commit", "date"):
        assert key in result["header"]
    for entry in result["rows"]:
        assert entry["accurate"]
        for key in ("suite", "case", "impl", "dtype", "shape", "ms", "baseline", "ratio"):
            assert key in entry
        assert entry["ms"] > 0
        assert "peak_bytes" in entry and "error" in entry
    return result
