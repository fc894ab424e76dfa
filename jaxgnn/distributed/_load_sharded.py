"""A saved partition over the devices of a mesh: each process reads its own parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from jaxgnn._core import checks
from jaxgnn._core.limits import DataError, reading
from jaxgnn.distributed import _partition_files as files
from jaxgnn.distributed._arguments import check_axes, sent_bytes
from jaxgnn.distributed._halo import Halo
from jaxgnn.distributed._parts import Parts, Places, of_own_edges, place_nodes, rank
from jaxgnn.distributed._placement import own_parts, place_parts, take_known, to_host
from jaxgnn.distributed._shard import NodeCounts, in_parts, part_cost
from jaxgnn.distributed._sharded_graph import ShardedGraph


class _Edges(NamedTuple):
    """Those that end at the nodes of a part, sorted by receiver and sender."""

    senders: Int[np.ndarray, " edges"]
    receivers: Int[np.ndarray, " edges"]


class _Halo(NamedTuple):
    """Of a part, the foreign nodes that its edges start from, sorted by owner and node.

    Attributes:
        node, source: the nodes and their owners.
        slot: the place of each among those of one owner.
        edges: that start from each.
        of_edge: its place in these lists, for each foreign edge.
    """

    node: Int[np.ndarray, " halo"]
    source: Int[np.ndarray, " halo"]
    slot: Int[np.ndarray, " halo"]
    edges: Int[np.ndarray, " halo"]
    of_edge: Int[np.ndarray, " foreign"]


class _Placed(NamedTuple):
    """Of a part, by rows of its own and of its halo.

    Attributes:
        edges: senders and receivers.
        sends: rows that other parts need, and their places in what is sent.
        counts: edges to each own row, from it, and self-loops.
    """

    edges: tuple[np.ndarray, np.ndarray]
    sends: tuple[np.ndarray, np.ndarray]
    counts: tuple[np.ndarray, np.ndarray, np.ndarray]


def load_sharded(
    directory: str | os.PathLike[str],
    mesh: Mesh,
    *,
    rows: str,
    features: str | None = None,
    exchange_dtype: str | None = None,
    row_schedule: bool = False,
    overlap: bool | None = None,
) -> tuple[ShardedGraph, dict[str, jax.Array]]:
    """A folder of `Partition.save` as `shard` would split its graph, by rows or by both axes.

    A process reads the edges and arrays of the parts that its own devices hold, and of the others
    their lists of nodes alone; what it needs to know of their edges they tell each other. So no
    host needs the memory for the whole graph. All processes make the same call.

    Args:
        directory: on a file system that each process sees, at least its own parts' folders and
            the `nodes.npy` of all.
        mesh: as for `shard`.
        rows: the axis over which the parts are split. Of a multiple of its devices, neighboring
            parts are joined.
        features: a second axis, over which columns are split; or `None`.
        exchange_dtype: as for `shard`.
        row_schedule: give each part one (`Graph.with_row_schedule`).
        overlap: as for `shard`.

    Returns:
        The graph, and the arrays of numbers that were saved with it, as `scatter` would place
        those of nodes, and `scatter_edges` those of edges. Edges are numbered by receiver and
        sender, so `scatter_edges` needs `in_graph_order=True`.

    Raises:
        DataError: an interrupted, damaged or mismatched folder; it names the file.
        TypeError: `mesh` is no mesh, or `row_schedule` or `overlap` no bool.
        ValueError: axes that the mesh does not have, or parts that are no multiple of its devices.
    """
    mesh = check_axes(mesh, rows, features, exchange_dtype, overlap)
    if rows is None:
        raise ValueError(f"rows: expected an axis of {mesh.axis_names}, got None")
    row_schedule = checks.boolean(row_schedule, "row_schedule")
    manifest = files.read_manifest(directory)
    count, total = mesh.shape[rows], manifest["parts"]
    if total % count:
        raise ValueError(f"rows: expected a divisor of the {total} parts, got {count} devices")
    joined = total // count
    owner = files.read_owner(directory, manifest) // np.int32(joined)
    by_rows = NamedSharding(mesh, PartitionSpec(rows))
    own = own_parts(by_rows, count)
    read = [_read(directory, range(part * joined, (part + 1) * joined)) for part in own]
    edges = [edges for edges, *_ in read]
    places = place_nodes(owner, count, 1 if features is None else mesh.shape[features])

    halos = [_halo(own_edges, owner, part) for own_edges, part in zip(edges, own, strict=True)]
    # Of parts: halo rows by owner, edges, and those from the halo.
    numbers = np.zeros((count, count + 2), np.int32)
    for part, halo, own_edges in zip(own, halos, edges, strict=True):
        numbers[part, :count] = np.bincount(halo.source, minlength=count)
        numbers[part, count:] = own_edges.senders.size, halo.of_edge.size
    if jax.process_count() > 1:
        numbers = multihost_utils.process_allgather(numbers).max(axis=0)
    halo_rows, num_edges, halo_edges = numbers[:, :count], numbers[:, count], numbers[:, count + 1]
    with reading(os.path.join(directory, "manifest.json")):
        if num_edges.sum(dtype=np.int64) != manifest.get("edges"):
            raise DataError(f"expected {manifest.get('edges')} edges, got {num_edges.sum()}")
    exchange = Halo.of(places.rows, halo_rows)
    requests, used = _exchanged(halos, own, count, int(halo_rows.max()), by_rows)

    of_parts = zip(own, edges, halos, requests, used, strict=True)
    placed = [_placed(places, exchange, owner, *of_part) for of_part in of_parts]
    parts = of_own_edges(
        places,
        [part.edges for part in placed],
        [part.sends for part in placed],
        parts=count,
        own=own,
        num_edges=num_edges,
        halo_edges=halo_edges,
        halo_rows=halo_rows,
        overlap=overlap,
        sent_bytes=sent_bytes(exchange_dtype),
        scheduled=row_schedule,
    )
    of_nodes = NamedSharding(
        mesh, PartitionSpec(tuple(axis for axis in (rows, features) if axis is not None))
    )

    def put(own_rows: np.ndarray, sharding: NamedSharding = of_nodes) -> jax.Array:
        return place_parts(own_rows, own, count, sharding, flat=True)

    degrees = NodeCounts(
        *(put(np.stack(own)) for own in zip(*(part.counts for part in placed), strict=True))
    )
    of_places = parts.edge_of_place
    parts, repeated = _numbered(parts, edges, to_host(degrees.in_degrees), owner)
    graph = in_parts(
        parts,
        mesh,
        rows,
        features,
        exchange_dtype,
        (part_cost(mesh, rows, features, parts),),
        counts=degrees,
        repeated=repeated,
        edge_permutation=None,
        num_graph_edges=int(num_edges.sum(dtype=np.int64)),
        num_input_edges=None,
    )
    arrays: dict[str, jax.Array] = {}
    for name in sorted(set.intersection(*(set(found) for _, found, _ in read))):
        of_own = [found[name] for _, found, _ in read]
        if of_own[0].dtype.kind not in "SU":
            padded = [_padded(values, places.rows) for values in of_own]
            arrays[name] = put(np.stack(padded))
    for name in manifest["edge_arrays"]:
        of_own = [found[name] for *_, found in read]
        if of_own[0].dtype.kind not in "SU":
            placed_rows = [take_known(*pair, 0) for pair in zip(of_own, of_places, strict=True)]
            arrays[name] = put(np.stack(placed_rows), by_rows)
    return graph, arrays


def _read(
    directory: str | os.PathLike[str], parts: Sequence[int]
) -> tuple[_Edges, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The edges of neighboring parts as one, and their arrays: of nodes, by ascending node, and of
    edges."""
    read = [files.read_part(directory, part) for part in parts]
    senders = np.concatenate([part.senders for part in read]).astype(np.int64)
    receivers = np.concatenate([np.repeat(p.nodes, np.diff(p.row_offsets)) for p in read])
    order = np.lexsort((senders, receivers))
    by_node = np.argsort(np.concatenate([part.nodes for part in read]))
    names = set.intersection(*(set(part.arrays) for part in read))
    arrays = {name: np.concatenate([p.arrays[name] for p in read])[by_node] for name in names}
    edge_arrays = {
        name: np.concatenate([p.edge_arrays[name] for p in read])[order]
        for name in read[0].edge_arrays
    }
    return _Edges(senders[order], receivers[order]), arrays, edge_arrays


def _halo(edges: _Edges, owner: Int[np.ndarray, " num_nodes"], part: int) -> _Halo:
    starts = owner[edges.senders].astype(np.int64)
    foreign = starts != part
    keys = starts[foreign] * owner.size + edges.senders[foreign]
    halo, of_edge, used = np.unique(keys, return_inverse=True, return_counts=True)
    source, node = np.divmod(halo, owner.size)
    return _Halo(node, source, rank(source, np.bincount(source)), used, of_edge)


def _exchanged(
    halos: list[_Halo], own: Sequence[int], parts: int, pair_rows: int, sharding: NamedSharding
) -> tuple[np.ndarray, np.ndarray]:
    """What other parts need of the own ones: `[own, parts, pair_rows]` nodes, -1 for padding, and
    the edges that start from each. They travel by one `all_to_all` of the devices."""
    asked = np.full((len(own), parts, max(pair_rows, 1), 2), -1, np.int32)
    for i, halo in enumerate(halos):
        asked[i, halo.source, halo.slot] = np.stack([halo.node, halo.edges], axis=1)
    stacked = place_parts(asked, own, parts, sharding)
    turned = jax.jit(lambda x: x.swapaxes(0, 1), out_shardings=sharding)(stacked)
    of_part = {
        shard.index[0].indices(parts)[0]: np.asarray(shard.data)[0]
        for shard in turned.addressable_shards
    }
    told = np.stack([of_part[part] for part in own])
    return told[..., 0], told[..., 1]


def _placed(
    places: Places,
    exchange: Halo,
    owner: Int[np.ndarray, " num_nodes"],
    part: int,
    edges: _Edges,
    halo: _Halo,
    requests: Int[np.ndarray, "parts pair_rows"],
    used: Int[np.ndarray, "parts pair_rows"],
) -> _Placed:
    """`requests` are the nodes that other parts need, `used` their edges from each."""
    row, (senders, receivers) = places.row, edges

    def counts(nodes: np.ndarray, edges: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(row[nodes], edges, minlength=places.rows).astype(np.int32)

    local, foreign = row[senders], owner[senders] != part
    of_halo = exchange.places(part, halo.source, halo.slot, row[halo.node])
    local[foreign] = of_halo[halo.of_edge]
    need, slot = np.nonzero(requests >= 0)
    nodes = requests[need, slot]
    return _Placed(
        edges=(local, row[receivers]),
        sends=(row[nodes], need * exchange.pair_rows + slot),
        counts=(
            counts(receivers),
            counts(senders[~foreign]) + counts(nodes, used[need, slot]),
            counts(senders[senders == receivers]),
        ),
    )


def _numbered(
    parts: Parts,
    edges: list[_Edges],
    in_degrees: Int[np.ndarray, " places"],
    owner: Int[np.ndarray, " num_nodes"],
) -> tuple[Parts, np.ndarray]:
    """The parts with the edges' numbers in the whole graph in place of those in the part; also
    which edges are self-loops that another one of the node follows."""
    known = np.flatnonzero(parts.node_of_place >= 0)
    degrees = np.zeros(owner.size + 1, np.int64)
    degrees[parts.node_of_place[known] + 1] = in_degrees[known]
    offsets = np.cumsum(degrees)
    numbers, repeated = [], []
    for (senders, receivers), order in zip(edges, parts.edge_of_place, strict=True):
        place = np.arange(receivers.size)
        first = np.maximum.accumulate(place * (np.diff(receivers, prepend=-1) > 0))  # of its row
        number = offsets[receivers] + place - first
        loops = senders == receivers
        follows = np.zeros(senders.size, bool)
        follows[:-1] = loops[:-1] & loops[1:] & (receivers[:-1] == receivers[1:])
        numbers.append(np.append(number, -1)[order])
        repeated.append(np.append(follows, False)[order])
    return parts._replace(edge_of_place=np.stack(numbers)), np.stack(repeated)


def _padded(values: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(values, [(0, rows - values.shape[0])] + [(0, 0)] * (values.ndim - 1))
