"""`jaxgnn train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxgnn_cli.compare import print_comparison
from jaxgnn_cli.interrupts import Watch, watch
from jaxgnn_cli.output import print_error

if TYPE_CHECKING:
    from jaxgnn.train import Recovery, TrainConfig


def train(arguments: list[str]) -> None:
    """Trains, or continues a run, or prints the help."""
    from jaxgnn_cli.options import parse_run

    found = parse_run(arguments)
    if found is None:
        return
    config, folds = found
    import jax

    from jaxgnn.train import Recovery, keep_freed_memory
    from jaxgnn.train.runs.folds import check_folds

    if folds:
        check_folds(config, folds)
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    if config.task == "graph":
        keep_freed_memory()
    with watch() as interrupts:

        def recovery() -> Recovery:
            found = Recovery(warn=print_error)
            interrupts.advice = found.advice
            return found

        if folds:
            _run_folds(config, folds, recovery)
        elif config.distributed:
            _run_with_others(config, recovery(), interrupts)
        else:
            _run(config, recovery())


def _run(config: TrainConfig, recovery: Recovery) -> None:
    from rich.console import Console

    from jaxgnn.train import run

    run(config, Console(), recovery=recovery)


def _run_folds(config: TrainConfig, folds: int, recovery: Callable[[], Recovery]) -> None:
    from rich.console import Console

    from jaxgnn.train import run_folds

    print_comparison(run_folds(config, folds, Console(), recovery=recovery))


def _run_with_others(config: TrainConfig, recovery: Recovery, interrupts: Watch) -> None:
    """As one of several processes, which end together."""
    import jax

    from jaxgnn.train import DivergenceError
    from jaxgnn.train.process.processes import HEARTBEAT_SECONDS, connect, disconnect
    from jaxgnn_cli.lost import watch_processes

    with watch_processes() as lost:
        lost.advice, lost.process = recovery.advice, config.process
        interrupts.descriptors = lost.descriptors
        connect(config)
        lost.process, lost.connected = jax.process_index(), True
        try:
            _run(config, recovery)
        except (KeyboardInterrupt, DivergenceError):  # in all processes
            disconnect()
            raise
        except Exception as error:
            lost.wait(error, 2 * HEARTBEAT_SECONDS)
            raise
        disconnect()
