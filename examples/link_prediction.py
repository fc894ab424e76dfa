"""Test scores of link prediction over many seeds, as a table.

    python examples/link_prediction.py PATH/TO/facebook_combined.txt.gz --dropout 0 --weight-decay 0

The other options are those of `jaxgnn train --task link`. Seed s trains with the seed s on the
split s.
"""

from __future__ import annotations

import dataclasses
import functools
import sys

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from jaxgnn.data import DataError
from jaxgnn.train import Best, Compiled, ConfigError, Progress, Recovery, TrainConfig, train
from jaxgnn.train.loop import copy
from jaxgnn.train.problem import load_link_data, make_problem
from jaxgnn.train.task import METRIC_NAMES


@dataclasses.dataclass(frozen=True)
class Options(TrainConfig):
    """Trains a model a seed to predict links, and prints their test scores."""

    num_seeds: int = 10
    """Number of seeds, from --seed on."""


def main() -> None:
    """Parses, trains, prints."""
    parse = functools.partial(tyro.cli, Options, config=(tyro.conf.FlagCreatePairsOff,))
    options = parse(default=Options(task="link", patience=0))
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    config = TrainConfig(**{name: getattr(options, name) for name in names})
    console = Console()
    try:
        config.check()
        data = load_link_data(config)
        rows = []
        for seed in range(config.seed, config.seed + options.num_seeds):
            problem = make_problem(
                dataclasses.replace(config, seed=seed, split=seed), data, Recovery()
            )
            program, state = problem.build()
            compiled = Compiled(program, state, problem.task)
            start = Best(copy(state.params), copy(state.rest))
            limits = {"epochs": config.epochs, "patience": config.patience}
            _, best, progress = train(compiled, problem.task, state, start, Progress(), **limits)
            results = problem.results(program, compiled.evaluate, best.params, best.rest)
            rows.append((seed, progress.best_epoch, results["test_scores"]))
    except (ConfigError, DataError) as error:
        sys.exit(str(error))
    metrics = list(rows[0][2])
    if not metrics:
        sys.exit("--test-share: expected links to test, got none")
    table = Table(title=f"{config.model} on {data.name}", title_justify="left")
    for name in ("seed", "epoch", *(METRIC_NAMES[name] for name in metrics)):
        table.add_column(name, justify="right")
    for seed, epoch, scores in rows:
        table.add_row(str(seed), str(epoch), *(f"{100 * scores[name]:.2f}" for name in metrics))
    table.add_section()
    columns = [np.array([100 * scores[name] for *_, scores in rows]) for name in metrics]
    table.add_row("mean, %", "", *(f"{c.mean():.2f} ± {c.std():.2f}" for c in columns))
    console.print(table)


if __name__ == "__main__":
    main()
