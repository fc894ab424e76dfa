"""Neighbor sampling in plain JAX: Floyd's algorithm on all rows at once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from benchmarks.baselines import jax_alias
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.neighbors import Draw, Hop, Sampler, edge_weights

_COUNTED = 4  # batches

Rows = tuple[Int[Array, " nodes+1"], Int[Array, " edges"]]
"""The offsets and the senders of the rows."""
DrawHop = Callable[[Any, Int[Array, " places"], int, Array], tuple[Array, Array]]


def draw_hop(
    rows: Rows, nodes: Int[Array, " places"], size: int, key: Array
) -> tuple[Int[Array, "places size"], Int[Array, "places size"]]:
    """The edges drawn for each place without replacement and their senders; -1 is padding.

    Number j draws t below d - k + j + 1, and takes d - k + j if t was taken. Bentley and Floyd, "A
    sample of brilliance" (1987).
    """
    offsets, senders = rows
    begins = offsets[nodes]
    degrees = jnp.where(nodes < 0, 0, offsets[nodes + 1] - begins)
    last = degrees[:, None] - size + jnp.arange(size)
    uniform = jax.random.uniform(key, (nodes.shape[0], size))
    draws = jnp.clip((uniform * (last + 1)).astype(jnp.int32), 0, jnp.maximum(last, 0))
    taken: list[Array] = []
    for j in range(size):
        t = draws[:, j]
        repeated = functools.reduce(jnp.logical_or, [t == other for other in taken], False)
        taken.append(jnp.where(repeated, last[:, j], t))
    order = jnp.arange(size)
    places = jnp.where(degrees[:, None] > size, jnp.stack(taken, axis=1), order)
    there = order < degrees[:, None]
    edges = jnp.where(there, begins[:, None] + places, -1)
    return edges, jnp.where(there, senders[edges], -1)


def sample_tree(
    rows: Any,
    seeds: Int[Array, " seeds"],
    num_neighbors: Sequence[int],
    key: Array,
    draw: DrawHop = draw_hop,
) -> tuple[list[Array], list[Array]]:
    """The nodes of each level, the seeds first, and the edges of each hop, in a tree.

    `rows` are what `draw` takes: the offsets and the senders, and for alias tables these.
    """
    levels, drawn = [seeds], []
    for hop, size in enumerate(num_neighbors):
        edges, nodes = draw(rows, levels[-1], size, jax.random.fold_in(key, hop))
        levels.append(nodes.reshape(-1))
        drawn.append(edges.reshape(-1))
    return levels, drawn


def key_of(rbg: bool) -> Array:
    return jax.random.key(0, impl="rbg" if rbg else "threefry2x32")


class Samplers:
    """The samplers of one graph."""

    def __init__(self, graph: StoredGraph, device: str, threads: int) -> None:
        self._rows: Rows = jax.device_put(
            (np.asarray(graph.row_offsets), np.asarray(graph.senders))
        )
        self._graph = graph
        self._nodes = graph.num_nodes
        self._device = device
        self._table: Array | None = None

    def sampler(self, draw: Draw) -> Sampler:
        seeds = min(draw.seeds, self._nodes)
        batches = self._nodes // seeds
        sizes = tuple(draw.num_neighbors)
        key, facts = key_of(bool(draw.traits & {"rbg", "alias"})), {}
        rows: Any = self._rows
        drawn_by: DrawHop = draw_hop
        if "alias" in draw.traits:
            start = time.perf_counter()
            if self._table is None:
                weights = edge_weights(self._graph.num_edges)
                self._table = jax.device_put(jax_alias.tables(self._graph.row_offsets, weights))
                facts["preprocessing_seconds"] = round(time.perf_counter() - start, 3)
            rows, drawn_by = (*rows, self._table), jax_alias.draw_hop

        def sample(rows: Any, key: Array, number: Array) -> Any:
            first = number % batches * seeds
            nodes = first + jnp.arange(seeds, dtype=jnp.int32)
            return sample_tree(rows, nodes, sizes, jax.random.fold_in(key, number), drawn_by)

        program = jax.jit(sample)
        count = 0

        def call() -> Any:
            nonlocal count
            count += 1
            return program(rows, key, np.int32(count))

        def loop(steps: int) -> Any:
            @jax.jit
            def many(rows: Any, key: Array, start: Any) -> Any:
                # The state is what the step drew: XLA can leave none of it out.
                def step(_: Any, number: Array) -> tuple[Any, None]:
                    return sample(rows, key, number), None

                return jax.lax.scan(step, start, jnp.arange(steps, dtype=jnp.int32))[0]

            start = jax.tree.map(jnp.zeros_like, call())
            return functools.partial(
                call_seconds, lambda: many(rows, key, start), device=self._device
            )

        def edges() -> float:
            counted = min(_COUNTED, batches)
            drawn = [call()[1] for _ in range(counted)]
            return sum(int((hop >= 0).sum()) for own in drawn for hop in own) / counted

        def hops() -> list[Hop]:
            levels, drawn = jax.tree.map(np.asarray, call())
            found = []
            for receivers, nodes, own, size in zip(levels, levels[1:], drawn, sizes, strict=False):
                there = own >= 0
                counts = there.reshape(-1, size).sum(axis=1)
                found.append(Hop(receivers, counts, own[there], nodes[there]))
            return found

        jax.block_until_ready(call())  # compiled
        seconds = functools.partial(call_seconds, call, device=self._device)
        return Sampler(seconds, hops, edges, loop, facts)
