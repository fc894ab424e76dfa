"""Graphs that are split over the devices of a mesh."""

from jaxgnn.distributed._shard import shard
from jaxgnn.distributed._sharded_graph import ShardedGraph

__all__ = ["ShardedGraph", "shard"]
