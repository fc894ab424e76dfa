"""Blocks: the part of a graph that a model needs for a few nodes, a rectangular graph a layer."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from jaxgnn.graph._graph import Graph
from jaxgnn.graph._node_rows import NodeRows
from jaxgnn.graph._take import take_rows


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graphs", "nodes", "edges", "overflow"],
    meta_fields=["num_seeds"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Blocks:
    """The sampled neighborhood of some nodes, the *seeds*, as `sample_neighbors` returns it.

    A *place* is a row of the input features; `nodes` has its node. The receivers of each layer's
    graph are the first of its senders, and they are the senders of the next layer's. The seeds are
    the first `num_seeds` places. Padding places have the node -1, and padding edges, whose number
    is -1, go from padding places to padding places: shapes depend on the arguments' shapes alone.

    A model takes blocks in place of a graph: `model(blocks, blocks.take(features))`, a row for
    each seed. A convolution of one's own is called with the layer's graph, and with the senders'
    rows and the receivers': `conv(graph, (x, x[: graph.num_receivers]))`.

    Attributes:
        graphs: one a layer, the input's first. The edges of each are the first of `graphs[0]`'s.
        nodes: the node of each place, -1 for padding.
        edges: the graph's edge, in its edge order, of each edge of `graphs[0]`; -1 for padding.
        overflow: whether `capacity` was too small for the nodes, so that edges are missing.
        num_seeds: static.
    """

    graphs: tuple[Graph, ...]
    nodes: Int[Array, " places"]
    edges: Int[Array, " edges"]
    overflow: Bool[Array, ""]
    num_seeds: int

    @property
    def num_layers(self) -> int:
        """The number of graphs."""
        return len(self.graphs)

    @property
    def node_mask(self) -> Bool[Array, " places"]:
        """Which places are no padding."""
        return self.nodes >= 0

    @property
    def edge_mask(self) -> Bool[Array, " edges"]:
        """Which edges are no padding."""
        return self.edges >= 0

    def take(self, values: Shaped[Array, "num_nodes *rest"]) -> Shaped[Array, "places *rest"]:
        """The rows of each place's node, 0 for padding."""
        return take_rows(values, self.nodes)

    def rows(self, values: Shaped[Array, "num_nodes *rest"]) -> NodeRows:
        """The same, gathered where they are used: a model that aggregates first never writes them.

        As `take`, without a check: `values` has a row for each node of the graph.
        """
        return NodeRows(jnp.asarray(values), self.nodes)

    def take_edges(self, values: Shaped[Array, "num_edges *rest"]) -> Shaped[Array, "edges *rest"]:
        """The rows of each edge, of data in the graph's edge order; 0 for padding."""
        return take_rows(values, self.edges)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{graph.num_receivers} <- {graph.num_senders}" for graph in self.graphs)
        return f"Blocks(num_seeds={self.num_seeds}, layers=[{sizes}])"


def squared(graph: Graph) -> Graph:
    """A layer's graph as a square one: the senders that receive nothing are receivers, too."""
    more = graph.num_senders - graph.num_receivers
    end = jnp.full(more, graph.num_edges, graph.row_offsets.dtype)
    receivers = graph.receivers
    loops = (graph.senders == receivers).astype(jnp.int32)
    loops = jnp.zeros(graph.num_senders, jnp.int32).at[receivers].add(loops)
    return dataclasses.replace(
        graph,
        row_offsets=jnp.concatenate([graph.row_offsets, end]),
        self_loops=loops,
        num_receivers=graph.num_senders,
        tiles=None,
        transpose_tiles=None,
    )
