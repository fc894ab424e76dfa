"""The options of `jaxgnn evaluate`."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxgnn.train.settings.options import option
from jaxgnn_cli.options import parse_options
from jaxgnn_cli.status import UsageError
from jaxgnn_cli.values import check_between, choices, integers, shares

if TYPE_CHECKING:
    from jaxgnn.train import InferenceSample


_SIZES = "16,32,64,128,256,512"
_STRATEGIES = "bucket,fastrand,stride"


def _list(default: str) -> Any:
    return tyro.conf.arg(metavar="LIST", help_behavior_hint=f"(default: {default})")


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Score a trained model; or, with --sample-size, --strategy or --drop-edge, measure its
    inference with a part of the edges.

    Prints score and loss of the training, validation and test nodes, or graphs. With a part of the
    edges, prints score, share of the edges and times for each strategy and number of edges, beside
    those of all edges, and writes evaluation.json and evaluation.png. Lists such as 16,32 are
    measured in all combinations.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The directory of a run of jaxgnn train."""

    dataset: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(metavar="[DATASET]", help_behavior_hint="(default: the run's)"),
    ] = None
    """A name or a path, as for jaxgnn train: data with the run's number of features and classes."""

    split: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the run's)")
    ] = None
    """Which of the dataset's splits."""

    sample_size: Annotated[str | None, _list(_SIZES)] = None
    """The most edges of a node, from 1 to 4096, with a model gcn, sage, sage_embedding, gin or
    monet."""

    strategy: Annotated[str | None, _list(_STRATEGIES)] = None
    """Which edges those are: bucket, fastrand, stride or random."""

    drop_edge: Annotated[str | None, _list("none")] = None
    """Probabilities to drop an edge, from 0 to less than 1, such as 0.2,0.4."""

    num_runs: int = 10
    """Timed calls, whose median counts."""

    num_draws: int = 5
    """Samples to score where edges are drawn (random and --drop-edge)."""

    seed: int = 0
    """Seed of the draws."""

    output: Annotated[
        str | None,
        tyro.conf.arg(metavar="DIRECTORY", help_behavior_hint="(default: with a part, RUN)"),
    ] = None
    """Where to write evaluation.json."""

    @property
    def takes_a_part(self) -> bool:
        """Whether inference with a part of the edges is to be measured."""
        return any(v is not None for v in (self.sample_size, self.strategy, self.drop_edge))

    def samples(self) -> list[InferenceSample]:
        """All that is to be measured beside all edges, each once.

        Raises:
            UsageError: a list has something else than it may.
        """
        from jaxgnn.train.trained.evaluation import STRATEGIES, InferenceSample

        strategies = _STRATEGIES if self.strategy is None else self.strategy
        sizes = _SIZES if self.sample_size is None else self.sample_size
        strategies = choices(strategies, "--strategy", STRATEGIES)
        sizes = integers(sizes, "--sample-size", 1, 4096)
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
    if options.takes_a_part and (options.dataset is not None or options.split is not None):
        name = "DATASET" if options.dataset is not None else "--split"
        raise UsageError(
            f"{name}: a part of the edges is measured on the run's own data and split: expected no "
            "--sample-size, --strategy or --drop-edge with it"
        )
    if options.split is not None:
        check_between(options.split, "split", 0, 2**31)
    check_between(options.num_runs, "num_runs", 1, 10**6)
    check_between(options.num_draws, "num_draws", 1, 10**6)
    check_between(options.seed, "seed", 0, 2**32 - 1)
    for name in ("num_runs", "num_draws", "seed"):
        if not options.takes_a_part and getattr(options, name) != getattr(EvaluateOptions, name):
            raise UsageError(
                f"{option(name)}: expected --sample-size, --strategy or --drop-edge with it, got "
                "none"
            )
    return options
