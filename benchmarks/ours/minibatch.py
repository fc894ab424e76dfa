"""jaxgnn's mini-batch training step, and the batches that others are given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.minibatch import READY, Batch, Data, Step, Trainer
from benchmarks.harness.neighbors import endless
from jaxgnn import Blocks, build_info, sample_neighbors
from jaxgnn.nn import GraphSAGE
from jaxgnn.train import NeighborLoader


def trainer(step: Step, data: Data) -> Trainer:
    """The step in `NeighborLoader.scan`: sampling and features are a part of the program."""
    info = build_info()
    if not (info.cpu if data.device == "cpu" else info.cuda):
        raise RuntimeError(f"no kernels for {data.device}: {info}")
    loader = NeighborLoader(
        *(data.graph.to_graph(), jax.device_put(data.x), jax.device_put(data.labels)),
        list(step.num_neighbors),
        input_nodes=data.input_nodes,
        batch_size=step.seeds,
        drop_last=True,
    )
    definition, params = nnx.split(_model(step))
    optimizer = optax.adam(1e-3)
    loss = functools.partial(_loss, definition)

    def one_step(state: Any, batch: Any) -> tuple[Any, Array]:
        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), value

    following, compiled = endless(loader), jax.jit(one_step)
    state = (params, optimizer.init(params))

    def call() -> Array:
        nonlocal state
        state, value = compiled(state, following())
        return value

    jax.block_until_ready(call())

    def loop(steps: int) -> Callable[[int], float]:
        def many() -> Array:
            nonlocal state
            state, losses = loader.scan(one_step, state, steps)
            return losses

        return functools.partial(call_seconds, many, device=data.device)

    def first_loss() -> tuple[float, Batch]:
        batch = following()
        return float(jax.jit(loss)(params, batch)), batch_of(batch.blocks)

    def peak_bytes() -> int | None:
        stats = jax.devices()[0].memory_stats()
        return None if stats is None else stats["peak_bytes_in_use"]

    return Trainer(
        functools.partial(call_seconds, call, device=data.device),
        first_loss,
        peak_bytes,
        loop,
        min(len(loader), 192),
        {"kernel": True},
    )


def _model(step: Step) -> GraphSAGE:
    first, *hidden, last = step.widths
    return GraphSAGE(first, hidden[0], last, num_layers=len(hidden) + 1, rngs=nnx.Rngs(0))


def _loss(definition: Any, params: Any, batch: Any) -> Array:
    logits = nnx.merge(definition, params)(batch.blocks, batch.features)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return jnp.sum(losses * batch.mask) / jnp.sum(batch.mask)


def batch_of(blocks: Blocks) -> Batch:
    """Blocks on the host, without their padding; the order of places and of edges is kept."""
    graph = blocks.graphs[0]
    nodes, edges, senders = map(np.asarray, (blocks.nodes, blocks.edges, graph.senders))
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(np.asarray(graph.row_offsets)))
    there = nodes >= 0
    place = np.cumsum(there) - 1
    used = edges >= 0
    num_seeds = int(there[: blocks.num_seeds].sum())
    return Batch(nodes[there], place[senders[used]], place[receivers[used]], num_seeds)


def write_batches(step: Step, data: Data) -> None:
    """The parameters and some deduplicated batches, with the places and edges of each hop."""
    params = nnx.split(_model(step))[1]
    arrays = {
        ".".join(map(str, path)): np.asarray(value[...])
        for path, value in nnx.to_flat_state(params)
    }
    np.savez(data.folder / "parameters.npz", **arrays)
    graph = data.graph.to_graph()
    sample = jax.jit(
        functools.partial(
            sample_neighbors, num_neighbors=tuple(step.num_neighbors), deduplicate=True
        )
    )
    written: dict[str, Any] = {}
    for number in range(READY):
        first = number * step.seeds % max(data.input_nodes.size - step.seeds + 1, 1)
        seeds = data.input_nodes[first : first + step.seeds]
        blocks = sample(graph, jnp.asarray(seeds), key=jax.random.key(number))
        batch, nodes = batch_of(blocks), np.asarray(blocks.nodes) >= 0
        # The places of each level, and the edges of each hop, that are no padding.
        ends = [graph.num_receivers for graph in blocks.graphs[::-1]] + [nodes.size]
        counts = np.diff([0, *(int(nodes[:end].sum()) for end in ends)])
        hops = np.searchsorted(batch.receivers, np.cumsum(counts)[:-1])
        written |= {
            f"{number}.nodes": batch.nodes,
            f"{number}.edges": np.stack([batch.senders, batch.receivers]),
            f"{number}.nodes_of_hops": counts,
            f"{number}.edges_of_hops": np.diff([0, *hops]),
        }
    np.savez(data.folder / "batches.npz", **written)
