"""Hardware counters of the benchmarks: what Nsight Compute prints, and whose kernels it saw."""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")

from benchmarks import (
    attention,
    attention_plan,
    counters,
    graphs,
    options,
    plan,
    process,
    profiling,
    training,
)
from tests.support.benchmark_runs import Notes, needs_kernels, row

RAW_COUNTERS = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "expand" - 0: 0%....50%....100% - 2 passes
"ID","Process ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum","lts__t_bytes.sum","lts__t_sector_hit_rate.pct"
"","","","","Mbyte","usecond","Gbyte","%"
"0","7","jaxgnn::<unnamed>::fixed_rows<float, (int)1>(Params<T1, T2>)","(9, 1, 1)","5","5","5","5"
"1","7","jaxgnn::<unnamed>::expand(Rows, int *)","(2, 1, 1)","0","1","0","0"
"2","7","jaxgnn::<unnamed>::find_range<float>(RangeArgs)","(9, 1, 1)","1,234.5","2,000","1","20"
"3","7","jaxgnn::<unnamed>::fixed_rows<float, (int)1>(Params<T1, T2>)","(9, 1, 1)","0.5","500","3","60"
"4","7","jaxgnn::<unnamed>::expand(Rows, int *)","(1, 1, 1)","0","1","0","0"
"5","7","jaxgnn::<unnamed>::long_rows<float>(Params<T1>)","(9, 1, 1)","5","5","5","5"
"6","7","jaxgnn::<unnamed>::expand(Rows, int *)","(4, 1, 1)","0","1","0","0"
"7","7","jaxgnn::<unnamed>::expand(Rows, int *)","(900, 1, 1)","2","3000","4","n/a"
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


def test_counters_with_a_row_for_each_metric():
    header = (
        '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"'
    )
    rows = [
        f'"0","7","expand","(2, 1, 1)","{metric}","{unit}","{value}"'
        for metric, unit, value in (
            (counters.TIME, "ns", "1,500"),
            (counters.L2, "Kbyte", "2.5"),
            (counters.GRID, "", "1,024"),
            ("Duration", "%", "1"),
        )
    ]
    (kernel,) = counters.parse("\n".join(["==PROF== Connected", header, *rows]))
    assert kernel == counters.Kernel(
        "expand", 1024, {counters.TIME: pytest.approx(1.5e-6), counters.L2: pytest.approx(2500)}
    )


@pytest.mark.parametrize(
    "printed, reason",
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        ('"ID","Process ID","Kernel Name"\n', "empty"),
        ("", "no table"),
        (RAW_COUNTERS.replace("usecond", "fortnight"), "fortnight"),
    ],
)
def test_what_the_profiler_says_is_passed_on(printed, reason):
    with pytest.raises(counters.NoCounters, match=reason):
        counters.parse(printed)


FAKE_NCU = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
by_name = "--kernel-name" in arguments
lines = ['"ID","Process ID","Kernel Name","Grid Size","dram__bytes.sum",'
         '"gpu__time_duration.sum","lts__t_bytes.sum"', '"","","","","byte","ns","byte"']
for case in range(9 if by_name else 0):
    for name, blocks, value in (("expand", case + 2, 1), ("rows", 5, case + 1), ("expand", 1, 1)):
        lines.append(f'"0","7","{{name}}","({{blocks}}, 1, 1)","{{value}}","{{value}}","{{value}}"')
open(log, "w").write("\\n".join(lines))
sys.exit(subprocess.call(arguments[arguments.index({python!r}):]))
"""


@needs_kernels
def test_traffic_of_a_profiler_that_has_to_be_asked_twice(tmp_path):
    traffic = pytest.importorskip("benchmarks.traffic")
    fake, output = tmp_path / "ncu", tmp_path / "traffic.json"
    fake.write_text(FAKE_NCU.format(python=sys.executable))
    fake.chmod(0o755)
    places = (f"--ncu={fake}", f"--output={output}")
    sizes = ("--shape=rmat", f"--scale={2**-9}", "--width=16", "--k=4", "--dtypes=float32")
    status = traffic.main(["--device=cpu", *places, *sizes, "--only", "spmm", "maxk windows"])
    result = json.loads(output.read_text())
    assert status == 0, result["left_out"]
    assert result["header"]["command"].startswith("python -m benchmarks.traffic")
    measured = [(row["impl"], row["pass"], row["l2_bytes"]) for row in result["rows"]]
    assert measured == [
        (plan.MAXK_WINDOWS, "forward", 1),
        (plan.MAXK_WINDOWS, "backward", 2),
        (plan.MAXK_WINDOWS_DETERMINISTIC, "backward", 3),
    ]
    edges, nodes = (result["rows"][0]["shape"][key] for key in ("edges", "nodes"))
    needed = edges * (4 * (4 + 1) + 4) + nodes * 16 * 4
    assert result["rows"][0]["l2_bytes_needed"] == needed
    assert all(row["accurate"] and row["kernels"][0]["name"] == "rows" for row in result["rows"])


def test_traffic_is_compared_with_dense_rows():
    traffic = pytest.importorskip("benchmarks.traffic")
    options = traffic.parse(["--device=gpu"])
    chosen = traffic.cases(options)
    assert len(set(map(str, chosen))) == len(chosen) == 27
    assert (chosen[0].impl, chosen[0].dtype) == (plan.OURS, "float32")
    assert profiling.NO_COMMAND_BUFFERS in options.xla_flags
    rows = [
        row(impl, ms, l2_bytes=l2, hbm_bytes=None)
        for impl, ms, l2 in ((plan.OURS, 12.0, 120.0), (plan.MAXK, 3.0, 24.0))
    ]
    traffic.set_ratios(rows)
    assert [(r["ratio"], r["l2_ratio"], r["hbm_ratio"]) for r in rows] == [
        (1, 1, None),
        (4, 5, None),
    ]


def test_traffic_without_the_profiler_says_so(monkeypatch, capsys):
    traffic = pytest.importorskip("benchmarks.traffic")
    monkeypatch.setattr(counters, "find", lambda: None)
    assert traffic.main(["--device=cpu"]) == 1
    assert "Nsight Compute" in capsys.readouterr().err


class FakeDriver:
    """The CUDA driver as `traffic_worker.Marker` calls it."""

    def __init__(self, calls, status=0):
        self.calls, self.status = calls, status

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name) or self.status


def test_marks_are_profiled_with_their_case(monkeypatch):
    traffic_worker = pytest.importorskip("benchmarks.traffic_worker")
    calls = []
    monkeypatch.setattr(traffic_worker.ctypes, "CDLL", lambda name: FakeDriver(calls))
    monkeypatch.setattr(
        traffic_worker, "expand_rows", lambda offsets, edges: calls.append(edges // 1024)
    )
    marker = traffic_worker.Marker(profiler_calls=True)
    assert calls == ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    calls.clear()
    with marker.case(3):
        calls.append("case")
    warm, profiled = calls[:2], calls[2:]
    assert warm == [5, 1]
    assert profiled == ["cuProfilerStart", 5, "case", 1, "cuProfilerStop"]
    monkeypatch.setattr(traffic_worker.ctypes, "CDLL", lambda name: FakeDriver([], status=3))
    with pytest.raises(RuntimeError, match="status 3"):
        traffic_worker.Marker(profiler_calls=True)


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
    status = process.run("never", [], dict(os.environ), seen.append, [str(crashing)])
    assert (status, seen) == (-signal.SIGSEGV, [])


@needs_kernels
def test_bytes_of_steps(monkeypatch, tmp_path):
    step_traffic = pytest.importorskip("benchmarks.step_traffic")
    worker = pytest.importorskip("benchmarks.step_traffic_worker")
    folder = graphs.store("rmat-dense", tmp_path, scale=2**-9)
    # The second has a model that the implementation has not.
    settings = [
        training.Setting(impl, model, label=" ablation")
        for impl, model in ((plan.OURS, "edgeconv"), (plan.STORED, "monet"))
    ]
    chosen, notes = options.parse(["attention", "--device=cpu"]), Notes()
    chosen = dataclasses.replace(chosen, threads=os.cpu_count())  # this process keeps its CPUs
    arguments = settings, folder, attention_plan.QUICK_WIDTHS
    step_traffic.run(*arguments, chosen, notes, tmp_path)
    assert notes.graphs == ["rmat-dense"]
    assert notes.left_out == [
        ("bytes moved by rmat-dense edgeconv ablation", step_traffic.ABSENT, False)
    ]

    def profiled(module, arguments, env, receive, under):
        assert module == worker.__name__ and under[0] == "/ncu"
        assert profiling.NO_COMMAND_BUFFERS in env["XLA_FLAGS"]
        monkeypatch.setattr(process, "send", receive)
        status = worker.main(*arguments)
        Path(under[under.index("--log-file") + 1]).write_text(RAW_COUNTERS)
        return status

    monkeypatch.setattr(process, "run", profiled)
    chosen, notes = dataclasses.replace(chosen, ncu="/ncu"), Notes()
    step_traffic.run(*arguments, chosen, notes, tmp_path)
    assert notes.graphs == ["rmat-dense"]
    ((what, reason, failed),) = notes.left_out
    assert str(settings[1]) in what and "KeyError" in reason and failed
    (measured,) = notes.rows
    assert (measured["case"], measured["accurate"]) == ("rmat-dense edgeconv ablation", True)
    moved = [measured[key] for key in ("l2_bytes", "hbm_bytes", "ms", "kernels")]
    assert moved == [pytest.approx(4e9), pytest.approx(1.235e9), pytest.approx(2.5), 2]
    other = {**measured, "impl": plan.PLAIN_EDGES, "hbm_bytes": 3 * measured["hbm_bytes"]}
    attention.set_baselines([measured, other])
    assert (measured["ratio"], measured["baseline"]) == (3, plan.PLAIN_EDGES)
