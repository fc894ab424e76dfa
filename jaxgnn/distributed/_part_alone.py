"""One part of a graph by rows, alone on a device: what it does, without the others."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxgnn.distributed._arguments import Owners, owner_of
from jaxgnn.distributed._parts import split
from jaxgnn.distributed._shard import part_cost
from jaxgnn.distributed._sharded_graph import ShardedGraph
from jaxgnn.graph import Graph

_AXIS = "parts"


def part_alone(graph: Graph, partition: Owners, part: int) -> ShardedGraph:
    """A part on the first device, with overlap where `shard` would take it.

    It receives the rows that it sends, as many as it would: what it computes has the part's shapes,
    and means nothing. Data of the edges is by places alone; the whole graph's order is left out.

    Args:
        graph: the whole one.
        partition: the owner of each node.
        part: which.
    """
    count = partition.parts
    owner = owner_of(partition, graph, count)
    parts = split(graph, owner, count, own=[part], overlap=None)
    rows = parts.rows
    mesh = Mesh(np.array(jax.devices()[:1]), (_AXIS,), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))

    def of_places(values: np.ndarray) -> jax.Array:
        return jax.device_put(values, sharding)

    nodes = parts.node_of_place.reshape(count, rows)[part]
    degrees = np.append(np.diff(np.asarray(graph.row_offsets)), 0)[nodes].astype(np.int32)
    known = np.arange(rows, dtype=np.int32)
    edge_of_place = parts.edge_of_place[0].astype(np.int32)
    none = np.zeros(rows, np.int32)
    graphs, kinds, sends = jax.device_put((parts.graphs, parts.kinds, parts.sends), sharding)
    return ShardedGraph(
        graph=graphs,
        kinds=kinds,
        sends=sends,
        node_of_place=of_places(np.where(nodes >= 0, known, -1).astype(np.int32)),
        place_of_node=of_places(known),
        edge_of_place=of_places(edge_of_place),
        edge_permutation=None,
        in_degrees=of_places(degrees),
        out_degrees=of_places(none),
        self_loops=of_places(none),
        repeated_self_loops=of_places(np.zeros(edge_of_place.size, bool)),
        mesh=mesh,
        rows=_AXIS,
        features=None,
        num_nodes=rows,
        num_senders=rows,
        num_receivers=rows,
        num_edges=edge_of_place.size,
        pair_rows=parts.pair_rows * count,
        halo=parts.halo // count,
        costs=(part_cost(mesh, _AXIS, None, parts),),
        edges=parts.edges,
        exchange_dtype=None,
        num_graph_edges=edge_of_place.size,
        num_input_edges=None,
    )
