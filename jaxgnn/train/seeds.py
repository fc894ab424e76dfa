"""Many seeds at once: the step under `jax.vmap`, one sparse product for all of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn.train.config import TrainConfig
from jaxgnn.train.loop import DivergenceError
from jaxgnn.train.run import choose_split, load_dataset
from jaxgnn.train.step import Program, TrainState, build
from jaxgnn.train.task import Task, masked_accuracy, masked_loss, score


class SeedsResult(NamedTuple):
    """What `train_seeds` returns.

    Attributes:
        seeds: the seeds.
        scores: each one's test score at its selected epoch.
        epochs: these epochs.
        seconds: time, compilation included.
    """

    seeds: Int[np.ndarray, " seeds"]
    scores: Float[np.ndarray, " seeds"]
    epochs: Int[np.ndarray, " seeds"]
    seconds: float


class _Selected(NamedTuple):
    """The best epoch so far: its validation score and loss, and its logits."""

    score: Array
    loss: Array
    epoch: Array
    logits: Array


def train_seeds(config: TrainConfig, seeds: Sequence[int]) -> SeedsResult:
    """Trains one model a seed, all in one program, on one split.

    Each is what `run` trains with that seed, up to the order of floating-point sums, except
    that all run to the last epoch: `patience` must be 0. Only accuracy is selected by.

    Raises:
        ConfigError, DataError: options or data that cannot be.
        ValueError: no seeds, a patience, or a dataset that is not scored by accuracy.
        DivergenceError: a loss is not finite.
    """
    if not seeds:
        raise ValueError("seeds: expected at least one")
    if config.check().patience:
        raise ValueError(f"patience: expected 0, got {config.patience}")
    start = time.perf_counter()
    dataset = load_dataset(config)
    split = choose_split(dataset, config.split)
    if dataset.metric != "accuracy":
        raise ValueError(f"dataset: expected one scored by accuracy, got {dataset.metric}")
    task = Task.from_dataset(dataset, split, config.dtype)
    built = [build(dataclasses.replace(config, seed=seed).check(), task) for seed in seeds]
    program = built[0][0]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[state for _, state in built])
    selected = _train_all(program, states, task, config.epochs)
    logits, epochs, finite = jax.device_get(
        (selected.logits, selected.epoch, jnp.isfinite(selected.loss))
    )
    if not finite.all():
        raise DivergenceError("a loss is not finite: try a lower learning rate")
    scores = [score(task.metric, dataset.labels, each, split.test) for each in logits]
    seconds = time.perf_counter() - start
    return SeedsResult(np.asarray(seeds), np.asarray(scores), epochs, seconds)


def _train_all(program: Program, states: TrainState, task: Task, epochs: int) -> _Selected:
    """The epochs as one `jax.lax.scan` of the batched step."""

    def epoch(state: TrainState, task: Task) -> tuple[TrainState, Array]:
        state, _ = program.step(state, task)
        return state, program.logits(state.params, state.rest, task)

    @functools.partial(jax.jit, donate_argnums=0)
    def loop(states: TrainState, task: Task) -> _Selected:
        def body(carry: tuple[TrainState, _Selected], number: Array):
            states, best = carry
            states, logits = jax.vmap(epoch, in_axes=(0, None))(states, task)
            accuracy = jax.vmap(lambda each: masked_accuracy(task, each, task.val))(logits)
            loss = jax.vmap(lambda each: masked_loss(task, each, task.val))(logits)
            equal = accuracy == best.score
            better = (accuracy > best.score) | (equal & ((loss < best.loss) | ~task.val.any()))
            return (states, _select(better, _Selected(accuracy, loss, number, logits), best)), None

        logits = jax.eval_shape(jax.vmap(epoch, in_axes=(0, None)), states, task)[1]
        count = logits.shape[0]
        wide = jnp.promote_types(logits.dtype, jnp.float32)
        first = _Selected(
            jnp.full(count, -jnp.inf, wide),
            jnp.full(count, jnp.inf, wide),
            jnp.zeros(count, jnp.int32),
            jnp.zeros(logits.shape, logits.dtype),
        )
        numbers = jnp.arange(1, epochs + 1, dtype=jnp.int32)
        return jax.lax.scan(body, (states, first), numbers)[0][1]

    return loop(states, task)


def _select(better: Array, new: _Selected, old: _Selected) -> _Selected:
    def choose(new: Any, old: Any) -> Array:
        mask = better.reshape(better.shape + (1,) * (old.ndim - 1))
        return jnp.where(mask, new, old)

    return jax.tree.map(choose, new, old)
