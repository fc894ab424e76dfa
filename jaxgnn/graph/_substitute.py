"""What operations and modules may take in a graph's place."""

from __future__ import annotations

import abc
from typing import Any

from jaxtyping import Array, Bool, Int


class GraphSubstitute(abc.ABC):
    """A square graph that aggregates in its own way, such as one that is split over devices.

    Operations that know it hand the call over; all others refuse it (`graph_argument`).
    """

    num_senders: int
    num_receivers: int
    num_edges: int
    node_mask: Bool[Array, " num_senders"]
    in_degrees: Int[Array, " num_receivers"]
    self_loops: Int[Array, " num_receivers"]
    repeated_self_loops: Bool[Array, " num_edges"]
    is_square = True

    @abc.abstractmethod
    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """`jaxgnn.spmm` of this graph."""

    @abc.abstractmethod
    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        """`jaxgnn.segment_reduce` of this graph."""
