"""A graph, and runs, over two processes of two devices each, which talk by Gloo."""

import dataclasses
import json
import re
import shutil
import signal
import socket
import time

import jax
import numpy as np
import pytest

from jaxgnn.train import ConfigError, TrainConfig, run
from jaxgnn.train.process.processes import _check_port, connect, describe_difference
from jaxgnn.train.process.stall import Watchdog, before_the_run, describe
from jaxgnn_cli.lost import lost_process
from tests.support.processes import run_python
from tests.support.small_sets import weighted_tables
from tests.support.two_runs import (
    FOREVER,
    TRAIN,
    free_port,
    jaxgnn,
    kill_one_of_two,
    losses,
    outputs,
    start_two,
    wait_for,
)

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)


@pytest.mark.parametrize(
    "options",
    [(), *(pytest.param((name,), marks=pytest.mark.system) for name in ("--all", "--models"))],
)
def test_two_processes_agree_with_one(options):
    module = ("-m", "tests.distributed.two_processes")
    started = start_two(*module, after=lambda port, process: (port, process, *options))
    for output, _ in outputs(started, seconds=600 if options else 120):
        assert output.endswith("all hold\n")


def test_what_is_refused_and_said(tmp_path):
    config = {"run_directory": str(tmp_path / "run"), "distributed": True}
    three = {"coordinator": "host:1", "processes": 2, "process": 0}
    for options, message in (
        ({}, r"--distributed: expected jax.distributed.initialize\(\) before"),
        ({"distributed": False, "process": 0}, "--process: expected --distributed with it"),
        ({"distributed": False, "stall_timeout": 1}, "--stall-timeout: expected --distributed"),
        ({"devices": "2"}, "--devices: expected all with --distributed, got 2"),
        ({"activation": "maxk", "k": 0}, "--k: expected a number with --distributed, got auto"),
        ({"coordinator": "host:1"}, "--processes: expected one with the others of them, got none"),
        ({**three, "coordinator": "host"}, "--coordinator: expected HOST:PORT, got 'host'"),
        ({**three, "processes": 0}, "--processes: expected a positive integer, got 0"),
        ({**three, "process": 2}, "--process: expected 0 to 1, got 2"),
        ({"num_neighbors": "2,2", "shard": "rows"}, "--shard: expected none with --num-neighbors"),
        ({"task": "link"}, "--distributed: expected none with --task link"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(TrainConfig(**(config | options)).check())
    assert not (tmp_path / "run").exists()

    ended = "Terminating process because the JAX distributed service detected fatal errors. "
    unhealthy = "The following tasks are unhealthy (stopped sending heartbeats):\n{}\nThe tasks"
    assert lost_process(ended + unhealthy.format("1"), 0) == "process 1 was lost"
    assert lost_process(ended + unhealthy.format("12\n3"), 1) == "processes 3, 12 were lost"
    assert lost_process(ended + "CoordinationService/PollForError", 1) == "process 0 was lost"
    assert lost_process(ended, 0) == "another process was lost"
    assert lost_process("free(): invalid pointer", 1) is None
    late = (
        "Shutdown barrier has failed. DEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::20::0. "
        "This\n# of tasks that reached the barrier: 1/3.\n"
        "The first task at the barrier: 0. Some timed out task names:\n2\n1\n [type\nPollForError"
    )
    for process in (0, 1):
        assert lost_process(ended + late, process) == "processes 1, 2 did not end with the others"

    assert describe(["03 there", "02 here", "03 there"]) == "process 1 did not go on here"
    assert describe(["02 here"] * 2) == "no process went on here"
    assert describe([None, "02 here", None]) == "processes 0, 2 did not answer, and nothing ended"


def test_a_port_that_another_program_has():
    config = TrainConfig(distributed=True, processes=1, process=0)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as JAX's server
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = dataclasses.replace(config, coordinator=f"127.0.0.1:{port}")
        expected = f"--coordinator: expected a free port of this host, got {port}: Address already"
        with pytest.raises(ConfigError, match=expected):
            connect(taken)
        # One that was there a moment ago is free.
        with socket.create_connection(("127.0.0.1", port)):
            other.accept()[0].close()
    _check_port(taken.coordinator)


def test_jobs_that_jax_does_not_detect(monkeypatch):
    def initialize(*arguments, **options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    with pytest.raises(ConfigError, match="expected a job of SLURM or Open MPI, or --coordinator"):
        connect(TrainConfig(distributed=True))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")  # Open MPI 5
    with pytest.raises(ConfigError, match=r"--process \$OMPI_COMM_WORLD_RANK"):
        connect(TrainConfig(distributed=True))


@pytest.mark.system
def test_a_job_of_open_mpi(tmp_path):
    """Its number is in the variable of version 4, and decides the port."""
    job = {
        "OMPI_MCA_orte_hnp_uri": f"{int(free_port()) % 4096 << 12}.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    numbers = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    started = jaxgnn(
        *(*TRAIN, "--epochs", "1", "--run-directory", "run"),
        directory=tmp_path,
        environments=[job | dict.fromkeys(numbers, process) for process in "01"],
        coordinator=False,
    )
    (output, _), other = outputs(started)
    assert "devices of 2 processes" in output and other == ("", "")


def test_options_that_differ_are_named():
    zero = {"seed": 0, "resume": None, "shard": "auto"}
    assert describe_difference([zero, dict(zero)]) == ""
    assert describe_difference([zero, zero, zero | {"seed": 1}, zero | {"seed": 2}]) == (
        "got --seed 0 in process 0 and --seed 1 in process 2"
    )
    assert describe_difference([zero, zero | {"resume": "run", "shard": "rows"}]) == (
        "got --resume None, --shard auto in process 0 and --resume run, --shard rows in process 1"
    )


@pytest.mark.system
def test_a_run_of_two_processes_is_that_of_one(tmp_path):
    """On the parts of a folder, of which each process reads its own, as a job of SLURM; and
    continued alone."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    alone = {"directory": first, "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": ""}
    command = ("-m", "jaxgnn_cli")
    run_python(*command, "partition", "digits", "parts", "--parts", "4", **alone)
    train = ("train", "parts", *TRAIN[2:], "--norm", "layer", "--run-directory")
    run_python(*command, *train, str(tmp_path / "one"), "--epochs", "6", **alone)
    shutil.copytree(first, second)
    for directory, foreign in ((first, (2, 3)), (second, (0, 1))):
        for part in foreign:
            for name in ("features", "senders", "row_offsets"):
                (directory / "parts" / f"part-{part:05d}" / f"{name}.npy").unlink()
    of_job = {
        "SLURM_JOB_ID": str(int(free_port()) % 4096),  # JAX takes the port from it
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    }
    environments = [of_job | {"SLURM_PROCID": i, "SLURM_LOCALID": i} for i in "01"]
    started = jaxgnn(
        *(*train, str(tmp_path / "two"), "--epochs", "4"),
        directory=(first, second),
        environments=environments,
        coordinator=False,
    )
    (output, errors), other = outputs(started)
    assert "1,797 nodes, 24,678 edges, 64 features" in output
    assert "by rows over 4 devices of 2 processes" in output and not errors
    assert other == ("", "")
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert (summary["devices"], summary["processes"], summary["shard"]) == (4, 2, "rows")
    np.testing.assert_allclose(
        losses(tmp_path / "two"), losses(tmp_path / "one")[:4], rtol=1e-5, atol=1e-6
    )
    # The same by both axes: the two devices of a process share the columns of its parts.
    environments = [own | {"SLURM_JOB_ID": str(int(free_port()) % 4096)} for own in environments]
    environments[1]["SLURM_JOB_ID"] = environments[0]["SLURM_JOB_ID"]
    both = jaxgnn(
        *(*train, str(tmp_path / "both"), "--epochs", "4", "--shard", "both"),
        directory=(first, second),
        environments=environments,
        coordinator=False,
    )
    assert "by both over 4 devices of 2 processes" in outputs(both)[0][0]
    np.testing.assert_allclose(
        losses(tmp_path / "both"), losses(tmp_path / "one")[:4], rtol=1e-5, atol=1e-6
    )
    shutil.copytree(second / "parts", first / "parts", dirs_exist_ok=True)
    again = jaxgnn("train", "--resume", "two", "--epochs", "5", directory=tmp_path)
    assert "continuing after epoch 4" in outputs(again)[0][0]
    alone["directory"] = tmp_path
    run_python(*command, "train", "--resume", "two", "--epochs", "6", **alone)
    np.testing.assert_allclose(
        losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5, atol=1e-6
    )
    predicted = []
    for name in ("one", "two"):
        file = f"{name}.npz"
        run_python(*command, "predict", name, "digits", "--output", file, **alone)
        with np.load(tmp_path / file) as found:
            predicted.append(found["probabilities"])
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-3, atol=1e-5)
    # What is refused is said by all, and no process waits for another one.
    for _, errors in outputs(jaxgnn(*TRAIN, "--run-directory", "two", directory=tmp_path), 2):
        assert "--run-directory: two is not empty" in errors


@pytest.mark.system
def test_mini_batches_of_two_processes_are_those_of_one(tmp_path):
    """Each takes its share of a batch's seeds, of features on its host; and continued alone."""
    batches = (
        *(*TRAIN, "--num-neighbors", "4,3", "--batch-size", "16", "--features-on", "host"),
        *("--steps-per-call", "2", "--checkpoint-steps", "2"),
    )
    alone = {"directory": tmp_path, "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": ""}
    one = ("--run-directory", "one", "--epochs", "4")
    run_python("-m", "jaxgnn_cli", *batches, *one, **alone)
    two = ("--run-directory", "two", "--epochs", "2")
    (output, errors), other = outputs(jaxgnn(*batches, *two, directory=tmp_path))
    assert "; batches over 4 devices of 2 processes" in output and not errors
    assert other == ("", "")
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert (summary["devices"], summary["processes"], summary["shard"]) == (4, 2, "seeds")
    again = jaxgnn("train", "--resume", "two", "--epochs", "3", directory=tmp_path)
    assert "continuing after epoch 2" in outputs(again)[0][0]
    run_python("-m", "jaxgnn_cli", "train", "--resume", "two", "--epochs", "4", **alone)
    np.testing.assert_allclose(
        losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5, atol=1e-6
    )


@pytest.mark.system
@pytest.mark.parametrize(
    ("data", "options"),
    [("parts", ()), ("data", ()), ("data", ("--num-neighbors", "4,3", "--batch-size", "7"))],
)
def test_weights_of_edges_in_two_processes_are_those_in_one(tmp_path, data, options):
    """Of a folder, of which each process reads its own parts, too; and continued alone."""
    alone = {"directory": tmp_path, "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": ""}
    for folder in ("data", "first", "second"):
        (tmp_path / folder).mkdir()
    weighted_tables(tmp_path / "data", 40)
    train = ("--model", "gcn", "--dropout", "0", "--plain", "--hidden", "8", "--edge-weights")
    train += (*options, "--run-directory")
    command = ("-m", "jaxgnn_cli")
    run_python(*command, "train", "data", *train, "one", "--epochs", "4", **alone)
    run_python(*command, "partition", "data", "parts", "--parts", "4", **alone)
    for folder, foreign in (("first", (2, 3)), ("second", (0, 1))):
        shutil.copytree(tmp_path / "data", tmp_path / folder / "data")
        shutil.copytree(tmp_path / "parts", tmp_path / folder / "parts")
        for part in foreign:
            for name in ("features", "senders", "row_offsets", "weights"):
                (tmp_path / folder / "parts" / f"part-{part:05d}" / f"{name}.npy").unlink()
    started = jaxgnn(
        *("train", data, *train, str(tmp_path / "two"), "--epochs", "3"),
        directory=(tmp_path / "first", tmp_path / "second"),
    )
    (output, errors), other = outputs(started)
    assert "; weights of the edges are used" in output and not errors and other == ("", "")
    assert "over 4 devices of 2 processes" in output
    shutil.copytree(tmp_path / "parts", tmp_path / "first" / "parts", dirs_exist_ok=True)
    run_python(*command, "train", "--resume", "two", "--epochs", "4", **alone)
    np.testing.assert_allclose(
        losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5, atol=1e-6
    )


@pytest.mark.system
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other(tmp_path, killed):
    kill_one_of_two(tmp_path, killed)


STALL = """
import sys, time
from jaxgnn.train import TrainConfig, run
from jaxgnn.train.problems import problem
from jaxgnn.train.process import processes
where, port, process = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = TrainConfig(
    "digits", epochs=1000000, distributed=True, coordinator=f"127.0.0.1:{port}", processes=2,
    process=process, stall_timeout=30, run_directory="run",
)
def callback(row):
    if process == 1 and row["epoch"] == 3:
        time.sleep(1000)
if process == 1 and where == "loading":
    problem.load_dataset = lambda config: time.sleep(1000)
processes.connect(config)
run(config, callbacks=[callback])
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("where", "place"), [("training", "after epoch 3"), ("loading", "at the start")]
)
def test_a_stuck_process_is_named_by_all(tmp_path, where, place):
    (tmp_path / "stall.py").write_text(STALL)
    after = lambda port, process: (where, port, process)  # noqa: E731
    started = start_two("stall.py", directory=tmp_path, after=after)
    if where == "training":
        wait_for(tmp_path / "run" / "metrics.jsonl", started)
    start = time.monotonic()
    for i, (_, errors) in enumerate(outputs(started, 1)):
        (line,) = [line for line in errors.splitlines() if line.startswith("jaxgnn:")]
        said = f"process 1 did not go on {place} within 30 s (--stall-timeout)"
        assert line.startswith(f"jaxgnn: {said}; ")
        # Process 0 may have made the directory, and no process trained.
        advice = "there is no checkpoint yet, start over with jaxgnn train --resume "
        if where == "training":
            assert f"; {advice}" in line and line.endswith(f"--process {i}")
    assert time.monotonic() - start < 90


def test_answers_of_stuck_processes(tmp_path):
    """Those of this run alone, whatever an earlier one has left; none stay."""
    answers = tmp_path / "stalled-0"
    answers.write_text("000000000009 after epoch 9")
    with Watchdog(100, tmp_path, str) as watchdog:
        assert watchdog._answer_of(0) is watchdog._answer_of(1) is None
        watchdog._answer("000000000003 after epoch 3")
        (tmp_path / "stalled-1").write_bytes(b"\xff")
        assert watchdog._answer_of(0) == "000000000003 after epoch 3"
        assert watchdog._answer_of(1) is None
    assert not answers.exists()
    config = TrainConfig(distributed=True, run_directory=str(tmp_path / "run"))
    with before_the_run(config, str) as watchdog:
        watchdog.feed("after loading the data")
        assert watchdog._answer_of(0) == "000000000002 after loading the data"
        watchdog.stop()
        assert not [*tmp_path.glob(".run*")]
    resumed = before_the_run(dataclasses.replace(config, resume=str(tmp_path)), str)
    with resumed:
        assert (tmp_path / "stalled-before-0").exists()
    with before_the_run(dataclasses.replace(config, run_directory=None), str) as watchdog:
        assert watchdog._answer_of(0) is None
    answers.write_text("000000000009 after epoch 9")
    with Watchdog(0, tmp_path, str):
        pass
    assert answers.exists()  # nothing is watched


@pytest.mark.system
def test_ctrl_c_of_one_ends_all_after_an_epoch(tmp_path):
    processes = jaxgnn(*TRAIN, *FOREVER, "--run-directory", "run", directory=tmp_path)
    wait_for(tmp_path / "run" / "checkpoints" / "5", processes)
    processes[1].send_signal(signal.SIGINT)
    for _, errors in outputs(processes, 130):
        assert re.match(
            r"jaxgnn: interrupted after epoch (\d+); the checkpoint of epoch \1 is safe", errors
        )
