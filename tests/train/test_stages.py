"""Annealing in stages, each with a program of its own."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxgnn import build_info
from jaxgnn.train import ConfigError, Task, TrainConfig, build, lower, run, train_seeds
from jaxgnn.train.loop.epochs import Best, Progress, copy, train
from jaxgnn.train.loop.stages import StagedCompiled, stage_widths
from jaxgnn.train.planning.step_work import work
from tests.support.training import SMALL, prepare, toy

CONFIG = dataclasses.replace(
    SMALL, activation="maxk", k=2, anneal_from=8, anneal_epochs=4, anneal_stages=True, epochs=7
)


def test_widths_fall_by_halves():
    assert stage_widths(32, 4) == [32, 16, 8, 4]
    assert stage_widths(20, 3) == [20, 10, 5, 3]
    assert stage_widths(5, 5) == [5]


@pytest.fixture(scope="module")
def compiled():
    dataset = toy()
    task = Task.from_dataset(dataset, dataset.split(0))
    program, state = build(CONFIG.check(), task)
    return StagedCompiled(CONFIG, program, state, task), state, task


def test_stages_share_the_epochs_and_move_rows_of_their_width(compiled):
    staged, state, task = compiled
    stages = [staged.at(epoch) for epoch in range(6)]
    assert stages[0] is stages[1] and stages[2] is stages[3]
    assert stages[4] is stages[5] is staged and len(set(map(id, stages))) == 3
    if build_info().cpu and jax.default_backend() == "cpu":
        edges = task.graph.num_edges
        for stage, k in ((stages[0], 8), (stages[2], 4)):
            calls = work(lower(stage._program, state, task)[0].as_text(), edges)[1]
            assert {c.width for c in calls if c.name.startswith("maxk_s")} == {k}


def test_a_stage_is_the_model_of_its_k(compiled):
    staged, state, task = compiled
    wide = dataclasses.replace(CONFIG, k=4, anneal_from=0, anneal_epochs=100, anneal_stages=False)
    _, _, own, plain = prepare(wide)
    found, expected = staged.at(2).step(copy(state), task), plain.step(own, task)
    assert float(found[1]) == pytest.approx(float(expected[1]), rel=1e-6)
    for one, two in zip(
        jax.tree.leaves(found[0].params), jax.tree.leaves(expected[0].params), strict=True
    ):
        if jax.default_backend() == "gpu":  # products of either program are chosen by their times
            np.testing.assert_allclose(one, two, atol=1e-6)
        else:
            assert np.array_equal(one, two)


def test_training_goes_on_in_its_stage_and_selects_after_the_last_one(compiled):
    staged, state, task = compiled

    def fit(state, best, progress, epochs):
        rows = []
        options = {"epochs": epochs, "patience": 2, "on_epoch": rows.append}
        found = train(staged, task, copy(state), copy(best), progress, **options)
        return *found, [{**row, "seconds": 0} for row in rows]

    start = Best(state.params, state.rest)
    *whole, rows = fit(state, start, Progress(), 7)
    *half, first = fit(state, start, Progress(), 3)  # within the second stage
    assert half[2].best_epoch == 3 and half[2].best_score == -np.inf and not half[2].stopped
    *again, second = fit(*half[:2], Progress.from_json(half[2].to_json(), 3), 7)
    assert rows == first + second and len(rows) > CONFIG.anneal_epochs
    assert whole[2] == again[2] and whole[2].best_epoch > CONFIG.anneal_epochs
    assert all(map(np.array_equal, *(jax.tree.leaves(part[1].params) for part in (whole, again))))
    scores = [row["val_accuracy"] for row in rows[CONFIG.anneal_epochs :]]
    assert whole[2].best_score == max(scores)


@pytest.mark.system
def test_a_resumed_run_goes_on_in_its_stage_with_the_same_bits(tmp_path):
    class Stop(Exception):
        pass

    def stop(row):
        if row["epoch"] == 3:  # in the second stage
            raise Stop

    options = {"checkpoint_interval": 1, "plain": True, "patience": 1}
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    config = dataclasses.replace(CONFIG, **options)
    summary = run(dataclasses.replace(config, run_directory=whole), dataset=toy())
    with pytest.raises(Stop):
        run(dataclasses.replace(config, run_directory=broken), dataset=toy(), callbacks=[stop])
    again = run(dataclasses.replace(config, resume=broken), dataset=toy())

    def rows(directory):
        text = Path(directory, "metrics.jsonl").read_text()
        return [{**json.loads(line), "seconds": 0} for line in text.splitlines()]

    assert rows(whole) == rows(broken) and len(rows(whole)) > 4  # patience begins after the stages
    for name in ("test_score", "best_epoch", "epochs"):
        assert summary[name] == again[name]
    assert summary["best_epoch"] > CONFIG.anneal_epochs
    assert "8 at first, halved within 4 epochs" in summary["activation"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anneal_from": 0}, "--anneal-stages: expected --anneal-from with it, got none"),
        ({"epochs": 4}, "--anneal-stages: expected --epochs above --anneal-epochs, 4, got 4"),
        ({"task": "link"}, "--anneal-stages: expected --task node, got link"),
    ],
)
def test_errors(options, message):
    config = dataclasses.replace(CONFIG, **options)
    if not config.anneal_from:
        config = dataclasses.replace(config, anneal_epochs=TrainConfig.anneal_epochs)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        config.check()


def test_seeds_at_once_are_refused():
    with pytest.raises(ValueError, match=r"^anneal_stages: expected False without in_sequence"):
        train_seeds(CONFIG, [0], dataset=toy())
