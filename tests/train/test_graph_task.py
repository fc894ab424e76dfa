"""`--task graph`: classes, labels and numbers of many graphs."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.metrics import average_precision_score

from jaxgnn import data, export
from jaxgnn.data import GraphSet, Metadata, Split
from jaxgnn.train import (
    Best,
    ConfigError,
    GraphLoader,
    GraphSetDescription,
    LoadedGraphRun,
    Progress,
    Recovery,
    TrainConfig,
    evaluate_scores,
    load_run,
    predict,
    run,
    run_folds,
    train,
)
from jaxgnn.train.loop.epochs import UnfinishedEpoch, copy
from jaxgnn.train.problems.graph_problem import CompiledGraphs, GraphProblem
from jaxgnn.train.problems.problem import make_problem
from jaxgnn.train.steps.task import score
from jaxgnn_cli import main

PLATFORM = "cuda" if jax.default_backend() == "gpu" else "cpu"
SMALL = TrainConfig(
    task="graph", model="gin", hidden=8, dropout=0.2, batch_size=8, weight_decay=0.0, epochs=12
)


def graph_set(
    kind: str = "class", *, edges: bool = False, name: str = "toy", **changes
) -> GraphSet:
    """Rings and paths of random sizes, the first without nodes, the second of one node."""
    rng = np.random.default_rng(0)
    sizes = np.concatenate([[0, 1], rng.integers(2, 9, 46)])
    rings = rng.integers(0, 2, sizes.size) * (sizes > 2)
    ends = [np.arange(max(n - 1 + ring, 0)) for n, ring in zip(sizes, rings, strict=True)]
    senders = [np.concatenate([e, (e + 1) % max(n, 1)]) for e, n in zip(ends, sizes, strict=True)]
    receivers = [np.roll(s, s.size // 2) for s in senders]
    counts = [s.size for s in senders]
    if kind == "class":
        labels = rings.astype(np.int32)
    elif kind == "labels":
        labels = np.stack([rings, sizes > 5], axis=1).astype(np.float32)
        labels[rng.random(labels.shape) < 0.2] = np.nan
    else:
        labels = np.stack([100.0 + 10 * sizes, np.full(sizes.size, 3)], axis=1).astype(np.float32)
    part = np.arange(sizes.size) % 4
    arrays = {
        "node_offsets": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        "edge_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "senders": np.concatenate(senders).astype(np.int32),
        "receivers": np.concatenate(receivers).astype(np.int32),
        "features": rng.normal(1, 0.1, (sizes.sum(), 3)).astype(np.float32),
        "edge_features": rng.random((sum(counts), 2)).astype(np.float32) if edges else None,
        "labels": labels,
        "num_classes": 2 if kind == "class" else None,
        "splits": {"only": Split(part < 2, part == 2, part == 3)},
    }
    return GraphSet(name, **(arrays | changes))


def problem_of(config: TrainConfig = SMALL, graphs: GraphSet | None = None) -> GraphProblem:
    problem = make_problem(config.check(), graph_set() if graphs is None else graphs, Recovery())
    assert isinstance(problem, GraphProblem)
    return problem


def untrained(config: TrainConfig, graphs: GraphSet, directory: Path) -> LoadedGraphRun:
    """A run after no epoch, which recorded its data."""
    problem = problem_of(config, graphs)
    program, state = problem.build()
    record = {"data": {"name": problem.name, "fingerprint": problem.fingerprint()}}
    text = json.dumps(record | {"settings": config.settings()})
    (directory / "config.json").write_text(text)
    model = nnx.merge(program.inference, state.params, state.rest)
    return LoadedGraphRun(directory, config, problem.description, model, Progress())


def fit(compiled, task, start, **options):
    rows: list[dict] = []
    state = copy(start)
    best = Best(copy(state.params), copy(state.rest))
    done = train(compiled, task, state, best, Progress(), on_epoch=rows.append, **options)
    return *done, rows


def test_runs_learn_and_continue_within_an_epoch_bit_by_bit():
    problem = problem_of()
    program, start = problem.build()
    compiled = problem.compile(program, start)
    _, best, progress, rows = fit(compiled, problem.task, start, epochs=SMALL.epochs)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    results = problem.results(program, compiled.evaluate, best.params, best.rest)
    assert results["val_score"] == progress.best_score == max(r["val_accuracy"] for r in rows)
    assert results["test_scores"] == {"accuracy": results["test_score"]}
    assert np.trace(results["confusion"]) / results["confusion"].sum() == results["test_score"]
    assert compiled.programs <= 6
    known = {"spmm", "dropout_mask", "csr_row_ids", "row_offsets"}  # the last on a GPU
    assert set(compiled.kernels) <= known
    # Another problem, as another process has it, goes on after the second of three batches.
    calls = iter([False, True])
    first, saved = fit(compiled, problem.task, start, epochs=2), []
    with pytest.raises(UnfinishedEpoch) as stop:
        options = {"checkpoint": lambda *state: saved.append(state), "checkpoint_steps": 1}
        compiled.step(first[0], problem.task, lambda: next(calls), **options)
    assert len(saved) == 1
    other = problem_of().task
    continued, loss = compiled.step(stop.value.state, other, sums=stop.value.sums)
    assert float(loss) == rows[2]["loss"]
    whole = fit(compiled, other, start, epochs=3)[0]
    found, expected = ((state.params, state.optimizer) for state in (continued, whole))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.system
def test_graphs_that_stay_on_the_host_train_likewise():
    """A step a call, which an interrupt waits for, where they do not fit on the device."""
    problem = problem_of()
    device = problem.task
    loader = GraphLoader(
        graph_set(),
        SMALL.batch_size,
        seed=SMALL.seed,
        indices=np.flatnonzero(problem._split.train),
        max_device_bytes=0,
    )
    assert loader.device_graphs is None and device.training.device_graphs is not None
    host = dataclasses.replace(device, training=loader, scored=None)
    program, start = problem.build()
    ends = []
    for task in (host, device):
        compiled = CompiledGraphs(program, start, task, jnp.dtype("float32"))
        state, losses = copy(start), []
        for _ in range(2):
            state, loss = compiled.step(state, task)
            losses.append(float(loss))
        ends.append((losses, state.params))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-4)
    for a, b in zip(*(jax.tree.leaves(params) for _, params in ends), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    compiled, calls = CompiledGraphs(program, start, host, jnp.dtype("float32")), []
    with pytest.raises(UnfinishedEpoch):
        compiled.step(copy(start), host, lambda: bool(calls) or bool(calls.append(0)))
    assert len(calls) == 1


@pytest.mark.system
def test_labels_with_missing_ones_features_of_edges_and_attention():
    graphs = graph_set("labels", edges=True, metadata=Metadata(metric="average_precision"))
    config = dataclasses.replace(
        SMALL, readout="attention", norm="batch", activation="elu", batch_size=5
    )
    problem = problem_of(config, graphs)
    program, state = problem.build()
    compiled = problem.compile(program, state)
    assert "2 an edge, 2 labels; 24 training" in problem.describe()
    outputs, metrics = compiled.evaluate(state.params, state.rest, problem.task)
    labels = problem.task.labels
    known = ~np.isnan(labels)
    losses = np.logaddexp(0, outputs) - np.where(known, labels, 0) * outputs
    np.testing.assert_allclose(metrics["val_loss"], losses[known].mean(), rtol=1e-5)
    results = problem.results(program, compiled.evaluate, state.params, state.rest)
    pairs = [(labels[:, i][known[:, i]], outputs[:, i][known[:, i]]) for i in range(2)]
    expected = np.mean([average_precision_score(*pair) for pair in pairs])
    assert results["val_score"] == pytest.approx(expected)
    assert set(results["test_scores"]) == {"average_precision", "roc_auc"}
    _, _, _, rows = fit(compiled, problem.task, state, epochs=4)
    assert rows[-1]["loss"] < rows[0]["loss"] and "val_average_precision" in rows[0]
    assert state.params["encoder"]["convs"][0]["linear"]["kernel"].shape == (2, 3)
    without = problem_of(dataclasses.replace(config, edge_features="none"), graphs)
    assert without.description.num_edge_features == 0


@pytest.mark.system
def test_categories_are_embedded_as_ogb_s_molecules_have_them(tmp_path):
    """The label is the parity of a node's category, which no sum of the numbers tells."""
    rng = np.random.default_rng(1)
    base = graph_set(edges=True)
    labels = rng.integers(2, size=len(base)).astype(np.int32)
    of_nodes = np.repeat(labels, np.diff(base.node_offsets))
    x = np.stack([2 * rng.integers(3, size=of_nodes.size) + of_nodes, of_nodes * 0], axis=1)
    x[0] = 300, 1  # more than bfloat16 holds
    bonds = rng.integers(3, size=(base.num_edges, 2)).astype(np.float32)
    changes = {"features": x.astype(np.float32), "edge_features": bonds, "labels": labels}
    graphs = dataclasses.replace(
        base, **changes, node_categories=np.array([301, 2]), edge_categories=np.array([3, 3])
    )
    path = str(tmp_path / "run")
    config = dataclasses.replace(
        *(SMALL,),
        **{"dtype": "bfloat16", "dropout": 0.0, "readout": "mean", "learning_rate": 0.03},
        **{"batch_size": 24, "epochs": 30, "run_directory": path},
    )
    summary = run(config, dataset=graphs)
    assert summary["test_score"] > 0.8
    problem = problem_of(config, graphs)
    assert "2 categories a node and 2 an edge" in problem.describe()
    loaded = load_run(path)
    assert isinstance(loaded, LoadedGraphRun)
    assert (loaded.dataset.node_categories, loaded.dataset.edge_categories) == ((301, 2), (3, 3))
    assert loaded.model.encoder.in_features == loaded.model.encoder.convs[0].edge_dim == 8
    unseen = dataclasses.replace(graphs, node_categories=None, features=graphs.features + 1)
    with pytest.raises(data.DataError, match=r"features: column 0: expected .* 0 to 300, got 301"):
        loaded.logits(unseen)
    counted = dataclasses.replace(graphs, node_categories=None, edge_categories=None)
    for asked, found in (("categories", (301, 2)), ("auto", None)):
        options = {"features": asked, "edge_features": asked}
        description = problem_of(dataclasses.replace(config, **options), counted).description
        assert description.node_categories == found and (description.edge_categories is None) == (
            found is None
        )
        written = json.loads(json.dumps(description.to_json()))
        assert GraphSetDescription.from_json(written) == description
    raw = problem_of(dataclasses.replace(config, features="raw", edge_features="none"), graphs)
    assert raw.description.node_categories is raw.description.edge_categories is None
    for sizes in ([3], [3, 0], [3, 1.5], "33"):
        with pytest.raises(ConfigError, match="node_categories: expected 2 numbers of categories"):
            GraphSetDescription.from_json(written | {"node_categories": sizes})
    with pytest.raises(data.DataError, match="toy: features: expected columns of categories"):
        problem_of(dataclasses.replace(SMALL, features="categories"))
    with pytest.raises(ConfigError, match="--edge-features: expected a model that takes them"):
        problem_of(dataclasses.replace(SMALL, model="gcn", edge_features="raw"), graphs)
    with pytest.raises(ConfigError, match="--edge-features: expected features of the edges"):
        problem_of(dataclasses.replace(SMALL, edge_features="raw"))
    with pytest.raises(data.DataError, match="features: expected 1 columns of categories, got 2"):
        dataclasses.replace(graphs, node_categories=np.array([9]))
    pytest.importorskip("flatbuffers")
    arguments = ["export", path, "--output", str(tmp_path / "out"), "--platforms"]
    sizes = ["--graphs", "48", "--nodes", "400", "--edges", "800"]
    assert main([*arguments, PLATFORM, *sizes]) == 0
    exported = export.load_graphs(tmp_path / "out")
    edges = np.concatenate([item.edge_features for item in graphs])
    found = exported([item.graph for item in graphs], graphs.features, edges)
    np.testing.assert_allclose(found, loaded.logits(graphs), rtol=0.02, atol=0.03)


@pytest.mark.system
def test_pna_with_features_of_edges_scales_by_the_training_graphs_degrees():
    graphs = graph_set(edges=True)
    problem = problem_of(dataclasses.replace(SMALL, model="pna", batch_size=24), graphs)
    kept = np.flatnonzero(graphs.splits["only"].train)
    degrees = np.concatenate([np.asarray(graphs[i].graph.in_degrees) for i in kept])
    assert problem.description.degree_histogram == tuple(np.bincount(degrees))
    program, state = problem.build()
    encoder = nnx.merge(program.inference, state.params, state.rest).encoder
    assert encoder.convs[0].mean_degree == pytest.approx(degrees.mean())
    assert encoder.convs[1].edge_dim == 2
    _, _, _, rows = fit(problem.compile(program, state), problem.task, state, epochs=16)
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]
    with pytest.raises(ConfigError, match="--sample-size: expected a model that samples edges"):
        problem_of(dataclasses.replace(SMALL, model="pna", sample_size=2), graph_set()).build()
    written = json.loads(json.dumps(problem.description.to_json()))
    assert GraphSetDescription.from_json(written) == problem.description
    del written["degree_histogram"]  # as of an older run, of another model
    assert GraphSetDescription.from_json(written).degree_histogram is None
    for counts in ([], [3], [1, -1], [1, True], "11"):
        with pytest.raises(
            ConfigError, match="dataset: degree_histogram: expected counts of nodes"
        ):
            GraphSetDescription.from_json(written | {"degree_histogram": counts})


@pytest.mark.system
def test_numbers_in_units_of_the_targets_and_files_of_a_run(tmp_path):
    graphs = graph_set("values", features=None)
    config = dataclasses.replace(
        SMALL, norm="graph", metric="mae", dropout=0.0, epochs=3, run_directory=str(tmp_path / "r")
    )
    summary = run(config, dataset=graphs)
    assert summary["metric"] == "mae" and set(summary["test_scores"]) == {"mae", "rmse"}
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").open()]
    assert summary["val_score"] == min(row["val_mae"] for row in rows)
    assert rows[0]["loss"] < 3  # in units of the deviation
    loaded = load_run(tmp_path / "r")
    assert isinstance(loaded, LoadedGraphRun)
    assert (loaded.dataset.inputs, loaded.dataset.num_features) == ("degrees", 64)
    values = loaded.predict(list(graphs))
    np.testing.assert_allclose(values[:, 1], 3, atol=0.5)  # a target that is one number
    assert 50 < values[:, 0].mean() < 250
    batches = dataclasses.replace(loaded, config=dataclasses.replace(config, batch_size=48))
    np.testing.assert_allclose(batches.logits(graphs), values, rtol=1e-5)  # whatever the padding
    scores = evaluate_scores(loaded, graphs)
    assert scores["rows"][2]["score"] == pytest.approx(summary["test_score"])
    assert scores["rows"][2]["graphs"] == 12 and scores["rows"][2]["loss"] > 0
    unseen = evaluate_scores(loaded, dataclasses.replace(graphs, name="other", splits={}))
    assert [row["graphs_of"] for row in unseen["rows"]] == ["all"] and unseen["split"] is None
    predictions = predict(loaded, graphs)
    predictions.save(tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "id,target_0,target_1" and len(lines) == 49
    predictions.save(tmp_path / "p.npz")
    assert set(np.load(tmp_path / "p.npz")) == {"id", "target_names", "targets"}
    record = json.loads((tmp_path / "r" / "config.json").read_text())["dataset"]
    wrong = ("inputs", "edges"), ("num_outputs", 0), ("num_graphs", "3"), ("class_names", ["a"])
    for name, value in wrong:
        with pytest.raises(ConfigError, match=rf"config.json: dataset: {name}: expected"):
            GraphSetDescription.from_json(record | {name: value})
    with pytest.raises(data.DataError, match="other: expected 2 targets a graph, as the model has"):
        evaluate_scores(loaded, graph_set(name="other"))


def test_normalized_features_do_not_depend_on_the_other_graphs(tmp_path):
    config = dataclasses.replace(SMALL, features="normalized", batch_size=4)
    graphs = graph_set()
    loaded = untrained(config, graphs, tmp_path)
    items = [graphs[i] for i in range(4)]  # the first without nodes
    expected = loaded.predict(graphs)[:4]
    for rows, few in ((slice(3, 4), items[3:]), (slice(1, 4), items[1:]), (slice(4), items)):
        np.testing.assert_allclose(loaded.predict(few), expected[rows], atol=1e-6)
    given = [data.normalize_features(item.features) for item in items]
    found = loaded.dataset.store(items).features
    np.testing.assert_array_equal(found, np.concatenate(given))
    assert loaded.dataset.store(items[:1]).features.shape == (0, 3)


def test_no_graphs_are_predicted_as_no_rows(tmp_path):
    found = predict(untrained(SMALL, graph_set(), tmp_path), [])
    assert found.probabilities.shape == (0, 2) and found.labels.shape == (0,)
    found.save(tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1


@pytest.mark.system
def test_the_runs_own_set_is_told_by_its_checksum(tmp_path):
    """Not by its name: without splits, another set is scored as one."""
    graphs = graph_set(splits={})
    loaded = untrained(SMALL, graphs, tmp_path)
    other = dataclasses.replace(graphs, features=graphs.features + 1)
    few = dataclasses.replace(graphs, labels=np.zeros_like(graphs.labels))

    def parts(graphs: GraphSet) -> list[str]:
        return [row["graphs_of"] for row in evaluate_scores(loaded, graphs)["rows"]]

    own = ["training", "validation", "test"]
    assert parts(graphs) == parts(dataclasses.replace(graphs, name="copy")) == own
    assert parts(other) == parts(few) == ["all"]
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    del record["data"]  # earlier versions recorded none
    path.write_text(json.dumps(record))
    assert parts(other) == own and parts(dataclasses.replace(graphs, name="copy")) == ["all"]


@pytest.mark.system
def test_the_command_trains_evaluates_and_predicts(tmp_path, monkeypatch, capsys):
    graphs = graph_set()
    (tmp_path / "toy").mkdir()
    indicator = np.repeat(np.arange(1, 49), np.diff(graphs.node_offsets))
    starts = np.repeat(graphs.node_offsets[:-1], np.diff(graphs.edge_offsets)) + 1
    ends = np.stack([graphs.senders + starts, graphs.receivers + starts], axis=1)
    for name, rows in (
        ("A", ends),
        ("graph_indicator", indicator),
        ("graph_labels", graphs.labels),
    ):
        np.savetxt(tmp_path / "toy" / f"toy_{name}.txt", rows, fmt="%d", delimiter=", ")
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "toy", "--task", "graph", "--preset", "gin", "--hidden", "8"]
    assert main([*arguments, "--epochs", "2", "--run-directory", "run", "--split", "3"]) == 0
    assert "toy: 48 graphs" in capsys.readouterr().out
    assert main(["train", "--resume", "run", "--epochs", "4"]) == 0
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert (settings["batch_size"], settings["layers"], settings["epochs"]) == (128, 5, 4)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", "run", "--output", "scores"]) == 0
    scores = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert scores["rows"][2]["score"] == pytest.approx(summary["test_score"])
    for dataset in ([], ["toy"]):
        assert main(["evaluate", "run", *dataset, "--split", "2", "--output", "scores"]) == 0
        assert "its training graphs may be test graphs of split 2" in capsys.readouterr().err
    assert main(["predict", "run", "toy", "--output", "p.csv"]) == 0
    assert "48 graphs, 2 classes" in capsys.readouterr().out
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 49
    named = dataclasses.replace(data.load("toy"), class_names=("5", "7"))
    with pytest.raises(data.DataError, match=r"toy by name, 0, 1, \.\.\., got \('5', '7'\)"):
        evaluate_scores(load_run("run"), named)
    assert main(["train", "toy", "--task", "graph", "--folds", "11"]) == 2
    expected = "--folds: expected at most the 10 splits of toy, got 11"
    assert expected in capsys.readouterr().err
    folds = ["--model", "mlp", "--epochs", "1", "--folds", "2", "--run-directory", "folds"]
    assert main(["train", "toy", "--task", "graph", *folds]) == 0
    assert " ± " in capsys.readouterr().out
    pytest.importorskip("flatbuffers")
    for sizes, message in (
        (["--graphs", "16"], "wrote exported0: unions of 16 graphs, "),
        (["--nodes", "9", "--edges", "20"], "unions of 128 graphs, 10 nodes and 20 edges"),
    ):
        output = f"exported{sizes.count('--nodes')}"
        assert main(["export", "run", "--output", output, *sizes]) == 0
        assert message in capsys.readouterr().out
    loaded = export.load_graphs("exported1")
    found = loaded([item.graph for item in data.load("toy")])
    np.testing.assert_allclose(found, load_run("run").logits(data.load("toy")), atol=1e-6)


@pytest.mark.system
def test_folds_are_runs_and_go_on_after_an_interruption(tmp_path, capsys):
    config = dataclasses.replace(
        *(SMALL,), **{"model": "mlp", "epochs": 1, "run_directory": str(tmp_path / "r")}
    )
    graphs, begun = graph_set(splits={}), []

    def recovery():
        if len(begun) == 1:
            raise KeyboardInterrupt
        begun.append(Recovery())
        return begun[0]

    with pytest.raises(KeyboardInterrupt):
        run_folds(config, 2, dataset=graphs, recovery=recovery)
    advice = f"continue with the same command and --run-directory {tmp_path / 'r'}"
    assert begun[0].advice().endswith(advice)
    first = tmp_path / "r" / "fold0" / "metrics.jsonl"
    before = first.read_text()
    comparison = run_folds(config, 2, dataset=graphs)
    assert first.read_text() == before and comparison.unfinished == ()
    files = [tmp_path / "r" / f"fold{fold}" / "summary.json" for fold in range(2)]
    scores = [json.loads(file.read_text())["test_score"] for file in files]
    (row,) = comparison.rows
    assert (row.test_score, row.test_std) == pytest.approx((np.mean(scores), np.std(scores)))
    assert len(list((tmp_path / "r").iterdir())) == 2
    for arguments, message in (
        (["digits"], "--folds: expected --task graph with it, got --task node"),
        (["x", "--task", "graph", "--split", "1"], "--folds: expected no --split with it, got 1"),
        (["--resume", "x"], "--folds: expected --run-directory to continue, got --resume"),
    ):
        assert main(["train", *arguments, "--folds", "2"]) == 2
        assert message in capsys.readouterr().err
    assert main(["info", "digits", "--folds", "2"]) == 2
    with pytest.raises(ConfigError, match="--folds: expected at most the 10 splits of toy, got 11"):
        run_folds(config, 11, dataset=graphs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "node"}, "--batch-size: expected --num-neighbors with it"),
        (
            {"task": "link", "batch_size": 1024, "readout": "max"},
            "--readout: expected --task graph",
        ),
        ({"num_neighbors": "5,5"}, "--num-neighbors: expected --task node with it"),
        ({"features": "embedding"}, "--features: expected the data's with --task graph"),
        ({"task": "node", "batch_size": 1024, "norm": "graph"}, "--norm: expected --task graph"),
        (
            {"task": "link", "batch_size": 1024, "features": "categories"},
            "--features: expected --t",
        ),
        ({"task": "node", "batch_size": 1024, "model": "pna"}, "--model: expected --task graph"),
        ({"decay_layers": "first"}, "--decay-layers: expected all with --task graph"),
        ({"readout": "median"}, "--readout: expected one of sum, mean, max, min, attention"),
        ({"metric": "rmse"}, "--metric: expected a score of classes, as toy has, got rmse"),
        ({"split": 1}, "--split: toy has 1 split, numbered from 0, got 1"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        problem_of(dataclasses.replace(SMALL, **changes))


@pytest.mark.parametrize("folds", [2.0, "2", None, True, 0])
def test_numbers_of_folds_that_are_none_are_errors(folds):
    with pytest.raises(ConfigError, match=f"--folds: expected an integer from 1 .* got {folds!r}"):
        run_folds(SMALL, folds, dataset=graph_set())


def test_sets_that_cannot_be():
    values = graph_set("values")
    with pytest.raises(ConfigError, match="--metric: expected rmse or mae, toy has numbers"):
        problem_of(dataclasses.replace(SMALL, metric="roc_auc"), values)
    with pytest.raises(data.DataError, match="toy: expected a label for each graph, got none"):
        problem_of(SMALL, graph_set(labels=None, num_classes=None))
    with pytest.raises(ConfigError, match="--edge-features: expected none with --sample-size"):
        problem_of(dataclasses.replace(SMALL, sample_size=2), graph_set(edges=True)).build()
    with pytest.raises(ConfigError, match="--task: expected graph with a set of graphs, got node"):
        make_problem(TrainConfig(), values, Recovery())
    # Ten folds where there are no splits.
    problem = problem_of(dataclasses.replace(SMALL, split=9), graph_set(splits={}))
    assert "39 training, 5 validation, 4 test graphs" in problem.describe()


def test_loaders_of_other_graphs_share_shapes():
    loader = problem_of().task.training
    part = loader.part(np.arange(16))
    shapes = {
        (m.batch.graph.num_receivers, m.batch.graph.num_edges)
        for each in (loader, part)
        for m in each
    }
    assert len(shapes) <= 2
    bare = loader.part(np.array([0, 1]))  # no edges
    assert next(iter(bare.part(np.array([5, 6])))).batch.edge_mask.sum() > 0


def test_scores_leave_out_missing_labels():
    labels, mask = np.array([[1, np.nan], [0, 1]], np.float32), np.ones(2, bool)
    outputs = np.array([[2.0, 1.0], [1.0, -1.0]])
    # Means over the two labels.
    assert score("accuracy", labels, outputs, mask) == pytest.approx((1 / 2 + 0) / 2)
    assert score("rmse", labels, outputs, mask) == pytest.approx((1 + 2) / 2)
    assert score("mae", labels, outputs, mask) == pytest.approx((1 + 2) / 2)
