"""Runs over several processes on a folder of `jaxgnn partition`: each reads its own parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.text import printable
from jaxgnn.data import DataError, NodeDataset
from jaxgnn.data.partitioned import is_partition, partition_nodes
from jaxgnn.distributed import ShardedGraph, load_sharded
from jaxgnn.train import sharded
from jaxgnn.train.config import TrainConfig
from jaxgnn.train.options import ConfigError


class OwnParts(NamedTuple):
    """What a process has of a graph that none of them has whole.

    Attributes:
        graph: over all devices.
        features: of its places.
        checksum: of the whole graph, its features and its labels, from when it was partitioned.
    """

    graph: ShardedGraph
    features: Float[Array, "places features"]
    checksum: str


def check_whole(config: TrainConfig) -> None:
    """Refuses edges that are to join both ways, or their weights, where the data are in parts: each
    has its own edges, without weights."""
    if not (config.undirected or config.edge_weights) or not is_partition(config.dataset):
        return
    name = "--undirected" if config.undirected else "--edge-weights"
    hint = "; give it to jaxgnn partition" if config.undirected else ", which have no weights"
    raise ConfigError(
        f"{name}: expected a dataset that is not in parts, got {printable(config.dataset)}{hint}"
    )


def load_own_parts(config: TrainConfig) -> tuple[NodeDataset, OwnParts] | None:
    """The parts of a folder that this process's devices train on, and labels and masks of all nodes
    in a dataset without edges and features.

    Returns:
        `None` where a run takes the whole graph: of other data, by features, for mini-batches, with
        features that are scaled by the whole matrix, with the windows of a GPU's MaxK, or of an
        older folder.

    Raises:
        ConfigError: the devices do not divide the parts, or edges are to join both ways.
        DataError: the folder is damaged.
    """
    windows = config.activation == "maxk" and jax.default_backend() == "gpu"
    if not config.distributed or windows or config.shard == "features" or config.num_neighbors:
        return None
    if jax.device_count() == 1 or not is_partition(config.dataset):
        return None
    check_whole(config)
    found = partition_nodes(config.dataset)
    if found is None:
        return None
    dataset, checksum = found
    if config.features == "normalized" or (
        config.features == "auto" and "public" in dataset.splits
    ):
        return None
    devices = sharded.devices_of(config)
    layout = sharded.layout_of(config, devices)
    axes: dict[str, Any] = {"rows": sharded.AXIS, **layout.axes}
    try:
        graph, arrays = load_sharded(
            config.dataset,
            layout.mesh,
            **axes,
            row_schedule=jax.default_backend() == "gpu",
        )
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise ConfigError(f"--distributed: {error}") from error
    features = arrays.get("features")
    if features is None or features.ndim != 2 or features.dtype != jnp.float32:
        raise DataError(f"{printable(config.dataset)}: expected features, float32 and a row a node")
    if not jax.jit(lambda x: jnp.isfinite(x).all())(features):
        raise DataError(f"{printable(config.dataset)}: features: expected finite values")
    return dataset, OwnParts(sharded.lean(graph, config), features.astype(config.dtype), checksum)
