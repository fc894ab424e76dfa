"""Hardware counters of the benchmarks: what Nsight Compute prints, and whose kernels it saw."""

import json
import os
import signal
import sys

import pytest

pytest.importorskip("rich")

from benchmarks import run
from benchmarks.harness import counters, options, plan, process, profiling
from benchmarks.suites import attention, traffic
from tests.support.benchmark_runs import needs_kernels, row, run_quick

RAW_COUNTERS = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "expand" - 0: 0%....50%....100% - 2 passes
"ID","Process ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum","lts__t_bytes.sum","lts__t_sector_hit_rate.pct"
"","","","","byte","nsecond","byte","%"
"0","7","jaxgnn::<unnamed>::fixed_rows<float, (int)1>(Params<T1, T2>)","(9, 1, 1)","5e6","5000","5e9","5"
"1","7","jaxgnn::<unnamed>::expand(Rows, int *)","(2, 1, 1)","0","1","0","0"
"2","7","jaxgnn::<unnamed>::find_range<float>(RangeArgs)","(9, 1, 1)","1,234,500,000","2,000,000","1e9","20"
"3","7","jaxgnn::<unnamed>::fixed_rows<float, (int)1>(Params<T1, T2>)","(9, 1, 1)","500,000","500,000","3e9","60"
"4","7","jaxgnn::<unnamed>::expand(Rows, int *)","(1, 1, 1)","0","1","0","0"
"5","7","jaxgnn::<unnamed>::long_rows<float>(Params<T1>)","(9, 1, 1)","5","5","5","5"
"6","7","jaxgnn::<unnamed>::expand(Rows, int *)","(4, 1, 1)","0","1","0","0"
"7","7","jaxgnn::<unnamed>::expand(Rows, int *)","(900, 1, 1)","2e6","3e6","4e9","n/a"
"""  # noqa: E501


def test_counters_are_read_in_their_units_and_grouped_by_case():
    kernels = counters.parse(RAW_COUNTERS)
    assert [kernel.blocks for kernel in kernels] == [9, 2, 9, 9, 1, 9, 4, 900]
    groups = counters.by_case(kernels, cases=3)
    assert {case: len(group) for case, group in groups.items()} == {0: 2, 2: 1}
    sums = counters.total(groups[0])
    assert (sums["ms"], sums["l2_bytes"]) == (pytest.approx(2.5), pytest.approx(4e9))
    assert (sums["hbm_bytes"], sums["l2_hit_percent"]) == (
        pytest.approx(1.235e9),
        pytest.approx(50),
    )
    assert sums["l1_bytes"] is sums["l1_hit_percent"] is sums["l2_bytes_asked"] is None
    assert counters.total(groups[2])["ms"] == pytest.approx(3)


@pytest.mark.parametrize(
    "printed, reason",
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        ('"ID","Process ID","Kernel Name"\n', "empty"),
        ("", "no table"),
        (RAW_COUNTERS.replace("nsecond", "fortnight"), "fortnight"),
    ],
)
def test_what_the_profiler_says_is_passed_on(printed, reason):
    with pytest.raises(counters.NoCounters, match=reason):
        counters.parse(printed)


FAKE_NCU = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
lines = ['"ID","Process ID","Kernel Name","Grid Size","dram__bytes.sum",'
         '"gpu__time_duration.sum","lts__t_bytes.sum"', '"","","","","byte","ns","byte"']
for case in range(9):
    for name, blocks, value in (("expand", case + 2, 1), ("rows", 5, case + 1), ("expand", 1, 1)):
        lines.append(f'"0","7","{{name}}","({{blocks}}, 1, 1)","{{value}}","{{value}}","{{value}}"')
open(log, "w").write("\\n".join(lines))
sys.exit(subprocess.call(arguments[arguments.index({python!r}):]))
"""


@pytest.fixture
def ncu(tmp_path):
    """Runs the worker, and prints a kernel for each entry."""
    fake = tmp_path / "ncu"
    fake.write_text(FAKE_NCU.format(python=sys.executable))
    fake.chmod(0o755)
    return f"--ncu={fake}"


@needs_kernels
def test_traffic_quick(ncu, tmp_path):
    sizes = ("--shapes=rmat", "--k=4", "--dtypes=float32", "--only", "spmm", "maxk windows")
    result = run_quick("traffic", tmp_path, ncu, *sizes)
    measured = [(row["impl"], row["pass"], row["l2_bytes"]) for row in result["rows"]]
    assert measured == [
        (plan.MAXK_WINDOWS, "forward", 1),
        (plan.MAXK_WINDOWS, "backward", 2),
        (plan.MAXK_WINDOWS_DETERMINISTIC, "backward", 3),
    ]
    edges, nodes = (result["rows"][0]["shape"][key] for key in ("edges", "nodes"))
    needed = edges * (4 * (4 + 1) + 4) + nodes * 16 * 4
    assert result["rows"][0]["l2_bytes_needed"] == needed
    assert all(row["kernels"][0]["name"] == "rows" for row in result["rows"])


@needs_kernels
def test_bytes_of_steps(ncu, tmp_path):
    parts = ("--parts=bytes", "--models=edgeconv")
    result = run_quick("attention", tmp_path, ncu, *parts)
    assert [row["impl"] for row in result["rows"]] == list(attention.ABLATION)
    assert [row["hbm_bytes"] for row in result["rows"]] == [1, 2, 3, 4]
    for number, measured in enumerate(result["rows"]):
        assert (measured["case"], measured["kernels"]) == ("rmat-dense edgeconv ablation", 1)
        assert measured["baseline"] == plan.PLAIN_EDGES
        assert measured["ratio"] == pytest.approx(1 / (number + 1), abs=1e-3)


def test_traffic_is_compared_with_dense_rows():
    chosen = traffic.measurements(options.parse(["traffic", "--device=gpu"]))
    assert len(set(map(str, chosen))) == len(chosen) == 27
    assert (chosen[0].impl, chosen[0].dtype) == (plan.OURS, "float32")
    assert "xla_gpu_enable_command_buffer= " in profiling.XLA_FLAGS
    rows = [
        row(impl, ms, l2_bytes=l2, hbm_bytes=None)
        for impl, ms, l2 in ((plan.OURS, 12.0, 120.0), (plan.MAXK, 3.0, 24.0))
    ]
    traffic.set_ratios(rows)
    assert [(r["ratio"], r["l2_ratio"], r["hbm_ratio"]) for r in rows] == [
        (1, 1, None),
        (4, 5, None),
    ]


@pytest.mark.parametrize("suite, status", [("traffic", 1), ("attention", 0)])
def test_counters_without_the_profiler_are_left_out(suite, status, monkeypatch, tmp_path):
    monkeypatch.setattr(counters, "find", lambda: None)
    output = tmp_path / "result.json"
    parts = ["--parts=bytes"] if suite == "attention" else []
    assert run.main([suite, "--quick", "--device=cpu", f"--output={output}", *parts]) == status
    (entry,) = json.loads(output.read_text())["left_out"]
    assert "Nsight Compute" in entry["reason"]


class FakeDriver:
    """The CUDA driver as `Marker` calls it."""

    def __init__(self, calls, status=0):
        self.calls, self.status = calls, status

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name) or self.status


def test_marks_are_profiled_with_their_case(monkeypatch):
    from benchmarks.harness import marker as module

    calls = []
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: FakeDriver(calls))
    monkeypatch.setattr(module, "marker_kernel", lambda offsets, edges: calls.append(edges // 1024))
    marker = module.Marker(profiler_calls=True)
    assert calls == ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    calls.clear()
    with marker.case(3):
        calls.append("case")
    warm, profiled = calls[:2], calls[2:]
    assert warm == [5, 1]
    assert profiled == ["cuProfilerStart", 5, "case", 1, "cuProfilerStop"]
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: FakeDriver([], status=3))
    with pytest.raises(RuntimeError, match="status 3"):
        module.Marker(profiler_calls=True)


def test_a_profiler_that_crashes_takes_the_program_with_it(tmp_path):
    crashing = tmp_path / "ncu"
    crashing.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    crashing.chmod(0o755)
    seen = []
    status = process.run([], dict(os.environ), seen.append, [str(crashing)])
    assert (status, seen) == (-signal.SIGSEGV, [])
