"""The mini-batch training step in plain JAX: Floyd's sampling, then GraphSAGE on the tree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from benchmarks.baselines.jax_models import cross_entropy
from benchmarks.baselines.jax_neighbors import key_of, sample_tree
from benchmarks.harness import plan
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.minibatch import Batch, Data, Step, Trainer
from benchmarks.harness.setting import Arrays, layer_parameters

# As `NeighborLoader.scan` has it.
_CONCURRENT = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}


def trainer(step: Step, data: Data) -> Trainer:
    """The step in a `jax.lax.scan`, sampling and features a part of the program."""
    aggregate = _segment_mean if step.impl == plan.BATCH_SEGMENTS else _row_mean
    sizes = tuple(step.num_neighbors)
    rows = jax.device_put((np.asarray(data.graph.row_offsets), np.asarray(data.graph.senders)))
    constants = (rows, jax.device_put(data.x), jax.device_put(data.labels))
    nodes, key = jax.device_put(data.input_nodes), key_of(True)
    batches = data.input_nodes.size // step.seeds
    optimizer = optax.adam(1e-3)

    def loss(params: Arrays, constants: Any, levels: list[Array]) -> Array:
        _, x, labels = constants
        logits = sage(params, x, levels, sizes, aggregate)
        return cross_entropy(logits, labels[levels[0]])

    def one_step(state: Any, constants: Any, seeds: Array, key: Array) -> tuple[Any, Array]:
        params, moments = state
        levels, _ = sample_tree(constants[0], seeds, sizes, key)
        value, gradients = jax.value_and_grad(loss)(params, constants, levels)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), value

    def many(state: Any, constants: Any, nodes: Array, key: Array, steps: int) -> Any:
        order = jax.random.permutation(key, nodes)[: batches * step.seeds].reshape(batches, -1)

        def body(state: Any, number: Array) -> tuple[Any, Array]:
            own = jax.random.fold_in(key, number)
            return one_step(state, constants, order[number % batches], own)

        return jax.lax.scan(body, state, jnp.arange(steps))

    initial = jax.device_put(data.parameters)
    state = (initial, optimizer.init(initial))
    single = jax.jit(functools.partial(many, steps=1))

    def call() -> Array:
        nonlocal state
        state, value = single(state, constants, nodes, key)
        return value

    jax.block_until_ready(call())

    def loop(steps: int) -> Callable[[int], float]:
        program = jax.jit(
            functools.partial(many, steps=steps),
            compiler_options=_CONCURRENT if data.device == "gpu" else None,
        )

        def call() -> Array:
            nonlocal state
            state, values = program(state, constants, nodes, key)
            return values

        return functools.partial(call_seconds, call, device=data.device)

    def first_loss() -> tuple[float, Batch]:
        levels, _ = jax.jit(functools.partial(sample_tree, num_neighbors=sizes))(
            rows, nodes[: step.seeds], key=key
        )
        value = jax.jit(loss)(initial, constants, levels)
        return float(value), _batch_of(list(map(np.asarray, levels)), sizes)

    def peak_bytes() -> int | None:
        stats = jax.devices()[0].memory_stats()
        return None if stats is None else stats["peak_bytes_in_use"]

    seconds = functools.partial(call_seconds, call, device=data.device)
    return Trainer(seconds, first_loss, peak_bytes, loop, min(batches, 192))


Aggregate = Callable[[Array, Array, int], Array]
"""The mean of each parent's children: of their rows, whether they are there, and their number."""


def sage(
    params: Arrays,
    x: Float[Array, "num_nodes features"],
    levels: list[Int[Array, " places"]],
    sizes: Sequence[int],
    aggregate: Aggregate,
) -> Array:
    """The rows of the seeds. A layer computes the levels that the next one reads.

    A mean is projected before or after, where rows are narrower.
    """
    layers = layer_parameters(params)
    h = [jnp.where(nodes[:, None] >= 0, x[nodes], 0) for nodes in levels]
    for number, own in enumerate(layers):
        kernel, root = own["linear_neighbors.kernel"], own["linear_root.kernel"]
        narrower = kernel.shape[1] < kernel.shape[0]
        new = []
        for level in range(len(layers) - number):
            there = levels[level + 1] >= 0
            children = h[level + 1]
            mean = aggregate(children @ kernel if narrower else children, there, sizes[level])
            around = mean if narrower else mean @ kernel
            rows = around + own["linear_neighbors.bias"] + h[level] @ root
            new.append(jax.nn.relu(rows) if number < len(layers) - 1 else rows)
        h = new
    return h[0]


def _row_mean(rows: Array, there: Bool[Array, " children"], size: int) -> Array:
    """Over an axis of children, of which each parent has as many."""
    there = there.reshape(-1, size, 1)
    total = jnp.where(there, rows.reshape(-1, size, rows.shape[1]), 0).sum(axis=1)
    return total / jnp.maximum(there.sum(axis=1), 1)


def _segment_mean(rows: Array, there: Bool[Array, " children"], size: int) -> Array:
    """By a sorted segment sum."""
    parents = rows.shape[0] // size
    receivers = jnp.repeat(jnp.arange(parents), size)
    masked = jnp.where(there[:, None], rows, 0)
    total = jax.ops.segment_sum(masked, receivers, parents, indices_are_sorted=True)
    counts = jax.ops.segment_sum(
        there.astype(rows.dtype), receivers, parents, indices_are_sorted=True
    )
    return total / jnp.maximum(counts, 1)[:, None]


def _batch_of(levels: list[np.ndarray], sizes: Sequence[int]) -> Batch:
    """The tree without its padding."""
    nodes = np.concatenate(levels)
    firsts = np.cumsum([0, *(level.size for level in levels)])
    parents = [
        first + np.repeat(np.arange(level.size), size)
        for first, level, size in zip(firsts, levels, sizes, strict=False)
    ]
    there = nodes >= 0
    place = np.cumsum(there) - 1
    children = np.arange(levels[0].size, nodes.size)
    used = there[children]
    receivers = place[np.concatenate(parents)[used]]
    return Batch(nodes[there], place[children[used]], receivers, levels[0].size)
