"""Test scores of link prediction over many seeds, as a table.

    python examples/link_prediction.py PATH/TO/facebook_combined.txt.gz --dropout 0 --weight-decay 0

The other options are those of `jaxgnn train --task link`. Seed s trains with the seed s on the
split s; with `--run-directory DIR` its run is kept in DIR/s.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import tempfile
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from jaxgnn.data import DataError
from jaxgnn.train import CheckpointError, ConfigError, RunError, TrainConfig, run


@dataclasses.dataclass(frozen=True)
class Options(TrainConfig):
    """Trains a model a seed to predict links, and prints their test scores."""

    num_seeds: int = 10
    """Number of seeds, from --seed on."""


def main() -> None:
    """Parses, trains, prints."""
    parse = functools.partial(tyro.cli, Options, config=(tyro.conf.FlagCreatePairsOff,))
    options = parse(default=Options(task="link", patience=0))
    if options.num_seeds < 1:
        sys.exit(f"--num-seeds: expected at least 1, got {options.num_seeds}")
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    config = TrainConfig(**{name: getattr(options, name) for name in names})
    rows = []
    try:
        with tempfile.TemporaryDirectory() as unnamed:
            folder = Path(config.run_directory or unnamed)
            for seed in range(config.seed, config.seed + options.num_seeds):
                own = {"seed": seed, "split": seed, "run_directory": str(folder / str(seed))}
                summary = run(dataclasses.replace(config, **own))
                rows.append((seed, summary["best_epoch"], summary["test_scores"]))
    except (CheckpointError, ConfigError, DataError, RunError) as error:
        sys.exit(str(error))
    metrics = list(rows[0][2])
    if not metrics:
        sys.exit("--test-share: expected links to test, got none")
    table = Table(title=f"{config.model} on {summary['dataset']}", title_justify="left")
    for name in ("seed", "epoch", *(metric.replace("_", " ") for metric in metrics)):
        table.add_column(name, justify="right")
    for seed, epoch, scores in rows:
        table.add_row(str(seed), str(epoch), *(f"{100 * scores[name]:.2f}" for name in metrics))
    table.add_section()
    columns = [np.array([100 * scores[name] for *_, scores in rows]) for name in metrics]
    table.add_row("mean, %", "", *(f"{c.mean():.2f} ± {c.std():.2f}" for c in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
