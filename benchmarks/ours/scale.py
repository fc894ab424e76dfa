"""One device's share of a sharded step, without the others: what the suite `scale` times.

The exchange is replaced by local work on buffers of the same shape. By rows a part is a sharded
graph over one device whose halo is what it packs itself. By features the device turns its rows
into as many columns of as many rows as it would receive, and back.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxtyping import Array

from jaxgnn import Graph, spmm
from jaxgnn.distributed import ShardedGraph
from jaxgnn.graph import GraphSubstitute

AXIS = "devices"
_SIZES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "u8": 1, "s8": 1, "pred": 1}
_SIZES |= {"u16": 2, "s16": 2}
_FLOATS = ("f32", "f64", "bf16", "f16")


def mesh_of(devices: Any) -> Mesh:
    """A mesh of one axis over these devices."""
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def part_by_rows(sharded: ShardedGraph, part: int, device: Any) -> ShardedGraph:
    """A part alone on a device: it receives the rows that it sends, as many as it would."""
    parts = sharded.parts
    owner = sharded.mesh.devices.flat[part]

    def own(leaf: Array) -> Array:
        (data,) = (s.data for s in leaf.addressable_shards if s.device == owner)
        return jax.device_put(np.asarray(data), device)

    # Of arrays that are on every device the step reads none.
    small = dataclasses.replace(sharded, place_of_node=sharded.node_of_place, edge_permutation=None)
    return dataclasses.replace(
        jax.tree.map(own, small),
        mesh=mesh_of([device]),
        num_senders=sharded.num_senders // parts,
        num_receivers=sharded.num_receivers // parts,
        num_edges=sharded.num_edges // parts,
        pair_rows=sharded.pair_rows * parts,
    )


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "node_mask", "in_degrees", "self_loops", "repeated_self_loops"],
    meta_fields=["parts", "num_senders", "num_receivers", "num_edges"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class ShareOfColumns(GraphSubstitute):
    """A device's share by features: the whole graph, and the rows of the first places.

    Attributes:
        graph: the whole one, with a row for each place.
        parts: the devices.
    """

    graph: Graph
    node_mask: Any
    in_degrees: Any
    self_loops: Any
    repeated_self_loops: Any
    parts: int
    num_senders: int
    num_receivers: int
    num_edges: int

    @classmethod
    def of(cls, graph: Graph, parts: int, num_nodes: int) -> ShareOfColumns:
        """That of a graph whose places the devices divide; the last ones are padding."""
        rows = graph.num_senders // parts
        return cls(
            graph,
            jnp.arange(rows) < num_nodes,
            graph.in_degrees[:rows],
            graph.self_loops[:rows],
            jnp.zeros(graph.num_edges, bool),
            parts,
            rows,
            rows,
            graph.num_edges,
        )

    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """The whole graph on a share of the columns, between two exchanges with itself."""
        width = x.shape[-1]
        columns = to_columns(x, self.parts)
        return to_rows(spmm(self.graph, columns, weights, **options), self.parts)[..., :width]

    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        raise NotImplementedError("no model of the suite reduces edges' data")

    def map_parts(
        self,
        operation: Callable[..., Any],
        name: str,
        arguments: dict[str, Any],
        ends: Any,
        result: Any = "receivers",
        **options: Any,
    ) -> Any:
        """What works on rows alone, such as dropout, runs on the device's own."""
        if result != "rows":
            raise ValueError(f"{name}: expected an operation by columns or on rows alone")
        return operation(self, **arguments)


def to_columns(x: Array, parts: int) -> Array:
    """[rows, F] as [parts * rows, F / parts], the columns padded to a multiple of the parts."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % parts)))
    blocks = x.reshape(x.shape[0], parts, -1)
    return blocks.swapaxes(0, 1).reshape(parts * x.shape[0], -1)


def to_rows(x: Array, parts: int) -> Array:
    """The inverse, but for the padding."""
    blocks = x.reshape(parts, x.shape[0] // parts, -1)
    return blocks.swapaxes(0, 1).reshape(x.shape[0] // parts, -1)


def repeat_rows(parts: int, x: Array, _: Any) -> Array:
    """What a part sends where that is all of its rows; the others' lie where it reads them."""
    return jnp.broadcast_to(x, (parts, *x.shape)).reshape(-1, x.shape[1])


def pack_halo(x: Array, sends: Graph) -> Array:
    """What a part packs."""
    return spmm(sends, x)


def pack_rows(x: Array, sends: Graph) -> Array:
    """The same behind its own rows."""
    return jnp.concatenate([x, pack_halo(x, sends)])


def pack_columns(indices: Array, sends: Graph) -> Array:
    """The same of the columns that MaxK kept."""
    first = jnp.minimum(sends.row_offsets[:-1], sends.num_edges - 1)
    return jnp.concatenate([indices, indices[sends.senders[first]]])


def sent_bytes(compiled: Any, parts: int, itemsize: int) -> dict[str, Any]:
    """What a device sends in a compiled program, by kind of collective, and how many of each.

    Args:
        compiled: for as many devices.
        parts: the devices.
        itemsize: of floating values that `all_to_all` sends: XLA's CPU widens them.
    """
    found = {"all-to-all": 0.0, "all-reduce": 0.0}
    counts = dict.fromkeys((*found, "all-gather", "collective-permute", "reduce-scatter"), 0)
    for types, name in re.findall(r"= (.*?) ([a-z-]+)\(", compiled.as_text()):
        if name not in counts:
            continue
        counts[name] += 1
        if name not in found:
            continue
        for kind, shape in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", types):
            size = itemsize if name == "all-to-all" and kind in _FLOATS else _SIZES[kind]
            found[name] += size * np.prod([int(n) for n in shape.split(",") if n])
    # Each sends all but its own block; a ring's all-reduce passes the array around twice.
    share = (parts - 1) / parts
    return {
        "exchange_bytes": float(found["all-to-all"] * share),
        "reduce_bytes": float(2 * found["all-reduce"] * share),
        "collectives": {name: count for name, count in counts.items() if count},
    }
