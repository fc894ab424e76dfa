"""The arrays of a graph, and what is read off them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.graph._build.row_chunks import RowChunks
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._layouts import windows as _windows

ARRAYS = [
    "row_offsets",
    "senders",
    "row_chunks",
    "transpose_row_offsets",
    "transpose_receivers",
    "transpose_permutation",
    "transpose_row_chunks",
    "edge_permutation",
    "self_loops",
    "windows",
    "row_schedule",
    "transpose_row_schedule",
    "edge_positions",
    "tiles",
    "transpose_tiles",
]
STATIC = [
    "num_senders",
    "num_receivers",
    "num_edges",
    "symmetric",
    "num_input_edges",
    "merges_edges",
]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GraphArrays:
    """The base of `Graph`, whose documentation says what the fields are."""

    row_offsets: Int[Array, " num_receivers+1"]
    senders: Int[Array, " num_edges"]
    row_chunks: RowChunks
    transpose_row_offsets: Int[Array, " num_senders+1"]
    transpose_receivers: Int[Array, " num_edges"]
    transpose_permutation: Int[Array, " num_edges"]
    transpose_row_chunks: RowChunks
    edge_permutation: Int[Array, " num_edges"] | None
    self_loops: Int[Array, " num_receivers"] | None
    num_senders: int
    num_receivers: int
    num_edges: int
    symmetric: bool
    windows: _windows.Windows | None = None
    row_schedule: Int[Array, " num_receivers"] | None = None
    transpose_row_schedule: Int[Array, " num_senders"] | None = None
    edge_positions: Int[Array, "directions input_edges"] | None = None
    num_input_edges: int | None = None
    merges_edges: bool = False
    tiles: _tiles.Tiles | None = None
    transpose_tiles: _tiles.Tiles | None = None

    @property
    def receivers(self) -> Int[Array, " num_edges"]:
        """The receiver of each edge, int32 (computed from `row_offsets`, not stored)."""
        return csr_row_ids(self.row_offsets, self.num_edges)

    @property
    def in_degrees(self) -> Int[Array, " num_receivers"]:
        """Number of edges that end at each receiver, int32."""
        return jnp.diff(self.row_offsets).astype(jnp.int32)

    @property
    def out_degrees(self) -> Int[Array, " num_senders"]:
        """Number of edges that start at each sender, int32."""
        return jnp.diff(self.transpose_row_offsets).astype(jnp.int32)

    @property
    def edge_index(self) -> Int[Array, "2 num_edges"]:
        """PyG's `edge_index`, in the graph's edge order: the senders, then the receivers."""
        return jnp.stack([self.senders, self.receivers])

    @property
    def num_nodes(self) -> int:
        """Number of nodes of a square graph.

        Raises:
            AttributeError: the graph is rectangular.
        """
        if not self.is_square:
            raise AttributeError(
                f"num_nodes: a rectangular graph has num_senders ({self.num_senders}) and "
                f"num_receivers ({self.num_receivers})"
            )
        return self.num_receivers

    @property
    def nbytes(self) -> int:
        """Bytes of the graph's arrays; an array that two fields share counts once."""
        leaves = {id(leaf): leaf for leaf in jax.tree.leaves(self)}
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves.values())

    @property
    def is_square(self) -> bool:
        """Whether senders and receivers are one set of nodes."""
        return self.self_loops is not None

    def __repr__(self) -> str:
        if self.is_square:
            return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"
        return (
            f"Graph(num_senders={self.num_senders}, num_receivers={self.num_receivers}, "
            f"num_edges={self.num_edges})"
        )


def self_loop_mask(graph: GraphArrays) -> Bool[Array, " num_edges"]:
    """Which edges are self-loops (none, if the graph is rectangular)."""
    if not graph.is_square:
        return jnp.zeros(graph.num_edges, bool)
    return graph.senders == graph.receivers
