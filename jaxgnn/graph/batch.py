"""Many graphs as one: disjoint unions, padded to few different shapes so that jit compiles few.

A union is a batch of graphs without edges between them; `readout(batch.membership, x)` reduces
node features to one row a graph. Padding brings it to a given number of nodes, edges and
graphs: the added edges run between added nodes, and those belong to an added graph, so that
nothing of theirs reaches the real ones. Batches padded to the same counts have the same shapes
throughout, chunk tables included, and share one compiled program.
"""

from jaxgnn.graph._batches.data import (
    union_edge_data,
    union_graph_data,
    union_node_data,
    union_sender_data,
)
from jaxgnn.graph._batches.graph_batch import GraphBatch, disjoint_union
from jaxgnn.graph._batches.padding import bucket_size, pad, pad_to_bucket

__all__ = [
    "GraphBatch",
    "bucket_size",
    "disjoint_union",
    "pad",
    "pad_to_bucket",
    "union_edge_data",
    "union_graph_data",
    "union_node_data",
    "union_sender_data",
]
