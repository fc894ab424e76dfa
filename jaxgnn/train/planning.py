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
from jaxgnn.ops import spmm
from jaxgnn.train import sharded
from jaxgnn.train.config import ConfigError, TrainConfig
from jaxgnn.train.loop import lower
from jaxgnn.train.plan_graphs import Aggregation, Recorder, Unconnected, aggregations
from jaxgnn.train.runner import choose_split, load_dataset, make_task
from jaxgnn.train.step import Program, TrainState, build
from jaxgnn.train.task import Task

BANDWIDTH = 370e9
"""Bytes a second that a device sends: NVLink of an H100 or H200, one way."""

_REPEATS = 5
_PROBE_NODES = 1 << 18
_PROBE_SHARE = 0.2  # of the device's memory, for the rows of a probe


@dataclasses.dataclass(frozen=True)
class Plan:
    """A number of devices in one layout.

    Attributes:
        devices: how many.
        layout: `"rows"` or `"features"`; `"one"`: one device.
        memory: bytes of the device that holds most, by what takes them.
        limit: bytes of a device.
        compute_seconds: of a step, on the device with most to do.
        exchange_bytes: that a device sends in a step, padding included.
        step_seconds, epoch_seconds: with the exchange, which overlaps with nothing; an epoch also
            evaluates.
        padding: rows sent for each that is needed.
    """

    devices: int
    layout: str
    memory: dict[str, int]
    limit: int
    compute_seconds: float
    exchange_bytes: float
    step_seconds: float
    epoch_seconds: float
    padding: float

    @property
    def bytes(self) -> int:
        """All of the memory."""
        return sum(self.memory.values())

    @property
    def reason(self) -> str:
        """Why it does not fit; empty where it does."""
        if self.bytes <= self.limit:
            return ""
        most = max(self.memory, key=lambda name: self.memory[name])
        return (
            f"{self.bytes / 1e9:,.2f} GB of {self.limit / 1e9:,.2f}: {most} takes "
            f"{self.memory[most] / 1e9:,.2f}"
        )


class Rates(NamedTuple):
    """What was measured on this device, in seconds.

    Attributes:
        edges: of an aggregation of the whole graph.
        nodes: of a step's, and of an evaluation's, work on nodes: a constant, and for each node.
    """

    edges: Callable[[Aggregation], float]
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
    layouts: Sequence[str] = ("rows", "features"),
    bandwidth: float = BANDWIDTH,
    dataset: NodeDataset | None = None,
    limit: int | None = None,
) -> list[Plan]:
    r"""Memory a device and seconds an epoch for numbers of devices, from one device.

    Measured on this device: each aggregation of the model on the graph, at the width that a device
    has, and the rest of the step on some nodes. Of `rows` the partition's statistics give the
    edges, nodes and halo of the largest part:

    $$t = \sum_a \beta_E t_a / P + t_n(\beta_N N / P) + b / B$$

    with the balances $\beta$, the aggregations' times $t_a$ on the whole graph, the time $t_n$ of
    the work on nodes, the bytes $b$ that a device sends (with padding, and the all-reduce of the
    gradients) and the bandwidth $B$. Of `features` $t_a$ is that of $\lceil F / P \rceil$ columns
    and nothing is divided.

    Args:
        config: of the run; its `devices` and `shard` are not read.
        devices: numbers from 2 on; one device is always first in the result.
        layouts: which of both.
        bandwidth: bytes a second that a device sends.
        dataset: the data; by default those of `config.dataset`.
        limit: bytes of a device's memory; by default this device's.

    Raises:
        ConfigError: options that cannot be, a run of mini-batches or links, or a model whose
            aggregations are not `spmm`.
        DataError: data that cannot be read.
    """
    config = dataclasses.replace(config, devices="1", shard="auto").check()
    if config.num_neighbors or config.task != "node":
        raise ConfigError("plan: expected a run on the whole graph of --task node")
    partition = None
    if dataset is None:
        dataset = load_dataset(config)
        partition = sharded.partition_of(dataclasses.replace(config, devices="all"))
    nodes = dataset.num_nodes
    for count in devices:
        if not 2 <= count <= nodes:
            raise ConfigError(f"--devices: expected numbers from 2 to {nodes}, got {count}")
    limit = memory_limit() if limit is None else limit
    task = make_task(config, dataset, choose_split(dataset, config.split))
    program, state = build(config, task)
    found = _program(program, state, task)
    rates = _rates(config, program, state, task, limit)
    plans = [_one(found, rates, limit)]
    for count in devices:
        for layout in layouts:
            if layout == "rows":
                split = _statistics(dataset.graph, count, partition)
                plans.append(_by_rows(found, rates, limit, bandwidth, count, split))
            else:
                plans.append(_by_features(found, rates, limit, bandwidth, count))
    return plans


def memory_limit() -> int:
    """Bytes of this device; on the CPU of the machine."""
    found = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return int(found or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _statistics(graph: Graph, count: int, partition: Partition | None) -> PartitionStatistics:
    if partition is not None and partition.parts == count:
        return partition.statistics
    # Few nodes cannot be balanced as the defaults ask for: the best that is found counts.
    for balance in (1.05, 1.2, 2.0, float(graph.num_edges + 1)):
        try:
            found = distributed.partition(graph, count, edge_balance=balance)
        except ValueError:
            continue
        return found.statistics
    raise ConfigError(f"--devices: the graph was not split into {count} parts")


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

    @functools.cache
    def of_edges(aggregation: Aggregation) -> float:
        rows = max(graph.num_nodes, 1) * aggregation.itemsize
        width = max(1, min(aggregation.width, int(_PROBE_SHARE * limit / (2 * rows))))
        x = jnp.ones((graph.num_nodes, width), aggregation.dtype)

        def run(graph: Graph, x: Any) -> Any:
            def aggregate(x: Any) -> Any:
                return spmm(graph, x, reduce=aggregation.reduce)

            if not aggregation.backward:
                return aggregate(x)
            out, pullback = jax.vjp(aggregate, x)
            return pullback(out if aggregation.reduce in ("max", "min") else x)[0]

        return _seconds(jax.jit(run), graph, x) * aggregation.width / width

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


def _plan(
    found: _Program,
    layout: str,
    devices: int,
    limit: int,
    memory: dict[str, int],
    seconds: Callable[[list[Aggregation], int], float],
    sent: Callable[[list[Aggregation]], float],
    bandwidth: float,
    padding: float,
) -> Plan:
    compute = seconds(found.step, 0)
    reduced = 2 * (devices - 1) / devices * found.parameter_bytes  # a ring's all-reduce
    step_bytes = sent(found.step) + reduced
    step = compute + step_bytes / bandwidth
    epoch = step + seconds(found.evaluation, 1) + sent(found.evaluation) / bandwidth
    return Plan(devices, layout, memory, limit, compute, step_bytes, step, epoch, padding)


def _one(found: _Program, rates: Rates, limit: int) -> Plan:
    def seconds(aggregations: list[Aggregation], kind: int) -> float:
        constant, slope = rates.nodes[kind]
        return sum(map(rates.edges, aggregations)) + constant + slope * found.nodes

    memory = {"graph": found.graph_bytes, "nodes": found.node_bytes, "state": found.state_bytes}
    return _plan(found, "one", 1, limit, memory, seconds, lambda _: 0.0, BANDWIDTH, 1.0)


def _by_rows(
    found: _Program,
    rates: Rates,
    limit: int,
    bandwidth: float,
    devices: int,
    split: PartitionStatistics,
) -> Plan:
    # Padding of the edges is work on no device's critical path but the largest part's own.
    edges = min(1.0, split.edge_balance / devices)
    nodes = int(np.ceil(split.node_balance * found.nodes / devices))
    received = split.halo_per_node * split.exchange_padding * found.nodes / devices

    def seconds(aggregations: list[Aggregation], kind: int) -> float:
        constant, slope = rates.nodes[kind]
        return edges * sum(map(rates.edges, aggregations)) + constant + slope * nodes

    def sent(aggregations: list[Aggregation]) -> float:
        return sum(received * each.width * each.itemsize for each in aggregations)

    memory = {
        "graph": int(found.graph_bytes * edges),
        "nodes": int(found.node_bytes * nodes / found.nodes),
        "state": found.state_bytes,
        # What is packed, what came, and the rows with it behind them.
        "exchange": int((3 * received + nodes) * _widest(found)),
    }
    return _plan(
        found,
        "rows",
        devices,
        limit,
        memory,
        seconds,
        sent,
        bandwidth,
        split.exchange_padding,
    )


def _by_features(found: _Program, rates: Rates, limit: int, bandwidth: float, devices: int) -> Plan:
    nodes = -(-found.nodes // devices)

    def columns(aggregation: Aggregation) -> int:
        return -(-aggregation.width // devices)

    def seconds(aggregations: list[Aggregation], kind: int) -> float:
        constant, slope = rates.nodes[kind]
        own = (each._replace(width=columns(each)) for each in aggregations)
        return sum(map(rates.edges, own)) + constant + slope * nodes

    def sent(aggregations: list[Aggregation]) -> float:
        return sum(
            2 * nodes * (devices - 1) * columns(each) * each.itemsize for each in aggregations
        )

    memory = {
        "graph": found.graph_bytes,
        "nodes": int(found.node_bytes / devices),
        "state": found.state_bytes,
        # Columns of all nodes before and after, and what is packed for either exchange.
        "exchange": int(4 * nodes * devices * (-(-_widest(found) // devices))),
    }
    widths = [(columns(each) * devices, each.width) for each in found.step]
    padding = nodes * devices / found.nodes * max((ours / own for ours, own in widths), default=1)
    return _plan(found, "features", devices, limit, memory, seconds, sent, bandwidth, padding)


def _widest(found: _Program) -> int:
    """Bytes of the widest row that is aggregated."""
    return max((each.width * each.itemsize for each in found.step), default=0)
