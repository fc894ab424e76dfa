"""`CSR`: what the generators return, before it becomes a `Graph`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Int

from jaxgnn.graph import Graph


class CSR(NamedTuple):
    """Edges by receiver, on the host: row `i` of `senders` lists who sends to `i`, ascending.

    Attributes:
        row_offsets: int64 `[num_nodes + 1]`.
        senders: int32 `[num_edges]`.
    """

    row_offsets: Int[np.ndarray, " num_nodes+1"]
    senders: Int[np.ndarray, " num_edges"]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.row_offsets.size - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.senders.size

    @property
    def degrees(self) -> Int[np.ndarray, " num_nodes"]:
        """Number of edges that end at each node."""
        return np.diff(self.row_offsets)

    @property
    def receivers(self) -> Int[np.ndarray, " num_edges"]:
        """The receiver of each edge, int32 (computed)."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int32), self.degrees)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """The pattern as a SciPy matrix of ones: the entry (j, i) is the edge from j to i.

        As `Graph.to_scipy` of `to_graph()`.
        """
        ones = np.ones(self.num_edges, np.float32)
        shape = (self.num_nodes, self.num_nodes)
        return scipy.sparse.csc_array((ones, self.senders, self.row_offsets), shape=shape).tocsr()

    def to_graph(self, **options: Any) -> Graph:
        """The `Graph` of these edges; takes the options of `Graph.from_edges`."""
        return Graph.from_edges(self.senders, self.receivers, num_nodes=self.num_nodes, **options)


def offsets_of(sizes: Any) -> Int[np.ndarray, " sizes+1"]:
    """Where pieces of these sizes begin, one after the other, and where the last ends; int64."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
