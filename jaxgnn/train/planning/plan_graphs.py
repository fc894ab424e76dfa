"""Graphs that stand for a sharded one while its cost is estimated: they exchange nothing."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.graph import End, Graph, GraphSubstitute, Split
from jaxgnn.ops import spmm

_NODES: tuple[End, ...] = ("senders", "receivers")


@dataclasses.dataclass(frozen=True, eq=False)
class Aggregation:
    """One operation over the edges of the whole graph: shapes, and what of them travels.

    Attributes:
        name: of the operation.
        operation: called as `operation(graph, **arguments)`.
        arguments: shapes and dtypes of its arrays, or of trees of them.
        ends: of each argument.
        split: what a layout by features divides.
        result: shape and dtype of the receivers' rows.
        reduce: as of `GraphSubstitute.map_parts`.
        backward: whether it is the gradient of one.
    """

    name: str
    operation: Callable[..., Any]
    arguments: dict[str, Any]
    ends: Mapping[str, End]
    split: Split | None
    result: jax.ShapeDtypeStruct
    reduce: str | None = None
    backward: bool = False

    @property
    def width(self) -> int:
        """Values of a sender's row, in all."""
        return sum(math.prod(leaf.shape[1:]) for leaf in self._leaves(("senders",)))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for operations that take the same time."""
        options = getattr(self.operation, "keywords", id(self.operation))
        return self.name, str(self.arguments), str(options), self.backward

    def refusal(self, columns: int) -> str:
        """Why so many devices cannot share the columns or heads; empty where they can."""
        if columns == 1:
            return ""
        if self.split is None:
            return f"{self.name}: expected a graph sharded by rows"
        for leaf in self._leaves((*_NODES, "edges")) if self.split == "heads" else ():
            if len(leaf.shape) > 1 and leaf.shape[1] % columns:
                return (
                    f"{self.name}: expected heads that {columns} devices divide, got "
                    f"{leaf.shape[1]}"
                )
        return ""

    def divided(self, columns: int) -> Aggregation:
        """That of one of so many devices that share the columns or heads."""
        if columns == 1:
            return self
        arguments = {
            name: jax.tree.map(functools.partial(self._share, self.ends[name], columns), shapes)
            for name, shapes in self.arguments.items()
        }
        result = self._share("receivers", columns, self.result)
        return dataclasses.replace(self, arguments=arguments, result=result)

    def over(self, num_senders: int, num_receivers: int, num_edges: int) -> Aggregation:
        """The same of a graph of another size."""
        counts = {"senders": num_senders, "receivers": num_receivers, "edges": num_edges}

        def resized(end: End, leaf: Any) -> jax.ShapeDtypeStruct:
            shape = (counts[end], *leaf.shape[1:]) if end in counts else leaf.shape
            return jax.ShapeDtypeStruct(shape, leaf.dtype)

        arguments = {
            name: jax.tree.map(functools.partial(resized, self.ends[name]), shapes)
            for name, shapes in self.arguments.items()
        }
        result = resized("receivers", self.result)
        return dataclasses.replace(self, arguments=arguments, result=result)

    def run(self, graph: Any, arguments: dict[str, Any]) -> Any:
        """The result on a graph, or on a sharded one."""
        if not isinstance(graph, GraphSubstitute):
            return self.operation(graph, **arguments)
        return graph.map_parts(
            self.operation, self.name, arguments, self.ends, split=self.split, reduce=self.reduce
        )

    def halo_bytes(self, columns: int = 1) -> float:
        """Bytes on the wire of a foreign row, of a device's share of the columns.

        The gradient brings those of floating dtype back.
        """
        return sum(map(_row_bytes, self.divided(columns)._leaves(("senders",))))

    def turned_bytes(self, columns: int, padded: bool = True) -> float:
        """Bytes of a row's share of the columns, with all that goes from rows to columns or back.

        Args:
            columns: the devices that share them.
            padded: to equal shares.
        """
        own = self.divided(columns) if padded else self
        rows = sum(map(_row_bytes, (*own._leaves(_NODES), own.result)))
        return rows if padded else rows / columns

    def _leaves(self, ends: Iterable[End]) -> Iterator[Any]:
        for name, shapes in self.arguments.items():
            if self.ends[name] in ends:
                for leaf in jax.tree.leaves(shapes):
                    if not self.backward or jnp.issubdtype(leaf.dtype, jnp.floating):
                        yield leaf

    def _share(self, end: End, columns: int, shape: Any) -> Any:
        if self.split == "columns":
            axis = len(shape.shape) - 1 if end in _NODES else None
        else:
            axis = {"replicated": 0, "key": None}.get(end, 1)
        if axis is None or axis >= len(shape.shape):
            return shape
        own = list(shape.shape)
        own[axis] = -(-own[axis] // columns)
        return jax.ShapeDtypeStruct(tuple(own), shape.dtype)


class _StandIn(GraphSubstitute):
    """The first nodes of a graph, for a program's shapes."""

    node_sharding = None  # type: ignore[assignment]

    def __init__(self, graph: Graph, num_nodes: int):
        self.num_senders = self.num_receivers = self.num_nodes = num_nodes
        self.num_edges = 1
        self.graph = graph
        # On the host: they are constants of what is traced.
        self.node_mask = np.ones(num_nodes, bool)  # type: ignore[assignment]
        self.edge_mask = np.ones(1, bool)  # type: ignore[assignment]
        self.in_degrees = np.asarray(graph.in_degrees)[:num_nodes]  # type: ignore[assignment]
        self.out_degrees = np.asarray(graph.out_degrees)[:num_nodes]  # type: ignore[assignment]
        self.self_loops = np.asarray(graph.self_loops)[:num_nodes]  # type: ignore[assignment]
        self.repeated_self_loops = np.zeros(1, bool)  # type: ignore[assignment]

    def spmm(self, x: Array, weights: Array | None, **options: Any) -> Array:
        """As a sharded graph has it."""
        arguments = {"x": x} if weights is None else {"x": x, "weights": weights}
        return self.map_parts(
            functools.partial(spmm, **options),
            "spmm",
            arguments,
            {"x": "senders", "weights": "edges"},
            split="columns",
            reduce=None if options["transpose"] else options["reduce"],
        )

    def segment_reduce(self, data: Array, reduce: Any, **options: Any) -> Array:
        """Zeros: what aggregates edge data alone is not counted."""
        return jnp.zeros((self.num_receivers, *data.shape[1:]), data.dtype)

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
        """What works on rows alone runs; of what ends at the receivers there are other values."""
        if result == "rows":
            return operation(self, **arguments)
        if result != "receivers":
            raise TypeError(f"{name}: expected a model without values on the edges")
        shapes = {
            name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), value)
            for name, value in arguments.items()
        }
        graph, unknown = self.graph, jax.ShapeDtypeStruct((0,), np.dtype(np.float32))
        aggregation = Aggregation(name, operation, shapes, ends, split, unknown, reduce)
        aggregation = aggregation.over(graph.num_senders, graph.num_receivers, graph.num_edges)
        out = jax.eval_shape(aggregation.run, graph, aggregation.arguments)
        aggregation = dataclasses.replace(aggregation, result=out)
        floats: list[tuple[End, Any]] = [
            (ends[name], leaf)
            for name, value in arguments.items()
            for leaf in jax.tree.leaves(value)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        return self._result(aggregation, floats)

    def _result(self, aggregation: Aggregation, arrays: list[tuple[End, Array]]) -> Array:
        raise NotImplementedError


class Recorder(_StandIn):
    """Notes the aggregations of what is traced.

    Attributes:
        found: them, in the order of the trace.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph, graph.num_nodes)
        self.found: list[Aggregation] = []

    def _result(self, aggregation: Aggregation, arrays: list[tuple[End, Array]]) -> Array:
        """Zeros; the aggregation, and its gradient where one flows, are noted."""
        self.found.append(aggregation)
        result = aggregation.result

        @jax.custom_vjp
        def aggregate(arrays: list[Array]) -> Array:
            return jnp.zeros(result.shape, result.dtype)

        def forward(arrays: list[Array]) -> tuple[Array, list[Array]]:
            return aggregate(arrays), arrays

        def backward(arrays: list[Array], _: Array) -> tuple[list[Array]]:
            self.found.append(dataclasses.replace(aggregation, backward=True))
            return ([jnp.zeros_like(array) for array in arrays],)

        aggregate.defvjp(forward, backward)
        return aggregate([array for _, array in arrays])


class Unconnected(_StandIn):
    """Aggregates nothing: what is left of a program is its work on nodes."""

    def _result(self, aggregation: Aggregation, arrays: list[tuple[End, Array]]) -> Array:
        """Rows of the same shape that depend on all arrays, each of which is read once."""
        shape = (self.num_receivers, *aggregation.result.shape[1:])
        dtype = aggregation.result.dtype
        if [array.shape for _, array in arrays] == [shape]:
            return arrays[0][1].astype(dtype)
        out = jnp.zeros((), dtype)
        for end, array in arrays:
            axes = tuple(range(end in _NODES, array.ndim))
            total = jnp.sum(array, axes).astype(dtype)
            out = out + total.reshape(-1, *itertools.repeat(1, len(shape) - 1))
        return jnp.broadcast_to(out, shape)


def aggregations(function: Callable[..., Any], recorder: Recorder, *shapes: Any) -> Any:
    """What `function(*shapes)` aggregates on that graph."""
    recorder.found = []
    jax.eval_shape(function, *shapes)
    return recorder.found


def _row_bytes(leaf: Any) -> int:
    return math.prod(leaf.shape[1:]) * jnp.dtype(leaf.dtype).itemsize
