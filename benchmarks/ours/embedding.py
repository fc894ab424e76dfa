"""jaxgnn's embedding of two sampled hops, and the product that it is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn import Graph, sage_embedding, sampled_edges, spmm


def embed(
    children: int, batch: int, x: Array, graph: Graph, params: Any, key: Array, sources: Array
) -> Array:
    """The embedding; as many leaves as children."""
    # Tied to x, or XLA would draw the sample once for all steps of a loop.
    x, sources = jax.lax.optimization_barrier((x, sources))
    return sage_embedding(
        *(graph, x, params, key),
        num_children=children,
        sources=sources,
        batch_size=batch,
        impl="kernel",
    )


def mean_of_leaves(x: Array, leaves: Graph) -> Array:
    """The mean of each child's leaves, by the product of a graph that has these edges alone."""
    return spmm(leaves, x, reduce="mean", impl="kernel")


def first_draws(
    children: int, graph: Graph, key: Array, sources: np.ndarray, count: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """The children of the first sources `[count, C]`, their leaves `[count C, C]`."""
    drawn = _drawn(graph, jax.random.fold_in(key, 0), sources[:count], children)
    leaves = _drawn(graph, jax.random.fold_in(key, 1), drawn.reshape(-1), children)
    return np.asarray(drawn), np.asarray(leaves)


def leaves_graph(graph: Graph, key: Array, sources: np.ndarray, children: int) -> Graph:
    """The graph from the leaves of all sources' children to these, made on the device.

    Its transpose is that of another graph: it serves forward products alone.
    """
    drawn = _drawn(graph, jax.random.fold_in(key, 0), sources, children).reshape(-1)
    leaves = _drawn(graph, jax.random.fold_in(key, 1), drawn, children).reshape(-1)
    short = Graph.from_csr(np.array([0, 1]), np.array([0]))  # rows in one piece, as all are here
    return dataclasses.replace(
        short,
        row_offsets=jnp.arange(drawn.size + 1, dtype=jnp.int32) * children,
        senders=leaves,
        self_loops=None,
        edge_permutation=None,
        num_senders=graph.num_senders,
        num_receivers=drawn.size,
        num_edges=leaves.size,
        symmetric=False,
    )


def _drawn(graph: Graph, key: Array, nodes: Any, size: int) -> Array:
    """The nodes that each of some draws; without neighbors itself."""
    edges, _ = sampled_edges(
        graph, sample_size=size, strategy="random", key=key, replace=True, rows=nodes
    )
    own = jnp.asarray(nodes)[:, None]
    return jnp.where(edges >= 0, graph.senders[jnp.maximum(edges, 0)], own)
