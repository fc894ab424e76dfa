"""`--task link`: on a bare graph, on features, from the command line."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from sklearn.metrics import f1_score

from jaxgnn import Graph
from jaxgnn.train import (
    Best,
    Compiled,
    ConfigError,
    LinkData,
    Progress,
    Recovery,
    TrainConfig,
    train,
)
from jaxgnn.train.config import from_settings
from jaxgnn.train.links import LinkProblem
from jaxgnn.train.loop import copy
from jaxgnn.train.runner import make_problem
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


def test_the_command_trains_on_an_edge_list(tmp_path, monkeypatch, capsys):
    graph = ring()
    lines = [f"{j} {i}\n" for j, i in zip(graph.senders, graph.receivers, strict=True) if j < i]
    (tmp_path / "ring.txt").write_text("".join(lines))
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
    assert "expected a run of --task node, got --task link" in capsys.readouterr().err
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    older = {key: value for key, value in settings.items() if key != "directed"}
    assert from_settings(older).task == "link"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "edge"}, "--task: expected one of node, link, got 'edge'"),
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
