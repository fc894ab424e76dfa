"""The graph, its transforms, and batches of graphs."""

from jaxgnn.graph import batch, transform
from jaxgnn.graph._graph import Graph, self_loop_mask
from jaxgnn.graph.batch import GraphBatch

__all__ = ["Graph", "GraphBatch", "batch", "self_loop_mask", "transform"]
