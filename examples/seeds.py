"""Test accuracies of many seeds, as a table.

    python examples/seeds.py digits --own-splits
    python examples/seeds.py PATH/TO/cora --preset gcn-pyg

The other options are those of `jaxgnn train`. With `--own-splits` seed s takes split s; else all
take one.
"""

from __future__ import annotations

import dataclasses
import functools
import sys

import tyro
from rich.console import Console
from rich.table import Table

from jaxgnn.data import DataError
from jaxgnn.train import ConfigError, TrainConfig, preset, train_seeds


@dataclasses.dataclass(frozen=True)
class Options(TrainConfig):
    """Trains a model a seed, and prints their test accuracies."""

    preset: str = ""
    """Begin with a model's published settings, as `jaxgnn train --preset` does."""
    num_seeds: int = 10
    """Number of seeds, from --seed on."""
    own_splits: bool = False
    """Give each seed a split of its own."""


def main() -> None:
    """Parses, trains, prints."""
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    parse = functools.partial(tyro.cli, Options, config=(tyro.conf.FlagCreatePairsOff,))
    options = parse(default=Options(patience=0))
    if options.num_seeds < 1:
        sys.exit(f"--num-seeds: expected at least 1, got {options.num_seeds}")
    try:
        if options.preset:
            base = preset(options.preset, options.dataset)
        else:
            base = dataclasses.replace(TrainConfig.for_dataset(options.dataset), patience=0)
        options = parse(default=Options(**{name: getattr(base, name) for name in names}))
        config = TrainConfig(**{name: getattr(options, name) for name in names})
        seeds = range(config.seed, config.seed + options.num_seeds)
        splits = range(options.num_seeds) if options.own_splits else None
        # With patience they end at different epochs: one after the other.
        result = train_seeds(config, seeds, splits=splits, in_sequence=config.patience > 0)
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
