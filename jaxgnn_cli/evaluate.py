"""`jaxgnn evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxgnn_cli.evaluate_options import parse_evaluate
from jaxgnn_cli.output import print_error


def evaluate(arguments: list[str]) -> None:
    """Measures a trained model's inference with parts of the edges, or prints the help."""
    options = parse_evaluate(arguments)
    if options is None:
        return
    import jax
    from rich.console import Console

    from jaxgnn.train import evaluate as measure
    from jaxgnn.train import restore_run, saved_config
    from jaxgnn.train.display import evaluation_table, print_line
    from jaxgnn.train.records import make_directory, write_json
    from jaxgnn.train.recovery import memory_errors
    from jaxgnn.train.step import check_samples

    directory = Path(options.run)
    config = saved_config(directory, "RUN")
    check_samples(config.model, "RUN")
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    output = directory if options.output is None else Path(options.output)
    make_directory(output, "--output")
    console = Console()
    with memory_errors():
        run = restore_run(directory, "RUN", warn=print_error)
        evaluation = measure(
            run,
            options.samples(),
            num_runs=options.num_runs,
            num_draws=options.num_draws,
            seed=options.seed,
            console=console,
        )
    write_json(output / "evaluation.json", evaluation)
    console.print(evaluation_table(evaluation))
    print_line(console, f"wrote {output / 'evaluation.json'}")
    _plot(console, output / "evaluation.png", evaluation)


def _plot(console: Any, path: Path, evaluation: dict[str, Any]) -> None:
    """Draws the evaluation; without a disk that takes the plot, goes on without it."""
    from jaxgnn.train.display import print_line
    from jaxgnn.train.recovery import describe

    try:
        # Matplotlib writes a cache of fonts when it is imported.
        from jaxgnn.train.evaluation_plot import save_evaluation_plot

        save_evaluation_plot(path, evaluation)
    except OSError as error:
        print_error(f"no plot: {describe(error)}; all else is written")
    else:
        print_line(console, f"wrote {path}")
