"""`jaxgnn evaluate`, and training on a sample of the edges."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.train import (
    ConfigError,
    InferenceSample,
    RunWarning,
    TrainConfig,
    build,
    build_model,
    evaluate,
    restore_run,
    run,
    score,
)
from jaxgnn.train.settings.saved_settings import check_same_settings, from_settings
from jaxgnn_cli import main
from tests.support.small_sets import small
from tests.support.training import SMALL, prepare, toy

LATER = (
    *("sample_size", "sample_rate", "strategy", "fixed_sample"),
    *("num_neighbors", "batch_size", "replace", "method", "deduplicate"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with two checkpoints, as a version without sampling recorded it."""
    directory = tmp_path_factory.mktemp("evaluation")
    small(directory / "small.npz")
    config = TrainConfig(
        dataset=str(directory / "small.npz"),
        model="sage",
        hidden=8,
        epochs=4,
        checkpoint_interval=2,
        run_directory=str(directory / "run"),
    )
    run(config)
    path = directory / "run" / "config.json"
    record = json.loads(path.read_text())
    for name in LATER:
        del record["settings"][name]
    path.write_text(json.dumps(record))
    return directory / "run"


def no_warning(message: str) -> None:
    raise AssertionError(message)


def test_an_evaluation(trained, tmp_path, capsys):
    before = sorted(trained.iterdir())
    options = ["--sample-size", "2,4096,2", "--strategy", "bucket,fastrand,stride"]
    draws = ["--drop-edge", "0,.5", "--num-draws", "3", "--num-runs", "2"]
    assert main(["evaluate", str(trained), *options, *draws, "--output", str(tmp_path / "o")]) == 0
    assert "fastrand 4096" in capsys.readouterr().out and sorted(trained.iterdir()) == before
    evaluation = json.loads((tmp_path / "o" / "evaluation.json").read_text())
    assert (tmp_path / "o" / "evaluation.png").read_bytes()[:4] == b"\x89PNG"
    assert [evaluation[name] for name in ("model", "epochs", "num_draws")] == ["sage", 4, 3]
    rows = {(r["strategy"], r["sample_size"], r["drop_rate"]): r for r in evaluation["rows"]}
    assert len(rows) == len(evaluation["rows"]) == 1 + 3 * 2 + 2
    everything = rows["all", None, None]
    summary = json.loads((trained / "summary.json").read_text())
    assert everything["test_score"] == summary["test_score"]
    assert everything["val_score"] == summary["val_score"]
    for strategy in ("bucket", "fastrand", "stride"):
        whole, part = rows[strategy, 4096, None], rows[strategy, 2, None]
        assert whole["edge_share"] == 1 and whole["test_difference"] == 0
        assert whole["test_std"] is None and 0 < part["edge_share"] < 0.5
        speedup = everything["inference_seconds"] / part["inference_seconds"]
        assert part["inference_speedup"] == pytest.approx(speedup)
    none, half = rows["dropedge", None, 0.0], rows["dropedge", None, 0.5]
    assert none["test_score"] == everything["test_score"] and none["test_std"] == 0
    assert half["edge_share"] == 0.5 and half["test_std"] > 0


def test_the_scores_are_those_of_the_graph_of_the_sample(trained):
    restored = restore_run(trained, warn=no_warning)
    graph = restored.task.graph
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    taken = [e for i in range(graph.num_nodes) for e in range(offsets[i], offsets[i + 1])[:3]]
    part = Graph.from_edges(senders[taken], np.asarray(graph.receivers)[taken], num_nodes=200)
    task = dataclasses.replace(restored.task, graph=part)
    logits = restored.program.logits(restored.best.params, restored.best.rest, task)
    mask = restored.split.test
    expected = score("accuracy", restored.dataset.labels, np.asarray(logits), mask)
    row = evaluate(restored, [InferenceSample("bucket", 3)], num_runs=1)["rows"][1]
    assert (
        row["test_score"]
        == expected
        != json.loads((trained / "summary.json").read_text())["test_score"]
    )
    assert row["edge_share"] == len(taken) / graph.num_edges


def test_shares_of_the_edges():
    degrees = np.array([0, 1, 5, 10])
    assert InferenceSample("stride", 4).edge_share(degrees) == 9 / 16
    assert InferenceSample("dropedge", drop_rate=0.8).edge_share(degrees) == 0.2
    assert InferenceSample("dropedge", drop_rate=0.8).options()["sample_rate"] == 0.2
    assert InferenceSample("stride", 4).edge_share(np.zeros(3, int)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN"),
        (["nowhere"], "RUN: nowhere is no run directory"),
        (["RUN", "--sample-size", "0"], "--sample-size: expected integers from 1 to 4096, got '0'"),
        (["RUN", "--sample-size", "16,"], "--sample-size: expected integers from 1 to 4096, got"),
        (["RUN", "--strategy", "dropedge"], "--strategy: expected some of bucket, fastrand"),
        (["RUN", "--drop-edge", "1"], "--drop-edge: expected numbers from 0 to less than 1, got"),
        (["RUN", "--drop-edge", "nan"], "--drop-edge: expected numbers from 0 to less than 1, got"),
        (["RUN", "--num-draws", "0"], "--num-draws: expected an integer from 1 to"),
        (
            ["RUN", "--num-draws", "2"],
            "--num-draws: expected --sample-size, --strategy or --drop-e",
        ),
        (["RUN", "--num-runs", "3"], "--num-runs: expected --sample-size, --strategy or --drop-ed"),
        (["RUN", "--seed", "9"], "--seed: expected --sample-size, --strategy or --drop-edge with"),
        (["RUN", "--sample-size", "2", "--output", "/dev/null"], "--output: /dev/null: "),
        (["RUN", "--split", "1", "--strategy", "stride"], "--split: a part of the edges is meas"),
        (["RUN", "sbm", "--drop-edge", "0"], "DATASET: a part of the edges is measured on the run"),
    ],
)
def test_a_bad_value_gives_one_line_and_status_2(trained, capsys, arguments, message):
    arguments = [str(trained) if part == "RUN" else part for part in arguments]
    assert message in error(capsys, "evaluate", *arguments)


def error(capsys, *arguments: str) -> str:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_runs_that_cannot_be_evaluated(trained, tmp_path, capsys):
    record = json.loads((trained / "config.json").read_text())
    path = tmp_path / "config.json"

    def message(settings, **changed):
        path.write_text(json.dumps(record | changed | {"settings": record["settings"] | settings}))
        return error(capsys, "evaluate", str(tmp_path), "--sample-size", "2")

    assert (
        "expected a model that samples edges (gcn, sage, sage_embedding, gin, monet), got gat"
        in message({"model": "gat"})
    )
    assert "has no checkpoint yet" in message({})
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "checkpoints").mkdir()
    assert "RUN: the data are not those of" in message({}, data={"name": "other"})
    assert "has no checkpoint yet" in message({})


def test_a_damaged_checkpoint_is_passed_by(trained, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(trained, copied)
    (copied / "checkpoints" / "4" / "progress" / "metadata").write_bytes(b"{}")
    warnings: list[str] = []
    assert restore_run(copied, warn=warnings.append).progress.epoch == 2
    assert len(warnings) == 1 and "the checkpoint of epoch 2 is read" in warnings[0]
    with pytest.warns(RunWarning, match="epoch 2 is read"):
        restore_run(str(copied))
    assert sorted(p.name for p in (copied / "checkpoints").iterdir()) == ["2", "4"]


SAMPLES = {
    "stride": {"sample_size": 2},
    "fixed stride": {"sample_size": 2, "fixed_sample": True},
    "bucket": {"sample_size": 2, "strategy": "bucket"},
    "random": {"sample_size": 2, "strategy": "random"},
    "rate": {"sample_rate": 0.5},
    "dropedge": {"sample_rate": 0.5, "strategy": "dropedge"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SAMPLES)
def test_training_on_a_sample(name):
    # Parameters that do not move: losses differ by the sample alone.
    config = dataclasses.replace(SMALL, dropout=0.0, learning_rate=1e-30, weight_decay=0.0)
    task, everything, state, _ = prepare(config)
    sampled = dataclasses.replace(config, **SAMPLES[name]).check()
    program, state = build(sampled, task)
    step = jax.jit(program.step)
    losses = []
    for _ in range(3):
        state, loss = step(state, task)
        losses.append(float(loss))
    assert len(set(losses)) == (1 if name in ("fixed stride", "bucket") else 3)
    # Scores are those of all edges.
    params, rest = build(config, task)[1].params, state.rest
    expected = everything.logits(params, build(config, task)[1].rest, task)
    np.testing.assert_array_equal(program.logits(params, rest, task), expected)


@pytest.mark.system
def test_a_resumed_run_draws_the_same_samples(tmp_path):
    config = dataclasses.replace(SMALL, epochs=4, **SAMPLES["random"])
    found = []
    for name, lengths in (("straight", [4]), ("resumed", [2, 4])):
        path = str(tmp_path / name)
        for epochs in lengths:
            where = {"resume": path} if epochs != lengths[0] else {"run_directory": path}
            run(dataclasses.replace(config, epochs=epochs, **where), dataset=toy())
        rows = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        found.append([row | {"seconds": 0} for row in rows])
    assert len(found[0]) == 4 and found[0] == found[1]


def test_settings_of_older_versions():
    settings = TrainConfig(epochs=3).settings()
    older = {name: value for name, value in settings.items() if name not in LATER}
    assert from_settings(older) == from_settings(settings) == TrainConfig(epochs=3)
    check_same_settings(older, TrainConfig(epochs=3))
    with pytest.raises(ConfigError, match=r"--sample-size 4 \(the run's: 0\)"):
        check_same_settings(older, TrainConfig(epochs=3, sample_size=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_size": 4097}, "--sample-size: expected an integer from 0 to 4096, got 4097"),
        ({"sample_rate": 1.5}, "--sample-rate: expected a number from 0 to 1, got 1.5"),
        ({"sample_size": 2, "strategy": "first"}, "--strategy: expected one of bucket, fastrand"),
        ({"strategy": "random"}, "--strategy: expected --sample-size or --sample-rate with it"),
        ({"fixed_sample": True}, "--fixed-sample: expected --sample-size or --sample-rate"),
        ({"strategy": "dropedge", "sample_size": 2}, "--strategy: dropedge expected --sample-rate"),
        ({"strategy": "random", "sample_rate": 0.5}, "--strategy: random expected --sample-size"),
        (
            SAMPLES["dropedge"] | {"fixed_sample": True},
            "--fixed-sample: expected --strategy bucket",
        ),
    ],
)
def test_samples_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        dataclasses.replace(TrainConfig(), **options).check()


def test_models_without_samples_are_refused():
    config = TrainConfig(model="gat", sample_rate=0.5)
    with pytest.raises(ConfigError, match=r"^--sample-rate: expected a model that .*, got gat"):
        build_model(config, 3, 2, nnx.Rngs(0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("bogus",), ValueError, "strategy: expected one of .* got 'bogus'"),
        (
            ("stride",),
            ValueError,
            "sample_size: expected a number with strategy='stride', got None",
        ),
        (("all", 3), ValueError, "sample_size: expected None with strategy='all', got 3"),
        (("bucket", 16, 0.2), ValueError, "drop_rate: expected None with strategy='bucket'"),
        (("dropedge",), ValueError, "drop_rate: expected a number with strategy='dropedge'"),
        (("dropedge", None, 1.0), ValueError, "drop_rate: expected a finite number from 0"),
        (("dropedge", None, 1 - 1e-13), ValueError, "drop_rate: expected less than 1"),
        (("dropedge", None, "a"), TypeError, "drop_rate: expected a number, got str"),
        (("stride", 0), ValueError, "sample_size: expected an integer from 1"),
    ],
)
def test_inference_samples_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        InferenceSample(*arguments)


def test_arguments_of_evaluate_that_are_something_else():
    with pytest.raises(TypeError, match="run: expected one of restore_run, got str"):
        evaluate("RUN", [])
