"""An operation on each device's part of a sharded graph, in `shard_map`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from jaxgnn._core import checks
from jaxgnn.distributed._arguments import check_context
from jaxgnn.distributed._edge_kinds import EdgeKinds, reduce_kinds
from jaxgnn.distributed._exchange import exchange, receive_halo, zero_row
from jaxgnn.graph import End, Graph, Split

if TYPE_CHECKING:
    from jaxgnn.distributed._sharded_graph import ShardedGraph


def map_parts(
    sharded: ShardedGraph,
    operation: Callable[..., Any],
    name: str,
    arguments: dict[str, Any],
    ends: Mapping[str, End],
    result: End | tuple[End, ...],
    split: Split | None,
    reduce: str | None,
) -> Any:
    """`GraphSubstitute.map_parts`.

    By features each device gets its columns or heads of all rows of its part, and gives them back
    as all columns of its places. By rows the senders' rows are extended by the halo, or sums and
    means over the halo's edges are added to those over the owned ones. Edge data of padding is
    taken as 0 and has no gradient: padding starts from nodes, and 0 times infinity is no 0. It
    ends at a part's last row, which is 0 in data of receivers, before and after.
    """
    check_context()
    if sharded.features is not None and split is None:
        raise ValueError(
            f"graph: {name} expected a graph sharded by rows, got one by {sharded.layout}: "
            f"{_by_rows_alone(sharded)}"
        )
    options = operation.keywords if isinstance(operation, functools.partial) else {}
    if options.get("impl") == "tiles" and sharded.rows is not None:
        raise ValueError(
            "impl: 'tiles' needs a graph with tiles, and the parts of one sharded by rows have none"
        )
    _check(sharded, arguments, ends, split)
    in_two = sharded.kinds is not None and reduce in ("sum", "mean")
    if in_two and sharded.graph is not None:
        in_two = "senders" in map(ends.get, arguments)  # else there is nothing to wait for
    if not in_two and sharded.graph is None and result != "rows":
        raise ValueError(
            f"graph: {name} expected all edges of a receiver in one graph, got those of overlap "
            "alone: use shard(graph, mesh, rows=..., overlap=False)"
        )
    nodes, edges = PartitionSpec(sharded.node_axes), PartitionSpec(sharded.rows)
    specs = {"edges": edges, "replicated": PartitionSpec(), "key": PartitionSpec()}

    def spec_of(end: End) -> PartitionSpec:
        return specs.get(end, nodes)

    def of_device(
        graph: Graph | None,
        kinds: EdgeKinds | None,
        sends: Graph | None,
        edge_of_place: Array | None,
        arguments: dict[str, Any],
    ) -> Any:
        if sharded.rows is not None:
            graph, kinds, sends = jax.tree.map(lambda leaf: leaf[0], (graph, kinds, sends))
        part = graph if kinds is None else kinds.owned
        edge_mask = None if edge_of_place is None else edge_of_place >= 0
        own = _of_part(sharded, part, arguments, ends, split, edge_mask)
        halo = _received(sharded, sends, own, ends)
        if in_two:
            assert kinds is not None and reduce is not None
            out = reduce_kinds(kinds, operation, reduce, own, halo, ends)
        else:
            if sends is not None:  # else the own rows are with those that were received
                halo = {
                    name: jax.tree.map(lambda *rows: jnp.concatenate(rows), own[name], rows)
                    for name, rows in halo.items()
                }
            out = operation(graph, **{**own, **halo})
        if isinstance(result, str):
            return _to_places(sharded, out, result, split, arguments, edge_mask)
        pairs = zip(out, result, strict=True)
        return tuple(
            _to_places(sharded, array, end, split, arguments, edge_mask) for array, end in pairs
        )

    of_arguments = {argument: spec_of(ends[argument]) for argument in arguments}
    mapped = jax.shard_map(
        of_device,
        mesh=sharded.mesh,
        in_specs=(edges, edges, edges, edges, of_arguments),
        out_specs=spec_of(result) if isinstance(result, str) else tuple(map(spec_of, result)),
    )
    edges_of = (None, sharded.kinds) if in_two else (sharded.graph, None)
    padded = sharded.num_edges > sharded.num_graph_edges
    return mapped(*edges_of, sharded.sends, sharded.edge_of_place if padded else None, arguments)


def check_rows(x: Any, name: str, count: int, what: str) -> Any:
    """`x`, if it has this number of rows; of a list the array.

    Raises:
        TypeError: strings or objects.
        ValueError: another number of rows, or lists that are no array.
    """
    if isinstance(x, list | tuple):
        x = checks.host_array(x, name)
    if isinstance(x, np.ndarray) and x.dtype.kind in "OSU":
        raise TypeError(f"{name}: expected an array of numbers, got {x.dtype}")
    shape = np.shape(x)
    if shape[:1] != (count,):
        raise ValueError(
            f"{name}: expected the shape ({count}, ...), a row for each {what}, got {shape}"
        )
    return x


def _check(
    sharded: ShardedGraph, arguments: dict[str, Any], ends: Mapping[str, End], split: Split | None
) -> None:
    columns = 1 if sharded.features is None else sharded.mesh.shape[sharded.features]
    for name, value in arguments.items():
        if ends[name] in ("replicated", "key"):
            continue
        count = sharded.num_edges if ends[name] == "edges" else sharded.num_senders
        for leaf in jax.tree.leaves(value):
            check_rows(leaf, name, count, "place")
            if split == "heads" and leaf.ndim > 1 and leaf.shape[1] % columns:
                raise ValueError(
                    f"{name}: expected heads that {columns} devices divide on a graph sharded by "
                    f"{sharded.layout}, got {leaf.shape[1]}: {_by_rows_alone(sharded)}"
                )


def _by_rows_alone(sharded: ShardedGraph) -> str:
    """What to do where columns or heads cannot be shared."""
    alone = "" if sharded.rows is None else " rows alone, as in"
    return f"use{alone} shard(graph, mesh, rows=...)"


def _of_part(
    sharded: ShardedGraph,
    graph: Graph | None,
    arguments: dict[str, Any],
    ends: Mapping[str, End],
    split: Split | None,
    edge_mask: Array | None,
) -> dict[str, Any]:
    """A device's arguments as its part takes them; of senders its own rows.

    `edge_mask` is `None` where no place of edges is padding.
    """
    own = {
        name: jax.tree.map(functools.partial(_columns, sharded, ends[name], split), value)
        for name, value in arguments.items()
    }
    for name, value in own.items():
        if ends[name] == "key":
            # Parts number their edges alike: a key of its own keeps their masks apart.
            own[name] = jax.random.fold_in(value, jax.lax.axis_index(sharded.node_axes))
        elif ends[name] == "edges" and edge_mask is not None:
            own[name] = jax.tree.map(lambda leaf: _where(edge_mask, leaf, jnp.zeros_like), value)
        elif ends[name] in ("receivers", "senders") and sharded.rows is None:
            assert graph is not None  # of `rows` alone there are no receivers
            rows = graph.num_receivers if ends[name] == "receivers" else graph.num_senders
            own[name] = jax.tree.map(functools.partial(_resized, rows=rows), value)
        if ends[name] == "receivers" and _has_padding(sharded, edge_mask):
            own[name] = jax.tree.map(_without_padding, own[name])
    return own


def _received(
    sharded: ShardedGraph, sends: Graph | None, own: dict[str, Any], ends: Mapping[str, End]
) -> dict[str, Any]:
    """The halo of the senders' rows, by the arguments' names; none where no rows travel."""
    senders = {name: value for name, value in own.items() if ends[name] == "senders"}
    if sharded.rows is None or sharded.pair_rows == 0 or not senders:
        return {}
    leaves, structure = jax.tree.flatten(senders)
    halo = receive_halo(
        leaves,
        sends,
        sharded.rows,
        sharded.mesh.shape[sharded.rows],
        sharded.pair_rows,
        sharded.exchange_dtype,
    )
    return jax.tree.unflatten(structure, halo)


def _columns(sharded: ShardedGraph, end: End, split: Split | None, x: Array) -> Array:
    """All rows of a part, and the device's share of the columns or heads."""
    features = sharded.features
    if features is None or split not in ("columns", "heads"):
        return x
    devices = sharded.mesh.shape[features]
    if end in ("senders", "receivers"):
        axis = x.ndim - 1 if split == "columns" else 1
        more = -x.shape[axis] % devices
        widths = [(0, 0)] * axis + [(0, more)] + [(0, 0)] * (x.ndim - 1 - axis)
        return exchange(jnp.pad(x, widths), features, axis, 0, sharded.exchange_dtype)
    if split == "columns" or end == "key" or x.ndim == 0:
        return x
    axis = 1 if end == "edges" else 0
    heads = x.shape[axis] // devices
    first = jax.lax.axis_index(features) * heads
    return jax.lax.dynamic_slice_in_dim(x, first, heads, axis)


def _to_places(
    sharded: ShardedGraph,
    out: Any,
    end: End,
    split: Split | None,
    arguments: dict[str, Any],
    edge_mask: Array | None,
) -> Any:
    """A part's result as the device's share of it: rows of its places."""
    if end == "edges" and edge_mask is not None:
        return _where(edge_mask, out, jax.lax.stop_gradient)
    if end != "receivers" or out is None:
        return out
    out = _without_padding(out) if _has_padding(sharded, edge_mask) else out
    out = _resized(out, sharded.num_senders) if sharded.rows is None else out
    if sharded.features is None:
        return out
    if split == "edges":
        own = sharded.num_senders // sharded.parts
        first = jax.lax.axis_index(sharded.features) * own
        return jax.lax.dynamic_slice_in_dim(out, first, own)
    axis = out.ndim - 1 if split == "columns" else 1
    out = exchange(out, sharded.features, 0, axis, sharded.exchange_dtype)
    return out[..., : arguments["x"].shape[-1]] if split == "columns" else out


def _where(mask: Array, x: Array, otherwise: Callable[[Array], Array]) -> Array:
    """The rows where the mask is true; of the others `otherwise`. Integers stay as they are."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, otherwise(x))


def _has_padding(sharded: ShardedGraph, edge_mask: Array | None) -> bool:
    """Whether the last receiver of a device's graph may have padding edges: by features that of a
    graph without edges. With overlap parts of as many edges may have other numbers of each kind."""
    return sharded.rows is not None or edge_mask is not None


def _without_padding(x: Array) -> Array:
    """0 in the last row, where padding edges end."""
    return zero_row(x, x.shape[0] - 1)


def _resized(x: Array, rows: int) -> Array:
    """Rows of 0 at the end, or none of the last ones."""
    if x.shape[0] >= rows:
        return x[:rows]
    return jnp.pad(x, [(0, rows - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
