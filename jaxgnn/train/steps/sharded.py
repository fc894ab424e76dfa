"""Runs on the whole graph over several devices: `--devices`, `--shard`, `--distributed`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from jaxgnn._core.text import printable
from jaxgnn.data.formats.partitioned import is_partition
from jaxgnn.distributed import Partition, ShardedGraph, shard
from jaxgnn.distributed._placement import place
from jaxgnn.graph import Graph
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError

AXIS = "devices"
"""The name of the mesh's one axis, or of that over which devices share columns."""

PARTS = "parts"
"""That of the other one, if a graph is split by both."""

HOST_DEVICES = 8
"""Devices that may share columns where both axes are split: those of a host."""


SUMS = ("gcn", "gin", "sage")
"""Models that ask a whole graph for sums and means alone."""


class Layout(NamedTuple):
    """How a graph lies.

    Attributes:
        mesh: of the devices.
        axes: arguments of `distributed.shard`, without those that it decides itself.
        parts: of a graph by rows.
    """

    mesh: Mesh
    axes: dict[str, str]
    parts: int


def devices_of(config: TrainConfig) -> list[Any]:
    """The devices of this host that a run takes; of several processes all devices.

    Raises:
        ConfigError: it has fewer.
    """
    if config.distributed:
        return jax.devices()
    there = jax.local_devices()
    count = len(there) if config.devices == "all" else int(config.devices)
    if count > len(there):
        kind = printable(there[0].device_kind)
        raise ConfigError(
            f"--devices: expected at most {len(there)}, the devices of this host ({kind}), got "
            f"{count}"
        )
    return there[:count]


def partition_of(config: TrainConfig) -> Partition | None:
    """The owners that a folder of `jaxgnn partition` has, if that is the data.

    Raises:
        DataError: the folder is damaged.
    """
    if not config.over_devices or not is_partition(config.dataset):
        return None
    return Partition.load(config.dataset)


def shard_graph(
    graph: Graph, config: TrainConfig, partition: Partition | None = None
) -> Graph | ShardedGraph:
    """The graph over the configured devices; with one of them as it is.

    Args:
        graph: the whole graph.
        config: the options.
        partition: the owners of nodes. Of a multiple of the devices, neighboring parts are joined.

    Raises:
        ConfigError: fewer devices, or a number that does not divide the parts.
    """
    devices = devices_of(config)
    if len(devices) == 1:
        return graph
    if config.num_neighbors:
        return everywhere(graph, Mesh(np.array(devices), (AXIS,)))
    layout = layout_of(config, devices)
    options: dict[str, Any] = dict(layout.axes)
    if partition is not None and config.shard != "features":
        owner = joined_owners(partition, layout.parts, config.shard == "both")
        options["partition"] = dataclasses.replace(partition, parts=layout.parts, owner=owner)
    return lean(shard(graph, layout.mesh, **options), config)


def joined_owners(partition: Partition, parts: int, both: bool) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node where neighboring parts are joined into so many.

    Raises:
        ConfigError: that does not divide the parts. It names the option, by `both` axes or by rows.
    """
    if partition.parts % parts:
        name = "--shard: both expected rows on" if both else "--devices: expected"
        raise ConfigError(f"{name} a divisor of the {partition.parts} parts, got {parts}")
    return partition.owner // np.int32(partition.parts // parts)


def lean(graph: ShardedGraph, config: TrainConfig) -> ShardedGraph:
    """The graph without the arrays that the model does not need."""
    return graph.without_joint_graph() if config.model in SUMS else graph


def layout_of(config: TrainConfig, devices: list[Any]) -> Layout:
    """The mesh of these devices, and how a graph lies on it.

    Raises:
        ConfigError: no two of them can share columns while others have other rows.
    """
    count = len(devices)
    if config.shard != "both":
        axes = {} if config.shard == "auto" else {config.shard: AXIS}
        return Layout(Mesh(np.array(devices), (AXIS,)), axes, count)
    columns = devices_of_a_part([device.process_index for device in devices])
    if columns == 1:
        raise ConfigError(
            f"--shard: expected rows or features over {count} devices, got both: no two of them "
            "can share columns while others have other rows"
        )
    mesh = Mesh(np.array(devices).reshape(-1, columns), (PARTS, AXIS))
    return Layout(mesh, {"rows": PARTS, "features": AXIS}, count // columns)


def devices_of_a_part(processes: list[int]) -> int:
    """How many devices share columns where both axes are split: those of a process.

    Of one process, or of processes with a device each, it is the largest divisor that leaves two
    parts or more and that a host has room for; 1: there is none.

    Args:
        processes: of each device.
    """
    own = set(Counter(processes).values())
    if len(set(processes)) > 1 and own != {1}:
        return own.pop() if len(own) == 1 else 1
    return column_devices(len(processes))


def column_devices(count: int) -> int:
    """How many of so many devices share columns where both axes are split; 1: they cannot be."""
    most = min(count // 2, HOST_DEVICES)
    return max((d for d in range(2, most + 1) if count % d == 0), default=1)


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """The arrays on every device of a mesh, of this process or of several; those that a tree has
    twice stay shared."""
    leaves, structure = jax.tree.flatten(tree)
    sharding = NamedSharding(mesh, PartitionSpec())
    there = {key: place(leaf, sharding) for key, leaf in {id(x): x for x in leaves}.items()}
    return jax.tree.unflatten(structure, [there[id(leaf)] for leaf in leaves])


def mesh_of(graph: Any) -> Mesh | None:
    """The devices that all have the whole graph, if they are several."""
    sharding = getattr(getattr(graph, "row_offsets", None), "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1:
        return None
    own = sharding.is_fully_replicated and sharding.mesh.axis_names == (AXIS,)
    return sharding.mesh if own else None  # type: ignore[return-value]


def replicate(tree: Any, graph: Any) -> Any:
    """A state on all devices of a graph over several; of another graph as it is."""
    if isinstance(graph, ShardedGraph):
        return graph.replicate(tree)
    mesh = mesh_of(graph)
    return tree if mesh is None else everywhere(tree, mesh)


def step_shardings(state: Any, graph: Any) -> Any:
    """How a step's results lie: the state as it came, so that the next step takes it."""
    if not isinstance(graph, ShardedGraph) and mesh_of(graph) is None:
        return None
    return jax.tree.map(lambda leaf: leaf.sharding, state), None


@contextlib.contextmanager
def tracing(graph: Any) -> Iterator[None]:
    """What a sharded graph refuses while a model is traced, as a `ConfigError`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not isinstance(graph, ShardedGraph) or isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--devices: {error}") from error


def in_node_order(rows: Any, graph: Any) -> np.ndarray:
    """Rows of a model's outputs by the nodes' ids, on the host."""
    if isinstance(graph, ShardedGraph):
        rows = graph.gather(rows)
    return np.asarray(jax.device_get(rows))


def summary(graph: Any) -> dict[str, Any]:
    """What `summary.json` says of the devices; nothing of one."""
    mesh = mesh_of(graph)
    if mesh is not None:
        found = {"devices": mesh.size, "shard": "seeds"}
    elif isinstance(graph, ShardedGraph):
        mesh, found = graph.mesh, {"devices": graph.parts, "shard": graph.layout}
    else:
        return {}
    return found | ({"processes": _processes(mesh)} if _processes(mesh) > 1 else {})


def describe(graph: Any) -> str:
    """The same, at the end of a line."""
    mesh = mesh_of(graph)
    if mesh is not None:
        what = f"batches over {mesh.size}"
    elif isinstance(graph, ShardedGraph):
        mesh, what = graph.mesh, f"by {graph.layout} over {graph.parts}"
    else:
        return ""
    count = _processes(mesh)
    return f"; {what} devices{f' of {count} processes' * (count > 1)}"


def _processes(mesh: Mesh) -> int:
    return len({device.process_index for device in mesh.devices.flat})
