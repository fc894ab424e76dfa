"""The places and edges of a tree of neighbors by one call, a kernel a hop: on a GPU alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import sequential
from jaxgnn.graph import Graph
from jaxgnn.ops._core.philox import key_words
from jaxgnn.ops._core.rows import Rows, neighbors, or_empty
from jaxgnn.ops._sampling.hops import Joined, Layout
from jaxgnn.ops._sampling.kernels import strategy_number
from jaxgnn.ops._sampling.sample import Sample
from jaxgnn.ops._sampling.weighted import DrawWeights

_TARGET = "jaxgnn_sample_tree"
_MOST_EDGES = 32  # of a place; this and the next as in cuda/sampling/sampling.h
_PLACES_PER_STATE = 32

HopKeys = UInt32[Array, "hops 2"]


def hop_keys(key: Array, hops: int) -> HopKeys:
    """The words of each hop's key."""

    def words(hop: Any) -> UInt32[Array, " 2"]:
        return key_words(jax.random.fold_in(key, hop))

    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if (jax.random.key_data(key) if typed else key).shape == (2,):
        return jax.vmap(words)(jnp.arange(hops))
    # Under vmap keys of other generators give other words.
    return jnp.stack([words(hop) for hop in range(hops)])


def is_tree_of_kernel(sample: Sample, graph: Graph, num_seeds: int, sizes: Sequence[int]) -> bool:
    """Whether the kernel draws such samples of a tree: uniform ones, or by alias tables, of few
    edges a place."""
    by_kernel = sample.strategy in ("random", "alias") and max(sizes) <= _MOST_EDGES
    return by_kernel and graph.num_edges > 0 and num_seeds > 0


def sample_tree(
    sample: Sample,
    graph: Graph,
    seeds: Int[Array, " seeds"],
    keys: HopKeys,
    weights: DrawWeights | None,
    layout: Layout,
    otherwise: Callable[[Graph, Int[Array, " seeds"], HopKeys, DrawWeights | None], Joined],
) -> Joined:
    """The places and edges of a tree, by `otherwise(graph, seeds, keys, weights)` without the
    kernel."""

    def kernel(
        rows: Rows, graph: Graph, seeds: Array, keys: Array, weights: DrawWeights | None
    ) -> Joined:
        del graph
        levels = zip(layout.counts, layout.paddings, layout.sizes, strict=False)
        states = sum(-(-(count - padding) // _PLACES_PER_STATE) for count, padding, _ in levels)
        by_weight = (None, None) if weights is None else (weights.table, weights.counts)
        *arrays, _ = ffi.call(
            _TARGET,
            [rows.offsets, or_empty(rows.columns), seeds, keys, *map(or_empty, by_weight)],
            [
                ((sum(layout.counts),), np.int32),
                ((layout.begins[-1],), rows.offsets.dtype),
                ((layout.num_receivers + 1,), np.int32),
                ((layout.inner_edges,), np.int32),
                ((2 * states,), np.uint32),
            ],
            sizes=layout.sizes,
            paddings=layout.paddings,
            strategy=strategy_number(sample),
        )
        return Joined(*arrays)

    def reference(
        rows: Rows, graph: Graph, seeds: Array, keys: Array, weights: DrawWeights | None
    ) -> Joined:
        del rows
        return otherwise(graph, seeds, keys, weights)

    def choose(
        rows: Rows, graph: Graph, seeds: Array, keys: Array, weights: DrawWeights | None
    ) -> Joined:
        operands = (rows, graph, seeds, keys, weights)
        return dispatch((_TARGET,), kernel, reference, *operands, platforms=("cuda",))

    rows = neighbors(graph, transpose=False)
    return sequential(choose)(rows, graph, seeds, keys, weights)
