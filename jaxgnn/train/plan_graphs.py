"""Graphs that stand for a sharded one while its cost is estimated: they exchange nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.graph import Graph, GraphSubstitute


class Aggregation(NamedTuple):
    """One aggregation of a program.

    Attributes:
        width: features of a row, in all.
        dtype: of the rows.
        reduce: how.
        backward: whether it is the gradient of one, which multiplies by the transpose.
    """

    width: int
    dtype: str
    reduce: Any
    backward: bool

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return jnp.dtype(self.dtype).itemsize


class _StandIn(GraphSubstitute):
    """The first nodes of a graph, for a program's shapes."""

    def __init__(self, graph: Graph, num_nodes: int):
        self.num_senders = self.num_receivers = self.num_nodes = num_nodes
        self.num_edges = 1
        # On the host: they are constants of what is traced.
        self.node_mask = np.ones(num_nodes, bool)  # type: ignore[assignment]
        self.in_degrees = np.asarray(graph.in_degrees)[:num_nodes]  # type: ignore[assignment]
        self.self_loops = np.asarray(graph.self_loops)[:num_nodes]  # type: ignore[assignment]
        self.repeated_self_loops = np.zeros(1, bool)  # type: ignore[assignment]

    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        """Zeros: what aggregates edge data alone is not counted."""
        return jnp.zeros((self.num_receivers, *data.shape[1:]), data.dtype)

    def map_parts(self, operation: Any, name: str, *arguments: Any, **options: Any) -> Any:
        """Refuses operations other than `spmm`, whose exchange is another one."""
        raise TypeError(f"{name}: expected a model whose aggregations are spmm")


class Recorder(_StandIn):
    """Notes the aggregations of what is traced.

    Attributes:
        found: them, in the order of the trace.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph, graph.num_nodes)
        self.found: list[Aggregation] = []

    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """Zeros; the aggregation, and its gradient where one flows, are noted."""
        width, reduce = math.prod(x.shape[1:]), options["reduce"]
        self.found.append(Aggregation(width, x.dtype.name, reduce, False))

        @jax.custom_vjp
        def aggregate(x: Array) -> Array:
            return jnp.zeros_like(x)

        def backward(_: None, cotangent: Array) -> tuple[Array]:
            self.found.append(Aggregation(width, x.dtype.name, reduce, True))
            return (jnp.zeros_like(cotangent),)

        aggregate.defvjp(lambda x: (aggregate(x), None), backward)
        return aggregate(x)


class Unconnected(_StandIn):
    """Aggregates nothing: what is left of a program is its work on nodes."""

    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """The rows as they are."""
        return x


def aggregations(function: Callable[..., Any], recorder: Recorder, *shapes: Any) -> Any:
    """What `function(*shapes)` aggregates on that graph."""
    recorder.found = []
    jax.eval_shape(function, *shapes)
    return recorder.found
