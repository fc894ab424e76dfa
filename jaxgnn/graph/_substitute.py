"""What operations and modules may take in a graph's place."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Int

End = Literal["senders", "receivers", "rows", "edges", "replicated", "key"]
"""What the first axis of an array runs over: nodes as the edges' senders or receivers; nodes'
rows, of which each device needs its own alone; edges; or none, of what all devices have, where a
random key gives each device another one."""

Split = Literal["columns", "heads", "edges", "rows"]
"""What an operation treats independently, so that devices may share it: the last axis of nodes'
arrays, the heads (axis 1, and the first one of what is replicated), no nodes' array at all, or
each row."""


class GraphSubstitute(abc.ABC):
    """A square graph that aggregates in its own way, such as one that is split over devices.

    Operations that know it hand the call over; all others refuse it (`graph_argument`).
    """

    num_senders: int
    num_receivers: int
    num_edges: int
    node_mask: Bool[Array, " num_senders"]
    edge_mask: Bool[Array, " num_edges"]
    in_degrees: Int[Array, " num_receivers"]
    out_degrees: Int[Array, " num_senders"]
    self_loops: Int[Array, " num_receivers"]
    repeated_self_loops: Bool[Array, " num_edges"]
    node_sharding: NamedSharding
    is_square = True

    @abc.abstractmethod
    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """`jaxgnn.spmm` of this graph."""

    @abc.abstractmethod
    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        """`jaxgnn.segment_reduce` of this graph."""

    @abc.abstractmethod
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
        """An operation on each device's part of the graph.

        Args:
            operation: called as `operation(part, **arguments)`. The part may be rectangular; its
                receivers are the first of its senders.
            name: of the operation, for messages.
            arguments: arrays, or trees of arrays.
            ends: of each argument.
            result: of each result.
            split: what a layout by features may divide; `None`: nothing.
            reduce: what the result is over the edges of each receiver. Of `"sum"` and `"mean"` the
                edges may be taken in several graphs.

        Raises:
            ValueError: an array without a row for each node or edge, or a layout in which the
                operation does not work.
        """
