"""Runs over several processes, such as one a host: `--distributed`."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxgnn._core.text import printable
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError, option

HEARTBEAT_SECONDS = 30
"""Without a sign of life of a process for this long the others end."""

_SHUTDOWN_SECONDS = 30
_LONGEST_TEXT = 1 << 14

# Options of a process alone: its number, paths on its host (the data are compared by content), what
# process 0 alone reads, and `devices`, which are all in any case.
_OWN_OPTIONS = (
    *("dataset", "run_directory", "devices", "plain", "profile"),
    *("coordinator", "processes", "process"),
)


def connect(config: TrainConfig) -> None:
    """Joins the other processes of a run, before JAX computes anything.

    Raises:
        ConfigError: no cluster is detected and none is given, the others do not come, or another
            program has the coordinator's port.
    """
    # SIGTERM ends a process, as without it: nothing here takes part in JAX's preemption protocol.
    jax.config.update("jax_enable_preemption_service", False)
    if config.coordinator is not None and config.process == 0:
        _check_port(config.coordinator)
    try:
        jax.distributed.initialize(
            config.coordinator,
            config.processes,
            config.process,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except ValueError as error:
        if config.coordinator is not None:
            raise ConfigError(f"--coordinator: {printable(error)}") from error
        if "OMPI_COMM_WORLD_RANK" in os.environ:  # Open MPI 5 has not all that JAX looks for
            raise ConfigError(
                "--distributed: JAX does not detect a job of this Open MPI: expected --coordinator "
                "HOST:PORT --processes $OMPI_COMM_WORLD_SIZE --process $OMPI_COMM_WORLD_RANK"
            ) from error
        raise ConfigError(
            "--distributed: expected a job of SLURM or Open MPI, or --coordinator HOST:PORT "
            "--processes N --process I, got neither"
        ) from error
    except RuntimeError as error:
        first = printable(next(iter(str(error).splitlines()), ""))[:200]
        raise ConfigError(f"--distributed: the processes did not connect: {first}") from error


def _check_port(coordinator: str) -> None:
    """That process 0 can listen there: JAX crashes where it cannot.

    Raises:
        ConfigError: another program has the port, or it takes rights.
    """
    if os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):  # JAX listens there
        return
    port = int(coordinator.rpartition(":")[2])
    # As JAX's server, on all addresses; ports of connections that were closed lately are free.
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family) as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((address, port))
            return
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                continue
            reason = error.strerror or error
            raise ConfigError(
                f"--coordinator: expected a free port of this host, got {port}: {reason}"
            ) from error


def disconnect() -> None:
    """Leaves together with the other processes."""
    jax.distributed.shutdown()


def is_first(config: TrainConfig) -> bool:
    """Whether this process logs and writes."""
    return not config.distributed or jax.process_index() == 0


def of_first(value: bool) -> bool:
    """Process 0's."""
    return bool(multihost_utils.broadcast_one_to_all(np.int32(value)))


def any_process(value: bool) -> bool:
    """Whether it is so in any process."""
    return bool(np.any(multihost_utils.process_allgather(np.int32(value))))


def by_first(function: Callable[[], str]) -> str:
    """What process 0 returns, for all.

    Raises:
        ConfigError: what it raised, in all of them.
    """
    message: dict[str, str] = {}
    if jax.process_index() == 0:
        try:
            message["value"] = function()
        except ConfigError as error:
            message["error"] = str(error)
    text = _padded(json.dumps(message))
    message = json.loads(_text(multihost_utils.broadcast_one_to_all(text)))
    if "error" in message:
        raise ConfigError(message["error"])
    return message["value"]


def of_all(text: str) -> list[str]:
    """What each process says, in all of them."""
    return [_text(row) for row in multihost_utils.process_allgather(_padded(text))]


def _padded(text: str) -> np.ndarray:
    content = np.frombuffer(text.encode(), np.uint8)
    return np.pad(content, (0, _LONGEST_TEXT - content.size))


def _text(padded: Any) -> str:
    return np.asarray(padded).tobytes().rstrip(b"\0").decode()


def check_options(config: TrainConfig) -> None:
    """That all processes have the same options, before they do anything else.

    Raises:
        ConfigError: they do not, in all of them.
    """
    own = dataclasses.asdict(config)
    for name in _OWN_OPTIONS:
        del own[name]
    if config.resume is not None:  # wherever this host has it
        own["resume"] = Path(config.resume).absolute().name
    difference = describe_difference([json.loads(text) for text in of_all(json.dumps(own))])
    if difference:
        raise ConfigError(
            f"--distributed: expected the same options in all processes, {difference}"
        )


def describe_difference(found: Sequence[dict[str, Any]]) -> str:
    """In which options the first process that differs from process 0 does; empty if none does."""
    for process, options in enumerate(found):
        names = [name for name, value in options.items() if value != found[0][name]]
        if names:
            got = (
                ", ".join(f"{option(name)} {printable(each[name])}" for name in names)
                for each in (found[0], options)
            )
            return "got {} in process 0 and {} in process {}".format(*got, process)
    return ""


def check_shared(directory: Path, data: dict[str, str]) -> None:
    """That all processes see the run's directory and read the same data.

    Args:
        directory: which process 0 made.
        data: the name and the checksum.

    Raises:
        ConfigError: they do not; of the data in all of them.
    """
    first, *others = of_all(json.dumps(data))
    for process, text in enumerate(others, 1):
        if text != first:
            raise ConfigError(
                f"--distributed: expected the same data in all processes, got {printable(text)} "
                f"in process {process}, {printable(first)} in process 0"
            )
    here = f"process {jax.process_index()} on this host"
    # Network file systems show a new file late.
    for _ in range(50):
        if (directory / "config.json").is_file():
            return
        time.sleep(0.1)
    raise ConfigError(
        f"--run-directory: expected one that all processes share, got {printable(directory)}, "
        f"which {here} does not see"
    )


def resume_options(config: TrainConfig) -> str:
    """What this process's command to resume has besides the run's directory."""
    if not config.distributed:
        return ""
    options = " --distributed"
    if config.coordinator is not None:
        host = shlex.quote(config.coordinator)
        options += f" --coordinator {host} --processes {config.processes}"
        options += f" --process {config.process}"
    if config.shard != "auto":
        options += f" --shard {config.shard}"
    return options
