"""`jaxgnn compare`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxgnn_cli.options import parse_options

if TYPE_CHECKING:
    from jaxgnn.train import Comparison


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Compare runs of jaxgnn train: the settings that differ, and means and standard deviations of
    those that differ in the seed alone, with --task graph also in the split. Runs that are not
    finished are named."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN...", help_behavior_hint="(required)"),
    ]
    """The directories of runs."""

    output: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")
    ] = None
    """Where to write: a table as .md or .csv, or a plot as .png."""


def compare(arguments: list[str]) -> None:
    """Prints runs side by side, or the help."""
    options = parse_options(CompareOptions, arguments, "compare")
    if options is None:
        return
    from rich.console import Console

    from jaxgnn.train import compare as compare_runs
    from jaxgnn.train.reports.comparison import SUFFIXES
    from jaxgnn.train.reports.display import print_line
    from jaxgnn.train.trained.predictions import check_suffix

    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_suffix(output, "--output", SUFFIXES)
    comparison = compare_runs(options.runs, "RUN")
    print_comparison(comparison)
    if output is not None:
        comparison.save(output)
        print_line(Console(), f"wrote {output}")


def print_comparison(comparison: Comparison) -> None:
    """A table of the finished runs, and the names of the others."""
    from rich.console import Console

    from jaxgnn.train.reports.display import comparison_table, print_line

    console = Console()
    if comparison.rows:
        console.print(comparison_table(comparison))
    for name in comparison.unfinished:
        print_line(console, f"unfinished: {name}")
