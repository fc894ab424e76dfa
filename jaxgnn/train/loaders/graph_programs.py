"""Programs of a `GraphLoader`'s steps: those of one shape that follow each other are one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxgnn.train.loaders.compiler_options import jit_steps
from jaxgnn.train.loaders.device_graphs import DeviceGraphs, union
from jaxgnn.train.loaders.graph_minibatch import GraphMinibatch
from jaxgnn.train.loaders.resumable_loader import as_pair

State = TypeVar("State")


class Run(NamedTuple):
    """Steps that follow each other and whose batches have one shape.

    Attributes:
        sizes: nodes and edges of a batch.
        first, end: the numbers of the steps.
    """

    sizes: tuple[int, int]
    first: int
    end: int


@functools.partial(jax.jit, static_argnums=3)
def union_at(
    graphs: DeviceGraphs, chosen: Array, position: Array, sizes: tuple[int, int]
) -> GraphMinibatch:
    return union(graphs, chosen[position], *sizes)


def run_steps(
    step: Callable[[State, GraphMinibatch], tuple[State, Any]],
    sizes: tuple[int, int],
    graphs: DeviceGraphs,
    chosen: Int[Array, "steps slots"],
    state: State,
    outputs: Any,
    first: Array,
    end: Array,
) -> tuple[State, Any]:
    """Steps `first` to `end` on batches of one shape, as a part of a program that serves any number
    of them; their outputs are put to the places of the steps."""

    def body(i: Array, carry: tuple[State, Any]) -> tuple[State, Any]:
        state, output = step(carry[0], union(graphs, chosen[i], *sizes))
        return state, jax.tree.map(lambda all, of_step: all.at[i].set(of_step), carry[1], output)

    return jax.lax.fori_loop(first, end, body, (state, outputs))


run = jit_steps(run_steps, static_argnums=(0, 1), counted=False)


@functools.partial(jax.jit, static_argnums=0)
def one_step(step: Any, state: Any, minibatch: GraphMinibatch) -> tuple[Any, Any]:
    return as_pair(step(state, minibatch))


@functools.partial(jax.jit, static_argnums=(0, 4))
def no_outputs(
    step: Any, state: Any, graphs: DeviceGraphs, chosen: Array, sizes: tuple[int, int]
) -> Any:
    """Places for the outputs of all steps. Jitted: `step` is traced for them once."""
    minibatch = jax.eval_shape(functools.partial(union_at, sizes=sizes), graphs, chosen, 0)
    shapes = as_pair(jax.eval_shape(step, state, minibatch))[1]
    return jax.tree.map(lambda of: jnp.zeros((len(chosen), *of.shape), of.dtype), shapes)


def runs(
    sizes: list[tuple[int, int]], most: int | None = None, multiple: int | None = None
) -> Iterator[Run]:
    """Steps of one shape each: at most `most`, none of them across a multiple of `multiple`."""
    most, multiple = most or len(sizes), multiple or len(sizes)
    first = 0
    for size, group in itertools.groupby(sizes):
        end = first + len(list(group))
        while first < end:
            stop = min(end, first + most, (first // multiple + 1) * multiple)
            yield Run(size, first, stop)
            first = stop
