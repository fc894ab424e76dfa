"""`jaxgnn train`."""

from __future__ import annotations

from jaxgnn_cli.interrupts import watch
from jaxgnn_cli.output import print_error


def train(arguments: list[str]) -> None:
    """Trains, or continues a run, or prints the help."""
    from rich.console import Console

    from jaxgnn_cli.options import parse_train

    config = parse_train(arguments)
    if config is None:
        return
    import jax

    from jaxgnn.train import Recovery, keep_freed_memory, run

    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    if config.task == "graph":
        keep_freed_memory()
    recovery = Recovery(warn=print_error)
    with watch() as interrupts:
        interrupts.advice = recovery.advice
        run(config, Console(), recovery=recovery)
