"""`jaxgnn train`."""

from __future__ import annotations

from jaxgnn_cli.compare import print_comparison
from jaxgnn_cli.interrupts import watch
from jaxgnn_cli.output import print_error


def train(arguments: list[str]) -> None:
    """Trains, or continues a run, or prints the help."""
    from rich.console import Console

    from jaxgnn_cli.options import parse_run

    found = parse_run(arguments)
    if found is None:
        return
    config, folds = found
    import jax

    from jaxgnn.train import Recovery, keep_freed_memory, run, run_folds
    from jaxgnn.train.folds import check_folds

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

        if not folds:
            run(config, Console(), recovery=recovery())
            return
        print_comparison(run_folds(config, folds, Console(), recovery=recovery))
