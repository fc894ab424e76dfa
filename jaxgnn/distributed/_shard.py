"""Splits a graph over the devices of a mesh."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from jaxgnn.distributed._arguments import Owners, check_axes, check_graph, sent_bytes
from jaxgnn.distributed._choose_partition import choose_owners
from jaxgnn.distributed._costs import Cost, cost
from jaxgnn.distributed._parts import Parts, rows_of_device, split
from jaxgnn.distributed._placement import own_parts, place, place_parts
from jaxgnn.distributed._sharded_graph import ShardedGraph, layout_of
from jaxgnn.graph import Graph
from jaxgnn.graph._layouts.tile_rule import estimate
from jaxgnn.graph._layouts.tiles import Tiles, append_rows

_FEATURES = 256  # for which layouts are compared


def shard(
    graph: Graph,
    mesh: Mesh,
    *,
    partition: Owners | str | None = None,
    rows: str | None = None,
    features: str | None = None,
    exchange_dtype: str | None = None,
    overlap: bool | None = None,
) -> ShardedGraph:
    r"""A graph over the devices of a mesh, in a graph's place for operations, modules and models.

    Nodes' data is split by rows over the axis in all layouts. Under `features` each aggregation
    brings rows to columns (`all_to_all`), aggregates the whole graph on $F / P$ columns, and
    brings them back: $2 N F (P - 1) / P^2$ values a device, and the same bits as on one device.
    Under `rows` each device has its nodes' edges, and receives the foreign rows that they start
    from, the *halo*: $h N F / P$ values for $h$ halo rows a node. With both, each part is on the
    devices along `features`, which share its columns, and the halo travels along `rows`. With
    neither, the mesh must have one axis, and the layout predicted to be faster is taken; with a
    partition or `overlap` it is `rows`, which alone has them (`ShardedGraph.explain`). Tiles
    (`Graph.with_tiles`) serve the columns under `features`; parts by rows have none.

    Args:
        graph: a square graph, outside `jit`.
        mesh: of devices of this process or of several; its axes are used as `AxisType.Auto`. All
            processes make the same call: each builds the parts of its own devices.
        partition: the owner of each node, for `rows`, or the method that finds them:
            `"stream"`, with a looser balance of edges where the usual one can't be met, `"block"`,
            `"windows"` or `"metis"` (`distributed.partition`). By default the better of `"stream"`
            and `"block"`, of a graph with windows also `"windows"`, by the predicted time of an
            aggregation; without the compiled CPU module, and for more parts than nodes, `"block"`.
        rows, features: the names of the mesh's axes.
        exchange_dtype: `"bfloat16"` or `"float16"` rounds the rows that travel, and their
            gradients; `None` leaves them.
        overlap: under `rows`, whether sums and means (`spmm`, `maxk_spmm`, `segment_reduce`) take
            a part's edges as two graphs: those between its own nodes are aggregated while the halo
            travels. `True` holds these alone, and an operation that needs all edges of a receiver
            at once, such as attention, raises; `False` holds one graph of all edges. `None` holds
            both where overlap is predicted to be faster, and else the one; the parts of a graph
            with windows, for MaxK, have the one (`ShardedGraph.without_joint_graph`).

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, `mesh` no mesh, `partition` none, or
            `overlap` no bool.
        ValueError: a rectangular graph, an axis that the mesh does not have, one axis for
            both, a partition of other parts or nodes, or one with `features` alone, or so
            `overlap`; or explicit axes set by `jax.set_mesh`.
        ImportError, RuntimeError: the partition's method needs pymetis, or the compiled CPU module.
    """
    graph = check_graph(graph)
    mesh = check_axes(mesh, rows, features, exchange_dtype, overlap)
    if rows is None and features is not None:
        if partition is not None:
            raise ValueError("partition: expected None with features, whose blocks are fixed")
        if overlap:
            raise ValueError("overlap: expected None or False with features, got True")
        places = _places(graph, mesh.shape[features])
        own = _cost(mesh, None, features, places, _gathered(graph, mesh.shape[features]))
        return _whole(graph, mesh, features, exchange_dtype, (own,))
    axis = rows
    if axis is None:
        if len(mesh.axis_names) > 1:
            first, second, *_ = mesh.axis_names
            raise ValueError(
                f"rows, features: expected axes of {mesh.axis_names}, got None of a mesh of "
                f"several: name one, or both, as in rows={first!r}, features={second!r} (rows "
                "between hosts, columns between the devices of one)"
            )
        axis = str(next(iter(mesh.axis_names)))
    count = mesh.shape[axis]
    owner = choose_owners(partition, graph, count)
    own = None  # windows are padded to those of all parts
    if graph.windows is None:
        own = own_parts(NamedSharding(mesh, PartitionSpec(axis)), count)
    multiple = 1 if features is None else mesh.shape[features]
    size = sent_bytes(exchange_dtype)
    parts = split(graph, owner, count, multiple, own, overlap, size)
    by_rows = part_cost(mesh, axis, features, parts)
    if rows is not None:
        return _split(graph, parts, mesh, axis, features, exchange_dtype, (by_rows,))
    other = _cost(mesh, None, axis, _places(graph, count), _gathered(graph, count))
    for_rows = partition is not None or overlap
    if for_rows or by_rows.seconds(4, size) <= other.seconds(4, size):
        return _split(graph, parts, mesh, axis, None, exchange_dtype, (by_rows, other))
    return _whole(graph, mesh, axis, exchange_dtype, (by_rows, other))


def part_cost(mesh: Mesh, rows: str, features: str | None, parts: Parts) -> Cost:
    """Of an aggregation on these parts."""
    edges = max(1, parts.edges.all)
    meanwhile = 0 if parts.kinds is None else parts.edges.owned
    places = parts.node_of_place.size
    return _cost(mesh, rows, features, places, edges, parts.pair_rows, meanwhile)


def _gathered(graph: Graph, columns: int) -> int:
    """Edges under `features`; fewer over tiles, by what they take of the rows' time."""
    if graph.tiles is None or graph.num_edges == 0:
        return graph.num_edges
    guess = estimate(graph.tiles, -(-_FEATURES // columns), np.float32)
    return round(graph.num_edges * min(guess.tiles / guess.rows, 1.0))


def _cost(
    mesh: Mesh,
    rows: str | None,
    features: str | None,
    places: int,
    edges: int,
    pair_rows: int = 0,
    meanwhile: int = 0,
) -> Cost:
    """Of an aggregation; `edges`: of the largest part."""
    return cost(
        layout_of(rows, features),
        edges=edges,
        places=places,
        pair_rows=pair_rows,
        row_parts=1 if rows is None else mesh.shape[rows],
        column_parts=1 if features is None else mesh.shape[features],
        meanwhile=meanwhile,
    )


def _places(graph: Graph, count: int) -> int:
    """Under `features`."""
    return count * rows_of_device(graph.num_senders, count)


class NodeCounts(NamedTuple):
    """Numbers of edges of each place, 0 for padding."""

    in_degrees: Int[Array, " places"]
    out_degrees: Int[Array, " places"]
    self_loops: Int[Array, " places"]


def _split(
    graph: Graph,
    parts: Parts,
    mesh: Mesh,
    rows: str,
    features: str | None,
    exchange_dtype: str | None,
    costs: tuple[Cost, ...],
) -> ShardedGraph:
    """A part of a known graph on each device, or on the devices that share its columns."""
    return in_parts(
        parts,
        mesh,
        rows,
        features,
        exchange_dtype,
        costs,
        counts=_counts(graph, parts.node_of_place, mesh, rows, features),
        repeated=np.append(_repeated_self_loops(graph), False)[parts.edge_of_place],
        **_of_edges(graph, mesh),
    )


def in_parts(
    parts: Parts,
    mesh: Mesh,
    rows: str,
    features: str | None,
    exchange_dtype: str | None,
    costs: tuple[Cost, ...],
    *,
    counts: NodeCounts,
    repeated: Bool[np.ndarray, "own edges"],
    **of_edges: Any,
) -> ShardedGraph:
    """A part on each device, or on the devices that share its columns.

    Args:
        parts: those of this process's devices.
        mesh, rows, features, exchange_dtype: as for `shard`.
        costs: predicted.
        counts: of all places.
        repeated: `ShardedGraph.repeated_self_loops` of these parts.
        of_edges: `edge_permutation` and the numbers of edges of a `ShardedGraph`.
    """
    sharding = NamedSharding(mesh, PartitionSpec(rows))

    def put(leaf: np.ndarray, flat: bool = False) -> jax.Array:
        return place_parts(leaf, parts.own, mesh.shape[rows], sharding, flat=flat)

    graph, kinds, sends = jax.tree.map(put, (parts.graphs, parts.kinds, parts.sends))
    return _sharded(
        mesh,
        rows,
        features,
        parts.node_of_place,
        counts,
        graph=graph,
        kinds=kinds,
        edges=parts.edges,
        sends=sends,
        edge_of_place=put(parts.edge_of_place.astype(np.int32), flat=True),
        repeated_self_loops=put(repeated, flat=True),
        exchange_dtype=exchange_dtype,
        pair_rows=parts.pair_rows,
        halo=parts.halo,
        costs=costs,
        **of_edges,
    )


def _whole(
    graph: Graph, mesh: Mesh, features: str, exchange_dtype: str | None, costs: tuple[Cost, ...]
) -> ShardedGraph:
    """The graph on every device."""
    places = _places(graph, mesh.shape[features])
    nodes = np.arange(places, dtype=np.int32)
    edges = np.arange(graph.num_edges, dtype=np.int32)
    padded = _with_places(graph, places)
    if graph.num_edges == 0:
        # One part, which has an edge of padding: jaxlib 0.11 crashes on arrays without elements.
        alone = split(graph, np.zeros(graph.num_senders, np.int32), 1, mesh.shape[features])
        assert alone.graphs is not None
        padded, edges = jax.tree.map(lambda leaf: leaf[0], alone.graphs), alone.edge_of_place[0]
    # The sharded graph has it, too, and no array can be donated twice.
    padded = dataclasses.replace(padded, edge_permutation=None)
    repeated = np.append(_repeated_self_loops(graph), False)[edges]
    node_of_place = np.where(nodes < graph.num_senders, nodes, -1)
    everywhere = PartitionSpec()
    return _sharded(
        mesh,
        None,
        features,
        node_of_place,
        _counts(graph, node_of_place, mesh, None, features),
        graph=_put(padded, mesh, everywhere),
        kinds=None,
        edges=None,
        sends=None,
        edge_of_place=_put(edges.astype(np.int32), mesh, everywhere),
        repeated_self_loops=_put(repeated, mesh, everywhere),
        exchange_dtype=exchange_dtype,
        pair_rows=0,
        halo=0,
        costs=costs,
        **_of_edges(graph, mesh),
    )


def _sharded(
    mesh: Mesh,
    rows: str | None,
    features: str | None,
    node_of_place: np.ndarray,
    counts: NodeCounts,
    **fields: Any,
) -> ShardedGraph:
    """What the layouts have in common: data of the places."""
    known = np.flatnonzero(node_of_place >= 0)
    place_of_node = np.empty(known.size, np.int32)
    place_of_node[node_of_place[known]] = known
    return ShardedGraph(
        node_of_place=_put(node_of_place, mesh, _of_nodes(rows, features)),
        place_of_node=_put(place_of_node, mesh, PartitionSpec()),
        **counts._asdict(),
        mesh=mesh,
        rows=rows,
        features=features,
        num_nodes=known.size,
        num_senders=node_of_place.size,
        num_receivers=node_of_place.size,
        num_edges=int(fields["edge_of_place"].shape[0]),
        **fields,
    )


def _of_nodes(rows: str | None, features: str | None) -> PartitionSpec:
    return PartitionSpec(tuple(axis for axis in (rows, features) if axis is not None))


def _counts(
    graph: Graph, node_of_place: np.ndarray, mesh: Mesh, rows: str | None, features: str | None
) -> NodeCounts:
    """Those of a known graph."""

    def of_places(values: Any) -> jax.Array:
        out = np.append(np.asarray(values), 0)[node_of_place]
        return _put(out.astype(np.int32), mesh, _of_nodes(rows, features))

    return NodeCounts(
        in_degrees=of_places(np.diff(np.asarray(graph.row_offsets))),
        out_degrees=of_places(np.diff(np.asarray(graph.transpose_row_offsets))),
        self_loops=of_places(graph.self_loops),
    )


def _of_edges(graph: Graph, mesh: Mesh) -> dict[str, Any]:
    """What a `ShardedGraph` has of a known graph's edges."""
    return {
        "edge_permutation": _put(graph.edge_permutation, mesh, PartitionSpec()),
        "num_graph_edges": graph.num_edges,
        "num_input_edges": None if graph.merges_edges else graph.num_input_edges,
    }


def _repeated_self_loops(graph: Graph) -> np.ndarray:
    """Which edges are self-loops that another one of the same node follows in its row."""
    senders = np.asarray(graph.senders)
    receivers = np.repeat(np.arange(graph.num_receivers), np.diff(np.asarray(graph.row_offsets)))
    loops = senders == receivers
    # In the edge order equal edges are neighbors.
    repeated = np.zeros(senders.size, bool)
    repeated[:-1] = loops[:-1] & loops[1:] & (senders[:-1] == senders[1:])
    return repeated


def _with_places(graph: Graph, places: int) -> Graph:
    """The graph with isolated nodes up to this number, so that rows need no padding in a step.

    The rows of edges, and so the bits of results, stay. Windows are of the graph's own number of
    nodes: a graph with them is left as it is, and its rows are padded in each step.
    """
    more = places - graph.num_senders
    if more == 0 or graph.windows is not None:
        return graph

    def offsets(old: Any) -> np.ndarray:
        old = np.asarray(old)
        return np.append(old, np.full(more, old[-1], old.dtype))

    def schedule(old: Any) -> np.ndarray | None:
        added = np.arange(graph.num_senders, places, dtype=np.int32)
        return None if old is None else np.append(np.asarray(old), added)

    def tiled(old: Tiles | None) -> Tiles | None:
        return None if old is None else append_rows(old, more)

    rows, row_schedule = offsets(graph.row_offsets), schedule(graph.row_schedule)
    transpose, transpose_schedule = rows, row_schedule
    tiles = transpose_tiles = tiled(graph.tiles)
    if not graph.symmetric:
        transpose = offsets(graph.transpose_row_offsets)
        transpose_schedule = schedule(graph.transpose_row_schedule)
        transpose_tiles = tiled(graph.transpose_tiles)
    return dataclasses.replace(
        graph,
        row_offsets=rows,
        transpose_row_offsets=transpose,
        row_schedule=row_schedule,
        transpose_row_schedule=transpose_schedule,
        tiles=tiles,
        transpose_tiles=transpose_tiles,
        self_loops=np.append(np.asarray(graph.self_loops), np.zeros(more, np.int32)),
        num_senders=places,
        num_receivers=places,
    )


def _put(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    """The arrays on the mesh; those that a symmetric graph shares stay shared."""
    leaves, structure = jax.tree.flatten(tree)
    placed = {
        key: place(leaf, NamedSharding(mesh, spec))
        for key, leaf in {id(leaf): leaf for leaf in leaves}.items()
    }
    return jax.tree.unflatten(structure, [placed[id(leaf)] for leaf in leaves])
