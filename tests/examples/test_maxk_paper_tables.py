"""`examples/maxk_paper.py --all`: what it takes, keeps, goes on with and prints."""

import dataclasses
import itertools
import json

import pytest

pytest.importorskip("tyro")

from benchmarks.experiments.maxk_paper import counters, kernels, published, scores, steps
from benchmarks.experiments.maxk_paper.report import report
from benchmarks.experiments.maxk_paper.store import Results
from benchmarks.harness import nsight, plan
from benchmarks.harness.options import Options
from jaxgnn.data import benchmark_shapes, load
from jaxgnn.train import TrainConfig
from tests.support.large_sets import write_graphsaint
from tests.support.paths import load_example

OPTIONS = Options(suite="training", device="cpu", repeats=2, rounds=1, scale=0.01)


def test_the_paper_s_table_is_whole_and_its_ratios_are_its_times():
    example = load_example("maxk_paper")
    for name, experiment in example["EXPERIMENTS"].items():
        for field, value in published.TABLE_3[name]._asdict().items():
            assert getattr(experiment, field) == value
        for model in ("sage", "gcn", "gin"):
            entries = published.TABLE_5[name, model]
            assert len(entries) == 3 and next(iter(entries)) is None
            for k, entry in entries.items():
                assert entry.speedup == pytest.approx(entries[None].ms / entry.ms, rel=0.02)
                assert k is None or k < experiment.hidden
    assert published.TABLE_4["dense"] / published.TABLE_4["forward"] > published.FIGURE_8[
        "forward"][32]  # fmt: skip


def test_a_result_is_kept_and_not_measured_again(tmp_path):
    path = tmp_path / "out" / "paper.json"
    results = Results.open(path, OPTIONS, 0)
    groups = steps.settings("flickr", ("sage", "gcn"), "cpu")
    impls = [[s.impl for s in group] for group in groups]
    assert impls == [
        [plan.OURS] * 6,
        [plan.CUSPARSE_STEP] * 2 + [plan.PYG_ADJ],
        [plan.TRANSPOSED] * 2,
    ]
    for setting in itertools.chain(*groups):
        own = {"model": setting.model, "impl": setting.impl, "k": setting.k}
        results.add("steps", {"dataset": "flickr", **own, "ms": 1.0})
    again = Results.open(path, OPTIONS, 0)
    assert again.parts == results.parts
    # Nothing is left: neither the graph nor the workspace is looked at.
    missing = tmp_path / "missing"
    steps.run("flickr", missing, (4, 4), ("sage", "gcn"), OPTIONS, again, missing)
    with pytest.raises(ValueError, match=r"expected a file of scale 0\.5, got 0\.01"):
        Results.open(path, dataclasses.replace(OPTIONS, scale=0.5), 0)
    path.write_text("[]")
    with pytest.raises(ValueError, match="--json: expected a file of this command"):
        Results.open(path, OPTIONS, 0)


def test_the_tables_have_the_speed_ups_and_their_limits():
    results = Results.open(None, OPTIONS, 1e-9)
    own = {"dataset": "reddit", "model": "sage", "shape": {"edges": 7}}
    for impl, k, ms in (
        (plan.OURS, None, 90.0),
        (plan.OURS, 32, 30.0),
        (plan.CUSPARSE_STEP, None, 120.0),
        (plan.PYG_ADJ, None, 270.0),
    ):
        row = {**own, "impl": impl, "k": k, "ms": ms, "aggregation_ms": 0.8 * ms}
        results.add("steps", row)
    relu, maxk = steps.compared(results, "reddit", "sage")
    assert (relu["k"], maxk["k"]) == (None, 32)
    assert maxk["speedup"] == 3 and maxk["over_best"] == 4 and maxk["best"] == plan.CUSPARSE_STEP
    # Of 90 ms 18 are no aggregation.
    assert maxk["limit"] == pytest.approx(5) and maxk["limit_over_best"] == pytest.approx(120 / 18)
    for shape, degree in (("a", 100.0), ("b", 400.0), ("c", 5.0)):
        for impl, way, k, ms in (
            (plan.TORCH, "forward", None, 8.0),
            (plan.OURS, "forward", None, 6.0),
            (plan.MAXK_CHOSEN, "forward", 32, 4.0 if shape != "b" else 1.0),
            (plan.MAXK_CHOSEN, "forward", 32, 0.1),  # whose result is wrong
            (plan.MAXK_WINDOWS, "forward", 32, 0.5),  # which a user does not get
            (plan.MAXK_CHOSEN, "forward", 96, 16.0),
            (plan.MAXK, "select", 32, 0.5),
        ):
            row = {"case": shape, "impl": impl, "pass": way, "ms": ms, "accurate": ms != 0.1}
            shaped = {} if k is None else {"k": k}
            results.add("operations", row | {"mean_degree": degree, "shape": shaped})
    for seed, score in ((1, 0.5), (2, 0.7)):
        row = {"dataset": "flickr", "model": "gin", "k": 4, "epochs": 10, "seed": seed}
        curve = [[epoch, 0.1 * epoch, 1.0, score * epoch / 10] for epoch in range(1, 11)]
        results.add("scores", row | {"test_score": score, "curve": curve})
    assert results.out_of_time()
    text = report(results, (32, 96), ["flickr"])
    lines = text.splitlines()
    (row,) = (line for line in lines if line.startswith("| reddit sage, MaxK 32"))
    assert row == (
        "| reddit sage, MaxK 32 | - | 96.7 | 30 | 3 | 5 | 2.16 | 4 | 6.67 | "
        "cuSPARSE A and A^T by hand |"
    )
    (row,) = (line for line in lines if line.startswith("| flickr gin, MaxK 4 |") and "±" in line)
    assert row.startswith("| flickr gin, MaxK 4 | 60.00 ± 10.00 (2 seeds, 10 epochs) | 53 | - |")
    assert "| flickr gin, MaxK 4 | 10 | 6.00 (0.1 s) |" in text  # at a tenth of the epochs
    assert "reddit: without --data" in text and "flickr: without" not in text
    # At k = 32 the means of 2 and 8, of 1.5 and 6.
    means = "| mean of 2 above degree 50, forward | - | 4 | 0.5 | 3 | 0.375 |"
    assert means in lines
    assert "forward, k up to 96: faster than torch.sparse in 50.0 % of 6 cases" in text
    whole = kernels.measurements("a", (96, 128), 256, "gpu")
    kept = {m.k for m in whole if m.impl == plan.MAXK_CHOSEN}
    assert kept == {96, 128} and not any(m.impl == plan.MAXK_WINDOWS for m in whole)
    assert "| a | 8 | 6 | 4 | - | 0.5 | 12.5 |" in lines
    assert "--budget is spent" in text


def test_counters_are_read_from_nsight_compute_s_table():
    names = ",".join(f'"{name}"' for name in counters.METRICS)
    text = f"""==PROF== Connected to process 7
"ID","Kernel Name",{names}
"","","ns","byte","byte","byte","%","%"
"0","jaxgnn::a","1,000,000","3000000000","1000000000","100","10","80"
"1","jaxgnn::b","500000","1000000000","0","300","30","40"
"""
    counted = counters.total(nsight.parse(text, counters.METRICS))
    assert counted == {
        "kernels": 2,
        "ms": 1.5,
        "l2_gigabytes": 4.0,
        "hbm_gigabytes": 1.0,
        "l1_hit_percent": 25.0,
        "l2_hit_percent": 70.0,
    }
    for text, message in (
        ("==ERROR== ERR_NVGPUCTRPERM\n", "ERR_NVGPUCTRPERM"),
        (f'"ID",{names}\n', "its table is empty"),
        (f'"ID",{names}\n"0","n/a"\n', "it printed 'n/a' for a counter"),
    ):
        with pytest.raises(nsight.NoCounters, match=message):
            nsight.parse(text, counters.METRICS)
    results = Results.open(None, OPTIONS, 0)
    counters.run("reddit", None, 256, 32, OPTIONS, results, None)
    assert results.parts["left_out"][0]["reason"] == "no GPU, or no Nsight Compute (`ncu`)"


def test_scores_go_on_with_the_seeds_that_are_left(tmp_path):
    data = load(write_graphsaint(tmp_path / "flickr", nodes=60))
    config = TrainConfig(
        dataset="flickr", model="gcn", hidden=8, activation="maxk", k=4, epochs=3, patience=0
    ).check()
    path = tmp_path / "paper.json"
    results = Results.open(path, OPTIONS, 0)
    scores.run("flickr", config, data, [97, 98], results)
    first, second = results.parts["scores"]
    assert (first["seed"], second["seed"], first["k"], first["metric"]) == (97, 98, 4, "accuracy")
    assert first["curve"] != second["curve"]
    epochs, seconds, losses, values = zip(*first["curve"], strict=True)
    assert epochs == (1, 2, 3) and list(seconds) == sorted(seconds)
    assert all(0 <= value <= 1 for value in values) and losses[0] != losses[1]
    again = Results.open(path, OPTIONS, 0)
    scores.run("flickr", config, data, [97, 98], again)  # nothing to do
    assert again.parts["scores"] == results.parts["scores"]
    assert json.loads(path.read_text())["scores"][1]["seed"] == 98
    late = Results.open(path, OPTIONS, 1e-9)
    scores.run("flickr", config, data, [97, 98, 99], late)
    assert late.pending and len(late.parts["scores"]) == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("--datasets cora", "--datasets: expected some of reddit, .* got cora"),
        ("--graphs nothing", "--graphs: expected some of reddit, .* got nothing"),
        ("--data flickr", "--data: expected NAME=DIRECTORY of a set, got 'flickr'"),
        ("--data flickr=nowhere --parts scores", "nowhere: no such file or directory"),
        ("--k 0", "--k: expected numbers from 1 to 256"),
        ("--num-seeds 0", "--num-seeds: expected at least 1, got 0"),
        ("--threads 0", "--threads: expected at least 1, got 0"),
        ("--budget -1", "--budget: expected a number from 0, got -1"),
        ("--json /dev/null/out.json", "/dev/null"),
        ("--scale 2", "--scale: expected a number in"),
    ],
)
def test_bad_options_of_the_whole_paper(command, message):
    with pytest.raises(SystemExit, match=message):
        load_example("maxk_paper")["main"](["--all", *command.split()])


@pytest.mark.system
def test_the_whole_paper_runs_on_tiny_graphs(tmp_path, capsys):
    """Every part once: a set without files, and one with, whose scores are measured."""
    folder = write_graphsaint(tmp_path / "flickr", nodes=60)
    path = tmp_path / "paper.json"
    command = f"--all --json {path} --datasets flickr ogbn-proteins --models sage --graphs ddi"
    command += f" --data flickr={folder} --k 8 32 --scale 0.002 --repeats 2 --device cpu"
    command += " --epochs 2 --num-seeds 1"
    load_example("maxk_paper")["main"](command.split())
    parts = json.loads(path.read_text())
    assert {row["name"] for row in parts["graphs"]} == {"flickr", "proteins", "ddi"}
    ours = [(r["dataset"], r["k"]) for r in parts["steps"] if r["impl"] == plan.OURS]
    expected = [(name, k) for name in ("flickr", "ogbn-proteins")
                for k in published.TABLE_5[name, "sage"]]  # fmt: skip
    assert ours == expected
    assert any(row["impl"] == plan.TRANSPOSED for row in parts["steps"])
    assert len(parts["scores"]) == 3 and all(row["dataset"] == "flickr" for row in parts["scores"])
    whole = kernels.measurements("ddi", (8, 32), 256, "cpu")
    left_out = {entry["what"] for entry in parts["left_out"]}
    assert len(parts["operations"]) == len(whole) - any("torch" in what for what in left_out)
    assert {"counters (Table 2)", "scores of ogbn-proteins"} <= left_out
    text, progress = capsys.readouterr()
    first = (f"flickr: reading {folder}", "flickr: 6 training steps to time", "flickr sage step")
    for line, start in zip(progress.splitlines(), first, strict=False):
        assert line.startswith(start)
    assert "\nddi: generating a graph" in progress
    for title in ("Table 5", "Figures 9 and 10: convergence", "Figure 8", "Table 4"):
        assert f"**{title}" in text
    assert "ogbn-proteins: without --data" in text
    assert benchmark_shapes()["ddi"].num_edges * 0.002 > 100
