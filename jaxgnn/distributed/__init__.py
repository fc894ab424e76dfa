"""Graphs that are split over the devices of a mesh."""

from jaxgnn.distributed._partition import Partition, PartitionStatistics, partition
from jaxgnn.distributed._partition_files import PartData

__all__ = ["PartData", "Partition", "PartitionStatistics", "partition"]
