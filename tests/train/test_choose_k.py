"""`--k auto`: which k the short runs choose, and what a run keeps of them."""

import json

import pytest

from jaxgnn._core.ffi import cpu_module
from jaxgnn.train import ConfigError, TrainConfig, build, run
from jaxgnn.train.problems.node_problem import choose_split, make_task
from jaxgnn.train.reports.display import trials_table
from jaxgnn.train.runs.choose_k import Trial, candidates, choose
from jaxgnn.train.settings.config import HEAD_K_AUTO
from jaxgnn_cli.options import parse_train
from tests.support.training import toy


def test_the_fastest_within_the_tolerance():
    assert [candidates(hidden) for hidden in (256, 7, 2, 1)] == [
        [128, 64, 32, 16, 8],
        [3, 1],
        [1],
        [],
    ]
    noisy = [Trial(8, 0.9, 1.0), Trial(4, 0.9, 1.04), Trial(2, 0.9, 1.06)]
    assert [trial.chosen for trial in choose(noisy, 0)] == [False, True, False]
    trials = [Trial(32, 0.9, 3.0), Trial(16, 0.895, 2.0), Trial(8, 0.88, 1.0), Trial(4, 0.9, 2.0)]

    def chosen(tolerance):
        (found,) = (trial.k for trial in choose(trials, tolerance) if trial.chosen)
        return found

    assert [chosen(tolerance) for tolerance in (0, 0.01, 0.02, 1)] == [4, 4, 8, 8]
    assert [trial.k for trial in choose(trials, 0)] == [32, 16, 8, 4]


@pytest.mark.system
@pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built")
def test_a_run_with_it(tmp_path, monkeypatch):
    options = {"model": "sage", "activation": "maxk", "k": 0, "hidden": 4, "dropout": 0.0}
    config = TrainConfig(**options, epochs=6, patience=0, k_epochs=4, k_tolerance=1.0)
    summary = run(
        TrainConfig(**vars(config) | {"run_directory": str(tmp_path / "run")}), dataset=toy()
    )
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    trials = saved["chosen_k"]["trials"]
    assert [trial["k"] for trial in trials] == [2, 1] and saved["chosen_k"]["epochs"] == 4
    (chosen,) = (trial for trial in trials if trial["chosen"])
    assert chosen["seconds"] <= 1.05 * min(trial["seconds"] for trial in trials)
    assert set(saved["chosen_k"]["relu"]) == {"score", "seconds"}
    assert saved["settings"]["k"] == chosen["k"] and "k_epochs" not in saved["settings"]
    assert summary["activation"] == f"maxk: the {chosen['k']} largest of 4"
    # The same options continue the run, with what was chosen.
    arguments = ["--resume", str(tmp_path / "run"), "--activation", "maxk", "--k", "auto"]
    assert parse_train([*arguments, "--k-epochs", "4"]).k == chosen["k"]
    # A directory in use is refused before anything is tried.
    monkeypatch.setattr("jaxgnn.train.runs.choose_k.try_all", None)
    with pytest.raises(ConfigError, match="run is not empty; continue its run with --resume"):
        run(TrainConfig(**vars(config) | {"run_directory": str(tmp_path / "run")}), dataset=toy())
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="--k: auto expected validation nodes"):
        run(config, dataset=toy(validation=False))
    dataset = toy()
    with pytest.raises(ConfigError, match="--k: expected a number, got auto"):
        build(config, make_task(config, dataset, choose_split(dataset, 0)))


def test_options():
    for arguments in (["--k", "auto"], ["--k=auto"], ["--k", "0"]):
        config = parse_train(["digits", "--activation", "maxk", *arguments, "--k-epochs", "9"])
        assert (config.k, config.k_epochs) == (0, 9)
    for arguments, message in (
        (["--k", "8", "--k-epochs", "9"], "--k-epochs: expected --k auto or --head-k auto with it"),
        (["--k", "auto", "--head-k", "auto"], "--head-k: expected a number with --k auto"),
        (["--k", "auto", "--anneal-from", "9"], "--anneal-from: expected a number --k with it"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_train(["digits", "--activation", "maxk", *arguments])


@pytest.mark.system
def test_head_k_is_chosen_in_the_same_way(tmp_path):
    """From the features of a head, compared with all of them."""
    for arguments in (["--head-k", "auto"], ["--head-k=auto"], ["--head-k", "-1"]):
        config = parse_train(["digits", "--model", "gat", *arguments, "--k-epochs", "9"])
        assert (config.head_k, config.k_epochs) == (HEAD_K_AUTO, 9)
    directory = str(tmp_path / "run")
    options = {"model": "gat", "hidden": 16, "heads": 4, "out_heads": 1, "head_k": HEAD_K_AUTO}
    run(TrainConfig(**options, epochs=3, k_epochs=2, run_directory=directory), dataset=toy())
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    chosen = saved["chosen_k"]
    assert chosen["option"] == "head_k" and set(chosen["all"]) == {"score", "seconds"}
    assert [trial["k"] for trial in chosen["trials"]] == [2, 1]
    (k,) = (trial["k"] for trial in chosen["trials"] if trial["chosen"])
    assert saved["settings"]["head_k"] == k
    for changed, message in (
        ({"heads": 16}, "--head-k: auto expected --hidden of at least 32, got 16"),
        ({"model": "sage", "heads": 1, "out_heads": 0}, "--head-k: expected --model gat or"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(TrainConfig(**options | changed, run_directory=directory + "2"), dataset=toy())
    dataset = toy()
    config = TrainConfig(**options).check()
    with pytest.raises(ConfigError, match="--head-k: expected a number, got auto"):
        build(config, make_task(config, dataset, choose_split(dataset, 0)))


def test_the_table_names_what_was_chosen():
    trial = {"k": 2, "score": 0.5, "seconds": 0.001, "chosen": True}
    other = {"score": 0.6, "seconds": 0.002}
    chosen = {"epochs": 3, "tolerance": 0.01, "trials": [trial]}
    of_k = trials_table("accuracy", {**chosen, "option": "k", "relu": other})
    of_heads = trials_table("accuracy", {**chosen, "option": "head_k", "all": other})
    assert [list(table.columns[0].cells)[-1] for table in (of_k, of_heads)] == ["ReLU", "all"]
    assert "a head" in str(of_heads.title) and "a head" not in str(of_k.title)
