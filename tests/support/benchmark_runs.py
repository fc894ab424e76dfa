"""What the tests of the benchmarks share: a row of a result, and a quick run of a suite."""

import json

import pytest

pytest.importorskip("tyro")

import jaxgnn
from benchmarks import run
from benchmarks.harness import targets

needs_kernels = pytest.mark.skipif(
    not jaxgnn.build_info().cpu, reason="jaxgnn's CPU module is not built"
)

COMMON = {"suite": "spmm", "case": "rmat", "accurate": True, "error": 0.0}


def row(impl, ms, *, dtype="float32", direction="forward", width=64, **fields):
    shape = {"nodes": 8, "edges": 9, "width": width}
    return {**COMMON, "impl": impl, "ms": ms, "dtype": dtype, "pass": direction, "shape": shape} | (
        fields
    )


def compared(suite, device):
    """The fields of all rows that a suite's targets compare, an implementation each."""
    found = []
    for target in targets.table():
        if (target.suite, target.device) == (suite, device):
            for case in target.cases or (target.ours["case"],):
                for over in {}, target.over or {}:
                    spec = {"dtype": "float32", "pass": "forward", "k": None}
                    spec |= {**target.ours, "case": case, **over}
                    found += [{**spec, "impl": impl} for impl in spec["impl"]]
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
        assert entry["p10"] <= entry["ms"] <= entry["p90"] and entry["repeats"] >= 1
        assert "samples" not in entry
        assert "peak_bytes" in entry and "error" in entry
    return result
