"""`run`: a whole training run, from the options to the files in its directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from rich.console import Console

from jaxgnn._core import ffi
from jaxgnn.data import NodeDataset, Split, load, normalize_features
from jaxgnn.graph import Graph
from jaxgnn.train import machine
from jaxgnn.train.checkpoint import Checkpoints
from jaxgnn.train.config import ConfigError, TrainConfig
from jaxgnn.train.display import make_display, median_seconds, summary_table
from jaxgnn.train.loop import Best, Compiled, Progress, copy, train
from jaxgnn.train.plot import save_plot
from jaxgnn.train.records import (
    MetricsLog,
    create_run_directory,
    fingerprint,
    lock,
    read_config,
    write_json,
)
from jaxgnn.train.step import TrainState, build
from jaxgnn.train.task import Task, score


def run(
    config: TrainConfig, console: Console | None = None, *, dataset: NodeDataset | None = None
) -> dict[str, Any]:
    """Trains as configured, or continues a run, and writes its files.

    Args:
        config: the options; with `resume` set, those of that run (see `resume_config`).
        console: where to show progress and the results; nowhere if None.
        dataset: the data; by default those of `config.dataset`.

    Returns:
        The content of `summary.json`, with `run_directory`.

    Raises:
        ConfigError, DataError, CheckpointError: options, data or files that cannot be.
        DivergenceError: the loss is not finite.
    """
    config.check()
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ConfigError("--dtype: float64 needs jax.config.update('jax_enable_x64', True)")
    if dataset is None:
        dataset = load_dataset(config)
    split = choose_split(dataset, config.split)
    task = make_task(config, dataset, split)
    program, state = build(config, task)
    record = {
        "settings": config.settings(),
        "data": {"name": dataset.name, "fingerprint": fingerprint(dataset, split)},
    }
    if config.resume is None:
        directory = create_run_directory(config)
        write_json(directory / "config.json", record | {"environment": machine.environment()})
    else:
        directory = Path(config.resume)
        _check_data(directory, record)
    with lock(directory):
        if console is not None:
            _print_head(console, config, dataset, split, directory)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        compiled = Compiled(program, state, task)
        best, progress, rows = _train(config, console, directory, compiled, task, state)
        logits = np.asarray(jax.device_get(compiled.evaluate(best.params, best.rest, task)[0]))
        summary = {
            "dataset": dataset.name,
            "model": config.model,
            "activation": describe_activation(config),
            "metric": task.metric,
            "test_score": _score_or_none(dataset, logits, split.test),
            "val_score": _score_or_none(dataset, logits, split.val),
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            "stopped": progress.stopped,
            "parameters": parameters,
            "epoch_seconds": median_seconds(rows),
            "compile_seconds": round(compiled.seconds, 3),
            "kernels": describe_kernels(config, compiled.kernels),
            "device": machine.describe_device(),
            **machine.peak_memory(),
        }
        write_json(directory / "summary.json", summary)
        counts = confusion(dataset, logits, split.test)
        save_plot(directory / "curves.png", rows, summary, counts)
    if console is not None:
        console.print(summary_table(summary))
        console.print(f"run directory: {directory}", soft_wrap=True, highlight=False)
    return summary | {"run_directory": str(directory)}


def _train(
    config: TrainConfig,
    console: Console | None,
    directory: Path,
    compiled: Compiled,
    task: Task,
    state: TrainState,
) -> tuple[Best, Progress, list[dict[str, Any]]]:
    """Trains from the start or from the last checkpoint; also the metrics of all epochs."""
    best, progress = Best(copy(state.params), copy(state.rest)), Progress()
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(directory / "checkpoints"))
        if config.resume is not None:
            epoch = checkpoints.latest()
            if epoch is not None:
                (state, best), values = checkpoints.restore(epoch, (state, best))
                progress = Progress.from_json(values)
            if console is not None:
                console.print(f"continuing after epoch {progress.epoch}", highlight=False)
        log = stack.enter_context(MetricsLog(directory / "metrics.jsonl", progress.epoch))
        options = {"epochs": config.epochs, "metric": task.metric, "done": progress.epoch}
        display = stack.enter_context(make_display(console, plain=config.plain, **options))

        interrupt = stack.enter_context(_Interrupt(directory))

        def on_epoch(row: dict[str, Any]) -> None:
            interrupt.check(row["epoch"])
            log.append(row)
            display.epoch(row, progress.best_epoch)

        def checkpoint(state: TrainState, best: Best, progress: Progress) -> None:
            checkpoints.save(progress.epoch, (state, best), progress.to_json())

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
        )
    return best, progress, log.rows


class _Interrupt:
    """Puts Ctrl-C off to the end of the epoch, so that it cannot break into a checkpoint.

    A second one is not put off.
    """

    def __init__(self, directory: Path):
        self._directory, self._requested = directory, False

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._handler = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._handler)

    def _request(self, *_: object) -> None:
        self._requested = True
        signal.signal(signal.SIGINT, self._handler)

    def check(self, epoch: int) -> None:
        """Raises KeyboardInterrupt, saying how to go on, if there was one."""
        if self._requested:
            raise KeyboardInterrupt(
                f"interrupted in epoch {epoch}: continue from the last checkpoint with "
                f"jaxgnn train --resume {self._directory}"
            )


def load_dataset(config: TrainConfig) -> NodeDataset:
    """The configured dataset, its features normalized if asked for, or by custom (Planetoid)."""
    dataset = load(config.dataset)
    planetoid = "public" in dataset.splits
    if config.features == "normalized" or (config.features == "auto" and planetoid):
        dataset = dataclasses.replace(dataset, features=normalize_features(dataset.features))
    return dataset


def choose_split(dataset: NodeDataset, index: int) -> Split:
    """The split of that number.

    Raises:
        ConfigError: there are fewer.
    """
    try:
        return dataset.split(index)
    except IndexError:
        count = len(dataset.splits)
        raise ConfigError(
            f"--split: {dataset.name} has {count} split{'s' * (count > 1)}, numbered from 0, "
            f"got {index}"
        ) from None


def make_task(config: TrainConfig, dataset: NodeDataset, split: Split) -> Task:
    """What the configured model is trained on."""
    graph = prepared(dataset.graph, config.activation)
    return Task.from_dataset(dataset, split, config.dtype, graph=graph)


def prepared(graph: Graph, activation: str) -> Graph:
    """The graph with what makes a GPU's aggregations fastest: windows for MaxK's, an order of the
    rows for others. Neither moves a node or an edge."""
    if jax.default_backend() != "gpu" or ffi.cpu_module is None:
        return graph
    return graph.with_windows() if activation == "maxk" else graph.with_row_schedule()


def describe_kernels(config: TrainConfig, calls: dict[str, int]) -> str:
    """Which kernels the configured model ran."""
    hidden = config.layers > 1 or config.input_layer or config.jumping != "none"
    return machine.describe_kernels(calls, maxk=config.activation == "maxk" and hidden)


def describe_activation(config: TrainConfig) -> str:
    """The nonlinearity, for people."""
    if config.activation != "maxk":
        return config.activation
    text = f"maxk: the {config.k} largest of {config.hidden}"
    if config.anneal_from:
        text += f", {config.anneal_from} at first, within {config.anneal_epochs} epochs"
    return text + ", packed" * config.packed


def confusion(dataset: NodeDataset, logits: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """Counts by true and predicted class, where a node has one class."""
    if dataset.is_multilabel:
        return None
    from sklearn.metrics import confusion_matrix

    labels = list(range(dataset.num_classes))
    if not mask.any():
        return None
    return confusion_matrix(dataset.labels[mask], logits[mask].argmax(axis=-1), labels=labels)


def _score_or_none(dataset: NodeDataset, logits: np.ndarray, mask: np.ndarray) -> float | None:
    if not mask.any():
        return None
    value = score(dataset.metric, dataset.labels, logits, mask)
    return value if np.isfinite(value) else None


def _check_data(directory: Path, record: dict[str, Any]) -> None:
    saved = read_config(directory).get("data")
    if saved != record["data"]:
        raise ConfigError(
            f"--resume: the data are not those of {directory}: expected {json.dumps(saved)}, "
            f"got {json.dumps(record['data'])}"
        )


def _print_head(
    console: Console, config: TrainConfig, dataset: NodeDataset, split: Split, directory: Path
) -> None:
    train_nodes, val_nodes, test_nodes = split.sizes
    console.print(
        f"{dataset.name}: {dataset.num_nodes:,} nodes, {dataset.graph.num_edges:,} edges, "
        f"{dataset.num_features:,} features, {dataset.num_classes} classes; "
        f"{train_nodes:,} training, {val_nodes:,} validation, {test_nodes:,} test nodes",
        highlight=False,
        soft_wrap=True,
    )
    settings = {k: v for k, v in config.settings().items() if k not in ("dataset", "model")}
    listed = ", ".join(f"{name} {value}" for name, value in settings.items())
    console.print(f"{config.model}: {listed}", highlight=False, soft_wrap=True)
    console.print(f"writing to {directory}", highlight=False, soft_wrap=True)
