"""Test accuracies of many seeds, as a table.

    python examples/seeds.py digits --own-splits
    python examples/seeds.py PATH/TO/cora --published pyg

The other options are those of `jaxgnn train`. With `--own-splits` seed s takes split s; else all
take one.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from jaxgnn.data import DataError
from jaxgnn.train import PUBLISHED, ConfigError, TrainConfig, train_seeds


@dataclasses.dataclass(frozen=True)
class Options(TrainConfig):
    """Trains a model a seed, all at once, and prints their test accuracies."""

    patience: tyro.conf.Suppress[int] = 0
    num_seeds: int = 10
    """Number of seeds, from --seed on."""
    own_splits: bool = False
    """Give each seed a split of its own."""
    published: Literal["kipf", "pyg", "gat"] | None = None
    """Published settings in place of the defaults: of the GCN those of Kipf and Welling, or of
    PyTorch Geometric's benchmark, which drops no input features; of the GAT its authors'."""


def main() -> None:
    """Parses, trains, prints."""
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    parse = functools.partial(tyro.cli, Options, config=(tyro.conf.FlagCreatePairsOff,))
    options = parse()
    base = (
        PUBLISHED[options.published]
        if options.published
        else (TrainConfig.for_dataset(options.dataset))
    )
    values = {name: getattr(base, name) for name in names if name not in ("dataset", "patience")}
    options = parse(default=Options(dataset=options.dataset, **values))
    config = TrainConfig(**{name: getattr(options, name) for name in names})
    seeds = range(config.seed, config.seed + options.num_seeds)
    splits = range(options.num_seeds) if options.own_splits else None
    try:
        result = train_seeds(config, seeds, splits=splits)
    except (ConfigError, DataError) as error:
        sys.exit(str(error))
    table = Table(title=f"{config.model} on {config.dataset}", title_justify="left")
    for name in ("seed", "epoch", "test accuracy"):
        table.add_column(name, justify="right")
    for seed, epoch, score in zip(result.seeds, result.epochs, result.scores, strict=True):
        table.add_row(str(seed), str(epoch), f"{100 * score:.2f} %")
    table.add_section()
    mean, deviation = 100 * result.scores.mean(), 100 * result.scores.std()
    table.add_row("mean", "", f"{mean:.2f} ± {deviation:.2f} %")
    Console().print(table, f"{result.seconds:.1f} s in all")


if __name__ == "__main__":
    main()
