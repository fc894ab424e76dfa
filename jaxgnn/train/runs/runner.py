"""`run`: a whole training run, from the options to the files in its directory."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from jaxgnn._core import checks
from jaxgnn.data import GraphSet, NodeDataset
from jaxgnn.train.loop.epochs import Best, Compiled, Progress, copy, train
from jaxgnn.train.loop.profile import Profile
from jaxgnn.train.loop.resume import Position, restore_newest, restore_within
from jaxgnn.train.problems.links import LinkData
from jaxgnn.train.problems.node_problem import NodeProblem
from jaxgnn.train.problems.problem import make_problem
from jaxgnn.train.process import machine, processes
from jaxgnn.train.process.checkpoint import Checkpoints
from jaxgnn.train.process.interrupt import PostponedInterrupt
from jaxgnn.train.process.recovery import Recovery, describe
from jaxgnn.train.process.stall import Watchdog, before_the_run, stall_seconds
from jaxgnn.train.reports.display import (
    make_display,
    median_seconds,
    print_head,
    print_line,
    summary_table,
    trials_table,
)
from jaxgnn.train.reports.records import (
    KeptRows,
    MetricsLog,
    check_data,
    check_new_directory,
    check_path,
    check_vacant,
    create_run_directory,
    lock,
    read_config,
    write_json,
    write_metrics,
)
from jaxgnn.train.runs import choose_k
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.settings.saved_settings import check_same_settings
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.optimizer import steps_done
from jaxgnn.train.steps.step import LossSums, TrainState
from jaxgnn.train.steps.task import Task


def run(
    config: TrainConfig,
    console: Console | None = None,
    *,
    dataset: NodeDataset | LinkData | GraphSet | None = None,
    recovery: Recovery | None = None,
    callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
) -> dict[str, Any]:
    """Trains as configured, or continues a run, and writes its files.

    Args:
        config: the options; with `resume` set, those of that run, or more epochs.
        console: where to show progress and the results; nowhere if None.
        dataset: the data; by default those of `config.dataset`. With `--task link` a `LinkData`
            is a graph with or without features, with `--task graph` they are a `GraphSet`.
        recovery: is told what has been written, and what the run goes on without.
        callbacks: each is called with the metrics of each epoch, as they are in `metrics.jsonl`,
            after the epoch; what it raises ends the run.

    Returns:
        The content of `summary.json`, with `run_directory`.

    Raises:
        TypeError: `config` is no `TrainConfig`, `dataset` none of these, `console` no `Console` of
            rich, or a callback no function.
        ConfigError, DataError, CheckpointError: options, data or files that cannot be.
        DivergenceError: the loss is not finite.
        RunError: a disk that is full or read-only, or memory that ran out.
        KeyboardInterrupt: Ctrl-C, after the checkpoint of the epoch that it waited for.
    """
    check_config(config)
    if console is not None and not isinstance(console, Console):
        raise TypeError(f"console: expected a rich Console or None, got {type(console).__name__}")
    for i, callback in enumerate(callbacks):
        checks.function(callback, f"callbacks[{i}]")
    recovery = Recovery() if recovery is None else recovery
    if config.distributed and not jax.distributed.is_initialized():
        raise ConfigError("--distributed: expected jax.distributed.initialize() before, got none")
    if not processes.is_first(config):
        console, recovery.warn = None, lambda line: None
    recovery.options = processes.resume_options(config)
    with recovery.errors(), before_the_run(config.check(), recovery.advice) as loading:
        return _run(config, console, dataset, recovery, callbacks, loading)


def _run(
    config: TrainConfig,
    console: Console | None,
    dataset: NodeDataset | LinkData | GraphSet | None,
    recovery: Recovery,
    callbacks: Sequence[Callable[[dict[str, Any]], object]],
    loading: Watchdog,
) -> dict[str, Any]:
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    if config.distributed:
        processes.check_options(config)
    check_wide(config)
    if config.resume is not None:
        check_path(Path(config.resume), "--resume")
    elif not config.distributed:  # of several processes the first one makes it
        check_new_directory(config)
    problem = make_problem(config, dataset, recovery)
    loading.feed("after loading the data")
    chosen: dict[str, Any] = {}
    name = choose_k.automatic(config)
    if name is not None and isinstance(problem, NodeProblem):
        k, chosen = _choose_k(config, problem, name)
        if console is not None:
            console.print(trials_table(problem.task.metric, chosen))
        config = dataclasses.replace(config, **{name: k})  # type: ignore[arg-type]
        problem = problem.with_config(config)
    program, state = problem.build()
    loading.feed("after tracing the model")
    record = {
        "settings": config.settings(),
        **({"chosen_k": chosen} if chosen else {}),
        "data": {"name": problem.name, "fingerprint": problem.fingerprint()},
        **problem.record(),
        "environment": machine.environment(),
    }
    task: Any = problem.task
    profile = Profile(config.profile, config.run_directory)
    with _shared_directory(config, record, recovery) as directory:
        loading.stop()  # compiling takes as long as it takes: those that wait watch
        if console is not None:
            print_head(console, config, problem.describe(), directory)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        compiled = problem.compile(program, state)
        with profile:
            told = (*callbacks, lambda row: profile.epoch())
            best, progress, rows = _train(
                config, console, directory, compiled, task, state, recovery, told
            )
        with Watchdog(stall_seconds(config), directory, recovery.advice) as scoring:
            scoring.feed("after the last epoch")
            results = problem.results(program, compiled.evaluate, best.params, best.rest)
        counts = results.pop("confusion", None)
        summary = {
            "dataset": problem.name,
            "task": config.task,
            "model": config.model,
            "activation": describe_activation(config),
            "metric": task.metric,
            **results,
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            "stopped": progress.stopped,
            "parameters": parameters,
            "epoch_seconds": median_seconds(rows),
            "compile_seconds": round(compiled.seconds, 3),
            "kernels": describe_kernels(config, compiled.kernels),
            "device": machine.describe_device(),
            **sharded.summary(getattr(task, "graph", None)),
            **machine.peak_memory(),
        }
        if processes.is_first(config):
            write_metrics(directory / "metrics.csv", rows)
            write_json(directory / "summary.json", summary)
            _plot(directory / "curves.png", rows, summary, counts, recovery)
    if console is not None:
        console.print(summary_table(summary))
        print_line(console, f"run directory: {directory}")
    return summary | {"run_directory": str(directory)}


def _choose_k(
    config: TrainConfig, problem: NodeProblem, name: choose_k.Option
) -> tuple[int, dict[str, Any]]:
    """The number that short trials choose for an option, and the record of these."""
    trials = choose_k.try_all(config, problem, name)
    without = choose_k.try_without(config, problem, name)
    (k,) = (trial.k for trial in trials if trial.chosen)
    return k, {
        "option": name,
        "epochs": min(config.k_epochs, config.epochs),
        "tolerance": config.k_tolerance,
        "trials": [dataclasses.asdict(trial) for trial in trials],
        "relu" if name == "k" else "all": {"score": without.score, "seconds": without.seconds},
    }


@contextlib.contextmanager
def _shared_directory(
    config: TrainConfig, record: dict[str, Any], recovery: Recovery
) -> Iterator[Path]:
    """The run's directory; of several processes, that of process 0."""
    with contextlib.ExitStack() as stack:

        def own() -> str:
            directory = stack.enter_context(_run_directory(config, record, recovery))
            return str(directory if not config.distributed else directory.absolute())

        directory = Path(processes.by_first(own) if config.distributed else own())
        if config.distributed:
            processes.check_shared(directory, record["data"])
        recovery.directory = directory
        yield directory


@contextlib.contextmanager
def _run_directory(
    config: TrainConfig, record: dict[str, Any], recovery: Recovery
) -> Iterator[Path]:
    """The run's directory, locked before anything is read from it or written to it."""
    if config.resume is None:
        directory = create_run_directory(config)
        with lock(directory):
            check_vacant(directory)
            write_json(directory / "config.json", record)
            recovery.directory = directory
            yield directory
        return
    directory = Path(config.resume)
    read_config(directory)  # before a lock is made in what is no run
    with lock(directory):
        saved = read_config(directory)
        check_same_settings(saved["settings"], config)
        check_data(directory, saved.get("data"), record["data"])
        recovery.directory = directory
        yield directory


def _train(
    config: TrainConfig,
    console: Console | None,
    directory: Path,
    compiled: Compiled,
    task: Task,
    state: TrainState,
    recovery: Recovery,
    callbacks: Sequence[Callable[[dict[str, Any]], object]],
) -> tuple[Best, Progress, list[dict[str, Any]]]:
    """Trains from the start or from the last checkpoint; also the metrics of all epochs."""
    position = Position((state, Best(copy(state.params), copy(state.rest))))
    first = processes.is_first(config)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(directory / "checkpoints"))
        metrics, unfinished = directory / "metrics.jsonl", directory / "unfinished"
        if config.resume is not None:
            position = restore_newest(checkpoints, metrics, position.state, config, recovery)
            if config.num_neighbors or config.task == "graph":
                position = restore_within(
                    unfinished, metrics, position, compiled.no_loss(task), config, recovery
                )
            if first:
                _extend(directory, config)
            if console is not None:
                where = "after" if position.sums is None else "within the epoch after"
                print_line(console, f"continuing {where} epoch {position.progress.epoch}")
        (state, best), progress = position.state, position.progress
        if progress.stopped and progress.epoch < config.epochs and config.resume is not None:
            recovery.warn(
                f"patience ran out after epoch {progress.epoch}: --patience 0 goes on to "
                f"--epochs {config.epochs}"
            )
        if first:
            log = stack.enter_context(MetricsLog(metrics, position.rows))
        else:
            log = KeptRows(position.rows)
        options = {"epochs": config.epochs, "metric": task.metric, "done": progress.epoch}
        display = stack.enter_context(make_display(console, plain=config.plain, **options))
        interrupt = stack.enter_context(PostponedInterrupt())
        watchdog = stack.enter_context(Watchdog(stall_seconds(config), directory, recovery.advice))

        def on_epoch(row: dict[str, Any]) -> None:
            interrupt.epoch = row["epoch"]
            watchdog.feed(f"after epoch {row['epoch']}")
            log.append(row)
            display.epoch(row, progress.best_epoch)
            for callback in callbacks:
                callback(dict(row))
            watchdog.feed(f"after epoch {row['epoch']}")

        def interrupted() -> bool:
            if config.distributed:  # all end at one epoch
                interrupt.requested = processes.any_process(interrupt.requested)
            return interrupt.requested

        def checkpoint(state: TrainState, best: Best, progress: Progress) -> None:
            log.sync()
            checkpoints.save(progress.epoch, (state, best), progress.to_json())
            recovery.epoch, recovery.within = progress.epoch, None
            watchdog.feed(f"after the checkpoint of epoch {progress.epoch}")

        def checkpoint_within(
            state: TrainState, best: Best, progress: Progress, sums: LossSums
        ) -> None:
            log.sync()
            with Checkpoints(unfinished) as within:
                steps = int(steps_done(state.optimizer))
                within.save(steps, (state, best, sums), progress.to_json())
            recovery.within = progress.epoch + 1

        state, best, progress = train(
            compiled,
            task,
            state,
            best,
            progress,
            epochs=config.epochs,
            patience=config.patience,
            on_epoch=on_epoch,
            checkpoint=checkpoint,
            checkpoint_interval=config.checkpoint_interval,
            interrupted=interrupted,
            agree=processes.of_first if config.distributed else bool,
            sums=position.sums,
            checkpoint_within=checkpoint_within,
            checkpoint_steps=config.checkpoint_steps,
        )
    return best, progress, log.rows


def _extend(directory: Path, config: TrainConfig) -> None:
    """Records that a run is made longer, so that it is continued to its new end."""
    saved = read_config(directory)
    if saved["settings"] != config.settings():
        write_json(directory / "config.json", saved | {"settings": config.settings()})


def _plot(
    path: Path,
    rows: list[dict[str, Any]],
    summary: dict[str, Any],
    counts: np.ndarray | None,
    recovery: Recovery,
) -> None:
    """Draws the run; without a disk that takes the plot, goes on without it."""
    try:
        # Matplotlib writes a cache of fonts when it is imported.
        from jaxgnn.train.reports.plot import save_plot

        save_plot(path, rows, summary, counts)
    except OSError as error:
        recovery.warn(f"no plot: {describe(error)}; all else is written")


def check_wide(config: TrainConfig) -> TrainConfig:
    """Returns it.

    Raises:
        ConfigError: it computes in float64, and JAX does not.
    """
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ConfigError("--dtype: float64 needs jax.config.update('jax_enable_x64', True)")
    return config


def describe_kernels(config: TrainConfig, calls: dict[str, int]) -> str:
    """Which kernels the configured model ran."""
    maxk = config.activation == "maxk" and _has_hidden_layer(config)
    return machine.describe_kernels(calls, maxk=maxk)


def describe_activation(config: TrainConfig) -> str:
    """The nonlinearity, for people."""
    if config.activation != "maxk":
        return config.activation
    if not _has_hidden_layer(config):
        return "maxk: no hidden layer"
    text = f"maxk: the {config.k} largest of {config.hidden}"
    if config.anneal_from:
        halved = "halved " * config.anneal_stages
        text += f", {config.anneal_from} at first, {halved}within {config.anneal_epochs} epochs"
    return text + ", packed" * config.packed


def _has_hidden_layer(config: TrainConfig) -> bool:
    """Whether the activation follows a layer: of one layer of nodes where another comes after it.
    A readout takes its outputs, and `AGNN` and `SAGEEmbedding` end with a linear layer."""
    one = config.layers == 1 and config.jumping == "none" and not config.input_layer
    return not one or config.task == "graph" or config.model in ("agnn", "sage_embedding")
