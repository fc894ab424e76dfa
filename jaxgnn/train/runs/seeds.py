"""Many seeds: at once, the step under `jax.vmap`, or one after the other in one program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._core.arguments import as_integer
from jaxgnn.data import NodeDataset, Split
from jaxgnn.train.loop.epochs import Best, Compiled, DivergenceError, Progress, copy, train
from jaxgnn.train.loop.stages import compile_program
from jaxgnn.train.problems.node_problem import check_dataset, choose_split, load_dataset, make_task
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps.build_program import build
from jaxgnn.train.steps.step import MiniBatches, Program, TrainState
from jaxgnn.train.steps.task import Task, masked_accuracy, masked_loss, score


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


class SeedRun(NamedTuple):
    """A model that `train_in_sequence` trained.

    Attributes:
        seed: its seed.
        split: the nodes that it was trained, selected and is tested on.
        task: what it was trained on.
        program: the model, taken apart.
        best: its selected parameters and other variables.
        progress: the epochs done, and the selected one.
        test_score: of the selected parameters, from all edges.
    """

    seed: int
    split: Split
    task: Task
    program: Program
    best: Best
    progress: Progress
    test_score: float


class _Selected(NamedTuple):
    """The best epoch so far: its validation score and loss, and its logits."""

    score: Array
    loss: Array
    epoch: Array
    logits: Array


def train_seeds(
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    splits: Sequence[int] | None = None,
    in_sequence: bool = False,
    dataset: NodeDataset | None = None,
) -> SeedsResult:
    """Trains one model a seed, all in one program: their aggregations are batched.

    Each is what `run` trains with that seed, up to the rounding of the batched GEMMs, except
    that all run to the last epoch: `patience` must be 0. Only accuracy is selected by. In
    sequence, each is exactly what `run` trains, with any patience and metric; the program is
    compiled once.

    Args:
        config: the options; `seed` is not used.
        seeds: the seeds.
        splits: the split of each seed; by default `config.split` for all.
        in_sequence: train one after the other.
        dataset: the data; by default those of `config.dataset`.

    Raises:
        TypeError: `config` is no `TrainConfig`, `dataset` no `NodeDataset`, or the seeds or splits
            are no integers.
        ConfigError, DataError: options or data that cannot be.
        ValueError: no seeds or not as many splits; at once, a patience, mini-batches, or a dataset
            that is not scored by accuracy.
        DivergenceError: a loss is not finite.
    """
    start = time.perf_counter()
    if in_sequence:
        runs = train_in_sequence(config, seeds, splits=splits, dataset=dataset)
        results = [(run.test_score, run.progress.best_epoch) for run in runs]
        scores, epochs = zip(*results, strict=True)
    else:
        dataset, seeds, chosen = _data(config, seeds, splits, dataset)
        scores, epochs = _at_once(config, dataset, seeds, chosen)
    seconds = time.perf_counter() - start
    return SeedsResult(np.asarray(seeds), np.asarray(scores), np.asarray(epochs), seconds)


def train_in_sequence(
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    splits: Sequence[int] | None = None,
    dataset: NodeDataset | None = None,
) -> Iterator[SeedRun]:
    """Trains one model a seed, one after the other, and yields each: what `run` trains, in memory.

    The step and the evaluation are compiled once, if all splits have as many training nodes or
    there are no mini-batches.

    Args:
        config, seeds, splits, dataset: as for `train_seeds`.

    Raises:
        TypeError, ConfigError, DataError, ValueError, DivergenceError: as `train_seeds`.
    """
    dataset, seeds, chosen = _data(config, seeds, splits, dataset)
    first = make_task(config, dataset, chosen[0], training=True)
    compiled: Compiled | None = None
    batches: MiniBatches | None = None
    for seed, split in zip(seeds, chosen, strict=True):
        task = dataclasses.replace(
            first, train=jnp.asarray(split.train), val=jnp.asarray(split.val)
        )
        program, state = build(dataclasses.replace(config, seed=seed).check(), task)
        if compiled is None or program.batches != batches:
            compiled, batches = compile_program(config, program, state, task), program.batches
        start = Best(copy(state.params), copy(state.rest))
        _, best, progress = train(
            compiled,
            task,
            state,
            start,
            Progress(),
            epochs=config.epochs,
            patience=config.patience,
        )
        logits = np.asarray(compiled.evaluate(best.params, best.rest, task)[0])
        test_score = score(task.metric, dataset.labels, logits, split.test)
        yield SeedRun(seed, split, task, program, best, progress, test_score)


def _data(
    config: TrainConfig,
    seeds: Sequence[int],
    splits: Sequence[int] | None,
    dataset: NodeDataset | None,
) -> tuple[NodeDataset, list[int], list[Split]]:
    """The data, the seeds, and the split of each."""
    check_config(config)
    seeds = _integers(seeds, "seeds")
    splits = [config.split] * len(seeds) if splits is None else _integers(splits, "splits")
    if not seeds or len(splits) != len(seeds):
        raise ValueError(
            f"seeds, splits: expected at least one, and as many, got {len(seeds)}, {len(splits)}"
        )
    config.check()
    if config.task != "node":
        raise ConfigError(f"--task: expected node for many seeds, got {config.task}")
    if config.devices != "1":
        raise ConfigError(f"--devices: expected 1 for many seeds, got {config.devices}")
    if dataset is None:
        dataset = load_dataset(config)
    check_dataset(dataset)
    return dataset, seeds, [choose_split(dataset, index) for index in splits]


def _integers(values: Any, name: str) -> list[int]:
    numbers = [as_integer(value) for value in values] if np.iterable(values) else [None]
    integers = [number for number in numbers if number is not None]
    if len(integers) < len(numbers):
        raise TypeError(f"{name}: expected a sequence of integers, got {values!r}")
    return integers


def _at_once(
    config: TrainConfig, dataset: NodeDataset, seeds: Sequence[int], splits: Sequence[Split]
) -> tuple[Sequence[float], Int[np.ndarray, " seeds"]]:
    """Test scores and selected epochs of models trained in one batch."""
    if config.patience:
        raise ValueError(f"patience: expected 0, got {config.patience}")
    if config.num_neighbors:
        raise ValueError(
            f"num_neighbors: expected none without in_sequence=True, got {config.num_neighbors!r}"
        )
    if config.anneal_stages:
        raise ValueError("anneal_stages: expected False without in_sequence=True, got True")
    if dataset.metric != "accuracy":
        raise ValueError(f"dataset: expected one scored by accuracy, got {dataset.metric}")
    task = make_task(config, dataset, splits[0], training=True)
    task = dataclasses.replace(
        task,
        train=jnp.asarray(np.stack([split.train for split in splits])),
        val=jnp.asarray(np.stack([split.val for split in splits])),
    )
    built = [build(dataclasses.replace(config, seed=seed).check(), task) for seed in seeds]
    program = built[0][0]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[state for _, state in built])
    selected = jax.device_get(_train_all(program, states, task, config.epochs))
    if not np.isfinite(selected.loss).all():
        raise DivergenceError("a validation loss is not finite: try a lower learning rate")
    scores = [
        score(task.metric, dataset.labels, logits, split.test)
        for logits, split in zip(selected.logits, splits, strict=True)
    ]
    return scores, selected.epoch


def _train_all(program: Program, states: TrainState, task: Task, epochs: int) -> _Selected:
    """The epochs as one `jax.lax.scan` of the batched step.

    Args:
        program: the step.
        states: with a leading axis of the seeds.
        task: its masks with a leading axis of the seeds.
        epochs: how many.
    """

    def epoch(state: TrainState, train: Array, val: Array, task: Task):
        task = dataclasses.replace(task, train=train, val=val)
        state, _ = program.step(state, task)
        logits = program.logits(state.params, state.rest, task)
        values = masked_accuracy(task, logits, val), masked_loss(task, logits, val)
        return state, values, val.any(), logits

    def epochs_of_all(states: TrainState, task: Task) -> _Selected:
        batched = jax.vmap(epoch, in_axes=(0, 0, 0, None))

        def body(carry: tuple[TrainState, _Selected], number: Array):
            states, best = carry
            states, (accuracy, loss), selectable, logits = batched(
                states, task.train, task.val, task
            )
            better = (accuracy > best.score) | ((accuracy == best.score) & (loss < best.loss))
            numbers = jnp.full(accuracy.shape, number)
            new = _Selected(accuracy, loss, numbers, logits)
            return (states, _select(better | ~selectable, new, best)), None

        _, (accuracy, loss), _, logits = jax.eval_shape(batched, states, task.train, task.val, task)
        none = _Selected(
            jnp.full_like(accuracy, -jnp.inf),
            jnp.full_like(loss, jnp.inf),
            jnp.zeros(accuracy.shape, jnp.int32),
            jnp.zeros_like(logits),
        )
        numbers = jnp.arange(1, epochs + 1, dtype=jnp.int32)
        return jax.lax.scan(body, (states, none), numbers)[0][1]

    return jax.jit(epochs_of_all)(states, task)


def _select(better: Array, new: _Selected, old: _Selected) -> _Selected:
    def choose(new: Any, old: Any) -> Array:
        mask = better.reshape(better.shape + (1,) * (old.ndim - 1))
        return jnp.where(mask, new, old)

    return jax.tree.map(choose, new, old)
