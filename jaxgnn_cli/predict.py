"""`jaxgnn predict`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxgnn_cli.options import parse_options
from jaxgnn_cli.output import print_error
from jaxgnn_cli.status import UsageError


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """Write a trained model's classes and probabilities, or the numbers that it predicts, for all
    nodes of a graph or all graphs of a set, or with --pairs the scores of a run of --task link."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The directory of a run of jaxgnn train."""

    dataset: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(metavar="[DATASET]", help_behavior_hint="(default: the run's)"),
    ] = None
    """A name or a path, as for jaxgnn train; the run need not have seen it."""

    output: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="(required)")] = ""
    """Where to write, a name with .csv or .npz."""

    pairs: Annotated[
        str | None, tyro.conf.arg(metavar="TABLE", help_behavior_hint="(of --task link: required)")
    ] = None
    """A .csv or .parquet table of the pairs to score, ids in the columns source and target."""


def predict(arguments: list[str]) -> None:
    """Writes a trained model's predictions, or prints the help."""
    options = parse_options(PredictOptions, arguments, "predict")
    if options is None:
        return
    from rich.console import Console

    from jaxgnn.train import predict as predictions_of
    from jaxgnn.train import predict_links, read_pairs, saved_config
    from jaxgnn.train.process.recovery import memory_errors
    from jaxgnn.train.reports.display import print_line
    from jaxgnn.train.trained.predictions import check_suffix

    output = Path(options.output)
    check_suffix(output, "--output")
    if options.pairs is not None:
        check_suffix(Path(options.pairs), "--pairs", (".csv", ".parquet"))
        if output.resolve() == Path(options.pairs).resolve():
            raise UsageError("--output: expected another file than --pairs")
    links = is_link_run(options.run)
    if links != (options.pairs is not None):
        task = saved_config(options.run, "RUN").task
        expected = "a table of pairs" if links else "none"
        got = "none" if options.pairs is None else "one"
        raise UsageError(f"--pairs: expected {expected} with a run of --task {task}, got {got}")
    with memory_errors():
        run = load(options.run, links=links)
        data = run.own_data("RUN") if options.dataset is None else run.load_data(options.dataset)
        if options.pairs is not None:
            predictions = predict_links(run, data, read_pairs(options.pairs, data))
            counts = f"{len(predictions.scores):,} pairs"
        else:
            predictions = predictions_of(run, data)
            rows, columns = predictions.probabilities.shape
            of = "graphs" if run.config.task == "graph" else "nodes"
            kind = "targets" if predictions.numbers else "classes"
            counts = f"{rows:,} {of}, {columns} {kind}"
    predictions.save(output)
    print_line(Console(), f"wrote {output}: {counts}")


def is_link_run(directory: str) -> bool:
    """Whether the argument RUN gave a run of --task link."""
    from jaxgnn.train import saved_config

    return saved_config(directory, "RUN").task == "link"


def load(directory: str, *, links: bool = False) -> Any:
    """The model of a run that the argument RUN gave, of nodes or of links."""
    import jax

    from jaxgnn.train import load_link_run, load_run, saved_config

    if saved_config(directory, "RUN").dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    load_any = load_link_run if links else load_run
    return load_any(directory, "RUN", warn=print_error)
