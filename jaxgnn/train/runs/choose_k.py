"""`--k auto` and `--head-k auto`: how many features MaxK keeps of a node, or an attention of each
head, by short runs of a few numbers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import jax

from jaxgnn.train.loop.epochs import Best, Progress, copy, train
from jaxgnn.train.settings.config import HEAD_K_AUTO, TrainConfig
from jaxgnn.train.settings.options import ConfigError, option

if TYPE_CHECKING:
    from jaxgnn.train.problems.node_problem import NodeProblem

Option = Literal["k", "head_k"]

_MOST = 5  # candidates
_NOISE = 0.05  # what the least times of two equal runs may differ by


@dataclasses.dataclass(frozen=True)
class Trial:
    """A short run.

    Attributes:
        k: features that were kept; of the run for comparison the width.
        score: the best epoch's validation score.
        seconds: of an epoch, the least: what other processes add is not the run's.
        chosen: whether the run goes on with it.
    """

    k: int
    score: float
    seconds: float
    chosen: bool = False


def automatic(config: TrainConfig) -> Option | None:
    """The option that is to be chosen."""
    if config.activation == "maxk" and config.k == 0:
        return "k"
    return "head_k" if config.head_k == HEAD_K_AUTO else None


def candidates(width: int) -> list[int]:
    """Half the width, a quarter and so on: five numbers at most."""
    found = []
    while width > 1 and len(found) < _MOST:
        width //= 2
        found.append(width)
    return found


def choose(trials: list[Trial], tolerance: float) -> list[Trial]:
    """The same, the chosen one marked: the fastest whose score is within the tolerance of the best
    one's; of equally fast ones, within the times' noise, the smaller k."""
    best = max(trial.score for trial in trials)
    good = [trial for trial in trials if trial.score >= best - tolerance]
    limit = (1 + _NOISE) * min(trial.seconds for trial in good)
    smallest = min((trial for trial in good if trial.seconds <= limit), key=lambda trial: trial.k)
    return [dataclasses.replace(trial, chosen=trial is smallest) for trial in trials]


def try_all(config: TrainConfig, problem: NodeProblem, name: Option = "k") -> list[Trial]:
    """Trains each candidate for `config.k_epochs` epochs, from the same seed, and chooses.

    Raises:
        ConfigError: a width of 1, or no validation nodes.
        DivergenceError: a loss is not finite.
    """
    ks = candidates(_width(config, name))
    if not ks:
        of = f"--hidden of at least {2 * _heads(config, name)}"
        raise ConfigError(f"{option(name)}: auto expected {of}, got {config.hidden}")
    if not jax.device_get(problem.task.val).any():
        raise ConfigError(f"{option(name)}: auto expected validation nodes, got none")
    trials = []
    for k in ks:
        changed: dict[str, Any] = {name: k}
        # Of the last one, whose graph may have moved to the layout in which the model works.
        trial, problem = _try(dataclasses.replace(config, **changed), problem, k)
        trials.append(trial)
    return choose(trials, config.k_tolerance)


def try_without(config: TrainConfig, problem: NodeProblem, name: Option = "k") -> Trial:
    """The same run with ReLU, or with all features of a head: it shows what MaxK costs in score and
    saves in time."""
    changed: dict[str, Any] = {"head_k": 0}
    if name == "k":
        changed = {"activation": "relu", "k": config.hidden, "packed": False}
    return _try(dataclasses.replace(config, **changed), problem, _width(config, name))[0]


def _heads(config: TrainConfig, name: Option) -> int:
    return 1 if name == "k" else config.heads


def _width(config: TrainConfig, name: Option) -> int:
    """The features of which some are kept."""
    return config.hidden // _heads(config, name)


def _try(config: TrainConfig, problem: NodeProblem, k: int) -> tuple[Trial, NodeProblem]:
    """The trial of a configuration, and the problem as it was trained on."""
    own = problem.with_config(config)
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
    seconds = min(row["seconds"] for row in rows[1:] or rows)
    return Trial(k, progress.best_score, round(seconds, 6)), own
