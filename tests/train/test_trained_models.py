"""Trained models on other data: `load_run`, `jaxgnn predict`, `evaluate` and `compare`."""

import csv
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from jaxgnn._core.platform import of_device
from jaxgnn.data import DataError, load
from jaxgnn.export import load as load_exported
from jaxgnn.ops._sampling.host_rows import gather_host_rows
from jaxgnn.train import (
    ConfigError,
    HostFeatures,
    InferenceSample,
    TrainConfig,
    compare,
    evaluate,
    evaluate_scores,
    load_link_run,
    load_run,
    predict,
    restore_run,
    run,
    saved_config,
)
from jaxgnn.train.loaders import host_features
from jaxgnn.train.reports.display import comparison_table
from jaxgnn_cli import main
from tests.support.small_sets import small


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run on features that are normalized, so that a forgotten normalization shows."""
    directory = tmp_path_factory.mktemp("models")
    small(directory / "small.npz")
    small(directory / "other.npz", nodes=120)
    config = TrainConfig(
        dataset=str(directory / "small.npz"),
        model="sage",
        hidden=8,
        epochs=4,
        features="normalized",
        num_neighbors="3,3",
        run_directory=str(directory / "run"),
    )
    rows: list[dict] = []
    run(config, callbacks=[rows.append])
    log = (directory / "run" / "metrics.jsonl").read_text().splitlines()
    assert rows == [json.loads(line) for line in log] and len(rows) == 4
    return directory / "run"


@pytest.mark.system
def test_features_on_the_host_stay_there(trained, tmp_path, monkeypatch, capsys):
    """Restored, scored and predicted from batches of nodes; and as with features on the device."""
    shutil.copytree(trained, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    record["settings"]["features_on"] = "host"
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    reads: list[int] = []

    def counted(rows, nodes, *shape):
        reads.append(nodes.shape[0])
        return gather_host_rows(rows, nodes, *shape)

    monkeypatch.setattr(host_features, "gather_host_rows", counted)
    restored = restore_run(tmp_path / "run")
    assert isinstance(restored.task.features, HostFeatures)
    expected = restore_run(trained)
    assert not isinstance(expected.task.features, HostFeatures)
    logits = [
        run.program.logits(run.best.params, run.best.rest, run.task) for run in (restored, expected)
    ]
    np.testing.assert_allclose(*logits, atol=1e-5)
    assert main(["predict", str(tmp_path / "run"), "--output", str(tmp_path / "p.npz")]) == 0
    found = np.load(tmp_path / "p.npz")["probabilities"]
    np.testing.assert_allclose(found, jax.nn.softmax(logits[1]), atol=1e-5)
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    # A quarter of the nodes and their senders.
    assert len(reads) >= 3 and max(reads) < 200
    rows = [
        evaluate(run, [InferenceSample("bucket", 2)], num_runs=1)["rows"]
        for run in (restored, expected)
    ]
    for one, other in zip(*rows, strict=True):
        assert one["test_score"] == pytest.approx(other["test_score"], abs=0.02)


def error(capsys, *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and line.startswith("jaxgnn: ")
    return line


def test_predictions_are_the_runs(trained, tmp_path, capsys):
    restored = restore_run(trained)
    logits = restored.program.logits(restored.best.params, restored.best.rest, restored.task)
    loaded = load_run(trained)
    data = loaded.own_data()
    np.testing.assert_allclose(loaded.logits(data.graph, data.features), logits, atol=1e-6)
    assert loaded.dataset.num_features == loaded.dataset.num_classes == 3
    assert loaded.dataset.normalized and loaded.config.model == "sage"

    assert main(["predict", str(trained), "--output", str(tmp_path / "p.csv")]) == 0
    assert "200 nodes, 3 classes" in capsys.readouterr().out
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    with (tmp_path / "p.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["id", "class", "probability_0", "probability_1", "probability_2"]
    assert [int(row[0]) for row in rows] == list(range(200))
    assert [int(row[1]) for row in rows] == np.asarray(logits).argmax(axis=1).tolist()
    np.testing.assert_allclose(np.array(rows)[:, 2:].astype(float), expected, atol=1e-6)

    # A graph that the run has not seen, beside the model's own arithmetic.
    other = trained.parent / "other.npz"
    arguments = ["predict", str(trained), str(other), "--output", str(tmp_path / "p.npz")]
    assert main(arguments) == 0
    unseen = load(other, normalize_features=True)
    found = np.load(tmp_path / "p.npz")
    assert found["id"].tolist() == list(range(120)) and found["class_names"].tolist() == [*"012"]
    out = np.asarray(loaded.model(unseen.graph, unseen.features))
    np.testing.assert_allclose(
        found["probabilities"], np.exp(out) / np.exp(out).sum(1, keepdims=True), atol=1e-6
    )
    np.testing.assert_array_equal(found["class"], out.argmax(axis=1))


@pytest.mark.system
def test_metrics_as_csv_and_a_trace(trained, tmp_path, capsys):
    with (trained / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    log = (trained / "metrics.jsonl").read_text().splitlines()
    found = [{name: float(value) for name, value in row.items()} for row in rows]
    assert found == [json.loads(line) for line in log]

    def stop(row):
        raise RuntimeError(f"epoch {row['epoch']}")

    # The trace is written although the run ends early, and the run can be continued.
    longer = TrainConfig(**json.loads((trained / "config.json").read_text())["settings"])
    shutil.copytree(trained, tmp_path / "run")
    changes = {"resume": str(tmp_path / "run"), "epochs": 6, "profile": str(tmp_path / "trace")}
    with pytest.raises(RuntimeError, match="epoch 5"):
        run(dataclasses.replace(longer, **changes), callbacks=[stop])
    (trace,) = (tmp_path / "trace").rglob("*.xplane.pb")
    text = trace.read_bytes()
    assert b"layer_0_SAGEConv" in text and b"epoch" in text
    within = [
        "--run-directory",
        str(tmp_path / "new"),
        "--profile",
        str(tmp_path / "new" / "trace"),
    ]
    assert main(["train", "--hidden", "2", "--epochs", "1", *within]) == 0
    assert [path.name for path in (tmp_path / "new" / "trace").iterdir()] == ["plugins"]
    capsys.readouterr()
    settings = ["--epochs", "1", "--profile", "/dev/null/x"]
    assert "--profile: /dev/null/x: " in error(capsys, "train", *settings)


def test_names_and_several_labels(trained, tmp_path):
    loaded = load_run(trained)
    data = load(trained.parent / "other.npz")
    named = dataclasses.replace(data, node_names=tuple(f"node, {i}" for i in range(120)))
    description = dataclasses.replace(loaded.dataset, class_names=("a", 'b"', "c"))
    found = predict(dataclasses.replace(loaded, dataset=description), named)
    found.save(str(tmp_path / "p.csv"))
    with (tmp_path / "p.csv").open() as file:
        head, first, *rows = csv.reader(file)
    assert head[2:] == ["probability_a", 'probability_b"', "probability_c"] and len(rows) == 119
    assert first[0] == "node, 0" and first[1] == ("a", 'b"', "c")[found.labels[0]]

    several = dataclasses.replace(description, multilabel=True)
    found = predict(dataclasses.replace(loaded, dataset=several), named)
    logits = np.asarray(loaded.logits(data.graph, data.features))
    np.testing.assert_allclose(found.probabilities, 1 / (1 + np.exp(-logits)), atol=1e-6)
    found.save(tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, values in zip(rows, logits, strict=True):
        names = [name for name, value in zip(("a", 'b"', "c"), values, strict=True) if value > 0]
        assert row["classes"] == "|".join(names)


def test_an_embedding_is_of_its_nodes(trained, tmp_path, capsys):
    pytest.importorskip("flatbuffers")
    path = str(tmp_path / "run")
    settings = {"features": "embedding", "hidden": 8, "epochs": 1, "run_directory": path}
    run(TrainConfig(dataset=str(trained.parent / "small.npz"), **settings))
    restored, loaded = restore_run(path), load_run(path)
    expected = restored.program.logits(restored.best.params, restored.best.rest, restored.task)
    data = loaded.own_data()
    np.testing.assert_allclose(loaded.logits(data.graph, data.features), expected, atol=1e-6)
    other = str(trained.parent / "other.npz")
    found = error(capsys, "predict", path, other, "--output", str(tmp_path / "p.csv"))
    assert "graph: expected the 200 nodes of small, whose embedding was learned, got 120" in found
    assert main(["export", path, "--output", str(tmp_path / "x"), "--platforms", of_device()]) == 0
    exported = load_exported(tmp_path / "x")
    np.testing.assert_allclose(exported(data.graph, data.features), expected, atol=1e-5)


def test_scores_are_the_runs_and_those_of_other_data(trained, tmp_path, capsys):
    output = ["--output", str(tmp_path)]
    assert main(["evaluate", str(trained), *output]) == 0
    summary = json.loads((trained / "summary.json").read_text())
    scores = json.loads((tmp_path / "evaluation.json").read_text())
    assert [row["nodes"] for row in scores["rows"]] == [50, 50, 100]
    assert scores["rows"][2]["score"] == summary["test_score"]
    assert scores["rows"][1]["score"] == summary["val_score"]
    assert f"{100 * summary['test_score']:.2f} %" in capsys.readouterr().out
    best = (trained / "metrics.jsonl").read_text().splitlines()[summary["best_epoch"] - 1]
    assert scores["rows"][1]["loss"] == pytest.approx(json.loads(best)["val_loss"], rel=1e-5)
    other = str(trained.parent / "other.npz")
    capsys.readouterr()
    assert main(["evaluate", str(trained), "--split", "3", *output]) == 0
    assert "--split: the run was trained on split 0: its training" in capsys.readouterr().err
    own = str(trained.parent / "small.npz")
    assert main(["evaluate", str(trained), own, "--split", "3", *output]) == 0
    assert "its training nodes may be test nodes of split 3" in capsys.readouterr().err
    assert main(["evaluate", str(trained), own, "--split", "0", *output]) == 0
    assert main(["evaluate", str(trained), other, "--split", "3", *output]) == 0
    assert "--split" not in capsys.readouterr().err
    scores = json.loads((tmp_path / "evaluation.json").read_text())
    assert (scores["dataset"], scores["split"], scores["rows"][2]["nodes"]) == ("other", 3, 60)


def test_data_without_training_nodes_are_scored(trained, tmp_path, capsys):
    classes = load_run(trained).dataset.num_classes
    rows = [f"{i},{i % classes},test,1,2,3\n" for i in range(2 * classes)]
    (tmp_path / "nodes.csv").write_text("id,label,split,a,b,c\n" + "".join(rows))
    (tmp_path / "edges.csv").write_text("source,target\n")
    output = ["--output", str(tmp_path / "out")]
    assert main(["evaluate", str(trained), str(tmp_path), *output]) == 0
    scores = json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"]
    assert [row["nodes"] for row in scores] == [0, 0, 2 * classes]
    assert scores[0]["score"] is None and scores[2]["score"] == 1 / classes
    capsys.readouterr()
    found = error(capsys, "train", str(tmp_path), "--epochs", "1")
    assert "train: expected at least one training node, got none" in found


@pytest.mark.system
def test_classes_of_other_names_are_not_scored(tmp_path, capsys):
    """Classes without names are 0, 1, ..., so that others are no such numbers."""

    def write(name: str, classes: str) -> str:
        (tmp_path / name).mkdir()
        rows = [f"{i},{classes[i % 2]},{('train', 'test')[i // 6]},{i}\n" for i in range(12)]
        (tmp_path / name / "nodes.csv").write_text("id,label,split,x\n" + "".join(rows))
        (tmp_path / name / "edges.csv").write_text("source,target\n0,1\n")
        return str(tmp_path / name)

    paths = {name: write(name, name) for name in ("01", "02", "ab", "ba", "bc")}
    for name, same, others in (
        ("01", [], {"02": "'0', '2'", "ab": "'a', 'b'"}),
        ("ab", ["ba"], {"bc": "'b', 'c'", "01": "0, 1, ..."}),
    ):
        directory = str(tmp_path / f"run-{name}")
        run(TrainConfig(dataset=paths[name], hidden=4, epochs=1, run_directory=directory))
        for path in [name, *same]:
            assert main(["evaluate", directory, paths[path]]) == 0
        capsys.readouterr()
        for path, classes in others.items():
            found = error(capsys, "evaluate", directory, paths[path])
            assert f"{path}: expected the classes of {name} by name, " in found and classes in found


def test_degrees_are_the_feature_of_tables_without_any(tmp_path, capsys):
    """Of tables without labels too, which are predicted for, and of no column of theirs."""
    edges = "".join(f"{i},{5 * i % 12}\n{i},0\n" for i in range(12))

    def write(name: str, head: str, row: str) -> str:
        (tmp_path / name).mkdir()
        rows = [row.format(i, i % 2, ("train", "val", "test")[i % 3]) for i in range(12)]
        (tmp_path / name / "nodes.csv").write_text("\n".join([head, *rows, ""]))
        (tmp_path / name / "edges.csv").write_text("source,target\n" + edges)
        return str(tmp_path / name)

    labelled = write("labelled", "id,label,split", "{},{},{}")
    plain, other = write("plain", "id", "{}"), write("other", "id,age", "{},7")
    directory, output = str(tmp_path / "run"), str(tmp_path / "p.npz")
    settings = {"hidden": 4, "epochs": 1, "undirected": True, "run_directory": directory}
    run(TrainConfig(dataset=labelled, **settings))
    for path in (labelled, plain):
        assert main(["predict", directory, path, "--output", output]) == 0
        expected = load_run(directory).own_data()
        expected = load_run(directory).predict(expected.graph, expected.features)
        np.testing.assert_allclose(np.load(output)["probabilities"], expected, atol=1e-6)
    capsys.readouterr()
    found = error(capsys, "predict", directory, other, "--output", output)
    assert "expected the features of labelled by name, got none of ['log(1 + in-degree)']" in found
    directory = str(tmp_path / "links")
    run(TrainConfig(dataset=labelled, task="link", hidden=4, epochs=1, run_directory=directory))
    links = load_link_run(directory)
    np.testing.assert_array_equal(links.load_data(plain).features, links.own_data().features)


@pytest.mark.system
def test_reverse_edges(tmp_path, capsys):
    """Of tables that list an edge once: in training, in what is predicted, and in `info`."""
    nodes = [f"n{i},{'ab'[i % 2]},{('train', 'val', 'test')[i % 3]},{i},1\n" for i in range(12)]
    (tmp_path / "nodes.csv").write_text("id,label,split,x,y\n" + "".join(nodes))
    edges = "".join(f"n{i},n{i + 1}\n" for i in range(11))
    (tmp_path / "edges.csv").write_text("source,target\n" + edges)
    directory, path = tmp_path / "run", str(tmp_path)
    options = ["--model", "gcn", "--hidden", "4", "--epochs", "2", "--undirected"]
    assert main(["train", path, *options, "--run-directory", str(directory)]) == 0
    assert load(tmp_path).graph.num_edges == 11
    trained = load_run(directory)
    assert trained.own_data().graph.num_edges == trained.load_data(tmp_path).graph.num_edges == 22
    assert main(["evaluate", str(directory), path, "--output", str(tmp_path / "out")]) == 0
    scores = json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"]
    summary = json.loads((directory / "summary.json").read_text())
    assert scores[2]["score"] == pytest.approx(summary["test_score"], abs=1e-6)
    # A dataset that the caller gives gets them too: the same losses.
    given = TrainConfig(dataset=path, hidden=4, epochs=2, undirected=True)
    given = dataclasses.replace(given, run_directory=str(tmp_path / "given"))
    assert run(given, dataset=load(path))["test_score"] == summary["test_score"]
    capsys.readouterr()
    assert main(["info", path, *options]) == 0
    assert re.search(r"\bedges\W+22\W", capsys.readouterr().out)
    assert main(["train", path, "--task", "link", "--undirected"]) == 2
    assert "--undirected: expected --task node with it, got --task link" in capsys.readouterr().err


@pytest.mark.system
def test_features_and_learned_nodes_are_told_by_their_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(24, 2)).round(3)
    edges = "".join(f"n{i},n{(5 * i + 1) % 24}\n" for i in range(24))

    def write(name: str, columns: str, order: list[int], nodes: range | list[int] = range(24)):
        folder = tmp_path / name
        folder.mkdir()
        rows = [
            f"n{i},{'ab'[i % 2]},{('train', 'val', 'test')[i % 3]},"
            + ",".join(str(values[i, j]) for j in order)
            for i in nodes
        ]
        text = "\n".join([f"id,label,split,{columns}", *rows, ""])
        (folder / "nodes.csv").write_text(text)
        (folder / "edges.csv").write_text("source,target\n" + edges)
        return str(folder)

    first = write("first", "x,y", [0, 1])
    swapped, other = write("swapped", "y,x", [1, 0]), write("other", "x,z", [0, 1])
    reversed_nodes = write("reversed", "x,y", [0, 1], list(range(23, -1, -1)))
    settings = {"dataset": first, "hidden": 4, "epochs": 1}
    path = str(tmp_path / "run")
    run(TrainConfig(**settings, run_directory=path))
    loaded = load_run(path)
    data, same = loaded.load_data(first), loaded.load_data(swapped)
    assert same.feature_names == ("x", "y") and load(swapped).feature_names == ("y", "x")
    np.testing.assert_array_equal(data.features, same.features)
    np.testing.assert_array_equal(loaded.load_data(reversed_nodes).features, data.features[::-1])
    found = error(capsys, "predict", path, other, "--output", str(tmp_path / "p.csv"))
    assert "other: expected the features of first by name, got none of ['y']" in found

    # Rows that were learned are of their nodes, wherever these stand.
    path = str(tmp_path / "learned")
    run(TrainConfig(**settings, features="embedding", run_directory=path))
    learned = load_run(path)
    assert learned.load_data(swapped).num_nodes == 24
    found = error(capsys, "predict", path, reversed_nodes, "--output", str(tmp_path / "p.csv"))
    assert "reversed: expected the nodes of first, by name and in their order" in found
    record = json.loads((tmp_path / "learned" / "config.json").read_text())
    for name in ("feature_names", "node_names"):  # earlier versions recorded neither
        del record["dataset"][name]
    (tmp_path / "learned" / "config.json").write_text(json.dumps(record))
    assert load_run(path).load_data(reversed_nodes).num_nodes == 24


def test_what_cannot_be_predicted(trained, tmp_path, capsys):
    path, output = str(trained), ["--output", str(tmp_path / "p.csv")]
    cases = {
        "--output: expected a file name with .csv or .npz, got": ["predict", path],
        "its directory is not there": ["predict", path, "--output", str(tmp_path / "no" / "p.csv")],
        "RUN: nowhere is no run directory": ["predict", "nowhere", *output],
        "digits: expected 3 features a node, as small has, got 64": [
            *("predict", path, "digits", *output)
        ],
        "--split: other has 10 splits": [
            *("evaluate", path, str(trained.parent / "other.npz"), "--split", "10")
        ],
        "no such file": ["evaluate", path, "no-such-set"],
        "--output: expected a path, got none": ["evaluate", path, "--output", ""],
    }
    for message, arguments in cases.items():
        assert message in error(capsys, *arguments)
    assert not list(tmp_path.iterdir())
    record = json.loads((trained / "config.json").read_text())
    shutil.copytree(trained, tmp_path / "run")
    for changed in ({"num_features": "3"}, {"num_classes": 0}, {"metric": "x"}, {"x": 1}):
        dataset = record["dataset"] | changed
        (tmp_path / "run" / "config.json").write_text(json.dumps(record | {"dataset": dataset}))
        assert "config.json: dataset: " in error(capsys, "predict", str(tmp_path / "run"), *output)
    settings = record["settings"] | {"task": "link", "num_neighbors": ""}
    (tmp_path / "run" / "config.json").write_text(json.dumps(record | {"settings": settings}))
    found = error(capsys, "predict", str(tmp_path / "run"), *output)
    assert "--pairs: expected a table of pairs with a run of --task link, got none" in found
    found = error(capsys, "predict", path, *output, "--pairs", "pairs.csv")
    assert "--pairs: expected none with a run of --task node, got one" in found
    # Runs that recorded no description of their data are described by these.
    del record["dataset"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    assert load_run(tmp_path / "run").dataset == load_run(trained).dataset


def test_outputs_that_overflow_are_errors(trained, tmp_path, capsys):
    """Of NaN the largest probability was that of the first class."""
    loaded, data = load_run(trained), load(trained.parent / "other.npz")
    features = np.where(np.arange(120)[:, None] == 7, np.float32(3e38), data.features)
    huge = dataclasses.replace(data, features=features)
    expected = "other: expected finite outputs of the model, got NaN or infinity in row "
    params = nnx.state(loaded.model, nnx.Param)
    nnx.update(loaded.model, jax.tree.map(lambda x: 10 * x, params))
    for function in (predict, evaluate_scores):
        function(loaded, data)
        with pytest.raises(DataError, match=expected):
            function(loaded, huge)


def test_arguments_that_are_something_else(trained):
    for function in (load_run, load_link_run, restore_run, saved_config, lambda x: compare([x])):
        with pytest.raises(TypeError, match="run: expected a path, got int"):
            function(3)
    for value in ("r/0", Path("r"), 3):
        with pytest.raises(TypeError, match="directories: expected a sequence of paths, got "):
            compare(value)
    loaded, data = load_run(trained), load(trained.parent / "other.npz")
    for function in (evaluate_scores, predict):
        with pytest.raises(TypeError, match="run: expected one of load_run, got str"):
            function("r/0", None)
    with pytest.raises(TypeError, match="dataset: expected a NodeDataset, PlainGraph or GraphSet"):
        evaluate_scores(loaded, None)
    for split in ("0", 1.0, True, -1):
        with pytest.raises(
            ConfigError, match=f"--split: expected an integer from 0, got {split!r}"
        ):
            evaluate_scores(loaded, data, split)


def test_comparison(trained, tmp_path, capsys):
    record = json.loads((trained / "config.json").read_text())
    summary = json.loads((trained / "summary.json").read_text())

    def made(name, results, **settings):
        (tmp_path / name).mkdir()
        settings = record["settings"] | settings
        (tmp_path / name / "config.json").write_text(json.dumps(record | {"settings": settings}))
        if results is not None:
            (tmp_path / name / "summary.json").write_text(json.dumps(summary | results))
        return str(tmp_path / name)

    runs = [
        made("a", {"test_score": 0.5}),
        made("b", {"test_score": 0.7}, hidden=16),
        made("c", {"test_score": 0.6}, seed=3),
        made("started", None, seed=4),
        made("longer", {}, seed=5, epochs=9),
        made("stopped", {"stopped": True, "best_epoch": 2}, epochs=9, patience=2, layers=2),
    ]
    found = compare(runs)
    assert found.unfinished == (runs[3], runs[4])
    assert [row.seeds for row in found.rows] == [(0, 3), (0,), (0,)]
    assert found.rows[0].test_score == pytest.approx(0.55)
    assert found.rows[0].test_std == pytest.approx(0.05) and found.rows[1].test_std is None
    assert found.rows[1].settings == {"hidden": 16, "epochs": 4, "patience": 100}
    narrow = Console(width=40, file=io.StringIO())
    narrow.print(comparison_table(found))
    assert "…" not in narrow.file.getvalue()
    for suffix in ("md", "csv", "png"):
        assert main(["compare", *runs, "--output", str(tmp_path / f"c.{suffix}")]) == 0
    assert f"unfinished: {runs[3]}" in capsys.readouterr().out.replace("\n", "")
    text = (tmp_path / "c.md").read_text()
    assert "| 8 | 4 | 100 | 2 | 55.00 ± 5.00 |" in text and f"Unfinished: {runs[4]}" in text
    with (tmp_path / "c.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["seeds"] == "0 3" and float(rows[1]["test_score"]) == 0.7
    # A setting of a result's name is its option.
    assert list(rows[0])[:3] == ["hidden", "--epochs", "patience"]
    assert (rows[2]["--epochs"], rows[2]["epochs"]) == ("9", "4.0")
    assert "| hidden | --epochs | patience | runs |" in text
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"

    assert "RUN: expected at least one run, got none" in error(capsys, "compare")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for again in (runs[0], f"{tmp_path}/b/../a", str(tmp_path / "link")):
        assert "is named twice" in error(capsys, "compare", runs[0], again)
    assert "--output: expected a file name with .md or .csv or .png" in error(
        capsys, "compare", runs[0], "--output", str(tmp_path / "c.txt")
    )
    (tmp_path / "a" / "summary.json").write_text('{"metric": "accuracy"}')
    assert "expected the results of a run" in error(capsys, "compare", runs[0])
