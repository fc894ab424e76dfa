"""Run directories that are damaged, runs that end early or are made longer."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxgnn.data import load
from jaxgnn.train import CheckpointError, ConfigError, Recovery, RunError, RunWarning, run
from jaxgnn.train.reports.display import Silent
from jaxgnn.train.reports.records import lock, replacing
from jaxgnn_cli import main
from tests.faults import result
from tests.support.small_sets import small
from tests.support.training import SMALL, toy

pytestmark = pytest.mark.few(1)

CONFIG = dataclasses.replace(SMALL, dataset="toy", checkpoint_interval=3)


@pytest.fixture(scope="module", autouse=True)
def cache_of_programs(tmp_path_factory):
    """All runs here are of one program, which is compiled once."""
    config = jax.config
    before = config.jax_compilation_cache_dir, config.jax_persistent_cache_min_compile_time_secs

    def keep(directory, seconds):
        config.update("jax_compilation_cache_dir", directory)
        config.update("jax_persistent_cache_min_compile_time_secs", seconds)
        compilation_cache.reset_cache()

    keep(str(tmp_path_factory.mktemp("programs")), 0)
    yield
    keep(*before)


@pytest.fixture(autouse=True)
def the_toy(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxgnn.train.problems.node_problem.load_nodes", lambda name: toy())
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of 8 epochs, with checkpoints of 6 and 8."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    run(dataclasses.replace(CONFIG, run_directory=str(directory)), dataset=toy())
    return directory


@pytest.fixture
def copied(whole) -> Path:
    shutil.copytree(whole, "run")
    return Path("run")


def resume(directory: Path, **options):
    return run(dataclasses.replace(CONFIG, resume=str(directory), **options))


def one_line(capsys, status: int, *arguments: str) -> str:
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert err.startswith("jaxgnn: ") and len(err.splitlines()) == 1
    return err


# Damage.


def flip_bits(checkpoint: Path) -> None:
    """One in each 64 bytes of each data file: a file by itself may hold nothing that is read."""
    for path in checkpoint.rglob("d/*"):
        content = bytearray(path.read_bytes())
        for i in range(0, len(content), 64):
            content[i] ^= 1
        path.write_bytes(content)


def write_progress(**changes):
    def damage(checkpoint: Path) -> None:
        path = checkpoint / "progress" / "metadata"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"progress": record["progress"] | changes}))

    return damage


def replace_by_a_directory(checkpoint: Path) -> None:
    path = checkpoint / "progress" / "metadata"
    path.unlink()
    path.mkdir()


def replace_by_a_file(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_text("x")


def change_an_array(checkpoint: Path) -> None:
    """The arrays of the checkpoint before: whole, but not this one's."""
    shutil.rmtree(checkpoint / "state")
    shutil.copytree(checkpoint.with_name("6") / "state", checkpoint / "state")


DAMAGES = {
    "flipped bits": flip_bits,
    "other arrays": change_an_array,
    "no arrays": lambda checkpoint: shutil.rmtree(checkpoint / "state"),
    "no progress": lambda checkpoint: (checkpoint / "progress" / "metadata").write_text("{}"),
    "an unknown key": write_progress(extra=1),
    "a mistyped key": write_progress(best_score="high"),
    "another epoch": write_progress(epoch=0),
    "a directory": replace_by_a_directory,
    "a file": replace_by_a_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(copied, whole, damage):
    DAMAGES[damage](copied / "checkpoints" / "8")
    with pytest.warns(RunWarning, match=r"continuing from epoch 6, .*run/damaged-8") as warned:
        resume(copied)
    assert len(warned) == 1 and str(warned[0].message).isprintable()
    assert result(copied) == result(whole)
    assert (copied / "damaged-8").exists()


def test_the_log_may_end_before_the_newest_checkpoint(copied, whole):
    log = copied / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:7]))
    with pytest.warns(RunWarning, match="expected 8 epochs, got 7; continuing from epoch 6"):
        resume(copied)
    assert result(copied) == result(whole)


def test_without_a_whole_checkpoint_nothing_is_touched(copied):
    for epoch in ("6", "8"):
        DAMAGES["no progress"](copied / "checkpoints" / epoch)
    before = sorted(copied.rglob("*"))
    with pytest.raises(CheckpointError, match="no older one is whole, start a new run"):
        resume(copied)
    assert sorted(copied.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("config.json", 2),
        ("metrics.jsonl", 2),
        ("lock", 1),
        ("summary.json", 1),
        ("curves.png", 0),
        ("metrics.jsonl.tmp", 1),
    ],
)
def test_a_directory_in_place_of_a_file_gives_one_line(copied, capsys, name, status):
    (copied / name).unlink(missing_ok=True)
    (copied / name).mkdir()
    line = one_line(capsys, status, "train", "--resume", "run")
    assert name in line and "irectory" in line


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's /proc")
def test_a_file_that_cannot_be_made_is_named_as_it_was_given():
    with pytest.raises(OSError) as error, replacing(Path("/proc/table.csv")):
        pass
    assert error.value.filename == "/proc/table.csv"


def test_a_file_in_place_of_the_checkpoints_gives_one_line(copied, capsys):
    shutil.rmtree(copied / "checkpoints")
    (copied / "checkpoints").write_text("")
    assert "run/checkpoints" in one_line(capsys, 1, "train", "--resume", "run")


# Runs that end early.


def test_ctrl_c_saves_the_epoch_that_it_waited_for(whole, monkeypatch):
    class Interrupting(Silent):
        def epoch(self, row, best_epoch):
            if row["epoch"] == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("jaxgnn.train.runs.runner.make_display", lambda *_, **__: Interrupting())
    handler = signal.getsignal(signal.SIGINT)
    recovery = Recovery()
    with pytest.raises(KeyboardInterrupt, match="interrupted after epoch 5"):
        run(dataclasses.replace(CONFIG, run_directory="run"), recovery=recovery)
    assert signal.getsignal(signal.SIGINT) is handler
    assert recovery.advice() == (
        "the checkpoint of epoch 5 is safe, continue with jaxgnn train --resume run"
    )
    monkeypatch.setattr("jaxgnn.train.runs.runner.make_display", lambda *_, **__: Silent())
    resume(Path("run"))
    assert result(Path("run")) == result(whole)


# What TensorStore says, long or short.
FULL = (
    'RESOURCE_EXHAUSTED: Error writing "b" in OCDBT database: Failed writing: "/disk/d/1": Failed '
    "to write 9 bytes to file 14: No space left on device [tensorstore_spec='{...}']"
)
LIMITED = (
    'OUT_OF_RANGE: Error writing "a" in OCDBT database: Failed writing: "/disk/d/1": Failed to '
    "write 9 bytes to file 9: File too large [os_error_code='27']"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError(FULL), "/disk/d/1: No space left on device"),
        (ValueError(LIMITED), "/disk/d/1: File too large"),
        (OSError(errno.EROFS, "Read-only file system", "/disk"), "/disk: Read-only file system"),
        (OSError(errno.EFBIG, "File too large"), "run/checkpoints: File too large"),
        (RuntimeError("x\x1b[31m\nmore"), r"checkpoints: RuntimeError: x\x1b[31m"),
    ],
    ids=["full", "limited", "read-only", "unnamed", "unknown"],
)
def test_a_checkpoint_that_cannot_be_written(monkeypatch, error, reason):
    from orbax.checkpoint import CheckpointManager

    save = CheckpointManager.save

    def fail_after_3(self, step, *arguments, **options):
        if step > 3:
            raise error
        return save(self, step, *arguments, **options)

    monkeypatch.setattr(CheckpointManager, "save", fail_after_3)
    with pytest.raises(RunError) as caught:
        run(dataclasses.replace(CONFIG, run_directory="run"))
    message = str(caught.value)
    assert reason in message and message.isprintable()
    assert message.endswith(
        "; the checkpoint of epoch 3 is safe, continue with jaxgnn train --resume run"
    )


@pytest.mark.parametrize("error", [MemoryError(), "RESOURCE_EXHAUSTED: Out of memory allocating 9"])
def test_out_of_memory(monkeypatch, capsys, error):
    if isinstance(error, str):
        error = jax.errors.JaxRuntimeError(error)

    def fail(*_):
        raise error

    monkeypatch.setattr("jaxgnn.train.problems.node_problem.build", fail)
    line = one_line(capsys, 1, "train", "--epochs", "1")
    assert line.startswith("jaxgnn: out of memory: ") and "nothing was trained" in line
    assert not os.listdir()


def test_the_lock_comes_before_the_first_write(capsys):
    Path("run").mkdir()
    with lock(Path("run")):
        line = one_line(capsys, 2, "train", "--run-directory", "run", "--epochs", "1")
    assert line == "jaxgnn: run: another process is training there\n"
    assert os.listdir("run") == ["lock"]
    assert main(["train", "--run-directory", "run", "--epochs", "1"]) == 0
    assert "is not empty" in one_line(capsys, 2, "train", "--run-directory", "run")


# Runs that are made longer.


def test_a_finished_run_is_made_longer(whole):
    run(dataclasses.replace(CONFIG, epochs=4, run_directory="run"))
    with pytest.raises(ConfigError, match="--epochs: expected at least the 4 that the run has"):
        resume(Path("run"), epochs=3)
    resume(Path("run"), epochs=8)
    assert result(Path("run")) == result(whole)
    assert json.loads(Path("run/config.json").read_text()) == json.loads(
        (whole / "config.json").read_text()
    )


@pytest.mark.system
def test_a_longer_patience_lets_a_run_go_on():
    stopping = dataclasses.replace(CONFIG, patience=1, epochs=200, learning_rate=0.5)
    summary = run(dataclasses.replace(stopping, run_directory="run"))
    assert summary["stopped"]
    more = dataclasses.replace(stopping, resume="run", epochs=300)
    with pytest.warns(RunWarning, match="patience ran out after epoch"):
        assert run(more)["epochs"] == summary["epochs"]
    ended = run(dataclasses.replace(more, patience=0, epochs=summary["epochs"] + 2))
    assert ended["epochs"] == summary["epochs"] + 2 and not ended["stopped"]


# Names.


NAMES = ["[bold]x[/nope]", "$_{ \x1b[31m\n:smile:", "n" * 250, "\udcff\udcfe", "back\\slash"]


@pytest.mark.parametrize("name", NAMES, ids=["markup", "escapes", "long", "bytes", "backslash"])
def test_names_are_shown_as_they_are(name, monkeypatch, capsys):
    monkeypatch.setattr(
        "jaxgnn.train.problems.node_problem.load_nodes", load
    )  # the reader is the real one
    Path(f"{name}.npz").parent.mkdir(exist_ok=True)
    small(f"{name}.npz", nodes=60)
    arguments = [f"{name}.npz", "--epochs", "2", "--checkpoint-interval", "1", "--hidden", "8"]
    assert main(["train", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and "\x1b" not in captured.out
    runs = os.listdir("runs")
    assert len(runs) == 1 and runs[0].isprintable() and "\\" not in runs[0]
    assert main(["train", "--resume", f"runs/{runs[0]}"]) == 0
    assert main(["info", f"{name}.npz"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert {"markup": "[bold]x[/nope]", "bytes": r"\xff\xfe"}.get(name, "") in shown


@pytest.mark.parametrize(
    ("name", "expected"),
    [("\udcff", "expected a path in UTF-8"), ("a\\b", "expected a path without backslashes")],
)
def test_run_directories_that_checkpoints_do_not_take(capsys, name, expected):
    line = one_line(capsys, 2, "train", "--run-directory", name)
    assert line.startswith(f"jaxgnn: --run-directory: {expected}, got ")
    assert not os.listdir()


def test_edgeconv_without_positions_warns():
    from jaxgnn.data import digits

    config = dataclasses.replace(CONFIG, model="edgeconv", epochs=1)
    with pytest.warns(RunWarning, match="edgeconv is made for points, .*: toy has none"):
        run(dataclasses.replace(config, run_directory="run"))
    data = toy()
    points = dataclasses.replace(data.metadata, positions=True)
    run(
        dataclasses.replace(config, run_directory="points"),
        dataset=dataclasses.replace(data, metadata=points),
    )
    assert digits().metadata.positions
