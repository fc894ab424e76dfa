"""A graph over the devices of a mesh, in a graph's place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PyTree, Shaped

from jaxgnn.graph import Graph, GraphSubstitute
from jaxgnn.ops import segment_reduce, spmm

Layout = Literal["rows", "features"]

_ARRAYS = (
    "graph",
    "sends",
    "node_of_place",
    "place_of_node",
    "edge_of_place",
    "edge_permutation",
    "in_degrees",
    "self_loops",
    "repeated_self_loops",
)
_STATIC = (
    "mesh",
    "axis",
    "layout",
    "num_nodes",
    "num_senders",
    "num_receivers",
    "num_edges",
    "pair_rows",
    "halo",
    "exchange_dtype",
    "num_graph_edges",
    "num_input_edges",
)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=list(_ARRAYS), meta_fields=list(_STATIC)
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ShardedGraph(GraphSubstitute):
    """A square graph whose nodes' data is split over an axis of a mesh: see `shard`.

    Operations and modules that take it use node data as `scatter` returns it, a row for each
    *place*, split by rows: every device has the same number of places, and some are padding.
    Outputs are in the same order; `gather` brings them back. Results of real nodes do not depend
    on padding, but rows of padding have values: sum a loss where `node_mask` is true.

    Attributes:
        graph: the parts, stacked; under `features` the whole graph, on every device.
        sends: of each part, which rows it sends, as a graph; `None` under `features`.
        node_of_place: the node of each place, -1 for padding.
        place_of_node: the place of each node.
        edge_of_place: the graph's edge of each place of `scatter_edges`, -1 for padding.
        edge_permutation: the graph's own.
        in_degrees, self_loops: of each place, 0 for padding.
        repeated_self_loops: the edges that are self-loops which another one of the node follows.
        mesh, axis: the devices.
        layout: `"rows"` or `"features"`.
        num_nodes: of the graph, without padding.
        num_senders, num_receivers: places.
        num_edges: places of edges.
        pair_rows: under `rows`, that a part sends to each other one, with padding.
        halo: under `rows`, foreign rows that the parts need, summed over them.
        num_graph_edges: without padding.
        exchange_dtype: in which rows travel; `None` for their own.
        num_input_edges: of the user's list; `None` where `scatter_edges` cannot take its order.
    """

    graph: Graph
    sends: Graph | None
    node_of_place: Int[Array, " places"]
    place_of_node: Int[Array, " num_nodes"]
    edge_of_place: Int[Array, " num_edges"]
    edge_permutation: Int[Array, " edges"] | None
    in_degrees: Int[Array, " places"]
    self_loops: Int[Array, " places"]
    repeated_self_loops: Bool[Array, " num_edges"]
    mesh: Mesh
    axis: str
    layout: Layout
    num_nodes: int
    num_senders: int
    num_receivers: int
    num_edges: int
    pair_rows: int
    halo: int
    exchange_dtype: str | None
    num_graph_edges: int
    num_input_edges: int | None

    @property
    def parts(self) -> int:
        """The number of devices on the axis."""
        return self.mesh.shape[self.axis]

    @property
    def node_mask(self) -> Bool[Array, " places"]:
        """Which places are no padding."""
        return self.node_of_place >= 0

    def scatter(self, x: Shaped[Array, "num_nodes *rest"]) -> Shaped[Array, "places *rest"]:
        """Nodes' data, in the user's order, as the graph takes it: 0 for padding.

        Raises:
            ValueError: no row for each node.
        """
        x = _rows(x, "x", self.num_nodes, "node")
        return self._put(_take(x, self.node_of_place, 0), PartitionSpec(self.axis))

    def gather(self, y: Shaped[Array, "places *rest"]) -> Shaped[Array, "num_nodes *rest"]:
        """The rows of the nodes, in the user's order. Inside `jit` all devices receive all rows.

        Raises:
            ValueError: no row for each place.
        """
        y = _rows(y, "y", self.num_senders, "place")
        return y[
            np.asarray(self.place_of_node) if isinstance(y, np.ndarray) else self.place_of_node
        ]

    def scatter_edges(
        self, values: Shaped[Array, "edges *rest"], *, in_graph_order: bool = False
    ) -> Shaped[Array, "num_edges *rest"]:
        """Edges' data as the graph takes it: 0 for padding, 1 for edges that a constructor added.

        Args:
            values: in the order of the user's list.
            in_graph_order: they are in the graph's edge order, as `Graph.sort_edge_data` returns
                them.

        Raises:
            ValueError: no row for each edge; or the graph merged edges or dropped its permutation,
                and the data is not in its order.
        """
        if not in_graph_order:
            if self.edge_permutation is None or self.num_input_edges is None:
                raise ValueError(
                    "values: the graph merged edges or dropped their order: give "
                    "graph.sort_edge_data(values), with in_graph_order=True"
                )
            values = _rows(values, "values", self.num_input_edges, "edge")
            values = _take(values, self.edge_permutation, 1)
        spec = PartitionSpec(self.axis if self.layout == "rows" else None)
        values = _rows(values, "values", self.num_graph_edges, "edge")
        if self.layout == "features":
            return self._put(values, spec)
        return self._put(_take(values, self.edge_of_place, 0), spec)

    def replicate(self, tree: PyTree) -> PyTree:
        """The arrays on every device: of parameters, so that a step compiles once."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def explain(self, features: int = 1, itemsize: int = 4) -> str:
        """The layout, its padding, and the bytes that a device sends in one aggregation.

        Args:
            features: width of the rows.
            itemsize: bytes of a value.
        """
        parts, nodes = self.parts, self.num_nodes
        places = self.num_senders / max(nodes, 1)
        if self.layout == "features":
            width = -(-features // parts) * parts
            sent = 2 * self.num_senders * width * (parts - 1) / parts**2
            formula = "2 N F (P - 1) / P^2"
            ideal = 2 * nodes * features * (parts - 1) / parts**2
            how = "all_to_all from rows to columns, and back; the graph is on every device"
        else:
            sent = self.pair_rows * (parts - 1) * features
            formula = f"h N F / P, h = {self.halo / max(nodes, 1):.3f}"
            ideal = self.halo * features / parts
            how = "halo rows by one all_to_all; a part of the graph on every device"
        size = itemsize if self.exchange_dtype is None else jnp.dtype(self.exchange_dtype).itemsize
        return (
            f"layout {self.layout} over {parts} devices ({self.axis}): {how}\n"
            f"sent a device and aggregation of {features} features: {sent * size:,.0f} bytes; "
            f"{formula} gives {ideal * size:,.0f}\n"
            f"padding: {places:.3f} places a node; "
            f"{sent / ideal if ideal else 1:.3f} values sent for each needed"
        )

    def __repr__(self) -> str:
        return f"ShardedGraph(num_nodes={self.num_nodes}, parts={self.parts}, layout={self.layout})"

    # In a graph's place: the operations call these.

    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """`jaxgnn.spmm`: `x` by places, `weights` as of `scatter_edges`."""
        if self.layout == "rows" and options["transpose"]:
            raise ValueError("transpose: expected False on a graph sharded by rows, got True")
        if x.ndim < 2:
            raise ValueError(f"x: expected [places, ..., F] on a sharded graph, got {x.shape}")
        aggregate = self._by_rows if self.layout == "rows" else self._by_features
        rows = PartitionSpec(self.axis)
        edges = rows if self.layout == "rows" else PartitionSpec()
        run = self._mapped(functools.partial(aggregate, options), (rows, edges), rows)
        return run(self.graph, self.sends, x, weights)

    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        """`jaxgnn.segment_reduce` of data as of `scatter_edges`."""
        if self.layout == "rows" and options["by"] == "senders":
            raise ValueError("by: expected 'receivers' on a graph sharded by rows, got 'senders'")
        rows = PartitionSpec(self.axis)

        def of_rows(graph: Graph, _: None, data: Array) -> Array:
            return segment_reduce(graph, data, reduce, **options)[: self._local]

        def of_features(graph: Graph, _: None, data: Array) -> Array:
            out = self._padded(segment_reduce(graph, data, reduce, **options))
            first = jax.lax.axis_index(self.axis) * self._local
            return jax.lax.dynamic_slice_in_dim(out, first, self._local)

        if self.layout == "rows":
            return self._mapped(of_rows, (rows,), rows)(self.graph, None, data)
        return self._mapped(of_features, (PartitionSpec(),), rows)(self.graph, None, data)

    def _mapped(self, function: Callable[..., Array], specs: tuple, out: PartitionSpec) -> Any:
        """`function` of each device's graph and arguments."""
        of_graph = PartitionSpec(self.axis) if self.layout == "rows" else PartitionSpec()

        def of_device(graph: Graph, sends: Graph | None, *arguments: Array | None) -> Array:
            if self.layout == "rows":
                graph, sends = jax.tree.map(lambda leaf: leaf[0], (graph, sends))
            return function(graph, sends, *arguments)

        return jax.shard_map(
            of_device, mesh=self.mesh, in_specs=(of_graph, of_graph, *specs), out_specs=out
        )

    @property
    def _local(self) -> int:
        """Places of a device."""
        return self.num_senders // self.parts

    def _by_rows(
        self,
        options: dict[str, Any],
        graph: Graph,
        sends: Graph,
        x: Array,
        weights: Array | None,
    ) -> Array:
        if self.pair_rows > 0:
            # Packing is a product, so that its gradient is one, too: added in a fixed order.
            sent = x if self.exchange_dtype is None else x.astype(self.exchange_dtype)
            packed = spmm(sends, sent)[: self.parts * self.pair_rows]
            halo = jax.lax.all_to_all(packed, self.axis, 0, 0, tiled=True)
            x = jnp.concatenate([x, halo.astype(x.dtype)])
        return spmm(graph, x, weights, **options)[: self._local]

    def _by_features(
        self,
        options: dict[str, Any],
        graph: Graph,
        _: None,
        x: Array,
        weights: Array | None,
    ) -> Array:
        width, last = x.shape[-1], x.ndim - 1
        more = -width % self.parts
        x = jnp.pad(x, [(0, 0)] * last + [(0, more)])
        columns = self._exchange(x, last, 0)
        out = self._padded(spmm(graph, columns[: graph.num_senders], weights, **options))
        return self._exchange(out, 0, last)[..., :width]

    def _exchange(self, x: Array, split: int, join: int) -> Array:
        if self.exchange_dtype is None:
            return jax.lax.all_to_all(x, self.axis, split, join, tiled=True)
        sent = x.astype(self.exchange_dtype)
        return jax.lax.all_to_all(sent, self.axis, split, join, tiled=True).astype(x.dtype)

    def _padded(self, x: Array) -> Array:
        return jnp.pad(x, [(0, self.num_senders - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    def _put(self, x: Any, spec: PartitionSpec) -> Array:
        sharding = NamedSharding(self.mesh, spec)
        if isinstance(x, Tracer):
            return jax.lax.with_sharding_constraint(x, sharding)
        return jax.device_put(x, sharding)


def _rows(x: Any, name: str, count: int, what: str) -> Any:
    shape = np.shape(x)
    if shape[:1] != (count,):
        raise ValueError(
            f"{name}: expected the shape ({count}, ...), a row for each {what}, got {shape}"
        )
    return x


def _take(x: Any, places: Array, fill: Any) -> Any:
    """Rows of `x`, on the host if they are known; `fill` where a place is negative."""
    if isinstance(x, Tracer) or isinstance(places, Tracer):
        places = jnp.asarray(places)
        x = jnp.asarray(x)
        mask = (places >= 0).reshape(-1, *[1] * (x.ndim - 1))
        if x.shape[0] == 0:
            return jnp.full((places.shape[0], *x.shape[1:]), fill, x.dtype)
        return jnp.where(mask, x[jnp.maximum(places, 0)], jnp.asarray(fill, x.dtype))
    x, row = np.asarray(x), np.asarray(places)
    out = np.full((row.size, *x.shape[1:]), fill, x.dtype)
    out[row >= 0] = x[row[row >= 0]]
    return out
