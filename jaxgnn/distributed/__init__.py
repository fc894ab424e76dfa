"""Graphs that are split over the devices of a mesh."""

from jaxgnn.distributed._load_sharded import load_sharded
from jaxgnn.distributed._partition import Partition, PartitionStatistics, partition
from jaxgnn.distributed._partition_files import PartData
from jaxgnn.distributed._shard import shard
from jaxgnn.distributed._sharded_graph import ShardedGraph

__all__ = [
    "PartData",
    "Partition",
    "PartitionStatistics",
    "ShardedGraph",
    "load_sharded",
    "partition",
    "shard",
]
