"""`jaxgnn predict`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxgnn_cli.options import parse_options
from jaxgnn_cli.output import print_error


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """Write a trained model's classes and probabilities for all nodes of a graph."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The directory of a run of jaxgnn train."""

    dataset: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(metavar="[DATASET]", help_behavior_hint="(default: the run's)"),
    ] = None
    """A name or a path, as for jaxgnn train; the run need not have seen it."""

    output: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="(required)")] = ""
    """Where to write, a name with .csv or .npz."""


def predict(arguments: list[str]) -> None:
    """Writes a trained model's predictions, or prints the help."""
    options = parse_options(PredictOptions, arguments, "predict")
    if options is None:
        return
    from rich.console import Console

    from jaxgnn.train import predict as predictions_of
    from jaxgnn.train.display import print_line
    from jaxgnn.train.predictions import check_suffix
    from jaxgnn.train.recovery import memory_errors

    output = Path(options.output)
    check_suffix(output, "--output")
    with memory_errors():
        run = load(options.run)
        data = run.own_data("RUN") if options.dataset is None else run.load_data(options.dataset)
        predictions = predictions_of(run, data)
    predictions.save(output)
    nodes, classes = predictions.probabilities.shape
    print_line(Console(), f"wrote {output}: {nodes:,} nodes, {classes} classes")


def load(directory: str) -> Any:
    """The model of a run that the argument RUN gave."""
    import jax

    from jaxgnn.train import load_run, saved_config

    if saved_config(directory, "RUN").dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    return load_run(directory, "RUN", warn=print_error)
