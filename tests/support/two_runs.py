"""Two processes that run the same, as `jaxgnn train --distributed`."""

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes import PACKAGES, start_python

PATH = os.pathsep.join((PACKAGES, str(ROOT)))  # the installed jaxgnn first
TRAIN = ("train", "digits", "--model", "sage", "--dropout", "0", "--plain")
FOREVER = ("--epochs", "1000000", "--patience", "0", "--checkpoint-interval", "5")


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def start_two(*command, directory=ROOT, environments=({}, {}), after=lambda port, process: ()):
    """Two processes of a command, each with what follows from the port and its number; `directory`:
    that of both, or of each."""
    port = free_port()
    started = [
        start_python(
            *command,
            *after(port, process),
            directory=directory[int(process)] if isinstance(directory, tuple) else directory,
            PYTHONPATH=PATH,
            XLA_FLAGS="",
            JAX_NUM_CPU_DEVICES="2",
            **environment,
        )
        for process, environment in zip("01", environments, strict=True)
    ]
    return started


def jaxgnn(*arguments, directory, environments=({}, {}), coordinator=True):
    """Two processes of the command, with `--distributed`."""

    def options(port, process):
        given = ("--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process", process)
        return given if coordinator else ()

    command = ("-m", "jaxgnn_cli", *arguments, "--distributed")
    return start_two(*command, directory=directory, environments=environments, after=options)


def outputs(processes, status=0, seconds=120):
    """What they printed, once they ended with this status."""
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=seconds)
        assert process.returncode == status, output + errors
        found.append((output, errors))
    return found


def losses(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(row["loss"], row["val_loss"]) for row in rows]


def wait_for(path: Path, processes):
    end = time.monotonic() + 180  # a busy machine takes long to start and to compile
    while not path.exists():
        for process in processes:
            assert process.poll() is None, "".join(process.communicate())
        assert time.monotonic() < end
        time.sleep(0.2)


def kill_one_of_two(directory, killed, environments=({}, {}), *, others=False):
    """A run of two processes of which this one is killed: the other ends, says so, and goes on;
    `others`: libraries may have written lines of their own."""
    processes = jaxgnn(
        *(*TRAIN, *FOREVER, "--run-directory", "run"),
        directory=directory,
        environments=environments,
    )
    # That of epoch 5 has its name before both know that it is complete.
    wait_for(directory / "run" / "checkpoints" / "10", processes)
    processes[killed].send_signal(signal.SIGKILL)
    start = time.monotonic()
    ((_, errors),) = outputs([processes[1 - killed]], 1)
    assert time.monotonic() - start < 60
    assert re.fullmatch(
        rf"jaxgnn: process {killed} was lost; the checkpoint of epoch \d+ is safe, continue with "
        rf"jaxgnn train --resume {directory}/run --distributed --coordinator 127\.0\.0\.1:\d+ "
        rf"--processes 2 --process {1 - killed}\n",
        re.sub(r"(?m)^(?!jaxgnn:).*\n", "", errors) if others else errors,
    ), errors
    epochs = len(losses(directory / "run"))
    again = jaxgnn(
        *("train", "--resume", "run", "--epochs", str(epochs + 2)),
        directory=directory,
        environments=environments,
    )
    assert "continuing after epoch " in outputs(again)[0][0]
    assert len(losses(directory / "run")) == epochs + 2
