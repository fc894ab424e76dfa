"""`run`: a whole training run, from the options to the files in its directory."""

from __future__ import annotations

import contextlib
import copy as copy_module
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from jaxgnn._core import ffi
from jaxgnn._core.checksum import checksum
from jaxgnn._core.text import printable
from jaxgnn.data import (
    GraphSet,
    NodeDataset,
    PlainGraph,
    Split,
    load,
    load_nodes,
    normalize_features,
)
from jaxgnn.distributed import Partition
from jaxgnn.graph import Graph, transform
from jaxgnn.graph._windows import MAX_WIDTH
from jaxgnn.train import choose_k, machine, processes, sharded
from jaxgnn.train.checkpoint import Checkpoints
from jaxgnn.train.config import ConfigError, TrainConfig, check_same_settings
from jaxgnn.train.description import DatasetDescription, normalizes_features
from jaxgnn.train.display import (
    make_display,
    median_seconds,
    print_head,
    print_line,
    summary_table,
    trials_table,
)
from jaxgnn.train.graph_problem import GraphProblem
from jaxgnn.train.interrupt import PostponedInterrupt
from jaxgnn.train.links import LinkData, LinkProblem
from jaxgnn.train.loop import Best, Compiled, Progress, copy, train
from jaxgnn.train.own_parts import OwnParts, load_own_parts
from jaxgnn.train.profile import Profile
from jaxgnn.train.records import (
    KeptRows,
    MetricsLog,
    check_data,
    check_path,
    check_vacant,
    create_run_directory,
    fingerprint,
    lock,
    read_config,
    write_json,
    write_metrics,
)
from jaxgnn.train.recovery import Recovery, describe
from jaxgnn.train.resume import Position, restore_newest, restore_within
from jaxgnn.train.stall import Watchdog
from jaxgnn.train.step import LossSums, Program, TrainState, build, steps_done
from jaxgnn.train.task import Task, score


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
        ConfigError, DataError, CheckpointError: options, data or files that cannot be.
        DivergenceError: the loss is not finite.
        RunError: a disk that is full or read-only, or memory that ran out.
        KeyboardInterrupt: Ctrl-C, after the checkpoint of the epoch that it waited for.
    """
    recovery = Recovery() if recovery is None else recovery
    if config.distributed and not jax.distributed.is_initialized():
        raise ConfigError("--distributed: expected jax.distributed.initialize() before, got none")
    if not processes.is_first(config):
        console, recovery.warn = None, lambda line: None
    recovery.options = processes.resume_options(config)
    with recovery.errors():
        return _run(config.check(), console, dataset, recovery, callbacks)


class NodeProblem:
    """Nodes to classify: what a run trains on and is scored by.

    Attributes:
        name: of the data.
        task: what training sees.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: NodeDataset,
        *,
        normalized: bool = False,
        partition: Partition | None = None,
        own: OwnParts | None = None,
    ):
        self._config, self._dataset, self.name = config, dataset, dataset.name
        self._normalized, self._own = normalized, own
        self._split = choose_split(dataset, config.split)
        self.task = make_task(config, dataset, self._split, partition, own)

    def with_config(self, config: TrainConfig) -> NodeProblem:
        """The same data and graph for another model or number of epochs."""
        other = copy_module.copy(self)
        other._config = config
        return other

    def fingerprint(self) -> str:
        """Of all that a run reads."""
        if self._own is None:
            return fingerprint(self._dataset, self._split)
        masks = self._split.train, self._split.val, self._split.test
        return checksum(*masks, after=self._own.checksum)

    @property
    def _num_edges(self) -> int:
        own = self._own
        return self._dataset.graph.num_edges if own is None else own.graph.num_graph_edges

    def record(self) -> dict[str, Any]:
        """What `config.json` says of the data, for a model without them."""
        description = DatasetDescription.of(self._dataset, normalized=self._normalized)
        description = dataclasses.replace(
            description, num_edges=self._num_edges, num_features=self.task.features.shape[1]
        )
        return {"dataset": description.to_json()}

    def describe(self) -> str:
        """What is trained on, in a line."""
        dataset = self._dataset
        train_nodes, val_nodes, test_nodes = self._split.sizes
        return (
            f"{dataset.name}: {dataset.num_nodes:,} nodes, {self._num_edges:,} edges, "
            f"{self.task.features.shape[1]:,} features, {dataset.num_classes} classes; "
            f"{train_nodes:,} training, {val_nodes:,} validation, {test_nodes:,} test nodes"
            f"{sharded.describe(self.task.graph)}"
        )

    def build(self) -> tuple[Program, TrainState]:
        """The program, and the state it starts from."""
        program, state = build(self._config, self.task)
        state = sharded.replicate(state, self.task.graph)
        if self._config.over_devices:  # a model that is refused leaves no run directory
            with sharded.tracing(self.task.graph):
                jax.eval_shape(program.logits, state.params, state.rest, self.task)
        return program, state

    def compile(self, program: Program, state: TrainState) -> Compiled:
        """The step and the evaluation."""
        return Compiled(program, state, self.task)

    def results(
        self, program: Program, evaluate: Callable[..., Any], params: Any, rest: Any
    ) -> dict[str, Any]:
        """The scores of validation and test, and the confusion of the test nodes."""
        dataset, split = self._dataset, self._split
        logits = sharded.in_node_order(evaluate(params, rest, self.task)[0], self.task.graph)
        test = score_or_none(dataset, logits, split.test)
        scores = {} if test is None else {dataset.metric: test}
        if scores and dataset.metric == "micro_f1":
            scores["macro_f1"] = score("macro_f1", dataset.labels, logits, split.test)
        return {
            "test_score": test,
            "val_score": score_or_none(dataset, logits, split.val),
            "test_scores": scores,
            "confusion": confusion(dataset, logits, split),
        }


def make_problem(
    config: TrainConfig, dataset: NodeDataset | LinkData | GraphSet | None, recovery: Recovery
) -> NodeProblem | LinkProblem | GraphProblem:
    """What `--task` asks for, of the data given or of those of `config.dataset`.

    Raises:
        ConfigError, DataError: options or data that cannot be.
    """
    if config.task == "graph":
        return GraphProblem(config, load_graphs(config) if dataset is None else _as_graphs(dataset))
    if isinstance(dataset, GraphSet):
        raise ConfigError(f"--task: expected graph with a set of graphs, got {config.task}")
    if config.task == "link":
        data = load_link_data(config) if dataset is None else _as_link_data(config, dataset)
        return LinkProblem(config, data, prepared)
    normalized, partition = False, None  # data that the caller gives are taken as they are
    of_folder = load_own_parts(config) if dataset is None else None
    own = None
    if of_folder is not None:
        dataset, own = of_folder
    elif dataset is None:
        dataset, partition = load_dataset(config), sharded.partition_of(config)
        normalized = normalizes_features(config, dataset)
    if isinstance(dataset, LinkData):
        raise ConfigError("--task: expected link with a graph without labels, got node")
    _warn_without_positions(config, dataset, recovery)
    return NodeProblem(config, dataset, normalized=normalized, partition=partition, own=own)


def load_graphs(config: TrainConfig) -> GraphSet:
    """The configured set of graphs.

    Raises:
        ConfigError: the data are one graph.
        DataError: they cannot be read.
    """
    return _as_graphs(load(config.dataset))


def _as_graphs(data: Any) -> GraphSet:
    if not isinstance(data, GraphSet):
        raise ConfigError(f"--task: graph expected a set of graphs, got {printable(data)}")
    return data


def load_link_data(config: TrainConfig) -> LinkData:
    """The configured graph, with the features that its data have.

    Raises:
        ConfigError: the data are many graphs.
        DataError: they cannot be read.
    """
    loaded = load(config.dataset)
    if isinstance(loaded, GraphSet):
        raise ConfigError(f"--task: link expected one graph, got {printable(loaded)}")
    nodes = isinstance(loaded, NodeDataset)
    by_custom = normalizes_features(config, loaded) if nodes else config.features == "normalized"
    return link_data_of(config, loaded, normalized=by_custom and loaded.features is not None)


def link_data_of(
    config: TrainConfig, loaded: NodeDataset | PlainGraph, *, normalized: bool
) -> LinkData:
    """What was loaded as a run's settings have it: both directions, features scaled or not."""
    features = loaded.features
    if normalized and features is not None:
        features = normalize_features(features)
    data = LinkData(loaded.name, loaded.graph, features, loaded.node_names, normalized)
    return _as_link_data(config, data)


def _as_link_data(config: TrainConfig, data: NodeDataset | LinkData) -> LinkData:
    if isinstance(data, NodeDataset):
        data = LinkData(data.name, data.graph, data.features, data.node_names)
    if not config.directed and not data.graph.symmetric:
        data = data._replace(graph=transform.to_undirected(data.graph)[0])
    return data


def _run(
    config: TrainConfig,
    console: Console | None,
    dataset: NodeDataset | LinkData | GraphSet | None,
    recovery: Recovery,
    callbacks: Sequence[Callable[[dict[str, Any]], object]],
) -> dict[str, Any]:
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    check_wide(config)
    if config.resume is not None:
        check_path(Path(config.resume), "--resume")
    problem = make_problem(config, dataset, recovery)
    chosen: dict[str, Any] = {}
    if config.activation == "maxk" and config.k == 0 and isinstance(problem, NodeProblem):
        trials = choose_k.try_all(config, problem)
        (k,) = (trial.k for trial in trials if trial.chosen)
        chosen = {
            "epochs": min(config.k_epochs, config.epochs),
            "tolerance": config.k_tolerance,
            "trials": [dataclasses.asdict(trial) for trial in trials],
        }
        if console is not None:
            console.print(trials_table(problem.task.metric, chosen))
        config = dataclasses.replace(config, k=k)
        problem = problem.with_config(config)
    program, state = problem.build()
    record = {
        "settings": config.settings(),
        **({"chosen_k": chosen} if chosen else {}),
        "data": {"name": problem.name, "fingerprint": problem.fingerprint()},
        **problem.record(),
        "environment": machine.environment(),
    }
    task: Any = problem.task
    profile = Profile(config.profile)
    with _shared_directory(config, record, recovery) as directory:
        if console is not None:
            print_head(console, config, problem.describe(), directory)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        compiled = problem.compile(program, state)
        with profile:
            told = (*callbacks, lambda row: profile.epoch())
            best, progress, rows = _train(
                config, console, directory, compiled, task, state, recovery, told
            )
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
        seconds = config.stall_timeout if config.distributed else 0
        watchdog = stack.enter_context(Watchdog(seconds, directory, recovery.advice))

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
        from jaxgnn.train.plot import save_plot

        save_plot(path, rows, summary, counts)
    except OSError as error:
        recovery.warn(f"no plot: {describe(error)}; all else is written")


def _warn_without_positions(config: TrainConfig, dataset: NodeDataset, recovery: Recovery) -> None:
    if config.model == "edgeconv" and not dataset.metadata.positions:
        recovery.warn(
            f"edgeconv is made for points, whose features are positions: {dataset.name} has none, "
            "expect a low score"
        )


def check_wide(config: TrainConfig) -> TrainConfig:
    """Returns it.

    Raises:
        ConfigError: it computes in float64, and JAX does not.
    """
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ConfigError("--dtype: float64 needs jax.config.update('jax_enable_x64', True)")
    return config


def load_dataset(config: TrainConfig) -> NodeDataset:
    """The configured dataset, its features normalized if asked for, or by custom (Planetoid)."""
    return _with_features(config, load_nodes(config.dataset))


def _with_features(config: TrainConfig, dataset: NodeDataset) -> NodeDataset:
    if normalizes_features(config, dataset):
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


def make_task(
    config: TrainConfig,
    dataset: NodeDataset,
    split: Split,
    partition: Partition | None = None,
    own: OwnParts | None = None,
) -> Task:
    """What the configured model is trained on, over the configured devices."""
    if own is not None:
        task = Task.from_dataset(dataset, split, config.dtype, graph=own.graph)
        return dataclasses.replace(task, features=own.features)
    graph = prepared(dataset.graph, config)
    graph = sharded.shard_graph(graph, config, partition)
    return Task.from_dataset(
        dataset, split, config.dtype, graph=graph, features_on=config.features_on
    )


def prepared(graph: Graph, config: TrainConfig) -> Graph:
    """The graph with what makes a GPU's aggregations fastest: an order of the rows, and windows for
    MaxK's, of rows as wide as a hidden layer. Neither moves a node or an edge."""
    if jax.default_backend() != "gpu" or ffi.cpu_module is None:
        return graph
    graph = graph.with_row_schedule()  # for dense rows
    if config.activation == "maxk" and config.hidden <= MAX_WIDTH:
        return graph.with_windows(width=config.hidden)
    return graph


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


def confusion(dataset: NodeDataset, logits: np.ndarray, split: Split) -> np.ndarray | None:
    """Counts of the test nodes by true and predicted class, where a node has one class."""
    mask = split.test
    if dataset.is_multilabel:
        return None
    from sklearn.metrics import confusion_matrix

    labels = list(range(dataset.num_classes))
    if not mask.any():
        return None
    return confusion_matrix(dataset.labels[mask], logits[mask].argmax(axis=-1), labels=labels)


def score_or_none(dataset: NodeDataset, logits: np.ndarray, mask: np.ndarray) -> float | None:
    """The dataset's score over a mask; `None` where there is none."""
    if not mask.any():
        return None
    value = score(dataset.metric, dataset.labels, logits, mask)
    return value if np.isfinite(value) else None
