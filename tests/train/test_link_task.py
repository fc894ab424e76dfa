"""`--task link`: on a bare graph, on features, from the command line."""

import csv
import dataclasses
import json

import jax
import numpy as np
import pytest
from sklearn.metrics import f1_score

from jaxgnn import Graph, metrics, transform
from jaxgnn._core.platform import of_device
from jaxgnn.data import DataError
from jaxgnn.export import load_links
from jaxgnn.train import (
    Best,
    Compiled,
    ConfigError,
    LinkData,
    LinkDescription,
    Progress,
    Recovery,
    TrainConfig,
    load_link_run,
    read_pairs,
    train,
)
from jaxgnn.train.loop.epochs import copy
from jaxgnn.train.problems.links import LinkProblem
from jaxgnn.train.problems.node_problem import prepared
from jaxgnn.train.problems.problem import make_problem
from jaxgnn.train.reports.description import digest_of_names
from jaxgnn.train.settings.saved_settings import from_settings
from jaxgnn_cli import main
from tests.support.training import toy

SMALL = TrainConfig(
    task="link", hidden=16, epochs=60, patience=0, dropout=0.0, weight_decay=0.0, val_share=0.1
)


def ring() -> Graph:
    rng = np.random.default_rng(0)
    senders, steps = rng.integers(0, 60, 400), rng.integers(1, 4, 400)
    return Graph.from_edges(senders, (senders + steps) % 60, undirected=True, deduplicate=True)


def problem_of(config: TrainConfig, features=None, graph: Graph | None = None) -> LinkProblem:
    data = LinkData("ring", ring() if graph is None else graph, features)
    return LinkProblem(config.check(), data, lambda graph, _: graph)


def test_link_graphs_are_prepared_for_the_hidden_width(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = dataclasses.replace(SMALL, activation="maxk", k=8, hidden=512)
    windows = LinkProblem(
        config.check(), LinkData("ring", ring(), None), prepared
    ).task.graph.windows
    assert windows is not None and windows.width == 512


def test_links_of_a_graph_without_features_are_learned_and_runs_continue_bit_by_bit():
    problem = problem_of(SMALL)
    program, start = problem.build()
    compiled = Compiled(program, start, problem.task)

    def fit(state, best, progress, epochs):
        rows: list[dict] = []
        done = train(
            compiled, problem.task, state, best, progress, epochs=epochs, on_epoch=rows.append
        )
        return *done, rows

    def initial():
        state = copy(start)
        return state, Best(copy(state.params), copy(state.rest)), Progress()

    state, best, progress, rows = fit(*initial(), epochs=60)
    results = problem.results(program, compiled.evaluate, best.params, best.rest)
    assert results["test_score"] > 0.85 and results["test_scores"]["average_precision"] > 0.8
    assert results["val_score"] == progress.best_score == max(r["val_roc_auc"] for r in rows)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    # The negatives of a step follow from the state.
    half = fit(*initial(), epochs=20)
    continued = fit(*half[:3], epochs=60)
    found, wanted = ([r["loss"] for r in which] for which in (half[3] + continued[3], rows))
    # On a GPU the decoder's gradient adds in any order.
    limit = 0 if jax.default_backend() == "cpu" else 1e-3
    np.testing.assert_allclose(found, wanted, rtol=limit)
    for a, b in zip(*map(jax.tree.leaves, (continued[0].params, state.params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)
    # Another seed draws others, also from the same parameters.
    other = dataclasses.replace(copy(start), seed=start.seed + 1)
    assert float(compiled.step(other, problem.task)[1]) != rows[0]["loss"]


@pytest.mark.system
def test_features_perceptron_and_all_edges_for_training():
    config = dataclasses.replace(
        SMALL,
        model="sage",
        decoder="mlp",
        negatives="degree",
        val_share=0.0,
        test_share=0.0,
        disjoint_train=0.3,
        dtype="bfloat16",
        activation="maxk",
        k=4,
        anneal_from=8,
    )
    dataset = toy()
    problem = problem_of(config, dataset.features, dataset.graph)
    program, state = problem.build()
    joined = dataset.graph.num_edges - int(np.asarray(dataset.graph.self_loops).sum())
    assert problem.task.senders.size == round(0.3 * joined / 2)
    state, loss = jax.jit(program.step)(state, problem.task)
    assert np.isfinite(float(loss))
    results = problem.results(program, program.evaluate, state.params, state.rest)
    assert results == {"test_score": None, "val_score": None, "test_scores": {}}


def test_nodes_are_classified_by_a_learned_embedding():
    config = dataclasses.replace(
        SMALL, task="node", val_share=0.05, features="embedding", decay_layers="first", hidden=8
    )
    dataset = toy(multilabel=True, metric="micro_f1")
    problem = make_problem(config.check(), dataset, Recovery())
    program, state = problem.build()
    assert state.params["embedding"]["embedding"].shape == (60, 8)
    assert state.params["encoder"]["convs"][0]["linear"]["kernel"].shape == (8, 8)
    step = jax.jit(program.step)
    losses = []
    for _ in range(30):
        state, loss = step(state, problem.task)
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]
    scores = problem.results(program, program.evaluate, state.params, state.rest)["test_scores"]
    logits = np.asarray(program.logits(state.params, state.rest, problem.task))
    test = dataset.split(0).test
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        expected = f1_score(dataset.labels[test], logits[test] > 0, average=average)
        assert scores[name] == pytest.approx(expected)
    with pytest.raises(ConfigError, match="--features: expected the data's with --num-neighbors"):
        dataclasses.replace(config, num_neighbors="5,5").check()


@pytest.mark.system
def test_the_command_trains_predicts_and_exports(tmp_path, monkeypatch, capsys):
    graph = ring()
    pairs = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    (tmp_path / "ring.txt").write_text("".join(f"n{j}\tn{i}\n" for j, i in pairs if j < i))
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "ring.txt", "--task", "link", "--epochs", "2", "--hidden", "8"]
    assert main([*arguments, "--run-directory", "run"]) == 0
    assert "ring: 60 nodes" in capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["task"] == "link" and summary["metric"] == "roc_auc"
    assert set(summary["test_scores"]) == {
        "roc_auc",
        "average_precision",
        "hits_at_20",
        "hits_at_100",
    }
    assert main(["evaluate", "run"]) == 2
    assert "expected a run of --task node or graph, got --task link" in capsys.readouterr().err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    settings = config["settings"]
    older = {key: value for key, value in settings.items() if key != "directed"}
    assert from_settings(older).task == "link"

    # The model is the run's: its test links have the run's score.
    loaded = load_link_run("run")
    data = loaded.own_data()
    nodes = digest_of_names(data.node_names)
    expected = LinkDescription("ring", 60, data.graph.num_edges, None, False, node_names=nodes)
    assert nodes is not None and loaded.dataset == expected
    test = transform.link_split(data.graph, 0.05, 0.1, seed=0).test
    nodes = loaded.encode(test.graph, None)
    logits = loaded.logits(nodes, test.senders, test.receivers)
    assert loaded.logits(nodes, [], []).shape == (0,)
    score = metrics.roc_auc(test.labels, np.asarray(logits))
    assert score == pytest.approx(summary["test_score"])

    # Predictions by the user's ids, with messages over all edges.
    names = list(data.node_names)
    (tmp_path / "pairs.csv").write_text("source,target,more\nn3,n5,1\nn9,n9,2\nn5,n3,3\n")
    ends = [[names.index(name) for name in side] for side in (("n3", "n9", "n5"),) * 2]
    ends[1] = [names.index(name) for name in ("n5", "n9", "n3")]
    nodes = np.asarray(loaded.model.encoder(data.graph, None))
    expected = (nodes[ends[0]] * nodes[ends[1]]).sum(axis=1)
    predicting = ["predict", "run", "--pairs", "pairs.csv", "--output"]
    assert main([*predicting, "p.csv"]) == 0
    assert "wrote p.csv: 3 pairs" in capsys.readouterr().out
    with (tmp_path / "p.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["source", "target", "score", "probability"]
    assert [row[:2] for row in rows] == [["n3", "n5"], ["n9", "n9"], ["n5", "n3"]]
    found = np.array([row[2:] for row in rows], float).T
    np.testing.assert_allclose(found, [expected, 1 / (1 + np.exp(-expected))], rtol=1e-4, atol=1e-6)
    (tmp_path / "more.txt").write_text((tmp_path / "ring.txt").read_text() + "n0\tn30\n")
    assert main(["predict", "run", "more.txt", *predicting[2:], "p.npz"]) == 0
    arrays = np.load("p.npz")
    assert arrays["source"].tolist() == ["n3", "n9", "n5"] and arrays["score"].dtype == np.float32
    assert (np.abs(arrays["score"] - expected) > 0).any()

    # Exported: the embedding's nodes, and any number of edges up to the run's.
    assert main(["export", "run", "--output", "model", "--platforms", of_device()]) == 0
    assert "links, graphs of 61 nodes and" in capsys.readouterr().out
    exported = load_links("model")
    np.testing.assert_allclose(exported(data.graph, None, *ends), expected, atol=1e-5)
    without = Graph.from_edges([0], [1], num_nodes=60)
    encoded = exported.encode(without)
    np.testing.assert_allclose(encoded, loaded.encode(without, None), atol=1e-5)
    with pytest.raises(DataError, match="graph: expected the 60 nodes whose embedding was learned"):
        exported.encode(Graph.from_edges([0], [1]))

    lines = (tmp_path / "ring.txt").read_text().splitlines()
    (tmp_path / "shuffled.txt").write_text("\n".join([*lines[7:], *lines[:7], ""]))
    (tmp_path / "small.txt").write_text("n1\tn2\n")
    (tmp_path / "wrong.csv").write_text("source,target\nn3,n60\n")
    sizes = ["--nodes", "9", "--edges", "9"]
    for arguments, message in (
        (["predict", "run", "--output", "q.csv"], "--pairs: expected a table of pairs with a run"),
        (
            ["predict", "run", "small.txt", *predicting[2:], "q.csv"],
            "expected the 60 nodes of ring",
        ),
        (
            ["predict", "run", "shuffled.txt", *predicting[2:], "q.csv"],
            "shuffled.txt: expected the nodes of ring, by name and in their order",
        ),
        (
            ["predict", "run", "--pairs", "wrong.csv", "--output", "q.csv"],
            "wrong.csv: line 2, column 'target': expected an id of a node, got 'n60'",
        ),
        (
            ["predict", "run", "--pairs", "wrong.csv", "--output", "wrong.csv"],
            "--output: expected another file than --pairs",
        ),
        (
            ["predict", "run", "--pairs", "small.txt", "--output", "q.csv"],
            "--pairs: expected a file name with .csv or .parquet, got small.txt",
        ),
        (["export", "run", "--output", "o", *sizes], "--nodes: expected the 60 nodes whose embed"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
    for changed in ({"num_features": "3"}, {"num_nodes": -1}, {"x": 1}):
        dataset = config["dataset"] | changed
        (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"dataset": dataset}))
        with pytest.raises(ConfigError, match=r"config.json: dataset: "):
            load_link_run("run")
    del config["dataset"]  # as of versions that did not record it
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert load_link_run("run").dataset == loaded.dataset


def test_ids_without_names(tmp_path):
    data = LinkData("ring", ring(), None)
    path = tmp_path / "pairs.csv"
    path.write_text("target,source\n59,0\n1,10\n")
    senders, receivers = read_pairs(path, data)
    assert senders.tolist() == [0, 10] and receivers.tolist() == [59, 1]
    for wrong in ("60", "-1", "01", "1.0", "", "99999999999", "\u0661"):
        path.write_text(f"source,target\n{wrong},0\n", "utf-8")
        with pytest.raises(DataError, match="line 2, column 'source': expected an id of a node"):
            read_pairs(path, data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "edge"}, "--task: expected one of node, link, graph, got 'edge'"),
        ({"task": "node"}, "--val-share: expected --task link with it, got --task node"),
        ({"test_share": 0.95}, "--val-share, --test-share: expected shares that sum to less"),
        ({"num_neighbors": "5,5"}, "--num-neighbors: expected --task node with it"),
        ({"decay_layers": "first"}, "--decay-layers: expected all with --task link"),
        ({"negatives": "hard"}, "--negatives: expected one of uniform, structured, degree"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **changes).check()


def test_graphs_that_cannot_be_split():
    complete = Graph.from_edges(*np.nonzero(1 - np.eye(5, dtype=int)))
    with pytest.raises(ConfigError, match=r"--val-share, --test-share: graph: .* too dense"):
        problem_of(SMALL, graph=complete)
    with pytest.raises(ConfigError, match="link expected edges to learn from, ring has none"):
        problem_of(SMALL, graph=Graph.from_edges([0, 1], [0, 1], num_nodes=3))
