"""`--k auto`: how many features MaxK keeps, by short runs of a few numbers."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

import jax

from jaxgnn.train.config import TrainConfig
from jaxgnn.train.loop import Best, Progress, copy, train
from jaxgnn.train.options import ConfigError

if TYPE_CHECKING:
    from jaxgnn.train.node_problem import NodeProblem

_MOST = 5  # candidates


@dataclasses.dataclass(frozen=True)
class Trial:
    """A short run.

    Attributes:
        k: features that were kept.
        score: the best epoch's validation score.
        seconds: of an epoch, the median.
        chosen: whether the run goes on with it.
    """

    k: int
    score: float
    seconds: float
    chosen: bool = False


def candidates(hidden: int) -> list[int]:
    """Half the width, a quarter and so on: five numbers at most."""
    found = []
    while hidden > 1 and len(found) < _MOST:
        hidden //= 2
        found.append(hidden)
    return found


def choose(trials: list[Trial], tolerance: float) -> list[Trial]:
    """The same, the chosen one marked: the fastest whose score is within the tolerance of the best
    one's; of equally fast ones the smaller k."""
    best = max(trial.score for trial in trials)
    good = [trial for trial in trials if trial.score >= best - tolerance]
    fastest = min(good, key=lambda trial: (trial.seconds, trial.k))
    return [dataclasses.replace(trial, chosen=trial is fastest) for trial in trials]


def try_all(config: TrainConfig, problem: NodeProblem) -> list[Trial]:
    """Trains each candidate for `config.k_epochs` epochs, from the same seed, and chooses.

    Raises:
        ConfigError: a width of 1, or no validation nodes.
        DivergenceError: a loss is not finite.
    """
    ks = candidates(config.hidden)
    if not ks:
        raise ConfigError(f"--k: auto expected --hidden of at least 2, got {config.hidden}")
    if not jax.device_get(problem.task.val).any():
        raise ConfigError("--k: auto expected validation nodes, got none")
    trials = []
    for k in ks:
        own = problem.with_config(dataclasses.replace(config, k=k))
        program, state = own.build()
        compiled = own.compile(program, state)
        rows: list[dict[str, Any]] = []
        best = Best(copy(state.params), copy(state.rest))
        _, _, progress = train(
            compiled,
            own.task,
            state,
            best,
            Progress(),
            epochs=min(config.k_epochs, config.epochs),
            on_epoch=rows.append,
        )
        # A call's first run is slower.
        seconds = statistics.median(row["seconds"] for row in rows[1:] or rows)
        trials.append(Trial(k, progress.best_score, round(seconds, 6)))
    return choose(trials, config.k_tolerance)
