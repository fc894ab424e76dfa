"""`plan`: memory and time of a run over several devices, before there are any."""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import distributed
from jaxgnn.data import NodeDataset
from jaxgnn.distributed import Partition, PartitionStatistics
from jaxgnn.graph import Graph
from jaxgnn.ops import CBSR
from jaxgnn.train import sharded
from jaxgnn.train.config import ConfigError, TrainConfig
from jaxgnn.train.loop import lower
from jaxgnn.train.plan_graphs import Aggregation, Recorder, Unconnected, aggregations
from jaxgnn.train.runner import choose_split, load_dataset, make_task
from jaxgnn.train.step import Program, TrainState, build
from jaxgnn.train.task import Task

BANDWIDTH = 370e9
"""Bytes a second that a device sends: NVLink of an H100 or H200, one way."""

LAYOUTS = ("rows", "features", "both")
_REPEATS = 5
_PROBE_NODES = 1 << 18
_PROBE_SHARE = 0.2  # of the device's memory, for the rows of a probe


@dataclasses.dataclass(frozen=True)
class Plan:
    """A number of devices in one layout.

    Attributes:
        devices: how many.
        layout: `"rows"`, `"features"` or `"both"`; `"one"`: one device.
        column_devices: how many of them share the columns of a part.
        memory: bytes of the device that holds most, by what takes them.
        limit: bytes of a device.
        compute_seconds: of a step, on the device with most to do.
        exchange_bytes: that a device sends in a step, padding and the next ones included.
        reduce_bytes: of these the all-reduce of the gradients.
        step_seconds, epoch_seconds: with the exchange, which overlaps with nothing; an epoch also
            evaluates.
        padding: bytes of the exchange for each that is needed.
        refused: why the model does not work in this layout; empty where it does. Of one that does
            not nothing is known: no memory, and times that are no numbers.
    """

    devices: int
    layout: str
    column_devices: int
    memory: dict[str, int]
    limit: int
    compute_seconds: float
    exchange_bytes: float
    reduce_bytes: float
    step_seconds: float
    epoch_seconds: float
    padding: float
    refused: str = ""

    @property
    def bytes(self) -> int:
        """All of the memory."""
        return sum(self.memory.values())

    @property
    def reason(self) -> str:
        """Why it does not work or fit; empty where it does."""
        if self.refused or self.bytes <= self.limit:
            return self.refused
        most = max(self.memory, key=lambda name: self.memory[name])
        return (
            f"{self.bytes / 1e9:,.2f} GB of {self.limit / 1e9:,.2f}: {most} takes "
            f"{self.memory[most] / 1e9:,.2f}"
        )


class Rates(NamedTuple):
    """What was measured on this device, in seconds.

    Attributes:
        edges: of an aggregation of the whole graph, on one of so many devices that share its
            columns or heads.
        nodes: of a step's, and of an evaluation's, work on nodes: a constant, and for each node.
    """

    edges: Callable[[Aggregation, int], float]
    nodes: tuple[tuple[float, float], tuple[float, float]]


class _Program(NamedTuple):
    """What is planned for."""

    step: list[Aggregation]
    evaluation: list[Aggregation]
    nodes: int
    edges: int
    graph_bytes: int
    node_bytes: int
    state_bytes: int
    parameter_bytes: int


def plan(
    config: TrainConfig,
    devices: Sequence[int],
    *,
    layouts: Sequence[str] = LAYOUTS,
    bandwidth: float = BANDWIDTH,
    dataset: NodeDataset | None = None,
    limit: int | None = None,
    partitions: Sequence[Partition] = (),
) -> list[Plan]:
    r"""Memory a device and seconds an epoch for numbers of devices, from one device.

    Measured on this device: each aggregation of the model on the graph, at the width that a device
    has, and the rest of the step on some nodes. Under `rows` the partition's statistics give the
    edges, nodes and halo of the largest part. With $R$ parts, whose columns $C$ devices share, each
    aggregation takes the time $t_a$ of the whole graph with $\lceil F / C \rceil$ columns, or of a
    share of the heads:

    $$t = \frac{\beta_E}{R} \sum_a t_a + t_n(\beta_N N / P) + b / B$$

    with the balances $\beta$ of the partition, the time $t_n$ of the work on nodes, the bytes $b$
    that a device sends (with padding, and the all-reduce of the gradients) and the bandwidth $B$.
    $C = 1$ is the layout `rows`, $R = 1$ is `features`; in `both` $C$ is the largest proper divisor
    of the number of devices $P$ that a host has room for (8), and numbers without one
    are left out.

    Args:
        config: of the run; its `devices` and `shard` are not read.
        devices: numbers from 2 on; one device is always first in the result.
        layouts: which of `LAYOUTS`.
        bandwidth: bytes a second that a device sends.
        dataset: the data; by default those of `config.dataset`.
        limit: bytes of a device's memory; by default this device's.
        partitions: of the nodes, into different numbers of parts. Into other numbers the graph is
            split by `"stream"`.

    Returns:
        Also layouts that do not fit, or in which the model does not work: `Plan.reason`.

    Raises:
        ConfigError: options that cannot be, a run of mini-batches or links, or a model with values
            on the edges.
        DataError: data that cannot be read.
    """
    config = dataclasses.replace(config, devices="1", shard="auto").check()
    if config.num_neighbors or config.task != "node":
        raise ConfigError("plan: expected a run on the whole graph of --task node")
    given = {each.parts: each for each in partitions}
    if dataset is None:
        dataset = load_dataset(config)
        partition = sharded.partition_of(dataclasses.replace(config, devices="all"))
        if partition is not None:
            given.setdefault(partition.parts, partition)
    nodes = dataset.num_nodes
    for count in devices:
        if not 2 <= count <= nodes:
            raise ConfigError(f"--devices: expected numbers from 2 to {nodes}, got {count}")
    for each in given.values():
        if each.owner.size != nodes:
            raise ConfigError(
                f"partitions: expected the owners of {nodes} nodes, got {each.owner.size}"
            )
    limit = memory_limit() if limit is None else limit
    task = make_task(config, dataset, choose_split(dataset, config.split))
    program, state = build(config, task)
    found = _program(program, state, task)
    rates = _rates(config, program, state, task, limit)
    split_of = functools.cache(
        lambda parts: (
            None
            if parts == 1
            else (given.get(parts) or partition_into(dataset.graph, parts)).statistics
        )
    )
    plans = [_estimate(found, rates, limit, bandwidth, "one", 1, 1, None)]
    for count in devices:
        for layout in layouts:
            columns = {"rows": 1, "features": count}.get(layout) or sharded.column_devices(count)
            if layout == "both" and columns == 1:
                continue
            parts = count // columns
            refused = next(filter(None, (each.refusal(columns) for each in found.step)), "")
            if refused:
                plans.append(_refused(count, layout, columns, limit, refused))
                continue
            split = split_of(parts)
            plans.append(_estimate(found, rates, limit, bandwidth, layout, parts, columns, split))
    return plans


def memory_limit() -> int:
    """Bytes of this device; on the CPU of the machine."""
    found = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return int(found or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def partition_into(graph: Graph, parts: int) -> Partition:
    """The partition that is planned for."""
    # Few nodes cannot be balanced as the defaults ask for: the best that is found counts.
    for balance in (1.05, 1.2, 2.0, float(graph.num_edges + 1)):
        try:
            return distributed.partition(graph, parts, edge_balance=balance)
        except ValueError:
            continue
    raise ConfigError(f"--devices: the graph was not split into {parts} parts")


def _program(program: Program, state: TrainState, task: Task) -> _Program:
    recorder = Recorder(task.whole_graph)

    def with_recorder(arrays: Any) -> Task:
        return dataclasses.replace(task, graph=recorder, **arrays)

    def run_step(state: TrainState, arrays: Any) -> Any:
        return program.step(state, with_recorder(arrays))

    def run_evaluation(state: TrainState, arrays: Any) -> Any:
        return program.evaluate(state.params, state.rest, with_recorder(arrays))

    arrays = _arrays(task)
    try:
        step = aggregations(run_step, recorder, state, arrays)
        evaluation = aggregations(run_evaluation, recorder, state, arrays)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"plan: {error}") from error
    graph_bytes, state_bytes = task.whole_graph.nbytes, _nbytes(state)
    whole = program_bytes(lower(program, state, task)[0].compile())
    return _Program(
        step,
        evaluation,
        task.whole_graph.num_nodes,
        task.whole_graph.num_edges,
        graph_bytes,
        max(whole - graph_bytes - state_bytes, _nbytes(arrays)),
        state_bytes,
        _nbytes(state.params),
    )


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """Memory of a program with its operands and results, as XLA accounts for it; 0: unknown."""
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    whole = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return whole + memory.temp_size_in_bytes - memory.alias_size_in_bytes


def _arrays(task: Task, num_nodes: int | None = None) -> dict[str, Any]:
    names = ("features", "labels", "train", "val")
    return {name: getattr(task, name)[:num_nodes] for name in names}


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _rates(
    config: TrainConfig, program: Program, state: TrainState, task: Task, limit: int
) -> Rates:
    graph = task.whole_graph

    known: dict[Any, float] = {}

    def of_edges(aggregation: Aggregation, columns: int) -> float:
        probe, scale = _probe(aggregation.divided(columns), _PROBE_SHARE * limit)
        if probe.key not in known:
            forward, both = _aggregation_seconds(graph, probe)
            known[probe.key] = max(both - forward, 0.0) if probe.backward else forward
        return scale * known[probe.key]

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

        arrays = _arrays(task, count)
        steps.append(_seconds(jax.jit(step), state, arrays))
        evaluations.append(_seconds(jax.jit(evaluate), state, arrays))
    return Rates(of_edges, (_line(counts, steps), _line(counts, evaluations)))


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


def _aggregation_seconds(graph: Graph, aggregation: Aggregation) -> tuple[float, float]:
    """The time of the operation on the whole graph, and, of a gradient, of it and its gradient."""
    arrays = {name: _filled(shapes) for name, shapes in aggregation.arguments.items()}
    leaves, structure = jax.tree.flatten(arrays)
    floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]

    def run(graph: Graph, leaves: list[Any]) -> Any:
        return aggregation.operation(graph, **jax.tree.unflatten(structure, leaves))

    def with_gradient(graph: Graph, leaves: list[Any]) -> Any:
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
    """Arrays of these shapes: ones, random keys, and sparse rows with columns in order."""
    if isinstance(shapes, CBSR):
        space = shapes.width // shapes.k
        rows = jnp.arange(shapes.num_rows).reshape(*shapes.shape[:-1], 1)
        columns = jnp.arange(shapes.k) * space + rows % space
        values = jnp.ones(shapes.values.shape, shapes.values.dtype)
        indices = columns.astype(shapes.indices.dtype)
        return dataclasses.replace(shapes, values=values, indices=indices)
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


def _estimate(
    found: _Program,
    rates: Rates,
    limit: int,
    bandwidth: float,
    layout: str,
    parts: int,
    columns: int,
    split: PartitionStatistics | None,
) -> Plan:
    """Of parts by rows, of which each is on as many devices as share its columns."""
    devices = parts * columns
    edges, part_nodes, halo, padding = 1.0, found.nodes, 0.0, 1.0
    if split is not None:
        # Padding of the edges is work on no device's critical path but the largest part's own.
        edges = min(1.0, split.edge_balance / parts)
        part_nodes = int(np.ceil(split.node_balance * found.nodes / parts))
        halo = split.halo_per_node * found.nodes / parts
        padding = split.exchange_padding
    nodes = -(-part_nodes // columns)

    def seconds(aggregations: list[Aggregation], kind: int) -> float:
        constant, slope = rates.nodes[kind]
        return (
            edges * sum(rates.edges(each, columns) for each in aggregations)
            + constant
            + slope * nodes
        )

    def sent(aggregations: list[Aggregation], padded: bool = True) -> float:
        received = halo * padding if padded else halo
        places = nodes if padded else found.nodes / devices
        turned = sum(each.turned_bytes(columns, padded) for each in aggregations)
        over_rows = sum(each.halo_bytes(columns) for each in aggregations)
        return received * over_rows + places * (columns - 1) * turned

    compute = seconds(found.step, 0)
    reduced = 2 * (devices - 1) / devices * found.parameter_bytes  # a ring's all-reduce
    needed = sent(found.step, padded=False)
    step_bytes = sent(found.step) + reduced
    step = compute + step_bytes / bandwidth
    epoch = step + seconds(found.evaluation, 1) + sent(found.evaluation) / bandwidth
    # Columns of all rows before and after, and what is packed for either exchange; of the halo
    # what is packed, what came, and the rows with it behind them.
    turned = max((each.turned_bytes(columns) for each in found.step), default=0.0)
    over_rows = max((each.halo_bytes(columns) for each in found.step), default=0.0)
    buffers = 2 * part_nodes * turned if columns > 1 else 0.0
    if parts > 1:
        buffers += (3 * halo * padding + part_nodes) * over_rows
    memory = {
        "graph": int(found.graph_bytes * edges),
        "nodes": int(found.node_bytes * nodes / max(found.nodes, 1)),
        "state": found.state_bytes,
        "exchange": int(buffers),
    }
    return Plan(
        devices,
        layout,
        columns,
        memory,
        limit,
        compute,
        step_bytes,
        reduced,
        step,
        epoch,
        sent(found.step) / needed if needed else 1.0,
    )


def _refused(devices: int, layout: str, columns: int, limit: int, reason: str) -> Plan:
    unknown = dict.fromkeys(
        (
            "compute_seconds",
            "exchange_bytes",
            "reduce_bytes",
            "step_seconds",
            "epoch_seconds",
            "padding",
        ),
        float("nan"),
    )
    return Plan(devices, layout, columns, {}, limit, **unknown, refused=reason)
