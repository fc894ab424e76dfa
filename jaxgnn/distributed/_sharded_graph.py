"""A graph over the devices of a mesh, in a graph's place."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PyTree, Shaped

from jaxgnn._core import checks
from jaxgnn.distributed._arguments import check_context
from jaxgnn.distributed._costs import Cost, Edges
from jaxgnn.distributed._edge_kinds import EdgeKinds
from jaxgnn.distributed._explain import explain
from jaxgnn.distributed._map_parts import check_rows, map_parts
from jaxgnn.distributed._placement import place, rows_for_all, take
from jaxgnn.distributed._transposed import reduce_by_senders, spmm_transposed
from jaxgnn.graph import End, Graph, GraphSubstitute, Split
from jaxgnn.ops import segment_reduce, spmm

Layout = Literal["rows", "features", "both"]

_ARRAYS = (
    "graph",
    "kinds",
    "sends",
    "node_of_place",
    "place_of_node",
    "edge_of_place",
    "edge_permutation",
    "in_degrees",
    "out_degrees",
    "self_loops",
    "repeated_self_loops",
)
_STATIC = (
    "mesh",
    "rows",
    "features",
    "num_nodes",
    "num_senders",
    "num_receivers",
    "num_edges",
    "pair_rows",
    "halo",
    "costs",
    "edges",
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
        graph: the parts, stacked; under `features` the whole graph, on every device. `None` where
            `kinds` serve alone.
        kinds: the same edges in two graphs, for overlap; or `None`.
        sends: of each part, which rows it sends, as a graph; `None` where it sends all of them, and
            under `features`.
        node_of_place: the node of each place, -1 for padding.
        place_of_node: the place of each node.
        edge_of_place: the graph's edge of each place of `scatter_edges`, -1 for padding.
        edge_permutation: the graph's own.
        in_degrees, out_degrees, self_loops: of each place, 0 for padding.
        repeated_self_loops: the edges that are self-loops which another one of the node follows.
        mesh: the devices.
        rows, features: the mesh's axes over which they are split; `None` for one that is not.
        num_nodes: of the graph, without padding.
        num_senders, num_receivers: places.
        num_edges: places of edges.
        pair_rows: under `rows`, that a part sends to each other one, with padding.
        halo: under `rows`, foreign rows that the parts need, summed over them.
        costs: of an aggregation, predicted; of both layouts where neither was named.
        edges: under `rows`, those of the largest parts.
        num_graph_edges: without padding.
        exchange_dtype: in which rows travel; `None` for their own.
        num_input_edges: of the user's list; `None` where `scatter_edges` cannot take its order.
    """

    graph: Graph | None
    kinds: EdgeKinds | None
    sends: Graph | None
    node_of_place: Int[Array, " places"]
    place_of_node: Int[Array, " num_nodes"]
    edge_of_place: Int[Array, " num_edges"]
    edge_permutation: Int[Array, " edges"] | None
    in_degrees: Int[Array, " places"]
    out_degrees: Int[Array, " places"]
    self_loops: Int[Array, " places"]
    repeated_self_loops: Bool[Array, " num_edges"]
    mesh: Mesh
    rows: str | None
    features: str | None
    num_nodes: int
    num_senders: int
    num_receivers: int
    num_edges: int
    pair_rows: int
    halo: int
    costs: tuple[Cost, ...]
    edges: Edges | None
    exchange_dtype: str | None
    num_graph_edges: int
    num_input_edges: int | None

    @property
    def layout(self) -> Layout:
        """`"rows"`, `"features"` or `"both"`."""
        return layout_of(self.rows, self.features)

    @property
    def node_axes(self) -> tuple[str, ...]:
        """The mesh's axes over which the places are split."""
        return tuple(axis for axis in (self.rows, self.features) if axis is not None)

    @property
    def node_sharding(self) -> NamedSharding:
        """That of nodes' data."""
        return NamedSharding(self.mesh, PartitionSpec(self.node_axes))

    @property
    def parts(self) -> int:
        """The number of devices on these axes."""
        return math.prod(self.mesh.shape[axis] for axis in self.node_axes)

    @property
    def node_mask(self) -> Bool[Array, " places"]:
        """Which places are no padding."""
        return self.node_of_place >= 0

    @property
    def edge_mask(self) -> Bool[Array, " num_edges"]:
        """Which places of edges are no padding."""
        return self.edge_of_place >= 0

    def scatter(self, x: Shaped[Array, "num_nodes *rest"]) -> Shaped[Array, "places *rest"]:
        """Nodes' data, in the user's order, as the graph takes it: 0 for padding.

        Raises:
            ValueError: no row for each node.
        """
        check_context()
        x = check_rows(x, "x", self.num_nodes, "node")
        return place(take(x, self.node_of_place, 0), self.node_sharding)

    def gather(self, y: Shaped[Array, "places *rest"]) -> Shaped[Array, "num_nodes *rest"]:
        """The rows of the nodes, in the user's order. Inside `jit`, and of a mesh over several
        processes, all devices receive all rows.

        Raises:
            ValueError: no row for each place.
        """
        check_context()
        y = check_rows(y, "y", self.num_senders, "place")
        if isinstance(y, np.ndarray):
            return y[np.asarray(self.place_of_node)]
        if isinstance(y, Tracer) or y.is_fully_addressable:
            return y[self.place_of_node]
        return rows_for_all(y, self.place_of_node, self._sharding(PartitionSpec()))

    def scatter_edges(
        self, values: Shaped[Array, "edges *rest"], *, in_graph_order: bool = False
    ) -> Shaped[Array, "num_edges *rest"]:
        """Edges' data as the graph takes it: 0 for padding, 1 for edges that a constructor added.

        Args:
            values: in the order of the user's list.
            in_graph_order: they are in the graph's edge order, as `Graph.sort_edge_data` returns
                them.

        Raises:
            TypeError: `in_graph_order` is no boolean.
            ValueError: no row for each edge; or the graph merged edges or dropped its permutation,
                and the data is not in its order.
        """
        check_context()
        if not checks.boolean(in_graph_order, "in_graph_order"):
            if self.edge_permutation is None or self.num_input_edges is None:
                raise ValueError(
                    "values: the graph merged edges or dropped their order: give "
                    "graph.sort_edge_data(values), with in_graph_order=True"
                )
            values = check_rows(values, "values", self.num_input_edges, "edge")
            values = take(values, self.edge_permutation, 1)
        sharding = self._sharding(PartitionSpec(self.rows))
        values = check_rows(values, "values", self.num_graph_edges, "edge")
        if self.rows is None and self.num_edges == self.num_graph_edges:
            return place(values, sharding)
        return place(take(values, self.edge_of_place, 0), sharding)

    def without_joint_graph(self) -> ShardedGraph:
        """Without the arrays that sums and means do not need, where overlap has its own.

        Other operations, such as attention, then raise. Without overlap it is the same graph.
        """
        return self if self.kinds is None else dataclasses.replace(self, graph=None)

    def replicate(self, tree: PyTree) -> PyTree:
        """The arrays on every device: of parameters, so that a step compiles once."""
        sharding = self._sharding(PartitionSpec())
        return jax.tree.map(lambda leaf: place(leaf, sharding), tree)

    def explain(self, features: int = 1, itemsize: int = 4, k: int | None = None) -> str:
        """The layout, the bytes that a device sends in one aggregation, and the predicted times.

        The times are those of the device with most to do, from its edges and its bytes, at the
        rates of an H200 and its links: for comparison, as nothing is measured. Where no layout was
        named, those of both are printed. By rows also whether edges are aggregated while the halo
        travels, and what that is predicted to win.

        Args:
            features: width of the rows.
            itemsize: bytes of a value.
            k: also the bytes of sparse rows with this number of entries, as `MaxK` leaves them.

        Raises:
            TypeError: no integer.
            ValueError: a number out of range, or `k` of a graph that is not sharded by rows alone.
        """
        features = checks.integer(features, "features", 1, 1 << 31)
        itemsize = checks.integer(itemsize, "itemsize", 1, 16)
        if k is not None and self.layout != "rows":
            raise ValueError(f"k: expected None on a graph sharded by {self.layout}, got {k}")
        if k is not None:
            k = checks.integer(k, "k", 1, features)
        return explain(self, features, itemsize, k)

    def __repr__(self) -> str:
        return f"ShardedGraph(num_nodes={self.num_nodes}, parts={self.parts}, layout={self.layout})"

    # In a graph's place: the operations call these.

    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """`jaxgnn.spmm`: `x` by places, `weights` as of `scatter_edges`."""
        if x.ndim < 2:
            raise ValueError(f"x: expected [places, ..., F] on a sharded graph, got {x.shape}")
        if self.rows is not None and options["transpose"]:
            return spmm_transposed(self, x, weights, options["reduce"], options["impl"])
        arguments = {"x": x} if weights is None else {"x": x, "weights": weights}
        # Transposed, the receivers' rows are aggregated: padding has none of them.
        rows: End = "receivers" if options["transpose"] else "senders"
        ends: dict[str, End] = {"x": rows, "weights": "edges"}
        return self.map_parts(
            functools.partial(spmm, **options),
            "spmm",
            arguments,
            ends,
            split="columns",
            reduce=None if options["transpose"] else options["reduce"],
        )

    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        """`jaxgnn.segment_reduce` of data as of `scatter_edges`."""
        if self.rows is not None and options["by"] == "senders":
            return reduce_by_senders(self, data, reduce, options["impl"])
        return self.map_parts(
            functools.partial(segment_reduce, reduce=reduce, **options),
            "segment_reduce",
            {"data": data},
            {"data": "edges"},
            split="edges",
            reduce=reduce if options["by"] == "receivers" else None,
        )

    def map_parts(
        self,
        operation: Callable[..., Any],
        name: str,
        arguments: dict[str, Any],
        ends: Mapping[str, End],
        result: End | tuple[End, ...] = "receivers",
        *,
        split: Split | None = None,
        reduce: str | None = None,
    ) -> Any:
        """An operation on each device's part: see `GraphSubstitute`."""
        return map_parts(self, operation, name, arguments, ends, result, split, reduce)

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)


def layout_of(rows: str | None, features: str | None) -> Layout:
    """The name of the layout over these axes."""
    if rows is None:
        return "features"
    return "rows" if features is None else "both"
