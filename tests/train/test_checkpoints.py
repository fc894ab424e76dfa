"""Checkpoints, the log of metrics and the fingerprint of the data."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.data import Split
from jaxgnn.graph import Graph
from jaxgnn.train import (
    CheckpointError,
    Checkpoints,
    Progress,
)
from jaxgnn.train.reports.records import MetricsLog, fingerprint, read_rows
from tests.support.training import NODES, prepare, toy


def test_checkpoints_keep_every_bit_and_the_random_streams(tmp_path):
    task, _, state, compiled = prepare()
    state, _ = compiled.step(state, task)
    first = Checkpoints(tmp_path / "c")
    first.save(1, state, Progress(epoch=1, best_score=0.1).to_json())
    first.close()
    again = Checkpoints(tmp_path / "c")
    restored, values = again.restore(again.epochs()[0], prepare()[2])
    again.close()
    assert Progress.from_json(values, 1) == Progress(epoch=1, best_score=0.1)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    one, other = compiled.step(state, task)[1], compiled.step(restored, task)[1]
    assert float(one) == float(other)


@pytest.mark.system
def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path):
    _, _, state, _ = prepare()
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(3, state, {})

    def doubled(leaf):
        return jax.device_put(np.repeat(leaf, 2, axis=0)) if leaf.ndim else leaf

    with pytest.raises(CheckpointError):
        checkpoints.restore(3, jax.tree.map(doubled, state))
    for content in (b"{}", b"[" * 100_000, b'{"progress": {}, "checksum": "00000000"}'):
        (tmp_path / "c" / "3" / "progress" / "metadata").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"c/3: (cannot be restored|expected|its check)"):
            checkpoints.restore(3, state)
    for file in (tmp_path / "c" / "3" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be restored"):
        checkpoints.restore(3, state)
    checkpoints.close()


def test_the_metrics_log_is_cut_at_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for epoch in range(1, 6):
            log.append({"epoch": epoch, "loss": 1 / epoch, "seconds": 0.1})
    path.write_text(path.read_text()[:-4])  # killed in the middle of a line
    with MetricsLog(path, read_rows(path, 3)) as log:
        log.append({"epoch": 4, "loss": 0.5, "seconds": 0.1})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["loss"] == 1 / 3
    with pytest.raises(CheckpointError, match="expected 9 epochs, got 4"):
        read_rows(path, 9)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "7",
        "[" * 100_000,
        '{"epoch": 1, "loss": "low", "seconds": 1}',
        '{"epoch": 1, "loss": NaN, "seconds": 1}',
        '{"epoch": 1, "loss": 1, "seconds": [1]}',
        '{"epoch": 2, "loss": 1, "seconds": 1}',
        '{"epoch": true, "loss": 1, "seconds": 1}',
        "\x1b[31m",
    ],
)
def test_a_damaged_log_is_refused(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: damaged before") as caught:
        read_rows(path, 1)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


PROGRESS = Progress(epoch=4, best_epoch=3, best_score=0.5, best_loss=1.0).to_json()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected the keys epoch, best_epoch"),
        (None, "expected the keys"),
        ([4], "expected the keys"),
        (PROGRESS | {"extra": 1}, "expected the keys"),
        ({k: v for k, v in PROGRESS.items() if k != "stopped"}, "expected the keys"),
        (PROGRESS | {"epoch": "4"}, "epoch: expected int, got '4'"),
        (PROGRESS | {"epoch": None}, "epoch: expected int, got None"),
        (PROGRESS | {"stopped": 0}, "stopped: expected bool, got 0"),
        (PROGRESS | {"best_score": [[0.5]]}, "best_score: expected float"),
        (PROGRESS | {"epoch": 5}, "expected epoch 4"),
        (PROGRESS | {"best_epoch": 5}, "a best epoch up to it"),
    ],
)
def test_a_damaged_progress_is_refused(values, message):
    assert Progress.from_json(PROGRESS, 4).best_epoch == 3
    with pytest.raises(ValueError, match=message):
        Progress.from_json(values, 4)


def test_the_fingerprint_sees_every_array():
    dataset = toy()
    split = dataset.split(0)
    changed_split = Split(
        split.train, split.val & (np.arange(NODES) != split.val.argmax()), split.test
    )
    features = dataset.features.copy()
    features[3, 1] += 1
    labels = dataset.labels.copy()
    labels[5] = (labels[5] + 1) % 3
    rotated = Graph.from_edges(
        (np.asarray(dataset.graph.senders) + 1) % NODES, dataset.graph.receivers, num_nodes=NODES
    )
    prints = [
        fingerprint(dataset, split),
        fingerprint(dataset, changed_split),
        fingerprint(dataclasses.replace(dataset, features=features), split),
        fingerprint(dataclasses.replace(dataset, labels=labels), split),
        fingerprint(dataclasses.replace(dataset, graph=rotated), split),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint(toy(), toy().split(0)) == prints[0]
