"""`jaxgnn evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxgnn_cli.evaluate_options import EvaluateOptions, parse_evaluate
from jaxgnn_cli.output import print_error
from jaxgnn_cli.predict import load
from jaxgnn_cli.status import UsageError


def evaluate(arguments: list[str]) -> None:
    """Scores a trained model, or measures its inference with parts of the edges, or prints the
    help."""
    options = parse_evaluate(arguments)
    if options is None:
        return
    if options.takes_a_part:
        _measure(options)
    else:
        _score(options)


def _output(options: EvaluateOptions) -> Path | None:
    """The directory of --output, made if it is not there."""
    from jaxgnn.train.reports.records import make_directory

    if options.output is None:
        return None
    if not options.output:
        raise UsageError("--output: expected a path, got none")
    make_directory(Path(options.output), "--output")
    return Path(options.output)


def _score(options: EvaluateOptions) -> None:
    from rich.console import Console

    from jaxgnn.train import evaluate_scores
    from jaxgnn.train.process.recovery import memory_errors
    from jaxgnn.train.reports.display import print_line, scores_table
    from jaxgnn.train.reports.records import write_json

    output = _output(options)
    with memory_errors():
        run = load(options.run)
        data = run.own_data("RUN") if options.dataset is None else run.load_data(options.dataset)
        split = run.config.split
        if options.split not in (None, split) and (options.dataset is None or run.is_own(data)):
            of = "graphs" if run.config.task == "graph" else "nodes"
            print_error(
                f"--split: the run was trained on split {split}: its training {of} may be test "
                f"{of} of split {options.split}"
            )
        scores = evaluate_scores(run, data, options.split)
    console = Console()
    console.print(scores_table(scores))
    if output is not None:
        write_json(output / "evaluation.json", scores)
        print_line(console, f"wrote {output / 'evaluation.json'}")


def _measure(options: EvaluateOptions) -> None:
    import jax
    from rich.console import Console

    from jaxgnn.train import evaluate as measure
    from jaxgnn.train import restore_run, saved_config
    from jaxgnn.train.process.recovery import memory_errors
    from jaxgnn.train.reports.display import evaluation_table, print_line
    from jaxgnn.train.reports.records import write_json
    from jaxgnn.train.steps.model import check_samples

    directory = Path(options.run)
    config = saved_config(directory, "RUN")
    check_samples(config.model, "RUN")
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    output = _output(options) or directory
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
    console.print(evaluation_table(evaluation))
    write_json(output / "evaluation.json", evaluation)
    print_line(console, f"wrote {output / 'evaluation.json'}")
    _plot(console, output / "evaluation.png", evaluation)


def _plot(console: Any, path: Path, evaluation: dict[str, Any]) -> None:
    """Draws the evaluation; without a disk that takes the plot, goes on without it."""
    from jaxgnn.train.process.recovery import describe
    from jaxgnn.train.reports.display import print_line

    try:
        # Matplotlib writes a cache of fonts when it is imported.
        from jaxgnn.train.trained.evaluation_plot import save_evaluation_plot

        save_evaluation_plot(path, evaluation)
    except OSError as error:
        print_error(f"no plot: {describe(error)}; all else is written")
    else:
        print_line(console, f"wrote {path}")
