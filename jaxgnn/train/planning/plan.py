"""`plan`: memory and time of a run over several devices, before there are any."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxgnn._core import checks
from jaxgnn._core.arguments import as_integer
from jaxgnn.data import NodeDataset
from jaxgnn.distributed import Partition
from jaxgnn.distributed._choose_partition import choose_partition
from jaxgnn.distributed._parts import rows_of_device, rows_of_part
from jaxgnn.train.loop.epochs import lower
from jaxgnn.train.planning.plan_graphs import Aggregation, Recorder, aggregations
from jaxgnn.train.planning.plan_rates import Part, Rates, Seconds, arrays_of, measure_rates
from jaxgnn.train.problems.node_problem import check_dataset, choose_split, load_dataset, make_task
from jaxgnn.train.settings.config import TrainConfig, check_config
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.build_program import build
from jaxgnn.train.steps.step import Program, TrainState
from jaxgnn.train.steps.task import Task

BANDWIDTH = 370e9
"""Bytes a second that a device sends: NVLink of an H100 or H200, one way."""

LAYOUTS = ("rows", "features", "both")
_NO_COLUMNS = "no two of the devices can share columns while others have other rows"

_OF_DEVICES = (
    *("devices", "shard", "distributed"),
    *("coordinator", "processes", "process", "stall_timeout"),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A number of devices in one layout.

    Attributes:
        devices: how many.
        layout: `"rows"`, `"features"` or `"both"`; `"one"`: one device.
        column_devices: how many of them share the columns of a part.
        memory: bytes of the device that holds most, by what takes them.
        limit: bytes of a device.
        compute_seconds: of a step, on the device with most to do, without what hides the exchange.
        exchange_bytes: that a device sends in a step, padding and the next ones included.
        reduce_bytes: of these the all-reduce of the gradients.
        step_seconds, epoch_seconds: with the exchange; an epoch also evaluates.
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
        found = self.bytes, self.limit, self.memory[most]
        scale, unit = next(
            each for each in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if found[0] >= each[0] / 10
        )
        needed, limit, part = (f"{each / scale:,.2f}" for each in found)
        return f"{needed} {unit} of {limit}: {most} takes {part}"


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

    Measured on this device: each aggregation of the model, at the width that a device has, and the
    rest of the step on some nodes. Under `rows` that is on the part with most edges, with the rows
    that it packs in place of its halo; else on the whole graph. The partition's statistics give the
    nodes of the largest part and the halo. With $R$ parts, whose columns $C$ devices share, each
    aggregation takes the time $t_a$ of the part with $\lceil F / C \rceil$ columns, or of a share
    of the heads:

    $$t = \sum_a (t_a - \min(m_a, b_a / B)) + t_n(\beta_N N / P) + b / B$$

    with the time $m_a$ of the edges that are aggregated while the halo of $b_a$ bytes travels
    (0 without overlap: `shard`), the time $t_n$ of the work on nodes and their balance $\beta_N$,
    the bytes $b$ that a device sends (with padding, and the all-reduce of the gradients) and the
    bandwidth $B$.
    $C = 1$ is the layout `rows`, $R = 1$ is `features`; in `both` $C$ is the largest proper divisor
    of the number of devices $P$ that a host has room for (8), and numbers without one
    are left out.

    Args:
        config: of the run; its `devices` and `shard`, and the options of several processes, are not
            read.
        devices: numbers from 2 on; one device is always first in the result.
        layouts: which of `LAYOUTS`.
        bandwidth: bytes a second that a device sends.
        dataset: the data; by default those of `config.dataset`.
        limit: bytes of a device's memory; by default this device's.
        partitions: of the nodes, into different numbers of parts. Into other numbers the graph is
            split as by `distributed.shard`; where `config.dataset` is a folder of
            `Partition.save`, neighboring parts are joined, as a run does.

    Returns:
        Also layouts that do not fit, or in which the model does not work: `Plan.reason`.

    Raises:
        TypeError: `config` is no `TrainConfig`, `dataset` no `NodeDataset`, or another argument of
            another type.
        ValueError: an unknown layout, or a `bandwidth` or `limit` that is not above 0.
        ConfigError: options that cannot be, a run of mini-batches or links, or a model with values
            on the edges.
        DataError: data that cannot be read.
    """
    check_config(config)
    alone = {name: getattr(TrainConfig, name) for name in _OF_DEVICES}
    config = dataclasses.replace(config, **alone).check()
    if config.task != "node":
        raise ConfigError(f"--task: jaxgnn plan expected node, got {config.task}")
    if config.num_neighbors:
        raise ConfigError(
            f"--num-neighbors: jaxgnn plan expected none, got {config.num_neighbors}: it is of "
            "steps on the whole graph"
        )
    if config.edge_weights:
        raise ConfigError("--edge-weights: jaxgnn plan expected none: it times sums without")
    if config.samples:
        raise ConfigError(
            f"--sample-{'size' if config.sample_size else 'rate'}: jaxgnn plan expected none: "
            "samples run on one device alone"
        )
    if config.features == "embedding":
        raise ConfigError(
            "--features: jaxgnn plan expected the data's, got embedding: it times some of the nodes"
        )
    _check_arguments(devices, layouts, bandwidth, limit, partitions)
    given = {each.parts: each for each in partitions}
    folder = None
    if dataset is None:
        dataset = load_dataset(config)
        folder = sharded.partition_of(dataclasses.replace(config, devices="all"))
    check_dataset(dataset)
    nodes = dataset.num_nodes
    for count in devices:
        if not 2 <= count <= nodes:
            most = f"at most {nodes}, the nodes of the graph" if count > nodes else "numbers from 2"
            raise ConfigError(f"--devices: expected {most}, got {count}")
    for each in given.values():
        if each.owner.size != nodes:
            raise ConfigError(
                f"partitions: expected the owners of {nodes} nodes, got {each.owner.size}"
            )
    limit = memory_limit() if limit is None else limit
    # With tiles where a run has them: on one device, and by features.
    task = make_task(config, dataset, choose_split(dataset, config.split), training=True)
    program, state = build(config, task)
    found = _program(program, state, task)
    rates = measure_rates(program, state, task, limit)

    @functools.cache
    def largest(parts: int, both: bool) -> Part | None:
        if parts == 1:
            return None
        split = given.get(parts)
        if split is None and folder is not None:
            owner = sharded.joined_owners(folder, parts, both)
            split = Partition.of_owners(dataset.graph, owner, parts)
        split = split or choose_partition(dataset.graph, parts)
        part = Part.largest(task.whole_graph, split)
        return dataclasses.replace(part, graph=sharded.lean(part.graph, config))

    plans = [_estimate(found, rates, limit, bandwidth, "one", 1, 1, None)]
    for count in devices:
        for layout in layouts:
            columns = {"rows": 1, "features": count}.get(layout) or sharded.column_devices(count)
            if layout == "both" and columns == 1:
                if len(layouts) == 1:  # asked for
                    plans.append(_refused(count, layout, columns, limit, _NO_COLUMNS))
                continue
            parts = count // columns
            refused = next(filter(None, (each.refusal(columns) for each in found.step)), "")
            if refused:
                plans.append(_refused(count, layout, columns, limit, refused))
                continue
            try:
                part = largest(parts, layout == "both")
            except ConfigError as error:  # a folder of parts that cannot be joined
                plans.append(_refused(count, layout, columns, limit, str(error)))
                continue
            plans.append(_estimate(found, rates, limit, bandwidth, layout, parts, columns, part))
    return plans


def _check_arguments(
    devices: Any, layouts: Any, bandwidth: Any, limit: Any, partitions: Any
) -> None:
    """Raises for what `plan` cannot take, but the options and the data."""
    for name, value in (("devices", devices), ("layouts", layouts), ("partitions", partitions)):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{name}: expected a sequence, got {value!r}")
    for count in devices:
        if as_integer(count) is None:
            raise TypeError(f"devices: expected integers, got {count!r}")
    for layout in layouts:
        checks.choice(layout, "layouts", LAYOUTS)
    for each in partitions:
        if not isinstance(each, Partition):
            raise TypeError(f"partitions: expected Partition, got {type(each).__name__}")
    if checks.number(bandwidth, "bandwidth", 0, math.inf) == 0:
        raise ValueError("bandwidth: expected a number above 0, got 0")
    if limit is not None:
        checks.integer(limit, "limit", 1, 2**63 - 1)


def memory_limit() -> int:
    """Bytes of this device; on the CPU of the machine."""
    found = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return int(found or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _program(program: Program, state: TrainState, task: Task) -> _Program:
    recorder = Recorder(task.whole_graph)

    def with_recorder(arrays: Any) -> Task:
        return dataclasses.replace(task, graph=recorder, **arrays)

    def run_step(state: TrainState, arrays: Any) -> Any:
        return program.step(state, with_recorder(arrays))

    def run_evaluation(state: TrainState, arrays: Any) -> Any:
        return program.evaluate(state.params, state.rest, with_recorder(arrays))

    arrays = arrays_of(task)
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


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _estimate(
    found: _Program,
    rates: Rates,
    limit: int,
    bandwidth: float,
    layout: str,
    parts: int,
    columns: int,
    part: Part | None,
) -> Plan:
    """Of parts by rows, of which each is on as many devices as share its columns."""
    devices = parts * columns
    halo, received, graph_bytes = 0.0, 0.0, found.graph_bytes
    nodes = rows_of_device(found.nodes, columns) if devices > 1 else found.nodes
    if part is not None:
        split = part.partition.statistics
        graph_bytes = _nbytes((part.graph.graph, part.graph.kinds, part.graph.sends))
        largest = int(np.bincount(part.partition.owner).max())
        nodes = rows_of_part(largest, columns) // columns
        halo = split.halo_per_node * found.nodes / parts
        received = part.graph.pair_rows * (parts - 1) / parts  # with padding

    def seconds(aggregations: list[Aggregation], kind: int) -> float:
        constant, slope = rates.nodes[kind]
        total = constant + slope * nodes
        for each in aggregations:
            own = rates.edges(each, columns) if part is None else rates.part(each, columns, part)
            total += own.all - hidden(each, own)
        return total

    def hidden(each: Aggregation, own: Seconds) -> float:
        return min(own.meanwhile, received * each.halo_bytes(columns) / bandwidth)

    def sent(aggregations: list[Aggregation], padded: bool = True) -> float:
        places = nodes if padded else found.nodes / devices
        turned = sum(each.turned_bytes(columns, padded) for each in aggregations)
        over_rows = sum(each.halo_bytes(columns) for each in aggregations)
        return (received if padded else halo) * over_rows + places * (columns - 1) * turned

    compute = seconds(found.step, 0)
    reduced = 2 * (devices - 1) / devices * found.parameter_bytes  # a ring's all-reduce
    needed = sent(found.step, padded=False)
    step_bytes = sent(found.step) + reduced
    step = compute + step_bytes / bandwidth
    epoch = step + seconds(found.evaluation, 1) + sent(found.evaluation) / bandwidth
    # Columns of all rows before and after, and what is packed for either exchange; of the halo
    # what is packed, what came, and, where those are not all rows, the rows with it behind them.
    turned = max((each.turned_bytes(columns) for each in found.step), default=0.0)
    over_rows = max((each.halo_bytes(columns) for each in found.step), default=0.0)
    part_rows = columns * nodes
    buffers = 2 * part_rows * turned if columns > 1 else 0.0
    if parts > 1:
        copies = 3 if part is None or part.graph.sends is not None else 2
        buffers += (copies * received + part_rows) * over_rows
    memory = {
        "graph": graph_bytes,
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
