"""Classification of graphs by folds: a GIN whose nodes' rows are summed, as a table.

    python examples/graph_classification.py PATH/TO/PROTEINS_full

Fold i is tested, the next one chooses the epoch, the others train (`GraphSet.splits`).
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from jaxgnn import readout
from jaxgnn.data import DataError, GraphSet, load
from jaxgnn.nn import GIN, Dropout
from jaxgnn.train import GraphLoader, GraphMinibatch


@dataclasses.dataclass(frozen=True)
class Options:
    """Trains a GIN a fold, and prints the accuracies."""

    dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]
    """A set of graphs with classes: a TUDataset's folder, or what else jaxgnn.data.load reads."""
    folds: int = 10
    """How many of the folds are tested."""
    epochs: int = 100
    """Of each fold."""
    batch_size: int = 128
    """Graphs of a batch."""
    layers: int = 5
    """Of the GIN, each with a perceptron of two linear layers."""
    hidden: int = 32
    """Width of the layers."""
    dropout: float = 0.5
    """Before the linear layer that classifies."""
    learning_rate: float = 0.01
    """Of Adam; halved every 50 epochs."""
    seed: int = 0
    """Of initial values, batches and dropout."""


class Model(nnx.Module):
    """GIN, the sum of the nodes, a linear layer."""

    def __init__(self, features: int, classes: int, options: Options, rngs: nnx.Rngs):
        self.gin = GIN(
            *(features, options.hidden, options.hidden),
            num_layers=options.layers,
            norm="batch",
            rngs=rngs,
        )
        self.dropout = Dropout(options.dropout, rngs=rngs)
        self.linear = nnx.Linear(options.hidden, classes, rngs=rngs)

    def __call__(self, minibatch: GraphMinibatch) -> jax.Array:
        assert minibatch.features is not None
        rows = jax.nn.relu(self.gin(minibatch.batch, minibatch.features))
        return self.linear(self.dropout(readout(minibatch.batch.membership, rows)))


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, minibatch: GraphMinibatch) -> jax.Array:
    """One step on a batch; its loss."""

    def loss_of(model: Model) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(minibatch), minibatch.labels)
        mask = minibatch.batch.graph_mask
        return jnp.where(mask, losses, 0).sum() / mask.sum()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def count_right(model: Model, minibatch: GraphMinibatch) -> jax.Array:
    """How many graphs of a batch are classified right."""
    right = jnp.argmax(model(minibatch), axis=-1) == minibatch.labels
    return jnp.sum(right & minibatch.batch.graph_mask)


def accuracy(model: Model, loader: GraphLoader, count: int) -> float:
    """Of all graphs of a loader."""
    return sum(int(count_right(model, minibatch)) for minibatch in loader) / count


def run_fold(graphs: GraphSet, fold: int, options: Options) -> tuple[float, int]:
    """The test accuracy at the epoch of the best validation accuracy, and that epoch."""
    split = graphs.splits[f"fold{fold}"]
    make: Callable[..., Any] = functools.partial(
        GraphLoader, graphs, options.batch_size, seed=options.seed
    )
    training = make(indices=np.flatnonzero(split.train))
    parts = [np.flatnonzero(mask) for mask in (split.val, split.test)]
    loaders = [make(indices=part, shuffle=False) for part in parts]
    model = Model(
        graphs.num_features, int(graphs.num_classes or 0), options, nnx.Rngs(options.seed)
    )
    steps = {50 * i * len(training): 0.5 for i in range(1, options.epochs // 50 + 1)}
    rate = optax.piecewise_constant_schedule(options.learning_rate, steps)
    optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)
    best = (-1.0, 0.0, 0)
    for epoch in range(1, options.epochs + 1):
        model.train()
        for minibatch in training:
            train_step(model, optimizer, minibatch)
        model.eval()
        val, test = (
            accuracy(model, loader, part.size) for loader, part in zip(loaders, parts, strict=True)
        )
        if val > best[0]:
            best = (val, test, epoch)
    return best[1], best[2]


def main() -> None:
    """Parses, trains, prints."""
    options = tyro.cli(Options)
    for name in ("folds", "epochs", "batch_size"):
        if getattr(options, name) < 1:
            option = name.replace("_", "-")
            sys.exit(f"--{option}: expected at least 1, got {getattr(options, name)}")
    try:
        graphs = load(options.dataset)
    except DataError as error:
        sys.exit(str(error))
    if not isinstance(graphs, GraphSet) or graphs.features is None or not graphs.num_classes:
        raise SystemExit(f"{options.dataset}: expected graphs with features and classes")
    folds = sum(name.startswith("fold") for name in graphs.splits)
    if options.folds > folds:
        sys.exit(f"--folds: expected at most the {folds} folds of the set, got {options.folds}")
    table = Table(title=f"{graphs.name}: {len(graphs):,} graphs, {graphs.num_classes} classes")
    for column in ("fold", "test accuracy, %", "epoch"):
        table.add_column(column, justify="right")
    scores = []
    for fold in range(options.folds):
        score, epoch = run_fold(graphs, fold, options)
        scores.append(100 * score)
        table.add_row(str(fold), f"{scores[-1]:.2f}", str(epoch))
    deviation = np.std(scores, ddof=1) if len(scores) > 1 else 0.0
    table.add_row("mean", f"{np.mean(scores):.2f} ± {deviation:.2f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
