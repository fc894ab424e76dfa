"""Blocks: the part of a graph that a model needs for a few nodes, a rectangular graph a layer."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, Shaped

from jaxgnn._core import checks
from jaxgnn.graph._argument import graph_argument
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._node_rows import NodeRows
from jaxgnn.graph._take import take_rows


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graphs", "nodes", "edges", "overflow", "degrees"],
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
        degrees: `with_degrees`, or `None`.
    """

    graphs: tuple[Graph, ...]
    nodes: Int[Array, " places"]
    edges: Int[Array, " edges"]
    overflow: Bool[Array, ""]
    num_seeds: int
    degrees: Int[Array, " places"] | None = None

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
        """The rows of each place's node, 0 for padding.

        Raises:
            TypeError: `values` are no numbers.
            ValueError: a node has no row (not found where nodes are traced).
        """
        values = checks.as_numbers(values, "values")
        return take_rows(_with_rows_for(values, self.nodes, "node"), self.nodes)

    def rows(self, values: Shaped[Array, "num_nodes *rest"]) -> NodeRows:
        """The same, gathered where they are used: a model that aggregates first never writes them.

        As `take`, without a check: `values` has a row for each node of the graph.
        """
        return NodeRows(jnp.asarray(values), self.nodes)

    def take_edges(self, values: Shaped[Array, "num_edges *rest"]) -> Shaped[Array, "edges *rest"]:
        """The rows of each edge, of data in the graph's edge order; 0 for padding.

        Raises:
            TypeError: `values` are no numbers.
            ValueError: an edge has no row (not found where edges are traced).
        """
        values = checks.as_numbers(values, "values")
        return take_rows(_with_rows_for(values, self.edges, "edge"), self.edges)

    def with_degrees(self, graph: Graph) -> Blocks:
        """The blocks with the degrees of their nodes in the graph that they were sampled from.

        `degrees` has, for each place, the edges that enter its node from other nodes; 0 for
        padding. `GCNConv` then normalizes both ends by these and rescales the sums over the sampled
        edges: without weights a model computes of all neighbors what it computes of the graph, and
        of a sample an estimate of it. Without degrees it takes those in the sample, as PyG does,
        where the nodes of the last hop have none.

        Raises:
            TypeError: `graph` is no `Graph`.
            ValueError: it is rectangular, or has fewer nodes (not found where they are traced).
        """
        graph = graph_argument(graph)
        if not graph.is_square:
            raise ValueError(f"graph: expected a square graph, got {graph}")
        assert graph.self_loops is not None
        if graph.num_nodes == 0:
            return dataclasses.replace(self, degrees=jnp.zeros(self.nodes.shape, jnp.int32))
        if _highest(self.nodes) >= graph.num_nodes:
            raise ValueError(f"graph: expected the graph of the blocks' nodes, got {graph}")
        nodes = jnp.maximum(self.nodes, 0)
        edges = graph.row_offsets[nodes + 1] - graph.row_offsets[nodes]
        others = edges.astype(jnp.int32) - graph.self_loops[nodes]
        return dataclasses.replace(self, degrees=jnp.where(self.node_mask, others, 0))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{graph.num_receivers} <- {graph.num_senders}" for graph in self.graphs)
        return f"Blocks(num_seeds={self.num_seeds}, layers=[{sizes}])"


def _highest(numbers: Int[Array, " numbers"]) -> int:
    """The largest of numbers, -1 for none and where they are traced."""
    if isinstance(numbers, Tracer):
        return -1
    with jax.ensure_compile_time_eval():  # blocks in a closure are known under `jit`, too
        return int(jnp.max(numbers, initial=-1))


def _with_rows_for(
    values: Shaped[Array, "rows *rest"], numbers: Int[Array, " numbers"], what: str
) -> Shaped[Array, "rows *rest"]:
    """The values, if each of the numbers has a row: a missing one would be taken for padding."""
    highest = _highest(numbers)
    if values.ndim == 0 or highest >= values.shape[0]:
        order = checks.EDGE_ORDER if what == "edge" else ""
        raise ValueError(
            f"values: expected a row for each {what} of the graph, {highest + 1} or more, got the "
            f"shape {values.shape}{order}"
        )
    return values


def squared(graph: Graph, nodes: Int[Array, " places"] | None = None) -> Graph:
    """A layer's graph as a square one: the senders that receive nothing are receivers, too.

    `nodes` has the node of each place, at least those of the senders: self-loops are then edges
    between places of one node. A tree has them, as each edge has a place of its own.

    Tiles, windows and the receivers' schedule are dropped: they are of the old receivers.
    """
    more = graph.num_senders - graph.num_receivers
    end = jnp.full(more, graph.num_edges, graph.row_offsets.dtype)
    receivers = graph.receivers
    if nodes is None:
        loops = graph.senders == receivers
    else:
        loops = (nodes[graph.senders] == nodes[receivers]) & (nodes[receivers] >= 0)
    loops = loops.astype(jnp.int32)
    loops = jnp.zeros(graph.num_senders, jnp.int32).at[receivers].add(loops)
    return dataclasses.replace(
        graph,
        row_offsets=jnp.concatenate([graph.row_offsets, end]),
        self_loops=loops,
        num_receivers=graph.num_senders,
        windows=None,
        row_schedule=None,
        tiles=None,
        transpose_tiles=None,
    )
