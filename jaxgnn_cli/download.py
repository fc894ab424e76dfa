"""`jaxgnn download`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from jaxgnn_cli.options import parse_options


@dataclasses.dataclass(frozen=True)
class DownloadOptions:
    """Fetch the files of a data set, and check them; jaxgnn train NAME does so itself."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """cora or minesweeper."""

    root: Annotated[
        str | None,
        tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint="(default: the user's cache)"),
    ] = None
    """Where the set's directory is made."""


def download(arguments: list[str]) -> None:
    """Downloads what is missing and prints where it is, or prints the help."""
    options = parse_options(DownloadOptions, arguments, "download")
    if options is None:
        return
    from rich.console import Console

    from jaxgnn.data import download as fetch
    from jaxgnn.data.cache.downloads import SOURCES
    from jaxgnn.train.reports.display import print_line

    directory = fetch(options.name, options.root)
    source = SOURCES[options.name]
    print_line(Console(), str(directory))
    print_line(Console(), f"{source.citation}; licence: {source.licence}")
