"""`benchmarks.experiments.step_counters`: what it runs under Nsight Compute, and what it reads."""

import contextlib
import json
import os

import pytest

pytest.importorskip("tyro")

from benchmarks.experiments import step_counters
from benchmarks.harness import nsight, options, plan, steps
from benchmarks.harness.setting import Setting

# Writes the table of two kernels, and what the process of the step would; fails for the stage
# whose values do not fit.
NCU = """#!/usr/bin/env python3
import json, pathlib, sys
task = pathlib.Path(sys.argv[-1])
log = pathlib.Path(sys.argv[sys.argv.index("--log-file") + 1])
(entry,) = json.loads(task.read_text())["entries"]
assert sys.argv[sys.argv.index("--profile-from-start") + 1] == "off"
if "as written" in entry["impl"]:
    log.write_text("==ERROR== The application returned an error code (1).\\n")
    sys.exit(1)
names = sys.argv[sys.argv.index("--metrics") + 1].split(",")
lines = [["ID", *names], ["", *["" for _ in names]], ["0", "1000", "20", "3"],
         ["1", "2,000", "40", "0"]]
log.write_text("\\n".join(",".join(f'"{cell}"' for cell in line) for line in lines))
identity = {"case": entry["graph"], "impl": entry["impl"]}
(task.parent / "identity.json").write_text(json.dumps(identity))
"""


def test_bytes_of_a_step_are_the_sums_of_its_kernels(tmp_path, monkeypatch, capsys):
    ncu, out = tmp_path / "ncu", tmp_path / "out.json"
    ncu.write_text(NCU)
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    given = step_counters.Options(
        shapes=("arxiv",), models=("gat",), impls=(plan.WRITTEN, plan.OURS), scale=2**-9, json=out
    )
    assert step_counters.main(given) == 0
    assert "The application returned an error code" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["rows"]
    assert row["impl"] == plan.OURS and row["pass"] == "step traffic"
    assert (row["ms"], row["kernels"]) == (0.003, 2)
    assert (row["l2_bytes"], row["hbm_bytes"]) == (60, 3)


def test_without_nsight_compute(monkeypatch, capsys):
    monkeypatch.setattr(nsight, "find", lambda: None)
    assert step_counters.main(step_counters.Options()) == 2
    assert "found none" in capsys.readouterr().out


def test_the_step_runs_once_for_the_profiler(tmp_path, monkeypatch):
    run = options.Options("attention", device="cpu", scale=2**-9)
    places = steps.store({"arxiv": (12, 8, 5)}, run, tmp_path)
    setting = Setting(plan.RECOMPUTED, "gat", heads=2, label=" ablation", graph="arxiv")
    task = tmp_path / "task.json"
    entries = [vars(setting)]
    task.write_text(json.dumps({"device": "cpu", "graphs": places, "entries": entries}))
    within = []

    @contextlib.contextmanager
    def profiled():
        within.append("start")
        yield
        within.append("stop")

    monkeypatch.setattr(nsight, "profiled", profiled)
    step_counters.run_one(task)
    assert within == ["start", "stop"]
    identity = json.loads((tmp_path / "identity.json").read_text())
    assert identity["case"] == "arxiv gat ablation" and identity["pass"] == "step"
