"""Graph neural networks for JAX whose aggregation runs in XLA custom calls.

The layers: `jaxgnn.ops` (operations, re-exported here), `jaxgnn.algebra` (operators for
message passing of one's own), `jaxgnn.nn` (Flax NNX modules), `jaxgnn.transform` and `jaxgnn.batch`
(graph preprocessing), `jaxgnn.data` (data sets).
"""

from jaxgnn import algebra, batch, config, transform
from jaxgnn._ffi import BuildInfo, build_info
from jaxgnn.batch import GraphBatch
from jaxgnn.graph import Graph
from jaxgnn.ops import (
    CBSR,
    cosine_attention,
    dot_attention,
    edge_conv,
    edge_conv_max,
    gat_attention,
    gather_edges,
    gatv2_attention,
    gaussian_spmm,
    knn_graph,
    maxk,
    maxk_spmm,
    readout,
    sddmm,
    segment_reduce,
    segment_softmax,
    spmm,
)

__version__ = "0.1.0"

__all__ = [
    "CBSR",
    "BuildInfo",
    "Graph",
    "GraphBatch",
    "algebra",
    "batch",
    "build_info",
    "config",
    "cosine_attention",
    "dot_attention",
    "edge_conv",
    "edge_conv_max",
    "gat_attention",
    "gather_edges",
    "gatv2_attention",
    "gaussian_spmm",
    "knn_graph",
    "maxk",
    "maxk_spmm",
    "readout",
    "sddmm",
    "segment_reduce",
    "segment_softmax",
    "spmm",
    "transform",
]
