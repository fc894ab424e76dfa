"""jaxgnn's neighbor sampling, through its loader."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.neighbors import Draw, Hop, Sampler, edge_weights, endless
from jaxgnn import Blocks, build_info
from jaxgnn.train import NeighborLoader

_COUNTED = 4  # batches


class Samplers:
    """The samplers of one graph."""

    def __init__(self, graph: StoredGraph, device: str, threads: int) -> None:
        info = build_info()
        if not (info.cpu if device == "cpu" else info.cuda):
            raise RuntimeError(f"no kernels for {device}: {info}")
        self._graph = graph.to_graph()
        self._device = device
        self._weights: Array | None = None

    def sampler(self, draw: Draw) -> Sampler:
        """Batches of consecutive nodes, whose numbers are in random order; no features."""
        options: dict[str, Any] = {
            "deduplicate": "deduplicated" in draw.traits,
            "replace": "replace" in draw.traits,
            "method": "labor" if "labor" in draw.traits else "uniform",
        }
        if "weighted" in draw.traits:
            if self._weights is None:
                self._weights = jax.device_put(edge_weights(self._graph.num_edges))
            options["weights"] = self._weights
        seeds = min(draw.seeds, self._graph.num_nodes)
        loader = NeighborLoader(
            *(self._graph, None, None, list(draw.num_neighbors)),
            batch_size=seeds,
            shuffle=False,
            drop_last=True,
            degrees=False,
            **options,
        )
        following = endless(loader)

        def step(state: Any, batch: Any) -> tuple[Any, None]:
            # The state is what the step drew: XLA can leave none of it out.
            return _arrays(batch.blocks), None

        start = jax.tree.map(jnp.zeros_like, jax.block_until_ready(_arrays(following().blocks)))

        def loop(steps: int) -> Any:
            def call() -> Any:
                return loader.scan(step, start, steps)[0]

            return functools.partial(call_seconds, call, device=self._device)

        def edges() -> float:
            counted = min(_COUNTED, len(loader))
            return sum(int(following().blocks.edge_mask.sum()) for _ in range(counted)) / counted

        return Sampler(
            functools.partial(
                call_seconds, lambda: _arrays(following().blocks), device=self._device
            ),
            lambda: hops_of(following().blocks),
            edges,
            loop,
            {"kernel": True},
        )


def _arrays(blocks: Blocks) -> tuple[Array, ...]:
    """The nodes, the edges and the first layer's graph: what PyG's loader returns, too."""
    first = blocks.graphs[0]
    return blocks.nodes, blocks.edges, first.row_offsets, first.senders


def hops_of(blocks: Blocks) -> list[Hop]:
    """The hops of blocks, on the host; padding is -1."""
    nodes, edges, offsets, senders = map(np.asarray, _arrays(blocks))
    found, begin = [], 0
    for graph in blocks.graphs[::-1]:
        end = graph.num_receivers
        own = slice(offsets[begin], offsets[end])
        counts = np.diff(offsets[begin : end + 1])
        found.append(Hop(nodes[begin:end], counts, edges[own], nodes[senders[own]]))
        begin = end
    return found
