"""The suite `maxk` and training steps with MaxK: plans, bars, and a run on a tiny graph."""

import pytest

pytest.importorskip("tyro")

from benchmarks.harness import options, plan, targets
from benchmarks.suites import maxk, training
from tests.support.benchmark_runs import compared, needs_kernels, row, run_quick

MS_OF_WIDTHS = ((2.0, 256), (10.0, 1024))


def test_a_row_with_k_is_not_one_of_dense_rows():
    shape = {"case": "rmat", "suite": "maxk", "width": 256}
    sparse = row(plan.MAXK, 2.0, **shape)
    sparse["shape"]["k"] = 32
    rows = [sparse, row(plan.OURS, 5.0, **shape)]
    (target,) = targets.evaluate(rows, "maxk", "cpu")
    found = [target[key] for key in ("value", "status", "impl", "ms")]
    assert found == [2.5, "met", plan.MAXK, 2.0]
    sparse["shape"]["k"] = 16
    assert targets.evaluate(rows, "maxk", "cpu")[0]["status"] == "not measured"


def test_the_plan_of_maxk_measures_what_its_targets_compare():
    for device in ("cpu", "gpu"):
        every = maxk.measurements(options.parse(["maxk", f"--device={device}"]))
        planned = {
            (m.case + " weighted" * m.weighted, m.impl, m.width, m.dtype, m.direction, m.k)
            for m in every
        }
        for spec in compared("maxk", device):
            keys = ("case", "impl", "width", "dtype", "pass", "k")
            assert tuple(spec[key] for key in keys) in planned, spec


def test_the_settings_of_training_with_maxk_are_what_its_targets_compare():
    models = ["sage", "gcn", "gin"]
    chosen = options.parse(["training", "--device=gpu", "--models", *models])
    groups = training.settings(chosen)
    planned = {(s.impl, s.model, s.dtype, s.k) for group in groups for s in group}
    assert len([target for target in targets.table() if target.suite == chosen.label]) == 14
    for spec in compared(chosen.label, "gpu"):
        assert (spec["impl"], spec["case"].split()[-1], spec["dtype"], spec["k"]) in planned
    ours = {(s.impl, s.model, s.k) for s in groups[0]}
    kinds = [(plan.OURS, None), (plan.ESTIMATED, None), (plan.OURS, 32), (plan.OURS, 16)]
    assert ours == {(impl, model, k) for model in models for impl, k in kinds}


def test_sweep_of_maxk():
    sweep = ["maxk", "--device=gpu", "--sweep"]
    few = maxk.measurements(options.parse([*sweep, "--shapes=dd"]))
    assert {m.k for m in few if m.impl == plan.MAXK} == set(maxk.SWEEP)
    assert {m.dtype for m in few} == {"float32"}
    assert {m.case for m in maxk.measurements(options.parse(sweep))} == {
        "reddit",
        *plan.OTHER_SHAPES,
    }


def test_wide_rows_are_compared_by_kept_entries():
    every = maxk.measurements(options.parse(["maxk", "--device=gpu", "--wide"]))
    windows = [(m.width, m.k) for m in every if m.impl == plan.MAXK_WINDOWS]
    pairs = {(256, 32), (384, 32), (384, 48), (512, 32), (512, 64), (1024, 32), (1024, 128)}
    assert set(windows) == pairs and len(windows) == 2 * len(pairs)
    rows = [row(plan.MAXK_WINDOWS, ms, case="reddit", width=width) for ms, width in MS_OF_WIDTHS]
    for found, k in zip(rows, (32, 128), strict=True):
        found["shape"]["k"] = k
    maxk.set_entry_ratios(rows, "gpu")
    assert [found["ratio"] for found in rows] == [1.0, 0.8]
    with pytest.raises(SystemExit):
        options.parse(["spmm", "--wide"])


@needs_kernels
@pytest.mark.system
def test_maxk_quick(tmp_path):
    few = ("--dtypes", "float32", "--k", "4", "--only", "jax", "copy")
    maxk_rows = run_quick("maxk", tmp_path, *few)["rows"]
    measured = {(entry["impl"], entry["pass"], entry["shape"].get("k")) for entry in maxk_rows}
    assert measured >= {(plan.MAXK, direction, 4) for direction in (*plan.BOTH, "select")}
    assert measured >= {(plan.MAXK_DETERMINISTIC, "backward", 4), (plan.TOP_K, "select", 4)}
    assert measured >= {(impl, "select", 4) for impl in maxk.DROPPING}
    assert measured >= {(plan.SORTED, direction, 4) for direction in plan.BOTH}
    weighted = {
        (entry["impl"], entry["pass"]) for entry in maxk_rows if entry["case"] == "rmat weighted"
    }
    assert weighted >= {(impl, direction) for impl in maxk.OURS for direction in plan.BOTH}
    assert weighted >= {(impl, "backward") for impl in maxk.OF_WEIGHTS}
    assert measured >= {(plan.COPY, "select", None), (plan.OURS, "forward", None)}
    for entry in maxk_rows:
        assert (entry["pass"] == "select") <= (entry["error"] == 0)
        others = maxk.OURS if entry["case"] == "rmat weighted" else (plan.OURS, plan.COPY)
        assert entry["baseline"] in (*others, plan.MAXK_FLOAT, plan.MAXK_PACKED)

    steps = run_quick(
        "training", tmp_path, "--models", "gin", "--dtypes", "float32", "--only", "jaxgnn",
        name="steps.json",
    )["rows"]  # fmt: skip
    cases = {(entry["case"], entry["shape"].get("k")) for entry in steps}
    assert cases == {("rmat gin", None), ("rmat gin", 4)}
    for entry in steps:
        assert entry["aggregation_ms"] > 0
        assert entry["baseline"] == plan.OURS
