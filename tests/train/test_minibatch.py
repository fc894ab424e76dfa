"""Training on mini-batches: an epoch's steps, its batches, continued runs, and what is refused."""

import dataclasses
import functools
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.train import (
    Checkpoints,
    ConfigError,
    HostFeatures,
    NeighborLoader,
    Task,
    TrainConfig,
    build,
)
from jaxgnn.train.loop.epochs import Compiled, UnfinishedEpoch, copy
from jaxgnn.train.problems.node_problem import make_task
from jaxgnn.train.process.interrupt import PostponedInterrupt
from jaxgnn.train.runs import runner
from jaxgnn.train.steps.optimizer import steps_done
from jaxgnn.train.steps.step import no_loss
from jaxgnn_cli import main
from tests.support.small_sets import small
from tests.support.training import NODES, toy

CONFIG = TrainConfig(
    model="sage", hidden=8, layers=2, norm="batch", num_neighbors="4,3", batch_size=6, dropout=0.3
)


def task_of(dataset) -> Task:
    return Task.from_dataset(dataset, dataset.splits["only"])


@pytest.mark.system
@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("model", ["gat", "gatv2", "agnn", "transformer", "gcn"])
def test_self_loops_count_in_samples_as_on_the_whole_graph(model, deduplicate):
    """In a tree of samples a self-loop is an edge from another place of the same node."""
    dataset, nodes = toy(), np.arange(0, NODES, 2)
    ends = (np.asarray(end) for end in (dataset.graph.senders, dataset.graph.receivers))
    ends = (np.concatenate([end, nodes, nodes[:4]]) for end in ends)
    dataset = dataclasses.replace(dataset, graph=Graph.from_edges(*ends, num_nodes=NODES))
    config = TrainConfig(
        model=model,
        hidden=8,
        layers=2,
        dropout=0.0,
        num_neighbors="40,40",  # all of them
        deduplicate=deduplicate,
    ).check()
    task = make_task(config, dataset, dataset.splits["only"])
    program, state = build(config, task)
    outputs = nnx.merge(program.inference, state.params, state.rest)
    neighbors = [task.graph, task.features, task.labels, config.neighbors]
    loader = NeighborLoader(*neighbors, batch_size=NODES, shuffle=False, deduplicate=deduplicate)
    (batch,) = loader
    blocks = batch.blocks.with_degrees(task.graph)
    expected = outputs(dataset.graph, task.features)
    np.testing.assert_allclose(outputs(blocks, batch.features), expected, rtol=1e-4, atol=1e-5)


def test_an_epoch_is_a_step_on_each_batch_of_the_loader():
    """As by a loader over the training nodes, and the mean loss of their seeds."""
    task = task_of(toy())
    program, state = build(CONFIG, task)
    seeds = int(task.train.sum())
    assert seeds % 6 != 0
    step = jax.jit(program.step)
    state, loss = step(state, task)
    assert steps_done(state.optimizer) == -(-seeds // 6)

    loader = NeighborLoader(
        *(task.graph, task.features, task.labels, [4, 3]),
        input_nodes=np.asarray(task.train),
        batch_size=6,
        seed=CONFIG.seed,
    )
    _, expected = build(CONFIG, task)
    total = 0.0
    for epoch in range(2):
        for batch in loader:
            expected, of_batch = jax.jit(program.step_on)(expected, batch)
            total += float(of_batch) * int(batch.mask.sum())
        if epoch == 0:
            np.testing.assert_allclose(loss, total / seeds, rtol=1e-5)
    state, _ = step(state, task)
    for actual, wanted in zip(*map(jax.tree.leaves, (state.params, expected.params)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float16", "deduplicate": True, "method": "labor"},
        {"model": "gat", "heads": 2, "replace": True},
        {"model": "gcn", "activation": "maxk", "k": 3, "input_layer": True, "batch_size": 1024},
    ],
)
def test_models_learn(changes):
    task = task_of(toy())
    program, state = build(dataclasses.replace(CONFIG, learning_rate=0.02, **changes), task)
    step = jax.jit(program.step)
    losses = []
    for _ in range(30):
        state, loss = step(state, task)
        losses.append(float(loss))
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    logits = program.logits(state.params, state.rest, task)
    assert logits.shape == (NODES, 3)
    assert jnp.mean(jnp.argmax(logits, -1) == task.labels) > 0.8


@pytest.mark.system
def test_an_epoch_in_several_calls_is_the_same(tmp_path):
    """Whatever their steps; an interrupt comes between two of them, and so do checkpoints, from
    which the rest of the epoch is the same.

    XLA's optimizations may round each program's sums in another way, and Adam divides by small
    moments: the bits are the same without them.
    """
    optimized = jax.default_backend() == "gpu" or os.environ.get("JAXGNN_TEST_OPTIMIZED")
    same = functools.partial(np.testing.assert_allclose, atol=1e-3 if optimized else 0, rtol=0)
    task, wanted = task_of(toy()), None
    config = dataclasses.replace(CONFIG, batch_size=4)
    for steps in (0, 1, 3):
        program, state = build(dataclasses.replace(config, steps_per_call=steps), task)
        compiled = Compiled(program, state, task)
        assert sum(program.batches.calls()) == program.batches.steps > 3
        losses = []
        for _ in range(3):
            state, loss = compiled.step(state, task)
            losses.append(loss)
        found = [
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in jax.tree.leaves((losses, state.params, state.rest, state.optimizer))
        ]
        wanted = wanted or found
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    saved = []
    with Checkpoints(tmp_path / "within") as checkpoints:

        def save(state, sums):
            saved.append(int(steps_done(state.optimizer)) % program.batches.steps)
            checkpoints.save(saved[-1], (state, sums), {})

        whole = compiled.step(copy(state), task, checkpoint=save, checkpoint_steps=2)
        assert saved == [3]
        restored, sums = checkpoints.restore(3, (state, no_loss(task)))[0]
    rest = compiled.step(restored, task, sums=sums)
    for one, other in zip(*map(jax.tree.leaves, (rest[0].params, whole[0].params)), strict=True):
        same(one, other)
    same(rest[1], whole[1])
    with pytest.raises(UnfinishedEpoch, match="within an epoch") as stop:
        compiled.step(state, task, lambda: True)
    assert int(steps_done(stop.value.state.optimizer)) % program.batches.steps == 3
    rest = compiled.step(stop.value.state, task, sums=stop.value.sums)
    for one, other in zip(*map(jax.tree.leaves, (rest[0].params, whole[0].params)), strict=True):
        same(one, other)
    same(rest[1], whole[1])


def test_features_on_the_host_give_the_same_bits():
    """Training and evaluation, layer by layer; and that is the whole graph's but for rounding."""
    config = dataclasses.replace(CONFIG, input_dropout=0.2, evaluation_batch_size=15)
    dataset, results = toy(), []
    for where in ("device", "host"):
        task = Task.from_dataset(dataset, dataset.splits["only"], features_on=where)
        assert isinstance(task.features, HostFeatures) == (where == "host")
        program, state = build(dataclasses.replace(config, features_on=where).check(), task)
        compiled = Compiled(program, state, task)
        losses = []
        for _ in range(3):
            state, loss = compiled.step(state, task)
            losses.append(loss)
        logits, metrics = compiled.evaluate(state.params, state.rest, task)
        results.append(jax.tree.leaves((losses, state.params, logits, metrics)))
        assert program.evaluation.count >= 4
        whole = jax.jit(program._replace(evaluation=None).logits)
        np.testing.assert_allclose(logits, whole(state.params, state.rest, task), rtol=0, atol=1e-5)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    # A graph of fewer nodes than a batch may have is cut as well: not all rows are read at once.
    evaluation = build(dataclasses.replace(CONFIG, features_on="host"), task)[0].evaluation
    assert evaluation.nodes == NODES // 4
    assert evaluation.nodes + evaluation.senders < 0.8 * NODES


class InterruptWithin(PostponedInterrupt):
    """A Ctrl-C in the second epoch: the run asks for it after each call of the first, too."""

    asked = 0

    def _requested(self) -> bool:
        self.asked += 1
        return self.asked > 12

    requested = property(_requested, lambda self, value: None)


@pytest.mark.system
def test_a_run_goes_on_as_it_would_have(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small(tmp_path / "small.npz")
    options = ["--num-neighbors", "4,3", "--batch-size", "3", "--patience", "0", "--epochs", "8"]
    options += ["--model", "sage", "--hidden", "8", "--layers", "2", "--checkpoint-interval", "4"]
    options += ["--features-on", "host", "--evaluation-batch-size", "64"]
    assert main(["train", "small.npz", *options, "--run-directory", "whole"]) == 0
    shutil.copytree("whole", "part")
    shutil.rmtree(max((tmp_path / "part" / "checkpoints").iterdir(), key=lambda path: path.name))
    (tmp_path / "part" / "summary.json").unlink()
    assert main(["train", "--run-directory", "part", "--resume", "--steps-per-call", "2"]) == 0

    def losses(run):
        lines = (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    assert len(losses("whole")) == 8
    assert losses("part") == losses("whole")

    options += ["--steps-per-call", "2", "--run-directory", "cut"]
    with monkeypatch.context() as patch:
        patch.setattr(runner, "PostponedInterrupt", InterruptWithin)
        capsys.readouterr()
        assert main(["train", "small.npz", *options]) == 130
    assert "the checkpoint within epoch 2 is safe, continue with" in capsys.readouterr().err
    assert losses("cut") == losses("whole")[:1]
    assert [path.name for path in (tmp_path / "cut" / "unfinished").iterdir()] == ["25"]  # 17 + 8
    assert main(["train", "--resume", "cut", "--steps-per-call", "2"]) == 0
    assert "continuing within the epoch after epoch 1" in capsys.readouterr().out
    assert losses("cut") == losses("whole")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_neighbors": "4"}, "--num-neighbors: expected one for each of 2 layers, got 1"),
        ({"num_neighbors": "4,-1"}, "--num-neighbors: expected integers from 1 to 4096"),
        ({"num_neighbors": ""}, "--batch-size: expected --num-neighbors with it, got none"),
        (
            {"num_neighbors": "", "batch_size": 1024, "features_on": "host"},
            "--features-on: expected --num-neighbors with it, got none",
        ),
        ({"features_on": "gpu"}, "--features-on: expected one of device, host, got 'gpu'"),
        ({"evaluation_batch_size": 0}, "--evaluation-batch-size: expected a positive integer"),
        ({"checkpoint_steps": -1}, "--checkpoint-steps: expected an integer from 0"),
        ({"method": "labor", "replace": True}, "--method: expected uniform with --replace"),
        ({"sample_size": 3}, "--num-neighbors: expected no --sample-size"),
        ({"model": "mlp"}, "--num-neighbors: expected a model that looks at the graph"),
        ({"num_neighbors": "4096,4096", "batch_size": 1024}, None),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    def attempt():
        return build(dataclasses.replace(CONFIG, **changes).check(), task_of(toy()))

    if message is None:  # the batch is cut to the training nodes
        assert attempt()[0].batches.batch_size == int(task_of(toy()).train.sum())
    else:
        with pytest.raises(ConfigError, match=message):
            attempt()
