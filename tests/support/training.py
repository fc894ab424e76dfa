"""A toy data set and short runs on it; programs are compiled once a process."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from jaxgnn.data import NodeDataset, Split
from jaxgnn.data.sets.dataset import Metadata
from jaxgnn.graph import Graph
from jaxgnn.train import (
    Best,
    Compiled,
    Progress,
    Task,
    TrainConfig,
    build,
    train,
)
from jaxgnn.train.loop.epochs import copy

NODES = 60
SMALL = TrainConfig(hidden=8, epochs=8, patience=0, dropout=0.3)


def toy(
    classes: int = 3, *, multilabel: bool = False, metric="accuracy", validation: bool = True
) -> NodeDataset:
    """A ring of communities, whose features betray the class."""
    rng = np.random.default_rng(0)
    labels = (np.arange(NODES) % classes).astype(np.int32)
    senders = rng.integers(0, NODES, 4 * NODES)
    receivers = (senders + classes * rng.integers(0, 5, senders.size)) % NODES
    features = np.eye(classes, dtype=np.float32)[labels]
    features = features + rng.normal(0, 0.5, features.shape).astype(np.float32)
    part = np.arange(NODES) // classes % 4
    if multilabel:
        labels = (rng.random((NODES, classes)) < 0.5).astype(np.float32)
    return NodeDataset(
        name="toy",
        graph=Graph.from_edges(senders, receivers, num_nodes=NODES, undirected=True),
        features=features,
        labels=labels,
        num_classes=classes,
        splits={"only": Split(part == 0, (part == 1) & validation, part >= 2)},
        metadata=Metadata(metric=metric),
    )


@functools.cache
def compile_once(options: tuple, config: TrainConfig):
    dataset = toy(**dict(options))
    task = Task.from_dataset(dataset, dataset.split(0), config.dtype)
    program, state = build(config, task)
    return program, state, Compiled(program, state, task)


def prepare(config: TrainConfig = SMALL, **options):
    """A task, its program, a first state that may be donated, and the compiled program."""
    # Neither changes the program.
    key = dataclasses.replace(config, epochs=1, patience=0)
    program, state, compiled = compile_once(tuple(sorted(options.items())), key)
    dataset = toy(**options)
    task = Task.from_dataset(dataset, dataset.split(0), config.dtype)
    return task, program, copy(state), compiled


def fit(config: TrainConfig = SMALL, *, labels=None, data: dict | None = None, **options):
    task, _, state, compiled = prepare(config, **(data or {}))
    if labels is not None:
        task = dataclasses.replace(task, labels=jnp.asarray(labels))
    rows: list[dict] = []
    best = Best(copy(state.params), copy(state.rest))
    options = {"epochs": config.epochs, "patience": config.patience, **options}
    result = train(compiled, task, state, best, Progress(), on_epoch=rows.append, **options)
    return *result, rows
