"""Runs over several processes, such as one a host: `--distributed`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxgnn._core.text import printable
from jaxgnn.train.config import TrainConfig
from jaxgnn.train.options import ConfigError

HEARTBEAT_SECONDS = 30
"""Without a sign of life of a process for this long the others end."""

_SHUTDOWN_SECONDS = 30
_LONGEST_TEXT = 1 << 14


def connect(config: TrainConfig) -> None:
    """Joins the other processes of a run, before JAX computes anything.

    Raises:
        ConfigError: no cluster is detected and none is given, or the others do not come.
    """
    # SIGTERM ends a process, as without it: nothing here takes part in JAX's preemption protocol.
    jax.config.update("jax_enable_preemption_service", False)
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
        raise ConfigError(
            "--distributed: expected a job of SLURM or Open MPI, or --coordinator HOST:PORT "
            "--processes N --process I, got neither"
        ) from error
    except RuntimeError as error:
        first = printable(next(iter(str(error).splitlines()), ""))[:200]
        raise ConfigError(f"--distributed: the processes did not connect: {first}") from error


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
    text = np.zeros(_LONGEST_TEXT, np.uint8)
    content = np.frombuffer(json.dumps(message).encode(), np.uint8)
    text[: content.size] = content
    sent = np.asarray(multihost_utils.broadcast_one_to_all(text)).tobytes().rstrip(b"\0")
    message = json.loads(sent)
    if "error" in message:
        raise ConfigError(message["error"])
    return message["value"]


def check_shared(directory: Path, data: dict[str, str]) -> None:
    """That all processes see the run's directory and read the same data.

    Args:
        directory: which process 0 made.
        data: the name and the checksum.

    Raises:
        ConfigError: they do not.
    """
    first = by_first(lambda: json.dumps(data))
    here = f"process {jax.process_index()} on this host"
    if json.loads(first) != data:
        raise ConfigError(
            f"--distributed: expected the same data in all processes, got {json.dumps(data)} in "
            f"{here}, {printable(first)} in process 0"
        )
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
