"""What `plan` measures on this device: aggregations of a graph or a part, and work on nodes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.distributed import Partition, ShardedGraph
from jaxgnn.distributed._part_alone import part_alone
from jaxgnn.graph import Graph
from jaxgnn.ops import CBSR, maxk
from jaxgnn.train.planning.plan_graphs import Aggregation, Unconnected
from jaxgnn.train.steps.step import Program, TrainState
from jaxgnn.train.steps.task import Task

_REPEATS = 5
_PROBE_NODES = 1 << 18
_PROBE_SHARE = 0.2  # of the device's memory, for the rows of a probe


class Seconds(NamedTuple):
    """Of an aggregation.

    Attributes:
        all: with what packs and joins the rows that travel.
        meanwhile: those of its edges that are aggregated while the halo travels.
    """

    all: float
    meanwhile: float = 0.0


class Rates(NamedTuple):
    """What was measured on this device, in seconds.

    Attributes:
        edges: of an aggregation of the whole graph, on one of so many devices that share its
            columns or heads.
        part: the same of the part with most edges.
        nodes: of a step's, and of an evaluation's, work on nodes: a constant, and for each node.
    """

    edges: Callable[[Aggregation, int], Seconds]
    part: Callable[[Aggregation, int, Part], Seconds]
    nodes: tuple[tuple[float, float], tuple[float, float]]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """The part with most edges, alone on this device.

    Attributes:
        partition: of all parts.
        graph: the part, which receives what it sends.
        known, known_owned: seconds of aggregations; of those over the owned edges alone.
    """

    partition: Partition
    graph: ShardedGraph
    known: dict[Any, float] = dataclasses.field(default_factory=dict)
    known_owned: dict[Any, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def largest(cls, graph: Graph, partition: Partition) -> Part:
        """That of a partition of the graph."""
        degrees = np.diff(np.asarray(graph.row_offsets))
        edges = np.bincount(partition.owner, degrees, minlength=partition.parts)
        return cls(partition, part_alone(graph, partition, int(np.argmax(edges))))


def measure_rates(program: Program, state: TrainState, task: Task, limit: int) -> Rates:
    """Those of a program."""
    graph = task.whole_graph
    known: dict[Any, float] = {}

    def of_graph(
        graph: Any, known: dict[Any, float], aggregation: Aggregation, columns: int
    ) -> float:
        probe, scale = _probe(aggregation.divided(columns), _PROBE_SHARE * limit)
        if probe.key not in known:
            own = probe.over(graph.num_senders, graph.num_receivers, graph.num_edges)
            forward, both = _aggregation_seconds(graph, own)
            known[probe.key] = max(both - forward, 0.0) if probe.backward else forward
        return scale * known[probe.key]

    def of_edges(aggregation: Aggregation, columns: int) -> Seconds:
        return Seconds(of_graph(graph, known, aggregation, columns))

    def of_part(aggregation: Aggregation, columns: int, part: Part) -> Seconds:
        everything = of_graph(part.graph, part.known, aggregation, columns)
        if part.graph.kinds is None or aggregation.reduce not in ("sum", "mean"):
            return Seconds(everything)
        owned = jax.tree.map(lambda leaf: leaf[0], part.graph.kinds.owned)
        return Seconds(everything, of_graph(owned, part.known_owned, aggregation, columns))

    most = min(graph.num_nodes, _PROBE_NODES)
    counts = sorted({max(1, most // 4), most})
    steps, evaluations = [], []
    for count in counts:
        stand_in = Unconnected(graph, count)

        def with_stand_in(arrays: Any, stand_in: Any = stand_in) -> Task:
            return dataclasses.replace(task, graph=stand_in, **arrays)

        def step(state: Any, arrays: Any, make: Any = with_stand_in) -> Any:
            return program.step(state, make(arrays))

        def evaluate(state: Any, arrays: Any, make: Any = with_stand_in) -> Any:
            return program.evaluate(state.params, state.rest, make(arrays))

        arrays = arrays_of(task, count)
        steps.append(_seconds(jax.jit(step), state, arrays))
        evaluations.append(_seconds(jax.jit(evaluate), state, arrays))
    return Rates(of_edges, of_part, (_line(counts, steps), _line(counts, evaluations)))


def arrays_of(task: Task, num_nodes: int | None = None) -> dict[str, Any]:
    """A task's data of the first nodes, or of all."""
    names = ("features", "labels", "train", "val")
    return {name: getattr(task, name)[:num_nodes] for name in names}


def _probe(aggregation: Aggregation, most_bytes: float) -> tuple[Aggregation, float]:
    """What is timed in its place where its rows take more than so many bytes, and by how much more
    time it itself takes: with fewer columns or heads."""
    rows = max(aggregation.result.shape[0], 1)
    wanted = int(np.ceil(rows * aggregation.turned_bytes(1) / max(most_bytes, 1)))
    most = {"columns": aggregation.result.shape[-1], "heads": aggregation.result.shape[1]}.get(
        aggregation.split or "", 1
    )
    divisors = [d for d in range(1, most + 1) if aggregation.split == "columns" or most % d == 0]
    devices = next((d for d in divisors if d >= wanted), divisors[-1] if divisors else 1)
    probe = aggregation.divided(devices)
    return probe, aggregation.turned_bytes(1) / max(probe.turned_bytes(1), 1)


def _aggregation_seconds(graph: Any, aggregation: Aggregation) -> tuple[float, float]:
    """The time of the operation on a graph, and, of a gradient, of it and its gradient."""
    arrays = {name: _filled(shapes) for name, shapes in aggregation.arguments.items()}
    leaves, structure = jax.tree.flatten(arrays)
    floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]

    def run(graph: Any, leaves: list[Any]) -> Any:
        return aggregation.run(graph, jax.tree.unflatten(structure, leaves))

    def with_gradient(graph: Any, leaves: list[Any]) -> Any:
        def of_floats(floats: list[Any]) -> Any:
            rest = iter(floats)
            every = [
                next(rest) if is_float else leaf
                for is_float, leaf in zip(floating, leaves, strict=True)
            ]
            return run(graph, every)

        floats = [leaf for is_float, leaf in zip(floating, leaves, strict=True) if is_float]
        out, pullback = jax.vjp(of_floats, floats)
        return out, pullback(out)

    forward = _seconds(jax.jit(run), graph, leaves)
    if not aggregation.backward:
        return forward, forward
    return forward, _seconds(jax.jit(with_gradient), graph, leaves)


def _filled(shapes: Any) -> Any:
    """Arrays of these shapes: ones, random keys, and the sparse rows of random dense ones.

    The columns that are kept decide how reads collide in a GPU's shared memory.
    """
    if isinstance(shapes, CBSR):
        dense = jax.random.normal(jax.random.key(0), shapes.shape, shapes.values.dtype)
        kept = maxk(dense, shapes.k)
        return dataclasses.replace(shapes, values=kept.values, indices=kept.indices)
    return jax.tree.map(
        lambda leaf: (
            jax.random.key(0)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.ones(leaf.shape, leaf.dtype)
        ),
        shapes,
        is_leaf=lambda node: isinstance(node, jax.ShapeDtypeStruct),
    )


def _line(counts: list[int], seconds: list[float]) -> tuple[float, float]:
    """The constant and the slope, neither below 0."""
    if len(counts) == 1:
        return seconds[0], 0.0
    slope = max((seconds[1] - seconds[0]) / (counts[1] - counts[0]), 0.0)
    constant = max(seconds[1] - slope * counts[1], 0.0)
    return constant, (seconds[1] - constant) / counts[1]


def _seconds(function: Any, *arguments: Any) -> float:
    """The median time of a call, in batches where it is short."""
    jax.block_until_ready(function(*arguments))
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    once = time.perf_counter() - start
    batch = max(1, min(50, int(0.02 / max(once, 1e-7))))
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(batch):
            result = function(*arguments)
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / batch)
    return statistics.median(times)
