"""The options of `jaxgnn evaluate`."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxgnn_cli.options import parse_options
from jaxgnn_cli.values import check_between, choices, integers, shares

if TYPE_CHECKING:
    from jaxgnn.train import InferenceSample


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Measure a trained model's inference with a part of the edges.

    Prints score, share of the edges and times for each strategy and number of edges, beside those
    of all edges, and writes evaluation.json and evaluation.png. Lists such as 16,32 are measured
    in all combinations.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The directory of a run of jaxgnn train, with a model gcn, sage,
    sage_embedding, gin or monet."""

    sample_size: str = "16,32,64,128,256,512"
    """The most edges of a node, from 1 to 4096."""

    strategy: str = "bucket,fastrand,stride"
    """Which edges those are: bucket, fastrand, stride or random."""

    drop_edge: Annotated[
        str | None, tyro.conf.arg(metavar="LIST", help_behavior_hint="(default: none)")
    ] = None
    """Probabilities to drop an edge, from 0 to less than 1, such as 0.2,0.4."""

    num_runs: int = 10
    """Timed calls, whose median counts."""

    num_draws: int = 5
    """Samples to score where edges are drawn (random and --drop-edge)."""

    seed: int = 0
    """Seed of the draws."""

    output: Annotated[
        str | None, tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint="(default: RUN)")
    ] = None
    """Where to write."""

    def samples(self) -> list[InferenceSample]:
        """All that is to be measured beside all edges, each once.

        Raises:
            UsageError: a list has something else than it may.
        """
        from jaxgnn.train.evaluation import STRATEGIES, InferenceSample

        strategies = choices(self.strategy, "--strategy", STRATEGIES)
        sizes = integers(self.sample_size, "--sample-size", 1, 4096)
        rates = [] if self.drop_edge is None else shares(self.drop_edge, "--drop-edge")
        taken = [InferenceSample(*pair) for pair in itertools.product(strategies, sizes)]
        dropped = [InferenceSample("dropedge", drop_rate=rate) for rate in rates]
        return list(dict.fromkeys(taken + dropped))


def parse_evaluate(arguments: list[str]) -> EvaluateOptions | None:
    """The options, checked; None if help was asked for, and printed."""
    options = parse_options(EvaluateOptions, arguments, "evaluate")
    if options is None:
        return None
    options.samples()
    check_between(options.num_runs, "num_runs", 1, 10**6)
    check_between(options.num_draws, "num_draws", 1, 10**6)
    check_between(options.seed, "seed", 0, 2**32 - 1)
    return options
