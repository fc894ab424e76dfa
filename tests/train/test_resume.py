"""A run killed at any moment, and continued, ends as one that was left alone: bit for bit."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxgnn.train import Best, Checkpoints, Task, TrainConfig, build
from jaxgnn.train.loop.epochs import copy
from jaxgnn.train.problems.node_problem import choose_split, load_dataset
from jaxgnn.train.reports.records import fingerprint, lock
from jaxgnn_cli import main
from tests.support.processes import start_python
from tests.support.small_sets import small

EPOCHS = 100
OPTIONS = ["--epochs", str(EPOCHS), "--patience", "0", "--checkpoint-interval", "4"]
# Every kind of state: batch statistics, and dropout of the input and of MaxK's kept entries.
MODEL = [
    *["small.npz", "--model", "sage", "--hidden", "8", "--norm", "batch", "--input-layer"],
    *["--activation", "maxk", "--k", "3", "--input-dropout", "0.2", "--dropout", "0.3"],
]


def start(directory: Path, *arguments: str, first: bool = False) -> subprocess.Popen:
    """All processes run the same programs: the first writes JAX's cache, the others read it.

    On a GPU MaxK's gradients are those of the deterministic kernels.
    """
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if first else "1e9",
    }
    return start_python(
        *["-m", "jaxgnn_cli", "train", *arguments],
        directory=directory,
        JAX_DISABLE_MOST_OPTIMIZATIONS="0",
        JAXGNN_DETERMINISTIC="1",
        **cache,
    )


def finish(process: subprocess.Popen) -> str:
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return stdout


def kill_when(process: subprocess.Popen, condition) -> None:
    """Kills a process in a state in which `condition` holds.

    The process is stopped to look again: what was seen while it ran may be over.
    """
    deadline = time.monotonic() + 300
    while True:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        if condition():
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            if condition():
                break
            process.send_signal(signal.SIGCONT)
        time.sleep(0.003)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def rows(run: Path) -> list[dict]:
    """The log without its times; the last line may be half written."""
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def final_state(run: Path, epochs: int = EPOCHS) -> list[np.ndarray]:
    config = TrainConfig(**json.loads((run / "config.json").read_text())["settings"])
    dataset = load_dataset(config)
    task = Task.from_dataset(dataset, choose_split(dataset, 0))
    _, state = build(config, task)
    checkpoints = Checkpoints(run / "checkpoints")
    assert checkpoints.epochs()[0] == epochs
    like = (state, Best(copy(state.params), copy(state.rest)))
    restored, _ = checkpoints.restore(epochs, like)
    checkpoints.close()
    leaves = jax.tree.leaves(restored)
    keys = [jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(leaves, keys, strict=True)
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("resume")
    small(path / "small.npz")
    return path


@pytest.mark.system
def test_killed_at_several_moments(directory):
    whole, run = directory / "whole", directory / "killed"
    finish(start(directory, *MODEL, *OPTIONS, "--run-directory", "whole", first=True))
    saves = run / "checkpoints"

    def logged(count: int):
        return lambda: (
            (run / "metrics.jsonl").exists()
            and (run / "metrics.jsonl").read_bytes().count(b"\n") >= count
        )

    def writing_a_checkpoint() -> bool:
        names = [path.name for path in saves.iterdir()] if saves.exists() else []
        return any("tmp" in name for name in names) and any(name.isdigit() for name in names)

    # Before the first checkpoint is complete; between two; while one is written.
    process = start(directory, *MODEL, *OPTIONS, "--run-directory", "killed")
    kill_when(process, lambda: (run / "config.json").exists())
    kill_when(start(directory, "--resume", "killed"), logged(30))
    seen = len(rows(run))
    kill_when(start(directory, "--resume", "killed"), writing_a_checkpoint)
    assert any("tmp" in path.name for path in saves.iterdir())
    assert len(rows(run)) > 20 and seen < EPOCHS
    out = finish(start(directory, "--run-directory", "killed", "--resume"))
    assert "continuing after epoch" in out and "continuing after epoch 0" not in out
    assert "maxk: the 3 largest of 8" in out

    assert rows(run) == rows(whole)
    assert [row["epoch"] for row in rows(run)] == list(range(1, EPOCHS + 1))
    summaries = [json.loads((path / "summary.json").read_text()) for path in (run, whole)]
    for name in ("test_score", "val_score", "best_epoch", "epochs", "stopped"):
        assert summaries[0][name] == summaries[1][name]
    for one, other in zip(final_state(run), final_state(whole), strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.system
def test_killed_within_an_epoch(directory):
    """Mini-batches go on from the last checkpoint between two calls, of the epoch and the place in
    it; a damaged one is moved aside."""
    options = ["small.npz", "--model", "sage", "--hidden", "8", "--num-neighbors", "4,3"]
    options += ["--batch-size", "1", "--epochs", "6", "--patience", "0", "--dropout", "0.3"]
    calls = ["--steps-per-call", "5", "--checkpoint-steps", "5"]
    whole, run, steps = directory / "whole epochs", directory / "killed within", 50
    finish(start(directory, *options, *calls, "--run-directory", whole.name, first=True))
    saves = run / "unfinished"

    def within(first: int):
        names = [path.name for path in saves.iterdir()] if saves.exists() else []
        return [int(name) for name in names if name.isdigit() and int(name) > first]

    process = start(directory, *options, *calls, "--run-directory", run.name)
    kill_when(process, lambda: within(steps))
    done = max(within(0))
    assert done // steps >= 1 and done % steps and not any((run / "checkpoints").iterdir())
    kill_when(start(directory, "--resume", run.name, *calls), lambda: within(done + 9))
    damaged = max(within(0))
    for path in (saves / str(damaged)).rglob("*"):
        if path.is_file() and path.stat().st_size > 64:
            path.write_bytes(b"\xff" * path.stat().st_size)
    process = start(directory, "--resume", run.name, *calls)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"damaged-within-{damaged}" in err and "continuing within the epoch after" in out
    assert rows(run) == rows(whole)
    assert [row["epoch"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(final_state(run, 6), final_state(whole, 6), strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


def test_two_processes_do_not_train_in_one_directory(directory, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    config = TrainConfig("small.npz", hidden=8)
    dataset = load_dataset(config)
    data = {"name": dataset.name, "fingerprint": fingerprint(dataset, choose_split(dataset, 0))}
    run = directory / "locked"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"settings": config.settings(), "data": data}))
    with lock(run):
        assert main(["train", "--resume", "locked"]) == 2
    assert capsys.readouterr().err == "jaxgnn: locked: another process is training there\n"
