"""One training step of `--task graph` by itself, on the first batch of an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import Array

from jaxgnn.graph import Graph
from jaxgnn.train.loaders.device_graphs import DeviceGraphs, union
from jaxgnn.train.loaders.graph_loader import GraphLoader
from jaxgnn.train.loaders.graph_minibatch import GraphMinibatch
from jaxgnn.train.loop.epochs import kernel_calls
from jaxgnn.train.problems.graph_model import GraphProgram
from jaxgnn.train.steps.step import LossSums, TrainState, zero_sums

if TYPE_CHECKING:
    from jaxgnn.train.problems.graph_problem import GraphTask


@contextlib.contextmanager
def batches_of(loader: GraphLoader) -> Iterator[Iterator[GraphMinibatch]]:
    """The rest of an epoch; its thread ends where the epoch is left."""
    batches: Any = iter(loader)
    try:
        yield batches
    finally:
        batches.close()


def first_batch(loader: GraphLoader) -> GraphMinibatch:
    """The next batch, which stays the next one."""
    place = loader.state
    with batches_of(loader) as batches:
        first = next(batches)
    loader.state = place
    return first


def step_on_first_batch(
    program: GraphProgram, state: TrainState, task: GraphTask
) -> tuple[Callable[..., Any], tuple[Any, ...], Graph]:
    """A function of one training step, what it is called with, and the graph of its batch, the
    epoch's first; of graphs on the device it makes the batch."""
    loader = task.training
    first = first_batch(loader)
    sums = zero_sums(jax.tree.leaves(state.params)[0].dtype)
    if loader.device_graphs is None:
        return program.step_on_graphs, (state, sums, first), first.batch.graph
    chosen, sizes = loader.batches_of_epoch()
    place = loader.state["position"]

    def step(state: TrainState, sums: LossSums, graphs: DeviceGraphs, chosen: Array) -> Any:
        return program.step_on_graphs(state, sums, union(graphs, chosen[place], *sizes[place]))

    return step, (state, sums, loader.device_graphs, chosen), first.batch.graph


def lower_graphs(
    program: GraphProgram, state: TrainState, task: GraphTask
) -> tuple[jax.stages.Lowered, jax.stages.Lowered, dict[str, int]]:
    """The step and the evaluation of a batch before they are compiled, and their kernels."""
    function, operands, _ = step_on_first_batch(program, state, task)
    step = jax.jit(function).lower(*operands)
    arguments = state.params, state.rest, operands[1], first_batch(task.training)
    evaluate = jax.jit(program.outputs_and_loss).lower(*arguments)
    return step, evaluate, kernel_calls(step.as_text() + evaluate.as_text())
