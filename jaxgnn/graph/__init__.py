"""The graph and batches of graphs. `transform` and `tiles` are imported when first used."""

from jaxgnn.graph import batch
from jaxgnn.graph._argument import graph_argument, own_closure
from jaxgnn.graph._arrays import self_loop_mask
from jaxgnn.graph._blocks import Blocks, squared
from jaxgnn.graph._graph import Graph
from jaxgnn.graph._node_rows import NodeRows
from jaxgnn.graph._substitute import End, GraphSubstitute, Split
from jaxgnn.graph.batch import GraphBatch

__all__ = [
    "Blocks",
    "End",
    "Graph",
    "GraphBatch",
    "GraphSubstitute",
    "NodeRows",
    "Split",
    "batch",
    "graph_argument",
    "own_closure",
    "self_loop_mask",
    "squared",
]
