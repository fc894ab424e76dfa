"""Runs over several processes on a folder of `jaxgnn partition`: each reads its own parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.text import printable
from jaxgnn.data import DataError, NodeDataset
from jaxgnn.data.formats.partitioned import has_weights, is_partition, partition_nodes
from jaxgnn.distributed import ShardedGraph, load_sharded
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.steps import sharded
from jaxgnn.train.steps.edge_weights import check_degrees_of_parts


class OwnParts(NamedTuple):
    """What a process has of a graph that none of them has whole.

    Attributes:
        graph: over all devices.
        features: of its places.
        weights: of the places of its edges, in the type of the sums; `None` without
            `--edge-weights`.
        has_weights: whether the folder has some, used or not.
        checksum: of the whole graph, its features and its labels, and the weights that are used,
            from when it was partitioned.
    """

    graph: ShardedGraph
    features: Float[Array, "places features"]
    weights: Float[Array, " num_edges"] | None
    has_weights: bool
    checksum: str


def check_parts(config: TrainConfig) -> None:
    """Refuses a folder of parts, each of which has its own edges, where they are to join both ways,
    and one without weights where they are to have some.

    Raises:
        ConfigError, DataError: it is one.
    """
    if not (config.undirected or config.edge_weights) or not is_partition(config.dataset):
        return
    name = printable(config.dataset)
    if config.undirected:
        raise ConfigError(
            f"--undirected: expected a dataset that is not in parts, got {name}; give it to jaxgnn "
            "partition"
        )
    if not has_weights(config.dataset):
        raise DataError(
            f"{name}: expected weights of the edges for --edge-weights, got none: jaxgnn partition "
            "writes those of its data"
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
        DataError: the folder is damaged, or has no weights that the model can take.
    """
    windows = config.activation == "maxk" and jax.default_backend() == "gpu"
    if not config.distributed or windows or config.shard == "features" or config.num_neighbors:
        return None
    if jax.device_count() == 1 or not is_partition(config.dataset):
        return None
    check_parts(config)
    found = partition_nodes(config.dataset, weights=config.edge_weights)
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
    graph = sharded.lean(graph, config)
    features = _checked(config, arrays, "features", 2, "a row a node")
    weights = None
    if config.edge_weights:
        weights = _checked(config, arrays, "weights", 1, "one an edge")
        check_degrees_of_parts(config, graph, weights, printable(dataset.name))
        weights = weights.astype(accumulation_dtype(config.dtype))
    own = OwnParts(graph, features.astype(config.dtype), weights, "weights" in arrays, checksum)
    return dataset, own


def _checked(
    config: TrainConfig, arrays: dict[str, Array], name: str, ndim: int, rows: str
) -> Array:
    """An array of the folder, of finite numbers."""
    where, values = printable(config.dataset), arrays.get(name)
    if values is None or values.ndim != ndim or values.dtype != jnp.float32:
        raise DataError(f"{where}: expected {name}, float32 and {rows}")
    if not jax.jit(lambda x: jnp.isfinite(x).all())(values):
        raise DataError(f"{where}: {name}: expected finite values")
    return values
